"""Kueue's tree of quotas: amounts, cohorts and ClusterQueues with limits and use, and their weighted share of what they borrow.

As in Kueue's own resource_node.go and fair_sharing.go; a key of quota or use is (flavor, resource).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from gavel_py.errors import InputError

Key = tuple[str, str]
"""(flavor, resource)."""

MOST = (1 << 63) - 1
"""The largest amount: larger ones are as large as this."""

QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
FACTORS = {name: Decimal(1000) ** power for power, name in zip(range(-3, 7), [*"num", None, *"kMGTPE"], strict=True)} | {
    f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)
}


def quantity(value: object) -> Decimal:
    """Return the number of a quantity such as 8, "500m", "2k", "1e3" or "8Gi". Raises `InputError` for anything else."""
    found = QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if found is None:
        raise InputError(f"must be a quantity such as 8, 500m or 8Gi, found {value!r}")
    return Decimal(found[1] + (found[2] or "")) * FACTORS[found[3]]


def amount(resource: str, value: object) -> int:
    """Return a quantity as Kueue counts it: CPUs in thousandths, all else in units, rounded up."""
    return min(MOST, math.ceil(quantity(value) * (1000 if resource == "cpu" else 1)))


def amount_text(resource: str, value: int) -> str:
    """Return an amount as Kueue prints it: 1k for 1,000 units, 500m for half a CPU."""
    if resource == "cpu" and value % 1000:
        return f"{value}m"
    value //= 1000 if resource == "cpu" else 1
    step, names = (1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]) if resource == "memory" else (1000, ["", *"kMGTPE"])
    power = next((power for power in range(6, 0, -1) if value and value % step**power == 0), 0)
    return f"{value // step**power}{names[power]}"


class Share(NamedTuple):
    """How much a node borrows of what its parent could lend, in thousandths, of the dominant resource.

    share = ratio / weight; a node of weight 0 that borrows comes after all others. borrowed: the keys it borrows.
    """

    ratio: float
    weight: float
    dominant: str
    borrowed: frozenset[Key]

    @property
    def rank(self) -> tuple[bool, float]:
        """By which shares compare."""
        if self.weight == 0 and self.ratio > 0:
            return True, self.ratio
        return False, self.ratio / self.weight if self.ratio else 0.0

    @property
    def value(self) -> float:
        """The share, infinite for a node of weight 0 that borrows."""
        return 0.0 if not self.ratio else self.ratio / self.weight if self.weight else math.inf


class QuotaNode:
    """A cohort, or a ClusterQueue: what it is given, may borrow and must not lend, and what it uses."""

    def __init__(self, name: str, spec: Mapping[str, Any] | None = None) -> None:
        self.name, self.children = name, list[QuotaNode]()
        self.parent: QuotaNode | None = None
        self.weight, self.height = 1.0, 0
        self.nominal, self.borrowing_limit, self.lending_limit = dict[Key, int](), dict[Key, int](), dict[Key, int]()
        self.subtree, self.local, self.usage = dict[Key, int](), defaultdict[Key, int](int), defaultdict[Key, int](int)
        self.potentials = dict[Key, int]()
        if spec:
            self.take(spec)

    def take(self, spec: Mapping[str, Any]) -> None:
        """Take weight, quotas and limits from the spec of an object."""
        weight = (spec.get("fairSharing") or {}).get("weight")
        self.weight = 1.0 if weight is None else float(quantity(weight))
        for group in spec.get("resourceGroups") or []:
            for flavor in group["flavors"]:
                for resource in flavor["resources"]:
                    key, name = (flavor["name"], resource["name"]), resource["name"]
                    self.nominal[key] = amount(name, resource.get("nominalQuota") or 0)
                    for field, limits in (("borrowingLimit", self.borrowing_limit), ("lendingLimit", self.lending_limit)):
                        if resource.get(field) is not None:
                            limits[key] = amount(name, resource[field])

    def close(self) -> None:
        """Compute what follows from the quotas of the tree below: subtree(n) = nominal + sum of what children lend."""
        self.subtree = dict(self.nominal)
        for child in self.children:
            child.close()
            for key, value in child.subtree.items():
                self.subtree[key] = min(MOST, self.subtree.get(key, 0) + value - child.local[key])
        for key, limit in self.lending_limit.items():
            self.local[key] = max(0, self.subtree.get(key, 0) - limit)
        cohorts = [child.height + 1 for child in self.children if not isinstance(child, QueueNode)]
        self.height = max([*cohorts, min(len(self.children), 1)])

    def path(self) -> Iterator[QuotaNode]:
        """Yield its cohort, the cohort of that, and so on to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def root(self) -> QuotaNode:
        """The top of its tree."""
        return self if self.parent is None else self.parent.root

    def queues(self) -> Iterator[QueueNode]:
        """Yield the ClusterQueues below it: those of cohorts below first."""
        for child in self.children:
            if not isinstance(child, QueueNode):
                yield from child.queues()
        yield from (child for child in self.children if isinstance(child, QueueNode))

    def local_available(self, key: Key) -> int:
        """Return what is free of the quota that it does not lend."""
        local = self.local[key]
        return max(0, local - self.usage[key]) if local else 0

    def available(self, key: Key) -> int:
        """Return what it may still use, with what it may borrow; negative where more is used than there is."""
        if self.parent is None:
            return self.subtree.get(key, 0) - self.usage[key]
        above, local = self.parent.available(key), self.local[key]
        if key in self.borrowing_limit:
            lent = self.subtree.get(key, 0) - local - max(0, self.usage[key] - local)
            above = min(above, lent + self.borrowing_limit[key])
        return above + max(0, local - self.usage[key])

    def potential(self, key: Key) -> int:
        """Return what it could use if nobody else used anything."""
        if key not in self.potentials:
            value = self.subtree.get(key, 0)
            if self.parent is not None:
                most = value + self.borrowing_limit.get(key, MOST)
                value = min(MOST, most, self.local[key] + self.parent.potential(key))
            self.potentials[key] = value
        return self.potentials[key]

    def add(self, key: Key, value: int) -> None:
        """Count more use; at the cohort only what is beyond the quota that is not lent."""
        beyond = value - self.local_available(key)
        self.usage[key] += value
        if self.parent is not None and beyond > 0:
            self.parent.add(key, beyond)

    def remove(self, key: Key, value: int) -> None:
        """Count less use: the inverse of `add`."""
        beyond = self.usage[key] - self.local[key]
        self.usage[key] -= value
        if self.parent is not None and beyond > 0:
            self.parent.remove(key, min(value, beyond))

    def borrows(self, key: Key, more: int = 0) -> bool:
        """Return whether it would use more than its nominal quota."""
        return self.nominal.get(key, 0) < self.usage[key] + more

    def is_within_quota(self, keys: Iterable[Key]) -> bool:
        """Return whether it uses no more than its subtree has."""
        return all(self.usage[key] <= self.subtree.get(key, 0) for key in keys)

    def share(self, more: Mapping[Key, int] | None = None) -> Share:
        """Return its share, with `more` use if given: max_r 1000 borrowed_r / lendable_r, summed over flavors."""
        if self.parent is None:
            return Share(0.0, self.weight, "", frozenset())
        borrowed, keys = defaultdict[str, int](int), []
        for key, quota in self.subtree.items():
            beyond = (more or {}).get(key, 0) + self.usage[key] - quota
            if beyond > 0:
                borrowed[key[1]] += beyond
                keys.append(key)
        ratios = []
        for resource, value in borrowed.items():
            lendable = sum(self.parent.potential(key) for key in self.root.subtree if key[1] == resource)
            if lendable > 0:
                ratios.append((-value * 1000.0 / min(MOST, lendable), resource))
        ratio, dominant = min(ratios, default=(0.0, ""))
        return Share(-ratio, self.weight, dominant, frozenset(keys))


