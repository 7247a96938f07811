"""What if the cluster were another one: changes of a cluster, and figures of the allocations of several clusters side by side.

`changed_problem` applies changes of GPUs and nodes, `ClusterComparison` compares the answers. The normalisers are those of the
unchanged cluster for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Literal, NamedTuple

import numpy as np

from gavel_py.allocation.accounting import known_sum
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver, solve
from gavel_py.errors import check_known, refuse
from gavel_py.io.tabular import Quantity
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.nodes import Node
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import PROOF_TOLERANCE
from gavel_py.report.measures import counted
from gavel_py.report.metrics import METRICS


class GpuChange(NamedTuple):
    """A change of the number of GPUs or nodes of a type.

    Attributes:
        accelerator: The type.
        sign: "+" adds, "-" removes, "=" sets.
        number: How many.
        unit: What is counted.
        node_gpus: GPUs of each node, None if all nodes of the type have the same number.
    """

    accelerator: str
    sign: str
    number: int
    unit: Literal["GPUs", "nodes"] = "GPUs"
    node_gpus: int | None = None

    def applied(self, before: float) -> float:
        """Return the number after the change. Raises `InputError` if it removes more than there are."""
        after = {"+": before + self.number, "-": before - self.number, "=": float(self.number)}[self.sign]
        removed = f"removes {counted(self.number, self.unit.removesuffix('s'))} of {self.accelerator}"
        refuse("", (after < 0, "", f"{removed}, but there {'is' if before == 1 else 'are'} only {before:g}"))
        return after

    def after(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes after the change. GPUs of a type without nodes are on nodes as those of `Cluster.from_counts`.

        New nodes copy the first one of the type with that number of GPUs; the last are removed.

        Raises:
            InputError: It removes more nodes than there are, or nodes of the type differ and it does not say of which size.
        """
        name = self.accelerator
        if self.unit == "GPUs":
            return [*nodes, *Cluster.from_counts({name: int(self.applied(0))}).nodes]
        sizes = sorted({node.num_gpus for node in nodes if node.accelerator == name})
        found = f"nodes of {name} have {' or '.join(map(str, sizes))} GPUs" if sizes else f"there are no nodes of {name}"
        example = f"{name}{self.sign}{self.number}nodes/{sizes[-1] if sizes else 8}"
        is_open = self.node_gpus is None and len(sizes) != 1
        refuse("", (is_open, "", f"{found}; add the GPUs per node, as in {example}"))
        size = sizes[0] if self.node_gpus is None else self.node_gpus
        own = [node for node in nodes if (node.accelerator, node.num_gpus) == (name, size)]
        wanted = int(self.applied(len(own)))
        gone, taken = {node.name for node in own[wanted:]}, {node.name for node in nodes}
        names = (new for i in count() if (new := f"{name}-new-{i}") not in taken)
        model = own[0] if own else Node(name=name, accelerator=name, num_gpus=size)
        added = [model.model_copy(update={"name": next(names)}) for _ in range(wanted - len(own))]
        return [*(node for node in nodes if node.name not in gone), *added]


