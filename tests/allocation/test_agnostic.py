"""Agnostic twins: the program decides on the time of a job, and the types on which it is spent are left to rng.

The split is compared with an independent program that has a variable for each job and type, total times with the lexicographic
max-min by its definition, and both with closed forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.allocation.test_time_limit import stopped_after
from tests.support.constraint_strategies import constraints, tenanted
from tests.support.examples import examples
from tests.support.instances import Floats
from tests.support.leximin import leximin

MaxMinFairness = gp.policy_class("max_min_fairness")
MaxProgressRate = gp.policy_class("max_progress_rate")
MaxTotalThroughput = gp.policy_class("max_total_throughput")
MinCost = gp.policy_class("min_cost")
MinMakespan = gp.policy_class("min_makespan")
NashWelfare = gp.policy_class("nash_welfare")
ThroughputPerDollar = gp.policy_class("throughput_per_dollar")
WaterFilling = gp.policy_class("water_filling")

DEMANDS = ("max_min_fairness", "min_makespan", "finish_time_fairness")
SUMS = ("max_total_throughput", "max_progress_rate", "nash_welfare")
PRICED = ("throughput_per_dollar", "min_cost")
PROGRAMS = (*DEMANDS, "min_lateness", "water_filling", "hierarchical", *SUMS, *PRICED)
pytestmark = pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning", "ignore:Solution may be inaccurate")
"""Constraints on tenants without jobs, and the accuracy that is asked of Clarabel."""

NOTE = "time is split over accelerator types as the solver returned it"


def twin(problem: gp.AllocationProblem, name: str, **options: Any) -> gp.Allocation:
    """The allocation of an agnostic policy, which must be proven, valid and even."""
    allocation = gp.solve(problem, name, agnostic=True, reference=problem.accelerator_types[0], **options)
    proof = allocation.verify()
    assert proof.violation <= 1e-9
    assert allocation.gap is not None
    assert allocation.gap <= (1e-8 if name == "nash_welfare" else 1e-9)
    assert allocation.route is not None
    assert allocation.route.failed == ()
    assert not any(note.startswith(NOTE) for note in allocation.notes)
    return allocation


def times_of(allocation: gp.Allocation) -> Floats:
    return allocation.time_fractions.sum(axis=1)


def drawn(seed: int, jobs: int = 7, **arrays: Any) -> gp.AllocationProblem:
    """Jobs of different speeds, gangs, weights, steps and times on 4, 8 and 3 GPUs, on all of which they may run."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([60.0, 600.0, 1e4], jobs)
    values: dict[str, Any] = {
        "num_gpus": rng.choice([1, 1, 2, 0.5], jobs),
        "weights": rng.choice([1.0, 2.0, 0.5], jobs),
        "steps_remaining": steps,
        "total_steps": steps,
        "elapsed_seconds": rng.choice([0.0, 3600.0], jobs),
        "deadlines_seconds": rng.choice([600.0, 3600.0], jobs),
        "prices_per_hour": [2.0, 2.0, 2.0],
    }
    return gp.AllocationProblem.from_arrays(rng.uniform(0.5, 4, (jobs, 3)), [4, 8, 3], **(values | arrays))


@st.composite
def masked(draw: st.DrawFn, max_jobs: int = 8, max_types: int = 4) -> gp.AllocationProblem:
    """Jobs that may run on the first type and some of the others; what they ask for may be less or more than there is."""
    n, k = draw(st.integers(1, max_jobs)), draw(st.integers(1, max_types))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = rng.choice([0.0, 1.0, 2.0, 4.0], (n, k), p=[0.4, 0.2, 0.2, 0.2])
    table[:, 0] = rng.choice([1.0, 2.0], n)
    capacities = rng.integers(1, 9, k)
    allowed = rng.random(n) < 0.5  # a gang that does not fit the first type may run on others only
    gangs = np.where(allowed, rng.choice([1, 1, 2, 4, 8], n), 1)
    assume(((table > 0) & (gangs[:, None] <= capacities)).any(axis=1).all())
    return gp.AllocationProblem.from_arrays(
        table,
        capacities,
        num_gpus=gangs,
        weights=rng.choice([1.0, 1.0, 2.0, 0.3], n),
        steps_remaining=rng.choice([10.0, 60.0, 1000.0], n),
        elapsed_seconds=rng.choice([0.0, 100.0], n),
        prices_per_hour=np.ones(k),
    )


