"""Rows that jobs keep who share GPUs: partners have each other for the same time, and nobody is its own partner."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.problem import AllocationProblem

__all__ = ["Balance", "Company", "Members"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Members:
    """Which jobs are of which kind, for the many rows that ask about the same jobs one after the other. kinds: (N,)."""

    def __init__(self, kinds: Indices, count: int) -> None:
        self.kinds = kinds
        self._count = count
        self._asked: tuple[Indices, list[Indices]] | None = None

    def of(self, rows: Indices) -> list[Indices]:
        """Return for each kind the places of its jobs among those in these rows."""
        if self._asked is None or self._asked[0] is not rows:
            order = np.argsort(self.kinds[rows], kind="stable")
            ends = np.searchsorted(self.kinds[rows][order], np.arange(self._count + 1))
            self._asked = rows, [order[start:end] for start, end in pairwise(ends.tolist())]
        return self._asked[1]


@dataclass(frozen=True, eq=False)
class Balance:
    """Σ_{i of kind a} X_i,one − Σ_{k of kind b} X_k,other <= 0: time in one column for which there is a partner in the other."""

    name: str
    members: Members
    of: tuple[int, int]
    columns: tuple[int, int]
    num_columns: int
    most: float = 0.0
    penalty: float | None = None
    grows: ClassVar[bool] = False

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.members.kinds,)

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        table = np.zeros(len(rows) * self.num_columns)
        places, values = self.entries(rows, num_gpus)
        table[places] = values
        return table.reshape(len(rows), self.num_columns)

    def entries(self, rows: Indices, num_gpus: Floats) -> tuple[Indices, Floats]:  # noqa: ARG002
        by_kind = self.members.of(rows)
        one, other = (by_kind[kind] for kind in self.of)
        places = np.concatenate([one * self.num_columns + self.columns[0], other * self.num_columns + self.columns[1]])
        values = np.ones(len(places))
        values[len(one) :] = -1.0
        return places, values

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        one, other = (
            time_fractions[self.members.kinds == kind, column].sum() for kind, column in zip(self.of, self.columns, strict=True)
        )
        return float(one - other)


@dataclass(frozen=True, eq=False)
class Company:
    """X_i − Σ_{k != i of the same kind} X_k <= 0 in one column: nobody is its own partner. signs: (N,) 1 for i, -1 for the rest."""

    name: str
    signs: Floats
    column: int
    num_columns: int
    most: float = 0.0
    penalty: float | None = None
    grows: ClassVar[bool] = False

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.signs,)

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:  # noqa: ARG002
        table = np.zeros((len(rows), self.num_columns))
        table[:, self.column] = self.signs[rows]
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        return float(self.signs @ time_fractions[:, self.column])
