"""`solve_seconds`: an allocation that is reused while jobs come and go, until the next solve."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE, job, line, refused, scheduler, shares
from tests.scheduling.support import Fixed
from tests.scheduling.test_sharing import GAINING, KINDS, check_round, cluster_of, jobs_of, scheduler_of, two_that_gain
from tests.support.examples import examples
from tests.support.fakes import FakeProfile

ROUND = 10.0


@dataclass(frozen=True, kw_only=True)
class Equal(gp.Policy):
    """Gives all jobs the same part of their time on v100, and keeps the problems that it was shown."""

    fills: bool = True

    reduces = False

    @cached_property
    def seen(self) -> list[gp.AllocationProblem]:
        return []

    @property
    def backfills(self) -> bool:
        return self.fills

    def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:  # noqa: ARG002
        self.seen.append(jobs.problem)
        able = jobs.runnable & (np.array(jobs.accelerator_types) == "v100")
        asked = float((jobs.problem.num_gpus[:, None] * able).sum()) or 1.0
        return gp.policies.Decision(able * min(1.0, float(jobs.capacities[list(jobs.accelerator_types).index("v100")]) / asked))

    @property
    def asked(self) -> list[str]:
        """The job ids of each call of the policy, joined."""
        return ["".join(problem.job_ids) for problem in self.seen]


def seldom(cluster: str = "v100:2", names: str = "ab", **options: Any) -> tuple[gp.RoundScheduler, Equal]:
    """A scheduler that asks its policy every three rounds at the most, and the policy."""
    policy = options.pop("policy", None) or Equal()
    options = {"round_seconds": ROUND, "solve_seconds": 3 * ROUND} | options
    return scheduler(cluster, [job(name, total_steps=1e6) for name in names], policy=policy, **options), policy


def test_by_default_the_policy_is_asked_at_every_change() -> None:
    made, policy = seldom(solve_seconds=0.0)
    for name in "cde":
        made.next_round()
        made.submit(job(name))
    made.next_round()
    assert policy.asked == ["ab", "abc", "abcd", "abcde"]


def test_a_job_that_comes_waits_until_the_policy_is_asked_again() -> None:
    made, policy = seldom()
    first = made.next_round()
    made.submit(job("c"))
    early = [made.next_round() for _ in range(2)]
    assert (policy.asked, line([first, *early])) == (["ab"], ["ab"] * 3)
    assert [each.excluded for each in early] == [{}, {}]
    account = made.delivery().jobs["c"]
    assert (account.promised_seconds, account.delivered_seconds, account.why) == (0.0, 0.0, None)
    later = [made.next_round() for _ in range(30)]
    assert policy.asked == ["ab", "abc"]
    assert later[0].start_seconds == 3 * ROUND
    assert sum("c" in each.assignments for each in later) == pytest.approx(20, abs=3)
    assert made.delivery().jobs["c"].promised_seconds == pytest.approx(20 * ROUND)


def test_what_is_left_over_goes_to_jobs_that_came() -> None:
    made, policy = seldom("v100:3")
    made.next_round()
    made.submit_all([job("c"), job("d")])
    assert len(made.next_round().assignments) == 3
    assert policy.asked == ["ab"]
    report = made.delivery().jobs
    assert sum(report[name].delivered_seconds for name in "cd") == ROUND
    assert sum(report[name].promised_seconds for name in "cd") == 0.0
    assert [report[name].undelivered_seconds for name in "abcd"] == [0.0] * 4


def test_new_jobs_wait_if_the_policy_forbids_backfilling() -> None:
    made, _ = seldom("v100:3", policy=Equal(fills=False))
    made.next_round()
    made.submit(job("c"))
    assert line([made.next_round() for _ in range(3)]) == ["ab", "ab", "abc"]


@pytest.mark.filterwarnings("ignore:the ban of job 'c'")
def test_nor_where_constraints_keep_gpus_free_and_they_hold_for_jobs_that_came() -> None:
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.Forbid("c", "v100"), gp.MaxGpus(2)])
    made, _ = seldom("v100:2,k80:2", policy=policy)
    made.next_round()
    made.submit(job("c"))
    for _ in range(2):
        assert "c" not in made.next_round().assignments
    current_allocation = made._state.current_allocation
    assert current_allocation is not None
    assert current_allocation.problem.runnable[2].tolist() == [False, True]
    for _ in range(6):
        held = made.next_round().assignments
        assert "c" not in held or held["c"].accelerator == "k80"
    assert made.delivery().jobs["c"].promised_seconds > 0


def test_the_returned_allocation_is_the_proven_one() -> None:
    made, _ = seldom(policy=gp.resolve_policy("max_min_fairness"))
    made.next_round()
    proven = made.allocation
    made.submit(job("c"))
    made.cancel("a")
    made.next_round()
    assert made.allocation is proven
    assert proven is not None
    assert list(proven.job_ids) == ["a", "b"]
    assert proven.verify().gap == pytest.approx(0.0, abs=1e-9)


def test_a_job_that_has_left_is_promised_nothing_and_can_be_forgotten() -> None:
    made, policy = seldom(names="abc")
    made.next_round()
    made.complete("a")
    assert "has left since the last round was decided" in refused(made.forget, "a")
    assert line([made.next_round()]) == ["bc"]
    made.forget("a")
    assert "a" not in made.delivery().jobs
    made.submit(job("a"))
    assert line([made.next_round()]) == ["bc"]
    assert policy.asked == ["abc"]
    assert made.delivery().jobs["a"].promised_seconds == 0.0
    made.next_round()
    assert policy.asked == ["abc", "abc"]


def test_the_policy_is_called_at_once_if_all_jobs_with_time_have_left() -> None:
    made, policy = seldom()
    made.next_round()
    for name in "ab":
        made.complete(name)
    made.submit(job("c"))
    assert line([made.next_round()]) == ["c"]
    assert policy.asked == ["ab", "c"]
    waits, _ = seldom("v100:1", policy=Fixed(shares={"a": {"v100": 1.0}, "c": {"v100": 1.0}}, fills=False))
    waits.next_round()
    waits.complete("a")
    waits.submit(job("c"))
    assert line([waits.next_round()]) == ["c"]  # b, which was given nothing, is no reason to leave GPUs idle


def test_it_is_asked_at_once_where_there_were_no_jobs_before() -> None:
    made, policy = seldom(names="")
    made.next_round()
    made.submit(job("a"))
    assert line([made.next_round()]) == ["a"]
    assert policy.asked == ["a"]


def node_back(made: gp.RoundScheduler) -> None:
    made.node_down("v100-1")
    made.node_up("v100-1")


def gpu_back(made: gp.RoundScheduler) -> None:
    made.gpu_lost("v100-1", 0)
    made.gpu_back("v100-1", 0)


AT_ONCE: list[Callable[[gp.RoundScheduler], object]] = [
    lambda made: made.node_down("v100-1"),
    lambda made: made.drain("v100-1"),
    lambda made: made.gpu_lost("v100-1", 0),
    node_back,
    gpu_back,
    lambda made: setattr(made, "policy", made.policy),
    lambda made: setattr(made, "profile", FakeProfile(PROFILE.speeds)),
]


@pytest.mark.parametrize("change", AT_ONCE)
@pytest.mark.parametrize("kept_on_disk", [False, True])
def test_nodes_policy_and_profile_count_at_once(
    change: Callable[[gp.RoundScheduler], object], kept_on_disk: bool, tmp_path: Path
) -> None:
    made, policy = seldom("v100:3/1")
    made.next_round()
    made.submit(job("c"))
    made.next_round()
    assert policy.asked == ["ab"]
    change(made)
    if kept_on_disk:
        made.save(tmp_path / "state")
        made = gp.RoundScheduler.load(tmp_path / "state", made.profile, policy=policy)
    made.next_round()
    assert policy.asked == ["ab", "abc"]
    made.cancel("c")
    made.next_round()
    assert policy.asked == ["ab", "abc"]  # the time begins anew


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.submit(job("c")),
        lambda made: made.complete("a"),
        lambda made: made.cancel("a"),
        lambda made: made.job_failed("a"),
        lambda made: made.interrupted("a"),
        lambda made: made.update("a", weight=2.0),
        lambda made: made.report("a", steps_done=5),
    ],
)
def test_jobs_count_when_it_is_time_and_only_once(change: Callable[[gp.RoundScheduler], object]) -> None:
    made, policy = seldom()
    made.next_round()
    change(made)
    for _ in range(2):
        made.next_round()
    assert len(policy.seen) == 1
    for _ in range(9):
        made.next_round()
    assert len(policy.seen) == 2


def test_a_round_that_is_planned_ahead_is_asked_for_as_of_its_start() -> None:
    made, policy = seldom()
    for _ in range(3):
        made.next_round()
    made.submit(job("c"))
    assert made.plan_next().start_seconds == 3 * ROUND
    assert policy.asked == ["ab", "abc"]


def test_a_time_of_so_many_rounds_is_over_when_they_are() -> None:
    """0.1 + 0.1 + 0.1 is not 0.3."""
    for rounds in (3, 6, 7, 10):
        policy = Equal()
        made, _ = seldom(policy=policy, round_seconds=0.1, solve_seconds=rounds * 0.1)
        made.next_round()
        made.submit(job("c"))
        for _ in range(rounds):
            assert len(policy.seen) == 1
            made.next_round()
        assert len(policy.seen) == 2


def test_a_gang_that_asks_for_other_gpus_has_to_wait_for_its_share() -> None:
    made, policy = seldom("v100:4/4")
    made.next_round()
    made.update("a", num_gpus=2)
    second = made.next_round()
    assert (policy.asked, len(second.assignments["a"].gpus)) == (["ab"], 2)
    assert made.delivery().jobs["a"].promised_seconds * 2 == ROUND  # of one GPU
    made.update("a", num_gpus=1)
    made.next_round()
    assert made.delivery().jobs["a"].promised_seconds == ROUND


def test_a_job_that_has_more_to_do_than_was_thought_keeps_its_share() -> None:
    made, policy = seldom()
    made.next_round()
    made.update("a", total_steps=100)
    made.next_round()
    made.update("a", total_steps=110)
    made.report("a", steps_done=105)
    assert line([made.next_round()]) == ["ab"]
    assert policy.asked == ["ab"]
    assert made.delivery().jobs["a"].promised_seconds == 3 * ROUND


def test_a_job_that_is_done_gets_nothing_though_it_has_not_left() -> None:
    made, policy = seldom(names="abc")
    made.next_round()
    made.report("a", steps_done=1e6)
    second = made.next_round()
    assert (policy.asked, line([second])) == (["abc"], ["bc"])
    assert "a" in second.excluded


def test_a_job_that_can_run_nowhere_is_excluded_at_once() -> None:
    made, policy = seldom()
    made.next_round()
    made.submit(job("c", 4))
    assert "c" in made.next_round().excluded
    assert policy.asked == ["ab"]


def test_isolated_seconds_do_not_depend_on_how_often_the_policy_is_called() -> None:
    """iso_i is 4 steps/s for one job on one GPU, and 2 for each of two: 10 s and 20 s for 40 steps each."""
    found = []
    for seconds in (0.0, 4 * ROUND):
        made, policy = seldom("v100:1", "a", solve_seconds=seconds)
        made.next_round()
        made.report("a", steps_done=40)
        made.submit(job("b"))
        made.next_round()
        made.report("a", steps_done=80)
        for _ in range(3):
            made.next_round()
        found.append(policy.seen[-1].isolated_seconds.tolist())
    assert found == [[30.0, 0.0], [30.0, 0.0]]


@given(
    parts=st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0]), min_size=1, max_size=6).filter(any),
    mechanism=st.sampled_from(["deficit", "priority"]),
    comes=st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
@settings(max_examples=examples(40, costly=True))
def test_new_jobs_take_nothing_from_the_others(parts: list[float], mechanism: Any, comes: list[int]) -> None:
    """Neither GPUs nor turns: what was received under the allocation goes on being counted."""
    policy = Fixed(shares={f"j{i}": {"v100": part * 3 / max(3, len(parts))} for i, part in enumerate(parts)}, fills=False)
    old = [f"j{i}" for i in range(len(parts))]
    options: dict[str, Any] = {"policy": policy, "mechanism": mechanism, "round_seconds": ROUND, "solve_seconds": 8 * ROUND}
    alone, crowded = (scheduler("v100:3", [job(name, total_steps=1e6) for name in old], **options) for _ in range(2))
    for index, count in enumerate(comes):
        now, then = crowded.next_round(), alone.next_round()
        assert (now.assignments, now.kept, now.preempted) == (then.assignments, then.kept, then.preempted)
        crowded.submit_all([job(f"new-{index}-{k}", total_steps=1e6) for k in range(count)])
        crowded.report(old[0], steps_done=index)
    before, after = alone.delivery().jobs, crowded.delivery().jobs
    assert {name: after[name] for name in old} == before
    assert all(account.promised_seconds == 0 for name, account in after.items() if name not in old)


def test_deficits_are_kept_with_a_reused_allocation() -> None:
    made, _ = seldom("v100:1", policy=shares(a=0.5, b=0.5), mechanism="priority", solve_seconds=100.0)
    rounds = [made.next_round()]
    for steps in range(1, 6):
        made.report("a", steps_done=steps)
        rounds.append(made.next_round())
    assert sorted(line(rounds)) == ["a", "a", "a", "b", "b", "b"]


def test_the_rest_of_a_pair_runs_alone_until_the_next_solve() -> None:
    made = two_that_gain(solve_seconds=3 * 360.0)
    assert all(held.shared_with for held in made.next_round().assignments.values())
    made.complete("a")
    made.submit(gp.Job("c", job_type=GAINING[0]))
    alone = [made.next_round() for _ in range(2)]
    assert [set(each.assignments) for each in alone] == [{"b"}, {"b"}]
    begun = made.next_round()
    assert (begun.kept, begun.started, begun.assignments["b"].shared_with) == (("b",), ("c",), ("c",))


class Counting(gp.policy_class("max_min_fairness")):
    """Counts how often it is asked."""

    def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:
        COUNTS.append(len(jobs.problem.job_ids))
        return super().decide(jobs, solver)


COUNTS: list[int] = []


@pytest.mark.deep
@given(
    st.lists(st.integers(0, len(KINDS) - 1), min_size=2, max_size=10),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.sampled_from(["deficit", "priority"]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=examples(15, costly=True), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_any_arrivals_and_departures_with_sharing_and_spreading(
    tmp_path: Path, kinds: list[int], nodes: list[int], mechanism: str, sharing: bool, data: st.DataObject
) -> None:
    """Gangs are whole, pairs are pairs, calls of the policy are due, and a saved scheduler continues with the same rounds."""
    jobs, cluster, path = jobs_of(kinds), cluster_of(nodes), tmp_path / "state.json"
    policy = Counting()
    made = scheduler_of(jobs, cluster, policy=policy, mechanism=mechanism, sharing=sharing, solve_seconds=4 * 360.0)
    for _ in range(6):
        before, asked = len(COUNTS), made._state.current_allocation
        start, must_solve = (made.last_start_seconds or 0) + 360, made._state.changes.must_solve
        is_early = asked is not None and not must_solve and start < asked.solved_seconds + 1440
        there = [each.job_id for each in made.jobs]
        given_to = [] if asked is None else [i for i, row in zip(asked.problem.job_ids, asked.fractions, strict=True) if row.any()]
        made.save(path)
        again = gp.RoundScheduler.load(path, gp.ThroughputProfile.builtin("gavel-osdi20"), policy=policy)
        begun = made.next_round()
        if is_early and set(there) & set(given_to):
            assert len(COUNTS) == before
        assert again.next_round().to_dict() == begun.to_dict()
        assert json.dumps(again.to_dict()["scheduler"]["ledger"]) == json.dumps(made.to_dict()["scheduler"]["ledger"])
        check_round(begun, jobs)
        event = data.draw(st.sampled_from(["comes", "goes", "reports", "node", "plan", "nothing"]))
        name = data.draw(st.sampled_from([each.job_id for each in made.jobs]))
        if event == "comes":
            new = [gp.Job(f"new-{len(jobs)}", job_type=KINDS[k][0], num_gpus=KINDS[k][1], total_steps=1e7) for k in kinds[:1]]
            jobs += new
            made.submit_all(new)
        elif event == "goes" and len(made.jobs) > 1:
            made.cancel(name)
        elif event == "reports":
            made.report(name, steps_done=data.draw(st.sampled_from([10.0, 1e7])))
        elif event == "node":
            made.node_down(data.draw(st.sampled_from([node.name for node in cluster.nodes])))
        elif event == "plan":
            made.plan_next()


def test_the_recorder_promises_nothing_to_a_job_that_has_left() -> None:
    """Of 2 GPUs, a has one for a round and b for three."""
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    jobs = [gp.Job("a", total_steps=10), gp.Job("b", total_steps=30)]
    run = gp.record_run(jobs, gp.Cluster.from_counts({"v100": 2}), speeds, round_seconds=10, solve_seconds=1000)
    assert run.over_time is not None
    assert run.over_time.promised_gpu_seconds.sum() == pytest.approx(20 + 10 + 10)


def test_a_round_is_empty_when_all_jobs_have_left_one_of_which_was_excluded() -> None:
    made = scheduler("v100:2/1", [job("a"), job("wide", 2, locality="node")], round_seconds=ROUND, solve_seconds=6 * ROUND)
    assert set(made.next_round().excluded) == {"wide"}
    made.complete("a")
    made.cancel("wide")
    last = made.next_round()
    assert (last.assignments, last.excluded) == ({}, {})


def test_without_rounds_there_is_no_time_to_wait_for() -> None:
    cluster = gp.Cluster.from_inline("v100:1")
    message = refused(gp.RoundScheduler, cluster, PROFILE, "fifo", by_events=True, solve_seconds=60)
    assert message == (
        "round scheduler, field solve_seconds: must be 0 in event-driven mode, where every event leads to a decision, found 60"
    )
    assert "field solve_seconds" in refused(gp.Simulation, [], cluster, PROFILE, "fifo", round_seconds=None, solve_seconds=60)


def test_a_file_from_before_there_was_such_a_time_is_read() -> None:
    made, policy = seldom(solve_seconds=0.0)
    made.next_round()
    made.submit(job("c"))
    document = made.to_dict()
    del document["options"]["solve_seconds"]
    assert "reused" not in document["scheduler"]["allocation"]
    assert gp.RoundScheduler.from_dict(document, PROFILE, policy=policy).solve_seconds == 0.0


@pytest.mark.parametrize("rows", [[0, 1], [0, -2, 1], [0, 5, 1], ["a", "b", "c"]])
def test_rows_that_do_not_fit_are_refused(rows: list[Any]) -> None:
    made, policy = seldom()
    made.next_round()
    made.submit(job("c"))
    made.next_round()
    document = made.to_dict()
    reused = document["scheduler"]["allocation"]["reused"]
    assert reused["rows"]["array"] == [0, 1, -1]
    kind = "<U1" if isinstance(rows[0], str) else "<i8"
    reused["rows"] = {"array": rows, "shape": [len(rows)], "dtype": kind}
    assert "is damaged" in refused(gp.RoundScheduler.from_dict, document, PROFILE, policy=policy)
