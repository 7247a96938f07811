"""Packing of fractional jobs, which request a part of one GPU, onto whole GPUs before the mechanism selects jobs.

The jobs of a round should be those of largest Σ_i s_i·score_i that fit on the GPUs, with the scores of whole gangs (`scores_of`):
equal fractions then take the same turns as whole GPUs of the same shape. This packing problem is solved approximately. Jobs are
packed one after the other; then GPUs are packed anew, alone and in pairs, while the sum rises.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.tolerances import DEFICIT_ROUNDING, INPUT_ROUNDING
from gavel_py.scheduling.colocation.groups import ColocationGroup, ColocationGroups
from gavel_py.scheduling.mechanism.demand import RoundDemand, raised_scores_of

PREFERENCE = 1e-7
"""Added to the worth of a job on the GPU where it is, so that it stays there if all else is equal."""

MOST_AT_ONCE = {1: 12, 2: 9}
"""Maximum number of jobs that are tried in all combinations, by the number of GPUs that are packed anew."""

MOST_ATTEMPTS = 16
"""Maximum number of GPUs that are packed anew, one by one, before one gains."""

BY_TYPE = ("deficits", "fractions", "received")
"""The fields of a demand that are added up over the jobs on a GPU."""

MOST_PAIRED = 6
"""Number of GPUs, those that could gain most, that are then packed anew in pairs."""


def pack_fractional(groups: ColocationGroups, parts: Floats, memory: GpuMemory, gpus: Indices, most: Indices) -> ColocationGroups:
    """Return the groups with one more for each GPU that fractional jobs are to share.

    Jobs that run on the type of their largest score stay together with the jobs on the same GPU. The others follow in the order of
    their scores: each goes to the GPU with enough memory that it fills best, or to a new one, on the first type where it has a
    score and finds room. Then GPUs are packed anew for waiting jobs of larger scores. With `backfill`, the jobs that still wait
    fill the rest. A group claims Σ_i s_i (D_ij + X_ij) on its type, and takes one GPU.

    Args:
        groups: Groups of jobs that share whole GPUs.
        parts: (N,) s_i, 1 for whole gangs.
        memory: GPU memory of the jobs and types.
        gpus: (N,) the first GPU that each job holds now, -1 for none.
        most: (K,) maximum number of GPUs of each type that may be shared.
    """
    demand = groups.demand
    rows = np.flatnonzero((parts < 1) & demand.runnable.any(axis=1) & ~demand.locked)
    if not len(rows):
        return groups
    packing = _Packing(demand, rows, parts[rows], memory, gpus[rows], most)
    packing.keep()
    packing.insert(np.arange(len(rows)))
    packing.improve()
    if demand.backfill:
        packing.fill()
    return packing.added_to(groups)


class _Packing:
    """M fractional jobs on up to G shared GPUs, while these are filled.

    Args:
        demand: The demand of all jobs.
        rows: (M,) the rows of the jobs.
        sizes: (M,) the part of a GPU that each requests.
        memory: GPU memory of all jobs and of the types.
        held: (M,) the GPU that each holds now, -1 for none.
        most: (K,) maximum number of shared GPUs of each type.
    """

    def __init__(self, demand: RoundDemand, rows: Indices, sizes: Floats, memory: GpuMemory, held: Indices, most: Indices) -> None:
        self._demand, self._rows, self._sizes, self._held = demand, rows, sizes, held
        self._needed, self._memory = (
            np.nan_to_num(memory.needed[rows]),
            np.where(np.isnan(memory.capacity), np.inf, memory.capacity),
        )
        self._scores = raised_scores_of(demand)[rows]
        self._place = np.full(len(rows), -1, dtype=np.int64)  # (M,) the shared GPU of each job, -1 while it waits
        self._unopened: list[int] = most.tolist()
        count = min(len(rows), int(most.sum()))
        self._jobs: list[list[int]] = []  # on each shared GPU
        self._types = np.full(count, -1, dtype=np.int64)  # (G,) of each shared GPU, -1 for those that are not opened yet
        self._gpus = np.full(count, -1, dtype=np.int64)  # (G,) the GPU that its jobs hold now and keep, -1 for any
        self._left, self._memory_left = np.ones(count), np.zeros(count)  # (G,) the free part, and free memory in GB

    def keep(self) -> None:
        """Keep running jobs on their GPUs; if too many GPUs are shared, on those whose jobs are worth most."""
        types = self._scores.argmax(axis=1)
        highest = self._scores[np.arange(len(types)), types]
        jobs = np.flatnonzero((self._demand.running_on[self._rows] == types) & (self._held >= 0) & np.isfinite(highest))
        gpus, where = np.unique(self._held[jobs], return_inverse=True)
        worth = np.bincount(where, self._sizes[jobs] * highest[jobs], len(gpus))
        together = np.split(jobs[np.lexsort((-highest[jobs], where))], np.cumsum(np.bincount(where, minlength=len(gpus)))[:-1])
        for g in np.argsort(-worth, kind="stable").tolist():
            j = types.item(together[g][0])
            if self._unopened[j]:
                fits = np.cumsum(self._sizes[together[g]]) <= 1 + INPUT_ROUNDING
                fits &= np.cumsum(self._needed[together[g], j]) <= self._memory[j] * (1 + INPUT_ROUNDING)
                self._put(together[g][fits], self._open(j, gpus.item(g)))

    def insert(self, jobs: Indices) -> None:
        """Put those of these jobs that wait and have scores on GPUs with room, in the order of scores."""
        jobs = jobs[self._place[jobs] < 0]
        places, types = np.nonzero(np.isfinite(self._scores[jobs]))
        for pair in np.argsort(-self._scores[jobs[places], types], kind="stable").tolist():
            job, j = jobs.item(places[pair]), types.item(pair)
            if self._place[job] < 0 and not self._put_where_fullest(job, j):
                self._put_on_new(job, j)

    def _put_where_fullest(self, job: int, j: int) -> bool:
        """Put a job on its own GPU, or else on the shared GPU of a type that it fills best; return whether one has room."""
        fits = (self._sizes[job] <= self._left + INPUT_ROUNDING) & (
            self._needed[job, j] <= self._memory_left * (1 + INPUT_ROUNDING)
        )
        fitting = np.flatnonzero((self._types == j) & fits)
        if not len(fitting):
            return False
        is_own = (self._gpus[fitting] == self._held[job]) & (self._held[job] >= 0)
        self._put(np.array([job]), fitting.item(np.where(is_own, -1.0, self._left[fitting]).argmin()))
        return True

    def _put_on_new(self, job: int, j: int) -> bool:
        """Put a job on one more shared GPU of a type, if possible its own; return whether there may be one."""
        if not self._put_on_own(job, j) and self._unopened[j]:
            self._put(np.array([job]), self._open(j, -1))
        return bool(self._place[job] >= 0)

    def _put_on_own(self, job: int, j: int) -> bool:
        """Open the GPU of this type on which a job runs; return whether that is possible."""
        if (
            not self._unopened[j]
            or self._demand.running_on[self._rows[job]] != j
            or self._held[job] < 0
            or self._held[job] in self._gpus
        ):
            return False
        self._put(np.array([job]), self._open(j, self._held.item(job)))
        return True

    def improve(self) -> None:
        """Pack single GPUs and pairs of GPUs anew while Σ_i s_i·score_i rises."""
        for j in np.unique(self._types[: len(self._jobs)]).tolist():
            while any(self._repack(gpus, j, waiting) for gpus, waiting in self._attempts(j)):
                pass

    def _attempts(self, j: int) -> Iterator[tuple[tuple[int, ...], Indices]]:
        """Yield the GPUs of a type that could gain most by waiting jobs, first alone and then in pairs, with the waiting jobs."""
        waiting = np.flatnonzero((self._place < 0) & np.isfinite(self._scores[:, j]))
        if len(waiting):
            waiting = waiting[np.argsort(-self._scores[waiting, j], kind="stable")]
            gains = self._largest_gains(j, self._scores.item(waiting[0], j))
            order = [g for g in np.argsort(-gains, kind="stable")[:MOST_ATTEMPTS].tolist() if gains[g] > DEFICIT_ROUNDING]
            for gpus in chain(((g,) for g in order), combinations(order[:MOST_PAIRED], 2)):
                yield gpus, waiting

    def _largest_gains(self, j: int, score: float) -> Floats:
        """Return (G,) upper bounds of what GPUs gain if waiting jobs have at most this score; 0 for those of other types."""
        here = np.flatnonzero((self._place >= 0) & (self._types[self._place] == j))
        less = np.maximum(0.0, score - self._scores[here, j])
        gains = np.bincount(self._place[here], self._sizes[here] * less, len(self._types)) + score * np.maximum(0.0, self._left)
        return np.where(self._types == j, gains, 0.0)

    def _repack(self, gpus: tuple[int, ...], j: int, waiting: Indices) -> bool:
        """Choose the best jobs for these GPUs from those there and from waiting ones; return whether this is a gain.

        At most `MOST_AT_ONCE` jobs are tried: on each GPU those of least score, up to an equal part of that number, and the first
        of those that wait. waiting: (W,) in the order of scores.
        """
        own = [self._of_least_score(g, j, MOST_AT_ONCE[len(gpus)] // (1 + len(gpus))) for g in gpus]
        room = [self._left[g] + self._sizes[there].sum() for g, there in zip(gpus, own, strict=True)]
        memory = [self._memory_left[g] + self._needed[there, j].sum() for g, there in zip(gpus, own, strict=True)]
        present = np.concatenate(own)
        fitting = waiting[self._sizes[waiting] <= max(room) + INPUT_ROUNDING]
        jobs = np.concatenate([present, fitting[: MOST_AT_ONCE[len(gpus)] - len(present)]])
        sets, values = _sets_of(len(jobs)), self._sizes[jobs] * self._scores[jobs, j]
        sizes, needed = sets @ self._sizes[jobs], sets @ self._needed[jobs, j]
        chosen, worth = np.zeros((1, 0), dtype=np.int64), np.zeros(1)  # the combinations of one set for each GPU so far
        for there, left, free in zip(own, room, memory, strict=True):
            fit = np.flatnonzero((sizes <= left + INPUT_ROUNDING) & (needed <= free * (1 + INPUT_ROUNDING)))
            taken = np.bitwise_or.reduce(chosen, axis=1)
            before, new = np.nonzero((taken[:, None] & fit) == 0)
            chosen = np.column_stack([chosen[before], fit[new]])
            worth = worth[before] + (sets[fit] @ (values + PREFERENCE * np.isin(jobs, there)))[new]
        best = int(worth.argmax())
        if worth[best] <= (values[: len(present)] + PREFERENCE).sum() + DEFICIT_ROUNDING:
            return False
        for g, there in zip(gpus, own, strict=True):
            self._remove(there, g)
        for g, number in zip(gpus, chosen[best].tolist(), strict=True):
            self._put(jobs[sets[number] > 0], g)
        self.insert(present)
        return True

    def _of_least_score(self, g: int, j: int, most: int) -> Indices:
        """Return up to `most` jobs of a shared GPU, the least score first."""
        jobs = np.array(self._jobs[g], dtype=np.int64)
        return jobs[np.argsort(self._scores[jobs, j], kind="stable")][:most]

    def fill(self) -> None:
        """Put waiting jobs on the remaining parts of GPUs: running ones where they run, and then each where it is fastest."""
        waiting, running_on = np.flatnonzero(self._place < 0), self._demand.running_on[self._rows]
        for job in waiting[np.argsort(running_on[waiting] < 0, kind="stable")].tolist():
            row, here = self._rows[job], running_on.item(job)
            fastest = np.argsort(-self._demand.throughputs[row], kind="stable")
            types = fastest[self._demand.runnable[row, fastest]].tolist()
            if here in types and (self._put_on_own(job, here) or self._put_where_fullest(job, here)):
                continue
            if not any(self._put_where_fullest(job, j) for j in types):
                any(self._put_on_new(job, j) for j in types)

    def _open(self, j: int, gpu: int) -> int:
        """Return a new shared GPU, which is to be the one with this number if it is not -1."""
        g = len(self._jobs)
        self._jobs.append([])
        self._types[g], self._gpus[g], self._memory_left[g] = j, gpu, self._memory[j]
        self._unopened[j] -= 1
        return g

    def _put(self, jobs: Indices, g: int) -> None:
        self._place[jobs] = g
        self._jobs[g] += jobs.tolist()
        self._left[g] -= self._sizes[jobs].sum()
        self._memory_left[g] -= self._needed[jobs, self._types[g]].sum()

    def _remove(self, jobs: Indices, g: int) -> None:
        self._place[jobs] = -1
        self._jobs[g] = [job for job in self._jobs[g] if self._place[job] == g]
        self._left[g] += self._sizes[jobs].sum()
        self._memory_left[g] += self._needed[jobs, self._types[g]].sum()

    def added_to(self, groups: ColocationGroups) -> ColocationGroups:
        """Return the groups with one for each shared GPU, and the demand with the claims of each in the row of its first job."""
        shared = [g for g, jobs in enumerate(self._jobs) if jobs]
        found = tuple(self._as_group(g) for g in shared)
        return ColocationGroups((*groups.groups, *found), self._joint_demand(np.array(shared, dtype=np.int64), found))

    def _as_group(self, g: int) -> ColocationGroup:
        """Return the jobs of a shared GPU as a group, led by the first job that holds the GPU."""
        jobs, gpu = np.array(sorted(self._jobs[g])), self._gpus[g]
        holds = (self._held[jobs] == gpu) & (gpu >= 0)
        rows = self._rows[jobs[np.argsort(~holds, kind="stable")]].tolist()
        return ColocationGroup(tuple(rows), rows[0] if holds.any() else -1)

    def _joint_demand(self, shared: Indices, found: tuple[ColocationGroup, ...]) -> RoundDemand:
        """Return the demand with the claims of each group on its type in the row of its first job, and none in the other rows."""
        joint = self._demand.copy()
        for name in BY_TYPE:
            getattr(joint, name)[self._rows] = 0.0
        joint.runnable[self._rows], joint.running_on[self._rows] = False, -1
        packed = np.flatnonzero(self._place >= 0)
        rows, place = self._rows[packed], self._place[packed]
        types = self._types[place]
        has_claim = np.isfinite(self._scores[packed, types])
        leaders, columns = np.array([group.rows[0] for group in found], dtype=np.int64), self._types[shared]

        def summed(values: Floats) -> Floats:
            sums: Floats = np.bincount(place, self._sizes[packed] * values, len(self._types)).astype(float)
            return sums[shared]

        for name in BY_TYPE:
            getattr(joint, name)[leaders, columns] = summed(has_claim * getattr(self._demand, name)[rows, types])
        joint.restart_rounds[leaders] = summed(self._demand.restart_rounds[rows])
        joint.turn_rounds[leaders] = summed(self._demand.turn_rounds[rows])
        joint.new[leaders] = summed((~self._demand.new[rows]).astype(float)) == 0
        least = np.full(len(self._types), np.inf)
        np.minimum.at(least, place, self._demand.promised[rows])
        joint.promised[leaders] = least[shared]
        joint.running_on[leaders] = np.where([group.holder >= 0 for group in found], columns, -1)
        joint.runnable[leaders, columns] = True
        for i in np.flatnonzero((summed(has_claim.astype(float)) == 0) & (joint.running_on[leaders] < 0)).tolist():
            joint.runnable[leaders[i]] = self._suitable_types(self._jobs[shared[i]])
        return joint

    def _suitable_types(self, jobs: list[int]) -> Mask:
        """Return (K,) the types on which all of these jobs can run and fit on one GPU together."""
        fits = self._needed[jobs].sum(axis=0) <= self._memory * (1 + INPUT_ROUNDING)
        suitable: Mask = self._demand.runnable[self._rows[jobs]].all(axis=0) & fits
        return suitable


@lru_cache(maxsize=max(MOST_AT_ONCE.values()) + 1)
def _sets_of(count: int) -> Floats:
    """Return (2^count, count) all sets of this many jobs, the bits of their indices, as rows of 0 and 1."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(float)
