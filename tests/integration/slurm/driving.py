"""The driver as a user starts it: `gavel slurm ...` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.integration.slurm.cluster import LoopbackCluster
from tests.integration.slurm.logbook import events
from tests.integration.slurm.scenes import profile_text
from tests.integration.slurm.waiting import until

__all__ = ["Driver", "driving", "gavel", "log_of", "plugin", "round_once"]

ROOT = Path(__file__).resolve().parents[3]
PARTITION = "gavel"


def log_of(cluster: LoopbackCluster) -> Path:
    """The file that a driver of this cluster writes its log to."""
    return cluster.folder / "driver" / "log.jsonl"


def plugin() -> str:
    """The job_submit plugin, as an administrator gets it."""
    command = [sys.executable, "-m", "gavel_py", "slurm", "install", "--partition", PARTITION, "--user", str(os.getuid())]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def options(cluster: LoopbackCluster) -> list[str]:
    """What every driver here is told: where things are, and to lose no time, but to let Slurm have it that has little of a CPU."""
    (cluster.folder / "profile.csv").write_text(profile_text())
    places = {"--state": "driver", "--progress": "progress", "--profile": "profile.csv", "--store": "store.sqlite"}
    times = {"--poll": "1", "--timeout": "10", "--stop-seconds": "30", "--start-seconds": "30"}
    words = {"--partition": PARTITION} | {name: str(cluster.folder / place) for name, place in places.items()} | times
    return [word for pair in words.items() for word in pair]


def surroundings(cluster: LoopbackCluster, tools: Path | None = None) -> dict[str, str]:
    """The environment of a driver; tools: a folder whose programs it finds before Slurm's own."""
    path = [str(tools)] if tools else []
    return cluster.environment | {
        "PATH": os.pathsep.join([*path, cluster.environment["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def command_of(cluster: LoopbackCluster, words: Sequence[str]) -> list[str]:
    """The command line; words that are given count, where they say otherwise than the usual options."""
    name, *rest = words
    return [sys.executable, "-m", "gavel_py", "slurm", name, *options(cluster), *rest]


def gavel(
    cluster: LoopbackCluster, *words: str, tools: Path | None = None, within: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run `gavel slurm` with these words to its end."""
    return subprocess.run(
        command_of(cluster, words),
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

    def __init__(self, cluster: LoopbackCluster, *words: str, tools: Path | None = None) -> None:
        self.cluster = cluster
        self.output, self.errors = (cluster.folder / "log" / f"driver.{what}" for what in ("out", "err"))
        with open(self.output, "wb") as out, open(self.errors, "wb") as err:
            self.process = subprocess.Popen(
                command_of(cluster, words),
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
def driving(cluster: LoopbackCluster, *words: str, tools: Path | None = None) -> Iterator[Driver]:
    """`gavel slurm run` with these words meanwhile; it is killed at the end if it still runs."""
    driver = Driver(cluster, "run", *words, tools=tools)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()
