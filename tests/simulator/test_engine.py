"""Simulations: known schedules to the second, and invariants of random ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.fakes import refusal

Jobs = list[gp.Job]


def speeds(jobs: Jobs, *rows: list[float], accelerators: tuple[str, ...] = ("v100",)) -> gp.ThroughputProfile | Any:
    ids = [job.job_id for job in jobs]
    table = list(rows) or [[1.0] * len(accelerators)] * len(ids)
    return gp.ThroughputProfile.from_matrix(table, job_ids=ids, accelerators=list(accelerators))


def play(
    jobs: Sequence[gp.Job | gp.Submission], gpus: str = "v100:1", policy: str | gp.Policy = "fifo", **options: Any
) -> gp.SimulationResult:
    """Simulate jobs of one step per second on an inline cluster."""
    cluster = gp.Cluster.from_inline(gpus)
    alone = [each.job if isinstance(each, gp.Submission) else each for each in jobs]
    return gp.simulate(jobs, cluster, speeds(alone, accelerators=cluster.accelerator_names), policy, **options)


def jcts(result: gp.SimulationResult) -> list[float | None]:
    return [result.jobs[job_id].jct_seconds for job_id in sorted(result.jobs)]


class TestKnownAnswers:
    """Two GPUs; jobs (duration, arrival): (30, 0), (10, 0), (25, 1), (40, 4); preemption is free, decisions are at events."""

    JOBS = (
        gp.Job("0", total_steps=30, priority=3),
        gp.Job("1", total_steps=10, priority=1),
        gp.Job("2", total_steps=25, priority=2, arrival_seconds=1),
        gp.Job("3", total_steps=40, priority=4, arrival_seconds=4),
    )

    @pytest.mark.parametrize(
        ("policy", "expected", "mean", "makespan"),
        [
            ("fifo", [30, 10, 34, 66], 35, 70),
            ("shortest_job_first,preemptive=false", [30, 10, 34, 66], 35, 70),
            ("shortest_job_first", [39, 10, 25, 62], 34, 66),
            ("priority", [30, 53, 51, 40], 43.5, 53),
            ("priority,preemptive=false", [30, 10, 54, 46], 35, 55),
        ],
    )
    def test_four_jobs(self, policy: str, expected: list[float], mean: float, makespan: float) -> None:
        name, *options = policy.split(",")
        chosen = gp.resolve_policy(name, **dict(option.split("=") for option in options))
        result = play(list(self.JOBS), "v100:2", chosen, round_seconds=None)
        assert jcts(result) == expected
        assert result.summary.jct.mean == mean
        assert result.summary.makespan_seconds == makespan
        assert result.summary.usage["v100"]["used"] == 105

    def test_jobs_end_within_rounds_but_free_their_gpus_at_the_end(self) -> None:
        jobs = [gp.Job("a", total_steps=500), gp.Job("b", total_steps=1000), gp.Job("c", total_steps=100)]
        result = play(jobs, "v100:2", round_seconds=360)
        assert jcts(result) == [500, 1000, 820]
        assert result.summary.usage["v100"] == {
            "gpu_seconds": 2000, "used": 1600, "idle": 400, "down": 0, "utilization": 0.8
        }  # fmt: skip
        assert [result.jobs[i].queueing_seconds for i in "abc"] == [0, 0, 720]

    def test_a_round_without_running_jobs_ends(self) -> None:
        assert jcts(play([gp.Job("a", total_steps=500), gp.Job("b", total_steps=100)], round_seconds=360)) == [500, 600]

    def test_the_clock_skips_to_the_next_arrival(self) -> None:
        jobs = [gp.Job("a", total_steps=100), gp.Job("b", total_steps=100, arrival_seconds=1000)]
        result = play(jobs, round_seconds=360)
        assert jcts(result) == [100, 100]
        assert result.summary.usage["v100"]["gpu_seconds"] == 1100

    def test_a_job_that_arrives_within_a_round_waits_for_the_next(self) -> None:
        jobs = [gp.Job("a", total_steps=1000), gp.Job("b", total_steps=100, arrival_seconds=10)]
        assert jcts(play(jobs, "v100:2", round_seconds=360)) == [1000, 450]

    def test_starting_costs_time(self) -> None:
        """With one round each in turn, every start costs 60 of the 360 seconds; under fifo, each job starts once."""
        jobs = [gp.Job("a", total_steps=720), gp.Job("b", total_steps=300, restart_seconds=0)]
        alone = play(jobs[:1], restart_seconds=60)
        assert alone.jobs["a"].jct_seconds == 780
        assert alone.jobs["a"].lost_gpu_seconds == 60
        both = play(jobs, restart_seconds=60)
        assert both.jobs["b"].lost_gpu_seconds == 0

    def test_a_start_may_take_longer_than_a_round(self) -> None:
        job = gp.Job("a", total_steps=1000)
        assert play([job], round_seconds=60, restart_seconds=100).jobs["a"].jct_seconds == 1100
        jobs = [job, gp.Job("b", total_steps=10, arrival_seconds=5)]
        assert play(jobs, "v100:2", round_seconds=None, restart_seconds=100).jobs["a"].jct_seconds == 1100

    def test_a_deadline_may_be_a_factor(self) -> None:
        jobs = [gp.Job("a", total_steps=1000), gp.Job("b", total_steps=1000, deadline_factor=1.2)]
        result = play(jobs, round_seconds=500)
        assert result.jobs["b"].late_seconds == 800
        assert (result.summary.with_deadline, result.summary.late) == (1, 1)

    def test_only_finished_jobs_meet_or_miss_deadlines(self) -> None:
        cancelled = gp.Submission(gp.Job("b", total_steps=4000, deadline_seconds=9000), cancelled_seconds=500)
        result = play([gp.Job("a", total_steps=100, deadline_seconds=5000), cancelled])
        assert (result.summary.with_deadline, result.summary.late) == (1, 0)
        active = play([gp.Job("a", total_steps=10_000, deadline_seconds=500)], until_seconds=720)
        assert (active.summary.with_deadline, active.jobs["a"].late_seconds) == (0, None)

    @pytest.mark.parametrize("between", [[], [gp.Job("b", total_steps=20_000, arrival_seconds=10)]])
    def test_an_id_is_used_once_in_a_trace(self, between: list[gp.Job]) -> None:
        jobs = [gp.Job("a", total_steps=100), *between, gp.Job("a", total_steps=100, arrival_seconds=9000)]
        speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
        text = "job 'a', field job_id: is that of an earlier job; each job of a trace needs an id of its own"
        assert refusal(lambda: gp.simulate(jobs, gp.Cluster.from_inline("v100:4"), speeds)) == text

    def test_a_job_with_earlier_progress_fails_within_the_rest_of_its_work(self) -> None:
        job = gp.Job("a", total_steps=100_000, steps_done=99_000, max_retries=50)
        result = play([job], job_failures=0.9, seed=5, round_seconds=10)
        assert result.jobs["a"].failures > 1
        assert 1000 < result.jobs["a"].running_seconds < 1000 + 10 * result.jobs["a"].failures, "it loses at most a round each time"

    def test_the_clock_starts_with_the_first_job(self) -> None:
        result = play([gp.Job("a", total_steps=100, arrival_seconds=1e6)])
        assert result.summary.usage["v100"]["utilization"] == 1
        assert (
            play([gp.Job("a", total_steps=1), gp.Job("b", total_steps=1, arrival_seconds=1e6)], until_seconds=10).summary.usage[
                "v100"
            ]["gpu_seconds"]
            == 10
        )

    def test_a_job_that_is_done_when_it_arrives_has_finished(self) -> None:
        result = play([gp.Job("a", total_steps=10, steps_done=10), gp.Job("b", total_steps=10)])
        assert result.jobs["a"].jct_seconds == 0
        assert result.summary.outcomes["finished"] == 2

    def test_duration_stands_for_steps(self) -> None:
        job = gp.Job("a", duration_seconds=100, duration_accelerator="k80")
        cluster = gp.Cluster.from_counts({"v100": 1, "k80": 1})
        result = gp.simulate([job], cluster, speeds([job], [4.0, 1.0], accelerators=("v100", "k80")), "fifo")
        assert result.jobs["a"].jct_seconds == 25


class TestNodes:
    def test_maintenance_takes_gpus_away_and_gives_them_back(self) -> None:
        job = gp.Job("a", total_steps=1000)
        window = gp.NodeWindow("v100-0", 720, 1440)
        result = play([job], round_seconds=360, maintenance=[window])
        # The job runs for two rounds; its node is down from 720 s to 1440 s.
        assert result.jobs["a"].jct_seconds == 1440 + 1000 - 720
        assert result.summary.usage["v100"]["down"] == 720

    def test_a_job_loses_what_it_did_in_the_round_in_which_its_node_fails(self) -> None:
        jobs = [gp.Job("a", total_steps=5000)]
        result = play(jobs, "v100:1", round_seconds=100, node_failures=gp.NodeFailures(1000, 50), seed=3)
        job = result.jobs["a"]
        assert job.outcome is gp.Outcome.FINISHED
        assert job.lost_gpu_seconds > 0
        assert job.running_seconds == pytest.approx(5000 + job.lost_gpu_seconds)
        usage = result.summary.usage["v100"]
        assert usage["used"] + usage["idle"] + usage["down"] == pytest.approx(usage["gpu_seconds"])

    def test_a_job_that_can_run_nowhere_has_a_reason(self) -> None:
        result = play([gp.Job("a", total_steps=10), gp.Job("wide", num_gpus=4, total_steps=10)], "v100:2")
        assert result.jobs["wide"].outcome is gp.Outcome.ACTIVE
        assert result.jobs["wide"].reason == "its gang of 4 GPUs fits nowhere (largest gang that fits: v100: 2)"
        assert result.summary.outcomes == {"finished": 1, "failed": 0, "cancelled": 0, "active": 1}


class TestFates:
    def test_failed_attempts_of_the_trace_are_replayed(self) -> None:
        job = gp.Job("a", total_steps=1000, max_retries=1)
        fine = play([gp.Submission(job, failed_attempts=1)], job_failures="recorded")
        assert fine.jobs["a"].outcome is gp.Outcome.FINISHED
        assert fine.jobs["a"].failures == 1
        assert fine.jobs["a"].running_seconds == pytest.approx(1000 + fine.jobs["a"].lost_gpu_seconds)
        lost = play([gp.Submission(job, failed_attempts=2)], job_failures="recorded")
        assert lost.jobs["a"].outcome is gp.Outcome.FAILED
        assert lost.summary.outcomes["failed"] == 1

    def test_a_job_is_cancelled_when_the_trace_says(self) -> None:
        jobs = [gp.Submission(gp.Job("a", total_steps=1000), cancelled_seconds=500), gp.Submission(gp.Job("b", total_steps=100))]
        result = play(jobs)
        assert result.jobs["a"].outcome is gp.Outcome.CANCELLED
        assert result.jobs["a"].running_seconds == 500
        assert result.jobs["b"].end_seconds == 600

    def test_a_job_that_can_run_nowhere_is_cancelled_too(self) -> None:
        result = play([gp.Submission(gp.Job("wide", num_gpus=4, total_steps=5), cancelled_seconds=500)])
        assert result.jobs["wide"].end_seconds == 500
        assert result.jobs["wide"].outcome is gp.Outcome.CANCELLED

    def test_policies_see_estimates_and_jobs_do_their_true_steps(self) -> None:
        """b has the shorter estimate, but takes far longer."""
        jobs = [
            gp.Submission(gp.Job("a", total_steps=400), run_seconds=400, estimate_seconds=400),
            gp.Submission(gp.Job("b", total_steps=1000), run_seconds=1000, estimate_seconds=100),
        ]
        exact, expected = (play(jobs, policy="shortest_job_first", estimates=e) for e in ("exact", "recorded"))
        assert exact.jobs["a"].end_seconds == 400
        assert expected.jobs["b"].first_start_seconds == 0
        assert {job.outcome for job in expected.jobs.values()} == {gp.Outcome.FINISHED}
        assert expected.jobs["b"].steps_done == 1000


class TestTimeAlone:
    """One GPU: a arrives first, b of half an hour 100 s later, with a lower priority; nothing else happens."""

    LONG = (gp.Job("a", total_steps=36000, priority=1), gp.Job("b", total_steps=1800, arrival_seconds=100))

    @pytest.mark.parametrize(("round_seconds", "start"), [(360.0, 3600), (500.0, 4000), (None, 3600)])
    def test_a_job_that_has_run_for_the_threshold_gives_way(self, round_seconds: float | None, start: float) -> None:
        jobs = play(self.LONG, policy="least_attained_service", round_seconds=round_seconds).jobs
        assert (jobs["b"].first_start_seconds, jobs["b"].end_seconds) == (start, start + 1800)

    def test_at_events_a_gang_gives_way_when_its_gpus_add_up_to_the_threshold(self) -> None:
        """a runs alone until 900 s (4 GPUs), then b and c until each has run for an hour as well, then a again, which is first."""
        jobs = [gp.Job("a", num_gpus=4, total_steps=2000)]
        jobs += [gp.Job(name, num_gpus=2, total_steps=4000, arrival_seconds=100) for name in "bc"]
        assert jcts(play(jobs, "v100:4", "least_attained_service", round_seconds=None)) == [3800, 5900, 5900]

    def test_at_events_an_overdue_job_runs_until_the_other_is_overdue(self) -> None:
        """b runs from 3,700 s on, when it has waited for an hour."""
        jobs = play(self.LONG, policy=gp.resolve_policy("priority", max_wait_seconds=3600), round_seconds=None).jobs
        assert (jobs["b"].first_start_seconds, jobs["b"].end_seconds) == pytest.approx((3700, 5500))
        longer = [self.LONG[0], self.LONG[1].model_copy(update={"total_steps": 5000})]
        jobs = play(longer, policy=gp.resolve_policy("priority", max_wait_seconds=3600), round_seconds=None).jobs
        assert jobs["b"].preemptions == 1
        assert jobs["b"].end_seconds == pytest.approx(3700 + 3600 + 3600 + 1400)

    def test_in_rounds_an_overdue_job_runs_for_a_round(self) -> None:
        """It has waited for more than an hour at 3,960 s and again at 8,280 s, 3,960 s after its round."""
        starts: dict[str, list[float]] = {"a": [], "b": []}

        def note(current: gp.Round) -> None:
            for job_id in current.started:
                starts[job_id].append(current.start_seconds)

        policy = gp.resolve_policy("priority", max_wait_seconds=3600)
        play(self.LONG, policy=policy, until_seconds=9000, on_round=note)
        assert starts == {"a": [0, 4320, 8640], "b": [3960, 8280]}

    def test_at_events_a_job_starts_when_the_minimum_run_time_of_another_ends(self) -> None:
        jobs = [gp.Job("a", total_steps=1000), gp.Job("b", total_steps=20, arrival_seconds=10)]
        assert jcts(play(jobs, policy="shortest_job_first", round_seconds=None, min_run_seconds=100)) == [1020, 110]

    def test_events_of_other_jobs_change_nothing(self) -> None:
        here = [each.model_copy(update={"allowed_accelerators": ("v100",)}) for each in self.LONG]
        others = [gp.Job(f"c{i}", total_steps=7, arrival_seconds=777 * i, allowed_accelerators=("k80",)) for i in range(9)]
        jobs = sorted([*here, *others], key=lambda each: each.arrival_seconds)
        found = play(jobs, "v100:1,k80:1", "least_attained_service", round_seconds=None).jobs
        assert (found["b"].first_start_seconds, found["b"].end_seconds) == (3600, 5400)


class TestWrongInput:
    JOB = gp.Job("a", total_steps=10)

    def test_event_mode_needs_whole_time_fractions(self) -> None:
        assert refusal(play, [self.JOB], policy="max_min_fairness", round_seconds=None) == (
            "simulation, field round_seconds: must be given for max_min_fairness, which gives jobs fractions of their time; these "
            "need rounds"
        )
        continuous = gp.resolve_policy("least_attained_service", thresholds=())
        assert "whose order may change at any time" in refusal(play, [self.JOB], policy=continuous, round_seconds=None)

    def test_jobs_must_have_an_end(self) -> None:
        assert "is unknown, so it is not known when the job ends" in refusal(play, [gp.Job("a")])

    def test_jobs_must_come_in_order(self) -> None:
        jobs = [gp.Job("a", total_steps=1, arrival_seconds=5), gp.Job("b", total_steps=1, arrival_seconds=2)]
        assert refusal(play, jobs) == (
            "job 'b', field arrival_seconds: must not be before that of the previous job 'a' (5); sort the trace by arrival_seconds"
        )

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"job_failures": 1.0}, "field job_failures: must be at least 0 and below 1, or recorded, found 1.0"),
            ({"seed": -1}, "field seed: must be at least 0, found -1"),
            ({"seed": 1.0}, "field seed: must be a whole number, found 1.0"),
            ({"seed": "1"}, "field seed: must be a whole number, found '1'"),
            ({"start_seconds": "1"}, "field start_seconds: must be a number, found '1'"),
            ({"interference": "0.5"}, "field interference: must be a number, found '0.5'"),
            ({"node_failures": 5}, "field node_failures: must be an instance of NodeFailures, found 5"),
            ({"on_round": 5}, "field on_round: must be a function, found 5"),
            ({"round_seconds": None, "by_events": False}, "field by_events: must be True if round_seconds is None, found False"),
            ({"estimates": "guess"}, "must be one of 'exact' or 'recorded', found 'guess'"),
            ({"by_events": True, "policy": "isolated"}, "field round_seconds: must be given for isolated"),
            ({"nonsense": 1}, "field nonsense: is not known"),
            ({"maintenance": [gp.NodeWindow("v1", 0, 1)]}, "'v1' is not in the cluster"),
        ],
    )
    def test_settings(self, options: dict[str, Any], text: str) -> None:
        assert text in refusal(play, [self.JOB], **options)

    def test_node_failures(self) -> None:
        assert "mean_seconds_up" in refusal(gp.NodeFailures, 0, 1)
        assert "must be after start_seconds (2), found 1" in refusal(gp.NodeWindow, "n", 2, 1)


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Submission]:
    count = draw(st.integers(1, 12))
    arrivals = sorted(draw(st.lists(st.integers(0, 3000), min_size=count, max_size=count)))
    found = []
    for i, arrival in enumerate(arrivals):
        job = gp.Job(
            f"j{i}",
            arrival_seconds=arrival,
            num_gpus=draw(st.sampled_from([1, 1, 1, 2, 4])),
            total_steps=draw(st.integers(1, 2000)),
            weight=draw(st.sampled_from([1.0, 2.0])),
            max_retries=draw(st.integers(0, 2)),
            locality=draw(st.sampled_from(["any", "node"])),
        )
        cancelled = draw(st.none() | st.integers(arrival, arrival + 2000))
        found.append(gp.Submission(job, failed_attempts=draw(st.integers(0, 2)), cancelled_seconds=cancelled))
    return found


@settings(max_examples=examples(25, costly=True))
@given(
    trace=traces(),
    policy=st.sampled_from(["fifo", "shortest_job_first", "max_min_fairness", "finish_time_fairness"]),
    restart=st.sampled_from([0.0, 30.0, 500.0]),
    fails=st.booleans(),
    between=st.booleans(),
    checkpoint=st.sampled_from([None, 100.0]),
    retry=st.sampled_from([0.0, 200.0]),
    seed=st.integers(0, 5),
)
def test_steps_and_gpu_time_are_conserved(
    trace: list[gp.Submission],
    policy: str,
    restart: float,
    fails: bool,
    between: bool,
    checkpoint: float | None,
    retry: float,
    seed: int,
) -> None:
    jobs = [each.job for each in trace]
    cluster = gp.Cluster.from_inline("v100:4/2,k80:4/4")
    profile = speeds(jobs, *([2.0, 1.0] for _ in jobs), accelerators=("v100", "k80"))
    settings_: dict[str, Any] = {
        "restart_seconds": restart,
        "node_failures": gp.NodeFailures(3000, 400) if fails else None,
        "job_failures": "recorded",
        "seed": seed,
        "starts_between_rounds": between,
        "checkpoint_seconds": checkpoint,
        "retry_seconds": retry,
    }
    result = gp.simulate(trace, cluster, profile, policy, until_seconds=9_000, **settings_)
    usage = result.summary.usage
    for each in usage.values():
        assert min(each.values()) >= -1e-6
        assert each["used"] + each["idle"] + each["down"] == pytest.approx(each["gpu_seconds"])
    assert sum(each["used"] for each in usage.values()) == pytest.approx(sum(job.gpu_seconds for job in result.jobs.values()))
    assert sum(result.summary.outcomes.values()) == len(result.jobs) <= len(trace)
    for submitted in trace:
        job = result.jobs.get(submitted.job.job_id)
        if job is None:  # the simulation ended before it arrived
            continue
        if job.outcome is gp.Outcome.FINISHED:
            assert job.steps_done == submitted.job.total_steps
            assert job.jct_seconds == pytest.approx(job.running_seconds + job.queueing_seconds)
            # The time that was not lost suffices for all steps at no more than 2 steps/s.
            assert job.running_seconds - job.lost_gpu_seconds / job.num_gpus >= submitted.job.total_steps / 2 - 1e-6
        assert job.failures <= submitted.failed_attempts
    again = gp.simulate(trace, cluster, profile, policy, until_seconds=9_000, **settings_)
    assert _told(again) == _told(result)


@settings(max_examples=examples(5, costly=True))
@given(seed=st.integers(0, 10**6), sharing=st.booleans(), failures=st.sampled_from([0.0, 0.3]), elastic=st.booleans())
def test_gangs_started_one_by_one_or_all_at_once_have_the_same_records(
    seed: int, sharing: bool, failures: float, elastic: bool
) -> None:
    """A few gangs are started and stopped with numbers, and many with arrays; both give the same digits."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(40, profile, jobs_per_hour=None, gang_mix={1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}, seed=seed)
    if elastic:
        counts = {"gpu_counts": (1, 2, 4), "num_gpus": 1}
        jobs = [each.job.model_copy(update=counts if each.job.num_gpus == 1 else {}) for each in trace]
    else:
        jobs = [each.job for each in trace]
    cluster = gp.Cluster.from_counts({"v100": (8, 4), "p100": (8, 4), "k80": (8, 4)})
    found = []
    for few in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            for module in ("running_gangs", "round_execution"):
                patch.setattr(f"gavel_py.simulator.{module}.FEW", few)
            options: dict[str, Any] = {"sharing": sharing and not elastic, "job_failures": failures, "seed": seed % 7}
            found.append(gp.simulate(jobs, cluster, profile, restart_seconds=20.0, until_seconds=10_000.0, **options))
    assert _told(found[0]) == _told(found[1])
    assert any(record.starts > 1 for record in found[0].jobs.values())


