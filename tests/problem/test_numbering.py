"""Numbering equal rows: the same as comparing every pair, in an order that does not depend on where the rows stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gavel_py.io.names import NumberedNames
from gavel_py.problem import row_hashing
from gavel_py.problem.row_hashing import number_equal, refined

Column = NDArray[Any]


@st.composite
def tables(draw: st.DrawFn) -> list[Column]:
    """Columns of whole numbers, floats and truth values in which entries often repeat."""
    count = draw(st.integers(1, 30))
    kinds = {
        "small": (st.integers(-3, 3), np.int64),
        "large": (st.sampled_from([-(2**40), 0, 5, 2**61]), np.int64),
        "floats": (st.sampled_from([0.0, -0.0, 0.1, 0.1 + 1e-17, 0.1 + 1e-16, 1e300, np.nan]), np.float64),
        "truths": (st.booleans(), np.bool_),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4))
    return [np.array(draw(st.lists(kinds[k][0], min_size=count, max_size=count)), dtype=kinds[k][1]) for k in chosen]


def row(columns: list[Column], i: int) -> tuple[Any, ...]:
    return tuple("nan" if np.isnan(column[i]) else column[i].item() for column in columns)


@given(columns=tables())
def test_equal_rows_and_only_these_share_a_number(columns: list[Column]) -> None:
    count = len(columns[0])
    found = number_equal(columns, count)
    rows = [row(columns, i) for i in range(count)]
    for i in range(count):
        for j in range(count):
            assert (found.index[i] == found.index[j]) == (rows[i] == rows[j])
    assert [rows[i] for i in found.first[found.index]] == rows
    assert np.array_equal(np.bincount(found.index), found.counts)


@given(columns=tables(), data=st.data())
def test_permuting_rows_permutes_the_numbers(columns: list[Column], data: st.DataObject) -> None:
    count = len(columns[0])
    order = np.array(data.draw(st.permutations(range(count))))
    found, other = number_equal(columns, count), number_equal([column[order] for column in columns], count)
    assert np.array_equal(other.index, found.index[order])
    assert np.array_equal(other.keys, found.keys)


@given(columns=tables())
def test_refining_is_numbering_by_all_columns_with_parts_next_to_each_other(columns: list[Column]) -> None:
    count = len(columns[0])
    coarse = number_equal(columns[:1], count)
    fine, whole = refined(coarse, columns[1:]), number_equal(columns, count)
    assert len(fine.first) == len(whole.first)
    assert all(len(set(whole.index[fine.index == i])) == 1 for i in range(len(fine.first)))
    assert np.all(np.diff(coarse.index[fine.first]) >= 0)


def test_rows_with_colliding_hashes_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    real = row_hashing.content_keys
    blind = row_hashing.MIXERS[0]

    def colliding(columns: list[Column], count: int, mixer: int = blind) -> NDArray[np.uint64]:
        return np.zeros(count, dtype=np.uint64) if mixer == blind else real(columns, count, mixer)

    monkeypatch.setattr(row_hashing, "content_keys", colliding)
    found = number_equal([np.array([0.5, 0.25, 0.5])], 3)
    assert found.index[0] == found.index[2] != found.index[1]


@pytest.mark.parametrize("rare", [0, 1, 400])
def test_many_rows_of_few_classes_are_numbered_as_if_sorted(rare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked up among a sample, which may lack rare rows, or have too many classes."""
    chance, count = np.random.default_rng(rare), 90_001
    columns: list[Column] = [chance.choice([0.1, 0.2, -0.0, np.nan], count), chance.choice([1.5, 2.5, 1e300], count)]
    columns[1][1 : rare + 1] = chance.uniform(5, 6, rare)
    looked_up = number_equal(columns, count)
    monkeypatch.setattr(row_hashing, "MANY", count)
    by_order = number_equal(columns, count)
    assert len(looked_up.first) == 12 + rare
    for name in ("index", "first", "counts", "keys"):
        assert np.array_equal(getattr(looked_up, name), getattr(by_order, name))


def test_a_default_is_one_number_in_memory_and_splits_nothing() -> None:
    found = number_equal([np.broadcast_to(np.float64(1.0), 5), np.array([1, 1, 2, 2, 2])], 5)
    assert sorted(found.counts.tolist()) == [2, 3]


def test_numbered_names_are_a_sequence_of_text() -> None:
    names = NumberedNames("job-", 1000)
    assert (names[0], names[-1], names[2:4]) == ("job-0", "job-999", ("job-2", "job-3"))
    assert list(names)[5] == "job-5"
    assert names == tuple(f"job-{i}" for i in range(1000))
    assert names == NumberedNames("job-", 1000)
    assert names != NumberedNames("", 1000)
    with pytest.raises(IndexError):
        names[1000]
