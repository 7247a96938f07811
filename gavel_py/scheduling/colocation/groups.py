"""Co-location groups of a round, and the promises and accounts of co-located time.

An allocation promises time with partners of a class, not with particular jobs, so that no job waits for a partner that has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.job import Job
from gavel_py.scheduling.ledger import MAX_DEFICIT_ROUNDS, MAX_PAYBACK_ROUNDS
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.placement.gangs import HeldGpus


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
        promised: Floats = np.bincount(self.accounts, self.fractions, len(self.keys)).astype(float)
        return promised

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
    """

    def __init__(self) -> None:
        self._deficits: dict[PartnerKey, float] = {}

    def deficits(self, keys: Sequence[PartnerKey]) -> Floats:
        """Return (A,) deficits in rounds, 0 for new accounts."""
        return np.array([self._deficits.get(key, 0.0) for key in keys], dtype=float)

    def record(self, keys: Sequence[PartnerKey], fractions: Floats, received: Floats) -> None:
        """Enter one round; fractions, received: (A,) promised and received parts of the round."""
        max_surplus = np.maximum(1.0, MAX_PAYBACK_ROUNDS * fractions)
        balance = np.clip(self.deficits(keys) + fractions - received, -max_surplus, MAX_DEFICIT_ROUNDS)
        self._deficits.update(zip(keys, balance.tolist(), strict=True))

    def receive(self, key: PartnerKey, rounds: float) -> None:
        """Enter a part of a round received in addition to what was recorded; if it is negative, it is taken back."""
        if key in self._deficits:
            self._deficits[key] = float(np.clip(self._deficits[key] - rounds, -MAX_PAYBACK_ROUNDS, MAX_DEFICIT_ROUNDS))

    def keep(self, keys: Iterable[PartnerKey]) -> None:
        """Drop all accounts but these."""
        self._deficits = {key: self._deficits[key] for key in keys if key in self._deficits}

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of these jobs."""
        if self._deficits:
            self._deficits = {key: deficit for key, deficit in self._deficits.items() if key.job_id not in job_ids}

    def to_list(self) -> list[Any]:
        """Return the accounts as plain data."""
        return [[*key, deficit] for key, deficit in self._deficits.items()]

    @classmethod
    def from_list(cls, data: Iterable[Sequence[Any]]) -> ColocationLedger:
        """Return the accounts that `to_list` described."""
        made = cls()
        made._deficits = {PartnerKey(*key): float(deficit) for *key, deficit in data}
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
