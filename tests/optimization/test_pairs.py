"""Jobs that share GPUs two by two, against the program over all pairs of single jobs."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.examples import examples
from tests.support.instances import TIGHT, Floats

PROGRAMS = ["max_min_fairness", "max_total_throughput", "min_makespan"]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of a problem with up to 7 jobs of up to 4 kinds, gangs of 1 and 2, some of which share."""
    kinds = draw(st.integers(1, 4))
    types = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=kinds, max_size=kinds))
    speed = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    alone = [[draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0])) for _ in range(types)] for _ in range(kinds)]
    pairs = [[[draw(st.sampled_from([0.0, 0.0]) | speed) for _ in range(types)] for _ in range(kinds)] for _ in range(kinds)]
    of = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=7))
    together = np.minimum(np.array(pairs), np.array(alone)[:, None])  # nobody is faster for company
    return {
        "throughputs": [alone[kind] for kind in of],
        "capacities": draw(st.lists(st.integers(0, 4), min_size=types, max_size=types)),
        "num_gpus": [sizes[kind] for kind in of],
        "weights": draw(st.lists(st.sampled_from([1.0, 1.0, 2.0]), min_size=len(of), max_size=len(of))),
        "total_steps": draw(st.lists(st.sampled_from([10.0, 10.0, 25.0, 100.0]), min_size=len(of), max_size=len(of))),
        "pair_kinds": of,
        "pair_throughputs": together,
    }


def problem_of(case: dict[str, Any]) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(**case)


def program_of(problem: gp.AllocationProblem) -> tuple[Floats, Floats, Floats, list[tuple[float, float]]]:
    """The program over all jobs and pairs of jobs: (N, variables) throughputs, rows, limits, bounds."""
    count, types = problem.throughputs.shape
    columns = columns_of(problem)
    throughputs, times, gpus = (np.zeros((rows, len(columns))) for rows in (count, count, types))
    for n, (jobs, j, fast) in enumerate(columns):
        throughputs[list(jobs), n] = fast
        times[list(jobs), n] = 1
        gpus[j, n] = problem.num_gpus[jobs[0]]
    return throughputs, np.vstack([times, gpus]), np.concatenate([np.ones(count), problem.capacities]), [(0, 1)] * len(columns)


def columns_of(problem: gp.AllocationProblem) -> list[tuple[tuple[int, ...], int, tuple[float, ...]]]:
    """The jobs, the type and the throughputs of all single jobs and pairs."""
    assert problem.pairs is not None
    count, types = problem.throughputs.shape
    kinds, speeds = problem.pairs.kinds, problem.pairs.speeds
    columns: list[tuple[tuple[int, ...], int, tuple[float, ...]]] = [
        ((i,), j, (problem.throughputs[i, j],)) for i in range(count) for j in range(types) if problem.runnable[i, j]
    ]
    for a, b in combinations(range(count), 2):
        for j in range(types):
            fast = speeds[kinds[a], kinds[b], j], speeds[kinds[b], kinds[a], j]
            both = problem.runnable[a, j] and problem.runnable[b, j] and problem.num_gpus[a] == problem.num_gpus[b]
            if both and min(fast) > 0:
                columns.append(((a, b), j, fast))
    return columns


def best_of(problem: gp.AllocationProblem, policy: str, forced: tuple[int, float] | None = None) -> float:
    """The optimum of that program; forced: a column, and the time that is spent there whatever it costs."""
    throughputs, rows, limits, bounds = program_of(problem)
    if forced is not None:
        bounds[forced[0]] = (forced[1], 1)
    able = problem.runnable.any(axis=1)
    if policy == "max_total_throughput":
        worth = (throughputs[able] / problem.equal_share[able, None]).sum(axis=0)
        found = linprog(-worth, rows, limits, bounds=bounds, method="highs", options=TIGHT)
        return float(-found.fun)
    need = problem.weights * problem.equal_share / problem.num_gpus if policy == "max_min_fairness" else problem.steps_remaining
    level = np.column_stack([-throughputs[able], need[able]])
    table = np.vstack([level, np.column_stack([rows, np.zeros(len(rows))])])
    ends = np.concatenate([np.zeros(able.sum()), limits])
    found = linprog([*np.zeros(len(bounds)), -1.0], table, ends, bounds=[*bounds, (0, None)], method="highs", options=TIGHT)
    return float(-found.fun) if policy == "max_min_fairness" else float(-1 / found.fun)


