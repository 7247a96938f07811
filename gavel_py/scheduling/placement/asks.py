"""What jobs ask of the places of their gangs, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.job import Job
from gavel_py.scheduling.placement.layout import SCOPES, Layout
from gavel_py.scheduling.placement.needs import NOTHING, Needs

__all__ = ["Asks"]


class Asks:
    """ids: of N jobs; scopes: (N,) places of their localities in `SCOPES`; evens: (N,) who must be split evenly; needs: the
    different ones, nothing first; need_of: (N,).

    Where no node says what it has, nobody needs anything.
    """

    def __init__(self, jobs: Sequence[Job], layout: Layout) -> None:
        numbers = {locality: scope for scope, locality in enumerate(SCOPES)}
        self.ids = [job.job_id for job in jobs]
        self.scopes = np.array([numbers[job.locality] for job in jobs], dtype=np.int64)
        self.evens = np.array([job.even_split for job in jobs], dtype=bool)
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

    def joined(self, groups: Iterable[Sequence[int]], parts: NDArray[np.float64]) -> Asks:
        """Return requests in which the row of the first job of each group asks for what the whole group asks for.

        Args:
            groups: The rows of the jobs of each group.
            parts: (N,) the part of each of its GPUs that a job asks for, and so of the CPUs and memory that go with it.
        """
        made = copy(self)
        made.scopes, made.evens, made.need_of = self.scopes.copy(), self.evens.copy(), self.need_of.copy()
        codes = {each: n for n, each in enumerate(self.needs)}
        for group in groups:
            rows = list(group)
            made.scopes[rows[0]], made.evens[rows[0]] = self.scopes[rows].min(), self.evens[rows].any()
            if len(self.needs) > 1:
                cpus, memory = parts[rows] @ np.array([self.needs[code] for code in self.need_of[rows].tolist()])
                made.need_of[rows[0]] = codes.setdefault(Needs(float(cpus), float(memory)), len(codes))
        made.needs = list(codes)
        return made
