"""Improve a choice of jobs by letting several waiting gangs take the place of one larger gang that is worth less than they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.displacement import Move, make_best
from gavel_py.scheduling.mechanism.ranking import first_of_each
from gavel_py.scheduling.mechanism.seats import Seats

__all__ = ["replace_one", "replacements"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def replace_one(seats: Seats, scores: Floats) -> bool:
    """Unseat the gang whose place raises Σ s_i·score_i over the seated most when smaller ones get it; False when there is none."""
    return make_best(seats, replacements(seats, scores))


def replacements(seats: Seats, scores: Floats) -> Iterator[list[Move]]:
    """The ways to unseat the gang of each size on each type that is worth least, whether they gain or not.

    scores: (N, K) value of each pair per GPU, -inf where a job must not sit. Those that come are smaller: the best waiting ones, in
    their order, as far as they fit.
    """
    sizes = seats.num_gpus
    for column in range(scores.shape[1]):
        comers = _waiting(seats, scores, column)
        rows = np.flatnonzero((seats.columns == column) & (sizes > 1) & np.isfinite(scores[:, column]))
        for row in rows[first_of_each(sizes[rows], scores[rows, column])].tolist():
            size = int(sizes[row])
            coming = _filling(sizes, comers[sizes[comers] < size], size + seats.free[column])
            come = [Move(each, column, -float(sizes[each] * scores[each, column])) for each in coming]
            yield [Move(row, -1, float(size * scores[row, column])), *come]


def _waiting(seats: Seats, scores: Floats, column: int) -> Indices:
    """The waiting jobs that gain on a type, those with the highest scores first."""
    waiting = np.flatnonzero((seats.columns < 0) & (scores[:, column] > 0))
    return waiting[np.argsort(-scores[waiting, column], kind="stable")]


def _filling(sizes: Indices, rows: Indices, gpus: int) -> list[int]:
    """Of these jobs, in this order, those that fit so many GPUs together, skipping who does not."""
    chosen: list[int] = []
    for row in rows[: 4 * gpus].tolist():
        if sizes[row] <= gpus:
            chosen.append(row)
            gpus -= int(sizes[row])
        if not gpus:
            break
    return chosen
