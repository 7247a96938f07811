"""Which job has a place on which accelerator type while a round is being chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seats"]

Indices = NDArray[np.int64]


class Seats:
    """The choice so far: columns: (N,) type of each job, -1 = none; free: (K,) GPUs left of each type."""

    def __init__(self, num_gpus: Indices, capacities: Indices) -> None:
        self.num_gpus = num_gpus
        self.columns: Indices = np.full(len(num_gpus), -1, dtype=np.int64)
        self.free: list[int] = [int(capacity) for capacity in capacities]

    def copy(self) -> Seats:
        """Return the same choice, to be changed by itself."""
        other = Seats(self.num_gpus, np.array(self.free))
        other.columns = self.columns.copy()
        return other

    def take(self, other: Seats) -> None:
        """Become what a copy has become."""
        self.columns, self.free = other.columns, other.free

    def seat(self, rows: Indices, columns: Indices) -> None:
        """Seat waiting jobs, each on its type; the caller sees to it that the gangs fit."""
        self.columns[rows] = columns
        used = np.bincount(columns, weights=self.num_gpus[rows], minlength=len(self.free))
        self.free = [left - int(taken) for left, taken in zip(self.free, used, strict=True)]

    def move(self, row: int, column: int) -> None:
        """Seat one job on the type, or take its seat away (-1); the caller sees to it that the gangs fit in the end."""
        before, size = int(self.columns[row]), int(self.num_gpus[row])
        if before >= 0:
            self.free[before] += size
        if column >= 0:
            self.free[column] -= size
        self.columns[row] = column
