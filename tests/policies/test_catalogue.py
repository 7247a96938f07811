"""Known answers of the policies of the catalogue, and each against an independent program or every possible answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import Floats, best_level, best_value, crowds, problems

NONE = float("nan")


def three_jobs(**arrays: Any) -> gp.AllocationProblem:
    """bert, resnet and lstm on one V100 and one K80: the example of docs/policies."""
    return gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1], steps_remaining=[240, 60, 60], **arrays)


def shares(problem: gp.AllocationProblem, policy: str, **options: Any) -> list[list[float]]:
    rows: list[list[float]] = gp.solve(problem, policy, **options).time_fractions.round(9).tolist()
    return rows


def able(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    return problem.select(rows)


# Two GPUs of one type; preemption is free and schedules change when a job comes or ends.
DURATIONS, ARRIVALS, PRIORITIES = [30.0, 10.0, 25.0, 40.0], [0.0, 0.0, 1.0, 4.0], [3, 1, 2, 4]


def completion_times(policy: str, **options: Any) -> list[float]:
    """Seconds from arrival to the last step of each of the four jobs, solved anew at every arrival and every end."""
    left, ends, now = np.array(DURATIONS), np.zeros(4), 0.0
    running = np.zeros(4, dtype=bool)
    while left.any():
        here = np.flatnonzero((np.array(ARRIVALS) <= now) & (left > 0))
        problem = gp.AllocationProblem.from_arrays(
            np.ones((len(here), 1)),
            [2],
            job_ids=here.tolist(),
            total_steps=np.array(DURATIONS)[here],
            steps_remaining=left[here],
            arrival_seconds=np.array(ARRIVALS)[here],
            priorities=np.array(PRIORITIES)[here],
            running_on=np.where(running[here], 0, -1),
        )
        running[:] = False
        running[here] = gp.solve(problem, policy, **options).time_fractions[:, 0] == 1
        coming = [arrival for arrival in ARRIVALS if arrival > now]
        step = min([*left[running].tolist(), *(arrival - now for arrival in coming)])
        now += step
        left[running] -= step
        ends[running & (left == 0)] = now
        running &= left > 0
    times: list[float] = (ends - ARRIVALS).tolist()
    return times


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("fifo", {}, [30, 10, 34, 66]),
        ("shortest_job_first", {"preemptive": False}, [30, 10, 34, 66]),
        ("shortest_job_first", {"by": "total"}, [39, 10, 25, 62]),
        ("shortest_job_first", {"by": "remaining"}, [39, 10, 25, 62]),
        ("priority", {}, [30, 53, 51, 40]),
        ("priority", {"preemptive": False}, [30, 10, 54, 46]),
    ],
)
def test_completion_times_on_two_gpus(policy: str, options: dict[str, Any], expected: list[float]) -> None:
    assert completion_times(policy, **options) == expected


def test_priority_serves_the_highest_first_and_equal_ones_by_arrival() -> None:
    assert shares(three_jobs(priorities=[1, 2, 0]), "priority") == [[0, 1], [1, 0], [0, 0]]
    assert shares(three_jobs(priorities=[1, 1, -5], arrival_seconds=[2, 1, 0]), "priority") == [[0, 1], [1, 0], [0, 0]]


def test_jobs_that_wait_too_long_go_first_the_longest_waiting_before_the_others() -> None:
    def served(limit: float | None) -> list[int]:
        """Return the jobs in service order: the job that is added with each further GPU."""
        order: list[int] = []
        for gpus in range(1, 6):
            problem = gp.AllocationProblem.from_arrays(
                np.ones((5, 1)),
                [gpus],
                priorities=[9, 5, 1, 0, 5],
                waiting_seconds=[0, 100, 300, 200, 100],
                arrival_seconds=range(5),
            )
            x = gp.solve(problem, "priority", max_wait_seconds=limit).time_fractions
            order += [i for i in np.flatnonzero(x[:, 0]).tolist() if i not in order]
        return order

    assert served(None) == [0, 1, 4, 2, 3]
    assert served(150) == [2, 3, 0, 1, 4]
    assert served(200) == [2, 0, 1, 4, 3]  # 200 s are not longer than 200 s
    assert served(0) == [2, 3, 1, 4, 0]


@pytest.mark.parametrize("limit", [-1, "-0.5", float("nan"), "nan"])
def test_a_waiting_time_below_zero_is_an_error(limit: object) -> None:
    with pytest.raises(
        gp.InputError, match="policy priority, field option max_wait_seconds: must be a number of seconds of at least 0"
    ):
        gp.resolve_policy("priority", max_wait_seconds=limit)


def test_least_attained_service_has_queues_and_each_is_in_order_of_arrival() -> None:
    problem = three_jobs(attained_gpu_seconds=[7200, 1800, 600], arrival_seconds=[0, 10, 20])
    assert shares(problem, "least_attained_service") == [[0, 0], [1, 0], [0, 1]]
    assert shares(problem, "least_attained_service", thresholds=(10800,)) == [[1, 0], [0, 1], [0, 0]]
    assert shares(problem, "least_attained_service", thresholds="600:3600") == [[0, 0], [1, 0], [0, 1]]
    assert shares(problem, "least_attained_service", thresholds="none") == [[0, 0], [0, 1], [1, 0]]


def test_a_job_at_a_threshold_is_in_the_next_queue() -> None:
    def first(attained: float) -> bool:
        problem = gp.AllocationProblem.from_arrays(
            [[1.0], [1.0]], [1], attained_gpu_seconds=[attained, 3599], arrival_seconds=[0, 1]
        )
        return bool(gp.solve(problem, "least_attained_service").time_fractions[0, 0] == 1)

    assert [first(attained) for attained in (3599, 3599.9, 3600, 3601)] == [True, True, False, False]


@pytest.mark.parametrize("thresholds", [(), (60.0,), (60.0, 1234567.5, 1e9)])
def test_thresholds_are_read_as_they_are_shown(thresholds: tuple[float, ...]) -> None:
    policy = gp.resolve_policy("least_attained_service", thresholds=thresholds)
    name, _, text = policy.label.partition(",thresholds=")
    assert gp.resolve_policy(name, thresholds=text) == policy


@pytest.mark.parametrize("thresholds", [(7200, 3600), (60, 60), (0,), (-1, 60), "60:nan", "inf", (float("nan"),)])
def test_thresholds_that_do_not_ascend_are_an_error(thresholds: object) -> None:
    with pytest.raises(
        gp.InputError, match="option thresholds: must be GPU-seconds above 0, each larger than the one before, found "
    ):
        gp.resolve_policy("least_attained_service", thresholds=thresholds)


@pytest.mark.parametrize("thresholds", ["60|3600", "60:", "hour", 3600])
def test_thresholds_that_are_no_numbers_are_an_error(thresholds: object) -> None:
    with pytest.raises(gp.InputError, match="option thresholds: must be a number, or several with ':' between them, found"):
        gp.resolve_policy("least_attained_service", thresholds=thresholds)


def test_throughput_per_dollar_divides_by_the_price_of_each_type() -> None:
    """4/3 for bert on the V100, and 1/0.5 for any job on the K80."""
    allocation = gp.solve(three_jobs(prices_per_hour=[3, 0.5]), "throughput_per_dollar")
    assert allocation.objective_value == pytest.approx(4 / 3 + 2)
    assert allocation.time_fractions[0] == pytest.approx(np.array([1, 0]))
    assert allocation.shadow_prices == pytest.approx(np.array([2 / 3, 2]))


@settings(max_examples=examples(60))
@given(problem=crowds(max_jobs=10, max_types=4), seed=st.integers(0, 2**32 - 1))
def test_throughput_per_dollar_is_optimal(problem: gp.AllocationProblem, seed: int) -> None:
    prices = np.random.default_rng(seed).choice([0.1, 1.0, 2.5], len(problem.capacities))
    problem = able(priced(problem, prices))
    expected = best_value(problem, problem.throughputs / prices)
    assert gp.solve(problem, "throughput_per_dollar").objective_value == pytest.approx(expected, rel=1e-7)


def priced(problem: gp.AllocationProblem, prices: Floats) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(
        problem.throughputs, problem.capacities, num_gpus=problem.num_gpus, prices_per_hour=prices, job_ids=problem.job_ids
    )


def test_every_type_without_a_price_is_named_and_others_are_not() -> None:
    """No job runs on the third type, and the fourth has no GPUs: their prices do not matter."""
    problem = gp.AllocationProblem.from_arrays(
        [[1, 1, 0, 1]], [1, 1, 1, 0], accelerator_types=["a", "b", "c", "d"], prices_per_hour=[0, NONE, NONE, 0]
    )
    with pytest.raises(gp.InputError) as caught:
        gp.solve(problem, "throughput_per_dollar")
    assert [(fault.where, fault.field, fault.problem[:10]) for fault in caught.value.faults] == [
        ("accelerator type 'a'", "price_per_hour", "is 0, but "),
        ("accelerator type 'b'", "price_per_hour", "is unknown"),
    ]
    priced = gp.AllocationProblem.from_arrays([[1, 1, 0, 1]], [1, 1, 1, 0], prices_per_hour=[2, 1, NONE, 0])
    assert gp.solve(priced, "throughput_per_dollar").objective_value == pytest.approx(1)


def test_a_job_is_refused_when_submitted_if_types_have_no_price() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[4, 1]], job_ids=["a"], accelerators=["v100", "k80"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1,k80:1"), speeds, policy="throughput_per_dollar")
    with pytest.raises(gp.InputError, match="accelerator type 'v100', field price_per_hour: is unknown"):
        scheduler.submit(gp.Job("a", total_steps=100))


def test_max_progress_rate_works_on_what_ends_soon() -> None:
    """A second of V100 is worth 1/60, 1/30 and 1/60, one of K80 1/240, 1/60 and 1/60; with weight 4, 4/60 to bert."""
    allocation = gp.solve(three_jobs(), "max_progress_rate")
    assert allocation.time_fractions == pytest.approx(np.array([[0, 0], [1, 0], [0, 1]]))
    assert allocation.objective_value == pytest.approx(1 / 20)
    assert gp.solve(three_jobs(weights=[4, 1, 1]), "max_progress_rate").objective_value == pytest.approx(5 / 60)


@settings(max_examples=examples(60))
@given(problem=problems())
def test_max_progress_rate_is_optimal(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    gains = problem.throughputs * (problem.weights / problem.steps_remaining)[:, None]
    assert gp.solve(problem, "max_progress_rate").objective_value == pytest.approx(best_value(problem, gains), rel=1e-6)


@pytest.mark.parametrize(
    ("deadlines", "lateness", "expected"),
    [
        ([60, 30, 60], 30, [[2 / 3, 0], [1 / 3, 1 / 3], [0, 2 / 3]]),
        ([120, 90, 120], -30, [[2 / 3, 0], [1 / 3, 1 / 3], [0, 2 / 3]]),
        ([60, -20, 60], 60, [[1 / 2, 0], [1 / 2, 1 / 2], [0, 1 / 2]]),
        ([NONE, NONE, 60], 0, [[1, 0], [0, 0], [0, 1]]),
        ([66, 10, NONE], 30, [[1 / 2, 1 / 2], [1 / 2, 1 / 2], [0, 0]]),
    ],
)
def test_min_lateness(deadlines: list[float], lateness: float, expected: list[list[float]]) -> None:
    """The last one: bert ends after 240 / 2.5 = 96 s and resnet after 60 / 1.5 = 40 s, both 30 s late; nothing is left for lstm."""
    allocation = gp.solve(three_jobs(deadlines_seconds=deadlines), "min_lateness")
    assert allocation.time_fractions == pytest.approx(np.array(expected), abs=1e-9)
    assert allocation.objective_value == pytest.approx(lateness, abs=1e-9)


def test_jobs_without_a_deadline_get_what_is_left_and_nothing_without_efficiency() -> None:
    problem = three_jobs(deadlines_seconds=[NONE, NONE, 60])
    plain = gp.solve(problem, "min_lateness", efficiency=False)
    assert plain.objective_value == pytest.approx(0, abs=1e-9)
    assert plain.time_fractions[:2].tolist() == [[0, 0], [0, 0]]


@settings(max_examples=examples(60))
@given(problem=crowds(max_jobs=10, max_types=4), seed=st.integers(0, 2**32 - 1))
def test_no_lateness_is_less(problem: gp.AllocationProblem, seed: int) -> None:
    """What is needed at θ can be given, just so; at a smaller θ it cannot."""
    rng = np.random.default_rng(seed)
    deadlines = np.where(rng.random(problem.num_jobs) < 0.4, NONE, problem.deadlines_seconds)
    problem = able(with_deadlines(problem, deadlines))
    dated = np.flatnonzero(~np.isnan(problem.deadlines_seconds))
    assume(dated.size)
    theta = gp.solve(problem, "min_lateness").objective_value
    assert theta is not None
    alone = float((problem.steps_remaining / problem.fastest - problem.deadlines_seconds)[dated].max())
    assert theta >= alone - 1e-9 * (1 + abs(alone))
    need = problem.steps_remaining / (problem.deadlines_seconds + theta)
    reached = best_level(problem.select(dated), need[dated])
    assert reached > 1 - 1e-5
    if theta > alone + 1e-6 * (1 + abs(alone)):
        assert reached == pytest.approx(1, rel=1e-5)


def with_deadlines(problem: gp.AllocationProblem, deadlines: Floats) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(
        problem.throughputs,
        problem.capacities,
        num_gpus=problem.num_gpus,
        steps_remaining=problem.steps_remaining,
        deadlines_seconds=deadlines,
        job_ids=problem.job_ids,
    )


def test_lateness_without_any_deadline_is_the_makespan_with_a_warning() -> None:
    with pytest.warns(gp.GavelWarning, match="no job has a deadline, so min_lateness treats all as due now"):
        allocation = gp.solve(three_jobs(), "min_lateness")
    assert allocation.objective_value == pytest.approx(80)


def test_isolated_and_proportional_shares_of_gangs() -> None:
    """Two jobs own two of four GPUs each; one can use only one of them. Five GPUs are wanted and there are four."""
    problem = gp.AllocationProblem.from_arrays([[8.0], [2.0]], [4], num_gpus=[4, 1])
    isolated = gp.solve(problem, "isolated")
    assert isolated.time_fractions.tolist() == [[0.5], [1]]
    assert (isolated.status, isolated.objective_value, isolated.objective_bound) == ("formula", None, None)
    assert shares(problem, "proportional") == [[0.8], [0.8]]


def test_time_where_a_job_cannot_run_is_lost() -> None:
    problem = gp.AllocationProblem.from_arrays([[4, 0], [4, 2]], [2, 2], num_gpus=[1, 1])
    assert shares(problem, "isolated") == [[0.5, 0], [0.5, 0.5]]
    assert shares(problem, "proportional") == [[0.5, 0], [0.5, 0.5]]


@settings(max_examples=examples(60))
@given(problem=crowds())
def test_shares_follow_their_formulas(problem: gp.AllocationProblem) -> None:
    problem = able(problem)
    isolated = gp.solve(problem, "isolated")
    assert np.all(isolated.throughputs <= problem.isolated_throughput * (1 + 1e-12))
    everywhere = problem.runnable.all(axis=1) | (problem.throughputs * ~problem.runnable == 0).all(axis=1)
    assert isolated.throughputs[everywhere] == pytest.approx(problem.isolated_throughput[everywhere], rel=1e-12)
    proportional = gp.solve(problem, "proportional")
    part = min(1.0, problem.capacities.sum() / problem.num_gpus.sum())
    assert proportional.normalized_throughputs[everywhere] == pytest.approx(np.full(everywhere.sum(), part), rel=1e-12)
    for allocation in (isolated, proportional):
        assert allocation.verify().violation <= 1e-12


def test_allox_lets_a_job_wait_for_a_faster_gpu() -> None:
    """resnet, then bert on the V100, and lstm on the K80: 30 + 90 + 60 s; shortest_job_first starts bert on the K80."""
    assert shares(three_jobs(), "allox") == [[0, 0], [1, 0], [0, 1]]
    assert shares(three_jobs(elapsed_seconds=[9e5, 0, 60]), "allox") == [[0, 0], [1, 0], [0, 1]]
    assert shares(three_jobs(), "shortest_job_first") == [[0, 1], [1, 0], [0, 0]]


def schedules(jobs: tuple[int, ...], gpus: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to queue the jobs on the GPUs: one order of all jobs, cut into as many pieces as there are GPUs."""
    for order in itertools.permutations(jobs):
        for cuts in itertools.combinations_with_replacement(range(len(jobs) + 1), gpus - 1):
            ends = [0, *cuts, len(jobs)]
            yield [order[start:end] for start, end in itertools.pairwise(ends)]


