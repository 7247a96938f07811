"""SenseTime's Helios trace."""

from __future__ import annotations

from gavel_py import Job, Submission
from tests.workloads.support import places, read, skipped

HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def test_jobs() -> None:
    trace = read(
        "cluster_log.csv",
        HEADER
        + "1,u1,vcA,8,64,1,COMPLETED,2020-04-18 10:00:00,2020-04-18 10:05:00,2020-04-18 11:05:00,3600,300\n"
        + "2,u1,vcA,0,4,1,COMPLETED,2020-04-18 10:00:00,2020-04-18 10:05:00,2020-04-18 11:05:00,3600,300\n"
        + "3,u1,vcB,1,4,1,TIMEOUT,2020-04-18 10:01:00,2020-04-18 10:01:00,2020-04-18 10:02:00,60,0\n"
        + "4,u1,vcB,1,4,1,LOST,2020-04-18 10:01:00,2020-04-18 10:01:00,2020-04-18 10:02:00,60,0\n",
    )
    assert list(trace) == [
        Submission(
            Job("1", num_gpus=8, tenant="vcA", cpus_per_gpu=8),
            run_seconds=3600,
            wait_seconds=300,
            status="passed",
            labels=(("user", "u1"),),
        ),
        Submission(
            Job("3", tenant="vcB", cpus_per_gpu=4, arrival_seconds=60),
            run_seconds=60,
            wait_seconds=0,
            status="killed",
            cancelled_seconds=120,
            labels=(("user", "u1"),),
        ),
    ]
    assert skipped(trace) == {"asks for no GPU": 1}
    assert places(trace) == [("cluster_log.csv, line 5", "state")]


def line(job_id: str, state: str, start: str, end: str, duration: object) -> str:
    return f"{job_id},u1,vcA,1,4,1,{state},2020-04-18 10:00:00,{start},{end},{duration},0\n"


RAN = ("2020-04-18 10:05:00", "2020-04-18 11:05:00", 3600)


def test_a_job_that_never_started_is_skipped_and_counted() -> None:
    end = "2020-04-18 11:00:00"
    trace = read(
        "cluster_log.csv",
        HEADER
        + line("1", "NODE_FAIL", "", end, 0)
        + line("2", "CANCELLED", "None", end, 0)
        + line("3", "NODE_FAIL", "", "", "")
        + line("4", "SUSPENDED", *RAN)
        + line("5", "NODE_FAIL", *RAN),
    )
    assert [(submission.job.job_id, submission.run_seconds) for submission in trace] == [("5", 3600)]
    assert skipped(trace) == {"never started": 3, "had not ended (state SUSPENDED)": 1}
    assert trace.report.num_broken == 0


def test_inconsistent_records_are_reported() -> None:
    trace = read(
        "cluster_log.csv",
        HEADER
        + line("early", "COMPLETED", "2020-04-18 09:50:00", "2020-04-18 10:50:00", 3600)
        + line("long", "COMPLETED", *RAN[:2], 36000)
        + line("none", "COMPLETED", *RAN[:2], 0)
        + line("rounded", "COMPLETED", *RAN[:2], 3601)
        + line("back", "COMPLETED", "2020-04-18 10:05:00", "2020-04-18 10:04:00", 60)
        + line("fine", "COMPLETED", *RAN),
    )
    told = [(submission.job.job_id, submission.wait_seconds, submission.run_seconds) for submission in trace]
    assert told == [("early", 0, 3600), ("long", 300, 36000), ("none", 300, 0), ("rounded", 300, 3601), ("fine", 300, 3600)]
    assert trace.report.assumptions[:2] == (
        "Jobs with a start recorded before their submission are read as waiting 0 s: 1 (first: cluster_log.csv, line 2).",
        "Where duration differs from end_time - start_time, duration is used: 2.",
    )
    assert places(trace) == [("cluster_log.csv, line 6", "end_time")]
    assert not any(
        "contradict" in said or "Jobs whose" in said
        for said in read("fine.csv", HEADER + line("1", "COMPLETED", *RAN)).report.assumptions
    )
