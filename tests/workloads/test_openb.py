"""Pods of Alibaba's openb trace."""

from __future__ import annotations

from collections import Counter

import pytest

from gavel_py import Job, Submission, ThroughputProfile, assign_job_types, describe_trace, read_trace
from tests.support.shared_data import SHARED, needs_shared_data
from tests.workloads.support import places, read, skipped

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"


def test_pods_become_jobs() -> None:
    trace = read(
        "pods.csv",
        HEADER
        + "p0,12000,1000,2,1000,V100M16|T4|V100M16,LS,Succeeded,100,400,150\n"
        + "p1,6000,1000,1,460,,LS,Failed,120,400,120\n"
        + "p2,6000,1000,0,0,,BE,Running,120,400,120\n"
        + "p3,6000,1000,1,1000,,BE,Pending,120,400,\n"
        + "p4,6000,1000,1,1000,,BE,Running,120,400,500\n"
        + "p5,6000,1000,2,500,,BE,Running,130,400,130\n",
    )
    first, second, third = trace
    job = first.job
    assert (job.job_id, job.num_gpus, job.arrival_seconds, job.cpus_per_gpu) == ("p0", 2, 100, 6)
    assert job.memory_gb_per_gpu == pytest.approx(500 * 2**20 / 1e9)
    assert job.allowed_accelerators == ("V100M16", "T4")
    assert (first.run_seconds, first.wait_seconds, first.status) == (250, 50, "passed")
    assert (second.job.num_gpus, second.status, second.failed_attempts) == (0.46, "failed", 1)
    assert second.job.cpus_per_gpu * 0.46 == pytest.approx(6)
    assert third.job.num_gpus == 2
    assert skipped(trace) == {"asks for no GPU": 1, "was never scheduled, so its duration is unknown": 1}
    assert places(trace) == [("pods.csv, line 6", "deletion_time")]
    assert "Pods that requested fractions of several GPUs (gpu_milli below 1000) get whole GPUs: 1." in trace.report.assumptions


def test_running_pods_are_reported() -> None:
    trace = read(
        "pods.csv",
        HEADER
        + "p0,0,0,1,1000,,LS,Running,100,400,150\n"
        + "p1,0,0,1,1000,,LS,Running,120,900,120\n"
        + "p2,0,0,1,1000,,LS,Succeeded,120,900,120\n"
        + "p3,0,0,0,0,,LS,Running,120,900,120\n"
        + "p4,0,0,1,1000,,LS,Running,120,,120\n",
    )
    assert [submission.run_seconds for submission in trace] == [250, 780, 780]
    assert skipped(trace) == {"asks for no GPU": 1, "had not ended (no deletion_time)": 1}
    assert trace.report.assumptions == (
        "Pods still in phase Running are treated as ended at their deletion_time: 2.",
        "Pods still Running at the last deletion_time of the trace may have run longer than recorded in the trace: 1.",
    )
    ended = read("ended.csv", HEADER + "p0,0,0,1,1000,,LS,Succeeded,100,400,150\n")
    assert ended.report.assumptions == ()


def test_accelerators_can_be_renamed_to_those_of_a_profile() -> None:
    trace = read("pods.csv", HEADER + "p0,0,0,1,1000,V100M16|V100M32|P100,LS,Succeeded,100,400,150\n")
    renamed = trace.map_accelerators({"V100M16": "v100", "V100M32": "v100", "P100": "p100"})
    assert renamed[0] == Submission(
        Job("p0", arrival_seconds=100, allowed_accelerators=["v100", "p100"]),
        run_seconds=250,
        wait_seconds=50,
        status="passed",
        labels=(("qos", "LS"),),
    )


def test_accelerators_unknown_to_the_profile_are_reported() -> None:
    profile = ThroughputProfile.builtin("gavel-osdi20")
    trace = read("pods.csv", HEADER + "p0,0,0,1,1000,T4|P100,LS,Succeeded,100,400,150\np1,0,0,1,1000,,LS,Succeeded,100,400,150\n")
    typed, _ = assign_job_types(trace, profile)
    assert "Jobs name accelerators that the profile does not have: T4 (1 job)." in str(typed.report)
    free, _ = assign_job_types(trace.on_any_accelerator(), profile)
    assert [submission.job.allowed_accelerators for submission in free] == [None, None]
    assert "Jobs that requested certain GPU types may run on all types: 1." in free.report.assumptions


def test_fractions_of_gpus_can_be_rounded_up() -> None:
    trace = read("pods.csv", HEADER + "p0,6000,1000,1,500,,LS,Succeeded,100,400,150\np1,8000,0,2,1000,,LS,Succeeded,100,400,150\n")
    assert [s.job.num_gpus for s in trace] == [0.5, 2]
    whole = trace.on_whole_gpus()
    assert [(s.job.num_gpus, s.job.cpus_per_gpu) for s in whole] == [(1, 6), (2, 4)]
    assert whole[0].job.memory_gb_per_gpu == pytest.approx(1000 * 2**20 / 1e9)
    assert whole.report.assumptions[-1] == "Jobs that requested a fraction of a GPU get a whole one: 1."
    assert whole.on_whole_gpus() is whole


@needs_shared_data
def test_the_real_pods() -> None:
    trace = read_trace(SHARED / "openb" / "openb_pod_list_gpuspec33.csv", strict=True)
    assert trace.report.num_records == 8152
    assert skipped(trace) == {"asks for no GPU": 1088, "was never scheduled, so its duration is unknown": 861}
    assert len(trace) == 6203
    assert Counter(s.status for s in trace)["passed"] == 185
    gangs = {gang.num_gpus: gang.num_jobs for gang in describe_trace(trace).gangs}
    assert sum(gangs.values()) == 6203
    assert sum(number for gpus, number in gangs.items() if gpus < 1) == 2573
    assert trace.report.assumptions == (
        "Pods still in phase Running are treated as ended at their deletion_time: 4,149.",
        "Pods still Running at the last deletion_time of the trace may have run longer than recorded in the trace: 32.",
    )
