"""The formats of gavel_py: reading restores what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import InputError, Job, JobSet, Submission, Trace, read_trace, trace_text
from tests.support.fakes import refusal
from tests.workloads.support import file, read

finite = st.floats(allow_nan=False, allow_infinity=False)
length = st.floats(0, 1e12)
# Formats are recognised by some of these words as keys, not as values.
keys = st.sampled_from(["jobs", "job_id", "jobid", "attempts", "PAR1", "cluster_job_log", "num_gpus"])
name = keys | st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1, max_size=8)
accelerator = name.filter(lambda text: "|" not in text)


@st.composite
def submissions(draw: st.DrawFn, number: int) -> Submission:
    fields: dict[str, Any] = {
        "job_type": draw(st.just("") | name),
        **draw(st.sampled_from([{"num_gpus": 1}, {"num_gpus": 128}, {"gpu_counts": (2, 4)}, {"min_gpus": 2, "max_gpus": 8}])),
        "weight": draw(st.sampled_from([1.0, 5.0, 0.1])),
        "priority": draw(st.just(0.0) | finite),
        "total_steps": draw(st.none() | st.floats(1e-9, 1e12)),
        "arrival_seconds": draw(st.floats(-1e6, 1e10)),
        "deadline_seconds": draw(st.none() | finite),
        "tenant": draw(st.just("") | name),
        "allowed_accelerators": draw(st.none() | st.lists(accelerator, min_size=1, max_size=3)),
    }
    return Submission(
        Job(f"{draw(name)}-{number}", **fields),
        run_seconds=draw(st.none() | length),
        wait_seconds=draw(st.none() | length),
        status=draw(st.sampled_from(["", "passed", "killed", "failed"])),
        failed_attempts=draw(st.integers(0, 9)),
        cancelled_seconds=draw(st.none() | st.floats(-1e6, 1e9)),
        estimate_seconds=draw(st.none() | length),
        accelerator=draw(st.just("") | accelerator),
        labels=tuple(draw(st.dictionaries(st.sampled_from(["user", "qos", "job name"]), name)).items()),
    )


traces = st.integers(1, 4).flatmap(lambda n: st.tuples(*(submissions(number) for number in range(n)))).map(Trace)


@pytest.mark.parametrize("format_name", ["csv", "json", "jsonl"])
@given(trace=traces)
def test_reading_restores_what_was_written(format_name: str, trace: Trace) -> None:
    path = Path(f"again.{format_name}")
    path.write_text(trace_text(trace, format_name), encoding="utf-8")
    again = read_trace(path, strict=True)
    assert again.report.format == format_name
    assert again == trace
    assert JobSet.from_file(path) == trace.jobs


def test_a_job_set_ignores_recorded_fields() -> None:
    text = "job_id,num_gpus,recorded_run_seconds,recorded_status\na,2,60,passed\n"
    assert JobSet.from_file(file("jobs.csv", text)) == JobSet([Job("a", num_gpus=2)])
    assert list(read_trace("jobs.csv")) == [Submission(Job("a", num_gpus=2), run_seconds=60, status="passed")]


def test_labels_are_columns_of_their_own() -> None:
    text = "job_id,job_type,num_gpus,arrival_seconds,recorded_label_group,recorded_label_user\na,,1,0,,ann\nb,,1,0,g1,\n"
    trace = read("jobs.csv", text)
    assert [submission.labels for submission in trace] == [(("user", "ann"),), (("group", "g1"),)]
    assert trace_text(trace) == text
    assert len(JobSet.from_file("jobs.csv")) == 2
    assert "column 'recorded_label_' is not known" in refusal(read_trace, file("none.csv", "job_id,recorded_label_\na,b\n"), "csv")


def test_columns_with_default_values_only_are_omitted() -> None:
    text = trace_text(Trace([Submission(Job("a", weight=2), run_seconds=0.5), Submission(Job("b", total_steps=1e20))]))
    assert text == (
        "job_id,job_type,num_gpus,weight,total_steps,arrival_seconds,recorded_run_seconds\na,,1,2,,0,0.5\nb,,1,1,1e+20,0,\n"
    )


def test_an_unknown_column_is_an_error() -> None:
    name = file("jobs.csv", "job_id,recorded_run_secs\na,60\n")
    assert refusal(read_trace, name, "csv") == (
        "jobs.csv, line 1: column 'recorded_run_secs' is not known; did you mean 'recorded_run_seconds' or 'recorded_wait_seconds' "
        "or 'recorded_cancelled_seconds'?"
    )


def faults_of(name: str, content: str) -> list[tuple[str, str]]:
    """Return the place and field of each fault of a file of jobs, which are an error for `JobSet.from_file`, too."""
    with pytest.raises(InputError):
        JobSet.from_file(file(name, content))
    with pytest.raises(InputError) as error:
        read_trace(name)
    return [(fault.where, fault.field) for fault in error.value.faults]


def test_broken_lines_are_errors() -> None:
    assert faults_of(
        "jobs.csv",
        "job_id,num_gpus,recorded_status,recorded_failed_attempts,recorded_cancelled_seconds\n"
        'a,0,,,\nb,1,lost,,\nc,1,,-1,\nd,1,,,soon\ne,1\n"f,1,,,\ng,1,killed,,-5\ng,1,,,\n',
    ) == [
        ("jobs.csv, line 2 (job 'a')", "num_gpus"),
        ("jobs.csv, line 3 (job 'b')", "recorded_status"),
        ("jobs.csv, line 4", "recorded_failed_attempts"),
        ("jobs.csv, line 5", "recorded_cancelled_seconds"),
        ("jobs.csv, line 6", ""),
        ("jobs.csv, line 7", ""),
        ("jobs.csv, line 9 (job 'g')", "job_id"),
    ]


def test_broken_lines_of_json_lines() -> None:
    lines = [
        '{"job_id": "a"}',
        '{"job_id": ',
        "[1]",
        '{"job_id": "b", "num_gpu": 1}',
        '{"job_id": "c", "weight": null}',
        '{"job_id": "d", "job_id": "e"}',
    ]
    assert [where for where, _ in faults_of("jobs.jsonl", "\n".join(lines) + "\n")] == [
        "jobs.jsonl, line 2",
        "jobs.jsonl, line 3",
        "jobs.jsonl, line 4 (job 'b')",
        "jobs.jsonl, line 6",
    ]


@pytest.mark.parametrize("content", ["{}", '{"jobs": 3, "job_id": 1}', '"job_id"'])
def test_json_must_hold_a_list(content: str) -> None:
    with pytest.raises(InputError, match='must be a list of jobs, or an object with the list under "jobs"'):
        read_trace(file("jobs.json", content), "json")


def test_an_object_may_hold_the_list() -> None:
    assert len(read("jobs.json", json.dumps({"jobs": [{"job_id": "a"}, {"job_id": "b"}]}))) == 2


def test_columns_that_are_to_be_ignored() -> None:
    text = "job_id,num_gpus,owner,queue\na,1,anna,fast\n"
    with pytest.raises(InputError, match="has no known format"):
        read("jobs.csv", text)
    assert [each.job for each in read_trace("jobs.csv", ignore=["owner", "queue"])] == [Job("a")]
    with pytest.raises(InputError, match="column 'queue' is not known"):
        read_trace("jobs.csv", "csv", ignore=["owner"])
    with pytest.raises(InputError, match="'num_gpus' is a field of a job, not an unknown column"):
        read_trace("jobs.csv", ignore=["num_gpus"])
    lines = file("jobs.jsonl", '{"job_id": "a", "owner": "anna"}\n{"job_id": "b", "queue": 1}\n')
    assert "line 2 (job 'b'), field queue: is not known" in refusal(read_trace, lines, ignore=["owner"])


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        (Submission(Job("a"), labels=(("user", "x\ny"),)), "job 'a', field recorded_label_user: contains a line break, which CSV"),
        (Submission(Job("a"), labels=(("user", "x\ry"),)), "job 'a', field recorded_label_user: contains a line break, which CSV"),
        (Submission(Job("a"), accelerator="v\n100"), "job 'a', field recorded_accelerator: contains a line break, which CSV"),
        (Submission(Job("a", depends_on=("x|y",))), "job 'a', field depends_on: contains \"|\", which separates"),
        (
            Submission(Job("a", allowed_accelerators=("x|y",))),
            "job 'a', field allowed_accelerators: contains \"|\", which separates",
        ),
    ],
)
def test_csv_refuses_what_it_cannot_hold_and_json_lines_keep_it(submission: Submission, said: str) -> None:
    trace = Trace([Submission(Job("x|y")), submission])
    assert said in (refused := refusal(trace_text, trace, "csv"))
    assert refused.endswith("write JSON Lines instead (.jsonl)")
    assert read("jobs.jsonl", trace_text(trace, "jsonl")) == trace


def test_json_lines_may_contain_line_separators_of_unicode() -> None:
    line = '{"recorded_label_user": "x\u2028y\u0085z", "job_id": "a"}'
    assert [each.labels for each in read("jobs.jsonl", f"{line}\r\n")] == [(("user", "x\u2028y\u0085z"),)]


def test_words_for_missing_values_are_missing_where_a_number_is_expected() -> None:
    rows = "a,NaN,None,null,Unknown,n/a\nb,5,60,1,,Unknown\n"
    trace = read(
        "jobs.csv", f"job_id,deadline_seconds,recorded_run_seconds,recorded_failed_attempts,weight,recorded_label_x\n{rows}"
    )
    assert list(trace) == [
        Submission(Job("a"), labels=(("x", "n/a"),)),
        Submission(Job("b", deadline_seconds=5), run_seconds=60, failed_attempts=1, labels=(("x", "Unknown"),)),
    ]
    named = read("names.csv", "job_id,tenant,recorded_run_seconds\nnone,null,\n")
    assert list(named) == [Submission(Job("none", tenant="null"))]


def test_unknown_columns_beside_known_ones_are_named() -> None:
    name = file("jobs.csv", "job_id,job_type,gpus\na,A3C,1\n")
    assert refusal(read_trace, name).startswith("jobs.csv, line 1: column 'gpus' is not known; did you mean 'num_gpus'")


@pytest.mark.parametrize("content", ["[]", "[\n]\n", '{"jobs": []}'])
def test_a_json_file_without_jobs_is_an_empty_trace(content: str) -> None:
    assert len(read("jobs.json", content)) == 0
