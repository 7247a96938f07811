"""The kernel of event-driven simulations decides as the scheduler, whose place it takes for what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from tests.support.event_traces import CLUSTERS, TYPES, policy_of, traces
from tests.support.examples import examples
from tests.support.profiles import OSDI

POLICIES = (
    *("fifo", "fifo,preemptive=false", "fifo,backfill=true", "fifo,agnostic=true", "priority", "priority,preemptive=false"),
    *("shortest_job_first", "shortest_job_first,preemptive=false", "shortest_job_first,by=total,backfill=false"),
    *("shortest_job_first,agnostic=true,reference=k80", "least_attained_service"),
)


NEEDS_SCHEDULER: dict[str, st.SearchStrategy[Any]] = {
    "locality": st.sampled_from(["any", "any", "node"]),
    "workflow": st.sampled_from(["", "", "w"]),
    "cpus_per_gpu": st.sampled_from([0.0, 0.0, 3.0]),
}
TENANTS = st.sampled_from(["", "a", "b"])


class Watched:
    """A simulation with what it says about gangs."""

    def __init__(self, trace: list[gp.Submission], cluster: gp.Cluster, policy: gp.Policy, **options: Any) -> None:
        self.said: list[tuple[float, Mapping[str, Any]]] = []
        self.is_over = False
        self.simulation = gp.Simulation(
            trace, cluster, OSDI, policy, round_seconds=None, on_gangs=lambda *change: self.said.append(change), **options
        )

    def step(self) -> bool:
        """Simulate until the next event; return whether there was one."""
        self.is_over = self.is_over or self.simulation.now >= 2e4 or not self.simulation.step(2e4)
        return not self.is_over

    def outcome(self) -> tuple[Any, ...]:
        """Return all that it finds up to its end, but for times of computing."""
        while self.step():
            pass
        result = self.simulation.result()
        summary = result.summary.to_dict() | {"solver_seconds": None, "wall_seconds": None}
        return result.jobs, summary, self.simulation.now, self.said


@pytest.mark.guard
@settings(max_examples=examples(100, costly=True))
@given(
    trace=traces(tenant=TENANTS) | traces(tenant=TENANTS, **NEEDS_SCHEDULER),
    policy=st.sampled_from(POLICIES),
    gpus=st.sampled_from(CLUSTERS),
    restart=st.sampled_from([0.0, 40.0]),
    estimates=st.sampled_from(["exact", "recorded"]),
    job_failures=st.sampled_from([0.0, 0.2, "recorded"]),
    racks=st.booleans(),
    has_cpus=st.booleans(),
    window=st.sampled_from([None, (0, 1)]),
    asked_after=st.sampled_from([None, 3, 10]),
)
def test_records_summaries_and_gangs_are_those_of_the_scheduler(
    trace: list[gp.Submission],
    policy: str,
    gpus: str,
    racks: bool,
    has_cpus: bool,
    restart: float,
    window: tuple[int, int] | None,
    asked_after: int | None,
    **options: Any,
) -> None:
    cluster = gp.Cluster.from_inline(gpus)
    if racks:
        there = enumerate(cluster.nodes)
        cluster = gp.Cluster(node.model_copy(update={"rack": f"{node.accelerator}-{i // 2 % 2}"}) for i, node in there)
    if has_cpus:
        cluster = gp.Cluster(node.model_copy(update={"cpus": 12.0}) for node in cluster.nodes)
    options |= {"restart_seconds": restart, "measure_jobs": window}
    plain, asked = (Watched(trace, cluster, policy_of(policy), **options) for _ in range(2))
    assert asked.simulation.scheduler.policy == policy_of(policy)  # from now on it decides
    if asked_after is not None and all(plain.step() for _ in range(asked_after)):
        assert len(plain.simulation.scheduler.jobs) == plain.simulation.active
    assert plain.outcome() == asked.outcome()


@dataclass(frozen=True, kw_only=True)
class Aging(gp.OrderedPolicy):
    """Jobs that have waited for ten minutes go first, by a user's own sort key."""

    reads = ("waiting_seconds",)

    @property
    def by_job(self) -> bool:
        return True

    @property
    def changes_at(self) -> Mapping[str, tuple[float, ...]]:
        return {"waiting_seconds": (600.0,)}

    def sort_key(self, jobs: gp.JobClasses) -> NDArray[np.float64]:
        return -(jobs.waiting_seconds >= 600).astype(float)  # type: ignore[no-any-return]


