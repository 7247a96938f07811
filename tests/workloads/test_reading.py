"""Recognition of formats, and errors for files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import InputError, Job, Submission, Trace, read_trace, trace_formats, trace_text
from tests.support.examples import CHARACTERS
from tests.support.fakes import refusal
from tests.workloads.support import file


def test_a_file_of_no_known_format() -> None:
    said = refusal(read_trace, file("a.txt", "hello\n"))
    assert said.startswith("a.txt: has no known format; if it has one of these, use gavel trace import --format: csv, json,")


@pytest.mark.parametrize(
    ("header", "name", "lacking"),
    [
        ("id,num_gpus,total_steps", "csv", "job_id"),
        ("jobid,user,submit_time,num_gpu,state", "helios", "job_id, vc, gpu_num, duration"),
        ("job_id,num_gpu,num_inst,submit,seconds", "pai-csv", "submit_time, duration"),
    ],
)
def test_the_nearest_format_is_named_with_what_the_file_lacks(header: str, name: str, lacking: str) -> None:
    said = refusal(read_trace, file("a.csv", f"{header}\n"))
    assert said.endswith(f"; the nearest is {name}, but the file lacks the columns {lacking}")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_with_other_separators(separator: str) -> None:
    header = separator.join(["job_id", "job_type", "total_steps"])
    said = f"a.csv: found one column, {header!r}; cells must be separated by commas"
    assert refusal(read_trace, file("a.csv", f"{header}\n{separator.join(['a', 'A3C', '1'])}\n")) == said


def test_a_format_that_does_not_exist() -> None:
    assert refusal(read_trace, file("a.txt", "hello\n"), "filly") == (
        "trace formats, field format: 'filly' is not a trace format; did you mean 'philly'?"
    )


@pytest.mark.parametrize("name", [*trace_formats(), None])
def test_a_file_that_is_not_there(name: str | None) -> None:
    assert refusal(read_trace, "absent", name).startswith("absent")


@pytest.mark.parametrize("name", ["csv", "philly-csv", "pai-csv", "openb", "helios", "sacct"])
def test_an_empty_file(name: str) -> None:
    assert refusal(read_trace, file("empty", ""), name).startswith("empty: ")


def test_a_file_without_a_valid_entry() -> None:
    said = refusal(read_trace, file("a.trace", "x\ty\n" * 3), "gavel")
    assert said.startswith("a.trace: contains no job that can be read as 'gavel'\na.trace, line 1: has 2 tab-separated fields")


@given(name=st.sampled_from(sorted(trace_formats())), content=st.text(CHARACTERS, max_size=60) | st.binary(max_size=60))
def test_random_bytes_are_refused_or_reported(name: str, content: str | bytes) -> None:
    Path("rubbish").write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    try:
        trace = read_trace("rubbish", name)
    except InputError:
        return
    assert len(trace) == trace.report.num_jobs


def test_only_the_formats_of_gavel_py_are_written() -> None:
    assert refusal(trace_text, Trace([]), "gavel").startswith("trace, field format: 'gavel' cannot be written")


def test_a_trace_holds_submissions() -> None:
    assert refusal(Trace, [Job("a")]).startswith("trace: must hold Submission objects, found Job(job_id='a'")


def test_duplicate_job_ids_are_refused() -> None:
    said = refusal(Trace, [Submission(Job("a")), Submission(Job("a", num_gpus=2))])
    assert said == "job 'a', field job_id: appears twice; job ids must be unique"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_seconds", -1.0),
        ("wait_seconds", float("nan")),
        ("estimate_seconds", float("inf")),
        ("cancelled_seconds", float("nan")),
        ("status", "done"),
        ("failed_attempts", -1),
    ],
)
def test_recorded_fields_are_validated(field: str, value: object) -> None:
    assert refusal(Submission, Job("a"), **{field: value}).startswith(f"job 'a', field recorded_{field}: must be")
