"""Conversion of policies and constraints to plain data and back, for saved files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gavel_py.errors import GavelError
from gavel_py.policies import Policy, Then, WeightedSum, policy_class
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.compiling import KINDS


def policy_document(policy: Policy) -> dict[str, Any] | None:
    """Return a policy as plain data, None if its class has no registered name or an option or constraint is not plain data.

    Files never name a class to import, so policies and constraints defined by the user must be passed in again on loading.
    """
    try:
        document = _policy(policy)
        # A document that does not round-trip is incomplete.
        return document if _policy(policy_from(document)) == document else None
    except (GavelError, TypeError, ValueError):
        return None


def policy_from(document: Mapping[str, Any]) -> Policy:
    """Return the policy from the data of `policy_document`."""
    constraints = [KINDS[each["kind"]](**{k: v for k, v in each.items() if k != "kind"}) for each in document["constraints"]]
    if "terms" in document:
        terms = tuple((weight, policy_from(part)) for weight, part in document["terms"])
        return WeightedSum(terms=terms, constraints=constraints)  # type: ignore[arg-type]
    if "then" in document:
        first, second = (policy_from(part) for part in document["then"])
        return Then(first, second, tolerance=document["tolerance"], constraints=constraints)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in document["options"].items()}
    return policy_class(document["policy"])(constraints=constraints, **options)  # type: ignore[arg-type]


def _policy(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain data; raises `TypeError` if it has no such form."""
    constraints = [_constraint(each) for each in policy.constraints]
    if type(policy) is WeightedSum:
        return {"terms": [[weight, _policy(part)] for weight, part in policy.terms], "constraints": constraints}
    if type(policy) is Then:
        parts = [_policy(policy.first), _policy(policy.second)]
        return {"then": parts, "tolerance": policy.tolerance, "constraints": constraints}
    if policy_class(policy.name) is not type(policy):
        raise TypeError(f"{policy.name} is not the name of {type(policy)}")
    options = json.loads(json.dumps(policy.changed_options))
    return {"policy": policy.name, "options": options, "constraints": constraints}


def _constraint(constraint: Constraint) -> dict[str, Any]:
    if KINDS.get(constraint.kind) is not type(constraint):
        raise TypeError(f"{constraint.kind} is not the name of {type(constraint)}")
    return {"kind": constraint.kind} | constraint.model_dump(mode="json", exclude_defaults=True)
