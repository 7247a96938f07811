"""Tenants: who the jobs belong to, and what share each is owed; they form a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from gavel_py.errors import Fault, nearest
from gavel_py.io.records import Finite, Name, Record, repeated

__all__ = ["Tenant", "TenantPolicy", "tree_faults"]

TenantPolicy = Literal["fairness", "fifo"]


def _above_zero(weight: float) -> float:
    if weight == 0:
        raise ValueError(
            "must be greater than 0, found 0; to give a tenant nothing, leave each of its jobs out with a Forbid constraint"
        )
    if weight < 0:
        raise ValueError(f"must be greater than 0, found {weight:g}")
    return weight


class Tenant(Record):
    """A user, team or organisation: its share, and how those below it share that.

    name: unique in the whole tree; weight: a tenant of weight 2 is owed twice as much as one of weight 1 beside it;
    policy: "fairness" shares by weight among the jobs of the tenant, or the tenants below it, "fifo" gives all to the first;
    parent: the tenant above it, None at the top.

    >>> Tenant("vision", weight=2, parent="research").policy
    'fairness'
    """

    label: ClassVar[str] = "tenant"
    identifier: ClassVar[str] = "name"

    name: Name
    weight: Annotated[Finite, AfterValidator(_above_zero)] = 1.0
    policy: TenantPolicy = "fairness"
    parent: Name | None = None

    def __init__(self, name: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if name is None else {"name": name}), **fields)


def tree_faults(tenants: Sequence[tuple[str, str, str | None]]) -> list[Fault]:
    """Return what keeps (where, name, parent) rows from being a tree: names that stand twice, unknown parents, circles."""
    first = {name: (where, parent) for where, name, parent in reversed(tenants)}
    parents = {name: first[name][1] for _, name, _ in tenants}
    unknown = [
        Fault(f"{where} (tenant {name!r})", "parent", f"there is no tenant {parent!r}{nearest(parent, parents)}")
        for where, name, parent in tenants
        if parent is not None and parent not in parents
    ]
    circles = [
        Fault(f"{first[name][0]} (tenant {name!r})", "parent", f"goes round in a circle: {' -> '.join([name, *others, name])}")
        for name, *others in _circles(parents)
    ]
    return [*repeated("tenant", "name", ((where, name) for where, name, _ in tenants)), *unknown, *circles]


def _circles(parents: dict[str, str | None]) -> Iterable[list[str]]:
    """Each circle of names once, from the first of its names on."""
    seen: set[str] = set()
    for start in parents:
        way: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in seen and name not in way:
            way[name] = None
            name = parents.get(name)
        if name in way:
            names = list(way)
            yield names[names.index(name) :]
        seen.update(way)
