"""Policies and constraints as plain data, and back: what a file can hold of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gavel_py.errors import GavelError
from gavel_py.policies import Policy, Then, WeightedSum, policy_class
from gavel_py.policies.constraints import KINDS, Constraint
from gavel_py.problem.tenants import TenantTree


class _NotPlainError(Exception):
    pass


def policy_document(policy: Policy) -> dict[str, Any] | None:
    """Return a policy as plain data; None for one that a file cannot hold: a class without a name of its own, or a strange option.

    No file names a class to import. So a policy, or a constraint, of the user's own must be handed in again.
    """
    try:
        document = _policy(policy)
        # What does not come back the same was not all of it.
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
        # The tree itself, also where it came from a file: that may change, or be gone.
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