@settings(max_examples=examples(120))
@given(case=cases(), policy=st.sampled_from(PROGRAMS))
def test_the_optimum_is_that_of_all_pairs_of_jobs(case: dict[str, Any], policy: str) -> None:
    problem = problem_of(case)
    if len(problem.excluded) == problem.num_jobs:
        return
    allocation = gp.solve(problem, policy)
    assert allocation.objective_value == pytest.approx(best_of(problem, policy), rel=1e-6)
    assert_valid(problem, allocation)


@settings(max_examples=examples(60, costly=True))
@given(case=cases(), policy=st.sampled_from(["finish_time_fairness", "water_filling", "nash_welfare", "max_progress_rate"]))
def test_every_policy_with_an_objective_shares(case: dict[str, Any], policy: str) -> None:
    problem = problem_of(case)
    if len(problem.excluded) < problem.num_jobs:
        assert_valid(problem, gp.solve(problem, policy))


def assert_valid(problem: gp.AllocationProblem, allocation: gp.Allocation) -> None:
    """No job has more than all of its time, no type more than its GPUs, and pairs are what they should be."""
    assert allocation.verify().violation <= 1e-9
    times, pairs = allocation.time_fractions, allocation.pairs
    assert times.sum(axis=1).max() <= 1 + 1e-9
    if pairs is None:
        return
    assert (pairs.first < pairs.second).all()
    assert (problem.num_gpus[pairs.first] == problem.num_gpus[pairs.second]).all()
    assert problem.pairs is not None
    assert (pairs.gains > 1).all()
    shared = pairs.by_job(*times.shape)
    alone = times - shared
    assert alone.min() >= -1e-9
    assert (problem.num_gpus @ (alone + shared / 2) <= problem.capacities * (1 + 1e-9) + 1e-9).all()
    kinds, speeds = problem.pairs.kinds, problem.pairs.speeds
    throughputs = (problem.throughputs * alone).sum(axis=1)
    for one, other in ((pairs.first, pairs.second), (pairs.second, pairs.first)):
        np.add.at(throughputs, one, pairs.times * speeds[kinds[one], kinds[other], pairs.types])
    assert throughputs == pytest.approx(allocation.throughputs, rel=1e-7, abs=1e-9)


@st.composite
def crowds(draw: st.DrawFn) -> dict[str, Any]:
    """Arrays of a problem of few kinds with many jobs each, of several weights."""
    case = draw(cases())
    counts = draw(st.lists(st.integers(1, 12), min_size=len(case["num_gpus"]), max_size=len(case["num_gpus"])))
    order = draw(st.permutations(range(sum(counts))))
    by_job = ("throughputs", "num_gpus", "weights", "total_steps", "pair_kinds")
    many = {name: np.repeat(np.array(case[name]), counts, axis=0)[order] for name in by_job}
    capacities = draw(st.lists(st.integers(0, 40), min_size=len(case["capacities"]), max_size=len(case["capacities"])))
    return case | many | {"capacities": capacities}


def one_by_one(policy: gp.Policy) -> gp.Policy:
    """The policy with a row of its program for every job."""
    kind = type(type(policy).__name__, (type(policy),), {"reads": (*policy.reads, "job_ids")})
    each: gp.Policy = kind(**{field.name: getattr(policy, field.name) for field in fields(policy)})
    return each


