"""Constraints that any policy accepts: rules that an allocation must keep (hard), or may break at a penalty (soft).

`base` has the interface; `placement`, `throughput` and `shares` the constraints; `compiling` turns them into rows and lower bounds
of a problem, reports their outcomes, and reads constraint files.
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


def given_constraints(given: object, where: str) -> tuple[Constraint, ...]:
    """Return the constraints of any iterable; raises `InputError`, which names `where`, for anything else."""
    if isinstance(given, Constraint):
        raise InputError(Fault(where, "constraints", f"must be a list, found one constraint alone; write [{given!r}]"))
    # Text and mappings are iterable too, but their items are not what the caller meant.
    if isinstance(given, str | bytes | Path | Mapping) or not isinstance(given, Iterable):
        hint = f"; {FILES}" if isinstance(given, str | Path) else ""
        raise InputError(Fault(where, "constraints", f"must be a list of constraints, found {given!r:.60}{hint}"))
    found = tuple(given)
    invalid = [each for each in found if not isinstance(each, Constraint)]
    InputError.raise_any([Fault(where, "constraints", f"must be constraints, found {each!r:.60}{_hint(each)}") for each in invalid])
    return found


def _hint(invalid: object) -> str:
    if inspect.isclass(invalid) and issubclass(invalid, Constraint):
        return " (this is a class; call it to make one)"
    return f"; {FILES}" if isinstance(invalid, str | Path) else ""
