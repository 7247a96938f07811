"""check_policy: for each rule, a policy that breaks it; the report has the fault and code that reproduces it."""

from __future__ import annotations

import pickle
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import pytest

import gavel_py as gp
from gavel_py.testing.checks import CHECKS
from tests.support.instances import Floats

check_policy = gp.testing.check_policy


class HeaviestFirst(gp.OrderedPolicy):
    """Keeps the contract."""

    reads = ("weights",)

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return -jobs.weights  # type: ignore[no-any-return]


class Divides(gp.OrderedPolicy):
    """Raises its own error on every problem."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        raise ZeroDivisionError(f"{len(jobs)} jobs")


class GivesTooMuch(gp.FormulaPolicy):
    """Gives every job all of its time on every type."""

    def fractions(self, jobs: gp.JobClasses) -> Floats:
        return np.ones(jobs.throughputs.shape)


class RefusesAll(gp.OrderedPolicy):
    """Finds something wrong with every problem."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        raise gp.InputError(f"{len(jobs)} is not a good number of jobs")


class ShadowWithoutSun(gp.FormulaPolicy):
    """Has prices and no objective."""

    def fractions(self, jobs: gp.JobClasses) -> Floats:
        return np.zeros(jobs.throughputs.shape)

    def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:
        return gp.policies.Decision(super().decide(jobs, solver).time_fractions, None, np.ones(len(jobs.capacities)))


class TakesTurns(gp.OrderedPolicy):
    """Serves the lightest and the heaviest first in turn."""

    calls: ClassVar[list[int]] = []
    reads = ("weights",)

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        self.calls.append(len(jobs))
        return jobs.weights * (-1) ** len(self.calls)  # type: ignore[no-any-return]


class Remembers(gp.OrderedPolicy):
    """Notes how many jobs it has seen, without any use for it."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        object.__setattr__(self, "seen", getattr(self, "seen", 0) + len(jobs))
        return np.zeros(len(jobs))


class FirstRowFirst(gp.OrderedPolicy):
    """Serves jobs in the order in which they happen to stand."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return np.arange(float(len(jobs)))


class ByName(gp.OrderedPolicy):
    """Draws lots from the names."""

    reads = ("job_ids",)

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return np.array([float(zlib.crc32(job_id.encode())) for job_id in jobs.job_ids])