def most_even(
    problem: gp.AllocationProblem, times: Floats, rows: Sequence[tuple[Floats, float]] = (), runnable: Any = None
) -> Floats:
    """The split of (N,) times with the least relative entropy, one variable per job and type, by Clarabel.

    rows: (N, K) coefficients and right-hand sides of further rows Σ a_ij x_ij <= b.
    """
    runs = problem.runnable if runnable is None else runnable
    gpus = np.where(runs, problem.capacities, 0.0)
    even = times[:, None] * gpus / np.maximum(gpus.sum(axis=1, keepdims=True), 1e-300)
    x = cp.Variable(runs.shape, nonneg=True)
    there = runs & (times[:, None] > 0)
    entropies = cp.sum(cp.multiply(np.where(there, problem.num_gpus[:, None], 0.0), cp.rel_entr(x, np.where(there, even, 1.0))))
    rules = [cp.sum(x, axis=1) == times, problem.num_gpus @ x <= problem.capacities * (1 + 1e-9), cp.multiply(x, ~there) == 0]
    rules += [cp.sum(cp.multiply(costs, x)) <= most + 1e-9 * max(1.0, abs(most)) for costs, most in rows]
    program = cp.Problem(cp.Minimize(entropies), rules)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return np.asarray(x.value)


def assert_most_even(allocation: gp.Allocation, rows: Sequence[tuple[Floats, float]] = ()) -> None:
    assert allocation.evidence is not None
    problem = allocation.evidence.problem
    assert allocation.time_fractions == pytest.approx(most_even(problem, times_of(allocation), rows), abs=1e-4)


class TestAllTypesAllowed:
    @pytest.mark.parametrize("name", PROGRAMS)
    @pytest.mark.parametrize("seed", range(3))
    def test_the_time_of_each_job_is_split_in_proportion_to_the_gpus(self, name: str, seed: int) -> None:
        problem = drawn(seed)
        allocation = twin(problem, name)
        assert times_of(allocation).max() > 0
        even = np.outer(times_of(allocation), problem.capacities / problem.capacities.sum())
        assert allocation.time_fractions == pytest.approx(even, abs=1e-12)

    @pytest.mark.parametrize("name", ["max_min_fairness", "max_total_throughput", "water_filling", "hierarchical", "nash_welfare"])
    @pytest.mark.parametrize("capacities", [[1, 1, 1], [4, 8, 3], [40, 8, 3]], ids=str)
    def test_jobs_that_differ_in_speed_only_get_equal_times(self, name: str, capacities: list[int]) -> None:
        problem = drawn(0, jobs=8, num_gpus=[1, 1, 1, 1, 2, 2, 2, 2], weights=[1, 2] * 4)
        problem = gp.AllocationProblem.from_arrays(
            problem.throughputs, capacities, num_gpus=problem.num_gpus, weights=problem.weights
        )
        times = times_of(twin(problem, name))
        for one, other in ((0, 2), (1, 3), (4, 6), (5, 7)):
            assert times[one] == pytest.approx(times[other], rel=1e-9)

    @pytest.mark.parametrize("gpus", [1, 3, 5, 7, 9])
    def test_what_the_level_leaves_open_is_divided_by_weight(self, gpus: int) -> None:
        """At the best level the gang of 8 has all of its time, and need_i = w_i / s_i · 2 where the weight is 1/4 for it."""
        gangs, weights = np.array([8.0, 1, 1, 1, 2]), np.array([4.0, 1, 2, 1, 1])
        problem = gp.AllocationProblem.from_arrays(np.ones((5, 2)), [8, gpus], num_gpus=gangs, weights=weights)
        allocation = twin(problem, "max_min_fairness")
        level = allocation.objective_value
        assert level is not None
        times, needs = times_of(allocation), np.minimum(1.0, level * weights / gangs)
        assert np.all(times >= needs * (1 - 1e-9))
        total = min(8.0 + gpus, gangs.sum())
        low, high = 0.0, 100.0
        for _ in range(200):
            theta = (low + high) / 2
            filled = np.maximum(needs, np.minimum(1.0, theta * weights / gangs))
            low, high = (low, theta) if gangs @ filled > total else (theta, high)
        assert times == pytest.approx(filled, rel=1e-9)
        assert gangs @ times == pytest.approx(total, rel=1e-9)

    @pytest.mark.parametrize("name", ["min_makespan", "finish_time_fairness", "min_lateness"])
    def test_weights_that_a_policy_does_not_read_make_no_difference(self, name: str) -> None:
        problem = drawn(3, num_gpus=np.ones(7), steps_remaining=np.full(7, 600.0), total_steps=np.full(7, 600.0))
        same = {"elapsed_seconds": np.zeros(7), "deadlines_seconds": np.full(7, 600.0)}
        problem = gp.AllocationProblem.from_arrays(
            np.ones((7, 3)), [1, 2, 1], steps_remaining=problem.steps_remaining, weights=problem.weights, **same
        )
        assert times_of(twin(problem, name)) == pytest.approx(np.full(7, 4 / 7), rel=1e-9)

    @pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "max_total_throughput"])
    def test_all_gpus_are_in_use_if_there_are_jobs_for_them(self, name: str) -> None:
        problem = drawn(1, jobs=30, num_gpus=np.ones(30))
        assert twin(problem, name).utilization == pytest.approx(np.ones(3), rel=1e-9)

    def test_jobs_to_which_the_rest_may_give_no_time_are_left_out_of_it(self) -> None:
        """The short job comes before all others, and what remains of the GPUs is decided, too."""
        problem = gp.AllocationProblem.from_arrays(
            [[1.0], [1.0], [4.0]], [4], num_gpus=[0.6, 1, 4], weights=[0.25, 1, 0.25], steps_remaining=[5.16347e5, 1, 3.09248e5]
        )
        allocation = gp.solve(problem, "max_progress_rate", agnostic=True, reference="type-0")
        assert allocation.time_fractions[:, 0] == pytest.approx([1, 1, 0.6])

    def test_the_efficiency_option_makes_no_difference(self) -> None:
        problem = drawn(2)
        plain, full = (twin(problem, "max_min_fairness", efficiency=efficiency) for efficiency in (False, True))
        assert plain.time_fractions == pytest.approx(full.time_fractions, abs=1e-12)

    @pytest.mark.parametrize("name", ["isolated", "proportional", "gandiva"])
    def test_formulas_stay_what_they_are(self, name: str) -> None:
        problem = drawn(4)
        found = [gp.solve(problem, name, agnostic=agnostic).time_fractions for agnostic in (False, True)]
        assert np.array_equal(*found)


