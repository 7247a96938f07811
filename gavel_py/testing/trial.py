"""Trials of a policy on a problem: its answer, its answers to related problems, results of checks, and code to reproduce them.

`smallest` reduces a problem that shows a fault. `ContractReport` has the results of all checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NoReturn

import gavel_py as gp
from gavel_py.testing.problems import Case, job_count, with_jobs, with_types


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        says: The rule.
        problems: Number of problems on which it ran.
        expected: Expected outcome, empty if the check passed.
        found: Outcome instead, empty if the check passed.
        code: Python code that reproduces the failure on the smallest problem found, empty if the check passed.
    """

    name: str
    says: str
    problems: int
    expected: str = ""
    found: str = ""
    code: str = ""

    @property
    def failed(self) -> bool:
        """Whether the check failed."""
        return bool(self.code)

    def __str__(self) -> str:
        if not self.failed:
            return f"{self.name:<10}  {self.problems:>3} problems  {self.says}"
        code = "\n".join(f"    {line}".rstrip() for line in self.code.splitlines())
        return f"{self.name}: {self.says}\n  expected: {self.expected}\n  found: {self.found}\n\n{code}"


@dataclass(frozen=True)
class ContractReport:
    """The result of `check_policy`, or of another contract check.

    Attributes:
        policy: Label of the policy, or name of the mechanism or trace format.
        checks: The result of each check.
        refusals: The message for each problem that the policy refused.
        what: What was checked: "policy", "mechanism" or "trace format".
    """

    policy: str
    checks: tuple[CheckResult, ...]
    refusals: tuple[str, ...] = ()
    what: str = "policy"

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    def __str__(self) -> str:
        """Return one line per check, or the failures in full."""
        failures = self.failures
        if failures:
            heading = f"{self.what} {self.policy} violates {len(failures)} of {len(self.checks)} rules of the contract"
            return "\n\n".join([heading, *map(str, failures)])
        lines = [f"{self.what} {self.policy} fulfils the contract", *(f"  {check}" for check in self.checks)]
        if self.refusals:
            lines.append(f"  refused {len(self.refusals)} problems, the first one: {self.refusals[0]}")
        return "\n".join(lines)


RuleFault = tuple[str, str, str]
"""(expected, found, code)"""


def report_of(what: str, name: str, rules: Mapping[str, str], found: Iterable[tuple[str, RuleFault | None]]) -> ContractReport:
    """Return the report of checks with the first fault of each rule; raises `PolicyContractError` if there is one.

    rules: {rule: text}; found: the rule of each check, and its fault or None.
    """
    counts, broken = dict.fromkeys(rules, 0), dict[str, RuleFault]()
    for rule, fault in found:
        counts[rule] += 1
        if fault is not None:
            broken.setdefault(rule, fault)
    results = tuple(CheckResult(rule, text, counts[rule], *broken.get(rule, ("", "", ""))) for rule, text in rules.items())
    report = ContractReport(name, results, what=what)
    if report.failures:
        raise gp.PolicyContractError(report)
    return report


SOLVED = "allocation = gp.solve(problem, policy)"


class InapplicableError(Exception):
    """The check does not apply to this problem."""


@dataclass(eq=False)
class BrokenError(Exception):
    """A rule is broken. lines: code that shows it, after the definition of `policy` and, with `needs_problem`, of `problem`."""

    expected: str
    found: str
    lines: tuple[str, ...]
    needs_problem: bool = True


@dataclass(frozen=True)
class Trial:
    """A policy on a case. before: the attributes of the policy before its first use (`state_of`)."""

    policy: gp.Policy
    case: Case
    before: dict[str, str] = field(default_factory=dict)
    _outcomes: list[gp.Allocation | Exception] = field(default_factory=list)

    @cached_property
    def problem(self) -> gp.AllocationProblem:
        """The problem of the case."""
        return gp.AllocationProblem.from_arrays(**self.case)

    @property
    def _outcome(self) -> gp.Allocation | Exception:
        # Not a cached property: up to Python 3.11, all trials would share its lock, and an endless solve would block the others.
        if not self._outcomes:
            try:
                self._outcomes.append(gp.solve(self.problem, self.policy))
            except Exception as error:  # noqa: BLE001  a user's policy may raise anything
                self._outcomes.append(error)
        return self._outcomes[0]

    @property
    def is_solved(self) -> bool:
        """Whether the problem was solved or refused already."""
        return bool(self._outcomes)

    @property
    def failure(self) -> Exception | None:
        """The error instead of an answer, an `InputError` if the policy refused the problem; None if there is an answer."""
        return self._outcome if isinstance(self._outcome, Exception) else None

    @property
    def allocation(self) -> gp.Allocation:
        """The policy's answer; raises the error if there is none."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def relative(self, problem: gp.AllocationProblem, *lines: str) -> gp.Allocation:
        """Return the policy's answer to a related problem; `lines` are code that defines it as `other`."""
        try:
            return gp.solve(problem, self.policy)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise BrokenError("an answer to `other`, as to `problem`", text, (*lines, "gp.solve(other, policy)")) from error

    @cached_property
    def proof(self) -> gp.Proof:
        """The proof of the answer, from `verify`."""
        return self.allocation.verify()

    def tolerance(self, *others: gp.Allocation) -> float:
        """Return the tolerance on proven objectives: the accepted gap, relative to the largest objective or its largest terms."""
        found = (self.allocation, *others)
        sizes = [abs(each.objective_value or 0.0) for each in found]
        for each in found:
            certificate = None if each.evidence is None else each.evidence.certificate
            if certificate is not None:
                sizes.append(certificate.scale(each.time_fractions[certificate.jobs.rows]))
        return self.proof.accepted_gap * max(sizes)

    def name(self, row: int) -> str:
        """Return the name of a job for messages."""
        return f"job {self.problem.job_ids[row]!r}"

    def breaks(self, expected: str, found: str, *lines: str) -> NoReturn:
        """Raise `BrokenError`; `lines` are code that shows the fault."""
        raise BrokenError(expected, found, lines)


