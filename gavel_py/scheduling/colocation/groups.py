"""Co-location groups of a round, and the promises and accounts of co-located time.

`match_partners` finds the pairs of jobs that share whole GPUs, greedily by their deficits, before the mechanism selects jobs.
An allocation promises time with partners of a class, not with particular jobs, so that no job waits for a partner that has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.job import Job
from gavel_py.scheduling.ledger import MAX_DEFICIT_ROUNDS, MAX_PAYBACK_ROUNDS
from gavel_py.scheduling.mechanism.demand import RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement.gangs import CONSOLIDATED, SPREAD, HeldGpus


class PartnerKey(NamedTuple):
    """Key of an account: time of a job on a type with partners of one job type and the same gang size."""

    job_id: str
    partner_type: str
    accelerator: str


@dataclass(frozen=True, eq=False)
class ColocationPromises:
    """E promises of co-located time on A accounts, for N jobs.

    Classes of one job type that differ in GPU memory have a common account, since these classes change as jobs come and go.
    """

    keys: tuple[PartnerKey, ...]  # A account keys
    accounts: Indices  # (E,) the account of each promise
    rows: Indices  # (E,) the job of each promise
    partner_classes: Indices  # (E,) the class of its partners
    types: Indices  # (E,) its column
    fractions: Floats  # (E,) S_i(b,j), parts of the time
    classes: Indices  # (N,) the class of each job

    def __len__(self) -> int:
        """Return E."""
        return len(self.rows)

    @cached_property
    def index_of(self) -> dict[tuple[int, int, int], int]:
        """{(row, class of partners, column): index of the promise}."""
        columns = zip(self.rows.tolist(), self.partner_classes.tolist(), self.types.tolist(), strict=True)
        return {key: i for i, key in enumerate(columns)}

    @cached_property
    def promised(self) -> Floats:
        """(A,) the sum of promised parts on each account."""
        return np.bincount(self.accounts, self.fractions, len(self.keys)).astype(float)

    def divided(self, values: Floats) -> Floats:
        """Return (E,) values of accounts, given as (A,), divided in proportion to their promises."""
        return values[self.accounts] * (self.fractions / self.promised[self.accounts])

    def summed(self, values: Floats, shape: tuple[int, int]) -> Floats:
        """Return (N, K) the sum of (E,) values by job and type."""
        table = np.zeros(shape)
        np.add.at(table, (self.rows, self.types), values)
        return table


def promises_of(pairs: Pairs, classes: Indices, jobs: Sequence[Job], accelerator_types: Sequence[str]) -> ColocationPromises:
    """Return the promises that follow from pairs of jobs; classes: (N,) as `PairSpeeds.kinds`."""
    rows = np.concatenate([pairs.first, pairs.second])
    partners = classes[np.concatenate([pairs.second, pairs.first])]
    table = np.stack([rows, partners, np.tile(pairs.types, 2)], axis=1).astype(np.int64)
    found, back = np.unique(table, axis=0, return_inverse=True)
    fractions = np.bincount(back.ravel(), np.tile(pairs.times, 2), len(found)).astype(float)
    rows, partners, types = found.T
    names = {int(each): jobs[int(row)].job_type for each, row in zip(*np.unique(classes, return_index=True), strict=True)}
    numbers: dict[PartnerKey, int] = {}
    columns = zip(rows.tolist(), partners.tolist(), types.tolist(), strict=True)
    keys = (PartnerKey(jobs[i].job_id, names[b], accelerator_types[j]) for i, b, j in columns)
    accounts = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return ColocationPromises(tuple(numbers), accounts, rows, partners, types, fractions, classes)


class ColocationLedger:
    """The part of each deficit that belongs to co-located time.

    With partners of class b, A_i(b,j) += S_i(b,j) − received, in rounds, within the same bounds as deficits. An account is dropped
    when allocations no longer promise its time.

    accounts: {partners: deficit in rounds}.
    """

    def __init__(self) -> None:
        self.accounts: dict[PartnerKey, float] = {}

    def deficits(self, keys: Sequence[PartnerKey]) -> Floats:
        """Return (A,) deficits in rounds, 0 for new accounts."""
        return np.array([self.accounts.get(key, 0.0) for key in keys], dtype=float)

    def record(self, keys: Sequence[PartnerKey], fractions: Floats, received: Floats) -> None:
        """Enter one round; fractions, received: (A,) promised and received parts of the round."""
        max_surplus = np.maximum(1.0, MAX_PAYBACK_ROUNDS * fractions)
        balance = np.clip(self.deficits(keys) + fractions - received, -max_surplus, MAX_DEFICIT_ROUNDS)
        self.accounts.update(zip(keys, balance.tolist(), strict=True))

    def receive(self, key: PartnerKey, rounds: float) -> None:
        """Enter a part of a round received in addition to what was recorded; if it is negative, it is taken back."""
        if key in self.accounts:
            self.accounts[key] = float(np.clip(self.accounts[key] - rounds, -MAX_PAYBACK_ROUNDS, MAX_DEFICIT_ROUNDS))

    def keep(self, keys: Iterable[PartnerKey]) -> None:
        """Drop all accounts but these."""
        self.accounts = {key: self.accounts[key] for key in keys if key in self.accounts}

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of these jobs."""
        if self.accounts:
            self.accounts = {key: deficit for key, deficit in self.accounts.items() if key.job_id not in job_ids}

    def to_list(self) -> list[Any]:
        """Return the accounts as plain data."""
        return [[*key, deficit] for key, deficit in self.accounts.items()]

    @classmethod
    def from_list(cls, data: Iterable[Sequence[Any]]) -> ColocationLedger:
        """Return the accounts that `to_list` described."""
        made = cls()
        made.accounts = {PartnerKey(*key): float(deficit) for *key, deficit in data}
        return made


