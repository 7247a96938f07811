"""Round after round, jobs run where it was decided: the driver's log against Slurm's own, and against what the jobs tell."""

from __future__ import annotations

import pytest

from tests.integration.slurm.allocations import allocations
from tests.integration.slurm.cluster import LoopbackCluster
from tests.integration.slurm.driving import driving, log_of
from tests.integration.slurm.logbook import Decision, decisions
from tests.integration.slurm.presence import needs_slurm
from tests.integration.slurm.scenes import gang
from tests.integration.slurm.submitting import stays

pytestmark = needs_slurm

ROUNDS = 10


@pytest.mark.skip(reason="not stable beside other tests: jobs start late, and the next round differs from the plan")
def test_60_jobs_run_for_10_rounds_where_it_was_decided(cluster: LoopbackCluster) -> None:
    jobs = [job for number in range(15) for job in mixed(cluster, number)]
    assert len(jobs) == 60
    with driving(cluster, "--round", "4") as driver:
        driver.rounds(ROUNDS)
        assert driver.end() == 0, driver.said()
    played = decisions(log_of(cluster))
    assert [went_wrong(decision) for decision in played] == [{}] * len(played)
    for job in jobs:
        decided = [decision.start[job] for decision in played if job in decision.start]
        assert allocations(cluster, job) == [set(target) for target in decided], f"job {job}"
        assert is_part_of([stay.placement for stay in stays(cluster, job)], decided), f"job {job}"
    assert sum(len(decision.start) for decision in played) > 100, "jobs took turns"
    assert {node for decision in played for target in decision.start.values() for node in target} == set(
        cluster.settings.node_names
    )
    ended = [job for job, each in cluster.jobs().items() if each.state == "COMPLETED"]
    assert all(stays(cluster, job)[-1].done for job in ended)
    assert {each.state for job, each in cluster.jobs().items() if job not in ended} == {"RUNNING", "PENDING"}


def mixed(cluster: LoopbackCluster, number: int) -> list[int]:
    """Four gangs of 15 GPUs together, asked for in four ways; one in three ends within the test."""
    steps = 40.0 if number % 3 == 0 else 1e7
    requests = [("--nodes=1", "--gres=gpu:1"), ("--nodes=2", "--gres=gpu:1"), ("--gpus=4",), ("--nodes=2", "--gres=gpu:4")]
    return [gang(cluster, *request, steps=steps) for request in requests]


def went_wrong(decision: Decision) -> dict[str, object]:
    """What the driver says was not as it decided."""
    assert decision.applied is not None
    return {what: decision.applied[what] for what in ("elsewhere", "waiting", "lingering", "errors") if decision.applied[what]}


def is_part_of(told: list[dict[str, int]], decided: list[dict[str, int]]) -> bool:
    """Whether what was told is what was decided, in this order; a job that is stopped at once may have told nothing."""
    rest = iter(decided)
    return all(placement in rest for placement in told)
