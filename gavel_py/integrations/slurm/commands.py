"""The time, and waiting.

Slurm's own commands: the only place where a process is started. Never a shell, always a time limit.

Reading a cluster: two commands, and nothing is changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.parsing import jobs_from, nodes_from, printable
from gavel_py.integrations.slurm.records import SlurmJob, Snapshot

__all__ = ["Answer", "Clock", "Commands", "SlurmCommands", "WallClock", "document_of", "read_cluster", "read_jobs"]


class Clock(Protocol):
    """The time, and waiting; tests have one of their own."""

    def now(self) -> float:
        """Return the time, in seconds since 1970, as Slurm counts."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on: not if the program is to end."""
        ...


class WallClock:
    """The time of this machine; `stop` ends all waiting."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on."""
        return not self._stopped.wait(max(0.0, seconds))

    def stop(self) -> None:
        """Let the driver end after what it is doing; may be called by a signal's handler."""
        self._stopped.set()


ENVIRONMENT = {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}

"""Messages as they are known here, and lists of array tasks that are not cut."""


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str


class Commands(Protocol):
    """How Slurm is asked and told; tests hand in one of their own."""

    def run(self, arguments: Sequence[str], text: str = "") -> Answer:
        """Run one command with this text as its input. Raises `SlurmError` where it cannot be run or does not end."""
        ...


@dataclass(frozen=True)
class SlurmCommands:
    """Runs Slurm's commands on this machine. timeout_seconds: of each; with a dead controller they would wait for minutes."""

    timeout_seconds: float = 60.0

    def run(self, arguments: Sequence[str], text: str = "") -> Answer:
        """Run one command, found on the path, with this text as its input."""
        program = shutil.which(arguments[0])
        if program is None:
            raise SlurmError(f"{arguments[0]} is not there: Slurm's commands must be installed and on the path of this program")
        try:
            done = subprocess.run(  # noqa: S603
                [program, *arguments[1:]],
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout_seconds,
                env=os.environ | ENVIRONMENT,
                check=False,
                start_new_session=True,  # Ctrl-C is for the driver, which ends when its step is done
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{arguments[0]} has not answered within {self.timeout_seconds:g} s; is slurmctld up?") from None
        except OSError as error:
            raise SlurmError(f"{arguments[0]} cannot be run: {error.strerror or error}") from None
        return Answer(done.returncode, done.stdout, done.stderr)


def document_of(commands: Commands, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints. Raises `SlurmError` where it fails or prints something else."""
    answer = commands.run(arguments)
    said = printable(answer.err) or f"it ended with code {answer.code}"
    if answer.code != 0:
        raise SlurmError(f"{' '.join(arguments)} failed: {said}")
    try:
        document = json.loads(answer.out)
    except ValueError:
        raise SlurmError(f"{' '.join(arguments)} printed no JSON: {printable(answer.out) or said}") from None
    if not isinstance(document, dict):
        raise SlurmError(f"{' '.join(arguments)} printed JSON of another kind")
    return document


def read_cluster(commands: Commands, now_seconds: float) -> Snapshot:
    """Return nodes and jobs as they are now. Raises `SlurmError` where Slurm does not answer."""
    nodes = nodes_from(document_of(commands, "sinfo", "--all", "--json"))
    if not nodes:
        raise SlurmError("sinfo --all --json names no nodes; this needs Slurm 21.08 or later, and a cluster that is configured")
    jobs, unread = jobs_from(document_of(commands, "squeue", "--all", "--json"))
    return Snapshot(now_seconds, nodes, jobs, unread)


def read_jobs(commands: Commands) -> dict[str, SlurmJob]:
    """Return the jobs alone, as they are now."""
    return jobs_from(document_of(commands, "squeue", "--all", "--json"))[0]
