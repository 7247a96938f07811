"""Jobs that fail, change and leave, and reports that come late."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.scheduling.schedulers import job, line, refused, scheduler, shares
from tests.scheduling.test_scheduler import Recorder


def test_a_job_that_fails_is_tried_again_up_to_its_limit_and_then_reported() -> None:
    made = scheduler(jobs=[job("a", max_retries=2)])
    made.next_round()
    for _ in range(2):
        assert made.job_failed("a") is True
        round_ = made.next_round()
        assert (round_.started, round_.kept, round_.failed) == (("a",), (), {})
    assert made.job_failed("a") is False
    assert made.jobs == ()
    assert made.failed == {"a": "left after 3 failures, and may not be tried again"}
    round_ = made.next_round()
    assert (round_.assignments, round_.preempted, round_.failed) == ({}, (), made.failed)
    assert made.next_round().failed == {}


def test_a_job_has_three_retries_by_default() -> None:
    made = scheduler(jobs=[job("a"), job("once", max_retries=0)])
    assert [made.job_failed("a") for _ in range(4)] == [True, True, True, False]
    assert made.job_failed("once") is False
    assert list(made.failed) == ["a", "once"]


def test_a_failed_job_holds_no_gpus_and_its_round_was_delivered() -> None:
    made = scheduler(jobs=[job("a")], round_seconds=10)
    made.next_round()
    made.job_failed("a")
    assert made.running == {}
    assert made.lease("a") is None
    assert made.delivery().jobs["a"].delivered_seconds == 10


def test_a_job_that_was_not_launched_keeps_its_deficit_and_has_not_failed() -> None:
    made = scheduler("v100:2", [job("a", max_retries=0), job("b")], round_seconds=10)
    made.next_round()
    for _ in range(2):
        made.interrupted("a")
        assert list(made.running) == ["b"]
        assert made.delivery().jobs["a"].delivered_seconds == 0
    round_ = made.next_round()
    assert (round_.started, round_.kept) == (("a",), ("b",))
    assert made.delivery().jobs["a"].undelivered_seconds == 10


@pytest.mark.parametrize("retries", [-1, 1.5, "many", True, None])
def test_wrong_limits_are_refused(retries: Any) -> None:
    assert "job 'a', field max_retries: must be" in refused(job, "a", max_retries=retries)


def test_changed_weights_count_from_the_next_round_on() -> None:
    recorder = Recorder()
    made = scheduler("v100:2", [job("a"), job("b")], policy=recorder)
    made.next_round()
    made.update("a", weight=3.0, priority=2, deadline_seconds=1e6, tenant="t", max_retries=7)
    made.next_round()
    assert recorder.seen[-1].weights.tolist() == [3, 1]
    assert made.jobs[0].max_retries == 7
    made.next_round()
    assert len(recorder.seen) == 2


def test_a_change_of_gang_size_restarts_the_job_and_a_change_of_weight_does_not() -> None:
    made = scheduler("v100:4/4", [job("a"), job("b")], policy=shares(a=1.0, b=1.0), round_seconds=10)
    made.next_round()
    made.update("a", weight=2.0)
    assert made.next_round().kept == ("a", "b")
    made.update("a", num_gpus=2)
    assert list(made.running) == ["b"]
    round_ = made.next_round()
    assert (round_.kept, round_.started) == (("b",), ("a",))
    assert len(round_.assignments["a"].gpus) == 2
    account = made.delivery().jobs["a"]
    # Two rounds with one GPU and one with two are as many GPU-seconds as two rounds with two.
    assert (account.num_gpus, account.delivered_seconds, account.promised_seconds) == (2, 20, 20)


def test_a_gang_that_may_no_longer_run_where_it_does_leaves() -> None:
    made = scheduler("v100:1,k80:1", [job("a", allowed_accelerators=("v100",))])
    assert made.next_round().assignments["a"].accelerator == "v100"
    made.update("a", allowed_accelerators=("k80",))
    assert made.next_round().assignments["a"].accelerator == "k80"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"job_id": "b"}, "field job_id: cannot be changed: it identifies the job; submit another job instead"),
        ({"arrival_seconds": 9}, "field arrival_seconds: cannot be changed: it has happened"),
        ({"steps_done": 9}, "field steps_done: cannot be changed: it is set by `report`"),
        ({"wait": 1}, "field wait: is not known; did you mean 'weight'?"),
        ({"weight": 0}, "field weight: must be greater than 0, found 0"),
        ({"allowed_accelerators": ("v10",)}, "accelerator 'v10' is in neither the cluster nor the profile"),
        ({"total_steps": None}, "field steps_remaining: is unknown, but min_makespan needs it"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason_and_nothing_changes(fields: dict[str, Any], problem: str) -> None:
    made = scheduler(jobs=[job("a", total_steps=10)], policy="min_makespan")
    made.next_round()
    before = made.jobs
    message = refused(lambda: made.update("a", **fields))
    assert "job 'a'" in message
    assert problem in message
    assert made.jobs == before
    assert list(made.running) == ["a"]


def test_a_late_report_counts_while_the_job_is_there() -> None:
    made = scheduler(jobs=[job("a", total_steps=100), job("b")], policy=shares(a=1.0))
    made.next_round()
    made.job_failed("a")
    made.report("a", steps_done=30)
    made.policy = shares(b=1.0)
    made.next_round()
    made.report("a", steps_done=40)
    assert made.jobs[0].steps_done == 40
    made.report("a", steps_done=25)  # from an older checkpoint
    assert made.jobs[0].steps_done == 25


@pytest.mark.parametrize(
    ("leave", "how"),
    [
        (lambda made: made.complete("a"), "it was completed"),
        (lambda made: made.cancel("a"), "it was cancelled"),
        (lambda made: made.job_failed("a"), "it failed for good, after 1 failure"),
    ],
)
def test_a_report_for_a_job_that_has_left_raises_and_changes_nothing(leave: Any, how: str) -> None:
    made = scheduler(jobs=[job("a", max_retries=0), job("b")])
    made.next_round()
    leave(made)
    for call in (
        partial(made.report, steps_done=5),
        made.complete,
        made.cancel,
        made.job_failed,
        made.interrupted,
        made.update,
        made.lease,
    ):
        with pytest.raises(gp.UnknownNameError) as caught:
            call("a")
        assert str(caught.value) == f"job 'a', field job_id: is no longer in the system: {how}; nothing has changed"
    assert line([made.next_round()]) == ["b"]


def test_steps_that_were_lost_take_their_isolated_time_with_them() -> None:
    recorder = Recorder()
    made = scheduler(policy=recorder, jobs=[job("a", total_steps=10_000, steps_done=100)])
    made.next_round()
    seconds = []
    for steps in (500, 300, 500, 100, 50):
        made.report("a", steps_done=steps)
        made.next_round()
        seconds.append(float(recorder.seen[-1].isolated_seconds[0]))
    speed = recorder.seen[-1].isolated_throughput[0]
    assert seconds == pytest.approx([400 / speed, 200 / speed, 400 / speed, 0, 0])


def test_restart_costs_go_to_the_mechanism_in_rounds() -> None:
    seen = []
    made = scheduler("v100:2", [job("a"), job("b", restart_seconds=30)], round_seconds=60, restart_seconds=15)
    choose = gp.scheduling.choose_jobs
    made.mechanism = lambda demand: (seen.append(demand.restart_rounds.tolist()), choose(demand))[1]
    made.next_round()
    assert seen[0] == [0.25, 0.5]


def test_a_minimum_run_time_of_six_rounds_is_six_rounds_also_if_their_starts_are_rounded() -> None:
    made = scheduler("v100:1", [job("a"), job("b")], policy=shares(a=0.5, b=0.5), round_seconds=0.1, min_run_seconds=0.6)
    assert "".join(line([made.next_round() for _ in range(14)])) == "aaaaaabbbbbbbb"


@pytest.mark.parametrize("name", ["restart_seconds", "min_run_seconds", "solve_seconds"])
@pytest.mark.parametrize(
    ("seconds", "problem"),
    [
        (-1, "at least 0, found -1"),
        (float("inf"), "a finite number, found inf"),
        (float("nan"), "a finite number, found nan"),
        ("five", "a number, found 'five'"),
        ("5", "a number, found '5'"),
        (None, "a number, found None"),
        (True, "a number, found True"),
    ],
)
def test_wrong_costs_and_times_are_refused(name: str, seconds: Any, problem: str) -> None:
    assert refused(lambda: scheduler(**{name: seconds})) == f"round scheduler, field {name}: must be {problem}"


def test_a_gang_is_not_preempted_before_its_minimum_run_time() -> None:
    made = scheduler(jobs=[job("a"), job("b")], policy=shares(a=1.0), round_seconds=10, min_run_seconds=30)
    assert line([made.next_round()]) == ["a"]
    made.policy = shares(b=1.0)
    rounds = [made.next_round() for _ in range(4)]
    assert line(rounds) == ["a", "a", "b", "b"]
    assert rounds[1].kept == ("a",)


def test_single_gangs_can_be_kept_until_a_time_also_after_a_restart(tmp_path: Path) -> None:
    made = scheduler(jobs=[job("a"), job("b")], policy=shares(a=1.0), round_seconds=10)
    made.next_round()
    made.keep_running("a", 25.0)
    made.policy = shares(b=1.0)
    assert line([made.next_round()]) == ["a"]
    made.save(tmp_path / "state.json")
    for each in (made, gp.RoundScheduler.load(tmp_path / "state.json", made.profile, policy=shares(b=1.0))):
        assert line([each.next_round() for _ in range(3)]) == ["a", "b", "b"], "at 20 s, 30 s and 40 s"
    with pytest.raises(gp.UnknownNameError):
        made.keep_running("nobody", 1.0)
    with pytest.raises(gp.InputError, match=r"until_seconds: must be a finite number, found nan"):
        made.keep_running("a", float("nan"))


def test_no_minimum_run_time_holds_a_gang_on_what_is_lost_draining_or_forbidden() -> None:
    for change in (
        lambda made: made.node_down("v100-0"),
        lambda made: made.drain("v100-0"),
        lambda made: made.gpu_lost("v100-0", 0),
        lambda made: made.update("a", allowed_accelerators=("k80",)),
        lambda made: setattr(made, "policy", gp.resolve_policy("max_min_fairness", constraints=[gp.Forbid("a", "v100")])),
    ):
        made = scheduler("v100:1,k80:1", [job("a")], round_seconds=10, min_run_seconds=1000)
        assert made.next_round().assignments["a"].accelerator == "v100"
        change(made)
        assert made.next_round().assignments["a"].accelerator == "k80"


def test_jobs_that_have_left_can_be_forgotten() -> None:
    made = scheduler("v100:3", [job("a"), job("b", max_retries=0), job("c")], round_seconds=10)
    made.next_round()
    made.complete("a")
    made.job_failed("b")
    assert "has left since the last round was decided" in refused(made.forget, "a")
    assert made.forgettable == []
    assert "is still in the system; complete or cancel it first" in refused(made.forget, "c")
    with pytest.raises(gp.UnknownNameError, match="was never in the system"):
        made.forget("d")
    made.next_round()
    assert made.forgettable == ["a", "b"]
    made.forget("a", "b")
    report = made.delivery()
    assert (list(report.jobs), report.delivered_gpu_seconds, made.failed) == (["c"], 20, {})
    made.submit(job("a", 2))
    assert made.next_round().started == ("a",)
    assert [account.delivered_seconds for account in made.delivery().jobs.values()] == [10, 30]


def test_gangs_found_running_go_on_and_nothing_is_counted() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:4/2"), speeds)  # type: ignore[arg-type]
    made.submit_all([gp.Job("a", num_gpus=2), gp.Job("b", num_gpus=2)])
    made.found_running("b", {"v100-1": 2})
    made.interrupted("b")
    made.found_running("b", {"v100-1": 2})
    begun = made.next_round()
    assert begun.assignments["b"].gpus == [("v100-1", 0), ("v100-1", 1)]
    assert begun.kept == ("b",)
    made.round_seconds = 1000.0  # what is taken back is as long as the round was
    made.interrupted("b")
    assert made.delivery().jobs["b"].delivered_seconds == 0
    made.found_running("b", {"v100-1": 2})
    with pytest.raises(gp.InputError, match="2 GPUs of node 'v100-1' are given, but 0 are free there"):
        made.found_running("a", {"v100-1": 2})
    with pytest.raises(gp.InputError, match="must be 2 in total, found 1"):
        made.found_running("a", {"v100-0": 1})
    with pytest.raises(gp.InputError, match="cluster, field node: 'v100-9' is not in the cluster"):
        made.found_running("a", {"v100-9": 2})
    for wrong in (0, -2, 1.0, True):
        with pytest.raises(gp.InputError, match=f"gpus of node 'v100-0': must be a whole number of at least 1, found {wrong}"):
            made.found_running("a", {"v100-0": wrong})  # type: ignore[dict-item]
    made.update("a", num_gpus=0.5)
    with pytest.raises(gp.InputError, match=r"needs a job with whole GPUs; this one has 0\.5"):
        made.found_running("a", {"v100-0": 1})
    with pytest.raises(gp.InputError, match="appears twice"):
        made.submit_all([gp.Job("c"), gp.Job("c")])
    assert {job.job_id for job in made.jobs} == {"a", "b"}


def test_another_profile_must_know_the_cluster() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0, 2.0]], job_ids=["a"], accelerators=["v100", "k80"])
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:1,k80:1"), speeds)  # type: ignore[arg-type]
    made.submit(gp.Job("a"))
    assert made.next_round().assignments["a"].accelerator == "k80"
    with pytest.raises(gp.InputError, match="lacks accelerator 'k80', which the cluster has"):
        made.profile = gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["a"], accelerators=["v100"])  # type: ignore[assignment]
    made.profile = gp.ThroughputProfile.from_matrix([[3.0, 2.0]], job_ids=["a"], accelerators=["v100", "k80"])  # type: ignore[assignment]
    for _ in range(9):
        latest = made.next_round()
    assert latest.assignments["a"].accelerator == "v100"


@pytest.mark.parametrize("by_workflow", [True, False])
def test_a_deadline_that_is_a_factor_follows_the_profile(by_workflow: bool) -> None:
    """Twice the time of 1,000 steps on the fastest type: 200 s at 10 steps/s, and 400 s at 5."""
    due: list[float] = []

    class Seeing(gp.OrderedPolicy):
        reads = ("deadlines_seconds",)

        def sort_key(self, jobs: Any) -> Any:
            due.extend(jobs.deadlines_seconds.tolist())
            return jobs.deadlines_seconds

    speeds = [gp.ThroughputProfile.from_matrix([[rate]], job_ids=["a"], accelerators=["v100"]) for rate in (10.0, 5.0)]
    cluster = gp.Cluster.from_counts({"v100": 1})
    made = gp.RoundScheduler(cluster, speeds[0], Seeing(), round_seconds=10, by_workflow=by_workflow)
    made.submit(gp.Job("a", total_steps=1000, deadline_factor=2))
    made.next_round()
    made.profile = speeds[1]
    made.next_round()
    assert (due[0], due[-1]) == (200.0, 390.0), "from now"


@pytest.mark.parametrize("by_events", [False, True])
def test_gangs_of_forgotten_jobs_are_dropped_and_change_no_round(monkeypatch: pytest.MonkeyPatch, by_events: bool) -> None:
    """To a profile of the user each job is a gang of its own."""
    policy = "shortest_job_first" if by_events else "max_min_fairness"

    def played() -> tuple[list[gp.Round], int]:
        made = scheduler("v100:3,k80:2", by_events=by_events, policy=policy)
        rounds = []
        for number in range(25):
            made.submit(job(f"j{number}", 1 + number % 2, ["fast", "slow"][number % 2], total_steps=9000))
            if number % 3 == 0:
                made.update(f"j{number}", num_gpus=2)
            if number >= 4:
                made.complete(f"j{number - 4}")
            rounds.append(made.next_round())
            if number >= 4:
                made.forget(f"j{number - 4}")
            if number == 20:
                made.solve_seconds = 0.0 if by_events else 1e4
        return rounds, len(made._state.table.gang_numbers.models)

    expected, kept = played()
    monkeypatch.setattr("gavel_py.scheduling.state.MAX_UNUSED_FACTOR", 0)
    monkeypatch.setattr("gavel_py.scheduling.state.UNUSED_SLACK", 6)
    found, left = played()
    assert found == expected
    assert kept > 25
    assert left < 12


def test_times_from_before_a_scheduler_count() -> None:
    """Job a has had its hour of GPUs, so b goes first; without that, a would, since it arrived first."""
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds, "least_attained_service", by_events=True)
    made.submit_all([gp.Job("a", total_steps=1e6), gp.Job("b", total_steps=1e6, arrival_seconds=5)])
    made.note_times("a", attained_gpu_seconds=3600, waiting_since_seconds=0)
    assert list(made.next_round(10.0).assignments) == ["b"]
    assert made.next_change_seconds == 10 + 3600
    with pytest.raises(gp.UnknownNameError, match="job 'c'"):
        made.note_times("c", attained_gpu_seconds=0, waiting_since_seconds=0)
    with pytest.raises(gp.InputError, match="attained_gpu_seconds"):
        made.note_times("a", attained_gpu_seconds=float("nan"), waiting_since_seconds=0)
