"""What an allocation promises of time in company: for each job, with partners of which kind, on which type, for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.colocation import Pairs
from gavel_py.problem.job import Job

__all__ = ["Companies", "CompanyKey", "companies_of"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class CompanyKey(NamedTuple):
    """A job's time on a type with partners of one job type, whose gangs are as large as its own."""

    job_id: str
    partner_type: str
    accelerator: str


@dataclass(frozen=True, eq=False)
class Companies:
    """E promises on A accounts. keys: (A,) whose and which; accounts: (E,) that of each promise; rows: (E,) the jobs;
    partners: (E,) the kinds of their partners; types: (E,) columns; fractions: (E,) S_i(b,j), parts of the time; kinds: (N,) the
    kind of each job.

    Kinds of one job type that differ in GPU memory have one account: how jobs are told apart by it changes as others come and go.

    With whom of a kind a job shares is free to be decided from round to round, and so nobody waits for a partner that has left.
    """

    keys: tuple[CompanyKey, ...]
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


def companies_of(pairs: Pairs, kinds: Indices, jobs: Sequence[Job], accelerator_types: Sequence[str]) -> Companies:
    """Return what pairs of jobs come to for each of them; kinds: (N,) as in `PairSpeeds`."""
    rows = np.concatenate([pairs.first, pairs.second])
    partners = kinds[np.concatenate([pairs.second, pairs.first])]
    table = np.stack([rows, partners, np.tile(pairs.types, 2)], axis=1).astype(np.int64)
    found, back = np.unique(table, axis=0, return_inverse=True)
    fractions = np.bincount(back.ravel(), np.tile(pairs.times, 2), len(found)).astype(float)
    rows, partners, types = found.T
    names = {int(kind): jobs[int(row)].job_type for kind, row in zip(*np.unique(kinds, return_index=True), strict=True)}
    numbers: dict[CompanyKey, int] = {}
    columns = zip(rows.tolist(), partners.tolist(), types.tolist(), strict=True)
    keys = (CompanyKey(jobs[i].job_id, names[b], accelerator_types[j]) for i, b, j in columns)
    accounts = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return Companies(tuple(numbers), accounts, rows, partners, types, fractions, kinds)
