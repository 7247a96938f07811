"""The round scheduler as its users see it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE, job, line, refused, scheduler, shares
from tests.support.examples import examples


@dataclass(frozen=True, kw_only=True)
class Recorder(gp.Policy):
    """Gives nothing, and keeps the problems that it was shown."""

    seen: list[gp.AllocationProblem] = field(default_factory=list)

    reduces = False

    def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:  # noqa: ARG002
        self.seen.append(jobs.problem)
        return gp.policies.Decision(np.zeros(jobs.throughputs.shape))


def test_two_jobs_share_a_gpu() -> None:
    """Turns are short at first, so that each job soon has its part, and longer later, so that fewer restarts are needed."""
    made = scheduler(jobs=[job("a"), job("b")])
    assert line([made.next_round() for _ in range(25)]) == list("abbbaaaabbbbbaaaaaabbbbbb")


def test_kept_started_and_preempted_jobs_of_a_round() -> None:
    made = scheduler("v100:2/2", [job("a"), job("b")], policy=shares(a=1.0, b=1.0))
    first, second = made.next_round(), made.next_round()
    assert first.assignments == {"a": gp.Assignment("v100", [("v100-0", 0)]), "b": gp.Assignment("v100", [("v100-0", 1)])}
    assert (first.kept, first.started, first.preempted) == ((), ("a", "b"), ())
    assert (second.kept, second.started, second.preempted) == (("a", "b"), (), ())
    made.submit(job("c", 2))
    made.policy = shares(c=1.0)
    third, fourth = made.next_round(), made.next_round()
    assert (third.kept, third.started, third.preempted) == ((), ("c",), ("a", "b"))
    assert (fourth.kept, fourth.started, fourth.preempted) == (("c",), (), ())


def test_a_moved_job_has_started() -> None:
    """a and b run on a node each; the node gang c needs one of the two, and a moves beside b."""
    made = scheduler("v100:4/2", [job("a0", 2), job("b"), job("b0")], policy=shares(a=1.0, a0=1.0, b=1.0, b0=1.0, c=1.0))
    made.next_round()
    made.complete("a0")
    made.submit(job("a"))
    assert made.next_round().assignments["a"].gpus == [("v100-0", 0)]
    made.complete("b0")
    made.submit(job("c", 2, locality="node"))
    moved = made.next_round()
    assert moved.assignments["a"].gpus == [("v100-1", 1)]
    assert (moved.kept, moved.started, moved.preempted) == (("b",), ("a", "c"), ())


def test_rounds_follow_one_another_on_the_clock() -> None:
    made = scheduler(jobs=[job("a")], round_seconds=60)
    rounds = [made.next_round(), made.next_round(), made.next_round(1000), made.next_round(), made.next_round(1060)]
    assert [(r.index, r.start_seconds) for r in rounds] == [(0, 0), (1, 60), (2, 1000), (3, 1060), (4, 1060)]
    assert "not before the previous round, which started at 1060" in refused(made.next_round, 1059)
    assert "must be a finite number" in refused(made.next_round, math.nan)
    assert made.next_round().start_seconds == 1120


def test_the_allocation_is_solved_again_only_when_jobs_change() -> None:
    policy = Recorder()
    made = scheduler(jobs=[job("a", total_steps=100)], policy=policy)
    for _ in range(3):
        made.next_round()
    assert len(policy.seen) == 1
    made.report("a", steps_done=10)
    made.next_round()
    made.submit(job("b"))
    made.next_round()
    made.complete("b")
    made.next_round()
    made.next_round()
    assert [seen.job_ids for seen in policy.seen] == [("a",), ("a",), ("a", "b"), ("a",)]
    assert policy.seen[1].steps_remaining.tolist() == [90]


def test_the_policy_reads_the_histories_of_jobs() -> None:
    policy = Recorder()
    made = scheduler("v100:2", [job("a", 2, arrival_seconds=-50), job("b", arrival_seconds=1000)], policy=policy, round_seconds=100)
    made.next_round()
    made.next_round()
    made.submit(job("c", arrival_seconds=50))
    made.next_round()
    problem = policy.seen[-1]
    assert problem.attained_gpu_seconds.tolist() == [400, 0, 0]
    assert problem.elapsed_seconds.tolist() == [250, 0, 150]
    assert problem.waiting_seconds.tolist() == [0, 0, 150]
    assert problem.running_on.tolist() == [0, -1, -1]


def test_idle_gpus_go_to_waiting_jobs_unless_the_policy_forbids_it() -> None:
    jobs = [job("a", 2), job("b", 2), job("c")]
    assert line([scheduler("v100:3", jobs, policy="fifo").next_round()]) == ["a"]
    assert line([scheduler("v100:3", jobs, policy=gp.resolve_policy("fifo", backfill=True)).next_round()]) == ["ac"]
    assert line([scheduler("v100:3", jobs, policy=shares()).next_round()]) == ["ac"]


def test_a_job_that_can_run_nowhere_is_excluded_and_the_others_are_served() -> None:
    made = scheduler("v100:2", [job("big", 4), job("bad", job_type="stuck"), job("a")])
    round_ = made.next_round()
    assert line([round_]) == ["a"]
    assert set(round_.excluded) == {"big", "bad"}
    assert "fits nowhere" in round_.excluded["big"]


def test_a_finished_job_never_runs_again_and_is_not_preempted() -> None:
    made = scheduler("v100:2", [job("a", total_steps=100), job("b")])
    made.next_round()
    made.report("a", steps_done=150)
    round_ = made.next_round()
    assert (line([round_]), round_.preempted) == (["b"], ())
    assert "finished" in round_.excluded["a"]
    made.report("a", steps_done=151)
    made.complete("a")
    assert "a" not in made.next_round().excluded


def test_a_job_that_is_finished_when_it_is_submitted_never_runs() -> None:
    made = scheduler(jobs=[job("a", total_steps=10, steps_done=10)])
    assert made.next_round().assignments == {}


def test_cancelled_jobs_leave_and_their_gpus_are_free() -> None:
    made = scheduler(jobs=[job("a"), job("b")], policy=shares(a=1.0))
    made.next_round()
    made.cancel("a")
    round_ = made.next_round()
    assert (line([round_]), round_.preempted) == (["b"], ())
    assert [each.job_id for each in made.jobs] == ["b"]


def test_nothing_to_do() -> None:
    empty = scheduler().next_round()
    assert (empty.assignments, empty.kept, empty.started, empty.preempted, empty.excluded) == ({}, (), (), (), {})
    without_gpus = gp.RoundScheduler(gp.Cluster([]), PROFILE)
    without_gpus.submit(job("a"))
    for made in (without_gpus, scheduler("v100:0", [job("a")])):
        round_ = made.next_round()
        assert (round_.assignments, round_.excluded) == ({}, {"a": "the cluster has no GPUs"})


@pytest.mark.parametrize("steps", [-1, math.nan, math.inf, "many", None, True])
def test_wrong_progress_is_refused(steps: Any) -> None:
    made = scheduler(jobs=[job("a")])
    assert "job 'a', field steps_done: must be a finite number of at least 0" in refused(lambda: made.report("a", steps_done=steps))


def test_names_that_nothing_bears_are_refused() -> None:
    made = scheduler(jobs=[job("train-1")])
    for call in (partial(made.report, steps_done=1), made.complete, made.cancel):
        with pytest.raises(gp.UnknownNameError, match="did you mean 'train-1'"):
            call("train1")


def test_a_job_id_is_used_once() -> None:
    made = scheduler(jobs=[job("a")])
    assert "was submitted before" in refused(made.submit, job("a"))
    made.complete("a")
    assert "was submitted before" in refused(made.submit, job("a"))


def test_a_job_that_does_not_fit_the_profile_is_refused_at_once() -> None:
    made = scheduler(jobs=[job("a")])
    assert "accelerator 'v10'" in refused(made.submit, job("b", allowed_accelerators=("v10",)))
    assert line([made.next_round()]) == ["a"]


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [
        (0, "must be greater than 0, found 0"),
        (-1, "must be greater than 0, found -1"),
        (math.inf, "must be a finite number, found inf"),
        (math.nan, "must be a finite number, found nan"),
        ("long", "must be a number, found 'long'"),
        ("360", "must be a number, found '360'"),
        (b"360", "must be a number, found b'360'"),
    ],
)
def test_wrong_round_lengths_are_refused(seconds: Any, problem: str) -> None:
    assert f"round_seconds: {problem}" in refused(lambda: scheduler(round_seconds=seconds))


def test_a_job_without_what_the_policy_needs_is_refused_before_it_stops_every_round() -> None:
    made = scheduler(policy="min_makespan")
    assert "job 'a', field steps_remaining: is unknown, but min_makespan needs it" in refused(lambda: made.submit(job("a")))
    made.submit(job("b", total_steps=10))
    assert set(made.next_round().assignments) == {"b"}


@pytest.mark.parametrize("answer", [[5], [0, 0], [[0]], ["v100"], [0.0], None])
def test_a_mechanism_that_answers_nonsense_is_named_and_changes_nothing(answer: object) -> None:
    made = scheduler(jobs=[job("a")])
    sound, made.mechanism = made.mechanism, lambda _: answer  # type: ignore[assignment, return-value]
    assert "a mechanism must return a column or -1 for each of the 1 jobs" in refused(made.next_round)
    assert made.allocation is None
    made.mechanism = sound
    assert (made.next_round().index, set(made.delivery().jobs)) == (0, {"a"})


def test_a_mechanism_that_gives_a_gpu_twice_is_named() -> None:
    made = scheduler("v100:1", [job("a"), job("b")])
    made.mechanism = lambda demand: np.zeros(len(demand.num_gpus), dtype=int)
    assert "more gangs than there are GPUs" in refused(made.next_round)


def test_what_the_caller_does_with_a_round_changes_nothing() -> None:
    made = scheduler("v100:1", [job("a")])
    made.next_round().assignments["a"].gpus.clear()
    assert made.next_round().kept == ("a",)


def test_types_that_the_profile_does_not_know_are_left_out_where_that_is_allowed() -> None:
    with pytest.warns(gp.GavelWarning, match="4 GPUs are ignored"):
        made = scheduler("t4:4,v100:1", allow_unknown_types=True)
    made.submit(job("a"))
    made.submit(job("b"))
    assert len(made.next_round().assignments) == 1


def test_what_a_fixed_allocation_delivers() -> None:
    """2/3 of the time of three jobs on two GPUs, a hundred rounds: the promise is kept within the length of a turn."""
    made = scheduler("v100:2", [job("a"), job("b"), job("c")], round_seconds=10)
    for _ in range(300):
        made.next_round()
    report = made.delivery()
    for each in report.jobs.values():
        assert each.promised_seconds == pytest.approx(2000)
        assert each.delivered_seconds == pytest.approx(2000, abs=40)
    assert report.undelivered_share < 0.02
    assert made.allocation is not None
    assert made.allocation.time_fractions[:, 0].tolist() == pytest.approx([2 / 3] * 3)


def test_what_cannot_be_delivered_is_reported() -> None:
    """By count, two gangs of 2 may each have 3 GPUs for 3/4 of the time; one can run at a time, and c gets what is left."""
    made = scheduler("v100:3", [job("a", 2), job("b", 2), job("c")], policy=shares(a=0.75, b=0.75), round_seconds=10)
    for _ in range(200):
        made.next_round()
    report = made.delivery()
    assert report.undelivered_share == pytest.approx(1 / 3, abs=0.01)
    assert report.jobs["a"].undelivered_seconds == pytest.approx(500, abs=20)
    assert (report.jobs["c"].promised_seconds, report.jobs["c"].delivered_seconds) == (0, 2000)


def test_deficits_outlive_a_new_allocation() -> None:
    """b is promised half of the first round and does not run; when the allocation changes it is still owed that half."""
    made = scheduler(jobs=[job("a"), job("b")], policy=shares(a=0.5, b=0.5))
    assert line([made.next_round()]) == ["a"]
    made.submit(job("c"))
    made.policy = shares(b=0.5, c=0.5)
    assert line([made.next_round()]) == ["b"]
    assert made.delivery().jobs["b"].undelivered_seconds == 0


def test_another_mechanism_can_be_put_in() -> None:
    def last_first(demand: gp.RoundDemand) -> NDArray[np.int64]:
        columns = np.full(len(demand.num_gpus), -1)
        runnable = np.flatnonzero(demand.runnable[:, 0])
        columns[runnable[-1:]] = 0
        return columns

    assert line([scheduler(jobs=[job("a"), job("b")], mechanism=last_first).next_round()]) == ["b"]


def test_a_round_as_plain_data() -> None:
    made = scheduler("v100:2/2", [job("a", 2), job("b", 4)])
    document = made.next_round().to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["assignments"] == {"a": {"accelerator": "v100", "gpus": [["v100-0", 0], ["v100-0", 1]]}}
    assert (document["started"], list(document["excluded"])) == (["a"], ["b"])


def test_changing_a_returned_round_does_not_change_the_scheduler() -> None:
    made = scheduler(jobs=[job("a")])
    first = made.next_round()
    first.assignments["a"].gpus.clear()
    first.excluded["a"] = "changed"
    assert first.assignments["a"].gpus == [("v100-0", 0)]
    assert made.next_round().kept == ("a",)


@settings(max_examples=examples(25, costly=True))
@given(seed=st.integers(0, 2**32 - 1))
def test_any_history_keeps_the_books(seed: int) -> None:
    """Jobs come, report and go at random; each round's account adds up, and the same history gives the same rounds."""
    rounds, made = history(seed)
    assert repr(rounds) == repr(history(seed)[0])
    report = made.delivery()
    for job_id, account in report.jobs.items():
        ran = [r.assignments[job_id] for r in rounds if job_id in r.assignments]
        assert account.delivered_seconds == 10 * len(ran)
        assert all(len(set(assignment.gpus)) == account.num_gpus for assignment in ran)
    assert report.undelivered_gpu_seconds <= report.promised_gpu_seconds
    for before, now in zip([None, *rounds], rounds, strict=False):
        previous = before.assignments if before else {}
        assert set(now.kept) | set(now.started) == set(now.assignments)
        assert not set(now.kept) & set(now.started)
        assert all((now.assignments[i] == previous.get(i)) == (i in now.kept) for i in now.assignments)
        assert set(now.preempted) <= set(previous) - set(now.assignments)
        used = [gpu for assignment in now.assignments.values() for gpu in assignment.gpus]
        assert len(used) == len(set(used))


