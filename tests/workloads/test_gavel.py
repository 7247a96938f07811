"""Traces of Gavel in all three versions of the format."""

from __future__ import annotations

import pytest

from gavel_py import InputError, Job, JobSet, Submission, read_trace
from tests.support.shared_data import SHARED, needs_shared_data
from tests.workloads.support import file, places, read

TEN = "ResNet-50 (batch size 64)\tpython3 main.py\timagenet\t-n\t1\t2931\t2\t5\t-1.000000\t60.5\n"
SEVEN = "LM (batch size 5)\tpython3 main.py\t--steps\t0\t100\t7\t4\n"
TWELVE = "LM (batch size 5)\tpython3 main.py\tlm\t--steps\t0\t100\t4\tstatic\t1\t1.5\t3600\t7\n"


def test_ten_fields() -> None:
    trace = read("a.trace", TEN)
    job = Job("0", job_type="ResNet-50 (batch size 64)", total_steps=2931, num_gpus=2, weight=5, arrival_seconds=60.5)
    assert list(trace) == [Submission(job)]
    assert trace.report.format == "gavel"


def test_seven_fields_have_no_weight_and_no_deadline() -> None:
    (submission,) = read("old.txt", SEVEN)
    assert submission == Submission(Job("0", job_type="LM (batch size 5)", total_steps=100, num_gpus=4, arrival_seconds=7))


def test_twelve_fields_include_the_duration() -> None:
    (submission,) = read("shockwave.trace", TWELVE)
    assert (submission.run_seconds, submission.job.deadline_factor, submission.job.arrival_seconds) == (3600, 1.5, 7)


def test_an_adaptive_batch_size_is_an_assumption() -> None:
    trace = read("a.trace", TWELVE.replace("static", "gns") + TWELVE.replace("static", "accordion") + TWELVE)
    assert len(trace) == 3
    assert any(said.startswith("Jobs that adapt their batch size") and said.endswith(": 2.") for said in trace.report.assumptions)


def test_jobs_are_sorted_by_arrival_and_numbered_by_line() -> None:
    trace = read("a.trace", TEN + "\n" + SEVEN)
    assert [submission.job.job_id for submission in trace] == ["1", "0"]


def test_broken_lines_are_skipped_and_reported() -> None:
    wrong = TEN.replace("2931", "many").replace("60.5", "nan")
    trace = read("a.trace", TEN + "one\ttwo\tthree\n" + wrong + SEVEN)
    assert [s.job.job_id for s in trace] == ["3", "0"]
    assert places(trace) == [
        ("a.trace, line 2", ""),
        ("a.trace, line 3 (job '2')", "total_steps"),
        ("a.trace, line 3 (job '2')", "arrival_seconds"),
    ]
    assert (trace.report.num_records, trace.report.num_jobs, trace.report.num_broken) == (4, 2, 2)
    assert "Ignored 2 with errors:" in str(trace.report)


def test_strict_turns_broken_lines_into_errors() -> None:
    name = file("a.trace", TEN + "one\ttwo\tthree\n")
    with pytest.raises(InputError, match=r"a\.trace, line 2: has 3 tab-separated fields; Gavel's traces have 7, 10 or 12"):
        read_trace(name, "gavel", strict=True)


@needs_shared_data
@pytest.mark.parametrize(("name", "jobs"), [("small_test", 20), ("artifact_evaluation", 15), ("medium_test", 20)])
def test_published_traces_equal_the_job_set_of_the_file(name: str, jobs: int) -> None:
    path = SHARED / "gavel" / f"{name}.trace"
    trace = read_trace(path, strict=True)
    assert len(trace) == jobs
    assert trace.jobs == JobSet(sorted(JobSet.from_gavel_trace(path), key=lambda job: job.arrival_seconds))
