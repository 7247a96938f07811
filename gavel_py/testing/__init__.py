"""Contract checks of policies, mechanisms and trace formats, for the test suites of users."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from numbers import Real
from threading import Thread

import gavel_py as gp
from gavel_py.errors import check_known, refuse
from gavel_py.testing.checks import CHECKS, Check, solved
from gavel_py.testing.mechanisms import check_mechanism
from gavel_py.testing.problems import EMPTY_CASES, Case, cases
from gavel_py.testing.trace_formats import check_trace_format
from gavel_py.testing.trial import (
    SOLVED,
    BrokenError,
    CheckResult,
    ContractReport,
    InapplicableError,
    Trial,
    as_code,
    smallest,
    state_of,
)

__all__ = ["CheckResult", "ContractReport", "check_mechanism", "check_policy", "check_trace_format"]


def check_policy(
    policy: str | gp.Policy | type[gp.Policy],
    *,
    seed: int = 0,
    problems: int = 12,
    skip: Collection[str] = (),
    time_limit_seconds: float = 60.0,
) -> ContractReport:
    """Check that a policy keeps the contract of all policies, on small and degenerate problems.

    docs/writing-a-policy.md lists the checks. The policy may refuse a problem with an `InputError` about the problem, but not all
    problems, and not with a `PolicyError`, which is about the policy.

    >>> from gavel_py.testing import check_policy
    >>> check_policy("fifo", problems=4).failures
    ()

    Args:
        policy: A policy, a class that needs no arguments, or a name.
        seed: Seed of the random problems.
        problems: Number of random problems, in addition to the fixed ones.
        skip: Names of checks that do not apply to this policy, such as "units" for an objective in steps.
        time_limit_seconds: Time limit of a check on one problem; a check that takes longer fails.

    Returns:
        The result of each check, none of which failed.

    Raises:
        PolicyContractError: Checks failed; the message has code for the smallest problem found for each.
        UnknownNameError: There is no check with a name in `skip`.
    """
    tried = policy() if inspect.isclass(policy) else gp.resolve_policy(policy)
    skip = (skip,) if isinstance(skip, str) else skip
    known = [check.name for check in CHECKS]
    check_known("check_policy", "skip", skip, known, "is not a check")
    is_time, text = isinstance(time_limit_seconds, Real), f"must be a number greater than 0, found {time_limit_seconds!r}"
    refuse("check_policy", (not is_time or not time_limit_seconds > 0, "time_limit_seconds", text))
    battery = _Battery(tried, cases(seed, problems, tried.reference), time_limit_seconds)
    results = tuple(battery.result(check) for check in CHECKS if check.name not in skip)
    report = ContractReport(tried.label, results, battery.refusals())
    if report.failures:
        raise gp.PolicyContractError(report) from battery.cause
    return report


class _Battery:
    """The trials of one policy. All checks share them, so that each problem is solved once."""

    def __init__(self, policy: gp.Policy, each: Iterable[Case], limit: float) -> None:
        self.policy, self.limit = policy, limit
        self.before = state_of(policy)
        self.cause: BaseException | None = None
        self.trials = {"each": [self._trial(case) for case in each], "empty": [self._trial(case) for case in EMPTY_CASES]}
        self.trials["once"] = self.trials["each"][:1]

    def _trial(self, case: Case) -> Trial:
        return Trial(self.policy, case, self.before)

    def refusals(self) -> tuple[str, ...]:
        """Return the first line of the message for each problem that the policy refused."""
        failures = (trial.failure for trial in self.trials["each"] if trial.is_solved)
        return tuple(str(error).splitlines()[0] for error in failures if isinstance(error, gp.InputError))

    def result(self, check: Check) -> CheckResult:
        """Run one check on its problems, up to the first that breaks the rule."""
        count, trials = 0, self.trials[check.on]
        for number, trial in enumerate(list(trials)):
            try:
                _within(self.limit, partial(check.make, trial))
            except InapplicableError:
                continue
            except TimeoutError:
                if not trial.is_solved:
                    del trials[number:]  # later checks would wait for the same solve
                text = f"none after {self.limit:g} s, the time limit of a check on one problem"
                code = as_code(self.policy, trial.case, (SOLVED,))
                return CheckResult(check.name, check.text, count + 1, "an answer", text, code)
            except BrokenError as broken:
                self.cause = self.cause or broken.__cause__
                return self._failure(check, trial.case, broken, count + 1)
            count += 1
        if check.test is solved and not count:
            refused = BrokenError("an answer to at least one of the problems", self.refusals()[0], ("gp.solve(problem, policy)",))
            return self._failure(check, self.trials["each"][0].case, refused, 0)
        return CheckResult(check.name, check.text, count)

    def _failure(self, check: Check, case: Case, broken: BrokenError, count: int) -> CheckResult:
        if broken.needs_problem:
            until = time.monotonic() + self.limit
            case, broken = smallest(lambda smaller: self._fault(check, smaller, until), case, broken)
        code = as_code(self.policy, case if broken.needs_problem else None, broken.lines)
        return CheckResult(check.name, check.text, count, broken.expected, broken.found, code)

    def _fault(self, check: Check, case: Case, until: float) -> BrokenError | None:
        """Return the fault that a check finds in this case before a time of the monotonic clock, None if there is none."""
        try:
            _within(until - time.monotonic(), partial(check.make, self._trial(case)))
        except BrokenError as broken:
            return broken
        except (InapplicableError, TimeoutError):
            return None
        return None


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Call a function with a time limit; raise its exception, or `TimeoutError`.

    After a timeout, the function continues in the background, since a thread cannot be stopped from outside.
    """
    if seconds <= 0:
        raise TimeoutError
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  a user's policy may raise anything
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if raised:
        raise raised[0]