def state_of(policy: gp.Policy) -> dict[str, str]:
    """Return the attributes of a policy object as text, without cached properties."""
    cached = {name for cls in type(policy).__mro__ for name, value in vars(cls).items() if isinstance(value, cached_property)}
    return {name: repr(value) for name, value in vars(policy).items() if name not in cached}


def as_code(policy: gp.Policy, case: Case | None, lines: tuple[str, ...]) -> str:
    """Return Python code that defines the problem of a case and the policy, followed by `lines`."""
    used: dict[str, str] = {}
    body = [f"policy = {_expression(policy, used)}", *lines]
    body = body if case is None else [problem_code("problem", case), *body]
    numpy = ["import numpy as np"] if any("np." in text for text in body) else []
    imports = [f"from {module} import {name}" for name, module in used.items()]
    return "\n".join([*numpy, "import gavel_py as gp", *imports, "", *body])


def _expression(value: Any, used: dict[str, str]) -> str:
    """Return a policy, or a part of one, as Python; adds {class: module} of the classes that it names to `used`."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_expression(part, used)}, ' for part in value).strip()})"
    cls = type(value)
    if "<locals>" not in cls.__qualname__ and cls.__module__ not in ("__main__", "builtins"):
        used[cls.__name__] = cls.__module__
    if isinstance(value, gp.TenantTree):
        return f"{cls.__name__}.from_dict({value.to_dict()!r}, {value.policy!r})"
    if not isinstance(value, gp.Policy):
        return repr(value)
    given = [f for f in fields(value) if f.init and repr(getattr(value, f.name)) != repr(f.default)]
    return f"{cls.__name__}({', '.join(f'{f.name}={_expression(getattr(value, f.name), used)}' for f in given)})"


def problem_code(name: str, case: Case) -> str:
    """Return a statement that defines the problem of a case."""
    arrays = [f"    {key}={_literal(values)}," for key, values in case.items() if key not in ("throughputs", "capacities")]
    first = [f"    {_literal(case['throughputs'])},", f"    {_literal(case['capacities'])},"]
    return "\n".join([f"{name} = gp.AllocationProblem.from_arrays(", *first, *arrays, ")"])


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return 'float("nan")' if isinstance(value, float) and math.isnan(value) else repr(value)


ROUNDS = 2
"""A second pass removes parts that became irrelevant in the first."""


def smallest(fault: Callable[[Case], BrokenError | None], case: Case, found: BrokenError) -> tuple[Case, BrokenError]:
    """Return a smaller case with a fault, and the fault: jobs, types and arrays are removed one at a time while a fault remains.

    fault: returns the fault of a case, None if it has none.
    """
    for part in ("jobs", "types", "arrays") * ROUNDS:
        # From the last to the first, so that earlier ones keep their places.
        for place in reversed(_parts(case, part)):
            candidate = _without(case, part, place)
            if candidate is not None and (still := fault(candidate)) is not None:
                case, found = candidate, still
    return case, found


def _parts(case: Case, part: str) -> Sequence[Any]:
    """Return the places of jobs or types, or the names of the arrays that can be left out."""
    if part == "arrays":
        return [name for name in case if name not in ("throughputs", "capacities")]
    return range(job_count(case) if part == "jobs" else len(case["capacities"]))


def _without(case: Case, part: str, place: Any) -> Case | None:
    """Return the case without a job, type or array, None if it is the only job or type."""
    if part == "arrays":
        return {name: values for name, values in case.items() if name != place}
    kept = [each for each in _parts(case, part) if each != place]
    return (with_jobs if part == "jobs" else with_types)(case, kept) if kept else None