class TestSomeTypesAllowed:
    @pytest.mark.parametrize("name", [*DEMANDS, "max_total_throughput", "nash_welfare", "water_filling"])
    @settings(max_examples=examples(25, costly=True))
    @given(problem=masked())
    def test_the_split_is_the_most_even_one(self, name: str, problem: gp.AllocationProblem) -> None:
        assert_most_even(twin(problem, name))

    @settings(max_examples=examples(60))
    @given(problem=masked())
    def test_types_have_one_price_each_for_all_jobs(self, problem: gp.AllocationProblem) -> None:
        """The conditions of Karush, Kuhn and Tucker: x_ij = t_i c_j β_j / Σ_k c_k β_k, and β_j is largest where GPUs are left."""
        allocation = twin(problem, "max_min_fairness")
        x, used = allocation.time_fractions, allocation.utilization
        ratio = x / problem.capacities
        for j in range(len(used)):
            for k in range(len(used)):
                both = problem.runnable[:, j] & problem.runnable[:, k]
                one, other = ratio[both, j], ratio[both, k]
                assert np.abs(np.outer(one, other) - np.outer(other, one)).max(initial=0) <= 1e-9
                if used[j] < 1 - 1e-9:
                    assert np.all(one >= other - 1e-9)

    @pytest.mark.parametrize("name", DEMANDS)
    @settings(max_examples=examples(25, costly=True))
    @given(problem=masked(max_jobs=6, max_types=3))
    def test_total_times_are_the_fairest_that_keep_the_level(self, name: str, problem: gp.AllocationProblem) -> None:
        allocation = twin(problem, name)
        assert allocation.evidence is not None
        certificate: Any = allocation.evidence.certificate
        jobs, times = certificate.jobs, times_of(allocation)
        needs = jobs.by_job(certificate.levels.needs(certificate.bound()) / jobs.fastest)
        weights = problem.weights if name == "max_min_fairness" else np.ones(problem.num_jobs)
        gains = np.where(problem.runnable, (problem.num_gpus / weights)[:, None], 0.0)
        rows = -np.kron(np.eye(problem.num_jobs), np.ones(len(problem.capacities)))
        fairest = leximin(problem, gains, rows=rows, limits=-needs * (1 - 1e-8))
        assert problem.num_gpus * times / weights == pytest.approx(fairest, rel=1e-5, abs=1e-6)

    @settings(max_examples=examples(40))
    @given(problem=masked(max_jobs=6, max_types=3))
    def test_total_times_are_the_fairest_that_keep_a_sum(self, problem: gp.AllocationProblem) -> None:
        allocation = twin(problem, "max_total_throughput")
        gains = np.where(problem.runnable, problem.num_gpus[:, None], 0.0)
        rows = -problem.runnable.ravel().astype(float)[None]
        fairest = leximin(problem, gains, rows=rows, limits=np.array([-times_of(allocation).sum() * (1 - 1e-9)]))
        assert problem.num_gpus * times_of(allocation) == pytest.approx(fairest, rel=1e-5, abs=1e-5)

    def test_a_type_that_some_jobs_need_whole_is_left_to_them(self) -> None:
        """Prices grow without end here, one above the other: a fixed-point iteration would not end."""
        table = np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1.0]])
        allocation = twin(gp.AllocationProblem.from_arrays(table, [2, 2, 2]), "max_min_fairness")
        expected = np.repeat(np.eye(3), 2, axis=0)
        assert np.array_equal(allocation.time_fractions, expected)

    def test_many_masks_and_a_million_gpus_beside_one(self) -> None:
        rng = np.random.default_rng(0)
        table = (rng.random((200, 8)) < 0.4).astype(float)
        table[:, 0] = 1.0
        problem = gp.AllocationProblem.from_arrays(
            table, [1, 3, 10, 30, 100, 1e3, 1e5, 1e6], num_gpus=rng.choice([1, 1, 2, 8, 1000, 100000], 200)
        )
        problem = problem.select(problem.runnable.any(axis=1))
        allocation = twin(problem, "max_min_fairness")
        ratio = allocation.time_fractions / problem.capacities
        both = problem.runnable[:, 6] & problem.runnable[:, 7] & (times_of(allocation) > 0)
        sixth = ratio[both, 6] / ratio[both, 7]  # of a job as of all, to the 1e-9 to which times are valid
        assert sixth == pytest.approx(np.full(both.sum(), sixth[0]), rel=1e-6, abs=1e-9)

    @settings(max_examples=examples(30))
    @given(problem=masked(), data=st.data())
    def test_the_order_of_jobs_and_types_makes_no_difference(self, problem: gp.AllocationProblem, data: st.DataObject) -> None:
        jobs = data.draw(st.permutations(range(problem.num_jobs)))
        types = data.draw(st.permutations(range(len(problem.capacities))))
        expected = twin(problem, "max_min_fairness").time_fractions
        assert np.array_equal(twin(problem.select(np.array(jobs)), "max_min_fairness").time_fractions, expected[jobs])
        other = gp.AllocationProblem.from_arrays(
            problem.throughputs[:, types], problem.capacities[types], num_gpus=problem.num_gpus, weights=problem.weights
        )
        found = gp.solve(other, "max_min_fairness", agnostic=True).time_fractions
        assert found == pytest.approx(expected[:, types], abs=1e-9)


