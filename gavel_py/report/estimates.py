"""Means over seeds and how far they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

__all__ = ["CONFIDENCE", "Estimate", "estimate"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """mean: over `count` seeds; half_width: the confidence interval is mean ± half_width, None where there is one seed."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end of the interval, the mean where there is none."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval, the mean where there is none."""
        return self.mean + (self.half_width or 0.0)

    def over(self, size: float) -> Estimate:
        """Return the same in units of this size."""
        return Estimate(self.mean / size, None if self.half_width is None else self.half_width / size, self.count)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return mean and confidence interval of one number per seed; None where there is no finite number.

    Student's t: half_width = t_{(1 + c)/2, n − 1} · s / √n, with s the standard deviation of the n numbers (n − 1 below) and c the
    `CONFIDENCE`. It holds for means of numbers that are about normal, which means over many jobs are.

    >>> made = estimate([1.0, 2.0, 3.0])
    >>> made.mean, round(made.half_width, 4), made.count
    (2.0, 2.4841, 3)
    """
    numbers = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=float)
    if not len(numbers):
        return None
    if len(numbers) == 1:
        return Estimate(float(numbers[0]), None, 1)
    quantile = float(stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2))
    return Estimate(float(numbers.mean()), quantile * float(numbers.std(ddof=1)) / math.sqrt(len(numbers)), len(numbers))
