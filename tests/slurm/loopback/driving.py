"""The driver as a user starts it: `gavel slurm ...` in a process of its own."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.scenes import profile_text
from tests.slurm.loopback.waiting import until

__all__ = ["Driver", "driving", "gavel", "log_of", "plugin", "round_once"]

ROOT = Path(__file__).resolve().parents[3]
PARTITION = "gavel"


def log_of(cluster: LoopbackCluster) -> Path:
    """The file that a driver of this cluster writes its log to."""
    return cluster.folder / "driver" / "log.jsonl"


def plugin(*users: str) -> str:
    """The job_submit plugin, as an administrator gets it; users: who may manage jobs, beside whoever runs the tests."""
    named = [word for user in (str(os.getuid()), *users) for word in ("--user", user)]
    command = [sys.executable, "-m", "gavel_py", "slurm", "install", "--partition", PARTITION, *named]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def options(cluster: LoopbackCluster) -> list[str]:
    """What every driver here is told: where things are, and to lose no time, but to let Slurm have it that has little of a CPU."""
    (cluster.folder / "profile.csv").write_text(profile_text())
    places = {"--state": "driver", "--progress": "progress", "--profile": "profile.csv"}
    times = {"--poll": "1", "--timeout": "10", "--stop-seconds": "30", "--start-seconds": "30"}
    words = {"--partition": PARTITION} | {name: str(cluster.folder / place) for name, place in places.items()} | times
    return [word for pair in words.items() for word in pair]


def surroundings(cluster: LoopbackCluster, tools: Path | None = None) -> dict[str, str]:
    """The environment of a driver, which has no home, as the accounts of daemons have none.

    tools: a folder whose programs it finds before Slurm's own.
    """
    path = [str(tools)] if tools else []
    without = {name: value for name, value in cluster.environment.items() if not name.startswith(("XDG_", "GAVEL_PY_"))}
    return without | {
        "HOME": "/nonexistent",
        "PATH": os.pathsep.join([*path, cluster.environment["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def command_of(cluster: LoopbackCluster, words: Sequence[str], user: str | None = None) -> list[str]:
    """The command line; words that are given count, where they say otherwise than the usual options."""
    name, *rest = words
    own = [] if user is None else as_user(cluster, user)
    return [*own, sys.executable, "-m", "gavel_py", "slurm", name, *options(cluster), *rest]


def as_user(cluster: LoopbackCluster, user: str) -> list[str]:
    """The words that let a command run as another user, who gets the directory of the driver's state."""
    account, state = pwd.getpwnam(user), cluster.folder / "driver"
    state.mkdir(exist_ok=True)
    for path in (state, *state.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)
    return _prefix(account.pw_uid, account.pw_gid)


@cache
def _prefix(uid: int, gid: int) -> list[str]:
    """The interpreter of the tests may be in somebody's home: then it is read with a capability, which lets nothing be written."""
    change = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    for reading in ([], ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]):
        words = [*change, *reading, "--"]
        tried = [*words, sys.executable, "-c", "import gavel_py.integrations.slurm"]
        if subprocess.run(tried, cwd=ROOT, capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip(f"user {uid} cannot run the interpreter of the tests, {sys.executable}")


def gavel(
    cluster: LoopbackCluster, *words: str, tools: Path | None = None, user: str | None = None, within: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run `gavel slurm` with these words to its end, as another user where one is named."""
    return subprocess.run(
        command_of(cluster, words, user),
        cwd=cluster.folder,
        env=surroundings(cluster, tools),
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


def round_once(cluster: LoopbackCluster, *words: str) -> None:
    """Let one round be decided and carried out."""
    done = gavel(cluster, "run", "--round", "3", "--once", *words)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"


class Driver:
    """A driver that goes on until it is told to end. What it prints is in two files."""

    def __init__(self, cluster: LoopbackCluster, *words: str, tools: Path | None = None, user: str | None = None) -> None:
        self.cluster = cluster
        self.output, self.errors = (cluster.folder / "log" / f"driver.{what}" for what in ("out", "err"))
        with open(self.output, "wb") as out, open(self.errors, "wb") as err:
            self.process = subprocess.Popen(
                command_of(cluster, words, user),
                cwd=cluster.folder,
                env=surroundings(cluster, tools),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def said(self) -> str:
        """All that it has printed so far."""
        return self.output.read_text() + self.errors.read_text()

    def until(self, reading: Callable[[], object], within: float, what: str) -> None:
        """Wait until the reading is true; the driver must not end meanwhile."""
        until(lambda: reading() or self.process.poll() is not None, within, what, every=0.2)
        assert self.process.poll() is None, self.said()

    def rounds(self, count: int, within: float = 60.0) -> None:
        """Wait until so many rounds more have been carried out."""
        wanted = self.applied() + count
        self.until(lambda: self.applied() >= wanted, within * count, f"{count} rounds")

    def within_rounds(self, reading: Callable[[], object], count: int, what: str, within: float = 60.0) -> None:
        """Wait until the reading is true, which it must be before so many rounds more have been carried out."""
        last, found = self.applied() + count, False

        def is_settled() -> bool:
            nonlocal found
            found = bool(reading())
            return found or self.applied() >= last

        self.until(is_settled, within * count, what)
        assert found, f"{count} rounds later, there is not yet: {what}"

    def applied(self) -> int:
        """How many rounds have been carried out, by this driver and those before it."""
        return len(events(log_of(self.cluster), "applied"))

    def end(self, how: signal.Signals = signal.SIGINT, within: float = 60.0) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(how)
        return self.wait(within)

    def wait(self, within: float) -> int:
        """Wait until it ends by itself; returns the exit code."""
        return self.process.wait(within)


@contextmanager
def driving(cluster: LoopbackCluster, *words: str, tools: Path | None = None, user: str | None = None) -> Iterator[Driver]:
    """`gavel slurm run` with these words meanwhile, as another user where one is named; killed at the end if it still runs."""
    driver = Driver(cluster, "run", *words, tools=tools, user=user)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()