@settings(max_examples=examples(50, costly=True))
@given(case=crowds(), policy=st.sampled_from([*PROGRAMS, "nash_welfare", "finish_time_fairness"]))
def test_classes_reach_the_optimum_of_single_jobs_and_are_split_into_pairs(case: dict[str, Any], policy: str) -> None:
    problem, asked = problem_of(case), gp.resolve_policy(policy)
    if len(problem.excluded) == problem.num_jobs:
        return
    allocation = gp.solve(problem, asked)
    assert_valid(problem, allocation)
    apart = gp.solve(problem, one_by_one(asked))
    assert allocation.objective_value == pytest.approx(apart.objective_value, rel=2e-6, abs=1e-6)
    if policy == "nash_welfare":  # strictly concave, so that throughputs are the same in all optima
        assert allocation.throughputs == pytest.approx(apart.throughputs, rel=1e-2, abs=1e-3)
    read = [np.asarray(case[name]) for name in ("pair_kinds", *{"weights", "total_steps"}.intersection(asked.reads))]
    read += [problem.steps_remaining] if "steps_remaining" in asked.reads else []
    classes = np.unique(np.column_stack(read), axis=0, return_inverse=True)[1].ravel()
    assert allocation.pairs is not None
    shared = allocation.pairs.by_job(*problem.throughputs.shape)
    for members in (classes == g for g in range(classes.max() + 1)):
        assert np.ptp(allocation.time_fractions[members], axis=0).max() == 0
        assert np.ptp(shared[members], axis=0).max() <= 1e-9
    assert_few(np.asarray(case["pair_kinds"]), allocation.pairs)
    assert_counted_as_single_jobs(problem, allocation)


def assert_counted_as_single_jobs(problem: gp.AllocationProblem, allocation: gp.Allocation) -> None:
    """Figures of the proof by class equal sums over single jobs."""
    assert allocation.evidence is not None
    times = allocation.evidence.times
    if times is None:  # no two jobs gain by sharing
        return
    by_job = times.classes.expanded(times.fractions)
    assert times.job_throughputs == pytest.approx(allocation.throughputs)
    for row in allocation.evidence.rules.hard_rows:
        assert times.used(row) == pytest.approx(row.used(problem, by_job), abs=1e-9)


CONSTRAINTS: list[list[gp.Constraint]] = [
    [gp.MaxGpus(gpus=2.5, accelerator="type-0"), gp.Forbid(job="3", accelerators=("type-1",))],
    [gp.MinThroughput(job="0", rate=0.9), gp.CostBudget(per_hour=9)],
    [gp.MinThroughput(job="0", rate=5.0, penalty=3.0), gp.MaxGpus(gpus=3, job="7", penalty=2.0), gp.SwitchCost(cost=0.05)],
    [gp.Quota(tenant="b", gpus=3.0), gp.Pin(job="5", accelerators=("type-1",))],
]


@pytest.mark.parametrize("constraints", CONSTRAINTS, ids=lambda each: type(each[0]).__name__)
@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan"])
def test_constraints_hold_for_classes_that_share_as_for_single_jobs(constraints: list[gp.Constraint], policy: str) -> None:
    kinds = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    alone = np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
    together = np.array([[[5, 1.6], [6, 1.8], [6, 1]], [[3, 1.6], [2.4, 1.4], [3, 1.8]], [[1.6, 1.8], [1.4, 1.2], [1.2, 1.8]]]) / 2
    previous = np.zeros((12, 2))
    previous[:3, 0] = 1.0
    problem = gp.AllocationProblem.from_arrays(
        alone[kinds],
        [3, 2],
        pair_kinds=kinds,
        pair_throughputs=together,
        total_steps=[100.0] * 12,
        tenants=["a"] * 6 + ["b"] * 6,
        prices_per_hour=[2.0, 1.0],
        previous_fractions=previous,
    )
    asked = gp.resolve_policy(policy, constraints=constraints)
    allocation, apart = gp.solve(problem, asked), gp.solve(problem, one_by_one(asked))
    assert_valid(problem, allocation)
    assert allocation.objective_value == pytest.approx(apart.objective_value, rel=2e-6)
    for ours, theirs in zip(allocation.constraints, apart.constraints, strict=True):
        if len([each for each in constraints if each.penalty]) + any(isinstance(each, gp.SwitchCost) for each in constraints) <= 1:
            assert ours.missed_by == pytest.approx(theirs.missed_by, abs=1e-6)
        assert ours.kept or ours.penalty is not None


