"""Constraints that any policy accepts: what an allocation must keep, or may break at a price.

base: what every constraint is; placement, throughput, shares: the constraints; compiling: their rows and floors for a problem, what
became of them, and reading them from files. `given_constraints` checks what a caller gives: any iterable of constraints, and
nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import KINDS, ConstraintOutcome, constrained, outcomes_of, placed, read_constraints
from gavel_py.policies.constraints.placement import Forbid, KeepRunning, Pin, SwitchCost
from gavel_py.policies.constraints.shares import CostBudget, MaxGpus, Quota, Reserve
from gavel_py.policies.constraints.throughput import Deadline, MinThroughput

__all__ = [
    "KINDS",
    "Constraint",
    "ConstraintOutcome",
    "CostBudget",
    "Deadline",
    "Forbid",
    "KeepRunning",
    "MaxGpus",
    "MinThroughput",
    "Pin",
    "Quota",
    "Reserve",
    "SwitchCost",
    "constrained",
    "given_constraints",
    "outcomes_of",
    "placed",
    "read_constraints",
]

FILES = "a file of them is read by gp.read_constraints, or named with --constraints on the command line"


def given_constraints(given: object, who: str) -> tuple[Constraint, ...]:
    """Return the constraints of any iterable; `who`, which they were given to, is named in errors.

    Raises `InputError` for what is no iterable, for one constraint alone and for all that is no constraint.
    """
    if isinstance(given, Constraint):
        raise InputError(Fault(who, "constraints", f"must be a list, found one constraint alone; write [{given!r}]"))
    # Text and mappings can be gone through too, but what comes out would not be what the caller has written.
    if isinstance(given, str | bytes | Path | Mapping) or not isinstance(given, Iterable):
        hint = f"; {FILES}" if isinstance(given, str | Path) else ""
        raise InputError(Fault(who, "constraints", f"must be a list of constraints, found {given!r:.60}{hint}"))
    found = tuple(given)
    strange = [each for each in found if not isinstance(each, Constraint)]
    InputError.raise_any([Fault(who, "constraints", f"must be constraints, found {each!r:.60}{_hint(each)}") for each in strange])
    return found


def _hint(strange: object) -> str:
    if inspect.isclass(strange) and issubclass(strange, Constraint):
        return " (this is a class; call it to make one)"
    return f"; {FILES}" if isinstance(strange, str | Path) else ""
