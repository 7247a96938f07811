"""Reading trees of tenants from YAML and JSON files, and from dictionaries of the same form (docs/file-formats.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from gavel_py.errors import Fault, InputError, together
from gavel_py.io import reading
from gavel_py.io.records import Record, check_records
from gavel_py.problem.tenant import Tenant, TenantPolicy, tree_faults

__all__ = ["mapped_tenants", "read_tenants", "tenants_of"]

MOST_LEVELS = 100
"""Tenants below tenants; deeper than that, a dictionary holds itself."""

Where = Callable[[tuple[str, ...]], str]
"""From the keys that lead to an entry to its place in the user's words."""


def read_tenants(path: str | Path) -> tuple[list[Tenant], TenantPolicy]:
    """Return the tenants of a YAML or JSON file, and the policy among those at the top."""
    read = reading.document(path)
    return _document(read.line, read.value, lambda keys: read.where(*keys))


def mapped_tenants(given: Mapping[Any, Any]) -> tuple[list[Tenant], TenantPolicy]:
    """Return the tenants of a mapping, be it what a file of tenants says or the part of it from name to details.

    It is a whole file's where it has the key `tenants` and no other key that could be a tenant beside it.
    """
    others = (details for key, details in given.items() if key != "tenants")
    if "tenants" in given and not any(details is None or isinstance(details, Mapping) for details in others):
        return _document(lambda *_: "tenants", given, ".".join)
    return tenants_of(given), "fairness"


def _document(place: Callable[..., str], document: Any, where: Where) -> tuple[list[Tenant], TenantPolicy]:
    """The tenants and the policy of a document; place: of one of its keys, or of all of it; where: of a tenant."""
    entries = document.get("tenants") if isinstance(document, Mapping) else None
    with together() as attempt:
        head = attempt(lambda: _head(place, document))
        tenants = attempt(lambda: tenants_of(entries if isinstance(entries, Mapping) else {}, where))
    return tenants, head.policy


def _head(place: Callable[..., str], document: Any) -> _Document:
    if not isinstance(document, Mapping):
        raise InputError(Fault(place(), "", f"must be a mapping of field to value, found {document!r:.60}"))
    try:
        return _Document(**{str(key): value for key, value in document.items()})
    except InputError as error:
        raise InputError(*(replace(fault, where=f"{place(fault.field)} ({fault.where})") for fault in error.faults)) from None


def tenants_of(entries: Mapping[Any, Any], where: Where = ".".join) -> list[Tenant]:
    """Return the tenants of a mapping from name to details, where `tenants` among the details is such a mapping again.

    Raises `InputError` with all that is wrong with the tenants and with the tree that they form.
    """
    found = [(where(keys), taken, details) for keys, taken, details in _entries(entries, {}, ("tenants",))]
    rows = [(place, details | taken if isinstance(details, dict) else details) for place, taken, details in found]
    with together() as attempt:
        attempt(lambda: InputError.raise_any([fault for entry in found for fault in _said_twice(*entry)]))
        checked = attempt(lambda: check_records(_Entry, rows))
        named = [(place, str(row["name"]).strip(), _name(row.get("parent"))) for place, row in rows if isinstance(row, dict)]
        attempt(lambda: InputError.raise_any(tree_faults(named)))
    return [Tenant(**entry.model_dump(exclude={"tenants"})) for entry in checked]


def _entries(
    entries: Mapping[Any, Any], above: dict[str, str], keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Any]]:
    """Yield the keys that lead to each tenant, the fields that these tell, and its details; those above come first."""
    for key, given in entries.items():
        details = {} if given is None else dict(given) if isinstance(given, Mapping) else given
        yield (*keys, str(key)), {"name": key, **above}, details
        below = details.get("tenants") if isinstance(details, dict) else None
        if isinstance(below, Mapping):
            if len(keys) > 2 * MOST_LEVELS:
                raise InputError(Fault(f"tenant {key!r}", "tenants", f"stands more than {MOST_LEVELS} levels below the top"))
            yield from _entries(below, {"parent": str(key).strip()}, (*keys, str(key), "tenants"))


def _said_twice(place: str, taken: dict[str, Any], details: Any) -> list[Fault]:
    text = "is told by where it stands; leave it out"
    return [Fault(f"{place} (tenant {taken['name']!r})", f, text) for f in taken if isinstance(details, dict) and f in details]


def _name(value: object) -> str | None:
    return None if value is None else str(value).strip()


def _is_mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping from name to details, found {value!r:.60}")
    return value


Entries = Annotated[Any, BeforeValidator(_is_mapping)]


class _Entry(Tenant):
    """A tenant of a file, with those below it."""

    tenants: Entries | None = None


class _Document(Record):
    """A file of tenants."""

    label: ClassVar[str] = "tenant tree"

    tenants: Entries
    policy: TenantPolicy = "fairness"
