"""Improve a choice of jobs by letting a waiting gang take the place of others, of whatever size, that are worth less together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.exchange import LEAST_GAIN
from gavel_py.scheduling.mechanism.ranking import first_of_each
from gavel_py.scheduling.mechanism.seats import Seats

__all__ = ["Move", "displace", "displacements", "make_best"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Move(NamedTuple):
    """A job goes to a column (-1 = it waits), at a loss of s_i·score."""

    row: int
    column: int
    loss: float


def displace(seats: Seats, scores: Floats) -> bool:
    """Seat the waiting gang that raises Σ s_i·score_i over the seated most; False when there is none."""
    return make_best(seats, displacements(seats, scores))


def make_best(seats: Seats, ways: Iterable[list[Move]]) -> bool:
    """Make the moves that raise Σ s_i·score_i over the seated most; False when none of these ways does."""
    loss, best = min(((sum(move.loss for move in moves), moves) for moves in ways), key=lambda way: way[0], default=(0.0, []))
    if loss >= -LEAST_GAIN:
        return False
    for move in best:
        seats.move(move.row, move.column)
    return True


def displacements(seats: Seats, scores: Floats) -> Iterator[list[Move]]:
    """The ways to seat the best waiting job of each size on each type, whether they gain or not.

    scores: (N, K) value of each pair per GPU, -inf where a job must not sit; who sits there all the same stays. Those gangs make
    room whose seats are worth least together, and each goes to another type if that has room for it. A gang for which there is
    room already displaces nobody.
    """
    sizes = seats.num_gpus
    for column in range(scores.shape[1]):
        waiting = np.flatnonzero((seats.columns < 0) & (scores[:, column] > 0))
        if not waiting.size:
            continue
        firsts = waiting[first_of_each(sizes[waiting], -scores[waiting, column])]
        leavers = _Leavers(seats, scores, column, max(0, int(sizes[firsts].max()) - seats.free[column]))
        for row in firsts.tolist():
            leaving = leavers.freeing(int(sizes[row]) - seats.free[column])
            if leaving is not None:
                moves = _leaving(seats, scores, leaving, column)
                yield [*moves, Move(row, column, -float(sizes[row] * scores[row, column]))]


class _Leavers:
    """Which gangs on a type are worth least together, of those that free so many GPUs, for any number of GPUs up to `most`.

    A knapsack program: least[m] = min Σ loss over sets with Σ size >= m, filled one gang size after the other, of which
    any number leaves, those of the smallest losses first.
    """

    def __init__(self, seats: Seats, scores: Floats, column: int, most: int) -> None:
        rows = np.flatnonzero((seats.columns == column) & np.isfinite(scores[:, column]))
        losses = seats.num_gpus[rows] * (scores[rows, column] - _elsewhere(seats, scores, rows, column))
        self._least, needed = np.full(most + 1, np.inf), np.arange(most + 1)
        self._least[0] = 0.0
        self._by_size: list[tuple[int, Indices, Indices]] = []
        for size in np.unique(seats.num_gpus[rows]).tolist():
            of_size = np.flatnonzero(seats.num_gpus[rows] == size)
            cheapest = of_size[np.argsort(losses[of_size], kind="stable")][: -(-most // size)]
            counts = np.arange(len(cheapest) + 1)[:, None]
            lost = np.concatenate([[0.0], np.cumsum(losses[cheapest])])
            values = lost[:, None] + self._least[np.maximum(needed - counts * size, 0)]
            best = values.argmin(axis=0)
            self._least = values[best, needed]
            self._by_size.append((size, rows[cheapest], best))

    def freeing(self, needed: int) -> list[int] | None:
        """The rows of those that leave when so many GPUs are needed, the largest first; None where all are not enough."""
        needed, found = max(0, needed), []
        if not np.isfinite(self._least[needed]):
            return None
        for size, rows, best in reversed(self._by_size):
            count = int(best[needed])
            found += rows[:count].tolist()
            needed = max(0, needed - count * size)
        return found


def _elsewhere(seats: Seats, scores: Floats, rows: Indices, column: int) -> Floats:
    """(R,) what each of these jobs is worth per GPU on the best other type that has room for it, 0 where it would wait."""
    worth = np.zeros(len(rows))
    for other in _open_types(seats, column):
        fits = seats.num_gpus[rows] <= seats.free[other]
        worth = np.maximum(worth, np.where(fits, scores[rows, other], 0.0))
    return worth


def _open_types(seats: Seats, column: int) -> list[int]:
    """The other types that have room for anybody."""
    return [other for other, left in enumerate(seats.free) if left > 0 and other != column]


def _leaving(seats: Seats, scores: Floats, rows: list[int], column: int) -> list[Move]:
    """The moves of these jobs away from a type, each to the best other type as long as that has room."""
    free, others = list(seats.free), _open_types(seats, column)
    moves: list[Move] = []
    for row in rows:
        size = int(seats.num_gpus[row])
        fitting = [j for j in others if size <= free[j] and scores[row, j] > 0]
        target = max(fitting, key=lambda j: float(scores[row, j]), default=-1)
        worth = float(scores[row, target]) if target >= 0 else 0.0
        if target >= 0:
            free[target] -= size
        moves.append(Move(row, target, size * (float(scores[row, column]) - worth)))
    return moves
