"""Alibaba's PAI trace: its tables, and the table of its simulator."""

from __future__ import annotations

import pytest

from gavel_py import InputError, Job, Submission, read_trace
from tests.workloads.support import file, places, read, skipped

JOBS = """j1,i1,alice,Terminated,100.0,900.0
j2,i2,bob,Failed,200.0,400.0
j3,i3,bob,Terminated,0,400.0
j4,i4,bob,Running,300.0,
j5,i5,bob,Terminated,300.0,350.0
j6,i6,bob,Terminated,310.0,350.0
"""
TASKS = """j1,worker,4,Terminated,150.0,900.0,600.0,29.0,50.0,V100
j1,ps,2,Terminated,150.0,900.0,600.0,29.0,,
j2,worker,3,Failed,210.0,400.0,100.0,8.0,25.0,MISC
j3,worker,1,Terminated,210.0,400.0,100.0,8.0,100.0,T4
j4,worker,1,Running,310.0,,100.0,8.0,100.0,T4
j5,worker,1,Terminated,310.0,350.0,100.0,8.0,,CPU
j6,worker,1,Terminated,0,0,100.0,8.0,100.0,T4
j7,worker,one,Terminated,0,0,100.0,8.0,100.0,T4
"""
INSTANCES = """j1,worker,a,w1,i,Failed,160.0,170.0,m1
j1,worker,a,w1,i,Failed,180.0,190.0,m1
j1,worker,a,w1,i,Terminated,300.0,850.0,m1
j1,worker,b,w2,i,Terminated,290.0,860.0,m2
"""
TAGS = "i1,alice,V100,g1,\ni2,bob,,g2,bert\n"


def folder() -> str:
    file("pai/pai_job_table.csv", JOBS)
    file("pai/pai_task_table.csv", TASKS)
    return "pai"


def test_jobs_and_tasks_suffice() -> None:
    trace = read_trace(folder())
    first, second = trace
    assert first == Submission(
        Job("j1", num_gpus=2, tenant="alice", arrival_seconds=100, cpus_per_gpu=12, memory_gb_per_gpu=58),
        run_seconds=750,
        wait_seconds=50,
        status="passed",
        accelerator="V100",
    )
    # 3 x 25 % of a GPU
    assert (second.job.num_gpus, second.status, second.failed_attempts, second.run_seconds) == (0.75, "failed", 1, 190)
    assert second.job.cpus_per_gpu * 0.75 == pytest.approx(3)
    assert skipped(trace) == {
        "has no start_time, so its submission time is unknown": 1,
        "had not ended (status Running)": 1,
        "asks for no GPU": 1,
        "has no task with a start and an end, so its duration is unknown": 1,
    }
    assert places(trace) == [("pai/pai_task_table.csv, line 8", "inst_num")]
    said = "Jobs of several instances that request less than one GPU together get that fraction of a single GPU: 1."
    assert said in trace.report.assumptions


def test_a_start_before_the_submission_is_reported() -> None:
    file("pai/pai_job_table.csv", JOBS)
    file("pai/pai_task_table.csv", TASKS.replace("j2,worker,3,Failed,210.0", "j2,worker,3,Failed,190.0"))
    trace = read_trace("pai")
    assert [(s.job.job_id, s.wait_seconds, s.run_seconds) for s in trace] == [("j1", 50, 750), ("j2", 0, 210)]
    said = "Jobs with a start recorded before their submission are read as waiting 0 s: 1 (first: pai/pai_job_table.csv, line 2)."
    assert said in trace.report.assumptions


def test_more_than_one_gpu_is_rounded_up() -> None:
    file("pai/pai_job_table.csv", JOBS)
    file("pai/pai_task_table.csv", TASKS.replace("j2,worker,3,", "j2,worker,5,").replace("100.0,8.0,25.0", "100.0,10.0,30.0"))
    trace = read_trace("pai")
    assert (trace[1].job.num_gpus, trace[1].job.cpus_per_gpu) == (2, 2.5)  # 5 x 30 %
    assert any(said.startswith("Jobs with more than one GPU but not a whole number") for said in trace.report.assumptions)


