"""One policy on one problem: its answer, its answers to related problems, what a check found, and code that shows it.

`smallest` turns a problem that shows a fault into a small one that shows it too, by leaving out what does not matter.
`ContractReport` says in words what all checks found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, NoReturn

import gavel_py as gp
from gavel_py.testing.problems import Case, job_count, with_jobs, with_types


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    name, says: the check and its rule; problems: on how many it was made; expected, found: what was to be and what was there
    instead, empty if all is well; code: Python that shows it, on the smallest problem found that does.
    """

    name: str
    says: str
    problems: int
    expected: str = ""
    found: str = ""
    code: str = ""

    @property
    def failed(self) -> bool:
        """Whether the rule is broken."""
        return bool(self.code)

    def __str__(self) -> str:
        if not self.failed:
            return f"{self.name:<10}  {self.problems:>3} problems  {self.says}"
        code = "\n".join(f"    {line}".rstrip() for line in self.code.splitlines())
        return f"{self.name}: {self.says}\n  expected: {self.expected}\n  found: {self.found}\n\n{code}"


@dataclass(frozen=True)
class ContractReport:
    """What `check_policy` found: policy, its label; checks, one result each; refusals, the message for each refused problem."""

    policy: str
    checks: tuple[CheckResult, ...]
    refusals: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.failed)

    def __str__(self) -> str:
        """One line a check; or, if some failed, those in full."""
        failures = self.failures
        if failures:
            heading = f"policy {self.policy} breaks {len(failures)} of {len(self.checks)} rules of the contract"
            return "\n\n".join([heading, *map(str, failures)])
        lines = [f"policy {self.policy} keeps the contract", *(f"  {check}" for check in self.checks)]
        if self.refusals:
            lines.append(f"  refused {len(self.refusals)} problems, the first of them: {self.refusals[0]}")
        return "\n".join(lines)


SOLVED = "allocation = gp.solve(problem, policy)"


class InapplicableError(Exception):
    """The check says nothing about this problem."""


@dataclass(eq=False)
class BrokenError(Exception):
    """A rule is broken. lines: how to see it, after `problem` and `policy`; `problem` may not be needed for that."""

    expected: str
    found: str
    lines: tuple[str, ...]
    needs_problem: bool = True


@dataclass(frozen=True)
class Trial:
    """A policy on a case. before: what the policy held before it was used for the first time (`state_of`)."""

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
        # No cached property: up to Python 3.11, one that does not end blocks those of all other trials.
        if not self._outcomes:
            try:
                self._outcomes.append(gp.solve(self.problem, self.policy))
            except Exception as error:  # noqa: BLE001  a user's policy may raise anything
                self._outcomes.append(error)
        return self._outcomes[0]

    @property
    def is_solved(self) -> bool:
        """Whether it has been solved already, or refused."""
        return bool(self._outcomes)

    @property
    def failure(self) -> Exception | None:
        """Why there is no answer: an `InputError` where the policy refuses the problem."""
        return self._outcome if isinstance(self._outcome, Exception) else None

    @property
    def allocation(self) -> gp.Allocation:
        """The policy's answer, where there is one."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def relative(self, problem: gp.AllocationProblem, *lines: str) -> gp.Allocation:
        """Return the policy's answer to a relative of a problem that it has answered; `lines` make it, as `other`."""
        try:
            return gp.solve(problem, self.policy)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise BrokenError("an answer to `other`, as to `problem`", text, (*lines, "gp.solve(other, policy)")) from error

    @cached_property
    def proof(self) -> gp.Proof:
        """The proof of the answer, made anew."""
        return self.allocation.verify()

    def tolerance(self, *others: gp.Allocation) -> float:
        """Return by how much proven objectives may differ: the accepted gap, of the largest or of terms that cancel out in it."""
        found = (self.allocation, *others)
        sizes = [abs(each.objective_value or 0.0) for each in found]
        for each in found:
            certificate = None if each.evidence is None else each.evidence.certificate
            if certificate is not None:
                sizes.append(certificate.scale(each.time_fractions[certificate.jobs.rows]))
        return self.proof.accepted_gap * max(sizes)

    def name(self, row: int) -> str:
        """Return how a job is called in messages."""
        return f"job {self.problem.job_ids[row]!r}"

    def breaks(self, expected: str, found: str, *lines: str) -> NoReturn:
        """Raise `BrokenError`; `lines` make `other` and say what to look at."""
        raise BrokenError(expected, found, lines)


def state_of(policy: gp.Policy) -> dict[str, str]:
    """Return what a policy object holds, as text; cached properties follow from the rest and do not count."""
    cached = {name for cls in type(policy).__mro__ for name, value in vars(cls).items() if isinstance(value, cached_property)}
    return {name: repr(value) for name, value in vars(policy).items() if name not in cached}


def as_code(policy: gp.Policy, case: Case | None, lines: tuple[str, ...]) -> str:
    """Return Python code that makes the problem of a case and the policy, and goes on with `lines`."""
    used: dict[str, str] = {}
    made = f"policy = {_expression(policy, used)}"
    body = [made, *lines] if case is None else [problem_code("problem", case), made, *lines]
    numpy = ["import numpy as np"] if any("np." in text for text in body) else []
    imports = [f"from {module} import {name}" for name, module in used.items()]
    return "\n".join([*numpy, "import gavel_py as gp", *imports, "", *body])


def _expression(value: Any, used: dict[str, str]) -> str:
    """A policy, or a part of one, as Python; used: the module of each class that it names."""
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
    """Return a statement that makes the problem of a case."""
    arrays = [f"    {key}={_literal(values)}," for key, values in case.items() if key not in ("throughputs", "capacities")]
    first = [f"    {_literal(case['throughputs'])},", f"    {_literal(case['capacities'])},"]
    return "\n".join([f"{name} = gp.AllocationProblem.from_arrays(", *first, *arrays, ")"])


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return 'float("nan")' if isinstance(value, float) and math.isnan(value) else repr(value)


ROUNDS = 2
"""What does not matter once some jobs are gone may have mattered before."""


def smallest(fault: Callable[[Case], BrokenError | None], case: Case, found: BrokenError) -> tuple[Case, BrokenError]:
    """Return a smaller case that shows a fault too, and that fault; `fault` looks for it in a case.

    Jobs, accelerator types and arrays are left out one at a time as long as a fault is still there.
    """
    for _ in range(ROUNDS):
        for step in _steps(case):
            candidate = step(case)
            if candidate is not None and (still := fault(candidate)) is not None:
                case, found = candidate, still
    return case, found


def _steps(case: Case) -> Iterator[Callable[[Case], Case | None]]:
    """Ways to make a case smaller, from the last job, type and array to the first, so that those before keep their places."""
    for i in reversed(range(job_count(case))):
        yield partial(_without_job, row=i)
    for j in reversed(range(len(case["capacities"]))):
        yield partial(_without_type, column=j)
    for name in reversed([name for name in case if name not in ("throughputs", "capacities")]):
        yield partial(_without_array, gone=name)


def _without_job(case: Case, row: int) -> Case | None:
    jobs = job_count(case)
    return with_jobs(case, [i for i in range(jobs) if i != row]) if jobs > 1 else None


def _without_type(case: Case, column: int) -> Case | None:
    types = len(case["capacities"])
    return with_types(case, [j for j in range(types) if j != column]) if types > 1 else None


def _without_array(case: Case, gone: str) -> Case:
    return {name: values for name, values in case.items() if name != gone}
