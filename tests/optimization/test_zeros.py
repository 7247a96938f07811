"""The search for the level at which a cost is all that there is, beside Brent's method, and the sparse matrices of programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.levels import _zero

SLOPES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5)
PLACES = st.floats(0.01, 0.99)


@given(slopes=SLOPES, place=PLACES, rising=st.booleans(), scale=st.sampled_from([1e-9, 1.0, 1e9]))
def test_the_zero_of_a_line_with_kinks_is_that_of_brents_method(
    slopes: list[float], place: float, rising: bool, scale: float
) -> None:
    calls = 0
    ends = (0.0, scale) if rising else (scale, 0.0)

    def excess(level: float) -> float:
        nonlocal calls
        calls += 1
        way = (place * scale - level) / scale * (1 if rising else -1)
        return max(slope * way for slope in slopes) if way > 0 else min(slope * way for slope in slopes)

    found = _zero(excess, *ends, 1e-15 * scale)
    used, calls = calls, 0
    known = brentq(excess, *ends, xtol=1e-15 * scale, rtol=4 * np.finfo(float).eps)
    assert found == pytest.approx(known, rel=1e-13, abs=1e-14 * scale)
    assert used <= calls + 20


@given(place=PLACES)
def test_the_zero_of_a_step_is_where_it_falls(place: float) -> None:
    assert _zero(lambda level: 1e-12 if level < place else -1e6, 0.0, 1.0, 1e-15) == pytest.approx(place, rel=1e-14)


def test_the_cheap_end_is_the_zero_of_a_function_that_is_not_negative_there() -> None:
    assert _zero(lambda level: 2.0 - level, 0.0, 1.0, 1e-15) == 1.0


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 6)))
    numbers = st.one_of(st.just(0.0), st.floats(-1e3, 1e3))
    return np.array(draw(st.lists(numbers, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(shape)


@given(table=tables(), seed=st.integers(0, 9))
def test_a_sparse_matrix_computes_as_the_dense_one(table: np.ndarray, seed: int) -> None:
    rows, columns = np.nonzero(table)
    sparse, chance = SparseMatrix(rows, columns, table[rows, columns], table.shape), np.random.default_rng(seed)
    left, right = chance.normal(size=table.shape[0]), chance.normal(size=table.shape[1])
    assert sparse @ right == pytest.approx(table @ right)
    assert sparse.T @ left == pytest.approx(table.T @ left)
    assert np.array_equal(sparse.toarray(), table)
    assert np.array_equal(sparse.to_scipy().toarray(), table)
    assert np.array_equal(abs(sparse).toarray(), np.abs(table))
    some = chance.permutation(table.shape[1])[: chance.integers(1, table.shape[1] + 1)]
    assert np.array_equal(sparse.take_columns(some).toarray(), table[:, some])
