"""Policies that a user writes: their objective is solved, bounded and priced without a word about any of it in the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.formulation.matrices import AllocationLP
from tests.support.examples import examples
from tests.support.instances import Floats, best_value, crowds, problems, valid_rows


class MaxProgressRate(gp.SumPolicy):
    """Work on short jobs first, as a linear program: max Σ_i w_i thr_i / n_i."""

    reads = ("weights", "steps_remaining")

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.total(cp.multiply(program.weights / program.steps_remaining, program.throughput))


class WorstAndAverage(gp.SumPolicy):
    """The worst-off job counts as much as the average of all."""

    def objective(self, program: gp.Program) -> cp.Expression:
        v = program.normalized_throughput
        return program.minimum(v) + program.total(v) / program.num_jobs


class TwoWorst(gp.SumPolicy):
    """Two levels at once: the least normalised throughput, and half of the least time."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.minimum(program.normalized_throughput) + 0.5 * program.minimum(program.time) + 3


class ShareOfGpus(gp.DemandPolicy):
    """Max-min fairness without weights and gang sizes: every job's throughput over that of an equal share."""

    def need(self, jobs: gp.JobClasses, level: float) -> Floats:
        return level * jobs.equal_share


class LargestGangFirst(gp.OrderedPolicy):
    """The largest gang first."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return -jobs.num_gpus.astype(float)


def active(problem: gp.AllocationProblem) -> gp.AllocationProblem:
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    assume(rows.size > 0)
    return problem.select(rows)


@settings(max_examples=examples(60))
@given(problem=problems())
def test_a_weighted_sum_is_optimal(problem: gp.AllocationProblem) -> None:
    problem = active(problem)
    gains = problem.throughputs * (problem.weights / problem.steps_remaining)[:, None]
    allocation = gp.solve(problem, MaxProgressRate())
    assert allocation.objective_value == pytest.approx(best_value(problem, gains), rel=1e-6)
    assert allocation.policy == "max_progress_rate"


@settings(max_examples=examples(60, costly=True))
@given(problem=problems(max_jobs=6))
def test_a_minimum_in_the_objective_is_optimal_and_bounded(problem: gp.AllocationProblem) -> None:
    problem = active(problem)
    n, k = problem.throughputs.shape
    v = problem.throughputs / problem.equal_share[:, None]
    rows, limits = valid_rows(problem)
    levels = np.zeros((n, n * k + 1))
    for i in range(n):
        levels[i, i * k : (i + 1) * k] = -v[i]
        levels[i, -1] = 1
    table = np.vstack([np.hstack([rows, np.zeros((len(rows), 1))]), levels])
    costs = -np.append(v.ravel() / n, 1.0)
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()] + [(None, None)]
    expected = -linprog(costs, table, np.concatenate([limits, np.zeros(n)]), bounds=bounds).fun
    assert gp.solve(problem, WorstAndAverage()).objective_value == pytest.approx(expected, rel=1e-6)


@settings(max_examples=examples(60, costly=True))
@given(problem=problems())
def test_several_minimums_and_a_constant_are_proven(problem: gp.AllocationProblem) -> None:
    allocation = gp.solve(active(problem), TwoWorst())
    assert allocation.objective_value is not None
    assert allocation.objective_value >= 3
    assert allocation.objective_bound == pytest.approx(allocation.objective_value, rel=1e-6)


def test_user_defined_demand_and_ordered_policies() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0], [2.0], [2.0]], [4], num_gpus=[1, 4, 1])
    assert gp.solve(problem, LargestGangFirst()).time_fractions.tolist() == [[0], [1], [0]]
    assert gp.solve(problem, ShareOfGpus(efficiency=False)).objective_value == pytest.approx(4 / 6)


@pytest.mark.parametrize("answer", [3.0, None, [1.0], [1.0, np.nan, 1.0], "x", [[1.0, 1.0, 1.0]]])
def test_a_method_that_returns_no_number_per_job_is_named(answer: object) -> None:
    class Demand(gp.DemandPolicy):
        """Wrong."""

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:  # noqa: ARG002
            return answer  # type: ignore[return-value]

    class Order(gp.OrderedPolicy):
        """Wrong."""

        def sort_key(self, jobs: gp.JobClasses) -> Floats:  # noqa: ARG002
            return answer  # type: ignore[return-value]

    problem = gp.AllocationProblem.from_arrays([[2.0], [3.0], [4.0]], [4])
    for policy, method in ((Demand(), "need"), (Order(), "sort_key")):
        with pytest.raises(
            gp.InputError,
            match=rf"policy {policy.name}, field {method}: must (return one number for each of the 3|be a (finite )?number)",
        ):
            gp.solve(problem, policy)


class Listed(gp.DemandPolicy):
    """Needs as a list, in proportion to the priority."""

    reads = ("priorities",)

    def need(self, jobs: gp.JobClasses, level: float) -> Floats:
        return [level * priority for priority in jobs.priorities]  # type: ignore[return-value]


def test_a_demand_may_be_a_list_but_not_nothing() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0], [2.0]], [1], priorities=[0, 1])
    assert gp.solve(problem, Listed()).objective_value == pytest.approx(2.0)
    with pytest.raises(gp.InputError, match="not all of them 0"):
        gp.solve(problem.select(np.array([0])), Listed())


def test_reading_what_is_not_declared_is_named() -> None:
    class Forgetful(gp.SumPolicy):
        """Reads weights without declaring it."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return program.total(cp.multiply(program.weights, program.normalized_throughput))

    class Misspelt(gp.DemandPolicy):
        """Declares an unknown attribute."""

        reads = ("weight",)

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return level * jobs.num_gpus

    class Curious(gp.OrderedPolicy):
        """Orders by what it has not declared."""

        def sort_key(self, jobs: gp.JobClasses) -> Floats:
            return jobs.elapsed_seconds  # type: ignore[no-any-return]

    problem = gp.AllocationProblem.from_arrays([[2.0], [2.0]], [1])
    with pytest.raises(gp.InputError, match=r"policy forgetful, field reads: reads 'weights' and must declare it"):
        gp.solve(problem, Forgetful())
    with pytest.raises(gp.UnknownNameError, match=r"policy misspelt, field reads: names 'weight', .*; did you mean 'weights'"):
        gp.solve(problem, Misspelt())
    with pytest.raises(gp.InputError, match=r"policy curious, field reads: reads 'elapsed_seconds'"):
        gp.solve(problem, Curious())


