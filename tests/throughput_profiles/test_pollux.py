"""Progress per second of jobs that adapt their batch size, from tables with known answers, and the workloads that go with them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from tests.support.benchmarks import imported
from tests.support.shared_data import SHARED

DATA = Path(os.environ.get("POLLUX_DATA", SHARED / "pollux"))

BATCHES, EPOCHS = (100, 200, 400), 3

SIA = Path(os.environ.get("SIA_DATA", SHARED / "sia"))

PUBLISHED = {1: 2089.0, 2: 3323.0, 3: 2188.0, 4: 2721.0}
"""Mean completion times (s) of Pollux (OSDI 2021, artefact) on its workloads."""


def step_seconds(local: float, gpus: int) -> float:
    """A made-up machine: 1 ms per example and GPU, and a tenth of a second to synchronise."""
    return 0.001 * local + (0.1 if gpus > 1 else 0.0)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables" / "toy"
    folder.mkdir(parents=True)
    rows = [(digits, local) for digits in (1, 2) for local in (25, 50, 100, 200, 400)]
    lines = [f"{d},{b},{step_seconds(b, d)},{0.1 if d > 1 else 0.0}" for d, b in rows]
    (folder / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *lines]) + "\n")
    scaled = [(nodes, 2 * nodes, b) for nodes in (1, 2, 4) for b in (25, 50, 100, 200)]
    lines = [f"{n},{g},{b},{step_seconds(b, g)},0.1" for n, g, b in scaled]
    (folder / "scalability.csv").write_text("\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *lines]) + "\n")
    for batch in BATCHES:
        lines = [f"{100.0 * (epoch + 1)},0,0,{1.0},{noise}" for epoch, noise in enumerate((0.0, 1.0, 1e9))]
        (folder / f"validation-{batch}.csv").write_text("\n".join(["progress,iteration,metric,grad_sqr,grad_var", *lines]) + "\n")
    return tmp_path / "tables"


def worth(batch: float, noise: float) -> float:
    return (noise + 1) / (noise / (batch / BATCHES[0]) + 1)


def test_progress_per_second_is_that_of_the_best_batch_of_each_epoch(tables: Path) -> None:
    """Without noise a larger batch is worth no more; with much noise it is worth its size."""
    profile = gp.ThroughputProfile.from_file(tables, "toy")
    assert profile.accelerators == ("t4",)
    for gpus in (1, 2):
        found = {b: profile.throughput(f"toy (batch size {b})", gpus, "t4") for b in BATCHES}
        for batch in BATCHES:
            passes = 2 if gpus == 1 and batch > BATCHES[0] else 1  # a single GPU needs two passes to see the noise
            local = batch / gpus / passes
            sync = 0.1 if gpus > 1 else 0.0
            seconds = step_seconds(local, gpus) + (passes - 1) * (step_seconds(local, gpus) - sync)
            expected = EPOCHS * 100 / sum(100 * seconds / worth(batch, noise) for noise in (0.0, 1.0, 1e9))
            assert found[batch] == pytest.approx(expected)
        assert profile.throughput("toy", gpus, "t4") >= max(found.values()) * (1 - 1e-9)
    assert profile.throughput("toy", 2, "t4") < 2 * profile.throughput("toy", 1, "t4")
    assert profile.has("toy", 4, "t4")
    assert not profile.has("toy", 3, "t4")  # whole nodes of two only


def test_folders_without_the_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match=r"must be a folder that has a folder with placements\.csv"):
        gp.ThroughputProfile.from_file(tmp_path, format="pollux")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,x,0.1,0\n")
    with pytest.raises(gp.InputError, match=r"has no validation-BATCH\.csv"):
        gp.ThroughputProfile.from_file(tmp_path, format="pollux")
    (tmp_path / "toy" / "validation-8.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n1,0,0,1,1\n")
    with pytest.raises(gp.InputError, match=r"placements\.csv, line 2, field local_bsz: must be a number, found 'x'"):
        gp.ThroughputProfile.from_file(tmp_path, format="pollux")


def test_workloads_are_read_with_elastic_jobs_or_as_requested(tmp_path: Path) -> None:
    path = tmp_path / "workload.csv"
    path.write_text("name,time,application,num_replicas,batch_size\na-0,5,cifar10,6,2048\nb-1,9,bert,8,384\n")
    elastic, fixed = gp.read_trace(path), gp.read_trace(path, format="pollux-fixed")
    assert [(job.job_type, job.arrival_seconds) for job in elastic.jobs] == [("cifar10", 5), ("bert", 9)]
    assert all(job.gpu_range == (1, 64) for job in elastic.jobs)
    assert [(job.job_type, job.num_gpus) for job in fixed.jobs] == [("cifar10 (batch size 2048)", 6), ("bert (batch size 384)", 8)]
    assert [job.total_steps for job in elastic.jobs] == [job.total_steps for job in fixed.jobs]
    path.write_text("name,time,application,num_replicas,batch_size\na-0,5,cifar11,6,2048\n")
    with pytest.raises(gp.InputError, match="'cifar11' is not known; did you mean 'cifar10'"):
        gp.read_trace(path, strict=True)


@pytest.mark.deep
@pytest.mark.skipif(not (DATA / "traces").is_dir(), reason="POLLUX_DATA names no folder with traces and workloads of Pollux")
def test_the_published_completion_times_are_met() -> None:
    profile, found = gp.ThroughputProfile.from_file(DATA / "traces", "pollux"), {}
    for number, published in PUBLISHED.items():
        trace = gp.read_trace(DATA / "workloads" / f"workload-{number}.csv")
        cluster = gp.Cluster.from_inline("t4:64/4")
        run = gp.simulate(trace, cluster, profile, mechanism="direct", round_seconds=60, restart_seconds=30)
        found[number] = float(np.mean([record.jct_seconds for record in run.jobs.values()]))
        assert 0.8 * published <= found[number] <= 1.1 * published
    assert max(found[1], found[3]) < found[4] < found[2]


@pytest.mark.deep
@pytest.mark.skipif(not (DATA / "traces").is_dir() or not (SIA / "traces").is_dir(), reason="SIA_DATA or POLLUX_DATA names no data")
def test_elastic_jobs_of_sia_end_about_when_published_and_half_as_late_as_fixed_gangs() -> None:
    with imported("elastic_traces") as benchmark:
        profile = benchmark.profile_of([SIA / "traces", DATA / "traces"])
        found = []
        for _, setting in (each for each in benchmark.SETTINGS if not each[1][-1]):  # those without starts between rounds
            runs = [benchmark.played(SIA / "workloads" / f"workload-{n}.csv", profile, *setting) for n in benchmark.WORKLOADS]
            found.append(np.mean(runs, axis=0))
    hours, restarts, gpu_hours = found[0]
    assert hours <= 0.58
    assert restarts <= 2.5
    assert gpu_hours == pytest.approx(4.0, abs=0.4)
    elastic, kept, fixed, fair, fair_fixed, _ = (float(each[0]) for each in found)
    assert fixed > 2.1 * elastic
    assert fair_fixed > 1.9 * fair
    assert elastic < kept < fixed
