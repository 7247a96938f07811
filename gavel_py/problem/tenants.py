"""The tree of tenants, which own jobs and have shares of the cluster; from YAML or JSON files, mappings of the same form, or lists.

The formats are in docs/file-formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import core_schema

from gavel_py.errors import (
    Fault,
    InputError,
    check_together,
    check_type,
    faults_among,
    refuse,
    relocated_faults,
    together,
    unknown_names,
    wrong_types,
)
from gavel_py.io import reading
from gavel_py.io.names import natural_key
from gavel_py.io.records import Finite, Name, Record, check_records, repeated

Where = Callable[[tuple[str, ...]], str]
"""Returns the place of an entry, for messages, from the keys that lead to it."""

TenantPolicy = Literal["fairness", "fifo"]


def _above_zero(weight: float) -> float:
    hint = "; to give a tenant nothing, exclude each of its jobs with a Forbid constraint" if weight == 0 else ""
    check_together((weight <= 0, f"must be greater than 0, found {weight:g}{hint}"))
    return weight


class Tenant(Record):
    """A user, team or organisation with a share of the cluster.

    >>> Tenant("vision", weight=2, parent="research").policy
    'fairness'

    Attributes:
        name: Unique in the tree, as in the field `tenant` of jobs; the key in files.
        weight: Relative share among the tenants with the same parent.
        policy: `fairness` divides the share by weight among the jobs or tenants below; `fifo` gives all to the first.
        parent: Name of the tenant above; None at the top, or for the enclosing tenant in a file.
    """

    label: ClassVar[str] = "tenant"
    identifier: ClassVar[str] = "name"

    name: Name
    weight: Annotated[Finite, AfterValidator(_above_zero), "number, above 0"] = 1.0
    policy: TenantPolicy = "fairness"
    parent: Name | None = None

    def __init__(self, name: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if name is None else {"name": name}), **fields)


def tree_faults(tenants: Sequence[tuple[str, str, str | None]]) -> list[Fault]:
    """Return the faults of (where, name, parent) rows as a tree: repeated names, unknown parents, cycles."""
    first = {name: (where, parent) for where, name, parent in reversed(tenants)}
    parents = {name: first[name][1] for _, name, _ in tenants}
    unknown = [
        fault
        for where, name, parent in tenants
        if parent is not None
        for fault in unknown_names(f"{where} (tenant {name!r})", "parent", [parent], parents, "", noun="there is no tenant")
    ]
    cycles = [
        Fault(f"{first[name][0]} (tenant {name!r})", "parent", f"forms a cycle: {' -> '.join([name, *others, name])}")
        for name, *others in _cycles(parents)
    ]
    return [*repeated("tenant", "name", ((where, name) for where, name, _ in tenants)), *unknown, *cycles]


def _cycles(parents: dict[str, str | None]) -> Iterable[list[str]]:
    """Yield the names of each cycle once."""
    seen: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in seen and name not in path:
            path[name] = None
            name = parents.get(name)
        if name in path:
            names = list(path)
            yield names[names.index(name) :]
        seen.update(path)


MAX_LEVELS = 100
"""Limit on the depth of tenants; a deeper mapping contains itself."""


def _document(place: Callable[..., str], document: Any, where: Where) -> tuple[list[Tenant], TenantPolicy]:
    """Return the tenants and the policy of a document; place: returns the place of a key or the document; where: of a tenant."""
    entries = document.get("tenants") if isinstance(document, Mapping) else None
    with together() as attempt:
        head = attempt(lambda: _head(place, document))
        tenants = attempt(lambda: tenants_of(entries if isinstance(entries, Mapping) else {}, where))
    return tenants, head.policy


def _head(place: Callable[..., str], document: Any) -> _Document:
    check_type(place(), "", document, Mapping, "must be a mapping of field to value")
    with relocated_faults(lambda fault: replace(fault, where=f"{place(fault.field)} ({fault.where})")):
        return _Document(**{str(key): value for key, value in document.items()})


def tenants_of(entries: Mapping[Any, Any], where: Where = ".".join) -> list[Tenant]:
    """Return the tenants of a mapping from name to details, in which `tenants` is such a mapping again.

    Raises `InputError` with all faults of the tenants and of their tree.
    """
    found = [(where(keys), implied, details) for keys, implied, details in _entries(entries, {}, ("tenants",))]
    rows = [(place, details | implied if isinstance(details, dict) else details) for place, implied, details in found]
    text = "follows from its position in the tree; remove it"
    redundant = [
        Fault(f"{place} (tenant {implied['name']!r})", field, text)
        for place, implied, details in found
        for field in implied
        if isinstance(details, dict) and field in details
    ]
    with together() as attempt:
        attempt(lambda: InputError.raise_any(redundant))
        checked = attempt(lambda: check_records(_Entry, rows))
        named = [(place, str(row["name"]).strip(), _name(row.get("parent"))) for place, row in rows if isinstance(row, dict)]
        attempt(lambda: InputError.raise_any(tree_faults(named)))
    return [Tenant(**entry.model_dump(exclude={"tenants"})) for entry in checked]


def _entries(
    entries: Mapping[Any, Any], above: dict[str, str], keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Any]]:
    """Yield the keys that lead to each tenant, the fields that these imply, and its details; parents come first."""
    for key, given in entries.items():
        details = {} if given is None else dict(given) if isinstance(given, Mapping) else given
        yield (*keys, str(key)), {"name": key, **above}, details
        below = details.get("tenants") if isinstance(details, dict) else None
        if isinstance(below, Mapping):
            refuse(f"tenant {key!r}", (len(keys) > 2 * MAX_LEVELS, "tenants", f"is more than {MAX_LEVELS} levels below the top"))
            yield from _entries(below, {"parent": str(key).strip()}, (*keys, str(key), "tenants"))


def _name(value: object) -> str | None:
    return None if value is None else str(value).strip()


def _is_mapping(value: object) -> object:
    check_type("", "", value, Mapping, "must be a mapping from name to details")
    return value


Entries = Annotated[Any, BeforeValidator(_is_mapping)]


class _Entry(Tenant):
    """A tenant of a file, with the tenants below it."""

    tenants: Entries | None = None


class _Document(Record):
    """A file of tenants."""

    label: ClassVar[str] = "tenant tree"

    tenants: Entries
    policy: TenantPolicy = "fairness"


@dataclass(frozen=True, init=False, repr=False)
class TenantTree:
    """A tree of tenants, whose leaves own jobs.

    A tree without tenants means one tenant of weight 1 for each name that jobs have.

    >>> TenantTree.from_dict({"research": {"weight": 2, "tenants": {"vision": {}, "language": {}}}, "product": {"policy": "fifo"}})
    TenantTree(4 tenants in 2 levels)

    Args:
        tenants: The tenants, in any order.
        policy: How the tenants at the top share the cluster, "fairness" or "fifo".

    Raises:
        InputError: A name occurs twice, a parent is unknown, parents form a cycle, or the policy is unknown.
    """

    tenants: tuple[Tenant, ...]
    policy: TenantPolicy

    def __init__(self, tenants: Iterable[Tenant] = (), policy: TenantPolicy = "fairness") -> None:
        given = tuple(tenants)
        InputError.raise_any(wrong_types("tenant tree", "", given, Tenant, "must hold Tenant objects")[:1])
        faults = tree_faults([(f"entry {i}", tenant.name, tenant.parent) for i, tenant in enumerate(given, 1)])
        is_unknown = policy not in get_args(TenantPolicy)
        InputError.raise_any(
            faults + faults_among("tenant tree", (is_unknown, "policy", f"must be 'fairness' or 'fifo', found {policy!r}"))
        )
        # Sorted, so that trees which differ only in the order of tenants are equal.
        object.__setattr__(self, "tenants", tuple(sorted(given, key=lambda tenant: natural_key(tenant.name))))
        object.__setattr__(self, "policy", policy)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a tree from a file.

        Args:
            path: A YAML or JSON file; the suffix gives the format.

        Raises:
            InputError: All faults of the file, each with its place.
        """
        read = reading.document(path)
        return cls(*_document(read.line, read.value, lambda keys: read.where(*keys)))

    @classmethod
    def from_dict(cls, tenants: Mapping[str, Any], policy: TenantPolicy = "fairness") -> Self:
        """Build a tree from a mapping.

        Args:
            tenants: {name: details}; details are weight, policy, parent, and `tenants`, again such a mapping.
            policy: How the tenants at the top share the cluster.

        Raises:
            InputError: All faults of the mapping, each with its place.
        """
        return cls(tenants_of(tenants), policy)

    @classmethod
    def of(cls, source: TenantTree | Mapping[Any, Any] | Iterable[Tenant] | str | Path | None) -> TenantTree:
        """Return the tree from any of its forms.

        Args:
            source: A tree, the path of a file, tenants, None for a tree without tenants, or a mapping. A mapping is from name to
                details (`from_dict`), or has the form of a file, with such a mapping under `tenants` and a `policy`.

        Raises:
            InputError: The source has another type, or faults.
        """
        if isinstance(source, TenantTree):
            return source
        if isinstance(source, str | Path):
            return cls.from_file(source)
        if isinstance(source, Mapping):
            # A mapping is a whole file if it has the key `tenants` and no other key that could be a tenant.
            others = (details for key, details in source.items() if key != "tenants")
            if "tenants" in source and not any(details is None or isinstance(details, Mapping) for details in others):
                return cls(*_document(lambda *_: "tenants", source, ".".join))
            return cls(tenants_of(source))
        text = "must be a TenantTree, a mapping from name to details, the path of a file, or a list of tenants"
        check_type("tenant tree", "", source, Iterable | None, text)
        return cls(source or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the tenants in the form of `from_dict`, each below its parent, without default values."""
        details = {t.name: t.model_dump(exclude={"name", "parent"}, exclude_defaults=True) for t in self.tenants}
        for tenant in self.tenants:
            if tenant.parent is not None:
                details[tenant.parent].setdefault("tenants", {})[tenant.name] = details[tenant.name]
        return {tenant.name: details[tenant.name] for tenant in self.tenants if tenant.parent is None}

    @cached_property
    def parents(self) -> frozenset[str]:
        """Names of the tenants that have tenants below them, and so no jobs."""
        return frozenset(tenant.parent for tenant in self.tenants if tenant.parent is not None)

    @property
    def orders_jobs(self) -> bool:
        """Whether some tenant serves its jobs in order of arrival, so that no two jobs are equal."""
        return any(tenant.policy == "fifo" and tenant.name not in self.parents for tenant in self.tenants)

    def __repr__(self) -> str:
        above = {tenant.name: tenant.parent for tenant in self.tenants}
        level, names = 0, set(above)
        while names:
            level, names = level + 1, {parent for name in names if (parent := above[name]) is not None}
        first = f", {self.policy} at the top" if self.policy != "fairness" else ""
        return f"TenantTree({len(self.tenants)} tenants in {level} levels{first})"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        """Return the schema for options of policies: an instance, not converted."""
        return core_schema.is_instance_schema(cls)