def test_needs_that_are_not_in_proportion_to_the_level_call_for_its_inverse() -> None:
    class Squared(gp.DemandPolicy):
        """Needs that grow with the square of the level."""

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return level**2 * jobs.equal_share

    class Whole(Squared):
        """The same, with its inverse."""

        def level(self, jobs: gp.JobClasses, throughputs: Floats) -> Floats:
            return np.sqrt(throughputs / jobs.equal_share)

    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [1, 1])
    with pytest.raises(gp.InputError, match=r"policy squared, field level: does not match `need`"):
        gp.solve(problem, Squared())
    assert gp.solve(problem, Whole()).objective_value == pytest.approx(np.sqrt(0.8), rel=1e-9)


def test_an_objective_that_cannot_be_maximised_is_refused() -> None:
    class Whole(gp.SumPolicy):
        """A whole number of jobs."""

        def objective(self, program: gp.Program) -> cp.Expression:
            jobs = cp.Variable(integer=True)
            return program.minimum(program.normalized_throughput) - cp.abs(jobs - 1.5)

    class Bent(gp.SumPolicy):
        """Convex where it must be concave."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return cp.max(program.throughput)

    class Many(gp.SumPolicy):
        """One number per job instead of one number."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return program.throughput

    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1])
    for policy, message in (
        (Whole(), "whole-number variables"),
        (Bent(), "must be concave"),
        (Many(), "must be a scalar cvxpy expression"),
    ):
        with pytest.raises(gp.InputError, match=message):
            gp.solve(problem, policy)