class Sneaks(gp.OrderedPolicy):
    """Reads weights on a way round the declaration."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return -jobs.problem.weights[jobs.jobs]


class OneOfTwins(gp.FormulaPolicy):
    """Wants jobs one by one, and gives one of those that are equal all of its time."""

    def fractions(self, jobs: gp.JobClasses) -> Floats:
        if (jobs.counts > 1).any():
            raise gp.SolverError("one by one, please")
        types = np.arange(len(jobs.capacities)) == np.argmax(jobs.capacities)
        return np.outer(np.arange(len(jobs)) == 0, types) * np.minimum(1.0, jobs.capacities / jobs.num_gpus[:, None])


class MovesTheGoal(gp.DemandPolicy):
    """Measures against the GPUs that there are now."""

    def need(self, jobs: gp.JobClasses, level: float) -> Floats:
        return level * (jobs.throughputs @ jobs.capacities**2)


class CountsTheDead(gp.FormulaPolicy):
    """Divides by the number of all jobs, also those that cannot run."""

    def fractions(self, jobs: gp.JobClasses) -> Floats:
        times: Floats = jobs.capacities / jobs.problem.num_jobs / jobs.num_gpus[:, None]
        return times / np.maximum(1.0, times.sum(axis=1, keepdims=True))


class NothingIsNan(gp.DemandPolicy):
    """Has no number for nothing."""

    empty_objective: ClassVar[float | None] = float("nan")

    def need(self, jobs: gp.JobClasses, level: float) -> Floats:
        return level * jobs.equal_share


class Undecorated(gp.OrderedPolicy):
    """Has an option, but is no dataclass."""

    slope: float = gp.option(1.0, "how much more a GPU counts")

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return np.zeros(len(jobs))


@dataclass(frozen=True, kw_only=True)
class Annotated(gp.OrderedPolicy):
    """Makes an option of what it reads."""

    reads: tuple[str, ...] = ("weights",)  # type: ignore[misc]

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return np.zeros(len(jobs))


@dataclass(frozen=True, kw_only=True)
class Listed(gp.OrderedPolicy):
    """Has an option whose text is several options."""

    tenants_first: str = gp.option("", "tenants with commas between them")

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        return np.zeros(len(jobs))


def own(objective: Callable[[gp.Program], cp.Expression]) -> gp.SumPolicy:
    policy: gp.SumPolicy = type("Own", (gp.SumPolicy,), {"objective": lambda _, program: objective(program)})()
    return policy


class ByRow(gp.DemandPolicy):
    """Gives the rows further down more."""

    def need(self, jobs: gp.JobClasses, level: float) -> Floats:
        return level * jobs.equal_share * np.arange(1, 1 + len(jobs))


BROKEN: list[tuple[str, gp.Policy, str, str]] = [
    ("solved", Divides(), "a proven allocation, or an InputError that names what is wrong", "ZeroDivisionError: 1 jobs"),
    ("solved", GivesTooMuch(), "a proven allocation", "ProofError: no solution route led to a proven answer"),
    ("solved", RefusesAll(), "an answer to at least one of the problems", "1 is not a good number of jobs"),
    ("proven", ShadowWithoutSun(), "value, bound and shadow prices, or none of them", "value None, bound None, shadow prices [1.]"),
    ("repeatable", TakesTurns(), "the same time_fractions every time, also with other problems in between", " and then "),
    ("unchanged", Remembers(), "`policy.seen` to stay absent", ""),
    ("order", FirstRowFirst(), "job '1' to get [0.0] as before", "[1.0]"),
    ("order", own(lambda p: cp.sum(p.throughput)), "the same objective however jobs", "depends on how equal jobs are counted"),
    ("order", own(lambda p: p.total(p.throughput) / p.throughput.shape[0]), "the same objective", "depends on how equal jobs are"),
    ("order", own(lambda p: np.arange(len(p.jobs)) @ p.throughput), "the same objective however jobs", "PolicyError: policy own"),
    ("order", ByRow(), "an objective of 0.5 as before", "0.333"),
    ("solved", own(lambda p: p.total(p.throughput) + cp.Variable()), "a proven allocation", "objective: is unbounded"),
    ("names", ByName(), " as before", ""),
    ("reads", Sneaks(), "whatever its weights, not declared in `reads`", ""),
    ("equal_jobs", OneOfTwins(), "job '1' to get [1.0] as job '0' does", "[0.0]"),
    ("units", gp.resolve_policy("max_total_throughput", normalized=False), "an objective of 1.0 as before", "1048576.0"),
    ("more_gpus", MovesTheGoal(), "an objective of no less than ", ""),
    ("excluded", CountsTheDead(), " to get ", ""),
    ("empty", NothingIsNan(), "a finite `empty_objective`, or None", "nan"),
    ("options", Undecorated(), "Undecorated to be decorated with @dataclass", "so `slope` is not an option"),
    ("options", Annotated(), "`reads` to be an attribute of the class, without a type annotation", "an option"),
    ("options", Listed(tenants_first="red,blue"), "options that can be read from its label", "listed,tenants_first=red,blue"),
]


def report_of(policy: gp.Policy, **options: Any) -> gp.testing.ContractReport:
    with pytest.raises(gp.PolicyContractError) as error:
        check_policy(policy, **options)
    report: gp.testing.ContractReport = error.value.report
    return report


@pytest.mark.deep
@pytest.mark.parametrize(("check", "policy", "expected", "found"), BROKEN, ids=lambda value: getattr(value, "name", None))
def test_each_rule_is_broken_by_some_policy(check: str, policy: gp.Policy, expected: str, found: str) -> None:
    failures = {failure.name: failure for failure in report_of(policy, problems=4).failures}
    assert expected in failures[check].expected
    assert found in failures[check].found


def test_every_check_has_a_policy_that_breaks_it() -> None:
    assert {name for name, *_ in BROKEN} | {"valid"} == {check.name for check in CHECKS}


RELEASED = threading.Event()


@pytest.fixture
def released() -> Iterator[None]:
    """End hanging calls after the test; until then, array products use one thread in the whole process."""
    before = set(threading.enumerate())
    yield
    RELEASED.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    RELEASED.clear()


class Hangs(gp.OrderedPolicy):
    """Does not end with three jobs or more."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        if len(jobs) > 2:
            RELEASED.wait()
        return np.zeros(len(jobs))


