"""Improve a choice of jobs by letting a waiting gang take the place of others, of whatever size, that are worth less together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.exchange import LEAST_GAIN
from gavel_py.rounds.ranking import first_of_each
from gavel_py.rounds.seats import Seats

__all__ = ["Move", "displace", "displacements"]

Floats = NDArray[np.float64]


class Move(NamedTuple):
    """A job goes to a column (-1 = it waits), at a loss of s_i·score."""

    row: int
    column: int
    loss: float


def displace(seats: Seats, scores: Floats) -> bool:
    """Seat the waiting gang that raises Σ s_i·score_i over the seated most; False when there is none.

    scores: (N, K) value of each pair per GPU, -inf where a job must not sit; who sits there all the same stays. The gangs that are
    worth least per GPU make room, and go to another type if it has room for them. A gang for which there is room already displaces
    nobody.
    """
    best = max(displacements(seats, scores), key=_gain, default=[])
    if _gain(best) <= LEAST_GAIN:
        return False
    for move in best:
        seats.move(move.row, move.column)
    return True


def _gain(moves: list[Move]) -> float:
    return -sum(move.loss for move in moves)


def displacements(seats: Seats, scores: Floats) -> Iterator[list[Move]]:
    """The ways to seat the best waiting job of each size on each type, whether they gain or not."""
    sizes = seats.num_gpus
    for column in range(scores.shape[1]):
        waiting = np.flatnonzero((seats.columns < 0) & (scores[:, column] > 0))
        if not waiting.size:
            continue
        firsts = first_of_each(sizes[waiting], -scores[waiting, column])
        most = int(sizes[waiting[firsts]].max()) - seats.free[column]
        leavers = _cheapest_first(seats, scores, column, max(1, most))
        for row in waiting[firsts].tolist():
            leaving = _leaving(seats, scores, leavers, column, int(sizes[row]) - seats.free[column])
            if leaving is not None:
                yield [*leaving, Move(row, column, -float(sizes[row] * scores[row, column]))]


def _cheapest_first(seats: Seats, scores: Floats, column: int, count: int) -> list[int]:
    """The jobs on a type, in the order of what is lost per GPU when they leave for the best type with room, or to wait.

    The first of them, at least so many: each frees a GPU or more.
    """
    rows = np.flatnonzero((seats.columns == column) & np.isfinite(scores[:, column]))
    loss, elsewhere = scores[rows, column], np.zeros(len(rows))
    for other in _open_types(seats, column):
        fits = seats.num_gpus[rows] <= seats.free[other]
        elsewhere = np.maximum(elsewhere, np.where(fits, scores[rows, other], 0.0))
    loss = loss - elsewhere
    if len(rows) > count:
        cheap = loss <= np.partition(loss, count - 1)[count - 1]
        rows, loss = rows[cheap], loss[cheap]
    order: list[int] = rows[np.argsort(loss, kind="stable")].tolist()
    return order


def _open_types(seats: Seats, column: int) -> list[int]:
    """The other types that have room for anybody."""
    return [other for other, left in enumerate(seats.free) if left > 0 and other != column]


def _leaving(seats: Seats, scores: Floats, leavers: list[int], column: int, needed: int) -> list[Move] | None:
    """The moves of the first leavers who free the GPUs needed on the type, without those who turn out not to be needed."""
    free, others = list(seats.free), _open_types(seats, column)
    moves: list[Move] = []
    for row in leavers:
        if needed <= 0:
            break
        size = int(seats.num_gpus[row])
        fitting = [j for j in others if size <= free[j] and scores[row, j] > 0]
        target = max(fitting, key=lambda j: float(scores[row, j]), default=-1)
        worth = float(scores[row, target]) if target >= 0 else 0.0
        if target >= 0:
            free[target] -= size
        needed -= size
        moves.append(Move(row, target, size * (float(scores[row, column]) - worth)))
    if needed > 0:
        return None
    for move in sorted(moves, key=lambda move: -move.loss) if needed < 0 else ():
        if move.loss > 0 and seats.num_gpus[move.row] <= -needed:
            needed += int(seats.num_gpus[move.row])
            moves.remove(move)
    return moves
