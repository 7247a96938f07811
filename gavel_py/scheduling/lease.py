"""A job's right to its GPUs: until when it has them, and whether it keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.scheduling.assignment import Assignment

__all__ = ["Lease"]


@dataclass(frozen=True)
class Lease:
    """The GPUs that a job holds now.

    end_seconds: it has them until then; renewed: whether it keeps them in the next round, so that it need not write a checkpoint;
    None while the next round has not been planned.
    """

    assignment: Assignment
    end_seconds: float
    renewed: bool | None = None
