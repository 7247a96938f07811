"""The rules of the contract: what each is called, what it says, and where it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gavel_py.testing.answers import empty, equal_jobs, options, proven, repeatable, solved, unchanged, valid
from gavel_py.testing.relatives import excluded, more_gpus, names, order, reads, units
from gavel_py.testing.trial import InapplicableError, Trial

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True)
class Check:
    """A rule: its name, what it says, the test, and on what: each problem, the problems without a job that can run, or once.

    needs_answer: whether it looks at the policy's answer to the problem.
    """

    name: str
    says: str
    test: Callable[[Trial], None]
    on: Literal["each", "empty", "once"] = "each"
    needs_answer: bool = True

    def make(self, trial: Trial) -> None:
        """Raise `BrokenError` if the rule is broken, `InapplicableError` if it says nothing about this problem."""
        if self.needs_answer and trial.failure is not None:
            raise InapplicableError
        self.test(trial)


CHECKS: tuple[Check, ...] = (
    Check("solved", "every problem is solved and proven, or refused for what is wrong with it", solved, needs_answer=False),
    Check("valid", "X >= 0, no job has more than all of its time, no type more than its GPUs, nobody runs where it cannot", valid),
    Check("proven", "value and bound agree to 1e-6, and verify() finds the same", proven),
    Check("repeatable", "the same problem has the same answer, bit for bit, whatever came in between", repeatable),
    Check("unchanged", "the policy object holds after a solve what it held before", unchanged),
    Check("order", "permuting the jobs permutes the answer, bit for bit", order, needs_answer=False),
    Check("names", "other names in the same order change nothing", names),
    Check("reads", "what the policy does not declare in `reads` changes nothing", reads),
    Check("equal_jobs", "jobs that are equal in all get equal time (unless the policy serves job after job)", equal_jobs),
    Check("units", "steps of another size, in a job's throughputs and steps alike, change nothing", units),
    Check("more_gpus", "one GPU more does not make the objective worse, with normalisers as they are", more_gpus),
    Check("excluded", "jobs that have finished or can run nowhere get nothing and change nothing for the others", excluded),
    Check("empty", "without a job that can run, the answer is empty", empty, "empty"),
    Check("options", "the options can be read back from the policy's label", options, "once", needs_answer=False),
)
"""In the order in which they are made."""
