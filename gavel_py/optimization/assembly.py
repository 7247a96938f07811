"""Linear programs put together from matrices: what cvxpy would compile from expressions, where there are none.

Rounds solve thousands of small programs whose rows are known as matrices; to compile each would take several times as long as to
solve it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.optimization.bases import LinearProgram

__all__ = ["Columns", "Rows", "assembled"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Columns:
    """Variables z with costs·z in the objective, lower <= z <= upper."""

    costs: Floats
    lower: Floats
    upper: Floats


class Rows(NamedTuple):
    """Σ matrix @ z over the columns by their names <= limits."""

    blocks: Mapping[str, sp.sparray]
    limits: Floats


def assembled(columns: Mapping[str, Columns], rows: Mapping[str, Rows], offset: float = 0.0) -> LinearProgram:
    """Return min Σ costs·z + offset under these rows, columns and rows in this order and by these names."""
    column_slices = _slices({name: len(each.costs) for name, each in columns.items()})
    row_slices = _slices({name: len(each.limits) for name, each in rows.items()})
    entries = [
        (row_slices[to].start, column_slices[of].start, block.tocoo())
        for to, each in rows.items()
        for of, block in each.blocks.items()
    ]
    at = (
        np.concatenate([block.coords[0] + first for first, _, block in entries]),
        np.concatenate([block.coords[1] + first for _, first, block in entries]),
    )
    shape = sum(len(each.limits) for each in rows.values()), sum(len(each.costs) for each in columns.values())
    there = columns.values()
    return LinearProgram(
        costs=np.concatenate([each.costs for each in there]),
        offset=offset,
        matrix=sp.csc_array((np.concatenate([block.data for *_, block in entries]), at), shape=shape),
        limits=np.concatenate([each.limits for each in rows.values()]),
        equalities=0,
        lower=np.concatenate([each.lower for each in there]),
        upper=np.concatenate([each.upper for each in there]),
        columns=column_slices,
        rows=row_slices,
    )


def _slices(lengths: Mapping[str, int]) -> dict[int | str, slice]:
    ends = np.cumsum([*lengths.values()]).tolist()
    return {name: slice(end - length, end) for (name, length), end in zip(lengths.items(), ends, strict=True)}
