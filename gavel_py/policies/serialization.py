"""Conversion of policies and constraints to plain data and back, for saved files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gavel_py.errors import GavelError
from gavel_py.policies import Policy, Then, WeightedSum, policy_class
from gavel_py.policies.constraints import KINDS, Constraint
from gavel_py.problem.tenants import TenantTree


class _NotPlainError(Exception):
    """A policy, constraint or option has no form as plain data."""


def policy_document(policy: Policy) -> dict[str, Any] | None:
    """Return a policy as plain data, None if its class has no registered name or an option or constraint is not plain data.

    Files never name a class to import, so policies and constraints defined by the user must be passed in again on loading.
    """
    try:
        document = _policy(policy)
        # A document that does not round-trip is incomplete.
        return document if _policy(policy_from(document)) == document else None
    except (_NotPlainError, GavelError, TypeError, ValueError):
        return None


def policy_from(document: Mapping[str, Any]) -> Policy:
    """Return the policy that `policy_document` described."""
    constraints = [KINDS[each["kind"]](**{k: v for k, v in each.items() if k != "kind"}) for each in document["constraints"]]
    if "terms" in document:
        terms = tuple((weight, policy_from(part)) for weight, part in document["terms"])
        return WeightedSum(terms=terms, constraints=constraints)  # type: ignore[arg-type]
    if "then" in document:
        first, second = (policy_from(part) for part in document["then"])
        return Then(first, second, tolerance=document["tolerance"], constraints=constraints)
    options = {name: _option_from(value) for name, value in document["options"].items()}
    return policy_class(document["policy"])(constraints=constraints, **options)  # type: ignore[arg-type]


def _policy(policy: Policy) -> dict[str, Any]:
    constraints = [_constraint(each) for each in policy.constraints]
    if type(policy) is WeightedSum:
        return {"terms": [[weight, _policy(part)] for weight, part in policy.terms], "constraints": constraints}
    if type(policy) is Then:
        parts = [_policy(policy.first), _policy(policy.second)]
        return {"then": parts, "tolerance": policy.tolerance, "constraints": constraints}
    if policy_class(policy.name) is not type(policy):
        raise _NotPlainError
    changed = (f for f in dataclasses.fields(policy) if f.name != "constraints" and getattr(policy, f.name) != f.default)
    options = {field.name: _option(policy, field.name) for field in changed}
    return {"policy": policy.name, "options": options, "constraints": constraints}


def _constraint(constraint: Constraint) -> dict[str, Any]:
    if KINDS.get(constraint.kind) is not type(constraint):
        raise _NotPlainError
    return {"kind": constraint.kind} | constraint.model_dump(mode="json", exclude_defaults=True)


def _option(policy: Policy, name: str) -> Any:
    value = getattr(policy, name)
    tree = getattr(policy, "tree", None)
    if name == "tenants" and isinstance(tree, TenantTree):
        # The tree itself, even if it was read from a file, since the file may change or disappear.
        return {"tenants": tree.to_dict(), "policy": tree.policy}
    if isinstance(value, tuple):
        return [_number(each) for each in value]
    return _number(value)


def _number(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | None):
        raise _NotPlainError
    return value


def _option_from(value: Any) -> Any:
    if isinstance(value, dict):
        return TenantTree.from_dict(value["tenants"], value["policy"])
    return tuple(value) if isinstance(value, list) else value