class TestRules:
    @pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "max_total_throughput", "water_filling"])
    @settings(max_examples=examples(20, costly=True))
    @given(data=st.data())
    def test_the_split_is_the_most_even_one_that_keeps_hard_constraints(self, name: str, data: st.DataObject) -> None:
        problem = data.draw(tenanted(max_jobs=6))
        assume(problem.throughputs[problem.runnable.any(axis=1), 0].all())
        some = [
            each
            for each in data.draw(constraints(problem))
            if not isinstance(each, (gp.MinThroughput, gp.Deadline, gp.KeepRunning))
        ]
        try:
            allocation = twin(problem, name, constraints=some)
        except gp.InputError:
            return
        evidence = allocation.evidence
        assert evidence is not None
        everybody = np.arange(problem.num_jobs)
        rows = [(row.costs(everybody, problem.num_gpus), row.rhs) for row in evidence.rules.hard_rows]
        if evidence.certificate is not None:
            assert_most_even(allocation, rows)

    def test_total_times_under_a_quota_are_the_fairest(self) -> None:
        """Red and blue may have 1 GPU each, so green takes the rest, and each tenant's jobs share equally."""
        problem = gp.AllocationProblem.from_arrays(
            np.arange(1.0, 19).reshape(9, 2), [2, 4], tenants=["red"] * 3 + ["blue"] * 2 + ["green"] * 4, weights=np.ones(9)
        )
        limits = [gp.MaxGpus(1.0, tenant="red"), gp.MaxGpus(1.0, tenant="blue")]
        allocation = twin(problem, "max_min_fairness", constraints=limits)
        assert times_of(allocation) == pytest.approx([1 / 3] * 3 + [1 / 2] * 2 + [1.0] * 4, rel=1e-9)
        assert allocation.time_fractions == pytest.approx(np.outer(times_of(allocation), [1 / 3, 2 / 3]), abs=1e-9)

    def test_hundreds_of_quotas(self) -> None:
        """Each tenant is held at its own level, except one with a quota larger than its jobs can use."""
        tenants, jobs = 400, 1200
        problem = gp.AllocationProblem.from_arrays(
            np.ones((jobs, 2)), [600, 600], tenants=[f"{i % tenants}" for i in range(jobs)], num_gpus=np.ones(jobs)
        )
        quotas = np.linspace(0.1, 4, tenants)
        limits = [gp.MaxGpus(quota, tenant=f"{i}") for i, quota in enumerate(quotas.tolist())]
        allocation = twin(problem, "max_min_fairness", constraints=limits)
        assert times_of(allocation) == pytest.approx(np.minimum(1.0, quotas / 3)[np.arange(jobs) % tenants], rel=1e-9)

    def test_a_quota_on_one_type_leaves_the_other_types_to_the_tenant(self) -> None:
        problem = gp.AllocationProblem.from_arrays(np.ones((4, 2)), [2, 2], tenants=["red", "red", "blue", "blue"])
        allocation = twin(problem, "max_min_fairness", constraints=[gp.MaxGpus(0.5, tenant="red", accelerator="type-0")])
        assert allocation.time_fractions == pytest.approx(np.array([[0.25, 0.75]] * 2 + [[0.75, 0.25]] * 2), abs=1e-9)

    def test_a_guaranteed_share_is_kept_and_shared_equally(self) -> None:
        problem = gp.AllocationProblem.from_arrays(np.ones((6, 2)), [1, 2], tenants=["red"] * 2 + ["blue"] * 4)
        guaranteed = gp.Quota("red", gpus=1.5, guaranteed=True)
        times = times_of(twin(problem, "max_min_fairness", constraints=[guaranteed]))
        assert times == pytest.approx([0.75] * 2 + [0.375] * 4, rel=1e-9)

    def test_soft_limits_are_missed_by_as_much_as_before_and_the_rest_is_fair(self) -> None:
        problem = gp.AllocationProblem.from_arrays(np.ones((4, 2)), [2, 2], tenants=["red", "red", "blue", "blue"])
        limit = gp.MaxGpus(1.0, tenant="red").soft(1e-3)
        allocation = twin(problem, "max_min_fairness", constraints=[limit])
        assert times_of(allocation) == pytest.approx(np.ones(4), rel=1e-6)
        assert allocation.time_fractions == pytest.approx(np.full((4, 2), 0.5), abs=1e-6)
        dear = twin(problem, "max_min_fairness", constraints=[gp.MaxGpus(1.0, tenant="red").soft(1e3)])
        assert times_of(dear) == pytest.approx([0.5, 0.5, 1.0, 1.0], rel=1e-6)

    def test_new_jobs_are_split_evenly_where_change_has_a_cost(self) -> None:
        problem = gp.AllocationProblem.from_arrays(
            np.ones((3, 2)), [1, 2], previous_fractions=[[1 / 3, 2 / 3], [0, 0], [0, 0]], weights=[1, 1, 1]
        )
        allocation = twin(problem, "max_min_fairness", constraints=[gp.SwitchCost(0.01)])
        assert allocation.time_fractions == pytest.approx(np.tile([1 / 3, 2 / 3], (3, 1)), abs=1e-6)

    @pytest.mark.parametrize("name", [*DEMANDS[:2], "max_total_throughput", "water_filling", *PRICED])
    @settings(max_examples=examples(15, costly=True))
    @given(data=st.data())
    def test_soft_constraints_and_costs_of_change_are_proven(self, name: str, data: st.DataObject) -> None:
        problem = data.draw(tenanted(max_jobs=6))
        assume(problem.throughputs[problem.runnable.any(axis=1), 0].all())
        some = data.draw(constraints(problem, soft=True))
        some = [each for each in some if not isinstance(each, (gp.MinThroughput, gp.Deadline, gp.KeepRunning))]
        try:
            gp.solve(problem, name, agnostic=True, reference="type-0", constraints=some).verify()
        except gp.InputError:
            return

    def test_whole_gangs_stay_deliverable(self) -> None:
        nodes = [gp.Node(name=f"{kind}-{i}", accelerator=kind, num_gpus=4) for kind in ("v100", "k80") for i in range(2)]
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        sizes = [4, 4, 4, 2, 2, 1, 1, 1]
        jobs = [
            gp.Job(f"{i}", job_type="ResNet-18 (batch size 64)", num_gpus=size, total_steps=1e5) for i, size in enumerate(sizes)
        ]
        problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile)
        allocation = twin(problem, "max_min_fairness")
        by_size = {size: times_of(allocation)[np.array(sizes) == size] for size in set(sizes)}
        assert all(np.ptp(times) <= 1e-9 for times in by_size.values())
        assert allocation.utilization == pytest.approx([1.0, 1.0], rel=1e-9)

    def test_jobs_that_differ_in_cpus_share_nodes_with_few_of_them(self) -> None:
        nodes = [gp.Node(name=kind, accelerator=kind, num_gpus=8, cpus=cpus) for kind, cpus in (("v100", 24), ("k80", 64))]
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        jobs = [
            gp.Job(f"{i:02d}", job_type="ResNet-18 (batch size 64)", total_steps=1e5, cpus_per_gpu=1 + 0.3 * i) for i in range(20)
        ]
        problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile)
        allocation = twin(problem, "max_min_fairness")
        assert allocation.evidence is not None
        rows = [(row.costs(np.arange(20), problem.num_gpus), row.rhs) for row in allocation.evidence.rules.hard_rows]
        assert len(rows) == 1
        assert np.ptp(times_of(allocation)) <= 1e-9
        assert_most_even(allocation, rows)

    def test_fractions_of_gpus(self) -> None:
        nodes = [gp.Node(name=kind, accelerator=kind, num_gpus=2) for kind in ("v100", "k80")]
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        jobs = [
            gp.Job(f"{i}", job_type="ResNet-18 (batch size 64)", num_gpus=size, total_steps=1e5)
            for i, size in enumerate([0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.5, 1])
        ]
        allocation = twin(gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile), "max_min_fairness")
        assert np.ptp(times_of(allocation)[:6]) <= 1e-9
        assert allocation.time_fractions[:6] == pytest.approx(np.tile(allocation.time_fractions[0], (6, 1)), abs=1e-9)

    def test_the_slower_placement_is_used_only_where_the_faster_one_has_no_room(self) -> None:
        rows = [
            gp.Measurement(job_type="t", num_gpus=2, accelerator=kind, placement=placement, steps_per_second=speed)
            for kind in ("v100", "k80")
            for placement, speed in (("consolidated", 2.0), ("spread", 1.0))
        ]
        profile = gp.ThroughputProfile("measured", rows)
        for sizes, spread in (((2, 2), 0.0), ((2, 1, 1), 1 / 2)):
            nodes = [
                gp.Node(name=f"{kind}-{i}", accelerator=kind, num_gpus=n) for kind in ("v100", "k80") for i, n in enumerate(sizes)
            ]
            jobs = [gp.Job(f"{i}", job_type="t", num_gpus=2, total_steps=100) for i in range(4)]
            allocation = twin(gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile), "max_min_fairness")
            assert allocation.time_fractions == pytest.approx(np.full((4, 2), 0.5), abs=1e-9)
            assert allocation.spread_fractions is not None
            assert allocation.spread_fractions.sum() == pytest.approx(4 * spread, abs=1e-6)

    @pytest.mark.parametrize("name", ["max_min_fairness", "min_makespan", "max_total_throughput"])
    def test_merged_jobs(self, name: str) -> None:
        rng = np.random.default_rng(0)
        table = np.array([[4.0, 1.0], [2.0, 1.0]])[rng.integers(0, 2, 20)] * rng.uniform(0.99, 1.01, (20, 2))
        problem = gp.AllocationProblem.from_arrays(table, [3, 4], steps_remaining=np.full(20, 600.0))
        exact = twin(problem, name)
        near = gp.solve(problem, name, agnostic=True, reference="type-0", merge_tolerance=0.05)
        near.verify()
        assert near.time_fractions == pytest.approx(np.outer(times_of(near), [3 / 7, 4 / 7]), abs=1e-12)
        assert near.objective_value == pytest.approx(exact.objective_value, rel=0.05)