def test_a_users_policy_may_read_times() -> None:
    """Each job can run here: for one that cannot, the scheduler alone decides once more when its waiting time is reached."""
    trace = gp.generate_trace(30, OSDI, jobs_per_hour=60, seed=6)
    plain, asked = (Watched(list(trace), gp.Cluster.from_inline("v100:8/4,k80:8/4"), Aging()) for _ in range(2))
    assert asked.simulation.scheduler.by_events
    assert plain.outcome() == asked.outcome()


@pytest.fixture
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the scheduler decides")

    monkeypatch.setattr(gp.RoundScheduler, "next_round", refuse)


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize("policy", ["fifo", "fifo,preemptive=false", "priority", "shortest_job_first"])
def test_whole_traces_need_no_scheduler(policy: str) -> None:
    trace = gp.generate_trace(30, OSDI, jobs_per_hour=60, seed=3)
    cluster = gp.Cluster.from_inline("v100:8/4,k80:8/4")
    result = gp.simulate(trace, cluster, OSDI, policy_of(policy), round_seconds=None, job_failures=0.2)
    assert result.summary.outcomes["active"] == 0
    assert gp.record_run(trace, cluster, OSDI, policy_of(policy), round_seconds=None, stays=True).stays


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_fails_beyond_its_estimate_runs_again(asked: bool, seed: int) -> None:
    """It was expected to do 300 of 1,000 steps, and most attempts fail later, when it seems to have finished."""
    job = gp.Job("a", job_type=TYPES[0], total_steps=1e5, max_retries=3)
    trace = [gp.Submission(job, run_seconds=100.0, estimate_seconds=30.0, failed_attempts=3)]
    options: dict[str, Any] = {"estimates": "recorded", "job_failures": "recorded", "seed": seed}
    cluster = gp.Cluster.from_counts({"v100": 1})
    simulation = gp.Simulation(trace, cluster, OSDI, "shortest_job_first", round_seconds=None, **options)
    assert not asked or simulation.scheduler.by_events
    assert simulation.run().jobs["a"].outcome == "finished"


def test_a_simulation_continues_from_a_file_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    trace = gp.generate_trace(30, OSDI, jobs_per_hour=60, seed=3)
    cluster = gp.Cluster.from_inline("v100:8/4,k80:8/4")
    whole, part = (gp.Simulation(trace, cluster, OSDI, "shortest_job_first", round_seconds=None) for _ in range(2))
    for _ in range(25):
        part.step()
    part.save(tmp_path / "state")
    loaded = gp.Simulation.load(tmp_path / "state", trace, OSDI)
    expected = whole.run().jobs
    assert part.run().jobs == expected
    assert loaded.run().jobs == expected


@pytest.mark.parametrize("policy", ["fifo", "shortest_job_first"])
def test_a_recorded_run_is_that_of_rounds(policy: str) -> None:
    """The kernel tells a recorder about gangs; callers who look at each round get the same from the scheduler."""
    trace = gp.generate_trace(30, OSDI, jobs_per_hour=60, seed=5)
    cluster = gp.Cluster.from_inline("v100:8/4,k80:8/4")
    recorder: gp.RunRecorder
    simulation = gp.Simulation(
        trace, cluster, OSDI, policy, round_seconds=None, job_failures=0.2, on_round=lambda begun: recorder.round(begun)
    )
    recorder = gp.RunRecorder(simulation, stays=True)
    more = True
    while more:
        more = simulation.step()
        for job_id in list(simulation.records):
            recorder.job(simulation.records.pop(job_id))
        recorder.step()
    run = gp.record_run(trace, cluster, OSDI, policy, round_seconds=None, job_failures=0.2, stays=True)
    expected = recorder.run({"policy": simulation.policy.label}, simulation.result().summary)
    own = {"wall_seconds", "solver_seconds"}
    assert [each for each in run.metrics.items() if each[0] not in own] == [
        each for each in expected.metrics.items() if each[0] not in own
    ]
    assert (run.stays, run.shares) == (expected.stays, expected.shares)
    assert str(run.over_time) == str(expected.over_time)
