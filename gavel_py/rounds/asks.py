"""What jobs ask of the places of their gangs, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from gavel_py.jobs import Job
from gavel_py.rounds.layout import SCOPES, Layout
from gavel_py.rounds.needs import NOTHING, Needs

__all__ = ["Asks"]


class Asks:
    """ids: of N jobs; scopes: (N,) places of their localities in `SCOPES`; needs: the different ones, nothing first; need_of: (N,).

    Where no node says what it has, nobody needs anything.
    """

    def __init__(self, jobs: Sequence[Job], layout: Layout) -> None:
        numbers = {locality: scope for scope, locality in enumerate(SCOPES)}
        self.ids = [job.job_id for job in jobs]
        self.scopes = np.array([numbers[job.locality] for job in jobs], dtype=np.int64)
        self.needs: list[Needs] = [NOTHING]
        self.need_of = np.zeros(len(jobs), dtype=np.int64)
        if layout.limited:
            codes = {NOTHING: 0}
            found = [codes.setdefault(Needs(job.cpus_per_gpu, job.memory_gb_per_gpu), len(codes)) for job in jobs]
            self.needs, self.need_of = list(codes), np.array(found, dtype=np.int64)

    def needs_of(self, rows: NDArray[np.int64]) -> list[Needs]:
        """Return what each GPU of these jobs needs."""
        if len(self.needs) == 1:
            return [NOTHING] * len(rows)
        return [self.needs[code] for code in self.need_of[rows].tolist()]

    def joined(self, leaders: NDArray[np.int64], followers: NDArray[np.int64]) -> Asks:
        """Return the same with the rows of leaders asking for what they and their followers ask for together."""
        made = copy(self)
        made.scopes = self.scopes.copy()
        made.scopes[leaders] = np.minimum(self.scopes[leaders], self.scopes[followers])
        if len(self.needs) > 1:
            codes, made.need_of = {needs: code for code, needs in enumerate(self.needs)}, self.need_of.copy()
            for a, b in zip(leaders.tolist(), followers.tolist(), strict=True):
                one, other = self.needs[self.need_of[a]], self.needs[self.need_of[b]]
                both = Needs(one.cpus + other.cpus, one.memory_gb + other.memory_gb)
                made.need_of[a] = codes.setdefault(both, len(codes))
            made.needs = list(codes)
        return made