def test_instances_determine_run_time_and_restarts() -> None:
    file("pai/pai_instance_table.csv", INSTANCES)
    file("pai/pai_group_tag_table.csv", TAGS)
    first, second = read_trace(folder())
    assert (first.run_seconds, first.wait_seconds, first.failed_attempts) == (860 - 290, 190, 2)
    assert (first.job.allowed_accelerators, second.job.allowed_accelerators) == (("V100",), None)
    assert (first.labels, second.labels) == ((("group", "g1"),), (("group", "g2"), ("workload", "bert")))


def test_the_gpu_type_of_the_machine_takes_precedence_over_that_of_the_task() -> None:
    file("pai/pai_instance_table.csv", INSTANCES)
    file("pai/pai_machine_spec.csv", "machine,gpu_type,cap_cpu,cap_mem,cap_gpu\nm1,V100M32,96,512,8\nm2,V100M32,96,512,8\n")
    first, second = read_trace(folder())
    assert (first.accelerator, second.accelerator) == ("V100M32", "MISC")


SENSORS = """j1,worker,w1,i,m1,/dev/nvidia0,140,16,1.5,2.5,4,{0},0,0,0,0
j1,worker,w1,i,m1,/dev/nvidia0,140,16,1.5,2.5,4,9.5,0,0,0,0
j2,worker,w3,i,m1,/dev/nvidia0,140,16,1.5,2.5,1,1.5,0,0,0,0
"""


def test_gpu_memory_is_the_recorded_peak_if_each_instance_has_a_gpu() -> None:
    file("pai/pai_sensor_table.csv", SENSORS.format(12.25))
    folder()
    one_each = TASKS.replace("j1,worker,4", "j1,worker,2").replace("50.0,V100", "100.0,V100")
    one_part = TASKS.replace("j2,worker,3", "j2,worker,1")
    sizes = []
    for tasks in (TASKS, one_each, one_part):
        file("pai/pai_task_table.csv", tasks)
        sizes.append([submission.job.gpu_memory_gb for submission in read_trace("pai")])
    assert sizes == [[None, None], [12.25, None], [None, 1.5]]


def test_a_broken_line_of_sensors_is_reported() -> None:
    file("pai/pai_sensor_table.csv", SENSORS.format("much"))
    assert ("pai/pai_sensor_table.csv, line 1", "max_gpu_wrk_mem") in places(read_trace(folder()))


def test_a_header_line_is_skipped() -> None:
    folder()
    file("pai/pai_job_table.csv", "job_name,inst_id,user,status,start_time,end_time\n" + JOBS)
    assert len(read_trace("pai/pai_job_table.csv")) == 2


def test_the_table_of_tasks_is_required() -> None:
    file("pai/pai_job_table.csv", JOBS)
    with pytest.raises(InputError, match=r"pai_task_table\.csv: is missing; the tables of jobs and tasks are required"):
        read_trace("pai", "pai")


SIMULATOR = "job_id,user,num_gpu,num_cpu,submit_time,num_inst,duration,gpu_type,wait_time,user_dur,group_dur\n"


def test_the_table_of_the_simulator_has_gpus_per_instance() -> None:
    trace = read(
        "s.csv",
        SIMULATOR
        + "7,alice,0.4,3,100,4,60,T4,12.5,100,80\n8,bob,0,3,100,1,60,CPU,0,,\n"
        + "9,bob,0.3,3,90,1,60,CPU,,50,\n10,eve,0.1,3,200,3,60,T4,0,,\n",
    )
    bob, alice, eve = trace
    assert alice == Submission(
        Job("7", num_gpus=2, tenant="alice", arrival_seconds=100, cpus_per_gpu=6),
        run_seconds=60,
        wait_seconds=12.5,
        estimate_seconds=80,
        accelerator="T4",
    )
    assert (bob.job.num_gpus, bob.wait_seconds, bob.estimate_seconds, bob.accelerator) == (0.3, None, 50, "")
    assert (eve.job.num_gpus, bob.job.cpus_per_gpu) == (0.3, 10)
    assert skipped(trace) == {"asks for no GPU": 1}
    assert trace.report.assumptions == (
        "Jobs with more than one GPU but not a whole number (num_inst x num_gpu) get the next larger number: 1.",
        "Jobs of several instances that request less than one GPU together get that fraction of a single GPU: 1.",
    )