@pytest.mark.parametrize("change", [lambda scheduler: scheduler.node_down("n"), lambda scheduler: scheduler.cancel("a")])
def test_gangs_stop_that_a_caller_takes_from_the_scheduler_between_rounds(change: Callable[[gp.RoundScheduler], object]) -> None:
    jobs = [gp.Job(name, total_steps=1e6) for name in "ab"]
    cluster = gp.Cluster([gp.Node(name=name, accelerator="v100", num_gpus=1) for name in ("n", "m")])
    simulation = gp.Simulation(jobs, cluster, speeds(jobs, [1.0], [1.0]))
    simulation.step()
    change(simulation.scheduler)
    simulation.step()
    assert simulation.used_gpu_seconds == (2 * 360.0 + 360.0,)
    assert sorted(job.running_seconds for job in simulation.result().jobs.values()) == [360.0, 720.0]


def _told(result: gp.SimulationResult) -> str:
    summary = replace(result.summary, solver_seconds=0.0, wall_seconds=0.0)
    return json.dumps(replace(result, summary=summary).to_dict())


def test_a_stopped_simulation_continues_with_the_same_results() -> None:
    jobs = [gp.Job(f"j{i}", total_steps=400 * (i + 1), arrival_seconds=200 * i) for i in range(6)]
    cluster = gp.Cluster.from_counts({"v100": 2})
    whole = gp.Simulation(jobs, cluster, speeds(jobs), "max_min_fairness").run()
    stopped = gp.Simulation(jobs, cluster, speeds(jobs), "max_min_fairness")
    assert stopped.run(until_seconds=1000).summary.outcomes["active"] > 0
    assert _told(stopped.run()) == _told(whole)


def test_on_record_takes_the_records() -> None:
    jobs = [gp.Job(f"j{i}", total_steps=100) for i in range(5)]
    seen: list[str] = []
    result = play(jobs, "v100:2", on_record=lambda record: seen.append(record.job_id))
    assert sorted(seen) == [job.job_id for job in jobs]
    assert result.jobs == {}
    assert result.summary.outcomes["finished"] == 5


def test_fairness_against_the_isolated_share() -> None:
    jobs = [gp.Job(f"j{i}", total_steps=1000) for i in range(4)]
    shared, isolated = (play(jobs, "v100:2", policy) for policy in ("max_min_fairness", "isolated"))
    ratios = shared.finish_time_fairness(isolated)
    assert sorted(ratios) == sorted(job.job_id for job in jobs)
    assert np.mean(list(ratios.values())) < 1.2
