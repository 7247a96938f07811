"""--jobs-out and --timeline-out as Parquet."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, runner

has_pyarrow = importlib.util.find_spec("pyarrow") is not None
with_pyarrow = pytest.mark.skipif(not has_pyarrow, reason="pyarrow is not installed (the extra parquet)")


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(30, profile, jobs_per_hour=30, durations=gp.LogUniform(((1, 600, 7200),)), seed=1)
    (tmp_path / "mixed.csv").write_text(gp.trace_text(trace))
    return runner(capsys, "simulate", "mixed.csv", "-c", "v100:8/4,k80:8/8", "-p", "fifo", "-p", "isolated", "--until", "3h")


def as_text(column: str, value: Any) -> str:
    """A value in the form of CSV, where sizes of whole gangs are integers; in Parquet all sizes are floats."""
    return "" if value is None else str(int(value) if column == "num_gpus" else value)


@pytest.mark.deep
@with_pyarrow
@pytest.mark.parametrize("rows_at_once", [1, 7, 20_000])
def test_parquet_holds_the_same_values_as_csv(gavel: Gavel, monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    from pyarrow import parquet

    monkeypatch.setattr("gavel_py.cli.simulate.files.ROWS_AT_ONCE", rows_at_once)
    for suffix in ("csv", "parquet"):
        assert gavel("--jobs-out", f"jobs.{suffix}", "--timeline-out", f"rounds.{suffix}").code == 0
    for name in ("jobs", "rounds"):
        table = parquet.read_table(f"{name}.parquet")
        with open(f"{name}.csv", newline="") as file:
            expected = list(csv.DictReader(file))
        found: list[dict[str, Any]] = table.to_pylist()
        assert [{column: as_text(column, value) for column, value in row.items()} for row in found] == expected
    kinds = {field.name: str(field.type) for field in parquet.read_schema("jobs.parquet")}
    assert (kinds["job_id"], kinds["num_gpus"], kinds["jct_seconds"], kinds["outcome"]) == ("string", "double", "double", "string")


@with_pyarrow
def test_a_measured_window_has_a_column(gavel: Gavel) -> None:
    from pyarrow import parquet

    assert gavel("--measure-jobs", "2:5", "--jobs-out", "jobs.parquet").code == 0
    table = parquet.read_table("jobs.parquet")
    assert (str(table.schema.field("measured").type), sum(table.column("measured").to_pylist())) == ("bool", 2 * 3)


@with_pyarrow
def test_a_file_that_cannot_be_written_is_refused(gavel: Gavel) -> None:
    outcome = gavel("--jobs-out", "absent/jobs.parquet")
    assert outcome.code == 2
    assert "absent/jobs.parquet: cannot be written: " in outcome.err


@pytest.mark.skipif(has_pyarrow, reason="pyarrow is installed")
def test_without_pyarrow_the_error_names_the_extra(gavel: Gavel) -> None:
    outcome = gavel("--jobs-out", "jobs.parquet")
    assert outcome.code == 2
    assert "Parquet files need pyarrow" in outcome.err
    assert "pip install 'gavel-py[parquet]'" in outcome.err