def total_completion(queues: list[tuple[int, ...]], types: list[int], seconds: Floats) -> float:
    return sum(float(np.cumsum([seconds[i, j] for i in queue]).sum()) for queue, j in zip(queues, types, strict=True) if queue)


@settings(max_examples=examples(100))
@given(data=st.data(), jobs=st.integers(1, 4), gpus=st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_allox_starts_an_optimal_schedule(data: st.DataObject, jobs: int, gpus: list[int]) -> None:
    """Of all schedules with the jobs at the front that the policy puts there, the best is as good as the best of all."""
    assume(0 < sum(gpus) <= 4)
    speed = st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.25])
    speeds = np.array(data.draw(st.lists(st.lists(speed, min_size=len(gpus), max_size=len(gpus)), min_size=jobs, max_size=jobs)))
    steps = data.draw(st.lists(st.sampled_from([1.0, 2.0, 6.0, 50.0]), min_size=jobs, max_size=jobs))
    problem = gp.AllocationProblem.from_arrays(speeds, gpus, steps_remaining=steps)
    able = tuple(np.flatnonzero(problem.runnable.any(axis=1)).tolist())
    assume(able)
    x = gp.solve(problem, "allox").time_fractions
    with np.errstate(divide="ignore"):
        seconds = np.array(steps)[:, None] / speeds
    types = [j for j, count in enumerate(gpus) for _ in range(count)]
    best = best_with = np.inf
    for queues in schedules(able, len(types)):
        total = total_completion(queues, types, seconds)
        front = sorted((queue[0], j) for queue, j in zip(queues, types, strict=True) if queue)
        best = min(best, total)
        if front == sorted(zip(*(places.tolist() for places in np.nonzero(x)), strict=True)):
            best_with = min(best_with, total)
    assert np.isfinite(best)
    assert best_with == pytest.approx(best, rel=1e-12)