class TestPrices:
    @staticmethod
    def best(problem: gp.AllocationProblem, gains: Floats) -> float:
        """max Σ gain_ij x_ij over valid allocations."""
        x = cp.Variable(gains.shape, nonneg=True)
        rules = [cp.sum(x, axis=1) <= 1, problem.num_gpus @ x <= problem.capacities, cp.multiply(x, ~problem.runnable) == 0]
        return float(cp.Problem(cp.Maximize(cp.sum(cp.multiply(gains, x))), rules).solve(solver=cp.HIGHS))

    @settings(max_examples=examples(40, costly=True))
    @given(problem=masked(max_jobs=6), data=st.data())
    def test_throughput_per_dollar_comes_first_and_chance_second(self, problem: gp.AllocationProblem, data: st.DataObject) -> None:
        k = len(problem.capacities)
        prices = np.array(data.draw(st.lists(st.sampled_from([1.0, 1.0, 2.0, 3.0]), min_size=k, max_size=k)))
        problem = gp.AllocationProblem.from_arrays(
            problem.throughputs, problem.capacities, num_gpus=problem.num_gpus, prices_per_hour=prices
        )
        allocation = twin(problem, "throughput_per_dollar")
        gains = np.where(problem.runnable, problem.throughputs[:, :1] / prices, 0.0)
        assert allocation.objective_value == pytest.approx(self.best(problem, gains), rel=1e-7)
        assert float((gains * allocation.time_fractions).sum()) == pytest.approx(allocation.objective_value, rel=1e-9)
        assert_most_even(allocation, [(-gains, -float((gains * allocation.time_fractions).sum()))])

    def test_jobs_leave_a_type_altogether_that_others_need_in_full(self) -> None:
        """Shares tend to 0 for two reasons at once, the dear type's capacity and the objective."""
        speeds = [[1.0, 4.0], [2.0, 2.0], [1.0, 0.0], [2.0, 0.0], [1.0, 0.0]]
        problem = gp.AllocationProblem.from_arrays(speeds, [4, 5], num_gpus=[1, 1, 1, 1, 2], prices_per_hour=[2.0, 1.0])
        allocation = twin(problem, "throughput_per_dollar")
        assert allocation.time_fractions.tolist() == [[0, 1], [0, 1], [1, 0], [1, 0], [1, 0]]

    def test_equal_prices_make_no_difference(self) -> None:
        problem = drawn(5, num_gpus=np.ones(7), prices_per_hour=[2.0, 2.0, 2.0])
        for name in PRICED:
            allocation = twin(problem, name)
            assert allocation.time_fractions == pytest.approx(np.outer(times_of(allocation), [4 / 15, 8 / 15, 3 / 15]), abs=1e-12)

    def test_types_of_equal_price_share_what_is_bought_of_them(self) -> None:
        problem = drawn(5, num_gpus=np.ones(7), prices_per_hour=[1.0, 3.0, 1.0])
        allocation = twin(problem, "min_cost", min_share=0.0)
        assert times_of(allocation)[np.isnan(problem.deadlines_seconds)] == pytest.approx(0)
        cheap = allocation.time_fractions[:, [0, 2]]
        assert cheap == pytest.approx(np.outer(cheap.sum(axis=1), [4 / 7, 3 / 7]), abs=1e-9)

    def test_a_shortfall_is_shared_by_jobs_that_lack_equally(self) -> None:
        """The deadline takes one of four GPUs, and the others are to have 4/5 of a GPU each: they get 3/4."""
        problem = gp.AllocationProblem.from_arrays(
            np.ones((5, 2)),
            [2, 2],
            weights=[9, 1, 1, 1, 1],
            num_gpus=[1, 1, 1, 2, 2],
            steps_remaining=[100] * 5,
            deadlines_seconds=[100, *[np.nan] * 4],
            prices_per_hour=[1.0, 1.0],
        )
        allocation = twin(problem, "min_cost")
        times = times_of(allocation)
        assert problem.num_gpus * times == pytest.approx([1.0, 0.75, 0.75, 0.75, 0.75], rel=1e-9)
        assert allocation.time_fractions == pytest.approx(np.outer(times, [0.5, 0.5]), abs=1e-9)


