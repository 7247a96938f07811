"""Programs with whole numbers: the answer of HiGHS against trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, TimeLimit, solve_whole


def program(costs: list[float], rows: list[list[float]], limits: list[float], upper: list[float]) -> LinearProgram:
    table = np.array(rows, dtype=float).reshape(len(rows), len(costs))
    columns, at = np.nonzero(table.T)
    matrix = SparseMatrix(at, columns, table[at, columns], table.shape)
    return LinearProgram(
        np.array(costs, float), 0.0, matrix, np.array(limits, float), 0, np.zeros(len(costs)), np.array(upper, float)
    )


@given(
    costs=st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    rows=st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=3),
    limit=st.integers(0, 20),
)
def test_the_optimum_is_that_of_trying_everything(costs: list[int], rows: list[list[int]], limit: int) -> None:
    stated = program([*map(float, costs)], [[*map(float, row)] for row in rows], [limit + 0.5] * len(rows), [4.0, 4.0, 4.0])
    found = solve_whole(stated, np.array([True, True, True]))
    tried = [
        np.dot(costs, values)
        for values in itertools.product(range(5), repeat=3)
        if all(np.dot(row, values) <= limit + 0.5 for row in rows)
    ]
    assert found is not None
    assert found.is_optimal
    assert found.value == min(tried)
    assert found.bound == pytest.approx(min(tried), abs=1e-5)
    assert np.array_equal(found.values, np.round(found.values))


def test_values_that_need_not_be_whole_are_fractions() -> None:
    found = solve_whole(program([-1.0, -2.0], [[2.0, 1.0]], [4.5], [9.0, 3.0]), np.array([False, True]))
    assert found is not None
    assert found.values == pytest.approx([0.75, 3.0])
    assert found.value == pytest.approx(-6.75)


def test_a_valid_start_is_kept_when_the_time_is_over() -> None:
    found = solve_whole(program([-1.0], [[1.0]], [2.5], [9.0]), np.array([True]), limit=TimeLimit(60.0), start=np.array([1.0]))
    assert found is not None
    assert found.values.tolist() == [2.0]


def test_a_program_without_valid_values_is_an_error() -> None:
    with pytest.raises(gp.SolverError, match="infeasible"):
        solve_whole(program([1.0], [[-1.0]], [-5.0], [2.0]), np.array([True]))