def test_allox_leaves_no_gpu_idle_that_would_help_and_uses_whole_gpus_only() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [2.5], steps_remaining=[30, 10, 20])
    assert shares(problem, "allox") == [[0], [1], [1]]


def test_allox_breaks_ties_by_arrival_then_by_id() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.0]] * 3, [1], job_ids=["job-10", "job-9", "job-2"], arrival_seconds=[0, 0, 1], steps_remaining=[5, 5, 5]
    )
    assert shares(problem, "allox") == [[0], [1], [0]]


def test_allox_names_the_gangs_that_it_does_not_serve() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[1.0]] * 3, [4], job_ids=["a", "b", "c"], num_gpus=[2, 1, 4], steps_remaining=[1, 1, 1]
    )
    with pytest.raises(gp.InputError) as caught:
        gp.solve(problem, "allox")
    assert str(caught.value).splitlines() == [
        "job 'a', field num_gpus: is 2, but allox serves only jobs of one whole GPU",
        "job 'c', field num_gpus: is 4, but allox serves only jobs of one whole GPU",
    ]


def test_allox_refuses_what_it_could_not_hold() -> None:
    problem = gp.AllocationProblem.from_arrays(np.ones((10_000, 1)), [8], steps_remaining=np.ones(10_000))
    with pytest.raises(
        gp.InputError, match="10000 jobs and 10000 queue positions need a cost matrix of more than 50,000,000 numbers"
    ):
        gp.solve(problem, "allox")


