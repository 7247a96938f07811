"""The kernel of event-driven simulations decides as the scheduler, whose place it takes for what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.profiles import OSDI

TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 40)", "Transformer (batch size 64)", "ResNet-18 (batch size 64)")
POLICIES = (
    *("fifo", "fifo,preemptive=false", "fifo,backfill=true", "fifo,agnostic=true", "priority", "priority,preemptive=false"),
    *("shortest_job_first", "shortest_job_first,preemptive=false", "shortest_job_first,by=total,backfill=false"),
    *("shortest_job_first,agnostic=true,reference=k80", "least_attained_service"),
)
CLUSTERS = ("v100:8/4,k80:8/8", "v100:32/4,k80:32/8,p100:12/2", "v100:6/3,p100:7/2,k80:4/1")


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Submission]:
    """Draw jobs, of which those with a locality, a workflow or CPUs need the scheduler."""
    found, arrival = list[gp.Submission](), 0.0
    needs_scheduler = draw(st.sampled_from([False, False, True]))
    for i in range(draw(st.integers(1, 40))):
        arrival += draw(st.sampled_from([0.0, 0.0, 1.0, 90.0, 700.0]))
        job = gp.Job(
            f"j{i}",
            job_type=draw(st.sampled_from(TYPES)),
            num_gpus=draw(st.sampled_from([1, 1, 2, 4, 8])),
            arrival_seconds=arrival,
            total_steps=draw(st.sampled_from([300.0, 4e3, 2e4, 1e5])),
            priority=draw(st.sampled_from([0.0, 1.0])),
            tenant=draw(st.sampled_from(["", "a", "b"])),
            locality=draw(st.sampled_from(["any", "any", "node"])) if needs_scheduler else "any",
            workflow=draw(st.sampled_from(["", "", "w"])) if needs_scheduler else "",
            cpus_per_gpu=draw(st.sampled_from([0.0, 0.0, 3.0])) if needs_scheduler else 0.0,
            allowed_accelerators=draw(st.sampled_from([None, None, None, ("k80",)])),
            restart_seconds=draw(st.sampled_from([None, 100.0])),
            max_retries=1,
        )
        cancelled = draw(st.none() | st.none() | st.just(arrival + 300.0))
        run = {"run_seconds": 100.0, "estimate_seconds": draw(st.sampled_from([30.0, 100.0, 250.0]))}
        found.append(gp.Submission(job, failed_attempts=draw(st.integers(0, 2)), cancelled_seconds=cancelled, **run))
    return found


def policy_of(text: str) -> gp.Policy:
    name, *rest = text.split(",")
    return gp.resolve_policy(name, **dict(each.split("=") for each in rest))


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
    trace=traces(),
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
