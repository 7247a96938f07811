"""The driver as users start it: `gavel slurm ...` in a separate process."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.scenes import profile_text
from tests.slurm.loopback.waiting import GUARD_SECONDS, until

__all__ = ["ROOT", "Driver", "driving", "gavel", "log_of", "plugin", "round_once"]

ROOT = Path(__file__).resolve().parents[3]
PARTITION = "gavel"


def log_of(cluster: LoopbackCluster) -> Path:
    """Return the log file of the driver of a cluster."""
    return cluster.folder / "driver" / "log.jsonl"


def plugin(*users: str, partition: str = PARTITION, rejects: Collection[str] = ()) -> str:
    """Return the job_submit plugin; users: accounts that may manage jobs, besides the one that runs the tests; partition: or
    several, separated by commas; rejects: what it also refuses, such as odd.
    """
    named = [word for user in (str(os.getuid()), *users) for word in ("--user", user)]
    named += [f"--reject-{each}" for each in rejects]
    command = [sys.executable, "-m", "gavel_py", "slurm", "install", "--partition", partition, *named]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def options(cluster: LoopbackCluster) -> dict[str, str]:
    """Usual options of drivers here: paths, and short intervals that still suit a Slurm with little CPU time."""
    (cluster.folder / "profile.csv").write_text(profile_text())
    places = {"--state": "driver", "--progress": "progress", "--profile": "profile.csv"}
    times = {"--poll": "1", "--timeout": "10", "--stop-seconds": "30", "--start-seconds": "30"}
    times |= {"--restart-seconds": "0", "--min-run-seconds": "0"}  # rounds here are shorter than turns should be
    return {"--partition": PARTITION} | {name: str(cluster.folder / place) for name, place in places.items()} | times


def surroundings(cluster: LoopbackCluster, tools: Path | None = None) -> dict[str, str]:
    """Return the environment of a driver, without a home directory, as for daemons. Warnings of libraries are errors.

    tools: a folder of programs that precede Slurm's own, and of Python modules.
    """
    path = [str(tools)] if tools else []
    without = {name: value for name, value in cluster.environment.items() if not name.startswith(("XDG_", "GAVEL_PY_"))}
    return without | {
        "HOME": "/nonexistent",
        "PATH": os.pathsep.join([*path, cluster.environment["PATH"]]),
        "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
        "PYTHONWARNINGS": "error,default::UserWarning",
        "PYTHONUNBUFFERED": "1",
    }


def command_of(cluster: LoopbackCluster, words: Sequence[str], user: str | None = None, without: Collection[str] = ()) -> list[str]:
    """Return the command line; given words override the usual options. without: usual options that are not given."""
    name, *rest = words
    left_out = {*without, "--progress"} if "--shadow" in rest else without
    usual = [word for option, value in options(cluster).items() if option not in left_out for word in (option, value)]
    return [*([] if user is None else as_user(cluster, user)), sys.executable, "-m", "gavel_py", "slurm", name, *usual, *rest]


def as_user(cluster: LoopbackCluster, user: str) -> list[str]:
    """Return a prefix that runs a command as another user, who becomes owner of the state directory."""
    account, state = pwd.getpwnam(user), cluster.folder / "driver"
    state.mkdir(exist_ok=True)
    for path in (state, *state.iterdir()):
        with suppress(FileNotFoundError):  # a temporary file that the driver has removed since
            os.chown(path, account.pw_uid, account.pw_gid)
    return _prefix(account.pw_uid, account.pw_gid)


@cache
def _prefix(uid: int, gid: int) -> list[str]:
    """If the interpreter is in a private home, it is read with a capability that permits no writes, and that shells pass on."""
    change = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    for reading in ([], ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]):
        words = [*change, *reading, "--"]
        tried = [*words, "/bin/sh", "-c", f"exec {shlex.quote(sys.executable)} -c 'import gavel_py.integrations.slurm'"]
        if subprocess.run(tried, cwd=ROOT, capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip(f"user {uid} cannot run the interpreter of the tests, {sys.executable}")


def gavel(
    cluster: LoopbackCluster,
    *words: str,
    tools: Path | None = None,
    user: str | None = None,
    within: float = 120.0,
    timeout_only: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `gavel slurm` to its end, optionally as another user; timeout_only: without options that only drivers have."""
    prefix = [] if user is None or not timeout_only else as_user(cluster, user)
    few = [*prefix, sys.executable, "-m", "gavel_py", "slurm", words[0], "--partition", PARTITION, "--timeout", "10", *words[1:]]
    return subprocess.run(
        few if timeout_only else command_of(cluster, words, user),
        cwd=cluster.folder,
        env=surroundings(cluster, tools),
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


def round_once(cluster: LoopbackCluster, *words: str) -> None:
    """Run a single round."""
    done = gavel(cluster, "run", "--round", "3", "--once", *words)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"


class Driver:
    """A driver in the background, with its output in two files."""

    def __init__(
        self,
        cluster: LoopbackCluster,
        *words: str,
        tools: Path | None = None,
        user: str | None = None,
        without: Collection[str] = (),
    ) -> None:
        self.cluster = cluster
        self.out, self.err = (cluster.folder / "log" / f"driver.{what}" for what in ("out", "err"))
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command_of(cluster, words, user, without),
                cwd=cluster.folder,
                env=surroundings(cluster, tools),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def output(self) -> str:
        """The output so far."""
        return self.out.read_text() + self.err.read_text()

    def until(self, reading: Callable[[], object], what: str, *, within: float = GUARD_SECONDS) -> None:
        """Wait until a reading is true; the driver must not end before."""
        until(lambda: reading() or self.process.poll() is not None, what, within=within, every=0.2)
        assert self.process.poll() is None, self.output()

    def rounds(self, count: int, within: float = 60.0) -> None:
        """Wait for a number of further rounds."""
        wanted = self.applied() + count
        self.until(lambda: self.applied() >= wanted, f"{count} rounds", within=within * count)

    def within_rounds(self, reading: Callable[[], object], count: int, what: str, within: float = 60.0) -> None:
        """Wait until a reading is true, at most for a number of further rounds."""
        last, found = self.applied() + count, False

        def is_settled() -> bool:
            nonlocal found
            found = bool(reading())
            return found or self.applied() >= last

        self.until(is_settled, what, within=within * count)
        assert found, f"{count} rounds later, there is not yet: {what}"

    def applied(self) -> int:
        """Number of rounds carried out by this driver and its predecessors."""
        return len(events(log_of(self.cluster), "applied"))

    def end(self, how: signal.Signals = signal.SIGINT, within: float = 60.0) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(how)
        return self.wait(within)

    def wait(self, within: float) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(within)


@contextmanager
def driving(
    cluster: LoopbackCluster, *words: str, tools: Path | None = None, user: str | None = None, without: Collection[str] = ()
) -> Iterator[Driver]:
    """Run `gavel slurm run` in the background, optionally as another user; it is killed at the end of the block.

    without: usual options that are not given.
    """
    driver = Driver(cluster, "run", *words, tools=tools, user=user, without=without)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()
