"""The policies that come with gavel_py, by name, and policies built from a name and options."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.policies.base import Policy

__all__ = ["PolicyOption", "policy_class", "policy_names", "policy_options", "resolve_policy"]

# One module per policy, of the policy's name; the class has the same name in CamelCase.
NAMES = ("max_min_fairness", "max_total_throughput", "min_makespan", "finish_time_fairness", "shortest_job_first", "fifo")


@dataclasses.dataclass(frozen=True)
class PolicyOption:
    """One option of a policy: its name, type, default and one line of explanation."""

    name: str
    type: Any
    default: Any
    help: str


def policy_names() -> tuple[str, ...]:
    """Return the names of the built-in policies."""
    return NAMES


def policy_class(name: str) -> type[Policy]:
    """Return the class of the built-in policy of this name; raises `UnknownNameError` with the nearest names."""
    if name not in NAMES:
        raise UnknownNameError(f"there is no policy {name!r}{nearest(name, NAMES)}")
    module = importlib.import_module(f"gavel_py.policies.{name}")
    found: type[Policy] = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return found


def policy_options(cls: type[Policy]) -> dict[str, PolicyOption]:
    """Return the options of a policy class by name, in the order in which they are declared."""
    types = typing.get_type_hints(cls)
    return {
        f.name: PolicyOption(f.name, types[f.name], f.default, f.metadata.get("help", ""))
        for f in dataclasses.fields(cls)
        if f.init
    }


def resolve_policy(policy: str | Policy, **options: Any) -> Policy:
    """Return the policy object of a name with options, or a policy object as it is (changed by options, if any).

    Option values may be text, as from a command line ("true", "0.5").
    Raises `UnknownNameError` for an unknown policy or option and `InputError` for a value of the wrong type.
    """
    if isinstance(policy, str):
        cls = policy_class(policy)
        return cls(**_checked(cls, policy, options))
    if not isinstance(policy, Policy):
        hint = " (this is a class; call it to make one)" if inspect.isclass(policy) else ""
        raise InputError(f"a policy must be a name or a Policy object, found {policy!r}{hint}")
    return dataclasses.replace(policy, **_checked(type(policy), policy.name, options)) if options else policy


def _checked(cls: type[Policy], name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = policy_options(cls)
    unknown = [Fault(f"policy {name}", "", f"there is no option {o!r}{nearest(o, known)}") for o in options if o not in known]
    if unknown:
        raise UnknownNameError(*unknown)
    values, faults = {}, []
    for option, value in options.items():
        try:
            values[option] = TypeAdapter(known[option].type).validate_python(value)
        except ValidationError:
            text = f"must be {type_words(known[option].type)}, found {value!r}"
            faults.append(Fault(f"policy {name}", f"option {option}", text))
    InputError.raise_any(faults)
    return values


def type_words(kind: Any) -> str:
    """Return an option's type in words, as in "true or false" or "'remaining' or 'total'"."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(kind))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    parts = typing.get_args(kind) or (kind,)
    return " or ".join(words.get(part, getattr(part, "__name__", str(part))) for part in parts)
