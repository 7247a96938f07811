"""Simulations of jobs with fractions of GPUs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.profiles import OSDI

PARTS = {0.2: 0.3, 0.5: 0.3, 0.7: 0.1, 1: 0.2, 2: 0.1}
OPENB = Path(__file__).parents[2].parent / "shared" / "data" / "openb" / "openb_pod_list_gpuspec33.csv"


def used_at_most_once(begun: gp.Round) -> None:
    used = defaultdict(float)
    for held in begun.assignments.values():
        for gpu in held.gpus:
            used[gpu] += held.gpu_share / len(held.gpus)
    assert all(part <= 1 + 1e-9 for part in used.values())


@pytest.mark.deep
@given(
    st.integers(0, 10**6), st.sampled_from(["max_min_fairness", "fifo"]), st.sampled_from([0.0, 0.1]), st.booleans(), st.booleans()
)
@settings(max_examples=examples(10, costly=True), suppress_health_check=[HealthCheck.too_slow])
def test_time_of_gpus_is_conserved(seed: int, policy: str, interference: float, by_events: bool, between: bool) -> None:
    cluster = gp.Cluster([gp.Node(name=f"{t}-0", accelerator=t, num_gpus=2) for t in ("v100", "p100", "k80")])
    durations = gp.LogUniform(((1, 600, 3600),))
    trace = gp.generate_trace(12, OSDI, jobs_per_hour=20, gang_mix=PARTS, durations=durations, seed=seed)
    result = gp.simulate(
        trace,
        cluster,
        OSDI,
        policy,
        restart_seconds=15.0,
        interference=interference,
        round_seconds=None if by_events and policy == "fifo" else 360.0,
        starts_between_rounds=between and not (by_events and policy == "fifo"),
        node_failures=gp.NodeFailures(21600.0, 1800.0),
        seed=seed,
        on_round=used_at_most_once,
    )
    usage, jobs = result.summary.usage, result.jobs.values()
    for kind in usage.values():
        assert kind["used"] + kind["idle"] + kind["down"] == pytest.approx(kind["gpu_seconds"])
        assert -1e-6 <= kind["used"] <= kind["gpu_seconds"] + 1e-6
    assert sum(job.gpu_seconds for job in jobs) == pytest.approx(sum(kind["used"] for kind in usage.values()))
    assert all(job.steps_done == job.total_steps for job in jobs)
    assert len(jobs) == 12


@pytest.mark.deep
@pytest.mark.skipif(not OPENB.exists(), reason="needs the openb trace beside the project")
def test_pods_of_openb_are_replayed_on_a_part_of_its_cluster() -> None:
    """The first pods of the trace, closer together, on 96 GPUs: no GPU or node is ever oversubscribed."""
    trace = gp.read_trace(OPENB)[:150]
    jobs = [each.job for each in trace]
    assert {job.num_gpus < 1 for job in jobs} == {True, False}
    kinds = {"V100M16": "v100", "V100M32": "v100", "P100": "p100", "T4": "k80"}
    nodes = [
        gp.Node(name=f"{t}-{n}", accelerator=t, num_gpus=8, cpus=96, memory_gb=400)
        for t in ("v100", "p100", "k80")
        for n in range(4)
    ]
    names = [name for name in OSDI.job_types if all(OSDI.has(name, 1, t) for t in ("v100", "p100", "k80"))]
    played = [
        job.model_copy(
            update={
                "job_type": names[n % len(names)],
                "total_steps": 3600.0 * OSDI.throughput(names[n % len(names)], 1, "v100"),
                "arrival_seconds": 60.0 * n,
                "allowed_accelerators": tuple(sorted({kinds.get(each, "k80") for each in job.allowed_accelerators or ()})) or None,
            }
        )
        for n, job in enumerate(jobs)
        if job.num_gpus <= 1
    ]
    by_id = {job.job_id: job for job in played}

    def check(begun: gp.Round) -> None:
        used_at_most_once(begun)
        cpus, memory = defaultdict(float), defaultdict(float)
        for job_id, held in begun.assignments.items():
            job = by_id[job_id]
            cpus[held.gpus[0][0]] += job.cpus_per_gpu * job.num_gpus
            memory[held.gpus[0][0]] += job.memory_gb_per_gpu * job.num_gpus
        assert all(each <= 96 + 1e-6 for each in cpus.values())
        assert all(each <= 400 + 1e-6 for each in memory.values())

    result = gp.simulate(played, gp.Cluster(nodes), OSDI, on_round=check)
    assert result.summary.outcomes["finished"] == len(played)
    assert sum(kind["used"] for kind in result.summary.usage.values()) == pytest.approx(
        sum(job.gpu_seconds for job in result.jobs.values())
    )


def test_saved_sums_of_held_fractions_do_not_depend_on_the_order_of_starts(tmp_path: Path) -> None:
    sizes, steps = (0.1, 0.1, 0.3, 0.6), (809, 864, 526, 714)
    jobs = [
        gp.Job(str(i), num_gpus=size, total_steps=total, arrival_seconds=37 * i)
        for i, (size, total) in enumerate(zip(sizes, steps, strict=True))
    ]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 4, job_ids=[job.job_id for job in jobs], accelerators=["v100"])
    used = []
    for saves in (False, True):
        simulation = gp.Simulation(jobs, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo", round_seconds=100.0)
        while simulation.step():
            if saves:
                simulation.save(tmp_path / "saved.json")
                simulation = gp.Simulation.load(tmp_path / "saved.json", jobs, speeds)
        used.append(simulation.result().summary.usage["v100"]["used"])
    assert used[0] == used[1]
