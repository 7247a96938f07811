"""Bases of linear programs as plain data, so that a solver in another process starts from where this one ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["KeptBasis"]

Keys = NDArray[np.uint64]


class KeptBasis(NamedTuple):
    """A basis of HiGHS with the keys of its columns and rows."""

    basis: Any
    columns: Keys
    rows: Keys

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
