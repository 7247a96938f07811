"""Scheduling policies: three families and formulas to compare with, one idea per file."""

from gavel_py import names_in
from gavel_py.policies.base import AllocationStatus, Decision, Policy, option
from gavel_py.policies.composition import Then
from gavel_py.policies.demand import DemandPolicy
from gavel_py.policies.formulas import FormulaPolicy
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.policies.registry import PolicyOption, policy_class, policy_names, policy_options, policy_source, resolve_policy
from gavel_py.policies.sums import SumPolicy, WeightedSum

__all__ = [
    "AllocationStatus",
    "Decision",
    "DemandPolicy",
    "FormulaPolicy",
    "OrderedPolicy",
    "Policy",
    "PolicyOption",
    "SumPolicy",
    "Then",
    "WeightedSum",
    "option",
    "policy_class",
    "policy_names",
    "policy_options",
    "policy_source",
    "resolve_policy",
]

__getattr__, __dir__, _ = names_in(__name__)
