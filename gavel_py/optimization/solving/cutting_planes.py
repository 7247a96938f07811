"""The minimum of a convex function of prices in a box, by cutting planes: `minimum`.

`PriceBox` is the box, which `price_decomposition` and `level_decomposition` shrink around the minimum, or move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.solving.highs import ALGORITHMS, OPTIONS, Algorithm, new_highs, run_here
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import DIFFERENCE_ROUNDING

PRECISION = 1e-4
"""Accepted distance from the minimum in a box, relative to the change of the dual function over the box."""

SHRINK = 10.0
"""Factor by which a box becomes smaller."""

MOST_PLANES = 300


@dataclass(frozen=True)
class PriceBox:
    """The prices from `low` to `high`, and the best known prices between them."""

    low: Floats
    high: Floats
    prices: Floats

    @classmethod
    def around(cls, prices: Floats, part: float) -> PriceBox:
        """Return the box that extends by a part of each price plus a tenth of their mean, so that a price of 0 may rise as well."""
        half = part * np.maximum(prices, prices.mean() / 10)
        return cls(np.maximum(0.0, prices - half), prices + half, prices)

    def moved(self, prices: Floats, factor: float) -> PriceBox:
        """Return a box around other prices that is larger by a factor."""
        half = (self.high - self.low) * (factor / 2)
        return PriceBox(np.maximum(0.0, prices - half), prices + half, prices)

    def contains(self, prices: Floats) -> bool:
        """Return whether prices are strictly inside; the end 0 counts as inside."""
        return bool((((prices > self.low) | (self.low <= 0)) & ((prices < self.high) | (self.high <= 0))).all())

    def shrunk(self, prices: Floats) -> PriceBox:
        """Return the smaller box around other prices, within this one."""
        half = (self.high - self.low) / SHRINK
        return PriceBox(np.maximum(self.low, prices - half), np.minimum(self.high, prices + half), prices)


@dataclass(frozen=True)
class Minimum:
    """The minimum of the dual function in a box.

    slack: the largest possible distance from the true minimum; boundary_gain: (K,) the decrease of the minimum if the box
    were wider by half in a price; size: the value that counts as large.
    """

    prices: Floats
    value: float
    slack: float
    boundary_gain: Floats
    size: float

    @property
    def is_inside(self) -> bool:
        """Whether a wider box would not lower the minimum."""
        return bool((self.boundary_gain <= DIFFERENCE_ROUNDING * self.size).all())


def minimum(
    function: Callable[[Floats], tuple[float, Floats]], box: PriceBox, normal: Floats | None = None, size: float = 0.0
) -> Minimum:
    """Return the minimum of a convex function in a box by cutting planes (Kelley 1960).

    Every second point is halfway to the best one so far, since with few planes the lowest point may be far from the minimum.
    normal: (K,) n if only prices with n·p = 1 count; size: a value that counts as large, by default the minimum.
    """
    best = point = box.prices if normal is None else box.prices / float(normal @ box.prices)
    value, gradient = function(point)
    half = np.maximum((box.high - box.low) / 2, 1e-300)
    change = max(float(np.abs(gradient) @ half), 1e-13 * (size or abs(value)), 1e-300)
    planes, base, least = CuttingPlanes((box.low + box.high) / 2, half, change, normal), value, value
    for count in range(MOST_PLANES):
        planes.add(point, value - base, gradient)
        lowest, bound, boundary_gain = planes.lowest()
        if least - (bound + base) <= PRECISION * change:
            break
        point = np.clip(lowest if count % 2 else (lowest + best) / 2, box.low, box.high)
        point = point if normal is None else point / float(normal @ point)
        value, gradient = function(point)
        if value < least:
            least, best = value, point
    boundary_gain = np.where((boundary_gain > 0) & (box.low <= 0), 0.0, np.abs(boundary_gain))  # no price is below 0
    return Minimum(best, least, least - bound - base, boundary_gain, size or abs(least))


class CuttingPlanes:
    """The lower envelope of a convex function of K prices from planes that support it, over a box, with one kept HiGHS.

    Prices are scaled to -1 .. 1 and values to `size`, the change of the function over the box: HiGHS's tolerances are then relative
    to the box, even if it is very small. Planes need values relative to a base that cancels out most digits.
    """

    def __init__(self, middle: Floats, half: Floats, size: float, normal: Floats | None = None) -> None:
        """middle, half: (K,) the box; normal: (K,) n if only prices with n·p = 1 count."""
        self._middle, self._half, self._size = middle, half, size
        self._columns = np.arange(len(middle) + 1, dtype=np.int32)
        self._highs = new_highs(OPTIONS | ALGORITHMS[Algorithm.SIMPLEX])
        count = len(middle)
        for _ in range(count):
            self._highs.addVar(-1.0, 1.0)
        self._highs.addVar(-np.inf, np.inf)
        self._highs.changeColCost(count, 1.0)
        if normal is not None:
            slopes = normal * half
            scale = float(np.abs(slopes).max()) or 1.0
            rest = float(1.0 - normal @ middle) / scale
            self._highs.addRow(rest, rest, count, self._columns[:-1], slopes / scale)

    def add(self, prices: Floats, value: float, gradient: Floats) -> None:
        """Add the plane that touches the function at these prices."""
        at_middle = (value - float(gradient @ (prices - self._middle))) / self._size
        row = np.append(-gradient * self._half / self._size, 1.0)
        self._highs.addRow(at_middle, np.inf, len(row), self._columns, row)

    def lowest(self) -> tuple[Floats, float, Floats]:
        """Return the prices of the lowest point, its value, and (K,) its change if prices and the box rose by half of the box.

        The change is positive for prices at the lower end of the box, and negative at the upper end.
        """
        run_here(self._highs)
        answer = self._highs.getSolution()
        if not answer.value_valid:
            raise SolverError("HiGHS found no minimum of the cutting planes")
        values, duals = np.array(answer.col_value), np.array(answer.col_dual)
        return self._middle + values[:-1] * self._half, float(values[-1]) * self._size, duals[:-1] * self._size