def test_constraints_that_cannot_hold_are_named_where_jobs_share() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 2, [1], pair_kinds=[0, 0], pair_throughputs=[[[0.8]]])
    gp.solve(problem, constraints=[gp.MinThroughput(job="0", rate=0.8), gp.MinThroughput(job="1", rate=0.8)])
    with pytest.raises(gp.ConflictError, match="job '0'"):
        gp.solve(problem, constraints=[gp.MinThroughput(job="0", rate=0.85), gp.MinThroughput(job="1", rate=0.85)])
    with pytest.raises(gp.InputError, match="job '0'"):
        gp.solve(problem, constraints=[gp.Forbid(job="0", accelerators=("type-0",)), gp.MinThroughput(job="0", rate=0.5)])


def assert_few(kinds: NDArray[np.int64], pairs: gp.Pairs) -> None:
    """At most n_a + n_b − 1 pairs of jobs of two kinds on a type, n_a of one kind, and none of them twice."""
    both = np.sort(np.column_stack([kinds[pairs.first], kinds[pairs.second]]), axis=1)
    counts = np.bincount(kinds)
    for (a, b, _), found in zip(*np.unique(np.column_stack([both, pairs.types]), axis=0, return_counts=True), strict=True):
        assert found <= (counts[a] if a == b else counts[a] + counts[b] - 1)
    named = np.column_stack([pairs.first, pairs.second, pairs.types])
    assert len(np.unique(named, axis=0)) == len(named)