class HangsOnRelatives(HeaviestFirst):
    """Does not end once jobs have other names than at first."""

    def sort_key(self, jobs: gp.JobClasses) -> Floats:
        if any(name.startswith("task") for name in jobs.problem.job_ids):
            RELEASED.wait()
        return super().sort_key(jobs)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize(("policy", "check"), [(Hangs(), "solved"), (HangsOnRelatives(), "names")])
def test_a_check_that_does_not_end_fails(policy: gp.Policy, check: str) -> None:
    report = report_of(policy, problems=2, time_limit_seconds=1.0)
    (failure,) = report.failures
    assert (failure.name, failure.expected) == (check, "an answer")
    assert failure.found == "none after 1 s, the time limit of a check on one problem"
    assert "gp.solve(problem, policy)" in failure.code


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "soon"])
def test_a_time_limit_is_a_positive_number(limit: Any) -> None:
    with pytest.raises(gp.InputError, match="check_policy, field time_limit_seconds: must be a number greater than 0, found"):
        check_policy("fifo", time_limit_seconds=limit)


def test_the_report_names_the_rule_and_the_smallest_problem_as_code() -> None:
    report = report_of(FirstRowFirst())
    assert [failure.name for failure in report.failures] == ["order"]
    assert str(report) == (
        "policy first_row_first violates 1 of 14 rules of the contract\n"
        "\n"
        "order: permuting the jobs permutes the answer, bit for bit\n"
        "  expected: job '1' to get [0.0] as before\n"
        "  found: [1.0]\n"
        "\n"
        "    import numpy as np\n"
        "    import gavel_py as gp\n"
        "    from tests.testing.test_testing import FirstRowFirst\n"
        "\n"
        "    problem = gp.AllocationProblem.from_arrays(\n"
        "        [[2.0], [2.0]],\n"
        "        [1],\n"
        "    )\n"
        "    policy = FirstRowFirst()\n"
        "    allocation = gp.solve(problem, policy)\n"
        "    other = problem.select(np.array([1, 0]))\n"
        "    other_allocation = gp.solve(other, policy)"
    )


@pytest.mark.parametrize("policy", [FirstRowFirst(), ByName(), Sneaks(), CountsTheDead()], ids=lambda policy: policy.name)
def test_the_code_reproduces_the_failure(policy: gp.Policy) -> None:
    failure = report_of(policy, problems=4).failures[0]
    there: dict[str, Any] = {}
    exec(failure.code, there)  # noqa: S102
    before, after = ([str(row) for row in there[name].time_fractions.tolist()] for name in ("allocation", "other_allocation"))
    assert failure.found in after
    assert any(f"to get {row} " in failure.expected for row in before)


def test_the_code_names_the_options_that_were_changed() -> None:
    code = report_of(gp.resolve_policy("max_total_throughput", normalized=False), problems=0).failures[0].code
    assert "from gavel_py.policies.max_total_throughput import MaxTotalThroughput" in code
    assert "policy = MaxTotalThroughput(normalized=False)" in code


@pytest.mark.deep
def test_the_code_of_a_policy_made_of_policies_makes_the_parts_too() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Half(gp.DemandPolicy):
        """Needs half of what another policy needs of the GPUs that there are now."""

        whole: gp.DemandPolicy
        parts: tuple[int, ...] = (1, 2)

        def need(self, jobs: gp.JobClasses, level: float) -> Floats:
            return self.whole.need(jobs, level) / self.parts[1]

    code = report_of(Half(whole=MovesTheGoal(efficiency=False), parts=(1, 3)), problems=0, skip="options").failures[0].code
    assert "from tests.testing.test_testing import MovesTheGoal\n" in code
    assert "policy = Half(whole=MovesTheGoal(efficiency=False), parts=(1, 3,))" in code


@dataclass(frozen=True, kw_only=True)
class Grouped(Listed):
    """Has an option without a text form."""

    groups: gp.TenantTree = gp.option(gp.TenantTree(), "who is together")  # noqa: RUF009


