"""Reading constraints from YAML and JSON (docs/file-formats.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.io import reading
from gavel_py.policies.constraints.base import Constraint
from gavel_py.policies.constraints.placement import Forbid, KeepRunning, Pin, SwitchCost
from gavel_py.policies.constraints.shares import CostBudget, MaxGpus, Quota, Reserve
from gavel_py.policies.constraints.throughput import Deadline, MinThroughput

__all__ = ["KINDS", "read_constraints"]

KINDS: dict[str, type[Constraint]] = {
    cls.kind: cls for cls in (MinThroughput, Deadline, CostBudget, MaxGpus, Quota, Reserve, Pin, Forbid, KeepRunning, SwitchCost)
}
"""The constraints by the names that files give them."""

KEY = "constraints"
Where = Callable[..., str]


def read_constraints(path: str | Path) -> tuple[Constraint, ...]:
    """Return the constraints that a YAML or JSON file lists, in its order; the format is told by its suffix.

    Raises `InputError` with all faults of the file, each with its place and field.
    """
    read = reading.document(path)
    document = read.value
    if not isinstance(document, dict) or not isinstance(document.get(KEY), list):
        raise InputError(Fault(read.line(KEY), "", f"must be a mapping with the key {KEY}, which holds a list of constraints"))
    faults = [Fault(read.where(key), "", f"key {key!r} is not known; the only one is {KEY}") for key in document if key != KEY]
    found: list[Constraint] = []
    for i, entry in enumerate(document[KEY]):
        try:
            pointer = f", {KEY}[{i}]" if read.is_json else ""
            found.append(_constraint(entry, lambda *field, i=i, p=pointer: read.line(KEY, i, *field) + p))
        except InputError as error:
            faults += error.faults
    InputError.raise_any(faults)
    return tuple(found)


def _constraint(entry: Any, where: Where) -> Constraint:
    if not isinstance(entry, Mapping):
        raise InputError(Fault(where(), "", f"must be a mapping of field to value, found {entry!r}"))
    fields = {str(name): value for name, value in entry.items() if value is not None}
    kind = fields.pop("kind", None)
    if kind is None:
        raise InputError(Fault(where(), "kind", f"is required; one of {', '.join(KINDS)}"))
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError(Fault(where("kind"), "kind", f"{kind!r} is no kind of constraint{nearest(str(kind), KINDS)}"))
    if "penalty" in fields:
        raise InputError(Fault(_of(where("penalty"), cls), "penalty", "is not known; write soft"))
    if "soft" in fields:
        fields["penalty"] = fields.pop("soft")
    try:
        return cls(**fields).placed(where())
    except InputError as error:
        names = {fault: {"penalty": "soft"}.get(fault.field, fault.field) for fault in error.faults}
        raise InputError(*(Fault(_of(_line(where, names[f], entry), cls), names[f], f.problem) for f in error.faults)) from None


def _line(where: Where, field: str, entry: Mapping[Any, Any]) -> str:
    """The place of a field, or that of its constraint where the field does not stand there."""
    name = field.split(".")[0]
    return where(name) if name in entry else where()


def _of(where: str, cls: type[Constraint]) -> str:
    return f"{where} ({cls.label})"
