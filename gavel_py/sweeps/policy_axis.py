"""The policies of a sweep: from names, entries and objects to what is played."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import Name, Record
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.constraints import read_constraints
from gavel_py.policies.serialization import policy_document
from gavel_py.sweeps.parts import Choice, Part
from gavel_py.sweeps.spec import Asked

__all__ = ["policy_choice", "policy_content"]


class PolicyEntry(Record):
    """An entry of `policies` that is a mapping; policy: a name, or a policy that is there already."""

    label: ClassVar[str] = "policy"
    identifier: ClassVar[str] = "policy"

    policy: Any
    options: dict[str, Any] = Field(default_factory=dict)
    constraints: list[Name] = Field(default_factory=list)
    name: Name | None = None


def policy_choice(asked: Asked, entry: Any) -> Choice:
    """Return a policy of the spec; raises `InputError` without a place."""
    name = None
    if isinstance(entry, Policy):
        policy = entry
    elif isinstance(entry, dict):
        checked = PolicyEntry(**{str(key): value for key, value in entry.items()})
        policy, name = _of_entry(asked, checked), checked.name
    else:
        policy = _of_text(entry)
    content = policy_content(policy)
    return Choice(name or policy.label, content, Part.of(policy, content))


def policy_content(policy: Policy) -> Any:
    """Return what tells a policy from others: its document, or its class, as its file is now, with its options."""
    document = policy_document(policy)
    kind = type(policy)
    if document is not None and kind.__module__.startswith("gavel_py."):
        return document
    constraints = [repr(each) for each in policy.constraints]
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "source": _source(kind),
        "label": policy.label,
        "constraints": constraints,
    }


def _of_entry(asked: Asked, entry: PolicyEntry) -> Policy:
    if not isinstance(entry.policy, str | Policy):
        raise InputError(Fault("", "policy", f"must be a name, found {entry.policy!r}"))
    policy = resolve_policy(entry.policy, **entry.options)
    constraints = [constraint for file in entry.constraints for constraint in read_constraints(asked.path(file))]
    return dataclasses.replace(policy, constraints=(*policy.constraints, *constraints)) if constraints else policy


def _of_text(text: Any) -> Policy:
    if not isinstance(text, str):
        raise InputError(
            Fault("", "", f"must be a name such as fifo or fifo,backfill=true, or a mapping with policy, found {text!r}")
        )
    name, *options = text.split(",")
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InputError(Fault("", "", f"{text!r} is not of the form NAME,OPTION=VALUE"))
        values[key.strip()] = value.strip()
    return resolve_policy(name.strip(), **values)


def _source(kind: type[Policy]) -> str | None:
    """A checksum of the file of a class, whose answers change when it does."""
    try:
        return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None  # made in a session of one's own
