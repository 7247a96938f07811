"""What a profile says of pairs, asked once for each kind of job and not at every allocation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job

__all__ = ["PairTable"]

Floats = NDArray[np.float64]


class PairTable:
    """The `pair_matrix` of a profile for all kinds of jobs that were asked about so far; a kind: job type and gang size."""

    def __init__(self, profile: Profile) -> None:
        self._measured = getattr(profile, "pair_matrix", None)
        self._jobs: list[Job] = []
        self._numbers: dict[tuple[str, float], int] = {}
        self._table: Floats | None = None

    def __call__(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats | None:
        """Return (Q, Q, K) steps/s as `pair_matrix` does, None where it knows nothing; the same accelerators in every call."""
        if self._measured is None:
            return None
        kinds = [(job.job_type, job.num_gpus) for job in jobs]
        for kind, job in zip(kinds, jobs, strict=True):
            if kind not in self._numbers:
                self._numbers[kind] = len(self._jobs)
                self._jobs.append(job)
        if self._table is None or len(self._table) < len(self._jobs):
            self._table = self._measured(self._jobs, accelerators)
        at = [self._numbers[kind] for kind in kinds]
        return None if self._table is None else self._table[np.ix_(at, at)]
