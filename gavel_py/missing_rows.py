"""The rows that an answer breaks, of those that are added only where they bind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.pair_columns import PairColumns, lonely_rows
from gavel_py.problem import AllocationProblem
from gavel_py.rules import Row, Rules
from gavel_py.two_kinds import TwoKinds, two_kinds
from gavel_py.whole_gangs import gang_rows, kind_rows

__all__ = ["missing_rows"]

Floats = NDArray[np.float64]


def missing_rows(
    problem: AllocationProblem, rules: Rules, fractions: Floats, columns: TwoKinds | PairColumns | None
) -> tuple[list[Row], TwoKinds | PairColumns | None]:
    """Return rows that time fractions break, none if they break none, and the columns that these rows are about.

    columns: those that the fractions are in. Where nobody shares GPUs, types get a second column (`TwoKinds`) once the faster
    placement of gangs is promised more than nodes have room for.
    """
    if isinstance(columns, PairColumns):
        lonely: list[Row] = [*lonely_rows(columns, fractions)]
        return lonely or [*gang_rows(problem, fractions, columns.columns_of)], columns
    rows: list[Row] = [*gang_rows(problem, fractions, columns.columns_of if columns else {})]
    if rows:
        return rows, columns
    rows = [*kind_rows(problem, fractions, columns.second if columns else {})]
    if rows and columns is None:
        columns = two_kinds(problem, rules)
        rows = [*kind_rows(columns.problem, columns.unfolded(fractions), columns.second)]
    return rows, columns
