"""Merging jobs whose throughputs differ by little, such as by the noise of their measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.row_hashing import number_equal

__all__ = ["merged"]


def merged(problem: AllocationProblem, tolerance: float) -> AllocationProblem:
    """Return the problem with nearly equal rows of throughputs made equal.

    The throughputs on each type are cut into intervals whose ends differ by the factor 1 + tolerance. Jobs whose rows fall into the
    same intervals get the middle between the least and the largest of their throughputs on each type, so that none changes by
    more than tolerance/2 of itself.
    """
    table = problem.throughputs
    steps = np.floor(np.log(np.where(table > 0, table, 1.0)) / np.log1p(tolerance)).astype(np.int64)
    columns = [np.where(table[:, j] > 0, steps[:, j], np.iinfo(np.int64).min // 2) for j in range(table.shape[1])]
    alike = number_equal([column.astype(float) for column in columns], problem.num_jobs)
    order = np.argsort(alike.index, kind="stable")
    starts = np.concatenate([[0], np.cumsum(alike.counts)[:-1]])
    by_row = table[order]
    middle = (np.minimum.reduceat(by_row, starts) + np.maximum.reduceat(by_row, starts)) / 2
    return replace(problem, throughputs=middle[alike.index], type_index=alike.index)
