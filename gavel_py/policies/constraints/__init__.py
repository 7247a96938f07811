"""Constraints that any policy accepts: what an allocation must keep, or may break at a price."""

from gavel_py.policies.constraints.applying import constrained, placed
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.files import KINDS, read_constraints
from gavel_py.policies.constraints.given import given_constraints
from gavel_py.policies.constraints.outcomes import ConstraintOutcome, outcomes_of
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