class TestByHand:
    def test_two_jobs_on_one_gpu(self) -> None:
        """Each runs at 0.75 of its speed together, and at half of it in turns."""
        problem = gp.AllocationProblem.from_arrays(
            [[2.0], [4.0]], [1], pair_kinds=[0, 1], pair_throughputs=[[[0], [1.5]], [[3.0], [0]]]
        )
        allocation = gp.solve(problem)
        assert allocation.throughputs.tolist() == pytest.approx([1.5, 3.0])
        assert allocation.time_fractions.tolist() == [[1.0], [1.0]]
        assert allocation.utilization.tolist() == pytest.approx([1.0])
        assert allocation.pairs is not None
        assert allocation.pairs.to_list(["a", "b"], ["v100"]) == [
            {"jobs": ["a", "b"], "accelerator": "v100", "time_fraction": 1.0, "gain": 1.5}
        ]

    def test_a_pair_that_is_no_gain_takes_turns(self) -> None:
        problem = gp.AllocationProblem.from_arrays(
            [[2.0], [4.0]], [1], pair_kinds=[0, 1], pair_throughputs=[[[0], [1.0]], [[2.0], [0]]]
        )
        allocation = gp.solve(problem)
        assert allocation.pairs is not None
        assert len(allocation.pairs) == 0
        assert allocation.throughputs.tolist() == pytest.approx([1.0, 2.0])

    def test_nobody_is_its_own_partner(self) -> None:
        """Of three equal jobs on 1 GPU each is in a pair for two thirds of the time; one job alone has no partner."""
        table = [[[0.75]]]
        three = gp.solve(gp.AllocationProblem.from_arrays([[1.0]] * 3, [1], pair_kinds=[0, 0, 0], pair_throughputs=table))
        assert three.throughputs.tolist() == pytest.approx([0.5] * 3)
        assert three.pairs is not None
        assert len(three.pairs) == 3
        one = gp.solve(gp.AllocationProblem.from_arrays([[1.0]], [1], pair_kinds=[0], pair_throughputs=table))
        assert one.throughputs.tolist() == [1.0]

    def test_one_job_cannot_have_more_partners_than_there_is_time(self) -> None:
        """A heavy job of a kind shares for no longer than the light ones of its kind together."""
        problem = gp.AllocationProblem.from_arrays(
            [[1.0]] * 3, [1], weights=[10.0, 1.0, 1.0], pair_kinds=[0, 0, 0], pair_throughputs=[[[0.9]]]
        )
        allocation = gp.solve(problem)
        assert allocation.objective_value == pytest.approx(best_of(problem, "max_min_fairness"), rel=1e-9)
        assert_valid(problem, allocation)

    def test_gangs_of_other_sizes_never_share(self) -> None:
        problem = gp.AllocationProblem.from_arrays(
            [[1.0], [1.0]], [2], num_gpus=[1, 2], pair_kinds=[0, 1], pair_throughputs=[[[0], [0.9]], [[0.9], [0]]]
        )
        assert not len(gp.solve(problem).pairs or ())

    def test_who_solves_may_say_whether_jobs_share(self) -> None:
        arrays = {"throughputs": [[2.0], [4.0]], "capacities": [1]}
        problem = gp.AllocationProblem.from_arrays(**arrays, pair_kinds=[0, 1], pair_throughputs=[[[0], [1.5]], [[3.0], [0]]])
        assert gp.solve(problem, sharing=True).throughputs.tolist() == pytest.approx([1.5, 3.0])
        alone = gp.solve(problem, sharing=False)
        assert alone.throughputs.tolist() == pytest.approx([1.0, 2.0])
        assert alone.pairs is None
        with pytest.raises(gp.InputError, match="has no pairs of jobs that could share GPUs"):
            gp.solve(gp.AllocationProblem.from_arrays(**arrays), sharing=True)

    def test_an_allocation_with_pairs_is_read_as_it_was_written(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [1], pair_kinds=[0, 0, 0], pair_throughputs=[[[0.75]]])
        allocation = gp.solve(problem)
        assert gp.Allocation.from_json(allocation.to_json()).to_dict() == allocation.to_dict()


def test_pairs_of_two_kinds_are_no_more_than_their_jobs() -> None:
    """At most n_a + n_b − 1 pairs of jobs for two kinds on a type, and equal jobs get the same."""
    kinds = [0] * 13 + [1] * 29
    table = np.array([[[0.0], [0.9]], [[0.8], [0.0]]])
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 42, [8], pair_kinds=kinds, pair_throughputs=table)
    allocation = gp.solve(problem)
    assert allocation.pairs is not None
    assert 0 < len(allocation.pairs) <= 13 + 29 - 1
    shared = allocation.pairs.by_job(42, 1)[:, 0]
    for kind in (0, 1):
        assert np.ptp(shared[np.array(kinds) == kind]) <= 1e-9


