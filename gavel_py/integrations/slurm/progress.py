"""How far jobs are: what they wrote to a file of their own, or else the time that they ran at the speed of the profile."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["Progress"]

MOST_BYTES = 64


@dataclass(frozen=True)
class Progress:
    """directory: with a file for each job, named as the job, 37 or 37_1, that holds its steps in all; None: there is none."""

    directory: Path | None = None

    def __post_init__(self) -> None:
        if self.directory is not None and not self.directory.is_dir():
            raise InputError(Fault(str(self.directory), "", "is no directory with files of progress"))

    def steps(self, job_id: str) -> float | None:
        """Return the steps that a job says it has done, None where it says nothing that can be read.

        The file is its user's: no link is followed, nothing but a plain file is opened, and little of it is read.
        """
        if self.directory is None:
            return None
        try:
            descriptor = os.open(self.directory / job_id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            words = os.read(descriptor, MOST_BYTES).split()
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return _number(words[0]) if words else None


def _number(word: bytes) -> float | None:
    try:
        steps = float(word)
    except ValueError:
        return None
    return steps if math.isfinite(steps) and steps >= 0 else None
