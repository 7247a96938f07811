"""Workflows in the simulator: known makespans, times of tasks and workflows, failures, and saved simulations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.workflows import layered_workflows

TIMES, AFTER = (3, 2, 2, 2, 4, 4, 4, 4, 9), {9: 1, 5: 4, 6: 4, 7: 4, 8: 4}


def _run(jobs: list[gp.Job], gpus: int, policy: str = "fifo", **settings: Any) -> gp.SimulationResult:
    speeds = gp.ThroughputProfile.from_matrix(np.ones((len(jobs), 1)), job_ids=[job.job_id for job in jobs], accelerators=["v100"])
    given = {"round_seconds": None, "min_run_seconds": 1e9} | settings
    return gp.simulate(jobs, gp.Cluster.from_counts({"v100": gpus}), speeds, policy, **given)


@pytest.mark.parametrize(
    ("machines", "shorter", "without", "makespan"), [(3, 0, (), 12), (4, 0, (), 15), (3, 1, (), 13), (3, 0, (5, 6), 16)]
)
def test_graham_1969(machines: int, shorter: int, without: tuple[int, ...], makespan: float):
    """Without preemption, first come first served: more machines, shorter jobs and fewer dependencies all end later."""
    after = {child: parent for child, parent in AFTER.items() if child not in without}
    jobs = [
        gp.Job(f"T{n}", total_steps=time - shorter, depends_on=[f"T{after[n]}"] if n in after else ())
        for n, time in enumerate(TIMES, 1)
    ]
    assert _run(jobs, machines).summary.makespan_seconds == makespan


def test_times_of_tasks_count_from_ready_and_of_workflows_from_arrival():
    jobs = [
        gp.Job("a", total_steps=100, arrival_seconds=50, workflow="w"),
        gp.Job("b", total_steps=30, arrival_seconds=60, depends_on="a", workflow="w"),
        gp.Job("c", total_steps=500, arrival_seconds=60),
    ]
    result = _run(jobs, 2)
    assert [result.jobs[name].jct_seconds for name in "abc"] == [100, 30, 500]
    assert [result.jobs[name].blocked_seconds for name in "abc"] == [0, 90, 0]
    assert [result.jobs[name].queueing_seconds for name in "abc"] == [0, 0, 0]
    assert result.workflows == {"w": 130}
    assert (result.summary.workflow_jct.count, result.summary.workflow_jct.mean) == (1, 130)
    assert result.summary.blocked_seconds == 90
    assert gp.SimulationResult.from_dict(result.to_dict()) == result


def test_in_rounds_a_job_is_ready_when_the_other_ends_and_starts_with_the_next_round():
    jobs = [gp.Job("a", total_steps=100), gp.Job("b", total_steps=30, depends_on="a"), gp.Job("c", total_steps=1000)]
    result = _run(jobs, 2, round_seconds=360.0)
    assert result.jobs["b"].blocked_seconds == 100
    assert result.jobs["b"].first_start_seconds == 360
    between = _run(jobs, 2, "max_min_fairness", round_seconds=360.0, starts_between_rounds=True)
    assert between.jobs["b"].first_start_seconds == 100


def test_a_failure_for_good_cancels_what_needs_success_and_starts_what_needs_failure():
    jobs = [
        gp.Submission(gp.Job("a", total_steps=100, max_retries=1), failed_attempts=2),
        *map(gp.Submission, [gp.Job("b", total_steps=10, depends_on="a"), gp.Job("c", total_steps=10, depends_on="b")]),
        gp.Submission(gp.Job("d", total_steps=10, depends_on="afternotok:a", workflow="w")),
        gp.Submission(gp.Job("e", total_steps=10, depends_on="a", arrival_seconds=1000, workflow="w")),
        gp.Submission(gp.Job("f", total_steps=10, depends_on="afterany:a", arrival_seconds=1000)),
    ]
    speeds = gp.ThroughputProfile.from_matrix(np.ones((6, 1)), job_ids=list("abcdef"), accelerators=["v100"])
    cluster = gp.Cluster.from_counts({"v100": 1})
    result = gp.simulate(jobs, cluster, speeds, "fifo", round_seconds=None, job_failures="recorded")
    outcomes = {name: record.outcome.value for name, record in result.jobs.items()}
    ended = {"a": "failed", "b": "cancelled", "c": "cancelled", "d": "finished", "e": "cancelled", "f": "finished"}
    assert outcomes == ended
    assert result.workflows == {"w": None}
    assert result.summary.workflow_jct.count == 0


def test_a_job_that_is_blocked_at_the_end_says_by_whom():
    jobs = [
        gp.Job("a", total_steps=100),
        gp.Job("b", total_steps=30, depends_on=["a"]),
        gp.Job("c", total_steps=9, depends_on=["b"]),
        gp.Job("d", total_steps=1, arrival_seconds=50),  # the last event
    ]
    result = _run(jobs, 1, until_seconds=20)
    assert {name: record.reason for name, record in result.jobs.items()} == {
        "a": "",
        "b": "it waits for 'a'",
        "c": "it waits for 'b'",
    }


def test_parents_that_do_not_exist_or_arrive_later_are_refused():
    with pytest.raises(gp.InputError, match="does not exist"):
        _run([gp.Job("a", total_steps=1), gp.Job("b", total_steps=1, depends_on="x")], 1)
    with pytest.raises(gp.InputError, match="arrives later"):
        _run([gp.Job("b", total_steps=1, depends_on="a"), gp.Job("a", total_steps=1, arrival_seconds=5)], 1)


def test_a_saved_simulation_continues_with_the_same_workflows(tmp_path: Path):
    throughputs, work, parents = layered_workflows(np.random.default_rng(3), 40)
    names = [f"{n}" for n in range(40)]
    jobs = [
        gp.Job(name, total_steps=steps, depends_on=[names[u] for u in sorted(before)])
        for name, steps, before in zip(names, work, parents, strict=True)
    ]
    speeds = gp.ThroughputProfile.from_matrix(throughputs, job_ids=names, accelerators=["a", "b", "c"])
    given = (jobs, gp.Cluster.from_counts({"a": 2, "b": 2, "c": 3}), speeds, "max_min_fairness")
    whole = gp.Simulation(*given, job_failures=0.2).run()
    simulation = gp.Simulation(*given, job_failures=0.2)
    for _ in range(4):
        simulation.step()
    simulation.save(tmp_path / "state")
    assert simulation.scheduler.blocked
    loaded = gp.Simulation.load(tmp_path / "state", jobs, speeds)
    assert loaded.scheduler.blocked == simulation.scheduler.blocked
    assert loaded.run().jobs == whole.jobs


@pytest.mark.deep
@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["fifo", "max_min_fairness"]), st.sampled_from([None, 60.0]))
def test_no_job_starts_before_those_it_waits_for_have_ended(seed: int, policy: str, round_seconds: float | None):
    rng = np.random.default_rng(seed)
    throughputs, work, parents = layered_workflows(rng, int(rng.integers(2, 15)))
    names = [f"{n}" for n in range(len(parents))]
    jobs = [
        gp.Job(name, total_steps=steps, depends_on=[names[u] for u in sorted(before)])
        for name, steps, before in zip(names, work, parents, strict=True)
    ]
    speeds = gp.ThroughputProfile.from_matrix(throughputs, job_ids=names, accelerators=["a", "b", "c"])
    policy = "fifo" if round_seconds is None else policy
    result = gp.simulate(jobs, gp.Cluster.from_counts({"a": 1, "b": 1, "c": 2}), speeds, policy, round_seconds=round_seconds)
    for job in jobs:
        record = result.jobs[job.job_id]
        ends = [result.jobs[parent].end_seconds for parent in job.depends_on]
        assert record.blocked_seconds == max(ends, default=0.0)
        assert record.first_start_seconds >= record.blocked_seconds
        assert record.jct_seconds == pytest.approx(record.end_seconds - record.blocked_seconds)


@pytest.mark.parametrize("after", ["a", "singleton"])
@pytest.mark.parametrize(("between", "jct"), [(False, 360), (True, 100)])
def test_a_job_whose_parent_ends_before_the_next_round_was_blocked_until_then(
    after: str, between: bool, jct: float, tmp_path: Path
):
    jobs = [
        gp.Job("a", total_steps=100, workflow="w"),
        gp.Job("b", total_steps=1000),
        gp.Job("c", total_steps=100, arrival_seconds=50, depends_on=after, workflow="w"),
    ]
    speeds = gp.ThroughputProfile.from_matrix(np.ones((3, 1)), job_ids=["a", "b", "c"], accelerators=["v100"])
    simulation = gp.Simulation(jobs, gp.Cluster.from_counts({"v100": 4}), speeds, starts_between_rounds=between)
    while simulation.step():
        simulation.save(tmp_path / "saved.json")
        simulation = gp.Simulation.load(tmp_path / "saved.json", jobs, speeds)
    found = simulation.result().jobs["c"]
    assert (found.blocked_seconds, found.jct_seconds) == (50, jct)


def test_workflows_of_tenants_are_told_apart_and_complete_with_all_of_their_jobs():
    jobs = [
        gp.Job("a", total_steps=100, tenant="x", workflow="nightly"),
        gp.Job("b", total_steps=200, tenant="y", workflow="nightly", arrival_seconds=90_000),
        gp.Job("c", total_steps=50, tenant="y", workflow="weekly", arrival_seconds=90_000),
    ]
    result = _run(jobs, 4)
    assert result.workflows == {"nightly (x)": 100, "nightly (y)": 200, "weekly": 50}
    assert (result.summary.workflow_jct.count, result.summary.workflow_jct.mean) == (3, 350 / 3)
    jobs = [gp.Job("a", total_steps=100, workflow="w"), gp.Job("b", total_steps=5000, workflow="w")]
    measured = _run(jobs, 4, measure_jobs=(0, 1))
    assert measured.workflows == {"w": None}
    assert measured.summary.workflow_jct.count == 0, "a job that is not measured has not finished"
