"""The tree of tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, get_args

from pydantic_core import core_schema

from gavel_py.errors import Fault, InputError
from gavel_py.io.names import natural_key
from gavel_py.problem.files import mapped_tenants, read_tenants, tenants_of
from gavel_py.problem.tenant import Tenant, TenantPolicy, tree_faults

__all__ = ["Tenant", "TenantTree"]


@dataclass(frozen=True, init=False, repr=False)
class TenantTree:
    """Tenants below tenants; `policy` is how those without a parent share.

    Jobs belong to tenants that have no others below them. A tree without tenants stands for one of all names found among the
    jobs, with weight 1 each. Raises `InputError` for names that stand twice, unknown parents, circles and an unknown policy.

    >>> TenantTree.from_dict({"research": {"weight": 2, "tenants": {"vision": {}, "language": {}}}, "product": {"policy": "fifo"}})
    TenantTree(4 tenants in 2 levels)
    """

    tenants: tuple[Tenant, ...]
    policy: TenantPolicy

    def __init__(self, tenants: Iterable[Tenant] = (), policy: TenantPolicy = "fairness") -> None:
        given = tuple(tenants)
        strange = [Fault("tenant tree", "", f"must hold Tenant objects, found {t!r}") for t in given if not isinstance(t, Tenant)]
        InputError.raise_any(strange[:1])
        faults = tree_faults([(f"entry {i}", tenant.name, tenant.parent) for i, tenant in enumerate(given, 1)])
        if policy not in get_args(TenantPolicy):
            faults.append(Fault("tenant tree", "policy", f"must be 'fairness' or 'fifo', found {policy!r}"))
        InputError.raise_any(faults)
        # The order of tenants says nothing, so trees that differ in it are equal.
        object.__setattr__(self, "tenants", tuple(sorted(given, key=lambda tenant: natural_key(tenant.name))))
        object.__setattr__(self, "policy", policy)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a tree from YAML or JSON, told apart by the file's suffix."""
        return cls(*read_tenants(path))

    @classmethod
    def from_dict(cls, tenants: Mapping[str, Any], policy: TenantPolicy = "fairness") -> Self:
        """Build a tree from a mapping of name to details: weight, policy, parent, and `tenants`, again such a mapping."""
        return cls(tenants_of(tenants), policy)

    @classmethod
    def of(cls, source: TenantTree | Mapping[Any, Any] | Iterable[Tenant] | str | Path | None) -> TenantTree:
        """Return the tree that is meant: itself, a file's, a mapping's, one of these tenants, or one without any.

        A mapping goes from name to details (`from_dict`), or says what a file would: the same under `tenants`, and a `policy`.
        """
        if isinstance(source, TenantTree):
            return source
        if isinstance(source, str | Path):
            return cls.from_file(source)
        if isinstance(source, Mapping):
            return cls(*mapped_tenants(source))
        if source is not None and not isinstance(source, Iterable):
            text = (
                f"must be a TenantTree, a mapping from name to details, the path of a file, or a list of tenants, found {source!r}"
            )
            raise InputError(Fault("tenant tree", "", text))
        return cls(source or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the tenants as `from_dict` takes them, each below its parent, without what is default."""
        details = {t.name: t.model_dump(exclude={"name", "parent"}, exclude_defaults=True) for t in self.tenants}
        for tenant in self.tenants:
            if tenant.parent is not None:
                details[tenant.parent].setdefault("tenants", {})[tenant.name] = details[tenant.name]
        return {tenant.name: details[tenant.name] for tenant in self.tenants if tenant.parent is None}

    @cached_property
    def parents(self) -> frozenset[str]:
        """The names of tenants that have others below them, and so no jobs of their own."""
        return frozenset(tenant.parent for tenant in self.tenants if tenant.parent is not None)

    @property
    def orders_jobs(self) -> bool:
        """Whether some tenant serves its jobs in order of arrival, so that no two of them are equal."""
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
        """As an option of a policy it is taken as it is."""
        return core_schema.is_instance_schema(cls)