@dataclass(frozen=True, kw_only=True)
class LeastTime(gp.SumPolicy):
    """An objective with a kink that depends on total times only."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.minimum(program.throughput)


@dataclass(frozen=True, kw_only=True)
class FirstType(gp.SumPolicy):
    """An objective that distinguishes types: the GPUs in use of the first one."""

    agnostic_view: ClassVar[Any] = "ones"

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.gpus[0] + 0.5 * cp.sum(program.gpus[1:])


@dataclass(frozen=True, kw_only=True)
class GangsFirst(gp.SumPolicy):
    """An objective that ignores jobs of one GPU."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.total(cp.multiply(program.num_gpus - 1, program.throughput))


class TestOwnAndComposedPolicies:
    def test_jobs_that_an_objective_ignores_get_what_is_free(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [5.0, 1.0], [2.0, 1.0]], [2, 2], num_gpus=[2, 1, 1])
        assert gp.solve(problem, GangsFirst(agnostic=True)).time_fractions == pytest.approx(np.full((3, 2), 0.5), abs=1e-9)

    def test_an_objective_with_a_kink(self) -> None:
        problem = drawn(6, num_gpus=[1, 1, 1, 1, 1, 2, 2])
        allocation = gp.solve(problem, LeastTime(agnostic=True))
        assert allocation.notes == ()
        assert times_of(allocation) == pytest.approx(np.ones(7), rel=1e-9)
        few = gp.solve(problem.with_capacities([2, 0, 1]), LeastTime(agnostic=True))
        assert times_of(few) == pytest.approx(np.full(7, 1 / 3), rel=1e-6)
        assert few.time_fractions[:5] == pytest.approx(few.time_fractions[:1].repeat(5, axis=0), abs=1e-9)

    def test_an_objective_that_tells_types_apart_comes_first(self) -> None:
        problem = gp.AllocationProblem.from_arrays(np.ones((3, 3)), [2, 4, 4])
        allocation = gp.solve(problem, FirstType(agnostic=True))
        assert allocation.objective_value == pytest.approx(2.5)
        assert allocation.time_fractions == pytest.approx(np.tile([2 / 3, 1 / 6, 1 / 6], (3, 1)), abs=1e-9)

    @pytest.mark.parametrize(
        "policy",
        [
            1 * MaxTotalThroughput(agnostic=True) + 2 * MaxProgressRate(agnostic=True, reference="type-0"),
            gp.Then(MaxMinFairness(agnostic=True), MaxTotalThroughput(agnostic=True)),
            gp.Then(MaxTotalThroughput(agnostic=True), MaxMinFairness(agnostic=True)),
            gp.Then(MaxMinFairness(agnostic=True), MinMakespan(agnostic=True, reference="type-0")),
            gp.Then(MinMakespan(agnostic=True, reference="type-1"), MaxMinFairness(agnostic=True)),
            gp.Then(MaxMinFairness(agnostic=True), WaterFilling(agnostic=True)),
            gp.Then(MaxMinFairness(agnostic=True), NashWelfare(agnostic=True)),
            gp.Then(
                gp.Then(MinMakespan(agnostic=True, reference="type-0"), MaxProgressRate(agnostic=True, reference="type-2")),
                gp.Then(MaxTotalThroughput(agnostic=True), MaxMinFairness(agnostic=True)),
            ),
            gp.Then(MinCost(agnostic=True, reference="type-0", min_share=0.2), MaxTotalThroughput(agnostic=True)),
            NashWelfare(agnostic=True, strategy_proof=True),
        ],
        ids=lambda policy: str(policy.label),
    )
    def test_compositions_of_agnostic_policies_are_agnostic(self, policy: gp.Policy) -> None:
        for seed in range(3):
            problem = drawn(seed)
            allocation = gp.solve(problem, policy)
            assert not any(note.startswith(NOTE) for note in allocation.notes)
            allocation.verify()
            even = np.outer(times_of(allocation), problem.capacities / problem.capacities.sum())
            assert allocation.time_fractions == pytest.approx(even, abs=1e-9)

    def test_a_policy_that_sees_throughputs_decides_on_the_types(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [1.0, 1.0]], [1, 1])
        for policy in (
            MaxTotalThroughput(agnostic=True) + MaxTotalThroughput(),
            gp.Then(MaxTotalThroughput(), MaxMinFairness(agnostic=True)),
        ):
            assert gp.solve(problem, policy).time_fractions == pytest.approx(np.eye(2), abs=1e-4)

    def test_prices_in_a_composition_come_first(self) -> None:
        problem = drawn(7, num_gpus=np.ones(7), prices_per_hour=[1.0, 2.0, 4.0])
        dollars = ThroughputPerDollar(agnostic=True, reference="type-0")
        alone, then = gp.solve(problem, dollars), gp.solve(problem, gp.Then(dollars, MaxMinFairness(agnostic=True)))
        assert then.objective_value == pytest.approx(alone.objective_value, rel=2e-6)
        assert then.notes == ()

    def test_what_cannot_be_kept_is_refused(self) -> None:
        both = MaxTotalThroughput(agnostic=True) + MaxProgressRate(agnostic=True, reference="type-0")
        with pytest.raises(gp.InputError, match="cannot preserve the result of max_min_fairness in a sum of agnostic policies"):
            gp.solve(drawn(0), gp.Then(MaxMinFairness(agnostic=True), both))

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_every_job_can_be_explained(self, name: str) -> None:
        problem = drawn(8, jobs=4)
        allocation = twin(problem, name)
        for job in problem.job_ids:
            explanation = gp.explain(problem, job, name, agnostic=True, reference="type-0")
            assert sum(explanation.time_fractions.values()) == pytest.approx(times_of(allocation)[problem.job_ids.index(job)])


