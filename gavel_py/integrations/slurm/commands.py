"""Slurm's own commands: the only place where a process is started. Never a shell, always a time limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.values import printable

__all__ = ["Answer", "Commands", "SlurmCommands", "document_of"]

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