class Capped(gp.SumPolicy):
    """Throughput beyond half of an equal share gains nothing, and idle time gains a little."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.total(cp.minimum(program.normalized_throughput, 0.5) + 0.01 * cp.abs(program.time - 1) * -1)


@settings(max_examples=examples(60))
@given(problem=problems())
def test_kinks_of_any_kind_are_proven(problem: gp.AllocationProblem) -> None:
    allocation = gp.solve(problem, Capped())
    assert allocation.objective_bound == pytest.approx(allocation.objective_value, rel=1e-6)


def test_an_optimum_of_zero_is_proven() -> None:
    class NoIdleTime(gp.SumPolicy):
        """Every job runs all of the time if there are enough GPUs."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return -program.total(cp.abs(program.time - 1))

    problem = gp.AllocationProblem.from_arrays([[2.0, 1.0], [1.0, 3.0], [0.3, 0.7]], [2, 1])
    assert gp.solve(problem, NoIdleTime()).objective_value == pytest.approx(0, abs=1e-9)


def test_a_logarithm_needs_time_for_every_job_that_it_counts() -> None:
    class OfEach(gp.SumPolicy):
        """The sum of the logarithms."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return program.total(cp.log(program.normalized_throughput))

    class OfAll(gp.SumPolicy):
        """The logarithm of the sum, which a job without time does not hurt."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return cp.log(program.total(program.normalized_throughput))

    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1], job_ids=["a", "b"])
    everything = [gp.MinThroughput("a", 2.0)]
    assert gp.solve(problem, OfAll(), constraints=everything).time_fractions[:, 0] == pytest.approx([1, 0], abs=1e-6)
    with pytest.raises(gp.InputError, match="job 'b': can get no time beside the throughput of 2 steps/s for job 'a', but of_each"):
        gp.solve(problem, OfEach(), constraints=everything)


def test_an_answer_that_is_worse_than_its_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1])
    half = AllocationLP.fractions_of
    monkeypatch.setattr(AllocationLP, "fractions_of", lambda *arguments: half(*arguments) / 2)
    for policy in ("max_total_throughput", Capped()):
        with pytest.raises(gp.ProofError, match="not proven to be optimal"):
            gp.solve(problem, policy)


