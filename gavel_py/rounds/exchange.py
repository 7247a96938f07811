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

from gavel_py.rounds.seats import Seats

__all__ = ["LEAST_GAIN", "exchange"]

Floats = NDArray[np.float64]

# Smaller gains, in rounds, may be the rounding errors of sums, and taking those could go on for ever.
LEAST_GAIN = 1e-6


def exchange(seats: Seats, scores: Floats) -> None:
    """Let jobs change places, largest gangs first, while the sum of the scores of the seated rises.

    scores: (N, K) value of each pair, -inf where a job must not sit; the jobs seated so far must sit where they may.
    """
    candidates = np.isfinite(scores).any(axis=1)
    # A column for the waiting room, worth nothing.
    worth = np.pad(scores, ((0, 0), (0, 1)))
    for size in sorted(set(seats.num_gpus[candidates].tolist()), reverse=True):
        rows = np.flatnonzero(candidates & (seats.num_gpus == size))
        while trip := _gaining_trip(*_best_moves(seats, worth, rows, size)):
            for row, target in trip:
                seats.move(row, target)


def _best_moves(seats: Seats, worth: Floats, rows: NDArray[np.int64], size: int) -> tuple[Floats, NDArray[np.int64]]:
    """(K+1, K+1) gain of the best move from a to b, and the job that makes it, -1 for nobody; the last node is the waiting room."""
    room = worth.shape[1] - 1
    here = np.where(seats.columns[rows] < 0, room, seats.columns[rows])
    gains = worth[rows] - worth[rows, here][:, None]
    best = np.full((room + 1, room + 1), -np.inf)
    movers = np.full((room + 1, room + 1), -1)
    for a in np.unique(here).tolist():
        at_a = np.flatnonzero(here == a)
        first = gains[at_a].argmax(axis=0)
        best[a] = gains[at_a[first], np.arange(room + 1)]
        movers[a] = rows[at_a[first]]
    for j, free in enumerate(seats.free):
        for a, b, allowed in ((j, room, free >= size), (room, j, True)):
            if allowed and best[a, b] < 0:
                best[a, b], movers[a, b] = 0.0, -1
    return best, movers


def _gaining_trip(gains: Floats, movers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The moves (job, column or -1) of a round trip whose gains sum to more than 0; empty when there is none."""
    room = len(gains) - 1
    cycle = _positive_cycle(gains)
    moves = [(int(movers[a, b]), b if b < room else -1) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
    return [(row, target) for row, target in moves if row >= 0]


def _positive_cycle(gains: Floats) -> list[int]:
    """The nodes of a cycle of positive total gain, in order, or none (Bellman-Ford)."""
    nodes = len(gains)
    edges = [(a, b, gains[a, b]) for a in range(nodes) for b in range(nodes) if a != b and np.isfinite(gains[a, b])]
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
