"""From jobs and the tree of their tenants to the tree in which they are served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.io.names import natural_key
from gavel_py.policies.tree import ServiceTree
from gavel_py.problem.tenants import Tenant, TenantTree

__all__ = ["service_tree"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_SHOWN = 3
"""Names told of those that have the same fault."""


def service_tree(
    tree: TenantTree, tenants: Sequence[str], *, job_ids: Sequence[str], counts: Indices, weights: Floats, arrivals: Floats
) -> ServiceTree:
    """Return the tree in which G rows of equal jobs are served below their tenants; tenants without jobs take no part.

    tenants, job_ids: (G,) whose they are, and the id of one of them; counts, weights, arrivals: (G,) how many they are, and the
    weight and arrival, s, of each. A fifo tenant serves its jobs by arrival, then id, and tenants by the arrival of their first
    job, then name; its rows are of one job (`TenantTree.orders_jobs`).
    Raises `InputError` for jobs whose tenant is not in the tree, or has others below it.
    """
    InputError.raise_any(_faults(tree, tenants, job_ids, counts))
    names = [tenant.name for tenant in tree.tenants] or sorted(set(tenants), key=natural_key)
    number = {name: i for i, name in enumerate(names, 1)}  # the root is 0
    known: dict[str, Tenant] = {tenant.name: tenant for tenant in tree.tenants}
    parents = np.array([-1, *(number.get(known[name].parent or "", 0) if name in known else 0 for name in names)])
    is_fifo = np.array([tree.policy == "fifo", *(name in known and known[name].policy == "fifo" for name in names)])
    leaves = np.array([number[name] for name in tenants], dtype=np.int64)
    return ServiceTree(
        counts=counts,
        weights=weights,
        ranks=_ranks(arrivals, job_ids, is_fifo[leaves]),
        leaves=leaves,
        parents=parents,
        node_weights=[1.0, *(known[name].weight if name in known else 1.0 for name in names)],
        node_ranks=_ranks(_first_arrivals(parents, leaves, arrivals), ["", *names], np.ones(len(parents), dtype=bool)),
        is_fifo=is_fifo,
    )


def _faults(tree: TenantTree, tenants: Sequence[str], job_ids: Sequence[str], counts: Indices) -> list[Fault]:
    names = [tenant.name for tenant in tree.tenants if tenant.name not in tree.parents]
    right = set(names)
    wrong: dict[str, list[int]] = {}
    for row, name in enumerate(tenants if names else ()):
        if name not in right:
            wrong.setdefault(name, []).append(row)
    # Rows come in the order of classes, which says nothing to a person.
    if len(wrong) > 1 and not right.intersection(tenants) and not tree.parents.intersection(tenants):
        theirs = ", ".join(map(repr, _first(wrong))) + (", ..." if len(wrong) > MOST_SHOWN else "")
        return [Fault("jobs", "tenant", f"no job is of a tenant in the tree: theirs are {theirs}{nearest('', names)}")]
    ordered = sorted(wrong, key=lambda name: natural_key(_first(job_ids[row] for row in wrong[name])[0]))
    return [Fault(_who(wrong[name], job_ids, counts), "tenant", _problem(tree, name, names)) for name in ordered]


def _first(names: Iterable[str]) -> list[str]:
    return nsmallest(MOST_SHOWN, names, key=natural_key)


def _who(rows: list[int], job_ids: Sequence[str], counts: Indices) -> str:
    first = _first(job_ids[row] for row in rows)
    others = int(counts[rows].sum()) - len(first)
    return ("job " if len(first) == 1 else "jobs ") + ", ".join(map(repr, first)) + (f" and {others} more" if others else "")


def _problem(tree: TenantTree, name: str, names: list[str]) -> str:
    if name in tree.parents:
        below = ", ".join(repr(tenant.name) for tenant in tree.tenants if tenant.parent == name)
        return f"{name!r} has tenants below it, and only those can have jobs: {below}, or another one for these jobs"
    return f"{name!r} is not in the tenant tree{nearest(name, names)}" if name else f"is empty{nearest('', names)}"


def _first_arrivals(parents: Indices, leaves: Indices, arrivals: Floats) -> Floats:
    """(M,) when the first job at or below each node came, infinite if there is none."""
    first = np.full(len(parents), np.inf)
    np.minimum.at(first, leaves, arrivals)
    before = np.zeros_like(first)
    while not np.array_equal(first, before):
        before = first.copy()
        np.minimum.at(first, parents[1:], before[1:])
    return first


def _ranks(arrivals: Floats, names: Sequence[str], which: NDArray[np.bool_]) -> Floats:
    """A number for each of those where the mask holds: 0, 1, ... by arrival, then name."""
    ranks = np.zeros(len(arrivals))
    rows = np.flatnonzero(which)
    if len(np.unique(arrivals[rows])) < len(rows):  # names take long to compare
        rows = np.array(sorted(rows.tolist(), key=lambda row: natural_key(names[row])), dtype=np.int64)
    ranks[rows[np.argsort(arrivals[rows], kind="stable")]] = np.arange(len(rows))
    return ranks
