"""Which job has a place on which accelerator type while a round is being chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seats"]


class Seats:
    """The choice so far: columns: (N,) type of each job, -1 = none; free: (K,) GPUs left of each type."""

    def __init__(self, num_gpus: NDArray[np.int64], capacities: NDArray[np.int64]) -> None:
        self.num_gpus = num_gpus
        self.columns = np.full(len(num_gpus), -1, dtype=np.int64)
        self.free = [int(capacity) for capacity in capacities]
        self._gangs: list[int] = num_gpus.tolist()

    def fits(self, row: int, column: int) -> bool:
        """Say whether the job has no place yet and its gang fits what is left of the type."""
        return self._gangs[row] <= self.free[column] and self.columns[row] < 0

    def move(self, row: int, column: int) -> None:
        """Seat the job on the type, or take its seat away (-1); the caller sees to it that the gangs fit in the end."""
        before = int(self.columns[row])
        if before >= 0:
            self.free[before] += self._gangs[row]
        if column >= 0:
            self.free[column] -= self._gangs[row]
        self.columns[row] = column
