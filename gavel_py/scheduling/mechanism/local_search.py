"""Local search: improves the selection of a round step by step. The gain of a step is the increase of Σ s_i·score_i.

`exchange` lets gangs of equal size change types. In a graph with the K types and a waiting room as nodes, the edge a -> b is the
best move of one job from a to b, and its gain is the score on b minus the score on a (0 in the waiting room). A cycle moves one job
along each edge and leaves the number of GPUs in use on each type unchanged; if GPUs are free or may be left free, a step through
the waiting room costs nothing. Cycles are applied while they gain. For single-GPU jobs the result has maximum weight (the residual
graph of a transportation problem has no negative cycle), and the size of the graph does not depend on N.

`displace` selects a waiting gang in place of others, of any size, that are worth less together; `replace_one` selects several
waiting gangs in place of one larger gang that is worth less than they are. `improve` combines all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.tolerances import DEFICIT_ROUNDING
from gavel_py.scheduling.mechanism.demand import TypeSelection


def exchange(selection: TypeSelection, scores: Floats) -> None:
    """Exchange jobs of equal gang size between types, largest gangs first, while the sum of the scores of the selected jobs rises.

    Args:
        selection: The selection, which is improved.
        scores: (N, K) value per GPU of each pair, -inf where a job must not run; jobs with -inf on all types stay as they are.
    """
    # (K+1, N): sums and maxima along few long rows are fast. The last row is the waiting room, worth 0.
    worth = np.zeros((scores.shape[1] + 1, len(scores)))
    worth[:-1] = scores.T
    rows = np.flatnonzero((worth[:-1] > -np.inf).any(axis=0))
    sizes = _distinct(selection.num_gpus[rows])
    group = np.searchsorted(sizes, selection.num_gpus[rows])
    # Most searches find no cycle, so the moves of all sizes are looked at together first.
    gains = _best_moves(worth.take(rows, axis=1), _places(selection, rows, len(worth)), group, len(sizes))
    for number in range(len(sizes) - 1, -1, -1):
        size = sizes.item(number)
        cycle = _positive_cycle(_with_idle_gpus(gains[number].tolist(), selection.free, size))
        if cycle:
            of_size = rows[group == number]
            moves = _Moves(selection, worth.take(of_size, axis=1), of_size, size)
            while cycle:
                moves.make(cycle)
                cycle = _positive_cycle(moves.best())


def _distinct(sizes: Indices) -> Indices:
    """Return the gang sizes that occur, smallest first."""
    return np.bincount(sizes).nonzero()[0]


def _places(selection: TypeSelection, rows: Indices, nodes: int) -> Indices:
    """Return (N,) the node of each of these jobs: its type, or the waiting room, which is the last node."""
    columns = selection.columns[rows]
    return np.where(columns < 0, nodes - 1, columns)


def _best_moves(worth: Floats, places: Indices, group: Indices | int, groups: int) -> Floats:
    """Return (groups, K+1, K+1) the gain of the best move of a job of each group from node a to node b, -inf if there is none.

    Args:
        worth: (K+1, N) the worth of each job at each node.
        places: (N,) the node of each job.
        group: (N,) its group.
        groups: The number of groups.
    """
    nodes = len(worth)
    codes = group * nodes + places
    # Short integers are sorted in linear time.
    order = (codes.astype(np.int16) if groups * nodes < 2**15 else codes).argsort(kind="stable")
    counts = np.bincount(codes, minlength=groups * nodes)
    there = counts.nonzero()[0]
    gains = np.full((groups * nodes, nodes), -np.inf)
    if len(there):
        in_order = worth.take(order, axis=1)
        in_order -= in_order[places[order], np.arange(len(order))]
        gains[there] = np.maximum.reduceat(in_order, (counts.cumsum() - counts)[there], axis=1).T
    return gains.reshape(groups, nodes, nodes)


def _with_idle_gpus(gains: list[list[float]], free: Sequence[int], size: int) -> list[list[float]]:
    """Add the moves of idle GPUs to (K+1, K+1) gains, and return these: free GPUs stay free, and a job may leave its GPUs free."""
    for j, left in enumerate(free):
        gains[j][-1] = max(gains[j][-1], 0.0 if left >= size else -np.inf)
        gains[-1][j] = max(gains[-1][j], 0.0)
    return gains


class _Moves:
    """Moves of the gangs of one size between K types and the waiting room, which is the last node."""

    def __init__(self, selection: TypeSelection, worth: Floats, rows: Indices, size: int) -> None:
        self.selection, self.rows, self.size = selection, rows, size
        self.worth, self.room = worth, len(worth) - 1
        self.here = _places(selection, rows, len(worth))

    def best(self) -> list[list[float]]:
        """Return (K+1, K+1) the gain of the best move from a to b."""
        gains = _best_moves(self.worth, self.here, 0, 1)[0]
        return _with_idle_gpus(gains.tolist(), self.selection.free, self.size)

    def make(self, cycle: list[int]) -> None:
        """Move the best job along each edge of the cycle, then the next best jobs, as long as this gains."""
        steps = [self._ranked(a, b) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
        trips = min(len(gains) for _, gains in steps)
        rising = np.add.reduce([gains[:trips] for _, gains in steps]) > DEFICIT_ROUNDING
        trips = trips if rising.all() else int(rising.argmin())
        for (movers, _), target in zip(steps, cycle[1:] + cycle[:1], strict=True):
            moved = movers[:trips]
            self.here[moved] = target
            for row in self.rows[moved].tolist():
                self.selection.move(row, target if target < self.room else -1)

    def _ranked(self, a: int, b: int) -> tuple[Indices, Floats]:
        """Return the jobs that can move from a to b, largest gain first, with their gains; no jobs if free GPUs move instead."""
        at_a = np.flatnonzero(self.here == a)
        gains = self.worth[b, at_a] - self.worth[a, at_a]
        idle = len(self.rows) if a == self.room else self.selection.free[a] // self.size if b == self.room else 0
        if idle and not (gains > 0).any():
            return at_a[:0], np.zeros(idle)
        order = np.argsort(-gains, kind="stable")
        return at_a[order], gains[order]


def _positive_cycle(gains: list[list[float]]) -> list[int]:
    """Return the nodes of a cycle of positive total gain, in order; empty if there is none (Bellman-Ford)."""
    nodes = len(gains)
    edges = [(a, b, gain) for a, row in enumerate(gains) for b, gain in enumerate(row) if a != b and gain > -np.inf]
    reached, before = [0.0] * nodes, [-1] * nodes
    for _ in range(nodes):
        last = -1
        for a, b, gain in edges:
            if reached[a] + gain > reached[b] + DEFICIT_ROUNDING:
                reached[b], before[b], last = reached[a] + gain, a, b
        if last < 0:
            return []
    # Gains in each of `nodes` passes imply a cycle, which `nodes` steps back must reach.
    for _ in range(nodes):
        last = before[last]
    cycle = [last]
    while before[cycle[-1]] != last:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def first_of_each(sizes: Indices, keys: NDArray[np.float64]) -> Indices:
    """Return the position of the smallest key of each size, smallest sizes first; ties go to the first."""
    groups = [np.flatnonzero(sizes == size) for size in _distinct(sizes).tolist()]
    return np.array([group[keys[group].argmin()] for group in groups], dtype=np.int64)


class Move(NamedTuple):
    """A move of one job to a column (-1: to the waiting room), at a loss of s_i·score."""

    row: int
    column: int
    loss: float


def displace(selection: TypeSelection, scores: Floats) -> bool:
    """Apply the displacement of largest gain; return whether there was one."""
    return make_best(selection, displacements(selection, scores, may_gain=True))


def make_best(selection: TypeSelection, ways: Iterable[list[Move]]) -> bool:
    """Apply the list of moves with the largest total gain; return whether any list gains."""
    loss, best = min(((sum(move.loss for move in moves), moves) for moves in ways), key=lambda way: way[0], default=(0.0, []))
    if loss >= -DEFICIT_ROUNDING:
        return False
    for move in best:
        selection.move(move.row, move.column)
    return True


def displacements(selection: TypeSelection, scores: Floats, *, may_gain: bool = False) -> Iterator[list[Move]]:
    """Yield the moves that select the best waiting job of each size on each type, whether they gain or not.

    The gangs that make room are those with the smallest total worth; each moves to another type if that has room. A gang that
    already fits displaces none.

    Args:
        selection: The selection, which is not changed.
        scores: (N, K) value per GPU of each pair, -inf where a job must not run; such a job stays if it is there anyway.
        may_gain: Whether to omit moves that cannot gain.
    """
    sizes = selection.num_gpus
    for column in range(scores.shape[1]):
        waiting = np.flatnonzero((selection.columns < 0) & (scores[:, column] > 0))
        if not waiting.size:
            continue
        firsts = waiting[first_of_each(sizes[waiting], -scores[waiting, column])]
        needed = np.maximum(0, sizes[firsts] - selection.free[column])
        evictions = _Evictions(selection, scores, column, int(needed.max()))
        if may_gain:
            firsts = firsts[evictions.least_loss(needed) < sizes[firsts] * scores[firsts, column]]
        for row in firsts.tolist():
            leaving = evictions.freeing(int(sizes[row]) - selection.free[column])
            if leaving is not None:
                moves = _leaving(selection, scores, leaving, column)
                yield [*moves, Move(row, column, -float(sizes[row] * scores[row, column]))]


class _Evictions:
    """The gangs of a type that free a number of GPUs at the least loss, for any number up to `limit`.

    This is a knapsack problem, least[m] = min Σ loss over sets with Σ size >= m, solved one gang size after the other; of each
    size, the gangs with the smallest losses leave first.
    """

    def __init__(self, selection: TypeSelection, scores: Floats, column: int, limit: int) -> None:
        self._rows = rows = np.flatnonzero((selection.columns == column) & np.isfinite(scores[:, column]))
        self._sizes, self._limit = selection.num_gpus[rows], limit
        self._losses = self._sizes * (scores[rows, column] - _elsewhere(selection, scores, rows, column))

    def least_loss(self, needed: Indices) -> Floats:
        """Return lower bounds on the losses at which these numbers of GPUs become free, as if parts of gangs could leave."""
        order = np.argsort(self._losses / self._sizes)
        freed, lost = _sums(self._sizes[order]), _sums(self._losses[order])
        bounds: Floats = np.interp(np.maximum(needed, freed[lost.argmin()]), freed, lost, right=np.inf)
        return bounds

    @cached_property
    def _program(self) -> tuple[Floats, list[tuple[int, Indices, Indices]]]:
        """Return the least loss for each number of GPUs; and for each size, the gangs that leave first and how many leave."""
        least, needed, by_size = np.full(self._limit + 1, np.inf), np.arange(self._limit + 1), []
        least[0] = 0.0
        for size in _distinct(self._sizes).tolist():
            of_size = np.flatnonzero(self._sizes == size)
            cheapest = of_size[np.argsort(self._losses[of_size], kind="stable")][: -(-self._limit // size)]
            counts = np.arange(len(cheapest) + 1)[:, None]
            lost = _sums(self._losses[cheapest])
            values = lost[:, None] + least[np.maximum(needed - counts * size, 0)]
            best = values.argmin(axis=0)
            least = values[best, needed]
            by_size.append((size, self._rows[cheapest], best))
        return least, by_size

    def freeing(self, needed: int) -> list[int] | None:
        """Return the rows of the gangs that leave to free this number of GPUs, largest first; None if all are not enough."""
        (least, by_size), needed, found = self._program, max(0, needed), []
        if not np.isfinite(least[needed]):
            return None
        for size, rows, best in reversed(by_size):
            count = int(best[needed])
            found += rows[:count].tolist()
            needed = max(0, needed - count * size)
        return found


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """Return (N + 1,) the sums of the first 0, 1, ..., N values."""
    sums = np.zeros(len(values) + 1, dtype=values.dtype)
    np.cumsum(values, out=sums[1:])
    return sums


def _elsewhere(selection: TypeSelection, scores: Floats, rows: Indices, column: int) -> Floats:
    """Return (R,) the value per GPU of each job on the best other type with room for it, 0 if it would wait."""
    worth = np.zeros(len(rows))
    for other in _open_types(selection, column):
        fits = selection.num_gpus[rows] <= selection.free[other]
        worth = np.maximum(worth, np.where(fits, scores[rows, other], 0.0))
    return worth


def _open_types(selection: TypeSelection, column: int) -> list[int]:
    """Return the other types with free GPUs."""
    return [other for other, left in enumerate(selection.free) if left > 0 and other != column]


def _leaving(selection: TypeSelection, scores: Floats, rows: list[int], column: int) -> list[Move]:
    """Return the moves of these jobs away from a type, each to the best other type with room left."""
    free, others = list(selection.free), _open_types(selection, column)
    moves: list[Move] = []
    for row in rows:
        size = int(selection.num_gpus[row])
        fitting = [j for j in others if size <= free[j] and scores[row, j] > 0]
        target = max(fitting, key=lambda j: float(scores[row, j]), default=-1)
        worth = float(scores[row, target]) if target >= 0 else 0.0
        if target >= 0:
            free[target] -= size
        moves.append(Move(row, target, size * (float(scores[row, column]) - worth)))
    return moves


def replace_one(selection: TypeSelection, scores: Floats) -> bool:
    """Apply the replacement of largest gain; return whether there was one."""
    return make_best(selection, replacements(selection, scores, may_gain=True))


def replacements(selection: TypeSelection, scores: Floats, *, may_gain: bool = False) -> Iterator[list[Move]]:
    """Yield, for each size and type, the moves that replace the gang of least worth, whether they gain or not.

    Its GPUs go to smaller gangs: the best waiting ones, in order, as far as they fit. Arguments as for `displacements`.
    """
    sizes = selection.num_gpus
    for column in range(scores.shape[1]):
        waiting = _waiting(selection, scores, column)
        rows = np.flatnonzero((selection.columns == column) & (sizes > 1) & np.isfinite(scores[:, column]))
        for row in rows[first_of_each(sizes[rows], scores[rows, column])].tolist():
            size = int(sizes[row])
            smaller, room = waiting[sizes[waiting] < size], size + selection.free[column]
            if may_gain and not (len(smaller) and room * scores[smaller[0], column] > size * scores[row, column]):
                continue
            entering = _filling(sizes, smaller, room)
            come = [Move(each, column, -float(sizes[each] * scores[each, column])) for each in entering]
            yield [Move(row, -1, float(size * scores[row, column])), *come]


def _waiting(selection: TypeSelection, scores: Floats, column: int) -> Indices:
    """Return the waiting jobs with a positive score on a type, highest scores first."""
    waiting = np.flatnonzero((selection.columns < 0) & (scores[:, column] > 0))
    return waiting[np.argsort(-scores[waiting, column], kind="stable")]


def _filling(sizes: Indices, rows: Indices, gpus: int) -> list[int]:
    """Return the jobs, in order, that together fit this number of GPUs; jobs that do not fit are skipped."""
    chosen: list[int] = []
    for row in rows[: 4 * gpus].tolist():
        if sizes[row] <= gpus:
            chosen.append(row)
            gpus -= int(sizes[row])
        if not gpus:
            break
    return chosen


MAX_STEPS = 20
"""Limit on displacements and replacements. With many jobs, each step gains little and takes long, hence the second limit."""

MAX_JOBS_EXAMINED = 40_000
"""Limit on steps times jobs; two steps are always tried."""

FEW_GPUS = 128
"""Clusters up to this size are searched further, since a single gang matters there and trials are cheap."""


def improve(selection: TypeSelection, scores: Floats) -> None:
    """Exchange, displace and replace jobs while Σ s_i·score_i over the selected jobs rises.

    On small clusters, this includes displacements and replacements that gain only after a further exchange.
    """
    few = sum(selection.free) + int(selection.num_gpus[selection.columns >= 0].sum()) <= FEW_GPUS
    exchange(selection, scores)
    for _ in range(max(2, min(MAX_STEPS, MAX_JOBS_EXAMINED // max(1, len(scores))))):
        if displace(selection, scores) or replace_one(selection, scores):
            exchange(selection, scores)
        elif not (few and changed_and_exchanged(selection, lambda _: scores)):
            return


def changed_and_exchanged(selection: TypeSelection, scores_after: Callable[[TypeSelection], Floats]) -> bool:
    """Apply the best displacement or replacement that gains after an exchange; return whether there was one.

    scores_after: the scores of a selection, which may depend on the jobs that are selected.
    """
    scores = scores_after(selection)
    best, best_value = selection, _value(selection, scores) + DEFICIT_ROUNDING
    for moves in chain(displacements(selection, scores), replacements(selection, scores)):
        trial = selection.copy()
        for move in moves:
            trial.move(move.row, move.column)
        exchange(trial, scores_after(trial))
        value = _value(trial, scores_after(trial))
        if value > best_value:
            best, best_value = trial, value
    if best is selection:
        return False
    selection.take(best)
    return True


def _value(selection: TypeSelection, scores: Floats) -> float:
    """Return Σ s_i·score_i over the selected jobs that have scores."""
    rows = np.flatnonzero((selection.columns >= 0) & np.isfinite(scores).any(axis=1))
    return float((selection.num_gpus[rows] * scores[rows, selection.columns[rows]]).sum())
