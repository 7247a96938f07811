"""Improve a choice of jobs by letting several waiting gangs take the place of one larger gang that is worth less than they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.exchange import LEAST_GAIN
from gavel_py.rounds.ranking import first_of_each
from gavel_py.rounds.seats import Seats

__all__ = ["replace_one"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def replace_one(seats: Seats, scores: Floats) -> bool:
    """Unseat the gang whose place raises Σ s_i·score_i over the seated most when smaller ones get it; False when there is none.

    scores: (N, K) value of each pair per GPU, -inf where a job must not sit. Of the gangs of each size on each type only the one
    that is worth least may go; those that come are the best waiting ones, in their order, as far as they fit.
    """
    sizes = seats.num_gpus
    options: list[tuple[float, int, int, Indices]] = []
    for column in range(scores.shape[1]):
        comers = _waiting(seats, scores, column)
        if not len(comers):
            continue
        rows = np.flatnonzero((seats.columns == column) & (sizes > sizes[comers].min()) & np.isfinite(scores[:, column]))
        for row in rows[first_of_each(sizes[rows], scores[rows, column])].tolist():
            size = int(sizes[row])
            coming = _filling(sizes, comers[sizes[comers] < size], size + seats.free[column])
            gain = float((sizes[coming] * scores[coming, column]).sum() - size * scores[row, column])
            options.append((gain, -row, column, coming))
    gain, leaver, column, coming = max(options, key=lambda option: option[:2], default=(0.0, 0, 0, sizes[:0]))
    if gain <= LEAST_GAIN:
        return False
    seats.move(-leaver, -1)
    seats.seat(coming, np.full(len(coming), column))
    return True


def _waiting(seats: Seats, scores: Floats, column: int) -> Indices:
    """The waiting jobs that gain on a type, those with the highest scores first."""
    waiting = np.flatnonzero((seats.columns < 0) & (scores[:, column] > 0))
    return waiting[np.argsort(-scores[waiting, column], kind="stable")]


def _filling(sizes: Indices, rows: Indices, gpus: int) -> Indices:
    """Of these jobs, in this order, those that fit so many GPUs together, skipping who does not."""
    chosen: list[int] = []
    for row in rows[: 4 * gpus].tolist():
        if sizes[row] <= gpus:
            chosen.append(row)
            gpus -= int(sizes[row])
        if not gpus:
            break
    return np.array(chosen, dtype=np.int64)
