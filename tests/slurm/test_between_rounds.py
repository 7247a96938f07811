"""Within a round: newcomers start on idle GPUs in seconds, and what other jobs have on nodes is not planned."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, cluster, cluster_with, driver, events

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])


@both_shapes
def test_newcomers_start_within_seconds_and_nobody_is_stopped(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    begun = slurm.clock.now()
    arrived: dict[int, float] = {}

    def arrive(seconds: float) -> None:
        for number, at in ((2, 20.0), (3, 47.0), (4, 61.0)):
            if seconds >= begun + at and number not in slurm.jobs:
                slurm.submit(number, per_job="gpu:2", comment=BERT)
                arrived[number] = seconds

    slurm.clock.on_sleep, slurm.clock.stops_at = arrive, begun + 85
    with driver(slurm, tmp_path, round_seconds=90.0) as driven:
        driven.run()
    assert {number: slurm.jobs[number].start - at <= 10 for number, at in arrived.items()} == {2: True, 3: True, 4: True}
    assert [job.restarts for job in slurm.jobs.values()] == [0, 0, 0, 0]
    assert len(events(tmp_path, "round")) == 1
    assert [set(event["start"]) for event in events(tmp_path, "filled")] == [{"2"}, {"3"}, {"4"}]


def test_gpus_that_ended_jobs_leave_are_used_within_seconds(tmp_path: Path) -> None:
    slurm = cluster_with(4, 4)
    begun, ended = slurm.clock.now(), 0.0

    def end(seconds: float) -> None:
        nonlocal ended
        running = [job.number for job in slurm.jobs.values() if job.held]
        if not ended and seconds > begun + 30 and len(running) == 2:
            slurm.end(running[0])
            ended = seconds

    slurm.clock.on_sleep, slurm.clock.stops_at = end, begun + 85
    with driver(slurm, tmp_path, round_seconds=90.0) as driven:
        driven.run()
    (filled,) = events(tmp_path, "filled")
    (next_job,) = [int(job_id) for job_id in filled["start"]]
    assert 0 <= slurm.jobs[next_job].start - ended <= 10
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2


def counted(slurm: FakeSlurm, node: str, cpus: int, memory_mb: int) -> None:
    """Let Slurm count CPUs and memory in use on a node by jobs that it does not list."""
    old = {"alloc_cpus": cpus, "alloc_memory": memory_mb, "gres_used": "gpu:v100:0(IDX:N/A)"}
    new = {"cpus": {"minimum": 16, "total": 16, "allocated": cpus}, "memory": {"minimum": 64000, "allocated": memory_mb}}
    slurm.counted[node] = new if slurm.new else old


@both_shapes
@pytest.mark.parametrize(("cpus", "memory_mb"), [(16, 0), (14, 0), (0, 62_000)], ids=["no CPU", "2 CPUs", "2 GB"])
def test_jobs_run_beside_full_nodes_at_once(tmp_path: Path, new: bool, cpus: int, memory_mb: int) -> None:
    """Twelve jobs of one GPU with 4 CPUs and 8 GB, and the fast node has GPUs only."""
    slurm = cluster(new=new)
    slurm.nodes |= {"k80-1": ("k80", 4), "k80-2": ("k80", 4)}
    slurm.states |= {"k80-1": "IDLE", "k80-2": "IDLE"}
    counted(slurm, "v100-0", cpus, memory_mb)
    for number in range(1, 13):
        slurm.submit(
            number, per_job="gpu:1", comment=BERT, more={"cpus_per_tres": "gres:gpu:4", "memory_per_tres": "gres:gpu:8000"}
        )
    with driver(slurm, tmp_path) as driven:
        _, applied = driven.round()
    assert applied.waiting == {}
    assert sorted(node for job in slurm.jobs.values() for node in job.held) == [f"k80-{n}" for n in range(3) for _ in range(4)]


def test_gpus_that_slurm_counts_as_used_are_not_planned(tmp_path: Path) -> None:
    slurm = cluster_with(1, 2)
    slurm.counted["v100-0"] = {"gres_used": "gpu:v100:3(IDX:0-2)"}
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert slurm.jobs[1].held == {"k80-0": 2}


@both_shapes
def test_what_managed_jobs_have_is_not_counted_against_them(tmp_path: Path, new: bool) -> None:
    slurm = cluster_with(2, 2)
    slurm.new = new
    with driver(slurm, tmp_path) as driven:
        driven.round()
        for job in slurm.jobs.values():
            assert job.held == {"v100-0": 2}
            cores = {str(core): "allocated" for core in range(8)}
            job.more |= {"job_resources": {"allocated_nodes": [{"nodename": "v100-0", "sockets": {"0": {"cores": cores}}}]}}
            job.more |= {"cpus": {"set": True, "infinite": False, "number": 8} if new else 8}
        counted(slurm, "v100-0", 16, 0)
        slurm.clock.seconds += 100
        decided, _ = driven.round()
    assert decided.moves.keep == ("1", "2")
    assert decided.picture.state.scheduler.lost_gpus == ()


def test_delivered_time_is_that_of_slurm(tmp_path: Path) -> None:
    """Jobs take 20 s to stop, and some end within a round: log, report and picture agree with the times of the jobs."""
    slurm = cluster_with(5, 4)
    slurm.slow = dict.fromkeys(range(1, 6), 20.0)
    ran: dict[int, float] = {}

    with driver(slurm, tmp_path) as driven:
        for number in range(9):
            sent, told = len(slurm.sent), slurm.clock.now()
            before = {job.number: job.start for job in slurm.jobs.values() if job.held}
            driven.round()
            stops = [line.split()[-1] for line in slurm.sent[sent:] if line.startswith("requeue Incomplete")]
            for job_id in {int(job_id) for ids in stops for job_id in ids.split(",")}:
                ran[job_id] = ran.get(job_id, 0.0) + told - before[job_id]
            slurm.clock.seconds += 70.0
            if number == 3:
                ended = next(job for job in slurm.jobs.values() if job.held)
                ran[ended.number] = ran.get(ended.number, 0.0) + slurm.clock.now() - ended.start
                slurm.end(ended.number)
            slurm.clock.seconds += 30.0
        driven.look()
        driven.end()
    now = slurm.clock.now()
    for job in slurm.jobs.values():
        if job.held:
            ran[job.number] = ran.get(job.number, 0.0) + now - job.start
    expected = 4 * sum(ran.values())
    run = gp.slurm_run(tmp_path / "log.jsonl")
    assert run.over_time is not None
    (ended_entry,) = events(tmp_path, "ended")
    assert ended_entry["delivered_gpu_seconds"] == pytest.approx(expected, rel=0.02)
    assert run.metrics["delivered_gpu_seconds"] == pytest.approx(expected, rel=0.02)
    assert run.over_time.delivered_gpu_seconds.sum() == pytest.approx(expected, rel=0.02)
    moments = sorted({stay.start_seconds for stay in run.stays})
    in_use = [sum(s.gpus for s in run.stays if s.start_seconds <= at < s.end_seconds) for at in moments]
    assert max(in_use) <= 8, "no picture shows more GPUs than there are"
    assert ended_entry["owed_gpu_seconds"] >= ended_entry["promised_gpu_seconds"] - expected
