"""Constraints that any policy accepts: rules that an allocation must keep (hard), or may break at a penalty (soft).

`base` has the interface; `placement`, `throughput` and `shares` the constraints; `compiling` turns them into rows and lower bounds
of a problem, reports their outcomes, and reads constraint files.
"""

from __future__ import annotations

from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import (
    KINDS,
    ConstraintOutcome,
    constrained,
    given_constraints,
    outcomes_of,
    placed,
    read_constraints,
)
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