class NodesDown(NamedTuple):
    """Nodes that are down, by name."""

    nodes: tuple[str, ...]

    def after(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the other nodes. Raises `UnknownNameError` if there is no such node."""
        check_known("", "", self.nodes, [node.name for node in nodes], "is not a node of this cluster")
        return [node for node in nodes if node.name not in self.nodes]


def changed_problem(
    problem: AllocationProblem,
    cluster: Cluster,
    changes: Sequence[GpuChange | NodesDown],
    build: Callable[[Cluster], AllocationProblem],
) -> AllocationProblem:
    """Return the problem of a changed cluster, with the same normalisers.

    Added nodes can hold gangs, like the nodes of the cluster. Added GPUs are not on any node, so that jobs can run where they could
    run before; those of a type without nodes are on nodes of their own.

    Args:
        problem: The problem of the cluster as it is.
        cluster: The cluster, with the types that changes add.
        changes: In order, each of another type or of other nodes.
        build: Returns the problem of the same jobs on another cluster.

    Raises:
        InputError: A change does not fit the cluster.
    """
    on_nodes = [
        each for each in changes if not isinstance(each, GpuChange) or each.unit == "nodes" or not cluster.nodes_of(each[0])
    ]
    if on_nodes:
        nodes = list(cluster.nodes)
        for change in on_nodes:
            nodes = change.after(nodes)
        there = build(Cluster(nodes, cluster.accelerator_types))
        shares = dict(zip(problem.accelerator_types, problem.share_capacities.tolist(), strict=True))
        problem = replace(there, share_capacities=np.array([shares.get(name, 0.0) for name in there.accelerator_types]))
    of_gpus = [each for each in changes if isinstance(each, GpuChange) and each not in on_nodes]
    gpus = dict(zip(problem.accelerator_types, problem.capacities.tolist(), strict=True))
    for each in of_gpus:
        gpus[each.accelerator] = each.applied(gpus[each.accelerator])
    return problem.with_capacities(list(gpus.values())) if of_gpus else problem


Values = tuple[float | None, ...]

Clusters = Mapping[str, tuple[AllocationProblem, Allocation]]
"""{name of a cluster: the problem of the jobs on it, and its allocation}; the first is the cluster as it is."""


@dataclass(frozen=True)
class ClusterMeasure:
    """A figure of each of several clusters.

    Attributes:
        name: Its key in files.
        title: Its name in tables.
        values: One for each cluster, that of the cluster as it is first; None if unknown.
        quantity: What it measures.
        meaning: What it is, for legends; "" if the title says it.
        tenant: The tenant that it concerns; None for a figure of all jobs.
        of: What the values are a number of, such as the number of all deadlines; None for other figures.
        is_comparable: Whether the values are of the same jobs.
    """

    name: str
    title: str
    values: Values
    quantity: Quantity = "number"
    meaning: str = ""
    tenant: str | None = None
    of: int | None = None
    is_comparable: bool = True

    @property
    def changes(self) -> Values:
        """For each cluster, the change of the value since the first, as a part of it; None if unknown or not comparable."""
        first = self.values[0] if self.is_comparable and self.quantity != "count" else None
        return tuple(None if value is None or not first else (value - first) / abs(first) for value in self.values)


class NextLevel(NamedTuple):
    """What the worst-off of the jobs that could run faster has if `water_filling` divides what `max_min_fairness` leaves open.

    Attributes:
        value: The least of their levels, None if all jobs run as fast as they can.
        levels: (N,) s_i v_i / w_i of all jobs.
    """

    value: float | None
    levels: Floats

    @classmethod
    def of(cls, problem: AllocationProblem, solver: Solver) -> NextLevel:
        """Solve the problem by water-filling, with the settings of a solver."""
        options: dict[str, Any] = {"merge_tolerance": solver.merge_tolerance, "time_limit_seconds": solver.time_limit_seconds}
        filled = solve(problem, "water_filling", sharing=solver.sharing, **options)
        levels = problem.num_gpus * filled.normalized_throughputs / problem.weights
        could = problem.runnable.any(axis=1) & (filled.throughputs < problem.fastest * (1 - PROOF_TOLERANCE))
        return cls(float(levels[could].min()) if could.any() else None, levels)


def limiting_jobs(allocation: Allocation, problem: AllocationProblem) -> list[int]:
    """Return the rows of the jobs that limit max-min fairness because they cannot run faster, although others could.

    Args:
        allocation: Of any policy; under others than `max_min_fairness` without constraints there are no such jobs.
        problem: The problem that was solved.
    """
    if allocation.policy != "max_min_fairness" or allocation.objective_value is None or allocation.constraints:
        return []
    levels = allocation.normalized_throughputs * problem.num_gpus / problem.weights
    fastest = allocation.throughputs >= problem.fastest * (1 - PROOF_TOLERANCE)
    served = problem.runnable.any(axis=1)
    limited = served & fastest & (levels <= allocation.objective_value * (1 + PROOF_TOLERANCE))
    return [] if fastest[served & ~limited].all() else np.flatnonzero(limited).tolist()


@dataclass(frozen=True)
class ClusterComparison:
    """Figures of the allocations of several clusters for the same jobs, with the normalisers of the first cluster.

    Attributes:
        clusters: The names of the clusters; the first is the cluster as it is.
        measures: The figures: objective, speeds, deadlines, end, costs, tenants, and numbers of jobs that gain and lose.
        unpriced: {cluster: the types in use without a price}, if others have one, so that costs are unknown.
        next_levels: For each cluster, if jobs that have all that they can use limit the objective; else empty. Such an objective
            stays the same whatever is added.
    """

    clusters: tuple[str, ...]
    measures: tuple[ClusterMeasure, ...]
    unpriced: Mapping[str, tuple[str, ...]]
    next_levels: tuple[NextLevel, ...] = ()

    @classmethod
    def of(cls, clusters: Clusters, solver: Solver) -> ClusterComparison:
        """Compare allocations of the same jobs on several clusters.

        Args:
            clusters: {name: (problem, allocation)}, that of the cluster as it is first.
            solver: What solved them.
        """
        problem, now = next(iter(clusters.values()))
        found = [allocation for _, allocation in clusters.values()]
        is_limited = any(limiting_jobs(allocation, each) for each, allocation in clusters.values())
        changed = set(now.options) - {"efficiency"}
        levels = tuple(NextLevel.of(each, solver) for each, _ in clusters.values()) if is_limited and not changed else ()
        gpus = ClusterMeasure("gpus", "GPUs", tuple(float(each.capacities.sum()) for each, _ in clusters.values()), "count")
        measures = (gpus, *_of_all(problem, found, levels), *_of_tenants(problem, found), *_of_changes(found))
        unpriced = {name: _unpriced(*each) for name, each in clusters.items()}
        return cls(tuple(clusters), measures, {name: types for name, types in unpriced.items() if types}, levels)

    @property
    def notes(self) -> list[str]:
        """What the figures mean, as far as their titles do not say it."""
        named = {each.meaning: each.title if each.tenant is None else "vs. its share" for each in self.measures if each.meaning}
        return [f"{name}: {meaning}" for meaning, name in named.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the names of the clusters and the figures as plain data."""
        measures = [asdict(each) | {"values": list(each.values), "changes": list(each.changes)} for each in self.measures]
        return {
            "clusters": list(self.clusters),
            "measures": measures,
            "unpriced": {name: list(types) for name, types in self.unpriced.items()},
        }


def _unpriced(problem: AllocationProblem, allocation: Allocation) -> tuple[str, ...]:
    """Return the types in use without a price, none if all are."""
    unknown = np.isnan(problem.prices_per_hour)
    used = ((allocation.utilization > 0) & unknown).nonzero()[0] if not unknown.all() else ()
    return tuple(problem.accelerator_types[j] for j in used)


NEXT_LEVEL = "what the worst-off of the jobs that could run faster has if -p water_filling divides the rest"
SPEED = "1 is always on the mix of GPUs of the cluster as it is, for all clusters"
SHARE = "1 is the work of the tenant's share of the cluster as it is, for all clusters"
END = "at these speeds, without new arrivals; sooner as others leave"
NO_END = "; none if a job gets no GPU time (gavel rounds --until-done)"


def _of_all(problem: AllocationProblem, found: Sequence[Allocation], levels: Sequence[NextLevel]) -> Iterator[ClusterMeasure]:
    """Yield the figures of all jobs together."""
    metrics, forecasts = [each.metrics() for each in found], [each.forecast() for each in found]

    def metric(name: str, quantity: Quantity = "number", meaning: str = "") -> ClusterMeasure:
        return ClusterMeasure(name, METRICS[name].title, tuple(each.get(name) for each in metrics), quantity, meaning)

    yield metric("objective")
    if levels:
        values = tuple(each.value for each in levels)
        yield ClusterMeasure("next_level", "next level", values, meaning=NEXT_LEVEL, is_comparable=False)
    yield metric("total_normalized_throughput")
    yield metric("least_normalized_throughput", meaning=SPEED)
    idle = tuple(float((~each.time_fractions.any(axis=1)).sum()) for each in found)
    if any(idle):
        yield ClusterMeasure("idle", "jobs without GPU time", idle, "count")
    if due := forecasts[0].deadlines.all:
        yield ClusterMeasure("deadlines_met", "deadlines met", tuple(each.deadlines.met for each in forecasts), "count", of=due)
    priced = any("cost_per_hour" in each for each in metrics)
    if priced:
        yield metric("cost_per_hour", "money")
    known = ~np.isnan(problem.steps_remaining)
    if known.any():
        ends = tuple(known_sum(each.end_seconds[known].max(keepdims=True)) for each in forecasts)  # None if a job waits
        endless = f"; {counted(int((~known).sum()), 'job')} with unknown steps left out" if not known.all() else ""
        meaning = f"{END}{endless}{NO_END if None in ends else ''}"
        yield ClusterMeasure("end_seconds", "last job ends in", ends, "time", meaning)
        costs = tuple(known_sum(each.cost_until_done[known]) for each in forecasts)
        yield from [ClusterMeasure("cost_until_done", "cost until then", costs, "money")] if priced else ()


def _of_tenants(problem: AllocationProblem, found: Sequence[Allocation]) -> Iterator[ClusterMeasure]:
    """Yield for each tenant Σ s_i v_i / (φ C): the work of its jobs over that of its share φ of the first cluster, of C GPUs."""
    totals = [float(problem.num_gpus @ each.normalized_throughputs) for each in found]
    tenants = [{each.tenant: each for each in allocation.tenants()} for allocation in found]
    for name, first in tenants[0].items():
        share = first.share * float(problem.share_capacities.sum())
        parts = zip(totals, (each[name].throughput_share for each in tenants), strict=True)
        values = tuple(None if part is None or not share else total * part / share for total, part in parts)
        yield ClusterMeasure("work_over_share", f"{name or '(none)'} vs. its share", values, meaning=SHARE, tenant=name)


def _of_changes(found: Sequence[Allocation]) -> Iterator[ClusterMeasure]:
    """Yield the numbers of jobs whose speed rises, and of those whose speed falls."""
    first, *others = (each.normalized_throughputs for each in found)
    for name, sign in (("gain", 1), ("lose", -1)):
        numbers = (float((sign * (speeds - first) > PROOF_TOLERANCE).sum()) for speeds in others)
        yield ClusterMeasure(name, f"jobs that {name}", (None, *numbers), "count")
