"""The best job of each gang size, without sorting them all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_of_each"]

Indices = NDArray[np.int64]


def first_of_each(sizes: Indices, keys: NDArray[np.float64]) -> Indices:
    """Return the position of the smallest key of each size, the first of equals; smallest sizes first."""
    groups = [np.flatnonzero(sizes == size) for size in np.unique(sizes).tolist()]
    return np.array([group[keys[group].argmin()] for group in groups], dtype=np.int64)
