"""The memory of GPUs: what jobs take of it, what GPUs have, and who fits where, alone and two by two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GpuMemory"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-9
"""A part of a GPU's memory that is told from none: sums such as 5.3 + 10.7 GB are not exact."""


@dataclass(frozen=True, eq=False)
class GpuMemory:
    """needed: (N, K) GB that each job takes of each of its GPUs of a type; there: (K,) GB of one GPU; NaN where nobody knows.

    What nobody knows limits nothing: a job that does not say what it takes counts as nothing beside another one.
    """

    needed: Floats
    there: Floats

    @property
    def fits(self) -> Mask:
        """(N, K) whether a job fits the GPUs of a type."""
        fits: Mask = np.nan_to_num(self.needed) <= self._room
        return fits

    @property
    def company(self) -> Indices:
        """(N, K) beside how many of the N jobs each one fits on a type, itself counted as another one.

        Who takes less fits beside all whom one fits beside who takes more. So two jobs of equal numbers fit beside the same ones.
        """
        needed = np.nan_to_num(self.needed)
        columns = [
            np.searchsorted(np.sort(taken), room - taken, side="right") for taken, room in zip(needed.T, self._room, strict=True)
        ]
        return np.array(columns, dtype=np.int64).reshape(needed.shape[::-1]).T

    def together(self, jobs: Indices) -> Mask:
        """Return (Q, Q, K) whether each two of Q jobs fit the GPUs of a type together."""
        needed = np.nan_to_num(self.needed[jobs])
        together: Mask = needed[:, None] + needed <= self._room
        return together

    @property
    def _room(self) -> Floats:
        """(K,) what is there, infinite where nobody knows."""
        return np.where(np.isnan(self.there), np.inf, self.there * (1 + ROUNDING))
