"""What an allocation promises of time in company: for each job, with partners of which kind, on which type, for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.jobs import Job
from gavel_py.pairing import Pairs

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
    """E promises. keys: whose and which; rows: (E,) the jobs; partners: (E,) the kinds of their partners; types: (E,) columns;
    fractions: (E,) S_i(b,j), parts of the time; kinds: (N,) the kind of each job.

    With whom of a kind a job shares is free to be decided from round to round, and so nobody waits for a partner that has left.
    """

    keys: tuple[CompanyKey, ...]
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

    def summed(self, values: Floats, shape: tuple[int, int]) -> Floats:
        """Return (N, K) the sum of (E,) values by job and type."""
        table = np.zeros(shape)
        np.add.at(table, (self.rows, self.types), values)
        return table


def companies_of(pairs: Pairs, kinds: Indices, jobs: Sequence[Job], accelerator_types: Sequence[str]) -> Companies:
    """Return what pairs of jobs come to for each of them; kinds: (N,) by job type and gang size."""
    rows = np.concatenate([pairs.first, pairs.second])
    partners = kinds[np.concatenate([pairs.second, pairs.first])]
    table = np.stack([rows, partners, np.tile(pairs.types, 2)], axis=1).astype(np.int64)
    found, back = np.unique(table, axis=0, return_inverse=True)
    fractions = np.bincount(back.ravel(), np.tile(pairs.times, 2), len(found)).astype(float)
    rows, partners, types = found.T
    names = {int(kind): jobs[int(row)].job_type for kind, row in zip(*np.unique(kinds, return_index=True), strict=True)}
    keys = tuple(
        CompanyKey(jobs[i].job_id, names[b], accelerator_types[j])
        for i, b, j in zip(rows.tolist(), partners.tolist(), types.tolist(), strict=True)
    )
    return Companies(keys, rows, partners, types, fractions, kinds)
