"""Event-driven decisions equal full ones, in which the policy decides on all jobs and all gangs are placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.scheduling.event_driven import EventDrivenPlanner
from gavel_py.scheduling.event_driven.queue import can_keep_order
from gavel_py.scheduling.event_driven.queued_jobs import QueuedJob
from gavel_py.scheduling.planner import RoundPlanner
from tests.support.event_traces import CLUSTERS, TYPES, policy_of, traces
from tests.support.examples import examples
from tests.support.fakes import refusal
from tests.support.profiles import OSDI

Fifo = gp.policy_class("fifo")

POLICIES = (
    *("fifo", "fifo,preemptive=false", "fifo,backfill=true", "fifo,agnostic=true", "priority", "priority,preemptive=false"),
    *("shortest_job_first", "shortest_job_first,preemptive=false", "shortest_job_first,by=total,backfill=false"),
    "shortest_job_first,agnostic=true,reference=k80",
)


@contextmanager
def always_asking() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RoundPlanner, "event_planner", lambda *_: None)
        yield


@contextmanager
def counting() -> Iterator[list[bool]]:
    made: list[bool] = []
    decide = EventDrivenPlanner.decide

    def counted(self: EventDrivenPlanner, state: Any) -> Any:
        found = decide(self, state)
        made.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EventDrivenPlanner, "decide", counted)
        yield made


def played(trace: list[gp.Submission], cluster: gp.Cluster, policy: Any, **options: Any) -> tuple[Any, ...]:
    """Return the rounds of a simulation, its job records and summary, and some of its allocations."""
    rounds: list[gp.Round] = []
    simulation = gp.Simulation(trace, cluster, OSDI, policy, round_seconds=None, on_round=rounds.append, **options)
    allocations = []
    while simulation.now < 2e4 and simulation.step(2e4):
        if len(rounds) % 7 == 3 and (now := simulation.scheduler.allocation) is not None:
            allocations.append((now.to_dict() | {"seconds": None}, simulation.scheduler.jobs, simulation.scheduler.running))
    summary = simulation.result().summary.to_dict() | {"solver_seconds": None, "wall_seconds": None}
    return rounds, simulation.result().jobs, summary, allocations


@pytest.mark.guard
@settings(max_examples=examples(40, costly=True))
@given(
    trace=traces(locality=st.sampled_from(["any", "any", "any", "node", "rack"])),
    policy=st.sampled_from(POLICIES),
    gpus=st.sampled_from(CLUSTERS),
    restart=st.sampled_from([0.0, 40.0]),
    estimates=st.sampled_from(["exact", "recorded"]),
    job_failures=st.sampled_from([0.0, 0.2, "recorded"]),
    nodes=st.sampled_from(["up", "fail", "maintenance"]),
    racks=st.booleans(),
)
def test_the_same_rounds_records_and_allocations(
    trace: list[gp.Submission],
    policy: str,
    gpus: str,
    restart: float,
    estimates: Any,
    job_failures: Any,
    nodes: str,
    racks: bool,
) -> None:
    cluster = gp.Cluster.from_inline(gpus)
    if racks:
        there = enumerate(cluster.nodes)
        cluster = gp.Cluster(node.model_copy(update={"rack": f"{node.accelerator}-{i // 2 % 2}"}) for i, node in there)
    options: dict[str, Any] = {"restart_seconds": restart, "estimates": estimates, "job_failures": job_failures}
    options |= {"node_failures": gp.NodeFailures(9000, 900)} if nodes == "fail" else {}
    options |= {"maintenance": [gp.NodeWindow("v100-0", 500, 900)]} if nodes == "maintenance" else {}
    with always_asking():
        expected = played(trace, cluster, policy_of(policy), **options)
    assert played(trace, cluster, policy_of(policy), **options) == expected


def test_time_lost_with_a_node_puts_no_job_ahead_of_the_order() -> None:
    """Job b lost its node while it ran, which is no reason to stop job a, which arrived before it, and start b there."""
    cluster = gp.Cluster(gp.Node(name=f"n{i}", accelerator="v100", num_gpus=size) for i, size in enumerate([2, 2, 1, 1]))
    profile = gp.ThroughputProfile.from_matrix([[2.0]] * 2, job_ids=["a", "b"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(cluster, profile, "fifo", by_events=True)
    for n, job_id in enumerate("ab"):
        scheduler.submit(gp.Job(job_id, num_gpus=2, total_steps=1e6, arrival_seconds=n, locality="node"))
    assert set(scheduler.next_round(10.0).assignments) == {"a", "b"}
    scheduler.node_down("n1")
    assert set(scheduler.next_round(20.0).assignments) == {"a"}
    scheduler.node_down("n0")
    assert not scheduler.next_round(30.0).assignments
    scheduler.node_up("n0")
    assert set(scheduler.next_round(40.0).assignments) == {"a"}


def test_most_decisions_of_a_busy_cluster_are_event_driven() -> None:
    jobs = gp.generate_trace(150, OSDI, jobs_per_hour=30, seed=3)
    with counting() as made:
        cluster = gp.Cluster.from_inline("v100:16/4,k80:16/4")
        simulation = gp.Simulation(jobs, cluster, OSDI, "shortest_job_first", round_seconds=None)
        assert simulation.scheduler.by_events  # from now on it decides, without a kernel
        simulation.run()
    assert sum(made) > 0.9 * len(made) > 200


@pytest.mark.deep
@pytest.mark.parametrize("round_seconds", [None, 360.0])
def test_what_has_changed_is_remembered_only_until_the_next_decision(round_seconds: float | None) -> None:
    trace = gp.generate_trace(60, OSDI, jobs_per_hour=30, seed=3)
    simulation = gp.Simulation(trace, gp.Cluster.from_inline("v100:16/4"), OSDI, "shortest_job_first", round_seconds=round_seconds)
    while simulation.step():
        table = simulation.scheduler._state.table
        assert len(table.changed) <= 3  # within a step few jobs come or end
        assert set(np.flatnonzero(table.progressed).tolist()) <= set(table.by_id.values())


@dataclass(frozen=True, kw_only=True)
class LongestFirst(Fifo):
    """Overrides the sort key and does not declare `by_job`, so its order is not kept."""

    reads = ("arrival_seconds", "total_steps")

    def sort_key(self, jobs: gp.JobClasses) -> NDArray[np.float64]:
        return -jobs.total_steps + len(jobs)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class LastType(Fifo):
    """Selects types in its own way, so its order is not kept either."""

    def seats(
        self, wishes: Sequence[list[int]], sizes: Sequence[float], running_on: Sequence[int], free: list[float]
    ) -> tuple[list[int], list[int]]:
        return super().seats([each[::-1] for each in wishes], sizes, running_on, free)


def test_a_subclass_that_selects_types_in_its_own_way_is_asked() -> None:
    assert not can_keep_order(LastType())
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1,k80:1"), OSDI, LastType(), by_events=True)
    scheduler.submit_all([gp.Job(name, job_type=TYPES[0], total_steps=1e5, arrival_seconds=i) for i, name in enumerate("ab")])
    types = {job_id: held.accelerator for job_id, held in scheduler.next_round().assignments.items()}
    assert types == {"a": "k80", "b": "v100"}


def test_a_subclass_that_overrides_the_order_does_not_inherit_by_job() -> None:
    assert can_keep_order(Fifo())
    assert not can_keep_order(LongestFirst())
    assert not can_keep_order(policy_of("priority,max_wait_seconds=60"))  # type: ignore[arg-type]


def test_a_decision_that_differs_from_the_policy_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), OSDI, "fifo", by_events=True)
    for name in "ab":
        scheduler.submit(gp.Job(name, job_type=TYPES[0], total_steps=100))
    scheduler.next_round()
    monkeypatch.setattr(QueuedJob, "take_type", lambda each, _: 0 if each.job_id == "c" else -1)
    scheduler.complete("a")
    scheduler.submit(gp.Job("c", job_type=TYPES[0], total_steps=100))
    scheduler.next_round()
    monkeypatch.undo()
    with pytest.raises(gp.ProofError, match="jobs served one by one have other times"):
        _ = scheduler.allocation


def test_policies_that_need_rounds_are_refused() -> None:
    cluster = gp.Cluster.from_inline("v100:1")
    continuous = gp.resolve_policy("least_attained_service", thresholds=())
    found = refusal(lambda: gp.RoundScheduler(cluster, OSDI, continuous, by_events=True))
    assert "cannot be used with least_attained_service, whose order may change at any time (attained_gpu_seconds)" in found
    scheduler = gp.RoundScheduler(cluster, OSDI, "fifo", by_events=True)
    with pytest.raises(gp.InputError, match="fractions of their time"):
        scheduler.policy = "max_min_fairness"  # type: ignore[assignment]
    assert scheduler.policy.name == "fifo"


def test_jobs_whose_steps_are_unknown() -> None:
    def played() -> list[gp.Round]:
        scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:2"), OSDI, "fifo", by_events=True)
        rounds = []
        for i in range(6):
            scheduler.submit(gp.Job(f"j{i}", job_type=TYPES[i % 4], num_gpus=1 + i % 2, arrival_seconds=i))
            rounds.append(scheduler.next_round(i))
            if i % 2:
                scheduler.complete(min(scheduler.running))
        return rounds

    with counting() as made:
        found = played()
    assert made == [True] * len(found)
    with always_asking():
        assert played() == found


def assignments_with_another_policy_in_between() -> list[dict[str, gp.Assignment]]:
    fifo = Fifo()
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:2"), OSDI, fifo, by_events=True)
    scheduler.submit_all([gp.Job(f"j{i}", job_type=TYPES[i % 4], total_steps=1e5 * (i + 1)) for i in range(6)])
    progressed = []
    for seconds, policy in enumerate((fifo, LongestFirst(), LongestFirst(), fifo, fifo)):
        if policy is not scheduler.policy:
            scheduler.policy = policy
        progressed.append(scheduler.next_round(float(seconds)).assignments)
        gone = min(scheduler.running)
        scheduler.complete(gone)
    return progressed


def test_what_is_kept_for_a_policy_does_not_outlive_another_one() -> None:
    found = assignments_with_another_policy_in_between()
    with always_asking():
        assert found == assignments_with_another_policy_in_between()
