"""Jobs in Parquet files, and the error without pyarrow."""

from __future__ import annotations

import importlib.util

import pytest

from gavel_py import InputError, Job, JobSet, Submission, read_trace
from tests.support.fakes import refusal
from tests.workloads.support import file

has_pyarrow = importlib.util.find_spec("pyarrow") is not None
with_pyarrow = pytest.mark.skipif(not has_pyarrow, reason="pyarrow is not installed (the extra parquet)")


def written(name: str, **columns: list[object]) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), name)
    return name


@with_pyarrow
def test_rows_become_jobs() -> None:
    name = written(
        "jobs.parquet",
        job_id=["a", "b"],
        num_gpus=[2, 4],
        arrival_seconds=[5.0, None],
        allowed_accelerators=[["v100", "p100"], None],
        recorded_run_seconds=[60, None],
    )
    trace = read_trace(name)
    assert trace.report.format == "parquet"
    assert list(trace) == [
        Submission(Job("b", num_gpus=4)),
        Submission(Job("a", num_gpus=2, arrival_seconds=5, allowed_accelerators=["v100", "p100"]), run_seconds=60),
    ]


@with_pyarrow
def test_a_broken_row_is_an_error() -> None:
    said = refusal(read_trace, written("jobs.parquet", job_id=["a", "b"], num_gpus=[1, 0]))
    assert said.startswith("jobs.parquet, row 2 (job 'b'), field num_gpus: must be at least 0.001 of a GPU")


@with_pyarrow
def test_elastic_jobs_are_read_from_lists_and_text() -> None:
    jobs = JobSet([Job("a", gpu_counts=(1, 4)), Job("b", min_gpus=2, max_gpus=8), Job("c", num_gpus=2)])
    columns = {name: values.tolist() for name, values in jobs.to_columns().items()}
    columns = {name: [None if each != each or each == "" else each for each in values] for name, values in columns.items()}
    assert read_trace(written("text.parquet", **columns)).jobs == jobs
    columns["gpu_counts"] = [[1, 4], None, None]
    assert read_trace(written("lists.parquet", **columns)).jobs == jobs


@with_pyarrow
def test_columns_are_checked() -> None:
    said = refusal(read_trace, written("jobs.parquet", num_gpu=[1]))
    assert said.splitlines()[0].startswith("jobs.parquet: column 'num_gpu' is not known; did you mean 'num_gpus'")
    assert said.splitlines()[1] == "jobs.parquet: column 'job_id' is missing"


@with_pyarrow
def test_a_broken_file() -> None:
    assert refusal(read_trace, file("jobs.parquet", "PAR1 and no more")).startswith("jobs.parquet: cannot be read as Parquet: ")


@pytest.mark.skipif(has_pyarrow, reason="pyarrow is installed")
def test_without_pyarrow_the_error_names_the_package_to_install() -> None:
    with pytest.raises(InputError, match=r"Parquet files need pyarrow \(.*\); install it with: pip install 'gavel-py\[parquet\]'"):
        read_trace(file("jobs.parquet", "PAR1"))


@with_pyarrow
def test_nan_is_missing() -> None:
    name = written("jobs.parquet", job_id=["a"], deadline_seconds=[float("nan")], recorded_run_seconds=[float("nan")])
    assert list(read_trace(name, strict=True)) == [Submission(Job("a"))]