def history(seed: int) -> tuple[list[gp.Round], gp.RoundScheduler]:
    rng = np.random.default_rng(seed)
    made = scheduler("v100:6/4,k80:4/2", policy="shortest_job_first", round_seconds=10)
    rounds: list[gp.Round] = []
    for number in range(15):
        for _ in range(rng.integers(0, 3)):
            size, kind = int(rng.choice([1, 2, 4])), str(rng.choice(["fast", "slow"]))
            locality = ["any", "node"][rng.integers(2)]
            made.submit(job(f"{number}-{rng.integers(10**9)}", size, kind, total_steps=100, locality=locality))
        for each in made.jobs:
            if each.job_id in (rounds[-1].assignments if rounds else {}) and rng.random() < 0.5:
                made.report(each.job_id, steps_done=each.steps_done + 20)
            elif rng.random() < 0.1:
                made.complete(each.job_id)
        rounds.append(made.next_round())
    return rounds, made


def test_progress_counts_as_isolated_time_at_the_share_of_its_day() -> None:
    recorder = Recorder()
    made = scheduler(policy=recorder)
    made.submit(job("a", total_steps=10_000))
    made.next_round()
    speed = recorder.seen[-1].isolated_throughput[0]
    made.report("a", steps_done=300)
    made.submit(job("b", total_steps=10_000))
    made.next_round()
    assert recorder.seen[-1].isolated_seconds.tolist() == pytest.approx([300 / speed, 0])
    half = recorder.seen[-1].isolated_throughput[0]
    made.report("a", steps_done=400)
    made.next_round()
    assert recorder.seen[-1].isolated_seconds[0] == pytest.approx(300 / speed + 100 / half)
    assert half < speed


def test_rounds_keep_constraints_too() -> None:
    never = scheduler("v100:3", policy=gp.resolve_policy("max_min_fairness", constraints=[gp.Forbid("a")]))
    few = scheduler("v100:3", policy=gp.resolve_policy("max_min_fairness", constraints=[gp.MaxGpus(1)]))
    for made in (never, few):
        made.submit(job("a", total_steps=10_000))
        made.submit(job("b", total_steps=10_000))
    assert set(never.next_round().assignments) == {"b"}
    # No more than one GPU in the mean of the rounds; the two that are left over stay free.
    assert sum(len(few.next_round().assignments) for _ in range(8)) == 8


def test_a_cost_of_change_counts_from_the_last_allocation() -> None:
    made = scheduler("v100:1", policy=gp.resolve_policy("max_min_fairness", constraints=[gp.SwitchCost(0.8)]))
    made.submit(job("a", total_steps=10_000))
    assert set(made.next_round().assignments) == {"a"}  # level 1 for 0.8
    made.submit(job("b", total_steps=10_000))
    assert set(made.next_round().assignments) == {"a"}  # level ½ for both would cost 0.8 once more
