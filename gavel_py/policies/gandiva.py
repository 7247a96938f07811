"""Gandiva: equal time slices, and random pairs of jobs that share GPUs if they gain from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.base import option
from gavel_py.policies.formulas import Packing, PackingPolicy
from gavel_py.problem.arrays import Floats, Indices, Mask, isolated_shares
from gavel_py.problem.pair_throughputs import PairSpeeds


@dataclass(frozen=True, kw_only=True)
class Gandiva(PackingPolicy):
    """Take turns, and share GPUs where pairs of jobs gain.

    Time slices: all M of jobs and pairs have x_uj = (c_j / M) / s_u, divided by max(1, Σ_j x_uj).

    If all gangs fit at once, Σ_i s_i <= C, or the speeds of pairs are unknown, no jobs share: M = N. Otherwise random pairs of jobs
    with equal gangs are tried, and those that gain on some type, T_ab/T_a + T_ba/T_b > 1, are kept until no two remaining jobs
    would gain. On types where a pair does not gain, the two jobs take turns.
    Source: Gandiva (OSDI 2018), section 3; a baseline of Gavel (OSDI 2020), section 7.
    """

    reads = ("job_ids",)

    seed: int = option(0, "seed of the random choice of the pairs to try")

    def fractions(self, jobs: JobClasses) -> Floats:
        return isolated_shares(jobs.num_gpus, jobs.capacities, len(jobs))

    def packed(self, jobs: JobClasses, pairs: PairSpeeds) -> Packing:
        if jobs.num_gpus.sum() <= jobs.capacities.sum():
            return Packing(self.fractions(jobs), Pairs.nobody())
        classes, useful = pairs.kinds[jobs.rows], pairs.useful
        # Jobs of one pair class may differ in the types on which they can run, so both define a group.
        groups, group_of = np.unique(np.column_stack([classes, jobs.runnable]), axis=0, return_inverse=True)
        pair_class, able = groups[:, 0], groups[:, 1:] > 0
        is_known = pair_class >= 0
        gains = useful[pair_class[:, None], pair_class] & able[:, None] & able & is_known[:, None, None] & is_known[:, None]
        partners = _partners(self._order(jobs), group_of.ravel(), gains.any(axis=2))
        return _packing(jobs, pairs, partners)

    def _order(self, jobs: JobClasses) -> Indices:
        """Return the jobs ordered by a hash of their ids, so that few pairs change when few jobs arrive or leave."""
        drawn = [hashlib.blake2b(f"{self.seed} {job_id}".encode(), digest_size=16).digest() for job_id in jobs.job_ids]
        return np.array(sorted(range(len(jobs)), key=lambda i: drawn[i]), dtype=np.int64)


def _partners(order: Indices, groups: Indices, gains: Mask) -> Indices:
    """Return (N,) the partner of each job, -1 for none: the next job in this order with which it gains."""
    partners = np.full(len(order), -1, dtype=np.int64)
    waiting: list[list[int]] = [[] for _ in gains]
    for i in order[::-1].tolist():
        waiting[groups[i]].append(i)
    place = np.argsort(order).tolist()
    for i in order.tolist():
        if partners[i] >= 0:
            continue
        waiting[groups[i]].pop()  # it is the first of its group that waits
        ready = [waiting[group][-1] for group in np.flatnonzero(gains[groups[i]]).tolist() if waiting[group]]
        if ready:
            other = min(ready, key=place.__getitem__)
            waiting[groups[other]].pop()
            partners[i], partners[other] = other, i
    return partners


def _packing(jobs: JobClasses, pairs: PairSpeeds, partners: Indices) -> Packing:
    """Return the time slices of pairs and of single jobs."""
    each = np.arange(len(partners))
    leads = (partners < 0) | (each < partners)
    times = np.zeros(jobs.throughputs.shape)
    times[leads] = isolated_shares(jobs.num_gpus[leads], jobs.capacities, int(leads.sum()))
    first = np.flatnonzero(leads & (partners >= 0))
    second = partners[first]
    slices, both = times[first], jobs.runnable[first] & jobs.runnable[second]
    one, other = pairs.kinds[jobs.rows[first]], pairs.kinds[jobs.rows[second]]
    shared = pairs.useful[one, other] & both
    turns = np.where(both, slices / 2, slices)  # a job whose partner cannot run there has the whole slice
    times[first] = np.where(shared, 0.0, turns)
    times[second] = times[first]
    where, types = np.nonzero(shared.T)[::-1]
    return Packing(
        times,
        Pairs(
            first=jobs.rows[first[where]],
            second=jobs.rows[second[where]],
            types=types,
            times=slices[where, types],
            gains=pairs.gains[one[where], other[where], types],
        ),
    )
