"""Who shares with whom: from the time that each job spends with partners of a kind to pairs of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.pair_columns import PairColumns
from gavel_py.optimization.times import ClassTimes

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

    def at(self, places: Indices) -> Pairs:
        """Return these of the pairs."""
        return Pairs(*(getattr(self, field.name)[places] for field in fields(self)))

    def by_job(self, num_jobs: int, num_types: int) -> Floats:
        """Return (N, K) the time that each job spends in pairs."""
        places = np.concatenate([self.first, self.second]) * num_types + np.tile(self.types, 2)
        times: Floats = np.bincount(places, np.tile(self.times, 2), num_jobs * num_types).astype(float)
        return times.reshape(num_jobs, num_types)

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


def deal(made: PairColumns, times: ClassTimes) -> Pairs:
    """Return the pairs in which jobs spend the time that their classes have in each column; sorted by type, then by job.

    Of two kinds with n_a and n_b jobs that share there are at most n_a + n_b − 1 pairs on a type: both kinds stand in a row, each
    job as long as its time, and who stands opposite shares. Of one kind, the row is bent to a circle.
    """
    gains, sides, queues = made.pairs.gains, made.sides, _Queues(made, times)
    spent = made.by_kind(times.jobs, times.fractions)
    found = [Pairs.nobody()]
    for a, b, j, one, other in sides.those((spent[sides.one, sides.column] > 0) & (spent[sides.other, sides.their_column] > 0)):
        first, second, time = _around(queues.of(a, one)) if a == b else _opposite(queues.of(a, one), queues.of(b, other))
        each = np.full(time.shape, j), time, np.full(time.shape, gains[a, b, j])
        found.append(Pairs(np.minimum(first, second), np.maximum(first, second), *each))
    dealt = Pairs(*(np.concatenate([getattr(each, field.name) for each in found]) for field in fields(Pairs)))
    count = made.base.num_jobs
    return dealt.at(np.argsort((dealt.types * count + dealt.first) * count + dealt.second))


class _Queue(NamedTuple):
    """Jobs that stand in a row, each as long as its time: who, and where each of them ends."""

    jobs: Indices
    ends: Floats

    @property
    def length(self) -> float:
        return float(self.ends[-1])

    def at(self, places: Floats) -> Indices:
        """Return who stands there."""
        return self.jobs[np.minimum(np.searchsorted(self.ends, places), len(self.jobs) - 1)]


class _Queues:
    """The jobs of each kind, class by class."""

    def __init__(self, made: PairColumns, times: ClassTimes) -> None:
        jobs = times.jobs
        self._times = times
        self._jobs = jobs.jobs[np.argsort(jobs.index.astype(np.min_scalar_type(len(jobs))), kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(jobs.counts)])
        kinds = made.pairs.kinds[jobs.rows]
        self._classes = [np.flatnonzero(kinds == kind) for kind in range(len(made.pairs.sizes))]

    def of(self, kind: int, column: int) -> _Queue:
        """Return the jobs of a kind that have time in a column."""
        spent, counts = self._times.fractions[:, column], self._times.jobs.counts
        classes = self._classes[kind][spent[self._classes[kind]] > 0]
        # Where a class begins is counted from the others' totals, so that a million jobs add up no worse than their classes.
        starts = np.concatenate([[0.0], np.cumsum(counts[classes] * spent[classes])])
        ends = [start + spent[g] * np.arange(1, counts[g] + 1) for start, g in zip(starts.tolist(), classes.tolist(), strict=False)]
        who = [self._jobs[self._starts[g] : self._starts[g + 1]] for g in classes.tolist()]
        return _Queue(np.concatenate(who), np.concatenate(ends))


def _opposite(some: _Queue, others: _Queue) -> tuple[Indices, Indices, Floats]:
    """Who of the one row stands opposite to whom of the other, and for how long."""
    return _facing(some, others, min(some.length, others.length))


def _around(some: _Queue) -> tuple[Indices, Indices, Floats]:
    """Who stands opposite to whom on a circle: nobody to himself, as long as he takes up no more than half of it."""
    half = some.length / 2
    return _facing(some, _Queue(some.jobs, some.ends - half), half)


def _facing(some: _Queue, others: _Queue, length: float) -> tuple[Indices, Indices, Floats]:
    """Those who stand opposite to each other on the first `length`."""
    marks = np.unique(np.clip(np.concatenate([[0.0], some.ends, others.ends, [length]]), 0.0, length))
    middles, times = (marks[1:] + marks[:-1]) / 2, np.diff(marks)
    first, second = some.at(middles), others.at(middles)
    real = (times > max(NOTHING, 4 * np.spacing(length))) & (first != second)
    return first[real], second[real], times[real]
