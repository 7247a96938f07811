"""Pairs of jobs that share whole GPUs in a round, matched greedily by their deficits before the mechanism selects jobs."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.colocation.groups import ColocationGroup, ColocationGroups, ColocationPromises
from gavel_py.scheduling.mechanism.demand import RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement.gangs import CONSOLIDATED, SPREAD


def match_partners(demand: RoundDemand, promises: ColocationPromises, deficits: Floats, partners: Indices) -> ColocationGroups:
    """Return the pairs of a round, and the demand in which each pair is one gang.

    Each job prefers the option with its largest claim: running alone, or with a partner of some class. Its present option gains its
    hysteresis (`hysteresis_of`). In the order of claims, each job keeps its present partner, or else takes the job with the largest
    claim for its class. A job with a larger claim elsewhere is not taken.

    Args:
        demand: Demand of all jobs, with time alone and with partners added up.
        promises: Time that jobs are promised with partners.
        deficits: (E,) the part of the deficits that belongs to each promise.
        partners: (N,) row of each job's present partner, -1 for none.
    """
    shape = demand.fractions.shape
    claims = rounded(deficits + promises.fractions)
    present = partners[promises.rows]
    are_together = (
        (present >= 0)
        & (promises.classes[present] == promises.partner_classes)
        & (demand.running_on[promises.rows] == promises.types)
    )
    sizes, restarts = demand.num_gpus[promises.rows], demand.restart_rounds[promises.rows]
    scores = claims + hysteresis_of(promises.fractions, sizes, restarts) * are_together
    solo = replace(
        demand,
        deficits=demand.deficits - promises.summed(deficits, shape),
        fractions=np.maximum(0.0, demand.fractions - promises.summed(promises.fractions, shape)),
    )
    pairs = _Matching(promises, scores, _solo_scores_of(solo, partners), partners).pairs(
        demand.runnable.any(axis=1) & ~demand.locked
    )
    return _groups_of(solo, promises, claims, pairs)


def _solo_scores_of(demand: RoundDemand, partners: Indices) -> Floats:
    """Return (N,) the largest claim of each job to run alone, with hysteresis where it runs alone now."""
    runs_solo = demand.running & (partners < 0)[:, None]
    hysteresis = hysteresis_of(demand.fractions, demand.num_gpus[:, None], demand.restart_rounds[:, None])
    has_share = demand.runnable & (demand.fractions > 0)
    scores: Floats = np.where(has_share, demand.claims + hysteresis * runs_solo, -np.inf).max(axis=1, initial=-np.inf)
    return scores


class _Matching:
    """Greedy matching; scores: (E,) of promises; solo: (N,) of running without a partner; partners: (N,) present partners."""

    def __init__(self, promises: ColocationPromises, scores: Floats, solo: Floats, partners: Indices) -> None:
        self._promises = promises
        self._scores: list[float] = scores.tolist()
        self._solo_scores: list[float] = solo.tolist()
        self._partners: list[int] = partners.tolist()
        self._order = np.argsort(-scores, kind="stable").tolist()
        self._rows: list[int] = promises.rows.tolist()
        own_classes = promises.classes[promises.rows].tolist()
        self._keys = list(zip(own_classes, promises.partner_classes.tolist(), promises.types.tolist(), strict=True))
        # Promises by (class of the job, class of the partner, type), largest score first.
        self._by_key: dict[tuple[int, int, int], deque[int]] = {}
        for promise in self._order:
            self._by_key.setdefault(self._keys[promise], deque()).append(promise)

    def pairs(self, available: Mask) -> list[tuple[int, int]]:
        """Return disjoint pairs of the available jobs."""
        free, found = available.tolist(), []
        for promise in self._order:
            job = self._rows[promise]
            if not free[job]:
                continue
            if self._scores[promise] <= 0:
                break
            partner = self._partner(promise, free) if self._scores[promise] > self._solo_scores[job] else None
            if partner is not None:
                free[job] = free[partner] = False
                found.append((job, partner))
        return found

    def _partner(self, promise: int, free: list[bool]) -> int | None:
        """Return the job that shares with the job of this promise: its present partner, or the free job with the largest score."""
        job, (own, other, column) = self._rows[promise], self._keys[promise]
        present = self._partners[job]
        its_promise = self._promises.index_of.get((present, own, column)) if present >= 0 else None
        if its_promise is not None and self._accepts(its_promise, job, free) and self._keys[its_promise][0] == other:
            return present
        candidates = self._by_key.get((other, own, column), deque())
        while candidates and not free[self._rows[candidates[0]]]:
            candidates.popleft()
        return next((self._rows[each] for each in candidates if self._accepts(each, job, free)), None)

    def _accepts(self, promise: int, job: int, free: list[bool]) -> bool:
        """Return whether the job of this promise is free and has no larger claim to run alone."""
        partner = self._rows[promise]
        return partner != job and free[partner] and bool(self._scores[promise] > self._solo_scores[partner])


def _groups_of(demand: RoundDemand, promises: ColocationPromises, claims: Floats, pairs: list[tuple[int, int]]) -> ColocationGroups:
    """Return the pairs as groups led by the first job that runs, and the demand with each pair's claims in its leader's row."""
    running = demand.running_on.tolist()
    ordered = [(a, b) if (running[a] < 0, a) < (running[b] < 0, b) else (b, a) for a, b in pairs]
    leaders, followers = np.array(ordered, dtype=np.int64).reshape(-1, 2).T
    joint = demand.copy()
    joint.runnable[leaders] &= joint.runnable[followers]
    for a, b in ordered:
        joint.deficits[a], joint.fractions[a], has_promise = _claims_of_pair(promises, claims, a, b, joint.fractions.shape[1])
        joint.runnable[a] &= has_promise
    joint.deficits[followers] = joint.fractions[followers] = 0.0
    joint.runnable[followers], joint.running_on[followers] = False, -1
    joint.restart_rounds[leaders] = np.maximum(joint.restart_rounds[leaders], joint.restart_rounds[followers])
    joint.received[leaders] = (joint.received[leaders] + joint.received[followers]) / 2
    joint.new[leaders] &= joint.new[followers]
    joint.promised[leaders] = np.minimum(joint.promised[leaders], joint.promised[followers])
    # Throughputs of pairs on spread placements are not known.
    own = joint.preferences[leaders]
    joint.preferences[leaders] = np.where(own == SPREAD, CONSOLIDATED, own)
    return ColocationGroups(tuple(ColocationGroup(pair, pair[0] if running[pair[0]] >= 0 else -1) for pair in ordered), joint)


def _claims_of_pair(promises: ColocationPromises, claims: Floats, a: int, b: int, num_types: int) -> tuple[Floats, Floats, Mask]:
    """Return (K,) deficits and (K,) fractions of a pair, the means of both jobs, and (K,) where it is promised any time."""
    deficits, fractions, has_promise = np.zeros(num_types), np.zeros(num_types), np.zeros(num_types, dtype=bool)
    classes = promises.classes[[a, b]].tolist()
    for j in range(num_types):
        keys = (a, classes[1], j), (b, classes[0], j)
        sides = [promises.index_of[key] for key in keys if key in promises.index_of]
        if len(sides) == len(keys):
            fractions[j] = promises.fractions[sides].mean()
            deficits[j] = claims[sides].mean() - fractions[j]
            has_promise[j] = True
    return deficits, fractions, has_promise
