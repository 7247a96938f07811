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
        Submission(Job("1", num_gpus=8, tenant="vcA", cpus_per_gpu=8), run_seconds=3600, wait_seconds=300, status="passed"),
        Submission(
            Job("3", tenant="vcB", cpus_per_gpu=4, arrival_seconds=60),
            run_seconds=60,
            wait_seconds=0,
            status="killed",
            cancelled_seconds=120,
        ),
    ]
    assert skipped(trace) == {"asks for no GPU": 1}
    assert places(trace) == [("cluster_log.csv, line 5", "state")]
