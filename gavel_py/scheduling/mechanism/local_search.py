"""Local search: improve a choice of jobs for one round, step by step, until no step gains.

`exchange` lets gangs of one size change places. Think of a graph whose nodes are the K accelerator types and the waiting room, and
whose edge a -> b is the best move of one job from a to b: its gain is the score there less the score here (0 in the waiting room).
A round trip a -> b -> ... -> a moves one job along each edge and leaves the number of GPUs in use on each type as it was; where
GPUs are free or may be left free, a step through the waiting room costs nothing. While a round trip gains, take it. For single-GPU
jobs none is left only when the choice is of maximum weight (the residual graph of a transportation problem without a negative
cycle), and the graph is small whatever N is.

`displace` lets a waiting gang take the place of others, of whatever size, that are worth less together, and `replace_one` lets
several waiting gangs take the place of one larger gang that is worth less than they are. `improve` takes all these steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.scheduling.mechanism.demand import TypeSelection

# Smaller gains, in rounds, may be the rounding errors of sums, and taking those could go on for ever.
LEAST_GAIN = 1e-6


def exchange(seats: TypeSelection, scores: Floats) -> None:
    """Let jobs change places, largest gangs first, while the sum of the scores of the seated rises.

    scores: (N, K) value of each pair, -inf where a job must not sit; jobs for which that is all of the row stay as they are.
    """
    # By type, for sums and maxima run along few rows that are long; the last is the waiting room, worth nothing.
    worth = np.zeros((scores.shape[1] + 1, len(scores)))
    worth[:-1] = scores.T
    candidates = (worth[:-1] > -np.inf).any(axis=0)
    for size in np.unique(seats.num_gpus[candidates])[::-1].tolist():
        rows = np.flatnonzero(candidates & (seats.num_gpus == size))
        moves = _Moves(seats, worth.take(rows, axis=1), rows, size)
        while cycle := _positive_cycle(moves.best()):
            moves.make(cycle)


class _Moves:
    """The moves of the gangs of one size between K types and the waiting room, which is the last node."""

    def __init__(self, seats: TypeSelection, worth: Floats, rows: Indices, size: int) -> None:
        self.seats, self.rows, self.size = seats, rows, size
        self.worth, self.room = worth, len(worth) - 1
        # Numbers so short are sorted in one pass.
        self.here = np.where(seats.columns[rows] < 0, self.room, seats.columns[rows]).astype(np.int16)

    def best(self) -> Floats:
        """(K+1, K+1) gain of the best move from a to b."""
        gains = np.full((self.room + 1, self.room + 1), -np.inf)
        order = self.here.argsort(kind="stable")
        worth = self.worth.take(order, axis=1)
        counts = np.bincount(self.here, minlength=self.room + 1)
        there = np.flatnonzero(counts)
        least = worth[self.here[order], np.arange(len(order))]
        gains[there] = np.maximum.reduceat(worth - least, (counts.cumsum() - counts)[there], axis=1).T
        for j, free in enumerate(self.seats.free):
            # A free place may be filled by nobody, and a place may be left free.
            gains[j, self.room] = max(gains[j, self.room], 0.0 if free >= self.size else -np.inf)
            gains[self.room, j] = max(gains[self.room, j], 0.0)
        return gains

    def make(self, cycle: list[int]) -> None:
        """Move the best job along each edge of the round trip, then the next best ones, as long as that gains."""
        steps = [self._ranked(a, b) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
        trips = min(len(gains) for _, gains in steps)
        rising = np.add.reduce([gains[:trips] for _, gains in steps]) > LEAST_GAIN
        trips = trips if rising.all() else int(rising.argmin())
        for (movers, _), target in zip(steps, cycle[1:] + cycle[:1], strict=True):
            moved = movers[:trips]
            self.here[moved] = target
            for row in self.rows[moved].tolist():
                self.seats.move(row, target if target < self.room else -1)

    def _ranked(self, a: int, b: int) -> tuple[Indices, Floats]:
        """The jobs that gain by a move from a to b or lose least, best first, and their gains; nobody where places stay free."""
        at_a = np.flatnonzero(self.here == a)
        gains = self.worth[b, at_a] - self.worth[a, at_a]
        idle = len(self.rows) if a == self.room else self.seats.free[a] // self.size if b == self.room else 0
        if idle and not (gains > 0).any():
            return at_a[:0], np.zeros(idle)
        order = np.argsort(-gains, kind="stable")
        return at_a[order], gains[order]


def _positive_cycle(gains: Floats) -> list[int]:
    """The nodes of a cycle of positive total gain, in order, or none (Bellman-Ford)."""
    nodes = len(gains)
    steps = enumerate(gains.tolist())
    edges = [(a, b, gain) for a, row in steps for b, gain in enumerate(row) if a != b and gain > -np.inf]
    reached, before = [0.0] * nodes, [-1] * nodes
    for _ in range(nodes):
        last = -1
        for a, b, gain in edges:
            if reached[a] + gain > reached[b] + LEAST_GAIN:
                reached[b], before[b], last = reached[a] + gain, a, b
        if last < 0:
            return []
    # Still improving after as many passes as there are nodes: stepping back as often must lead into a cycle.
    for _ in range(nodes):
        last = before[last]
    cycle = [last]
    while before[cycle[-1]] != last:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def first_of_each(sizes: Indices, keys: NDArray[np.float64]) -> Indices:
    """Return the position of the smallest key of each size, the first of equals; smallest sizes first."""
    groups = [np.flatnonzero(sizes == size) for size in np.unique(sizes).tolist()]
    return np.array([group[keys[group].argmin()] for group in groups], dtype=np.int64)


class Move(NamedTuple):
    """A job goes to a column (-1 = it waits), at a loss of s_i·score."""

    row: int
    column: int
    loss: float


def displace(seats: TypeSelection, scores: Floats) -> bool:
    """Seat the waiting gang that raises Σ s_i·score_i over the seated most; False when there is none."""
    return make_best(seats, displacements(seats, scores))


def make_best(seats: TypeSelection, ways: Iterable[list[Move]]) -> bool:
    """Make the moves that raise Σ s_i·score_i over the seated most; False when none of these ways does."""
    loss, best = min(((sum(move.loss for move in moves), moves) for moves in ways), key=lambda way: way[0], default=(0.0, []))
    if loss >= -LEAST_GAIN:
        return False
    for move in best:
        seats.move(move.row, move.column)
    return True


def displacements(seats: TypeSelection, scores: Floats) -> Iterator[list[Move]]:
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

    def __init__(self, seats: TypeSelection, scores: Floats, column: int, most: int) -> None:
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


def _elsewhere(seats: TypeSelection, scores: Floats, rows: Indices, column: int) -> Floats:
    """(R,) what each of these jobs is worth per GPU on the best other type that has room for it, 0 where it would wait."""
    worth = np.zeros(len(rows))
    for other in _open_types(seats, column):
        fits = seats.num_gpus[rows] <= seats.free[other]
        worth = np.maximum(worth, np.where(fits, scores[rows, other], 0.0))
    return worth


def _open_types(seats: TypeSelection, column: int) -> list[int]:
    """The other types that have room for anybody."""
    return [other for other, left in enumerate(seats.free) if left > 0 and other != column]


def _leaving(seats: TypeSelection, scores: Floats, rows: list[int], column: int) -> list[Move]:
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


def replace_one(seats: TypeSelection, scores: Floats) -> bool:
    """Unseat the gang whose place raises Σ s_i·score_i over the seated most when smaller ones get it; False when there is none."""
    return make_best(seats, replacements(seats, scores))


def replacements(seats: TypeSelection, scores: Floats) -> Iterator[list[Move]]:
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


def _waiting(seats: TypeSelection, scores: Floats, column: int) -> Indices:
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


# A place for one gang more changes little where there are many, and looking for it takes the longer: so many steps at most, and
# after the second so many jobs looked at in all of them.
MOST_STEPS = 20

MOST_LOOKED_AT = 40_000

# On so few GPUs a gang in the wrong place counts, and trying takes little.
FEW_GPUS = 128


def improve(seats: TypeSelection, scores: Floats) -> None:
    """Let jobs change places, displace each other and replace larger ones while Σ s_i·score_i over the seated rises.

    On few GPUs, steps are tried that gain only after others have changed places too.
    """
    few = sum(seats.free) + int(seats.num_gpus[seats.columns >= 0].sum()) <= FEW_GPUS
    exchange(seats, scores)
    for _ in range(max(2, min(MOST_STEPS, MOST_LOOKED_AT // max(1, len(scores))))):
        if displace(seats, scores) or replace_one(seats, scores):
            exchange(seats, scores)
        elif not (few and _changed_and_exchanged(seats, scores)):
            return


def _changed_and_exchanged(seats: TypeSelection, scores: Floats) -> bool:
    """Take the best displacement or replacement that gains when jobs change places afterwards; False when none does."""
    best, most = seats, _value(seats, scores) + LEAST_GAIN
    for moves in chain(displacements(seats, scores), replacements(seats, scores)):
        trial = seats.copy()
        for move in moves:
            trial.move(move.row, move.column)
        exchange(trial, scores)
        if _value(trial, scores) > most:
            best, most = trial, _value(trial, scores)
    if best is seats:
        return False
    seats.take(best)
    return True


def _value(seats: TypeSelection, scores: Floats) -> float:
    rows = np.flatnonzero((seats.columns >= 0) & np.isfinite(scores).any(axis=1))
    return float((seats.num_gpus[rows] * scores[rows, seats.columns[rows]]).sum())
