"""Numbers of a run made small, and as lists that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_SAMPLES", "array_of", "list_of", "quantiles", "values_of"]

Floats = NDArray[np.float64]

MOST_SAMPLES = 1000
"""So many completion times are kept of a run; of more, so many quantiles at equal steps from the least to the largest."""


def quantiles(samples: Iterable[float], most: int = MOST_SAMPLES) -> Floats:
    """Return the samples, ascending; of more than `most`, the quantiles 0, 1 / (most - 1), ..., 1.

    >>> quantiles([3.0, 1.0]), quantiles(range(101), most=3)
    (array([1., 3.]), array([  0.,  50., 100.]))
    """
    values = np.sort(np.fromiter(samples, dtype=float))
    return values if len(values) <= most else np.asarray(np.quantile(values, np.linspace(0.0, 1.0, most)), dtype=float)


def list_of(values: Floats) -> list[float | None]:
    """Return an array as a list, with None where it is not a finite number."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def array_of(values: Sequence[float | None]) -> Floats:
    """Return what `list_of` was given; NaN where it has None."""
    if not isinstance(values, list) or any(value is not None and type(value) not in (int, float) for value in values):
        raise TypeError("a list of numbers is not one")
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def values_of(numbers: dict[str, float | None]) -> dict[str, float | None]:
    """Return numbers by name with None where they are not finite."""
    return {name: value if value is None or math.isfinite(value) else None for name, value in numbers.items()}
