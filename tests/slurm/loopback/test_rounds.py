"""Jobs run as planned: the log of the driver compared with Slurm's log and the records of the jobs."""

from __future__ import annotations

import pytest

from tests.slurm.loopback.allocations import allocations
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import Decision, decisions
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.seen import JobSeen
from tests.slurm.loopback.submitting import stays
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]


@pytest.mark.parametrize("rounds", [5, 10])
def test_60_jobs_run_as_planned(cluster: LoopbackCluster, rounds: int) -> None:
    jobs = [job for number in range(15) for job in mixed(cluster, number)]
    assert len(jobs) == 60
    # It ends by itself; after a signal during a round, it would only wait some seconds for Slurm.
    with driving(cluster, "--round", "2", "--rounds", str(rounds)) as driver:
        assert driver.wait(within=300) == 0, driver.output()
    played = decisions(log_of(cluster))
    assert len([decision for decision in played if not decision.within]) == rounds
    assert [went_wrong(decision) for decision in played] == [{}] * len(played)
    for job in jobs:
        decided = [decision.start[job] for decision in played if job in decision.start and not had_ended(cluster, job, decision)]
        assert allocations(cluster, job) == [set(target) for target in decided], f"job {job}"
        assert is_part_of([stay.placement for stay in stays(cluster, job)], decided), f"job {job}"
    assert sum(len(decision.start) for decision in played) > 10 * rounds, "jobs took turns"
    assert {node for decision in played for target in decision.start.values() for node in target} == set(
        cluster.settings.node_names
    )
    seen = until(lambda: nobody_is_completing(cluster), "jobs that end to have ended")
    ended = {job for job, each in seen.items() if each.state == "COMPLETED"}
    assert {job for decision in played for job in left(decision)} <= ended, "nobody else may miss a start"
    assert all(stays(cluster, job)[-1].done for job in ended)
    assert {each.state for job, each in seen.items() if job not in ended} == {"RUNNING", "PENDING"}


def mixed(cluster: LoopbackCluster, number: int) -> list[int]:
    """Submit gangs in fours with 15 GPUs together, requested in four ways; one in three ends within the test."""
    steps = 40.0 if number % 3 == 0 else 1e7
    requests = [("--nodes=1", "--gres=gpu:1"), ("--nodes=2", "--gres=gpu:1"), ("--gpus=4",), ("--nodes=2", "--gres=gpu:4")]
    return [gang(cluster, *request, steps=steps) for request in requests]


def went_wrong(decision: Decision) -> dict[str, object]:
    """Return what the driver reports as different from its plan."""
    assert decision.applied is not None
    return {what: decision.applied[what] for what in ("elsewhere", "waiting", "lingering", "errors") if decision.applied[what]}


def left(decision: Decision) -> set[int]:
    """Return the jobs to start that ended before all others of the round had started."""
    assert decision.applied is not None
    return {int(job) for job in decision.applied["left"]}


def had_ended(cluster: LoopbackCluster, job: int, decision: Decision) -> bool:
    """Return whether a job completed its work where it ran before this decision, so that it could not be started again."""
    return job in left(decision) and stays(cluster, job)[-1].begin < decision.seconds


def nobody_is_completing(cluster: LoopbackCluster) -> dict[int, JobSeen]:
    """Return all jobs once Slurm has cleaned up after those that have just ended."""
    seen = cluster.jobs()
    return {} if "COMPLETING" in {each.state for each in seen.values()} else seen


def is_part_of(recorded: list[dict[str, int]], decided: list[dict[str, int]]) -> bool:
    """Return whether recorded runs match the plans in order; a job stopped at once may have recorded nothing."""
    rest = iter(decided)
    return all(placement in rest for placement in recorded)