class QueueNode(QuotaNode):
    """A ClusterQueue with its rules and the workloads that hold its quota."""

    def __init__(self, name: str, spec: Mapping[str, Any]) -> None:
        super().__init__(name, spec)
        self.workloads = list[Any]()
        self.spec = spec
        self.preemption: Mapping[str, Any] = spec.get("preemption") or {}
        self.fungibility: Mapping[str, Any] = spec.get("flavorFungibility") or {}

    def policy(self, name: str) -> str:
        """Return a policy of preemption: within_queue or within the cohort; Never where none is given."""
        return self.preemption.get(name) or "Never"


def quota_tree(queues: Iterable[Mapping[str, Any]], cohorts: Iterable[Mapping[str, Any]]) -> dict[str, QueueNode]:
    """Return {name: node} of the ClusterQueues, in the tree of their cohorts; a cohort without an object is only a name."""
    named = dict[str, QuotaNode]()

    def cohort(name: str) -> QuotaNode:
        return named.setdefault(name, QuotaNode(name))

    def put(node: QuotaNode, name: str | None) -> None:
        if name:
            node.parent = cohort(name)
            node.parent.children.append(node)

    for each in cohorts:
        node, spec = cohort(each["metadata"]["name"]), each.get("spec") or {}
        node.take(spec)
        put(node, spec.get("parentName") or spec.get("parent"))
    found = {each["metadata"]["name"]: QueueNode(each["metadata"]["name"], each["spec"]) for each in queues}
    for queue in found.values():
        put(queue, queue.spec.get("cohortName") or queue.spec.get("cohort"))
    for top in (node for node in [*named.values(), *found.values()] if node.parent is None):
        top.close()
    return found