def test_the_twin_of_allox_sees_the_speed_on_the_reference() -> None:
    """Seen from the K80, bert takes 240 s everywhere and waits; seen from the V100, resnet is the shortest."""
    assert gp.solve(three_jobs(), "allox", agnostic=True, reference="type-1").time_fractions.sum(axis=1).tolist() == [0, 1, 1]
    problem = gp.AllocationProblem.from_arrays([[4, 1], [1, 1]], [1, 0], steps_remaining=[4, 3])
    assert shares(problem, "allox") == [[1, 0], [0, 0]]
    assert shares(problem, "allox", agnostic=True, reference="type-1") == [[0, 0], [1, 0]]


@pytest.mark.parametrize("policy", ["isolated", "proportional", "allox"])
def test_formulas_merge_no_jobs_and_run_in_rounds(policy: str) -> None:
    allocation = gp.solve(three_jobs(), policy, merge_tolerance=0.1)
    assert allocation.time_fractions.tolist() == gp.solve(three_jobs(), policy).time_fractions.tolist()
    assert allocation.verify().value is None
    assert gp.Allocation.from_json(allocation.to_json()).status == "formula"
    speeds = gp.ThroughputProfile.from_matrix([[4, 1], [2, 1]], job_ids=["a", "b"], accelerators=["v100", "k80"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:1,k80:1"), speeds, policy=policy)
    for job_id in ("a", "b"):
        scheduler.submit(gp.Job(job_id, total_steps=3600))
    assert len(scheduler.next_round().assignments) == 2


class Stated(gp.FormulaPolicy):
    """Whatever is stated."""

    table: Any = None

    def fractions(self, jobs: gp.JobClasses) -> Floats:  # noqa: ARG002
        return self.table  # type: ignore[no-any-return]


def test_a_user_defined_formula_must_be_valid() -> None:
    class Half(Stated):
        table = np.full((3, 2), 0.5)

    class Row(Stated):
        table = np.full((1, 2), 0.5)

    with pytest.raises(gp.ProofError, match=r"not a valid allocation: a rule is violated by up to 0\.5"):
        gp.solve(three_jobs(), Half())
    with pytest.raises(gp.InputError, match=r"policy row, field fractions: must return a table of the shape \(3, 2\)"):
        gp.solve(three_jobs(), Row())
    for wrong in ("abc", [["a", "b"]] * 3, [[0.5], [0.5, 0.5]]):
        Row.table = wrong
        with pytest.raises(gp.InputError, match=r"policy row, field fractions: must return a table of the shape \(3, 2\)"):
            gp.solve(three_jobs(), Row())
    assert gp.solve(three_jobs().with_capacities([2, 2]), Half()).time_fractions.tolist() == [[0.5, 0.5]] * 3
