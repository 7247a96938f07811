"""Microsoft's Philly trace, as published and as a table."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from gavel_py import InputError, Job, Submission, describe_trace, read_trace
from tests.support.shared_data import SHARED, needs_shared_data
from tests.workloads.support import file, places, read, skipped

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def attempt(start: str | None, end: str | None, *gpus: str, machine: str = "m1") -> dict[str, Any]:
    return {"start_time": start, "end_time": end, "detail": [{"ip": machine, "gpus": list(gpus)}]}


def job(name: str, status: str, *attempts: dict[str, Any], submitted: str | None = "2017-10-09 07:00:00") -> dict[str, Any]:
    return {"status": status, "vc": "vc1", "jobid": name, "attempts": list(attempts), "submitted_time": submitted, "user": "u"}


RETRIED = job(
    "retried",
    "Pass",
    attempt("2017-10-09 07:01:00", "2017-10-09 07:02:00", "gpu0", "gpu1", machine="m31"),
    attempt("2017-10-09 07:10:00", "2017-10-09 08:10:00", "gpu0", "gpu1", "gpu2", "gpu3"),
)


class TestPublished:
    def test_run_times_of_attempts_are_summed(self) -> None:
        file("cluster_machine_list", "machineId, number of GPUs, single GPU mem\nm31,8, 24GB\nm1,2, 12GB\n")
        (submission,) = read("cluster_job_log", json.dumps([RETRIED]))
        assert submission == Submission(
            Job("retried", num_gpus=2, tenant="vc1"),  # the gang is that of the first attempt
            run_seconds=60 + 3600,
            wait_seconds=60,
            status="passed",
            failed_attempts=1,
            accelerator="24GB",
            labels=(("user", "u"),),
        )

    def test_a_killed_job_was_cancelled_at_its_end_and_a_failed_one_failed_each_time(self) -> None:
        killed = job("k", "Killed", attempt("2017-10-09 07:30:00", "2017-10-09 07:40:00", "gpu0"))
        failed = job("f", "Failed", *[attempt("2017-10-09 07:30:00", "2017-10-09 07:31:00", "gpu0")] * 3)
        trace = read("cluster_job_log", json.dumps([killed, failed]))
        assert [(s.status, s.cancelled_seconds, s.failed_attempts) for s in trace] == [("killed", 2400, 0), ("failed", None, 3)]
        assert "there is no cluster_machine_list beside the log" in str(trace.report)

    def test_jobs_that_never_ran_are_skipped_and_faults_reported(self) -> None:
        trace = read(
            "log.json",
            json.dumps(
                [
                    job("never", "Killed"),
                    job("no GPU", "Pass", attempt("2017-10-09 07:30:00", "2017-10-09 07:40:00")),
                    job("open", "Pass", attempt("2017-10-09 07:30:00", None, "gpu0")),
                    job("none", "Pass", attempt("None", "", "gpu0")),
                    job("when", "Pass", attempt("2017-10-09 07:30:00", "2017-10-09 07:40:00", "gpu0"), submitted="None"),
                    job("how", "Lost", attempt("2017-10-09 07:30:00", "2017-10-09 07:40:00", "gpu0")),
                    job("back", "Pass", attempt("2017-10-09 07:30:00", "2017-10-09 07:20:00", "gpu0")),
                    "text",
                    RETRIED,
                    RETRIED,
                ]
            ),
        )
        assert [submission.job.job_id for submission in trace] == ["retried"]
        assert skipped(trace) == {
            "never got a GPU, so its gang size is unknown": 2,
            "has no attempt with a start and an end": 2,
        }
        assert places(trace) == [
            ("log.json, entry 5", "submitted_time"),
            ("log.json, entry 6", "status"),
            ("log.json, entry 7", "end_time"),
            ("log.json, entry 8", ""),
            ("log.json, entry 10 (job 'retried')", "job_id"),
        ]
        assert "Attempts without a start or an end are ignored: 2." in trace.report.assumptions

    def test_a_start_before_the_submission_is_reported(self) -> None:
        early = job("early", "Pass", attempt("2017-10-09 06:50:00", "2017-10-09 07:10:00", "gpu0"))
        trace = read("cluster_job_log", json.dumps([early, RETRIED]))
        assert [(s.wait_seconds, s.run_seconds) for s in trace] == [(0, 1200), (60, 3660)]
        assert (
            "Jobs with a start recorded before their submission are read as waiting 0 s: 1 (first: cluster_job_log, entry 1)."
            in trace.report.assumptions
        )

    def test_machines_that_contradict_the_log_do_not_give_the_type(self) -> None:
        file("cluster_machine_list", "machineId, number of GPUs, single GPU mem\nm1,2, 12GB\nm2,8, 24GB\nm3,8, 24GB\n")

        def ran(name: str, *machines: tuple[str, int]) -> dict[str, Any]:
            detail = [{"ip": machine, "gpus": [f"gpu{n}" for n in range(count)]} for machine, count in machines]
            return job(name, "Pass", {"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:02:00", "detail": detail})

        jobs = [
            ran("more", ("m1", 8)),
            ran("mixed", ("m1", 2), ("m2", 2)),
            ran("same", ("m2", 8), ("m3", 8)),
            ran("unlisted", ("m2", 8), ("m9", 8)),
        ]
        trace = read("cluster_job_log", json.dumps(jobs))
        found = {s.job.job_id: (s.job.num_gpus, s.accelerator) for s in trace}
        assert found == {"more": (8, ""), "mixed": (4, "12GB+24GB"), "same": (16, "24GB"), "unlisted": (16, "")}
        said = [each.rpartition(": 1 (first: ")[2] for each in trace.report.assumptions]
        assert said[:3] == [f"cluster_job_log, entry {number})." for number in (1, 2, 4)]

    @pytest.mark.parametrize("value", [["Pass"], {"a": 1}, 5, True, "x" * 3, [1]])
    @pytest.mark.parametrize(
        "field", ["status", "vc", "jobid", "user", "submitted_time", "attempts", "detail", "gpus", "ip", "end_time"]
    )
    def test_values_of_any_type_affect_no_other_job(self, field: str, value: object) -> None:
        wrong = job("wrong", "Pass", attempt("2017-10-09 07:01:00", "2017-10-09 07:02:00", "gpu0"))
        first = wrong["attempts"][0]
        next(each for each in (wrong, first, first["detail"][0]) if field in each)[field] = value
        trace = read("log.json", json.dumps([wrong, RETRIED]))
        assert "retried" in [submission.job.job_id for submission in trace]
        assert trace.report.num_records == 2
        if isinstance(value, list | dict | bool):
            allowed = {"ip": [], "gpus": [["Pass"]]}  # names of GPUs are any texts
            assert [each for _, each in places(trace)] == ([] if value in allowed.get(field, []) else [field])

    def test_a_folder_can_be_read(self) -> None:
        file("trace-data/cluster_job_log", json.dumps([RETRIED]))
        assert len(read_trace("trace-data")) == 1


class TestTable:
    def test_times_become_seconds_since_the_first_arrival(self) -> None:
        trace = read("p.csv", HEADER + "2017-10-10 00:00:30,66.0,1,66.0,a\n2017-10-09 23:59:30,5.0,16,80.0,b\n")
        assert list(trace) == [
            Submission(Job("2", num_gpus=16, tenant="b"), run_seconds=5),
            Submission(Job("1", num_gpus=1, tenant="a", arrival_seconds=60), run_seconds=66),
        ]
        assert any("first arrival, 2017-10-09 23:59:30" in said for said in trace.report.assumptions)

    def test_byte_order_marks_and_crlf_line_ends_are_accepted(self) -> None:
        trace = read("p.csv", "\ufeff" + HEADER.replace("\n", "\r\n") + "2017-10-10 00:00:30,66.0,1,66.0,a\r\n\r\n")
        assert list(trace) == [Submission(Job("1", tenant="a"), run_seconds=66)]

    def test_duplicate_lines_are_kept_and_counted(self) -> None:
        line = "2017-10-10 00:00:30,66.0,1,66.0,a\n"
        trace = read("p.csv", HEADER + line * 3)
        assert len(trace) == 3
        assert "Duplicate lines count as separate jobs: 2." in trace.report.assumptions

    def test_broken_lines(self) -> None:
        lines = [
            "soon,66,1,66,a",
            "2017-10-10 00:00:30,-6,1,66,a",
            "2017-10-10 00:00:30,66,1.5,66,a",
            "2017-10-10 00:00:30,66,1,66",
        ]
        trace = read("p.csv", HEADER + "\n".join(lines) + "\n2017-10-10 00:00:30,66,0,66,a\n2017-10-10 00:00:30,66,1,66,a\n\n")
        assert places(trace) == [
            ("p.csv, line 2", "timestamp"),
            ("p.csv, line 3", "duration"),
            ("p.csv, line 4", "num_gpus"),
            ("p.csv, line 5", ""),
        ]
        assert skipped(trace) == {"asks for no GPU": 1}
        assert len(trace) == 1
        with pytest.raises(InputError, match=r"p\.csv, line 2, field timestamp: must be a time such as 2017-10-09 07:01:55"):
            read_trace("p.csv", strict=True)


@pytest.mark.deep
@needs_shared_data
def test_the_real_table() -> None:
    trace = read_trace(SHARED / "philly" / "philly_jobs.csv", strict=True)
    assert len(trace) == 82_247
    assert "Duplicate lines count as separate jobs: 65." in trace.report.assumptions
    assert Counter(s.job.num_gpus for s in trace) == {
        1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3
    }  # fmt: skip
    summary = describe_trace(trace)
    assert len(summary.tenants) == 15
    assert 108 < (summary.last_arrival or 0) / 86400 < 109
    assert sum(period.num_jobs for period in summary.periods) == 82_247
