"""Batch tasks of Alibaba's cluster-trace-v2018, Slurm's dependencies, and generated workflows."""

from __future__ import annotations

import gavel_py as gp
from tests.workloads.support import places, read, skipped

ROWS = (
    "M1,12.0,j_3,1,Terminated,200,300,100.0,0.3\n"
    "R2_1,1.0,j_3,1,Failed,310,400,100.0,0.3\n"
    "J3_1_2_1,1.0,j_3,1,Terminated,400,450,100.0,0.3\n"
    "task_Tzk=,1.0,j_4,12,Terminated,90,95,50.0,0.1\n"
    "M1,1.0,j_5,1,Running,500,0,50.0,0.1\n"
    "M2_1,1.0,j_5,1,Terminated,600,700,50.0,0.1\n"
    "M3_1,1.0,j_5,1,Terminated,0,700,50.0,0.1\n"
    "M4_4,1.0,j_5,1,Terminated,600,700,50.0,0.1\n"
    "M5,1.0,2.0,1,Terminated,600,700,50.0,0.1\n"
)


def test_names_of_tasks_are_workflows() -> None:
    trace = read("batch_task.csv", ROWS)
    assert {each.job.job_id: each.job.depends_on for each in trace} == {
        "j_3/1": (),
        "j_3/2": ("j_3/1",),
        "j_3/3": ("j_3/1", "j_3/2"),
        "j_4/task_Tzk=": (),
        "j_5/2": (),
    }
    assert {each.job.job_id: each.job.arrival_seconds for each in trace}["j_3/3"] == 200
    assert [(each.job.workflow, each.run_seconds, each.status) for each in trace][1:3] == [
        ("j_3", 100, "passed"),
        ("j_3", 90, "failed"),
    ]
    assert dict(trace[0].labels) == {"task": "task_Tzk=", "task_type": "12"}
    assert skipped(trace) == {"had not ended (status Running)": 1, "began or ended outside the time of the trace": 1}
    assert [place for place, _ in places(trace)] == ["batch_task.csv, line 9", "batch_task.csv, line 8 (job 'j_5/4')"]
    assert "Jobs that wait for jobs which the trace lacks; those count as ended: 1." in trace.report.assumptions
    assert "Tasks use no GPUs in the trace; each is a job of one GPU: 5." in trace.report.assumptions


def test_the_job_may_come_before_the_number_of_instances() -> None:
    def other_order(line: str) -> str:
        name, number, job, *rest = line.split(",")
        return ",".join([name, job, number, *rest])

    swapped = "".join(map(other_order, ROWS.splitlines(keepends=True)))
    assert read("swapped.csv", swapped) == read("batch_task.csv", ROWS)


def test_the_column_dependency_of_slurm() -> None:
    header = "JobID|Submit|Start|End|State|AllocTRES|Dependency\n"
    times = "2024-01-01T00:00:00|2024-01-01T01:00:00|2024-01-01T02:00:00|COMPLETED|gres/gpu=1|"
    found = {
        "1": "",
        "2": "afterok:1(unfulfilled)",
        "3": "afterok:1:2(fulfilled),afterany:4",
        "4": "(null)",
        "5": "afterok:1?afterok:2",
        "6": "after:1+5,afternotok:2",
        "7": "singleton",
        "8": "afterok:99",
    }
    trace = read("sacct.txt", header + "".join(f"{job}|{times}{text}\n" for job, text in found.items()))
    assert {each.job.job_id: each.job.depends_on for each in trace} == {
        "1": (),
        "2": ("afterok:1",),
        "3": ("afterok:1", "afterok:2", "afterany:4"),
        "4": (),
        "5": (),
        "6": ("afternotok:2",),
        "7": (),
        "8": (),
    }
    left_out = "Dependencies other than afterok, afterany and afternotok of jobs that must all have ended are left out: 3."
    assert left_out in trace.report.assumptions


def test_generated_workflows() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(300, profile, jobs_per_hour=20, workflows=True, seed=3)
    assert trace == gp.generate_trace(300, profile, jobs_per_hour=20, workflows=True, seed=3)
    plain = gp.generate_trace(300, profile, jobs_per_hour=20, seed=3)
    assert [each.job.total_steps for each in trace] == [each.job.total_steps for each in plain]
    jobs = {job.job_id: job for job in trace.jobs}
    assert 15 <= len({job.workflow for job in jobs.values()}) <= 50
    assert sum(bool(job.depends_on) for job in jobs.values()) > 100
    for job in jobs.values():
        assert all(jobs[parent].workflow == job.workflow for parent in job.depends_on)
        assert len({each.arrival_seconds for each in jobs.values() if each.workflow == job.workflow}) == 1
    shorter = gp.generate_trace(100, profile, jobs_per_hour=20, workflows=True, seed=3)
    assert list(trace[:100]) == list(shorter)
