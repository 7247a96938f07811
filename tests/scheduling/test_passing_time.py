"""Orders that change as time passes, although nothing else happens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.schedulers import job, line, scheduler
from tests.support.examples import examples

LeastAttainedService: Any = gp.policy_class("least_attained_service")
Priority: Any = gp.policy_class("priority")

LAS = LeastAttainedService()  # one GPU-hour
AGING = Priority(max_wait_seconds=3600)

ASKED: list[float] = []
"""The attained time of job a at each call of a policy of this module."""


@pytest.fixture(autouse=True)
def _forget() -> None:
    ASKED.clear()


@dataclass(frozen=True, kw_only=True)
class Own(gp.OrderedPolicy):
    """Serves the jobs below 1,000 GPU-seconds first."""

    reads = ("attained_gpu_seconds",)

    def sort_key(self, jobs: gp.JobClasses) -> NDArray[np.float64]:
        ASKED.append(float(jobs.attained_gpu_seconds[0]))
        return (jobs.attained_gpu_seconds >= 1000).astype(float)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Listed(Own):
    """Says when its order changes."""

    @property
    def changes_at(self) -> Mapping[str, tuple[float, ...]]:
        return {"attained_gpu_seconds": (1000.0,)}


@dataclass(frozen=True, kw_only=True)
class Overriding(Listed):
    """Has another order, about which it says nothing."""

    def sort_key(self, jobs: gp.JobClasses) -> NDArray[np.float64]:
        return super().sort_key(jobs) + jobs.attained_gpu_seconds  # type: ignore[no-any-return]


def two(policy: gp.Policy, **options: Any) -> gp.RoundScheduler:
    """Return a scheduler with one GPU, in rounds of 360 s; b arrives 100 s after a and has a lower priority."""
    jobs = [job("a", priority=1), job("b", arrival_seconds=100)]
    return scheduler("v100:1", jobs, policy=policy, round_seconds=360, **options)


def test_a_job_that_reaches_the_threshold_gives_way_in_the_next_round() -> None:
    made = two(LAS)
    assert line([made.next_round() for _ in range(12)]) == ["a"] * 10 + ["b"] * 2  # ten rounds are an hour


def test_a_planned_round_counts_the_round_before_it() -> None:
    made = two(LAS)
    for _ in range(10):
        made.next_round()
    assert list(made.plan_next().assignments) == ["b"]
    assert line([made.next_round()]) == ["b"]


def test_a_gang_reaches_the_threshold_sooner_and_runs_again_when_all_have() -> None:
    gang, singles = job("gang", 8), [job(f"s{i}", arrival_seconds=1) for i in range(8)]
    made = scheduler("v100:8/4", [gang, *singles], policy=LAS, round_seconds=360)
    runs = ["gang" in made.next_round().assignments for _ in range(16)]
    assert runs == [True] * 2 + [False] * 10 + [True] * 4  # 2 rounds of 8 GPUs, then an hour of the others


def test_an_overdue_job_runs_for_one_round() -> None:
    """At 3,600 s job b has waited for 3,500 s."""
    made = two(AGING)
    assert line([made.next_round() for _ in range(13)]) == ["a"] * 11 + ["b", "a"]


def test_nothing_is_solved_before_solve_seconds_have_passed() -> None:
    made = two(LAS, solve_seconds=5000)
    assert line([made.next_round() for _ in range(15)]) == ["a"] * 14 + ["b"]  # 14 rounds are 5,040 s


@pytest.mark.parametrize(
    ("policy", "asked"),
    [(Listed(), [0, 1080]), (Own(), [0, 360, 720, 1080, 1080]), (Overriding(), [0, 360, 360, 720, 720])],
    ids=["listed", "not listed", "overridden"],
)
def test_a_policy_is_asked_when_its_order_may_change(policy: gp.Policy, asked: list[float]) -> None:
    made = two(policy)
    for _ in range(5):
        made.next_round()
    assert asked == ASKED


def test_the_mechanism_direct_does_not_ask() -> None:
    made = two(Own(), mechanism="direct")
    for _ in range(5):
        made.next_round()
    assert not ASKED


JOBS = st.lists(
    st.builds(dict, num_gpus=st.sampled_from([1, 1, 2, 4]), priority=st.sampled_from([0.0, 1.0])), min_size=2, max_size=9
)


@pytest.mark.deep
@settings(max_examples=examples(15))
@given(jobs=JOBS, events=st.lists(st.integers(0, 8), max_size=8), thresholds=st.sampled_from([(700.0,), (360.0, 720.0, 5000.0)]))
def test_the_rounds_are_those_of_a_policy_that_is_always_asked(
    jobs: list[dict[str, Any]], events: list[int], thresholds: tuple[float, ...]
) -> None:
    def played(policy: gp.Policy) -> list[Mapping[str, gp.Assignment]]:
        rounds, made = [], scheduler("v100:4/4", policy=policy, round_seconds=360)
        for i in range(24):
            if i < len(jobs):
                made.submit(job(f"j{i}", arrival_seconds=360.0 * i, **jobs[i]))
            if i in events and (running := made.running):
                made.job_failed(min(running))
            rounds.append(made.next_round().assignments)
        return rounds

    class AskedLas(LeastAttainedService):  # type: ignore[misc]
        changes_at: ClassVar = {}

    class AskedPriority(Priority):  # type: ignore[misc]
        changes_at: ClassVar = {}

    assert played(LeastAttainedService(thresholds=thresholds)) == played(AskedLas(thresholds=thresholds))
    assert played(Priority(max_wait_seconds=thresholds[0])) == played(AskedPriority(max_wait_seconds=thresholds[0]))


class TestEvents:
    def test_the_next_change_is_when_the_first_job_reaches_its_threshold(self) -> None:
        made = scheduler("v100:3", [job("a", 2), job("b")], policy=LAS, by_events=True)
        assert made.next_change_seconds == math.inf
        made.next_round(100)
        assert made.next_change_seconds == 1900  # 2 GPUs
        made.submit(job("c", arrival_seconds=300))
        made.next_round(300)
        assert made.next_change_seconds == 1900
        assert line([made.next_round(1900)]) == ["bc"]
        assert made.next_change_seconds == 3700
        assert line([made.next_round(3700)]) == ["ac"]
        assert made.next_change_seconds == 5500
        made.next_round(5500)
        assert made.next_change_seconds == math.inf

    def test_time_before_a_preemption_counts(self) -> None:
        made = scheduler("v100:1", [job("a"), job("b", arrival_seconds=1)], policy=LAS, by_events=True)
        made.next_round(0)
        made.next_round(1000)
        made.interrupted("a")
        made.node_down("v100-0")
        assert line([made.next_round(1500)]) == [""]
        made.node_up("v100-0")
        assert line([made.next_round(2000)]) == ["a"]
        assert made.next_change_seconds == 4100  # it has run for 1,500 s
        assert line([made.next_round(4099), made.next_round(4100)]) == ["a", "b"]

    def test_the_next_change_is_when_the_first_job_is_overdue(self) -> None:
        made = two(AGING, by_events=True)
        made.next_round(100)
        overdue = made.next_change_seconds
        assert overdue == pytest.approx(3700)
        assert line([made.next_round(3700), made.next_round(overdue)]) == ["a", "b"]
        assert made.next_change_seconds == pytest.approx(7300)  # job a waits from then on

    def test_a_saved_scheduler_goes_on_at_the_same_time(self) -> None:
        made = two(LAS, by_events=True)
        made.next_round(100)
        made.next_round(1000)
        again = gp.RoundScheduler.from_dict(made.to_dict(), made.profile)
        assert again.next_change_seconds == made.next_change_seconds == 3700
        assert line([again.next_round(3700)]) == ["b"]

    @given(start=st.floats(0, 1e9), gpus=st.integers(1, 7), threshold=st.floats(1e-3, 1e9))
    @settings(max_examples=examples(20))
    def test_at_the_time_of_the_change_the_policy_sees_it(self, start: float, gpus: int, threshold: float) -> None:
        jobs = [job("a", gpus), job("b", 7, arrival_seconds=1)]
        made = scheduler("v100:7", jobs, policy=LeastAttainedService(thresholds=(threshold,)), by_events=True)
        made.next_round(start)
        then = made.next_change_seconds
        assert then == pytest.approx(start + threshold / gpus)
        assert line([made.next_round(then)]) == ["b"]