class Written(gp.policy_class("max_total_throughput")):
    """The most throughput, written as an expression, less a part of the time."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return super().objective(program) - self.per_time * program.total(program.time)

    per_time: float = 0.0


class Charged(Written):
    """The same, in which time costs more than it is worth."""

    per_time = 1e6


@settings(max_examples=examples(60))
@given(problem=problems())
def test_a_linear_sum_is_the_same_with_and_without_an_expression(problem: gp.AllocationProblem) -> None:
    plain, written = gp.solve(problem, gp.resolve_policy("max_total_throughput")), gp.solve(problem, Written())
    assert plain.objective_value == pytest.approx(written.objective_value, rel=1e-9)
    assert plain.objective_bound == pytest.approx(written.objective_bound, rel=1e-6)
    assert plain.time_fractions == pytest.approx(written.time_fractions, abs=1e-9)
    assert plain.shadow_prices == pytest.approx(written.shadow_prices, rel=1e-6, abs=1e-9)


def test_a_policy_that_overrides_the_objective_of_a_linear_sum_is_solved_by_its_own() -> None:
    problem = gp.AllocationProblem.from_arrays([[2.0], [1.0]], [1])
    assert gp.solve(problem, Charged()).objective_value == pytest.approx(0)


class Worst(gp.SumPolicy):
    """The sum of the two least normalised throughputs: right only if every row is one job."""

    def objective(self, program: gp.Program) -> cp.Expression:
        return cp.sum_smallest(program.normalized_throughput, 2)


class WorstOfAll(Worst):
    """The policy above with a class for each job."""

    reads = ("job_ids",)


class WorstHalf(gp.SumPolicy):
    """The mean over the worse half of the jobs, with an extra variable."""

    def objective(self, program: gp.Program) -> cp.Expression:
        level = cp.Variable()
        return level - program.total(cp.pos(level - program.normalized_throughput)) / (program.num_jobs / 2)


def test_an_objective_that_counts_classes_instead_of_jobs_is_refused() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.0, 1.0], [2.0, 1.0], [1.0, 1.0]], [1, 1])
    with pytest.raises(gp.InputError, match=r"policy worst, field objective: depends on how equal jobs are counted"):
        gp.solve(problem, Worst())
    right = gp.solve(problem, WorstOfAll())
    assert right.route is not None
    assert right.route.classes == 4
    assert right.objective_value == pytest.approx(gp.solve(problem, WorstHalf()).objective_value * 2)


def policy_of(
    objective: Callable[[gp.Program], cp.Expression], reads: tuple[str, ...] = ("weights",), direction: str = "max"
) -> gp.SumPolicy:
    return type(
        "Own", (gp.SumPolicy,), {"objective": lambda _, program: objective(program), "reads": reads, "direction": direction}
    )()


def normalized(program: gp.Program) -> cp.Expression:
    return program.normalized_throughput


def positions(program: gp.Program) -> Floats:
    return np.arange(1.0, 1.0 + len(program.jobs))


# Objectives that are wrong where several jobs stand in one row, and what their authors mean.
MISCOUNTED: dict[str, tuple[Callable[[gp.Program], cp.Expression], Callable[[gp.Program], cp.Expression]]] = {
    "sum": (lambda p: cp.sum(p.throughput), lambda p: p.total(p.throughput)),
    "weighted sum": (lambda p: p.weights @ normalized(p), lambda p: p.total(cp.multiply(p.weights, normalized(p)))),
    "sum of logarithms": (lambda p: cp.sum(cp.log(normalized(p))), lambda p: p.total(cp.log(normalized(p)))),
    "divided by rows": (
        lambda p: p.minimum(normalized(p)) + p.total(normalized(p)) / normalized(p).shape[0],
        lambda p: p.minimum(normalized(p)) + p.total(normalized(p)) / p.num_jobs,
    ),
    "mean": (lambda p: p.minimum(normalized(p)) + cp.mean(normalized(p)), WorstAndAverage().objective),
}


@pytest.mark.parametrize("name", MISCOUNTED)
def test_equal_jobs_that_get_nothing_are_counted_too(name: str) -> None:
    """At the optimum, where the job with 3 steps/s has the GPU, classes and single jobs give the same value."""
    problem = gp.AllocationProblem.from_arrays([[4], [4], [3]], [1])
    with pytest.raises(gp.PolicyError, match=r"policy own, field objective: depends on how equal jobs are counted") as error:
        gp.solve(problem, policy_of(MISCOUNTED[name][0]))
    assert error.value.check == "order"
    gp.solve(problem, policy_of(MISCOUNTED[name][1]))


@pytest.mark.deep
def test_no_wrong_sum_slips_through() -> None:
    """On 200 random problems, a sum over rows is refused, or equals the sum over jobs with one row per job."""
    rng = np.random.default_rng(7)
    refused = dict.fromkeys(MISCOUNTED, 0)
    for number in range(200):
        kinds, k = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        of = rng.integers(0, kinds, int(rng.integers(2, 9)))
        wide = number % 2
        problem = gp.AllocationProblem.from_arrays(
            (10 ** rng.uniform(-4, 4, (kinds, k)) if wide else rng.choice([1.0, 2.0, 3.0, 4.0], (kinds, k)))[of],
            rng.integers(1, 4, k),
            weights=(10 ** rng.uniform(-3, 3, kinds) if wide else rng.choice([1.0, 2.0], kinds))[of],
        )
        name = list(MISCOUNTED)[number % len(MISCOUNTED)]
        wrong, right = MISCOUNTED[name]
        try:
            found = gp.solve(problem, policy_of(wrong)).objective_value
        except gp.PolicyError:
            refused[name] += 1
            continue
        assert found == pytest.approx(gp.solve(problem, policy_of(right, ("weights", "job_ids"))).objective_value, rel=1e-6)
    assert min(refused.values()) >= 10


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(lambda p: positions(p) @ p.throughput, id="linear"),
        pytest.param(lambda p: cp.min(cp.multiply(positions(p), normalized(p))), id="kinks"),
        pytest.param(lambda p: positions(p) @ cp.log(normalized(p)), id="curves"),
        pytest.param(lambda p: normalized(p)[0] + p.minimum(normalized(p)), id="the first row"),
    ],
)
def test_the_place_of_a_row_means_nothing(objective: Callable[[gp.Program], cp.Expression]) -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [3.0, 1.0], [1.0, 1.0]], [1, 1])
    for reads in ((), ("job_ids",)):
        with pytest.raises(gp.PolicyError, match=r"policy own, field objective: depends on the order of the rows") as error:
            gp.solve(problem, policy_of(objective, reads))
        assert error.value.check == "order"


def test_what_belongs_to_a_job_is_no_place() -> None:
    """Numbers by id, or from the arrays of the problem, go where their job goes."""
    ours = {"a": 1.0, "b": 5.0, "c": 2.0}
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [3.0, 1.0], [1.0, 1.0]], [1, 1], job_ids=list("abc"), weights=[1, 5, 2])
    by_id = policy_of(lambda p: np.array([ours[job] for job in p.jobs.job_ids]) @ normalized(p), ("job_ids",))
    by_row = policy_of(lambda p: p.jobs.problem.weights[p.jobs.rows] @ normalized(p), ("weights",))
    assert gp.solve(problem, by_id).objective_value == pytest.approx(gp.solve(problem, by_row).objective_value)


@settings(max_examples=examples(60))
@given(problem=crowds(), data=st.data())
def test_no_right_objective_is_refused(problem: gp.AllocationProblem, data: st.DataObject) -> None:
    """Whatever the scale of throughputs, weights and steps."""
    problem = active(problem)
    policy = data.draw(
        st.sampled_from([MaxProgressRate(), WorstAndAverage(), TwoWorst(), WorstHalf(), "max_total_throughput", "min_cost"])
    )
    gp.solve(problem, policy)


UNBOUNDED: dict[str, Callable[[gp.Program], cp.Expression]] = {
    "a line": lambda p: p.total(normalized(p)) + cp.Variable(),
    "a falling line": lambda p: p.total(normalized(p)) - cp.Variable(nonpos=True),
    "a kink": lambda p: p.total(normalized(p)) + cp.minimum(cp.Variable(), cp.Variable()),
    "a line beside a curve": lambda p: p.total(cp.log(normalized(p))) + cp.Variable(),
    "a root": lambda p: p.total(normalized(p)) + cp.sqrt(cp.Variable()),
    "a logarithm": lambda p: p.total(cp.log(normalized(p))) + cp.log(cp.Variable()),
    "entries": lambda p: p.total(normalized(p)) + cp.sum(cp.Variable(3)),
}


@pytest.mark.parametrize("name", UNBOUNDED)
@pytest.mark.parametrize("direction", ["max", "min"])
def test_an_unbounded_objective_is_reported(name: str, direction: str) -> None:
    sign = 1 if direction == "max" else -1
    problem = gp.AllocationProblem.from_arrays([[4.0], [4.0], [3.0]], [1])
    better = "large" if direction == "max" else "small"
    text = f"policy own, field objective: is unbounded: its own cvxpy variables can make it arbitrarily {better}"
    with pytest.raises(gp.PolicyError, match=text) as error:
        gp.solve(problem, policy_of(lambda p: sign * UNBOUNDED[name](p), direction=direction))
    assert error.value.check == "solved"


def test_a_minimised_variable_of_any_sign_has_no_bound() -> None:
    """HiGHS does not end on this program."""
    problem = gp.AllocationProblem.from_arrays([[4.0], [4.0], [3.0]], [1])
    with pytest.raises(gp.PolicyError, match="is unbounded"):
        gp.solve(problem, policy_of(lambda p: p.total(normalized(p)) + cp.Variable(), direction="min"))


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        pytest.param(lambda p, z: p.total(normalized(p)) + cp.minimum(z, 3), 4.0, id="a limit"),
        pytest.param(lambda p, z: p.total(normalized(p)) - cp.abs(z - 1e6), 1.0, id="a peak far away"),
        pytest.param(lambda p, z: p.total(normalized(p)) - cp.square(z - 1), 1.0, id="a round peak"),
        pytest.param(lambda p, z: p.total(normalized(p)) + cp.log(z) - z, 0.0, id="a curve that falls at last"),
    ],
)
def test_variables_that_are_bounded_by_the_objective_do_no_harm(objective: Any, value: float) -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0], [4.0], [3.0]], [1])
    allocation = gp.solve(problem, policy_of(lambda p: objective(p, cp.Variable())))
    assert allocation.objective_value == pytest.approx(value, abs=1e-8)
    assert allocation.verify().gap <= 1e-7


@settings(max_examples=examples(40, costly=True))
@given(problem=crowds(max_jobs=10))
def test_a_user_defined_variable_is_solved_and_proven(problem: gp.AllocationProblem) -> None:
    problem = active(problem)
    assume(problem.num_jobs % 2 == 0)

    class WorseHalf(gp.SumPolicy):
        """The sum over the worse half of the jobs, job by job."""

        reads = ("job_ids",)

        def objective(self, program: gp.Program) -> cp.Expression:
            return cp.sum_smallest(program.normalized_throughput, program.num_jobs // 2)

    half = gp.solve(problem, WorstHalf())
    assert half.gap is not None
    assert half.gap <= 1e-8
    each = gp.solve(problem, WorseHalf()).objective_value
    assert half.objective_value == pytest.approx(each / (problem.num_jobs / 2), rel=1e-7)


def test_variables_that_stand_for_classes_are_refused() -> None:
    class Slack(gp.SumPolicy):
        """A variable per class."""

        def objective(self, program: gp.Program) -> cp.Expression:
            slack = cp.Variable(len(program.jobs), bounds=[0, 1])
            return program.total(cp.minimum(program.normalized_throughput, slack))

    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [4.0, 1.0]], [1, 1])
    with pytest.raises(gp.InputError, match=r"policy slack, field objective: has own cvxpy variables with more than one entry"):
        gp.solve(problem, Slack())


def test_a_number_that_is_none_names_the_job() -> None:
    class Lateness(gp.DemandPolicy):
        """Deadlines that not every job has."""

        direction = "min"
        reads = ("deadlines_seconds",)

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return 1 / (jobs.deadlines_seconds + level)

        def level(self, jobs: gp.JobClasses, throughputs: Floats) -> Floats:
            return 1 / throughputs - jobs.deadlines_seconds

    problem = gp.AllocationProblem.from_arrays([[1.0]] * 2, [1], job_ids=["a", "b"], deadlines_seconds=[5, np.nan])
    with pytest.raises(gp.InputError, match=r"policy lateness, field level: must not be NaN, returned nan for job 'b'"):
        gp.solve(problem, Lateness())


def test_a_bare_string_of_attributes_is_named() -> None:
    class Order(gp.OrderedPolicy):
        """Wrong."""

        reads = "weights"  # type: ignore[assignment]

        def sort_key(self, jobs: gp.JobClasses) -> Floats:
            return jobs.weights  # type: ignore[no-any-return]

    with pytest.raises(gp.InputError, match=r"policy order, field reads: must be a tuple of names, found 'weights'"):
        gp.solve(gp.AllocationProblem.from_arrays([[2.0]], [4]), Order())


def test_attributes_that_are_no_names_are_named() -> None:
    class Order(gp.OrderedPolicy):
        """Wrong."""

        reads = None  # type: ignore[assignment]

        def sort_key(self, jobs: gp.JobClasses) -> Floats:
            return jobs.num_gpus

    with pytest.raises(gp.InputError, match=r"policy order, field reads: must be a tuple of names, found None"):
        gp.solve(gp.AllocationProblem.from_arrays([[2.0]], [4]), Order())


@pytest.mark.parametrize("direction", ["maximize", "MAX", None])
def test_a_direction_that_there_is_not_is_named(direction: Any) -> None:
    class Total(gp.SumPolicy):
        """Wrong."""

        def objective(self, program: gp.Program) -> cp.Expression:
            return program.total(program.throughput)

    class Share(gp.DemandPolicy):
        """Wrong."""

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return level * jobs.fastest

    for kind in (Total, Share):
        kind.direction = direction
        message = (
            f"policy {kind.__name__.lower()}, field direction: must be 'max' or 'min' in class {kind.__name__}, found {direction!r}"
        )
        with pytest.raises(gp.InputError) as caught:
            kind()
        assert str(caught.value) == message
        kind.direction = "min"
        kind()


class LeastSpeed(gp.SumPolicy):
    """The least weighted speed of any job, as a policy of sums."""

    name = "least_speed"
    reads = ("weights",)

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.minimum(cp.multiply(1 / program.weights, program.normalized_throughput))


@pytest.mark.parametrize("weight", [1e-9, 1.0, 1e9])
def test_the_least_of_all_jobs_is_found_in_any_unit(weight: float) -> None:
    problem = gp.AllocationProblem.from_arrays([[3, 1], [3, 1], [2, 2]], [1, 1], weights=[weight] * 3)
    assert gp.solve(problem, LeastSpeed()).objective_value * weight == pytest.approx(0.8)
