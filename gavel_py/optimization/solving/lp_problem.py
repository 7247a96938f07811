"""Linear programs and their optima as arrays, and bases that are carried over to other programs and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats

Keys = NDArray[np.uint64]

Slices = Mapping[int | str, slice]

INSIDE = 1e-7
"""A value farther than this from its bound is off it for sure."""


@dataclass(frozen=True)
class LinearProgram:
    """A compiled program: min costs·z + offset with matrix z <= limits (the first `equalities` rows with =), lower <= z <= upper.

    columns: {id of a cvxpy variable, or a name: its columns}; rows: {id of a cvxpy constraint, or a name: its rows}.
    """

    costs: Floats
    offset: float
    matrix: Any
    limits: Floats
    equalities: int
    lower: Floats
    upper: Floats
    columns: Slices = field(default_factory=dict)
    rows: Slices = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """An optimum of `program`: values z, and duals y of the rows, >= 0 for the rows with <=."""

    program: LinearProgram
    values: Floats
    duals: Floats

    @property
    def value(self) -> float:
        """costs·z + offset."""
        return float(self.program.costs @ self.values) + self.program.offset

    @property
    def has_unique_duals(self) -> bool:
        """Whether the optimum is seen to be no degenerate corner: as many values and rows off their bounds as there are rows."""
        program = self.program
        inside = (self.values > program.lower + INSIDE) & (self.values < program.upper - INSIDE)
        slack = program.limits - program.matrix @ self.values > INSIDE
        return int(inside.sum() + slack.sum()) >= len(program.limits)


class KeptBasis(NamedTuple):
    """A basis of HiGHS with the keys of its columns and rows."""

    basis: Any
    columns: Keys
    rows: Keys

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptBasis.from_dict, (self.to_dict(),)  # highspy's own objects cannot be pickled

    def on(self, columns: Keys, rows: Keys) -> Any:
        """Return HiGHS's basis on new columns and rows: what has the same key keeps its status, what is new stays outside."""
        import highspy

        if np.array_equal(self.columns, columns) and np.array_equal(self.rows, rows):
            return self.basis
        carried = highspy.HighsBasis()
        outside, inside = highspy.HighsBasisStatus.kLower, highspy.HighsBasisStatus.kBasic
        carried.col_status = _matched(list(self.basis.col_status), self.columns, columns, outside)
        carried.row_status = _matched(list(self.basis.row_status), self.rows, rows, inside)
        carried.valid = carried.alien = True  # alien: HiGHS repairs what is no longer a basis
        return carried

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: statuses as digits, keys as whole numbers."""
        basis = self.basis
        return {
            "columns": [str(key) for key in self.columns.tolist()],
            "rows": [str(key) for key in self.rows.tolist()],
            "column_status": "".join(str(int(status)) for status in basis.col_status),
            "row_status": "".join(str(int(status)) for status in basis.row_status),
            "valid": bool(basis.valid),
            "alien": bool(basis.alien),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> KeptBasis:
        """Return the basis that `to_dict` described."""
        import highspy

        basis = highspy.HighsBasis()
        basis.col_status = [highspy.HighsBasisStatus(int(digit)) for digit in document["column_status"]]
        basis.row_status = [highspy.HighsBasisStatus(int(digit)) for digit in document["row_status"]]
        basis.valid, basis.alien = document["valid"], document["alien"]
        return cls(basis, *(np.array([int(key) for key in document[name]], dtype=np.uint64) for name in ("columns", "rows")))


def _matched(statuses: list[Any], old: Keys, new: Keys, default: Any) -> list[Any]:
    order = np.argsort(old, kind="stable")
    at = np.minimum(np.searchsorted(old[order], new), len(old) - 1)
    found = old[order][at] == new
    return [statuses[i] if is_there else default for i, is_there in zip(order[at].tolist(), found.tolist(), strict=True)]