def test_options_without_text_form_are_not_expected_in_the_label() -> None:
    tree = gp.TenantTree([gp.Tenant("red"), gp.Tenant("blue", weight=2)], policy="fifo")
    assert check_policy(Grouped(groups=tree, tenants_first="red"), problems=0).failures == ()
    failure = report_of(Grouped(groups=tree, tenants_first="red,blue"), problems=0).failures[0]
    assert (failure.name, failure.found.partition(":")[0]) == ("options", "grouped,tenants_first=red,blue")
    there: dict[str, Any] = {}
    exec(failure.code, there)  # noqa: S102
    assert there["policy"] == Grouped(groups=tree, tenants_first="red,blue")


def test_an_answer_that_is_no_number_is_found() -> None:
    class Nan(gp.FormulaPolicy):
        """Forgets to divide."""

        def fractions(self, jobs: gp.JobClasses) -> Floats:
            return np.full(jobs.throughputs.shape, np.nan)

    assert {failure.name for failure in report_of(Nan(), problems=0).failures} & {"solved", "valid"}


def test_all_that_is_broken_comes_at_once() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Twice(FirstRowFirst):
        """Breaks two rules."""

        words: str = gp.option("", "text")

    assert [failure.name for failure in report_of(Twice(words="a,b"), problems=0).failures] == ["order", "options"]


def test_the_error_of_the_policy_itself_is_the_cause() -> None:
    with pytest.raises(gp.PolicyContractError) as error:
        check_policy(Divides(), problems=0)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert isinstance(error.value, AssertionError)


def test_the_error_survives_the_way_to_another_process() -> None:
    error = gp.PolicyContractError(report_of(FirstRowFirst(), problems=0))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), copy.report) == (gp.PolicyContractError, str(error), error.report)


def test_a_policy_that_keeps_the_contract_has_a_report_too() -> None:
    report = check_policy(HeaviestFirst)
    assert report.failures == ()
    counts = {check.name: check.problems for check in report.checks}
    assert (counts["solved"], counts["valid"], counts["empty"], counts["options"]) == (27, 27, 5, 1)
    assert str(report).splitlines()[0] == "policy heaviest_first fulfils the contract"
    # Served one after the other, jobs that are equal do not get equal time; and there is no objective to get worse.
    assert [check.name for check in report.checks if not check.problems] == ["equal_jobs", "more_gpus"]


def test_a_problem_may_be_refused_for_what_is_wrong_with_it() -> None:
    class SingleGpus(HeaviestFirst):
        """Serves jobs of one GPU only."""

        def sort_key(self, jobs: gp.JobClasses) -> Floats:
            gp.InputError.raise_any([gp.Fault("", "", f"job {name} is too wide") for name in jobs.names(jobs.num_gpus > 1)])
            return super().sort_key(jobs)

    report = check_policy(SingleGpus())
    assert 0 < len(report.refusals) < 27
    assert report.checks[0].problems == 27 - len(report.refusals)
    assert f"refused {len(report.refusals)} problems, the first one: job job-" in str(report)


@pytest.mark.deep
def test_the_reference_of_an_agnostic_policy_is_in_the_problems() -> None:
    report = check_policy(gp.resolve_policy("min_makespan", agnostic=True, reference="v100"), problems=4)
    assert report.checks[0].problems > 10


@pytest.mark.deep
def test_the_same_seed_gives_the_same_report() -> None:
    reports = [str(report_of(Sneaks(), seed=seed)) for seed in (0, 0)]
    assert reports[0] == reports[1]
    refused = [check_policy("allox", seed=seed).refusals for seed in (0, 1)]
    assert refused[0] != refused[1]


def test_checks_are_skipped_by_name() -> None:
    report = check_policy("max_total_throughput", problems=0, skip="units")
    assert "units" not in {check.name for check in report.checks}
    with pytest.raises(gp.UnknownNameError, match=r"field skip: 'unit' is not a check; did you mean 'units'"):
        check_policy("fifo", skip=("unit",))


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(gp.UnknownNameError, match="there is no policy 'fiffo'"):
        check_policy("fiffo")
