"""Checks that a policy keeps the contract of all policies: for your own tests of your own policies."""

from gavel_py.testing.battery import check_policy
from gavel_py.testing.report import CheckResult, ContractReport

__all__ = ["CheckResult", "ContractReport", "check_policy"]
