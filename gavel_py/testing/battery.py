"""All checks of a policy on all problems."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable

import gavel_py as gp
from gavel_py.errors import Fault, nearest
from gavel_py.testing.answers import solved
from gavel_py.testing.checks import CHECKS, Check
from gavel_py.testing.problems import EMPTY_CASES, Case, cases
from gavel_py.testing.report import CheckResult, ContractReport
from gavel_py.testing.smallest import smallest
from gavel_py.testing.trial import BrokenError, InapplicableError, Trial, as_code, state_of

__all__ = ["check_policy"]


def check_policy(
    policy: str | gp.Policy | type[gp.Policy], *, seed: int = 0, problems: int = 12, skip: Collection[str] = ()
) -> ContractReport:
    """Check that a policy keeps the contract of all policies, on small and degenerate problems; return what was looked at.

    policy: an object, a class that needs no arguments, or a name; seed, problems: which random problems, and how many beside
    those that are always the same; skip: names of checks that do not hold for this policy by its nature, such as "units" where
    the objective is in steps. docs/writing-a-policy.md lists the checks. The policy may refuse a problem with an `InputError`
    that says what is wrong with it, but not all of them.

    Raises `PolicyContractError` with all that failed, each with the smallest problem found, as code; `UnknownNameError` for a
    check to be skipped that there is not.

    >>> from gavel_py.testing import check_policy
    >>> check_policy("fifo", problems=4).failures
    ()
    """
    tried = policy() if inspect.isclass(policy) else gp.resolve_policy(policy)
    skip = (skip,) if isinstance(skip, str) else skip
    known = [check.name for check in CHECKS]
    gp.UnknownNameError.raise_any(
        [Fault("check_policy", "skip", f"there is no check {name!r}{nearest(name, known)}") for name in skip if name not in known]
    )
    battery = _Battery(tried, cases(seed, problems, tried.reference))
    results = tuple(battery.result(check) for check in CHECKS if check.name not in skip)
    report = ContractReport(tried.label, results, battery.refusals())
    if report.failures:
        raise gp.PolicyContractError(report) from battery.cause
    return report


class _Battery:
    """The trials of one policy, which all checks share, so that each problem is solved once."""

    def __init__(self, policy: gp.Policy, tried: Iterable[Case]) -> None:
        self.policy = policy
        self.before = state_of(policy)
        self.cause: BaseException | None = None
        self.trials = {"each": [self._trial(case) for case in tried], "empty": [self._trial(case) for case in EMPTY_CASES]}
        self.trials["once"] = self.trials["each"][:1]

    def _trial(self, case: Case) -> Trial:
        return Trial(self.policy, case, self.before)

    def refusals(self) -> tuple[str, ...]:
        """Return the first line of the message for each problem that was refused."""
        failures = (trial.failure for trial in self.trials["each"])
        return tuple(str(error).splitlines()[0] for error in failures if isinstance(error, gp.InputError))

    def result(self, check: Check) -> CheckResult:
        """Make one check on its problems, until one of them shows that the rule is broken."""
        count = 0
        for trial in self.trials[check.on]:
            try:
                check.make(trial)
            except InapplicableError:
                continue
            except BrokenError as broken:
                self.cause = self.cause or broken.__cause__
                return self._failure(check, trial.case, broken, count + 1)
            count += 1
        if check.test is solved and not count:
            refused = BrokenError("an answer to one of the problems at least", self.refusals()[0], ("gp.solve(problem, policy)",))
            return self._failure(check, self.trials["each"][0].case, refused, 0)
        return CheckResult(check.name, check.says, count)

    def _failure(self, check: Check, case: Case, broken: BrokenError, count: int) -> CheckResult:
        if broken.needs_problem:
            case, broken = smallest(lambda smaller: self._fault(check, smaller), case, broken)
        code = as_code(self.policy, case if broken.needs_problem else None, broken.lines)
        return CheckResult(check.name, check.says, count, broken.expected, broken.found, code)

    def _fault(self, check: Check, case: Case) -> BrokenError | None:
        """What the check finds in this case, if anything."""
        try:
            check.make(self._trial(case))
        except BrokenError as broken:
            return broken
        except InapplicableError:
            return None
        return None
