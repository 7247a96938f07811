"""Co-location groups: time with partners that an allocation promises, its accounts, and jobs that share GPUs in a round.

`ColocationPromises`: for each job, with partners of which kind, on which type, for how long; `ColocationLedger`: what was promised
with partners of each kind, and what was received. `ColocationGroups`: jobs that are to run on the same GPUs in a round, which are
one gang to the mechanism and to placement. `PairTable`: what a profile says of pairs, asked once for each kind of job and not at
every allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.ledger import LONGEST_PAYBACK_ROUNDS, MOST_OWED_ROUNDS
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.round import Assignment

Held = Mapping[str, Assignment]


class PartnerKey(NamedTuple):
    """A job's time on a type with partners of one job type, whose gangs are as large as its own."""

    job_id: str
    partner_type: str
    accelerator: str


@dataclass(frozen=True, eq=False)
class ColocationPromises:
    """E promises on A accounts. keys: (A,) whose and which; accounts: (E,) that of each promise; rows: (E,) the jobs;
    partners: (E,) the kinds of their partners; types: (E,) columns; fractions: (E,) S_i(b,j), parts of the time; kinds: (N,) the
    kind of each job.

    Kinds of one job type that differ in GPU memory have one account: how jobs are told apart by it changes as others come and go.

    With whom of a kind a job shares is free to be decided from round to round, and so nobody waits for a partner that has left.
    """

    keys: tuple[PartnerKey, ...]
    accounts: Indices
    rows: Indices
    partners: Indices
    types: Indices
    fractions: Floats
    kinds: Indices

    def __len__(self) -> int:
        """E."""
        return len(self.rows)

    @cached_property
    def place_of(self) -> dict[tuple[int, int, int], int]:
        """{(job, kind of partner, type): its promise}."""
        columns = zip(self.rows.tolist(), self.partners.tolist(), self.types.tolist(), strict=True)
        return {key: place for place, key in enumerate(columns)}

    @cached_property
    def promised(self) -> Floats:
        """(A,) what is promised on each account."""
        promised: Floats = np.bincount(self.accounts, self.fractions, len(self.keys)).astype(float)
        return promised

    def divided(self, owed: Floats) -> Floats:
        """Return (E,) what (A,) accounts owe by promise: to each its part."""
        return owed[self.accounts] * (self.fractions / self.promised[self.accounts])

    def summed(self, values: Floats, shape: tuple[int, int]) -> Floats:
        """Return (N, K) the sum of (E,) values by job and type."""
        table = np.zeros(shape)
        np.add.at(table, (self.rows, self.types), values)
        return table


def promises_of(pairs: Pairs, kinds: Indices, jobs: Sequence[Job], accelerator_types: Sequence[str]) -> ColocationPromises:
    """Return what pairs of jobs come to for each of them; kinds: (N,) as in `PairSpeeds`."""
    rows = np.concatenate([pairs.first, pairs.second])
    partners = kinds[np.concatenate([pairs.second, pairs.first])]
    table = np.stack([rows, partners, np.tile(pairs.types, 2)], axis=1).astype(np.int64)
    found, back = np.unique(table, axis=0, return_inverse=True)
    fractions = np.bincount(back.ravel(), np.tile(pairs.times, 2), len(found)).astype(float)
    rows, partners, types = found.T
    names = {int(kind): jobs[int(row)].job_type for kind, row in zip(*np.unique(kinds, return_index=True), strict=True)}
    numbers: dict[PartnerKey, int] = {}
    columns = zip(rows.tolist(), partners.tolist(), types.tolist(), strict=True)
    keys = (PartnerKey(jobs[i].job_id, names[b], accelerator_types[j]) for i, b, j in columns)
    accounts = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return ColocationPromises(tuple(numbers), accounts, rows, partners, types, fractions, kinds)


class ColocationLedger:
    """A_i(b,j) += S_i(b,j) − received so, in rounds: the part of a job's deficit on a type that is owed with partners of kind b.

    It is kept between the bounds of deficits, and as long as allocations promise such time: what they no longer do is owed alone.
    """

    def __init__(self) -> None:
        self._owed: dict[PartnerKey, float] = {}

    def owed(self, keys: Sequence[PartnerKey]) -> Floats:
        """Return (A,) rounds owed, 0 for what was not promised before."""
        return np.array([self._owed.get(key, 0.0) for key in keys], dtype=float)

    def record(self, keys: Sequence[PartnerKey], fractions: Floats, received: Floats) -> None:
        """Enter one round: (A,) what was promised, and (A,) what was had."""
        most_ahead = -np.maximum(1.0, LONGEST_PAYBACK_ROUNDS * fractions)
        balance = np.clip(self.owed(keys) + fractions - received, most_ahead, MOST_OWED_ROUNDS)
        self._owed.update(zip(keys, balance.tolist(), strict=True))

    def take_back(self, key: PartnerKey) -> None:
        """Enter that a round was not had after all."""
        if key in self._owed:
            self._owed[key] = min(self._owed[key] + 1.0, MOST_OWED_ROUNDS)

    def keep(self, keys: Iterable[PartnerKey]) -> None:
        """Drop all but these."""
        self._owed = {key: self._owed[key] for key in keys if key in self._owed}

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of jobs."""
        self._owed = {key: owed for key, owed in self._owed.items() if key.job_id not in job_ids}

    def to_list(self) -> list[Any]:
        """Return the accounts as plain data."""
        return [[*key, owed] for key, owed in self._owed.items()]

    @classmethod
    def from_list(cls, data: Iterable[Sequence[Any]]) -> ColocationLedger:
        """Return the accounts that `to_list` described."""
        made = cls()
        made._owed = {PartnerKey(*key): float(owed) for *key, owed in data}
        return made


class ColocationGroup(NamedTuple):
    """rows: of its jobs, the first of which stands for all; holder: the row of the job whose GPUs it keeps, if any, -1 for none."""

    rows: tuple[int, ...]
    holder: int = -1


@dataclass(frozen=True, eq=False)
class ColocationGroups:
    """crews: each job is in one of them at most; they run this round or not at all.

    demand: with what all of a crew are owed together in the row of its first job, and nothing in the others'; in the rows of jobs
    that are in no crew, what they are owed alone.
    """

    crews: tuple[ColocationGroup, ...]
    demand: RoundDemand

    def before(self, previous: Held, ids: list[str]) -> dict[str, Assignment]:
        """Return who held which GPUs until now, with one entry for each crew."""
        held = dict(previous)
        for crew in self.crews:
            kept = previous.get(ids[crew.holder]) if crew.holder >= 0 else None
            for row in crew.rows:
                held.pop(ids[row], None)
            if kept is not None:
                held[ids[crew.rows[0]]] = kept
        return held

    def together(self, assignments: Held, ids: list[str]) -> dict[str, Assignment]:
        """Return who runs where, all of each crew included."""
        found = dict(assignments)
        for crew in self.crews:
            held = found.get(ids[crew.rows[0]])
            if held is not None:
                found |= {ids[row]: held for row in crew.rows[1:]}
        return found

    def without_place(self, assignments: Held, ids: list[str]) -> Mask:
        """Return (N,) bool, the jobs of crews that do not run."""
        waits = np.zeros(len(ids), dtype=bool)
        for crew in self.crews:
            waits[list(crew.rows)] = ids[crew.rows[0]] not in assignments
        return waits


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