@pytest.mark.deep
def test_a_hundred_thousand_jobs_are_dealt_out_to_the_last_digit() -> None:
    """Sums over many equal jobs give all of them equal times, and partners equal times with each other."""
    chance = np.random.default_rng(3)
    table, kinds = np.array([[4.0, 1.0], [3.0, 2.0], [1.0, 1.0]]), chance.integers(3, size=100_000)
    together = np.array([[[3, 0.7], [2.5, 0.9], [3, 0.6]], [[2, 1.5], [2.2, 1.8], [0, 1.2]], [[0.9, 0.9], [0, 0.6], [0.7, 0.9]]])
    problem = gp.AllocationProblem.from_types(table, kinds, [9_000, 21_000], pair_kinds=kinds, pair_throughputs=together)
    allocation = gp.solve(problem)
    assert allocation.pairs is not None
    assert len(allocation.pairs) > 50_000
    assert_valid(problem, allocation)
    assert_few(kinds, allocation.pairs)
    shared = allocation.pairs.by_job(*problem.throughputs.shape)
    assert all(np.ptp(shared[kinds == kind], axis=0).max() <= 1e-9 for kind in range(3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pair_kinds": [0, 2]}, "pair_kinds: must be 2 whole numbers from 0 to 1"),
        ({"pair_kinds": [0]}, "pair_kinds: must be 2 whole numbers from 0 to 1"),
        ({"pair_throughputs": [[[1.0]]]}, "pair_kinds: must be 2 whole numbers from 0 to 0"),
        ({"pair_throughputs": [[1.0]]}, r"pair_throughputs: must have the shape \(kinds, kinds, 1\), found \(1, 1\)"),
        ({"pair_throughputs": np.full((2, 2, 1), -1.0)}, "pair_throughputs: must be finite numbers of at least 0"),
        ({"pair_kinds": None}, "pair_kinds: is required with pair_throughputs"),
        ({"pair_throughputs": None}, "pair_throughputs: is required with pair_kinds"),
        ({"pair_throughputs": "fast"}, "pair_throughputs: must be an array of numbers"),
        ({"pair_throughputs": [[[1.0], [1.0, 2.0]], [[1.0], [1.0]]]}, "pair_throughputs: must be an array of numbers"),
        ({"pair_kinds": ["a", "b"]}, "pair_kinds: must be an array of numbers"),
        (
            {"pair_kinds": [0, 0], "num_gpus": [1, 2]},
            "kind 0 has gangs of 1 and 2 GPUs, but only equal gangs of whole GPUs can share",
        ),
    ],
)
def test_wrong_pairs_are_refused(arrays: dict[str, Any], message: str) -> None:
    given = {"pair_kinds": [0, 1], "pair_throughputs": np.ones((2, 2, 1))} | arrays
    with pytest.raises(gp.InputError, match=message):
        gp.AllocationProblem.from_arrays([[1.0], [1.0]], [2], **given)


@pytest.mark.parametrize("policy", ["nash_welfare", "min_cost", "max_progress_rate", "water_filling", "finish_time_fairness"])
def test_measured_jobs_share_under_every_policy(policy: str) -> None:
    """What a solver's tolerance leaves is taken out, so that partners agree to the last digit."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    jobs = [each.job for each in gp.generate_trace(100, profile, jobs_per_hour=None, seed=4)]
    kinds = [gp.AcceleratorType(name=name, price_per_hour=price) for name, price in (("v100", 2.5), ("p100", 1.4), ("k80", 0.5))]
    nodes = [gp.Node(name=f"{kind.name}-{i}", accelerator=kind.name, num_gpus=8) for kind in kinds for i in range(2)]
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes, kinds), profile, sharing=True)
    assert_valid(problem, gp.solve(problem, policy))


@pytest.mark.deep
def test_the_order_of_jobs_changes_nothing() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    jobs = [each.job for each in gp.generate_trace(60, profile, jobs_per_hour=None, seed=8)]
    cluster = gp.Cluster.from_counts({"v100": 8, "p100": 8, "k80": 8})
    there, back = (gp.solve(gp.AllocationProblem.from_jobs(each, cluster, profile, sharing=True)) for each in (jobs, jobs[::-1]))
    assert (there.time_fractions == back.time_fractions[::-1]).all()


@pytest.mark.parametrize("least", [0.5, float("nan"), "much"])
def test_a_wrong_gain_is_refused(least: Any) -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    with pytest.raises(gp.InputError, match="min_gain: must be a finite number of at least 1"):
        gp.AllocationProblem.from_jobs(
            [gp.Job("a", job_type="A3C")], gp.Cluster.from_counts({"v100": 1}), profile, sharing=True, min_gain=least
        )


def test_a_policy_that_takes_time_from_single_jobs_does_not_share() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 2, [1], pair_kinds=[0, 0], pair_throughputs=[[[0.75]]])
    with pytest.raises(gp.InputError, match="withholds time from every job, which its partners would lose"):
        gp.solve(problem, "nash_welfare", strategy_proof=True)