class ColocationGroup(NamedTuple):
    """Rows of jobs that share GPUs, the leader first, and the row of the job whose GPUs they keep (-1 for none)."""

    rows: tuple[int, ...]
    holder: int = -1


@dataclass(frozen=True, eq=False)
class ColocationGroups:
    """Disjoint groups of jobs that share GPUs, each of which runs as a whole or not at all."""

    groups: tuple[ColocationGroup, ...]  # the groups
    demand: RoundDemand  # the demand with the claims of each group in the row of its leader, and none in the rows of its other jobs

    def reduced(self, previous: HeldGpus) -> HeldGpus:
        """Return the previous GPUs with one gang per group, that of its leader."""
        source = np.arange(len(previous))
        for group in self.groups:
            source[list(group.rows)] = -1
            source[group.rows[0]] = group.holder
        return previous.take(source)

    def expanded(self, held: HeldGpus) -> HeldGpus:
        """Return the GPUs with those of the leaders copied to all jobs of their groups."""
        source = np.arange(len(held))
        for group in self.groups:
            if held.types[group.rows[0]] >= 0:
                source[list(group.rows[1:])] = group.rows[0]
        return held.take(source)

    def without_place(self, held: HeldGpus) -> Mask:
        """Return (N,) the jobs of groups that do not run."""
        waits = np.zeros(len(held), dtype=bool)
        for group in self.groups:
            waits[list(group.rows)] = held.types[group.rows[0]] < 0
        return waits


def match_partners(
    demand: RoundDemand, promises: ColocationPromises | None, ledger: ColocationLedger, job_ids: Sequence[str], running: HeldGpus
) -> ColocationGroups:
    """Return the pairs of a round, and the demand in which each pair is one gang.

    Each job prefers the option with its largest claim: running alone, or with a partner of some class. Its present option gains its
    hysteresis (`hysteresis_of`). In the order of claims, each job keeps its present partner, or else takes the job with the largest
    claim for its class. A job with a larger claim elsewhere is not taken.

    Args:
        demand: Demand of all jobs, with time alone and with partners added up.
        promises: Time that jobs are promised with partners, None for none.
        ledger: The accounts of co-located time.
        job_ids: (N,) ids of the jobs.
        running: (N,) the GPUs of running gangs, with their present partners.
    """
    if promises is None:
        return ColocationGroups((), demand)
    numbers = {job_id: row for row, job_id in enumerate(job_ids)}
    partners = np.full(len(numbers), -1, dtype=np.int64)
    for i, others in running.partners.items():
        partners[i] = numbers.get(others[0], -1)
    deficits = promises.divided(ledger.deficits(promises.keys))
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
