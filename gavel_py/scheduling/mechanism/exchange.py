"""Improve a choice of jobs by letting gangs of one size change places.

Think of a graph whose nodes are the K accelerator types and the waiting room, and whose edge a -> b is the best move of one job
from a to b: its gain is the score there less the score here (0 in the waiting room). A round trip a -> b -> ... -> a moves one job
along each edge and leaves the number of GPUs in use on each type as it was; where GPUs are free or may be left free, a step through
the waiting room costs nothing. While a round trip gains, take it. For single-GPU jobs none is left only when the choice is of
maximum weight (the residual graph of a transportation problem without a negative cycle), and the graph is small whatever N is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.seats import Seats

__all__ = ["LEAST_GAIN", "exchange"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Smaller gains, in rounds, may be the rounding errors of sums, and taking those could go on for ever.
LEAST_GAIN = 1e-6


def exchange(seats: Seats, scores: Floats) -> None:
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

    def __init__(self, seats: Seats, worth: Floats, rows: Indices, size: int) -> None:
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
