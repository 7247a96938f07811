"""The workflow as the unit of policies: its weight, what all of its jobs have left, paths and deadlines."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.workflows import layered_workflow

NAN = math.nan
KINDS = ["fast", "slow", "any"]
COLUMNS = ("weights", "ready_tasks", "workflow_seconds", "path_seconds", "latest_end_seconds")


def _profile() -> gp.ThroughputProfile:
    table = {"fast": (4.0, 1.0), "slow": (1.0, 2.0), "any": (1.0, 1.0)}
    rows = [(kind, name, speed) for kind, speeds in table.items() for name, speed in zip(("v100", "k80"), speeds, strict=True)]
    return gp.ThroughputProfile(
        "kinds", [gp.Measurement(job_type=k, num_gpus=1, accelerator=a, steps_per_second=s) for k, a, s in rows]
    )


CLUSTER, PROFILE = gp.Cluster.from_counts({"v100": 1, "k80": 2}), _profile()


def _problem(jobs: list[gp.Job], **options: Any) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_jobs(jobs, CLUSTER, PROFILE, **options)


def test_attributes_by_hand():
    """a and b are ready; c (100 s at best) waits for both, d (30 s) for c, and e only runs if a fails."""
    jobs = [
        gp.Job("a", job_type="fast", total_steps=40, workflow="w", weight=3),
        gp.Job("b", job_type="slow", total_steps=40, workflow="w", deadline_seconds=90),
        gp.Job("c", job_type="slow", total_steps=200, workflow="w", depends_on=["a", "b"], deadline_seconds=1000),
        gp.Job("d", job_type="any", total_steps=30, workflow="w", depends_on="c", deadline_seconds=150),
        gp.Job("e", job_type="any", total_steps=500, workflow="w", depends_on="afternotok:a"),
        gp.Job("f", job_type="any", total_steps=7),
    ]
    problem = _problem(jobs, now_seconds=5.0)
    rows = [0, 1, 5]
    assert problem.weights[rows].tolist() == [1.5, 0.5, 1]
    assert problem.ready_tasks[rows].tolist() == [2, 2, 1]
    assert problem.workflow_seconds[rows].tolist() == [10 + 20 + 100 + 30] * 2 + [0]
    assert problem.path_seconds[rows].tolist() == [130, 130, 0]
    np.testing.assert_array_equal(problem.latest_end_seconds[rows], [150 - 30 - 100 - 5] * 2 + [NAN])
    apart = _problem(jobs, now_seconds=5.0, by_workflow=False)
    assert apart.weights[rows].tolist() == [3, 1, 1]
    assert not apart.path_seconds.any()


def test_jobs_that_only_run_after_a_failure_do_not_count_but_those_after_their_cancellation_do():
    """If a succeeds, alert and page are cancelled; tidy and report start then, and archive after tidy."""
    waits = {"alert": "afternotok:a", "page": "alert", "tidy": "afterany:page", "archive": "tidy", "report": "afternotok:alert"}
    seconds = {"a": 10, "alert": 1000, "page": 2000, "tidy": 20, "archive": 7, "report": 5}
    jobs = [
        gp.Job(name, job_type="any", total_steps=each, workflow="w", depends_on=waits.get(name, ()), deadline_seconds=500 - each)
        for name, each in seconds.items()
    ]
    problem = _problem(jobs)
    assert problem.workflow_seconds[0] == 10 + 20 + 7 + 5
    assert problem.path_seconds[0] == 20 + 7
    assert problem.latest_end_seconds[0] == min(480 - 20, 493 - 7 - 20, 495 - 5)
    scheduler = gp.RoundScheduler(CLUSTER, PROFILE, "min_makespan")
    scheduler.submit_all(jobs[::-1])  # those that wait come first
    scheduler.next_round()
    current = scheduler._state.current_allocation
    assert current is not None
    assert [getattr(current.problem, name).tolist() for name in COLUMNS[2:]] == [[42], [27], [460]]
    scheduler.cancel("a")  # now alert runs, and page; report does not
    scheduler.next_round()
    current = scheduler._state.current_allocation
    assert current is not None
    assert list(current.problem.job_ids) == ["alert"]
    assert current.problem.workflow_seconds.tolist() == [1000 + 2000 + 20 + 7]
    assert current.problem.path_seconds.tolist() == [2000 + 20 + 7]


Ends = dict[str, tuple[float, bool]]


def _ends(jobs: list[gp.Job], seconds: dict[str, float]) -> tuple[Ends, bool]:
    """{job_id: end, whether it ran} with a GPU for each job if all that start succeed; and whether more than one end cancels a job.

    Jobs start when their last condition is fulfilled, and are cancelled once one is broken.
    """
    ends: Ends = {}
    is_unique = True
    for job in jobs:  # parents come first
        parents = [text.split(":") for text in job.depends_on]
        broken = [ends[name][0] for word, name in parents if word != "afterany" and ends[name][1] != (word == "afterok")]
        if broken:
            ends[job.job_id] = min(broken), False
        else:
            ends[job.job_id] = max((ends[name][0] for _, name in parents), default=0.0) + seconds[job.job_id], True
        is_unique &= len(broken) <= 1
    return ends, is_unique


@pytest.mark.deep
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_figures_of_workflows_are_those_of_a_run_in_which_all_jobs_that_start_succeed(data: st.DataObject):
    jobs: list[gp.Job] = []
    for n in range(data.draw(st.integers(2, 8))):
        chosen = data.draw(st.sets(st.sampled_from(range(n)), max_size=2)) if n else set()
        deadline = data.draw(st.sampled_from([None, 50.0, 300.0]))
        waits = [f"{data.draw(st.sampled_from(['afterok', 'afterany', 'afternotok']))}:{m}" for m in sorted(chosen)]
        steps = data.draw(st.sampled_from([3.0, 20.0, 70.0]))
        jobs.append(gp.Job(f"{n}", job_type="any", total_steps=steps, workflow="w", depends_on=waits, deadline_seconds=deadline))
    problem = _problem(jobs)
    seconds = {job.job_id: float(job.total_steps or 0.0) for job in jobs}
    ends, is_unique = _ends(jobs, seconds)
    running = [seconds[name] for name, (_, ran) in ends.items() if ran]
    for row, job in enumerate(jobs):
        if job.depends_on:
            continue
        assert problem.workflow_seconds[row] == pytest.approx(sum(running) if len(running) > 1 else 0.0)
        late, _ = _ends(jobs, seconds | {job.job_id: 1e6})  # so late that all that waits for it, and nothing else, ends later
        after = {each.job_id: late[each.job_id][0] - 1e6 for each in jobs if late[each.job_id][0] > 1e6 and late[each.job_id][1]}
        path = max(after.values(), default=0.0)
        limits = [each.deadline_seconds - after[each.job_id] for each in jobs if each.job_id in after and each.deadline_seconds]
        if is_unique:
            assert problem.path_seconds[row] == pytest.approx(path)
            assert problem.latest_end_seconds[row] == pytest.approx(min(limits, default=NAN), nan_ok=True)
        else:
            assert problem.path_seconds[row] >= path - 1e-6


@pytest.mark.parametrize("policy", ["max_min_fairness", "shortest_job_first", "max_progress_rate", "min_makespan", "min_lateness"])
def test_workflows_of_one_job_change_no_answer(policy: str):
    chance = np.random.default_rng(5)
    steps, kinds = np.round(np.exp(chance.normal(6, 1, 12)), 3), chance.choice(KINDS, 12)
    alone = [gp.Job(f"{n}", job_type=k, total_steps=s, weight=1 + n % 3) for n, (k, s) in enumerate(zip(kinds, steps, strict=True))]
    alone[3] = alone[3].model_copy(update={"deadline_seconds": 60.0})
    named = [job.model_copy(update={"workflow": f"w{n}"}) for n, job in enumerate(alone)]
    answers = [gp.solve(_problem(jobs), policy).time_fractions.tolist() for jobs in (alone, named)]
    assert answers[0] == answers[1]


def test_the_weight_of_a_workflow_is_that_of_one_job():
    jobs = [gp.Job("single", job_type="any"), *(gp.Job(f"t{n}", job_type="any", workflow="w") for n in range(3))]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"k80": 1}), PROFILE)
    assert gp.solve(problem, "max_min_fairness").throughputs == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_the_need_of_a_ready_job_for_the_makespan_is_its_longest_path():
    """On two GPUs, A before B beside C1 and C2, 10 s each: 20 s if A counts with its path, at equal shares 25 s."""
    jobs = [gp.Job(name, job_type="any", total_steps=10, depends_on="A" if name == "B" else ()) for name in ("A", "B", "C1", "C2")]
    cluster = gp.Cluster.from_counts({"k80": 2})
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, PROFILE)
    answer = gp.solve(problem, "min_makespan")
    assert answer.objective_value == pytest.approx(20)
    assert answer.throughputs == pytest.approx([1, 0, 1 / 2, 1 / 2])
    result = gp.simulate(jobs, cluster, PROFILE, "min_makespan", round_seconds=0.5)
    assert result.summary.makespan_seconds == pytest.approx(20)
    apart = gp.simulate(jobs, cluster, PROFILE, "min_makespan", round_seconds=0.5, by_workflow=False)
    assert apart.summary.makespan_seconds == pytest.approx(25, abs=0.5)


def test_a_deadline_reaches_back_to_the_jobs_that_it_waits_for_but_is_no_hard_limit():
    jobs = [
        gp.Job("a", job_type="any", total_steps=40),
        gp.Job("b", job_type="any", total_steps=30, depends_on="a", deadline_seconds=60),
        gp.Job("c", job_type="any", total_steps=30, deadline_seconds=50),
    ]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"k80": 1}), PROFILE)
    late = gp.solve(problem, "min_lateness")
    # a is due in 30 s, c in 50 s: 40/(30 + θ) + 30/(50 + θ) = 1, which is θ² + 10 θ - 1400 = 0.
    assert late.objective_value == pytest.approx(math.sqrt(1425) - 5)
    assert gp.solve(problem, "max_min_fairness", constraints=[gp.Deadline()]).throughputs[2] >= 30 / 50 - 1e-9
    (missed,) = gp.solve(problem, "max_min_fairness", constraints=[gp.Deadline().soft(100.0)]).constraints
    assert "'a'" in str(missed)


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[gp.Job], int]:
    chance = np.random.default_rng(draw(st.integers(0, 10**6)))
    shares = draw(st.sampled_from([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]))
    jobs: list[gp.Job] = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 6))
        for each, parents in enumerate(layered_workflow(chance, size)):
            words = chance.choice(["", "afterany:", "afternotok:"], len(parents), p=shares)
            names = [f"{number}-{parent}" for parent in sorted(parents)]
            deadline = float(np.round(chance.exponential(300), 2)) if chance.random() < 0.4 else None
            fields: dict[str, Any] = {"deadline_seconds": deadline, "workflow": f"w{number}" if chance.random() < 0.8 else ""}
            depends_on = [word + name for word, name in zip(words, names, strict=True)]
            steps = float(np.round(chance.exponential(200) + 1, 2))
            fields |= {"weight": float(chance.integers(1, 4)), "max_retries": 0}
            kind = str(chance.choice(KINDS))
            jobs.append(gp.Job(f"{number}-{each}", job_type=kind, total_steps=steps, depends_on=depends_on, **fields))
    return jobs, draw(st.integers(0, 10**6))


def _expected(scheduler: gp.RoundScheduler, given: dict[str, gp.Job], now: float) -> gp.AllocationProblem:
    """The problem of all jobs in the system from their definition, without what a scheduler keeps from event to event."""
    ready, blocked = {job.job_id: job for job in scheduler.jobs}, scheduler.blocked
    jobs = [*ready.values(), *(given[name].model_copy(update={"depends_on": blocked[name]}) for name in blocked)]
    problem = gp.AllocationProblem.from_jobs(jobs, CLUSTER, PROFILE, now_seconds=now)
    return problem.select(np.arange(len(ready)))


@pytest.mark.deep
@settings(deadline=None, max_examples=30)
@given(_histories(), st.booleans())
def test_a_scheduler_keeps_what_follows_from_the_jobs_whatever_happens(history: tuple[list[gp.Job], int], saved: bool):
    jobs, seed = history
    chance, given_jobs, now = np.random.default_rng(seed), {job.job_id: job for job in jobs}, 0.0
    scheduler = gp.RoundScheduler(CLUSTER, PROFILE, "max_min_fairness")
    half = len(jobs) // 2
    scheduler.submit_all(jobs[:half])
    scheduler.next_round(now)
    scheduler.submit_all(jobs[half:])
    while scheduler.jobs:
        now += 360.0
        scheduler.next_round(now)
        if saved:
            scheduler = gp.RoundScheduler.from_dict(scheduler.to_dict(), PROFILE)
        current = scheduler._state.current_allocation
        assert current is not None
        expected = _expected(scheduler, given_jobs, now)
        assert list(current.problem.job_ids) == list(expected.job_ids)
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(current.problem, name), getattr(expected, name), atol=1e-5, err_msg=name)
        leaving = scheduler.jobs[chance.integers(len(scheduler.jobs))]
        scheduler.report_all({job.job_id: float(chance.random() * job.total_steps) for job in scheduler.jobs if job.total_steps})
        (scheduler.complete if chance.random() < 0.7 else scheduler.cancel)(leaving.job_id)
        if scheduler.blocked and chance.random() < 0.3:
            name = sorted(scheduler.blocked)[0]
            given_jobs[name] = given_jobs[name].model_copy(update={"total_steps": 77.0})
            scheduler.update(name, total_steps=77.0)


@settings(deadline=None, max_examples=40)
@given(_histories())
def test_event_mode_decides_as_a_solve_for_all_jobs_does(history: tuple[list[gp.Job], int]):
    jobs, seed = history
    chance, now = np.random.default_rng(seed), 0.0
    scheduler = gp.RoundScheduler(CLUSTER, PROFILE, "shortest_job_first", by_events=True)
    scheduler.submit_all(jobs)
    while scheduler.jobs:
        scheduler.next_round(now)
        assert scheduler.allocation is not None  # which raises `ProofError` if the solve differs
        left = {job.job_id: job for job in scheduler.jobs}
        running = sorted(scheduler.running)
        scheduler.report_all(
            {name: min(left[name].steps_done + float(chance.random() * 90), left[name].total_steps - 1e-3) for name in running}
        )
        if chance.random() < 0.5:
            scheduler.complete(running[chance.integers(len(running))])
        now += 30.0


@pytest.mark.parametrize("ready_first", [True, False])
def test_a_job_that_changes_its_tenant_leaves_the_workflow_of_the_other(ready_first: bool):
    scheduler = gp.RoundScheduler(CLUSTER, PROFILE, "shortest_job_first")
    chain = [gp.Job(name, job_type="any", total_steps=10, tenant="x", workflow="w") for name in "abc"]
    scheduler.submit_all([chain[0], chain[1], chain[2].model_copy(update={"depends_on": ("a",)})])
    scheduler.next_round()
    for name in ("b", "c") if ready_first else ("c", "b"):
        scheduler.update(name, tenant="y")
    scheduler.next_round()
    current = scheduler._state.current_allocation
    assert current is not None
    assert current.problem.workflow_seconds.tolist() == [0, 20]
    assert current.problem.path_seconds.tolist() == [10, 0]
    scheduler.submit(gp.Job("d", job_type="any", total_steps=5, tenant="y", workflow="w", depends_on=["singleton"]))
    assert scheduler.blocked["d"] == (("afterany:b", "afterany:c") if ready_first else ("afterany:c", "afterany:b"))
