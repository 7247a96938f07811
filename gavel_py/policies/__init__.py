"""Scheduling policies: three families, one idea per file."""

from gavel_py.policies.base import Decision, Policy, option
from gavel_py.policies.demand import DemandPolicy
from gavel_py.policies.ordered import OrderedPolicy
from gavel_py.policies.registry import PolicyOption, policy_class, policy_names, policy_options, resolve_policy
from gavel_py.policies.sums import SumPolicy

__all__ = [
    "Decision",
    "DemandPolicy",
    "OrderedPolicy",
    "Policy",
    "PolicyOption",
    "SumPolicy",
    "option",
    "policy_class",
    "policy_names",
    "policy_options",
    "resolve_policy",
]
