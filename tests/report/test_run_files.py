"""Files of runs: round trips, and errors for invalid files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gavel_py as gp
from gavel_py.report.runs.files import CellStore, GridPlace, StoredCell, packed
from gavel_py.report.runs.run import document_of, quantiles, run_from
from tests.support.examples import CHARACTERS

finite = st.floats(-1e12, 1e12)
names = st.text(CHARACTERS, max_size=8)
numbers = st.one_of(st.none(), finite, st.integers(0, 1000))
samples = hnp.arrays(float, st.integers(0, 8), elements=finite)


@st.composite
def courses(draw: st.DrawFn) -> gp.OverTime:
    stretches = draw(st.integers(0, 5))

    def curves(low: float, nan: bool) -> dict[str, np.ndarray]:
        curve = hnp.arrays(float, stretches, elements=st.one_of(finite, st.just(np.nan)) if nan else st.floats(low, 1))
        return draw(st.dictionaries(names, curve, max_size=3))

    rest = [draw(hnp.arrays(float, stretches, elements=finite)) for _ in range(3)]
    return gp.OverTime(draw(hnp.arrays(float, stretches + 1, elements=finite)), curves(0, False), curves(0, True), *rest)


@st.composite
def runs(draw: st.DrawFn) -> gp.Run:
    stay = st.builds(gp.Stay, names, names, names, names, st.integers(1, 8), finite, finite)
    return gp.Run(
        labels=draw(st.dictionaries(names, st.one_of(names, numbers), max_size=4)),
        metrics=draw(st.dictionaries(names, numbers, max_size=4)),
        jct_seconds=np.sort(draw(samples)),
        fairness=np.sort(draw(samples)),
        over_time=draw(st.none() | courses()),
        stays=tuple(draw(st.lists(stay, max_size=3))),
        shares=draw(st.dictionaries(names, st.dictionaries(names, st.floats(0, 1), max_size=3), max_size=3)),
    )


def same(one: gp.Run, other: gp.Run) -> bool:
    return document_of(one) == document_of(other)


@given(runs())
def test_a_run_comes_back_as_it_was(run: gp.Run) -> None:
    again = run_from(json.loads(json.dumps(document_of(run), allow_nan=False)))
    assert same(run, again)
    assert (again.jct_seconds == run.jct_seconds).all()
    if run.over_time is not None and again.over_time is not None:
        for name, curve in run.over_time.prices.items():
            np.testing.assert_array_equal(curve, again.over_time.prices[name])


@given(hnp.arrays(float, st.integers(0, 50), elements=finite), st.integers(2, 20))
def test_quantiles_keep_the_least_and_the_most(values: np.ndarray, most: int) -> None:
    kept = quantiles(values, most)
    assert len(kept) == min(len(values), most)
    assert (np.diff(kept) >= 0).all()
    if len(values):
        assert (kept[0], kept[-1]) == (values.min(), values.max())


def example(policy: str) -> gp.Run:
    curve = np.array([0.5, 1.0])
    course = gp.OverTime(np.array([0.0, 1.0, 2.0]), {"v100": curve}, {"v100": curve * np.nan}, curve, curve, curve)
    return gp.Run({"policy": policy, "seed": 0}, {"makespan_seconds": 2.0, "cost": None}, np.array([1.0, 2.0]), over_time=course)


def stored(path: Path) -> None:
    """Write a sweep of three cells: one finished under two labels, one failed, one not yet run."""
    with CellStore(path) as store:
        labels = [{"policy": name, "seed": 0} for name in ("fifo", "first", "bad", "later")]
        grid = [GridPlace(key, each) for key, each in zip(["a", "a", "b", "c"], labels, strict=True)]
        store.begin({"policies": ["fifo"]}, {"gavel-py": gp.__version__}, "2026-01-01T00:00:00", grid)
        run = example("fifo")
        store.add([StoredCell("a", "{}", "done", metrics=run.metrics, run=packed(run)), StoredCell("b", "{}", "failed", "no")])


def test_the_finished_cells_of_a_sweep_are_runs_in_the_order_of_its_grid(tmp_path: Path) -> None:
    stored(tmp_path / "sweep.sqlite")
    found = gp.read_runs(tmp_path / "sweep.sqlite")
    assert [run.labels["policy"] for run in found] == ["fifo", "first"]
    assert same(found[0], example("fifo"))


def test_runs_are_written_and_read(tmp_path: Path) -> None:
    gp.write_runs(tmp_path / "runs.json", [example("fifo"), example("isolated")])
    assert [run.labels["policy"] for run in gp.read_runs(tmp_path / "runs.json")] == ["fifo", "isolated"]


def changed(path: Path, statement: str) -> None:
    stored(path)
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA application_id = 5", "is an SQLite database, but not that of a sweep"),
        ("PRAGMA user_version = 7", "was written by another version of gavel-py (schema 7, this one knows 1)"),
        ("UPDATE cells SET run = x'00' WHERE run IS NOT NULL", "is damaged: error"),
        ("UPDATE grid SET labels = '[1]'", "is damaged: "),
    ],
)
def test_invalid_stores_are_errors(tmp_path: Path, statement: str, message: str) -> None:
    changed(tmp_path / "sweep.sqlite", statement)
    with pytest.raises(gp.InputError) as caught:
        gp.read_runs(tmp_path / "sweep.sqlite")
    assert str(caught.value).startswith(f"{tmp_path / 'sweep.sqlite'}: {message}")


@pytest.mark.parametrize(
    "statement",
    ["UPDATE grid SET labels = '[1]'", "UPDATE grid SET labels = 'no JSON'", """UPDATE grid SET labels = '{"policy": []}'"""],
)
def test_failures_with_damaged_labels_are_an_error(tmp_path: Path, statement: str) -> None:
    changed(tmp_path / "sweep.sqlite", statement)
    with pytest.raises(gp.InputError, match="is damaged: "):
        gp.read_failures(tmp_path / "sweep.sqlite")


def test_a_truncated_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "sweep.sqlite"
    stored(path)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(gp.InputError, match="is damaged"):
        gp.read_runs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("[]", "holds no runs"),
        ('{"format": "gavel-py runs", "version": 2}', "has version 2, and this gavel-py reads version 1"),
        ('{"format": "gavel-py runs", "version": 1}', "is damaged or was changed by hand: KeyError 'runs'"),
        (
            '{"format": "gavel-py runs", "version": 1, "runs": [{"labels": {}, "metrics": {"a": "b"}, "over_time": null}]}',
            "'a' is 'b'",
        ),
    ],
)
def test_a_file_without_runs_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "runs.json").write_text(text)
    with pytest.raises(gp.InputError) as caught:
        gp.read_runs(tmp_path / "runs.json")
    assert message in str(caught.value)


def test_series_of_different_lengths_are_an_error(tmp_path: Path) -> None:
    document = document_of(example("fifo"))
    document["over_time"]["active_jobs"].append(1.0)
    (tmp_path / "runs.json").write_text(json.dumps({"format": "gavel-py runs", "version": 1, "runs": [document]}))
    with pytest.raises(gp.InputError, match="curves over time must have 2 intervals each"):
        gp.read_runs(tmp_path / "runs.json")


@pytest.mark.parametrize(("place", "value"), [(0, 7), (4, "four"), (4, True), (5, None), (6, float("inf"))])
def test_an_invalid_stay_is_an_error(tmp_path: Path, place: int, value: object) -> None:
    document = document_of(example("fifo")) | {"stays": [["a", "A3C", "node", "v100", 4, 0.0, 10]]}
    assert run_from(document).stays == (gp.Stay("a", "A3C", "node", "v100", 4, 0.0, 10),)
    document["stays"][0][place] = value
    (tmp_path / "runs.json").write_text(json.dumps({"format": "gavel-py runs", "version": 1, "runs": [document]}))
    with pytest.raises(gp.InputError, match=r"is damaged or was changed by hand: TypeError '.*' of a stay is"):
        gp.read_runs(tmp_path / "runs.json")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="cannot be read: No such file"):
        gp.read_runs(tmp_path / "absent")
