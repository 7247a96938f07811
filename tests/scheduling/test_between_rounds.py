"""Waiting jobs that start within a round: which, on which GPUs, what they receive, and what becomes of a planned round."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE, job, refused, scheduler, shares
from tests.support.examples import examples

SECONDS = 10.0


def running(cluster: str = "v100:3/3", ids: str = "ab", **options: object) -> gp.RoundScheduler:
    """Return a scheduler in its first round, in which these jobs of one GPU run on v100, each of which has all of its time."""
    options = {"policy": shares(**dict.fromkeys(ids, 1.0)), "round_seconds": SECONDS} | options
    made = scheduler(cluster, [job(i) for i in ids], **options)
    made.next_round()
    return made


def received(made: gp.RoundScheduler, job_id: str) -> float:
    account = made.delivery_of(job_id)
    return 0.0 if account is None else account.delivered_seconds


def attained(made: gp.RoundScheduler, job_id: str) -> float:
    row = made._state.table.row_of(job_id)
    assert row is not None
    return float(made._state.table.columns["attained_gpu_seconds"][row])


def test_a_new_job_starts_on_an_idle_gpu_and_receives_the_rest_of_the_round() -> None:
    made = running()
    made.submit(job("c"))
    before = made.running
    started = made.start_waiting(4.0)
    assert list(started) == ["c"]
    assert made.running == before | started
    assert received(made, "c") == 6.0
    account = made.delivery_of("c")
    assert account is not None
    assert (account.promised_seconds, account.rounds) == (0.0, None)
    assert made.lease("c") == gp.Lease(started["c"], SECONDS)
    assert made.start_waiting(4.0) == {}
    again = made.next_round()
    assert "c" in again.kept
    assert received(made, "c") == 6.0 + SECONDS


def test_none_is_preempted_or_moved_and_gangs_start_whole() -> None:
    made = running("v100:2/1")
    made.submit(job("wide", 2))
    assert made.start_waiting(1.0) == {}
    made.complete("a")
    assert made.start_waiting(2.0) == {}
    made.complete("b")
    assert list(made.start_waiting(3.0)) == ["wide"]
    assert received(made, "wide") == 7.0


def test_a_gang_that_is_not_selected_next_is_preempted() -> None:
    made = running("v100:3/3", "ab")
    made.submit(job("c"))
    made.start_waiting(4.0)
    made.policy = shares(a=1.0, b=1.0, d=1.0)
    made.submit(job("d"))
    second = made.next_round()
    assert second.preempted == ("c",)
    assert (second.kept, second.started) == (("a", "b"), ("d",))


def test_nothing_starts_before_the_first_round_or_between_its_end_and_the_next() -> None:
    made = scheduler("v100:2", [job("a")], round_seconds=SECONDS)
    assert made.start_waiting(0.0) == {}
    made.next_round(0.0)
    made.submit(job("b"))
    assert made.start_waiting(SECONDS) == {}
    assert made.start_waiting(1e9) == {}
    assert list(made.start_waiting(9.0)) == ["b"]


def test_a_time_before_the_round_and_event_mode_are_refused() -> None:
    made = running()
    made.next_round()
    assert "not before the previous round, which started at 10" in refused(made.start_waiting, 9.0)
    assert "must be a finite number" in refused(made.start_waiting, float("nan"))
    events = scheduler("v100:2", [job("a")], policy="fifo", by_events=True)
    assert "has no rounds within which jobs could start" in refused(events.start_waiting, 1.0)


@pytest.mark.parametrize("constraints", [(), (gp.MaxGpus(3),)])
def test_without_backfill_or_with_constraints_only_jobs_that_are_due_start(constraints: tuple[gp.MaxGpus, ...]) -> None:
    policy = shares(a=1.0, b=1.0)
    policy = (
        policy.model_copy(fills=False)
        if hasattr(policy, "model_copy")
        else type(policy)(shares=policy.shares, fills=bool(constraints), constraints=constraints)
    )
    made = running("v100:3/3", policy=policy)
    made.submit(job("c"))
    assert made.start_waiting(4.0) == {}
    made.interrupted("a")  # its round stays due
    assert list(made.start_waiting(5.0)) == ["a"]
    assert received(made, "a") == 5.0


def test_what_a_gang_received_is_taken_back_when_its_node_fails() -> None:
    made = running("v100:2/1,k80:1")
    made.submit(job("c"))
    started = made.start_waiting(4.0)
    assert started["c"].accelerator == "k80"
    assert (received(made, "c"), attained(made, "c")) == (6.0, 6.0)
    assert made.node_down("k80-0") == ("c",)
    assert (received(made, "c"), attained(made, "c")) == (0.0, 0.0)
    made.complete("a")
    assert list(made.start_waiting(7.0)) == ["c"]
    assert (received(made, "c"), attained(made, "c")) == (3.0, 3.0)
    made.interrupted("c")
    assert (received(made, "c"), attained(made, "c")) == (0.0, 0.0)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_job_that_failed_and_starts_again_receives_no_time_twice(elsewhere: bool) -> None:
    made = running("v100:2/1,k80:1")
    made.job_failed("a")
    if elsewhere:
        made.node_down(next(iter({"v100-0", "v100-1"} - {made.running["b"].gpus[0][0]})))
    made.start_waiting(4.0)
    account = made.delivery_of("a")
    assert account is not None
    assert account.delivered_by_type == ({"v100": 4.0, "k80": 6.0} if elsewhere else {"v100": 10.0, "k80": 0.0})
    assert attained(made, "a") == SECONDS
    assert sum(account.undelivered_by_reason.values()) == pytest.approx(account.undelivered_seconds)
    made.interrupted("a")
    account = made.delivery_of("a")
    assert account is not None
    assert account.delivered_by_type == {"v100": 4.0, "k80": 0.0}
    assert attained(made, "a") == 4.0


def test_a_gang_is_spread_if_it_is_on_more_nodes_than_it_needs() -> None:
    made = scheduler("v100:4/2", [job("a", 2), job("b", 2)], round_seconds=SECONDS)
    made.next_round()
    assert not made._state.spans.is_spread("v100", [node for node, _ in made.running["a"].gpus])
    assert made._state.spans.is_spread("v100", ["v100-0", "v100-1"])


def test_histories_count_from_the_start_within_the_round() -> None:
    made = running()
    made.submit(job("c", arrival_seconds=1.0))
    made.start_waiting(4.0)
    row = made._state.table.row_of("c")
    columns = {name: made._state.table.columns[name][row] for name in ("running_since_seconds", "has_run", "waiting_since_seconds")}
    assert columns == {"running_since_seconds": 4.0, "has_run": 1.0, "waiting_since_seconds": SECONDS}


def test_a_job_that_is_ahead_after_this_round_is_not_due_within_it() -> None:
    """The deficits of a round in progress already contain its promise."""
    policy = shares(a=0.2, b=0.5, c=0.3)
    made = scheduler("v100:1", [job(i) for i in "abc"], policy=replace(policy, fills=False), round_seconds=SECONDS)
    assert ["".join(made.next_round().assignments) for _ in range(3)] == ["b", "c", "a"]  # c is ahead by 0.1 of a round
    for each in "ab":
        made.complete(each)
    assert made.start_waiting(21.0) == {}


def test_the_deficit_falls_by_the_part_of_the_round() -> None:
    made = scheduler("v100:1", [job("a"), job("b")], policy=shares(a=0.5, b=0.5), round_seconds=SECONDS)
    assert list(made.next_round().assignments) == ["a"]
    row = made._state.table.row_of("b")
    deficits = made._state.ledger.deficits
    assert deficits[row] == [0.5]
    made.complete("a")
    assert list(made.start_waiting(2.5)) == ["b"]
    assert deficits[row] == [-0.25]
    account = made.delivery_of("b")
    assert account is not None
    assert (account.promised_seconds, account.delivered_seconds, account.undelivered_seconds) == (5.0, 7.5, 0.0)


class TestPlannedRounds:
    def test_a_gang_that_needs_no_gpu_of_the_plan_continues_in_it(self) -> None:
        made = running()
        planned = made.plan_next()
        made.submit(job("c"))
        made.start_waiting(4.0)
        assert made.lease("c") == gp.Lease(made.running["c"], 2 * SECONDS, renewed=True)
        second = made.next_round()
        assert second.assignments == dict(planned.assignments) | {"c": made.running["c"]}
        assert second.kept == ("a", "b", "c")
        assert received(made, "c") == 6.0 + SECONDS
        account = made.delivery_of("c")
        assert account is not None
        assert account.promised_seconds == 0.0

    @pytest.mark.parametrize("min_run", [0.0, 1000.0])
    def test_a_gang_loses_gpus_that_the_plan_needs(self, min_run: float) -> None:
        """a has done its last step, but holds its GPU, so that the gang of two cannot start before the planned round."""
        made = running("v100:2/2", "a", policy=shares(a=1.0, wide=1.0), min_run_seconds=min_run)
        made.update("a", total_steps=5)
        made.report("a", steps_done=5)
        made.submit(job("wide", 2))
        planned = made.plan_next()
        assert list(planned.assignments) == ["wide"]
        made.submit(job("c"))
        assert list(made.start_waiting(4.0)) == ["c"]
        assert made.lease("c") == gp.Lease(made.running["c"], SECONDS, renewed=False)
        second = made.next_round()
        assert second.assignments == planned.assignments
        assert second.preempted == ("c",)

    def test_a_planned_gang_starts_early_on_its_gpus(self) -> None:
        made = running("v100:3/1", "a", policy=shares(a=1.0, b=1.0, c=1.0))
        made.submit(job("c"))
        planned = made.plan_next()
        assert planned.started == ("c",)
        made.submit(job("b"))
        started = made.start_waiting(4.0)
        assert started["c"] == planned.assignments["c"]
        assert made.next_round().kept == ("a", "b", "c")

    def test_the_plan_stands(self) -> None:
        made = running("v100:2/2", "ab")
        made.policy = shares(c=1.0, d=1.0)
        made.submit(job("c"))
        made.submit(job("d"))
        planned = made.plan_next()
        assert planned.started == ("c", "d")
        made.complete("a")
        made.complete("b")
        made.submit(job("wide", 2))
        made.cancel("c")
        assert list(made.start_waiting(4.0)) == ["d"], "the gang of two does not fit beside a planned job"
        assert made.plan_next().assignments == {"d": planned.assignments["d"]}

    def test_saved_and_copied_between_start_and_round(self, tmp_path: Path) -> None:
        made = running("v100:3/3,k80:1")
        made.plan_next()
        made.submit_all([job("c"), job("d")])
        assert sorted(made.start_waiting(4.0)) == ["c", "d"]
        made.interrupted("d")
        made.save(tmp_path / "state.json")
        for again in (gp.RoundScheduler.load(tmp_path / "state.json", PROFILE, policy=made.policy), copy.deepcopy(made)):
            assert again.running == made.running
            assert again.delivery() == made.delivery()
            assert again.start_waiting(6.0) == copy.deepcopy(made).start_waiting(6.0) != {}
            assert received(again, "d") == 4.0
            assert again.next_round().kept == ("a", "b", "c", "d")


def test_partners_start_together_and_their_accounts_fall() -> None:
    measured = [gp.Measurement(job_type=name, num_gpus=1, accelerator="v100", steps_per_second=10.0) for name in "AB"]
    pair = gp.Measurement(
        job_type="A", num_gpus=1, accelerator="v100", steps_per_second=9.0, partner_job_type="B", partner_steps_per_second=9.0
    )
    profile = gp.ThroughputProfile("pairs", [*measured, pair])
    jobs = [gp.Job("a", job_type="A"), gp.Job("b", job_type="B")]
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), profile, round_seconds=SECONDS, sharing=True)
    made.submit_all(jobs)
    assert made.next_round().assignments["a"].shared_with == ("b",)
    accounts = made._state.colocation_ledger.to_list()
    made.interrupted("a")
    made.interrupted("b")
    started = made.start_waiting(5.0)
    assert started["a"].shared_with == ("b",)
    assert started["b"].shared_with == ("a",)
    assert received(made, "a") == received(made, "b") == 5.0
    assert attained(made, "a") == attained(made, "b") == 2.5
    for before, after in zip(accounts, made._state.colocation_ledger.to_list(), strict=True):
        assert after[-1] == pytest.approx(before[-1] + 0.5)


def test_a_mechanism_may_report_changes_while_it_selects() -> None:
    """The job that it selects leaves meanwhile, and another GPU is lost: neither starts there."""
    made = scheduler("v100:3/3", [job("a")], round_seconds=SECONDS)
    made.next_round()

    def mechanism(demand: gp.RoundDemand) -> np.ndarray:
        if "c" in {each.job_id for each in made.jobs}:
            made.cancel("c")
            made.gpu_lost("v100-0", 1)
        columns = np.full(len(demand.num_gpus), -1)
        columns[np.flatnonzero(demand.runnable.any(axis=1))] = 0
        return columns

    made.submit_all([job("b"), job("c")])
    made.mechanism = mechanism
    started = made.start_waiting(2.0)
    assert "c" not in started
    assert ("v100-0", 1) not in [gpu for held in started.values() for gpu in held.gpus]


def test_cpus_of_a_planned_round_are_kept_free() -> None:
    """a has done its last step, but holds one CPU of the four that the planned gang needs; another GPU is idle."""
    nodes = [gp.Node(name="n0", accelerator="v100", num_gpus=2, cpus=4)]
    made = gp.RoundScheduler(gp.Cluster(nodes), PROFILE, shares(a=1.0, b=1.0), SECONDS)
    made.submit(job("a", cpus_per_gpu=1, total_steps=5))
    made.next_round()
    made.report("a", steps_done=5)
    made.submit(job("b", cpus_per_gpu=4))
    planned = made.plan_next()
    assert list(planned.assignments) == ["b"]
    made.submit(job("c", cpus_per_gpu=2))
    started = made.start_waiting(4.0)
    assert list(started) == ["c"]
    assert started["c"].gpus != planned.assignments["b"].gpus
    second = made.next_round()
    assert second.assignments == planned.assignments
    assert second.preempted == ("c",)


def test_fractional_jobs_start_on_idle_gpus() -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2"), PROFILE, round_seconds=SECONDS)
    made.submit(gp.Job("a", job_type="fast", num_gpus=0.5))
    made.next_round()
    made.submit(gp.Job("b", job_type="fast", num_gpus=0.25))
    made.submit(gp.Job("c", job_type="fast", num_gpus=0.5))
    started = made.start_waiting(4.0)
    assert started["b"].gpus == started["c"].gpus != made.running["a"].gpus
    assert (received(made, "b"), attained(made, "b")) == (6.0, 1.5)
    made.interrupted("b")
    assert (received(made, "b"), attained(made, "b")) == (0.0, 0.0)
    assert received(made, "c") == 6.0


class SharedGpus:
    """A scheduler whose jobs share GPUs, with a model that enters the GPU-seconds of each job as they are handed out."""

    TYPES = ("ResNet-18 (batch size 16)", "A3C", "LM (batch size 80)", "Recommendation (batch size 512)")
    CALLS = ("submit", "complete", "interrupted", "job_failed", "start", "round")

    def __init__(self, fractions: bool, gpus: int, seed: int) -> None:
        self.fractions, self.seed, self.count = fractions, seed, 0
        self.now = self.end = 0.0
        self.expected = Counter[str]()
        self.latest: dict[str, tuple[float, float]] = {}  # {job: (GPUs, seconds) that it was given last in this round}
        cluster, profile = gp.Cluster.from_inline(f"v100:{gpus}/1,k80:1"), gp.ThroughputProfile.builtin("gavel-osdi20")
        self.made = gp.RoundScheduler(cluster, profile, round_seconds=100.0, sharing=not fractions)
        for _ in range(4):
            self.submit(0)
        self.round(0)

    def play(self, what: str, number: int) -> None:
        if what in {"submit", "start", "round"}:
            getattr(self, what)(number)
        elif self.made.jobs:
            job_id = self.made.jobs[number % len(self.made.jobs)].job_id
            if what == "interrupted" and job_id in self.made.running:
                share, seconds = self.latest[job_id]
                self.expected[job_id] -= share * seconds
                self.latest[job_id] = 0.0, 0.0
            getattr(self.made, what)(job_id)

    def submit(self, _: int) -> None:
        i, self.count = self.count + self.seed, self.count + 1
        size = [0.25, 0.5, 1][i % 3] if self.fractions else 1
        self.made.submit(gp.Job(f"j{self.count}", job_type=self.TYPES[i % 4], num_gpus=size, max_retries=99))

    def round(self, _: int) -> None:
        self.now, self.end, self.latest = self.end, self.end + 100.0, {}
        self.give(self.made.next_round(self.now).assignments)

    def start(self, percent: int) -> None:
        self.now += (self.end - self.now) * percent / 100
        before = self.made.running
        started = self.made.start_waiting(self.now)
        assert self.made.running == before | started
        self.give(started)

    def give(self, assignments: Mapping[str, gp.Assignment]) -> None:
        """Enter the rest of the round; a job that has received it already gives it back."""
        rest = self.end - self.now
        for job_id, held in assignments.items():
            share, seconds = self.latest.get(job_id, (0.0, 0.0))
            self.expected[job_id] += held.gpu_share * rest - share * min(seconds, rest)
            self.latest[job_id] = held.gpu_share, rest

    def check(self) -> None:
        taken = Counter[tuple[str, int]]()
        for held in self.made.running.values():
            taken.update(dict.fromkeys(held.gpus, held.gpu_share))  # type: ignore[arg-type]
        assert max(taken.values(), default=0.0) <= 1 + 1e-9
        for job_id, seconds in self.expected.items():
            assert attained(self.made, job_id) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.deep
@given(
    st.lists(st.tuples(st.sampled_from(SharedGpus.CALLS), st.integers(0, 99))),
    st.builds(SharedGpus, st.booleans(), st.integers(1, 3), st.integers(0, 9)),
)
@settings(max_examples=examples(60))
def test_shared_gpus_are_accounted_to_the_second(steps: list[tuple[str, int]], shared: SharedGpus) -> None:
    for what, number in steps:
        shared.play(what, number)
        shared.check()
