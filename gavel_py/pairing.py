"""Who shares with whom: from the time that each job spends with partners of a kind to pairs of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.pair_columns import PairColumns

__all__ = ["Pairs", "deal"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NOTHING = 1e-12
"""A part of the time that is told from none."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of jobs that share GPUs.

    first, second: (P,) rows of the jobs; types: (P,) columns of the accelerator types; times: (P,) part of wall-clock time;
    gains: (P,) what both do together in parts of what one of them does alone in that time, T_ab/T_a + T_ba/T_b.
    """

    first: Indices
    second: Indices
    types: Indices
    times: Floats
    gains: Floats

    def __len__(self) -> int:
        """P."""
        return len(self.times)

    @classmethod
    def nobody(cls) -> Pairs:
        """Return no pairs."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, np.zeros(0), np.zeros(0))

    def by_job(self, num_jobs: int, num_types: int) -> Floats:
        """Return (N, K) the time that each job spends in pairs."""
        times = np.zeros((num_jobs, num_types))
        for jobs in (self.first, self.second):
            np.add.at(times, (jobs, self.types), self.times)
        return times

    def to_list(self, job_ids: Sequence[str], accelerator_types: Sequence[str]) -> list[dict[str, Any]]:
        """Return the pairs as plain data."""
        columns = (self.first.tolist(), self.second.tolist(), self.types.tolist(), self.times.tolist(), self.gains.tolist())
        return [
            {"jobs": [job_ids[a], job_ids[b]], "accelerator": accelerator_types[j], "time_fraction": time, "gain": gain}
            for a, b, j, time, gain in zip(*columns, strict=True)
        ]

    @classmethod
    def from_list(cls, found: Sequence[dict[str, Any]], job_ids: Sequence[str], accelerator_types: Sequence[str]) -> Pairs:
        """Return the pairs that `to_list` described."""
        rows = {job_id: i for i, job_id in enumerate(job_ids)}
        first, second = (np.array([rows[each["jobs"][side]] for each in found], dtype=np.int64) for side in (0, 1))
        types = np.array([accelerator_types.index(each["accelerator"]) for each in found], dtype=np.int64)
        times, gains = (np.array([each[name] for each in found], dtype=float) for name in ("time_fraction", "gain"))
        return cls(first, second, types, times, gains)


def deal(made: PairColumns, columns: Floats) -> Pairs:
    """Return the pairs in which jobs spend the time of (N, K') columns; sorted by type, then by job.

    Of two kinds with n_a and n_b jobs that share there are at most n_a + n_b − 1 pairs on a type: both kinds stand in a row, each
    job as long as its time, and who stands opposite shares. Of one kind, the row is bent to a circle.
    """
    gains = made.pairs.gains
    members = [np.flatnonzero(made.pairs.kinds == kind) for kind in range(len(made.pairs.sizes))]
    found = [np.zeros((0, 5))]
    for a, b, j, one, other in made.sides:
        theirs = members[b], columns[members[b], other]
        rows = _of_one_kind(*theirs) if a == b else _of_two_kinds(members[a], columns[members[a], one], *theirs)
        found += [np.array([(j, min(pair), max(pair), time, gains[a, b, j]) for *pair, time in rows]).reshape(-1, 5)]
    table = np.concatenate(found)
    names, at, back = np.unique(table[:, :3], axis=0, return_index=True, return_inverse=True)
    times: Floats = np.bincount(back.ravel(), table[:, 3], len(names)).astype(float)
    types, first, second = names.T.astype(np.int64)
    return Pairs(first, second, types, times, table[at, 4])


def _of_two_kinds(some: Indices, times: Floats, others: Indices, their_times: Floats) -> Iterator[tuple[int, int, float]]:
    """Who of the one kind stands opposite to whom of the other, and for how long."""
    ends, their_ends = np.cumsum(times), np.cumsum(their_times)
    yield from _opposite(some, ends, others, their_ends, min(ends[-1], their_ends[-1]))


def _of_one_kind(some: Indices, times: Floats) -> Iterator[tuple[int, int, float]]:
    """Who stands opposite to whom on a circle: nobody to himself, as long as he takes up no more than half of it."""
    ends = np.cumsum(times)
    half = ends[-1] / 2
    yield from _opposite(some, ends, some, ends - half, half)


def _opposite(some: Indices, ends: Floats, others: Indices, their_ends: Floats, length: float) -> Iterator[tuple[int, int, float]]:
    marks = np.unique(np.clip(np.concatenate([[0.0], ends, their_ends, [length]]), 0.0, length))
    middles, times = (marks[1:] + marks[:-1]) / 2, np.diff(marks)
    first = some[np.minimum(np.searchsorted(ends, middles), len(some) - 1)]
    second = others[np.minimum(np.searchsorted(their_ends, middles), len(others) - 1)]
    for one, other, time in zip(first.tolist(), second.tolist(), times.tolist(), strict=True):
        if time > NOTHING and one != other:
            yield one, other, time
