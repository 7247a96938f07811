"""Traces of the published simulator, with the published mechanism and without restart costs.

Its rounds, too, end when no job runs any more. The choice among equal optima alone changes its means by several per cent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import gavel_py as gp
from tests.support.shared_data import SHARED, needs_shared_data

pytestmark = needs_shared_data

TRACES = ("artifact_evaluation", "small_test")
FAIR = ("max_min_fairness", "finish_time_fairness")
TWINS = {
    "max_min_fairness": "max_min_fairness,agnostic=true",
    "finish_time_fairness": "finish_time_fairness,agnostic=true,reference=v100",
    "min_total_duration": "min_makespan,agnostic=true,reference=v100",
}
"""Agnostic policies by their published names."""

Play = Callable[[dict[str, Any], str], gp.SimulationResult]


def case(trace: str, policy: str) -> dict[str, Any]:
    (path,) = (SHARED / "reference_cases").glob(f"sim_{trace}_{policy}_[0-9]*.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def play(document: dict[str, Any], policy: str, **options: Any) -> gp.SimulationResult:
    nodes = [
        gp.Node(name=f"{name}-{i}", accelerator=name, num_gpus=1)
        for name, count in document["cluster_spec"].items()
        for i in range(count)
    ]
    jobs = [
        gp.Job(
            f"{i:03d}",
            job_type=job["job_type"],
            num_gpus=job["scale_factor"],
            total_steps=job["total_steps"],
            weight=job["priority_weight"],
            arrival_seconds=job["arrival"],
        )
        for i, job in enumerate(document["trace"])
    ]
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    name, *given = policy.split(",")
    resolved = gp.resolve_policy(name, **dict(option.split("=") for option in given))
    return gp.simulate(jobs, gp.Cluster(nodes), profile, resolved, mechanism="priority", **options)


def play_as_seldom(document: dict[str, Any], policy: str) -> gp.SimulationResult:
    """Simulate with allocations as infrequent as in the published simulator."""
    return play(document, policy, solve_seconds=document["minimum_time_between_allocation_resets"])


@pytest.mark.parametrize("played", [play, play_as_seldom])
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("policy", FAIR)
def test_mean_completion_times_are_as_good_as_published(trace: str, policy: str, played: Play) -> None:
    document = case(trace, f"{policy}_perf")
    summary = played(document, policy).summary
    assert summary.outcomes["finished"] == document["n_jobs"]
    assert summary.jct.mean is not None
    assert summary.jct.mean <= 1.05 * document["metrics"]["avg_jct_s"]


def test_the_makespan_is_as_good_as_published() -> None:
    """On the other trace, of 20 jobs that end within two rounds, the makespan is 522 s against 435 s for any order of the jobs, and
    431 s if the first allocation is kept, as in the published simulator (`play_as_seldom`).

    In its second round, a gang of 2 gets the only free GPUs, K80, where it is promised 0.9 % of the time, and finishes after
    300 s. With rounds of 360 s that is right: on V100 it would finish after 402 s, 42 s into the next round. But here a round ends
    when no job runs any more, after 54 s without that gang. With rounds of 180 s the makespan is 377 s, with 90 s it is 222 s.
    """
    document = case("artifact_evaluation", "min_total_duration_perf")
    assert play(document, "min_makespan").summary.makespan_seconds <= 1.05 * document["metrics"]["makespan_s"]


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize(("policy", "published"), [("min_makespan", "min_total_duration"), *((each, each) for each in FAIR)])
def test_makespans_are_as_good_as_published_with_as_few_allocations(trace: str, policy: str, published: str) -> None:
    document = case(trace, f"{published}_perf")
    assert document["minimum_time_between_allocation_resets"] == 1920
    summary = play_as_seldom(document, policy).summary
    assert summary.outcomes["finished"] == document["n_jobs"]
    assert summary.makespan_seconds <= 1.05 * document["metrics"]["makespan_s"]


@pytest.mark.deep
@pytest.mark.parametrize("published", TWINS)
def test_agnostic_twins_are_as_good_as_published(published: str) -> None:
    document = case("artifact_evaluation", published)
    assert document["minimum_time_between_allocation_resets"] == 1920
    summary = play_as_seldom(document, TWINS[published]).summary
    assert summary.outcomes["finished"] == document["n_jobs"]
    assert summary.jct.mean is not None
    assert summary.jct.mean <= 1.05 * document["metrics"]["avg_jct_s"]
    assert summary.makespan_seconds <= 1.05 * document["metrics"]["makespan_s"]


def test_first_come_first_served_is_the_same() -> None:
    document = case("small_test", "fifo_perf")
    summary = play(document, "fifo").summary
    assert summary.jct.mean == pytest.approx(document["metrics"]["avg_jct_s"], rel=1e-3)
    assert summary.makespan_seconds == pytest.approx(document["metrics"]["makespan_s"], rel=1e-3)


@pytest.mark.deep
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("policy", ["max_min_fairness", "finish_time_fairness", "min_makespan"])
def test_gangs_of_several_sizes_share_gpus(trace: str, policy: str) -> None:
    """The published simulator ends with an error on such traces."""
    jobs = gp.JobSet.from_file(SHARED / "gavel" / f"{trace}.trace")
    sizes = {job.job_id: job.num_gpus for job in jobs}
    assert len(set(sizes.values())) > 1
    shared = 0

    def check(begun: gp.Round) -> None:
        nonlocal shared
        on: dict[tuple[str, int], list[str]] = {}
        for job_id, held in begun.assignments.items():
            for gpu in held.gpus:
                on.setdefault(gpu, []).append(job_id)
        for together in on.values():
            shared += len(together) == 2
            assert len(together) <= 2
            assert len({sizes[job_id] for job_id in together}) == 1
            assert len({tuple(begun.assignments[job_id].gpus) for job_id in together}) == 1

    cluster = gp.Cluster.from_counts({"v100": 4, "p100": 4, "k80": 4})
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    summary = gp.simulate(jobs, cluster, profile, policy, sharing=True, on_round=check).summary
    assert summary.outcomes["finished"] == len(jobs)
    assert shared > 0
