"""The rows that an answer breaks, of those that are added only where they bind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.fraction_rows import fraction_rows
from gavel_py.optimization.mixes import ONE_EACH
from gavel_py.optimization.packing_rows import packing_rows
from gavel_py.optimization.pair_columns import PairColumns, lonely_rows
from gavel_py.optimization.rules import Load, Row, Rules
from gavel_py.optimization.times import ClassTimes, JobTimes
from gavel_py.optimization.two_kinds import TwoKinds, two_kinds
from gavel_py.optimization.whole_gangs import gang_rows, kind_rows
from gavel_py.problem.problem import AllocationProblem

__all__ = ["missing_rows"]

Floats = NDArray[np.float64]


def missing_rows(
    problem: AllocationProblem, rules: Rules, times: JobTimes | ClassTimes, columns: TwoKinds | PairColumns | None
) -> tuple[list[Row], TwoKinds | PairColumns | None]:
    """Return rows that the time of jobs breaks, none if it breaks none, and the columns that these rows are about.

    columns: those that the times are in. Where nobody shares GPUs, types get a second column (`TwoKinds`) once the faster
    placement of gangs is promised more than nodes have room for.
    """
    if isinstance(columns, PairColumns):
        assert isinstance(times, ClassTimes)  # noqa: S101
        return _rows_of_pairs(columns, times), columns
    fractions = times.fractions
    of_type = columns.columns_of if columns else {}
    rows: list[Row] = [*_rows_of_types(problem, fractions, of_type)]
    if rows:
        return rows, columns
    rows = [*kind_rows(problem, fractions, columns.second if columns else {})]
    if rows and columns is None:
        columns = two_kinds(problem, rules)
        rows = [*kind_rows(columns.problem, columns.unfolded(fractions), columns.second)]
    return rows, columns


def _rows_of_pairs(columns: PairColumns, times: ClassTimes) -> list[Row]:
    """Rows about partners of jobs of their own kind, and, if none is missing, about what whole gangs and fractions can use."""
    lonely = lonely_rows(columns, times)
    if lonely or columns.base.hosts is None:
        return lonely
    parts = times.jobs.spread(columns.folded(times.fractions * columns.parts))
    return [columns.over_all(row) for row in _rows_of_types(columns.base, parts)]


def _rows_of_types(
    problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH
) -> list[Load]:
    """Rows about what whole gangs and fractions can use of types."""
    asked = problem, fractions, columns
    return [*gang_rows(*asked), *fraction_rows(*asked), *packing_rows(*asked)]
