"""How fast jobs really are on GPUs that they share."""

from __future__ import annotations

import numpy as np

from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job

__all__ = ["CompanySpeeds"]

Key = tuple[str, str, float, str]


class CompanySpeeds:
    """What a profile says of pairs, each asked for once; interference: the part of its speed that a job with a part of a GPU loses
    to each other one on that GPU.
    """

    def __init__(self, profile: Profile, interference: float) -> None:
        self._beside_parts = 1.0 - interference
        self._measured = getattr(profile, "pair_matrix", None)
        self._parts: dict[Key, float] = {}

    def part(self, job: Job, other: Job, accelerator: str, alone: float) -> float:
        """Return the part of its speed alone, at most 1, that a job has with another one on its GPUs.

        alone: steps/s there, consolidated. Pairs are measured consolidated; spread, they are taken to lose the same part.
        """
        if job.num_gpus < 1:
            return self._beside_parts
        key = job.job_type, other.job_type, job.num_gpus, accelerator
        if key not in self._parts:
            table = None if self._measured is None else self._measured([job, other], [accelerator])
            speed = np.nan if table is None else float(table[0, 1, 0])
            self._parts[key] = min(1.0, float(np.nan_to_num(speed)) / alone) if alone > 0 else 0.0
        return self._parts[key]
