"""Gangs to be placed, as arrays: what they ask of their places, on how many nodes they are, and on how many they must or should be.

`ResourceRequests` is what jobs ask for, `GangBatch` the gangs to be placed, and `Spans` the fewest nodes that they need.
`preferences_of` says in which placement each gang should run: on as few nodes as possible, or on more, as its time was promised.
`PlacementContext` is what rounds have in common as long as neither jobs nor nodes change, so that it need not be computed again for
each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import Node
from gavel_py.problem.pair_throughputs import fewest_nodes
from gavel_py.scheduling.placement.topology import NODE, NOTHING, SCOPES, Layout, Resources
from gavel_py.scheduling.round import Assignment


class ResourceRequests:
    """ids: of N jobs; scopes: (N,) places of their localities in `SCOPES`; evens: (N,) who must be split evenly; needs: the
    different ones, nothing first; need_of: (N,).

    Where no node says what it has, nobody needs anything.
    """

    def __init__(self, jobs: Sequence[Job], layout: Layout) -> None:
        numbers = {locality: scope for scope, locality in enumerate(SCOPES)}
        self.ids = [job.job_id for job in jobs]
        self.scopes = np.array([numbers[job.locality] for job in jobs], dtype=np.int64)
        self.evens = np.array([job.even_split for job in jobs], dtype=bool)
        self.needs: list[Resources] = [NOTHING]
        self.need_of = np.zeros(len(jobs), dtype=np.int64)
        if layout.limited:
            codes = {NOTHING: 0}
            found = [codes.setdefault(Resources(job.cpus_per_gpu, job.memory_gb_per_gpu), len(codes)) for job in jobs]
            self.needs, self.need_of = list(codes), np.array(found, dtype=np.int64)

    def needs_of(self, rows: NDArray[np.int64]) -> list[Resources]:
        """Return what each GPU of these jobs needs."""
        if len(self.needs) == 1:
            return [NOTHING] * len(rows)
        return [self.needs[code] for code in self.need_of[rows].tolist()]

    def joined(self, groups: Iterable[Sequence[int]], parts: NDArray[np.float64]) -> ResourceRequests:
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
                made.need_of[rows[0]] = codes.setdefault(Resources(float(cpus), float(memory)), len(codes))
        made.needs = list(codes)
        return made


SWITCH_ROUNDS = 1.0
"""A gang that is promised both placements changes to the other one when it is owed so many rounds more of it, and its restart."""


class PlacementPreference(IntEnum):
    """A placement of a gang: ANY: as few nodes as can be, but it is not moved for that; TOGETHER: as few; APART: more than that."""

    ANY = 0
    TOGETHER = 1
    APART = 2


def preferences_of(
    fractions: Floats,
    apart: Floats,
    faster_apart: Mask,
    deficits: Floats,
    owed_apart: Floats,
    stands_apart: Floats,
    restart_rounds: Floats,
) -> NDArray[np.int8]:
    """Return (N, K) the `PlacementPreference` of placement that each job should have on each type this round.

    fractions: (N, K) X_ij; apart: (N, K) the part S_ij of it that is to be spread, NaN where that is no matter;
    faster_apart: (N, K) whether it is faster so, which decides where nothing is promised; deficits: (N, K) D_ij;
    owed_apart: (N, K) A_ij, what of it is owed spread; stands_apart: (N, K) 1 where it runs spread now, -1 where it runs
    consolidated, 0 where it does not run; restart_rounds: (N,).
    """
    matters, promised = ~np.isnan(apart), np.nan_to_num(apart)
    more_apart = (owed_apart + promised) - (deficits - owed_apart + fractions - promised)
    kept = stands_apart * (SWITCH_ROUNDS + restart_rounds[:, None])
    is_apart = np.select(
        [fractions <= 0, promised <= 0, promised >= fractions],
        [faster_apart, np.zeros_like(matters), np.ones_like(matters)],
        more_apart + kept > 0,
    )
    kinds: NDArray[np.int8] = np.where(
        matters, np.where(is_apart, PlacementPreference.APART, PlacementPreference.TOGETHER), PlacementPreference.ANY
    ).astype(np.int8)
    return kinds


@dataclass(frozen=True, eq=False)
class GangBatch:
    """M gangs, those on one type in a row and of these the one first that matters most.

    sizes: (M,) GPUs; types: (M,) rising, their numbers in the layout, -1 for one that has no nodes;
    scopes: (M,) places in `SCOPES`; evens: (M,) bool, who must have as many GPUs on each node; kinds: (M,) values of
    `PlacementPreference`; fewest: (M,) nodes on which each must be at least, told where its kind matters; needs: by gang, what each
    of its GPUs needs on its node; held: (H,) GPUs that they had until now, by number, -1 for one that is not there; owners: (H,)
    whose they were, rising.
    """

    sizes: Indices
    types: Indices
    scopes: Indices
    evens: NDArray[np.bool_]
    kinds: NDArray[np.int8]
    fewest: Indices
    needs: Sequence[Resources]
    held: Indices
    owners: Indices

    def __len__(self) -> int:
        return len(self.sizes)

    def on_type(self, number: int, first_gpu: int) -> tuple[int, GangBatch]:
        """Return where the gangs on a type begin, and these by themselves, their GPUs numbered from this one."""
        start, stop = np.searchsorted(self.types, [number, number + 1]).tolist()
        gangs, held = slice(start, stop), slice(*np.searchsorted(self.owners, [start, stop]).tolist())
        numbers, owners = self.held[held] - first_gpu, self.owners[held] - start
        what = self.sizes[gangs], self.types[gangs], self.scopes[gangs], self.evens[gangs], self.kinds[gangs], self.fewest[gangs]
        return start, GangBatch(*what, self.needs[gangs], numbers, owners)

    def with_preferences_on(self, nodes: int) -> GangBatch:
        """Return the same gangs on one type of so many nodes, where no kind matters that a gang could not or must have anyhow."""
        if not self.kinds.any():
            return self
        may_spread = (self.sizes > self.fewest) & (self.fewest < nodes) & (self.scopes != NODE) & ~self.evens
        return replace(self, kinds=np.where(may_spread, self.kinds, PlacementPreference.ANY).astype(np.int8))


class Spans:
    """On how many nodes of a cluster a gang must be at least; on more, it is spread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fewest: dict[tuple[str, int], int] = {}

    def fewest(self, accelerator: str, size: int) -> int:
        """Return on how many nodes of a type a gang must be at least."""
        key = accelerator, size
        if key not in self._fewest:
            self._fewest[key] = fewest_nodes(self._cluster, accelerator, size)
        return self._fewest[key]

    def is_spread(self, held: Assignment) -> bool:
        """Say whether a gang is on more nodes than it had to be."""
        if len(held.gpus) == 1:
            return False
        return held.num_nodes > self.fewest(held.accelerator, len(held.gpus))


class PlacementContext:
    """jobs, nodes: of the rounds; layout, asks: the same as arrays; spans: the fewest nodes of gangs, by default on these."""

    def __init__(self, jobs: Sequence[Job], nodes: Sequence[Node], spans: Spans | None = None) -> None:
        self.jobs, self.nodes = jobs, nodes
        self.layout = Layout(nodes)
        self.asks = ResourceRequests(jobs, self.layout)
        self._spans = spans

    @cached_property
    def spans(self) -> Spans:
        """On how many nodes gangs must be."""
        return Spans(Cluster(self.nodes)) if self._spans is None else self._spans

    def holds_for(self, jobs: Sequence[Job], nodes: Sequence[Node]) -> bool:
        """Say whether it is that of these jobs, the very same sequence, and of these nodes."""
        return jobs is self.jobs and nodes == self.nodes

    def asking(self, asks: ResourceRequests) -> PlacementContext:
        """Return the same ground for jobs that ask for something else."""
        made = copy(self)
        made.asks = asks
        return made