def test_tenants_have_what_they_had_under_the_tree() -> None:
    tree = gp.TenantTree([gp.Tenant("red", weight=3.0), gp.Tenant("blue")])
    problem = gp.AllocationProblem.from_arrays(np.ones((6, 2)), [1, 1], tenants=["red"] * 3 + ["blue"] * 3)
    allocation = gp.solve(problem, "hierarchical", tenants=tree, agnostic=True)
    assert times_of(allocation) == pytest.approx([0.5] * 3 + [1 / 6] * 3, rel=1e-9)
    assert allocation.time_fractions == pytest.approx(np.outer(times_of(allocation), [0.5, 0.5]), abs=1e-12)


class TestTimeLimits:
    """A solve that its time limit ends has an even split, too; `ending_after` ends it at each point where the clock is read."""

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_the_split_is_even_in_a_stopped_solve(self, name: str) -> None:
        problem, stopped = drawn(0), 0
        for looks in range(8):
            found = stopped_after(looks, problem, name, agnostic=True, reference="type-0")
            found.verify()
            even = np.outer(times_of(found), problem.capacities / problem.capacities.sum())
            assert found.time_fractions == pytest.approx(even, abs=1e-9)
            stopped += found.status is gp.AllocationStatus.TIME_LIMIT
        assert stopped > 0

    @settings(max_examples=examples(40))
    @given(problem=masked(), looks=st.integers(0, 20), name=st.sampled_from(["max_min_fairness", "max_total_throughput"]))
    def test_types_of_masked_jobs_are_even_in_a_stopped_solve(self, problem: gp.AllocationProblem, looks: int, name: str) -> None:
        allocation = stopped_after(looks, problem, name, agnostic=True)
        allocation.verify()
        assert_most_even(allocation)

    def test_max_min_fairness_divides_what_a_stopped_solve_leaves(self) -> None:
        """Where no type is out of reach of a job, fair times take no program."""
        problem = drawn(2, jobs=12)
        best = twin(problem, "max_min_fairness")
        found = stopped_after(0, problem, "max_min_fairness", agnostic=True)
        assert found.status is gp.AllocationStatus.TIME_LIMIT
        assert found.time_fractions == pytest.approx(best.time_fractions, rel=1e-9)

    def test_prices_come_first_in_a_stopped_solve(self) -> None:
        problem = drawn(5, num_gpus=np.ones(7), prices_per_hour=[1.0, 3.0, 1.0])
        found = stopped_after(0, problem, "throughput_per_dollar", agnostic=True, reference="type-0")
        assert found.status is gp.AllocationStatus.TIME_LIMIT
        found.verify()
        assert not any(note.startswith(NOTE) for note in found.notes)
