"""Least-cost fleets by trying all of them, cheapest first; whether an hour is served is decided by a primal program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import highspy
import numpy as np

__all__ = ["cheapest", "drawn_apart", "drawn_sharing"]

Floats = np.ndarray


def drawn_apart(rng: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Draw demand, speeds, GPUs per node, prices of nodes and a share to miss, for classes that each have a type."""
    types, hours, most = int(rng.integers(2, 5)), int(rng.integers(10, 60)), 12
    size = rng.choice([1, 2, 4, 8], types).astype(float)
    demand = np.minimum(rng.gamma(2, size * most / 6, (hours, types)), size * most) * (rng.random((hours, types)) > 0.1)
    return demand.round(2), np.eye(types), size, size * rng.uniform(0.5, 4, types), float(rng.choice([0.05, 0.1, 0.2]))


def drawn_sharing(rng: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Draw the same for classes that run on several types, at random speeds."""
    types, classes, hours = int(rng.integers(2, 4)), int(rng.integers(2, 5)), int(rng.integers(8, 25))
    size = rng.choice([1, 2, 4, 8], types).astype(float)
    speeds = rng.uniform(0.3, 3, (classes, types)) * (rng.random((classes, types)) > 0.25)
    speeds[speeds.max(axis=1) == 0, 0] = 1
    demand = rng.gamma(2, size.mean() / classes, (hours, classes)).round(2)
    return demand, speeds, size, size * rng.uniform(0.5, 4, types), float(rng.choice([0, 0.05, 0.1, 0.2]))


def cheapest(
    demand: Floats,
    speeds: Floats,
    size: Floats,
    price: Floats,
    missed: int,
    most: Sequence[int],
    is_allowed: Callable[[Floats], bool] | None = None,
) -> float | None:
    """Return the cost of the cheapest allowed fleet of at most `most` nodes that serves all but `missed` hours, or None."""
    fleets = np.array(list(itertools.product(*(range(each + 1) for each in most))))
    costs = fleets @ price
    hours = demand[np.argsort(-demand.sum(axis=1))]
    serves = _primal(speeds)
    for place in np.argsort(costs, kind="stable"):
        gpus, left = fleets[place] * size, missed
        for hour in hours:
            left -= not serves(hour, gpus)
            if left < 0:
                break
        else:
            if is_allowed is None or is_allowed(fleets[place]):
                return float(costs[place])
    return None


def _primal(speeds: Floats) -> Callable[[Floats, Floats], bool]:
    if np.array_equal(speeds, np.eye(len(speeds))):
        return lambda hour, gpus: bool((hour <= gpus + 1e-9).all())
    classes, types = speeds.shape
    highs: Any = highspy.Highs()
    highs.silent()
    pairs = [(i, j) for i in range(classes) for j in range(types) if speeds[i, j] > 0]
    for _ in pairs:
        highs.addVar(0, highspy.kHighsInf)
    for i in range(classes):
        own = [n for n, pair in enumerate(pairs) if pair[0] == i]
        highs.addRow(0, highspy.kHighsInf, len(own), np.array(own, np.int32), np.array([speeds[pairs[n]] for n in own]))
    for j in range(types):
        own = [n for n, pair in enumerate(pairs) if pair[1] == j]
        highs.addRow(-highspy.kHighsInf, 0, len(own), np.array(own, np.int32), np.ones(len(own)))

    def serves(hour: Floats, gpus: Floats) -> bool:
        for i, value in enumerate(hour.tolist()):
            highs.changeRowBounds(i, value, highspy.kHighsInf)
        for j, value in enumerate(gpus.tolist()):
            highs.changeRowBounds(classes + j, -highspy.kHighsInf, value)
        highs.run()
        return bool(highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)

    return serves
