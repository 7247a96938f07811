"""Shapes of groups (operator x pipeline parallel): which services fit on each, and how many groups of each shape to form.

An integer program proposes lists of shapes, using the rates that one group serves at several attainments, found by simulation.
Further proposals are lists with a single shape, and lists with some groups merged or one split. `simulated_rates` finds such rates
for the profiles of plans, which count replicas of single models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gavel_py.errors import Fault, InputError, faults_among, relocated_faults
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.formulation.packings import NodeRow, node_rows
from gavel_py.optimization.solving.highs import LinearProgram, solve_whole
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import INPUT_ROUNDING
from gavel_py.serving.attainment import parts_in_time, rate_at_slo, runs_at
from gavel_py.serving.replicas import Market, Packings, packing_of
from gavel_py.serving.requests import first_arrivals
from gavel_py.serving.services import Service, ServingProfile, ServingRate, faults_of_services
from gavel_py.serving.simulation import NO_OVERHEADS, TOLERANCE_SECONDS, ModelGroup, ServingOverheads, compile_groups

ATTAINMENTS = (0.99, 0.95, 0.9, 0.75, 0.5)
"""Attainments at which the program for shapes is solved."""

MAX_LISTS = 12
"""Maximum number of lists of shapes that are tried."""

MAX_CASES = 4
"""Maximum number of cases (stage times, SLO, cv) that are simulated together, which needs some 30 MB."""

NODES = 200
"""Limit on branch-and-bound nodes of the program for shapes, whose rates are only approximate."""

GRID = np.geomspace(0.002, 1.2, 16)
"""Loads at which attainment is simulated to find rates."""


class Shape(NamedTuple):
    """A kind of group; memory_gb: memory of each of its GPUs."""

    accelerator: str
    operator_parallel: int
    pipeline_parallel: int
    memory_gb: float

    @property
    def num_gpus(self) -> int:
        """GPUs of a group."""
        return self.operator_parallel * self.pipeline_parallel


Held = tuple[int, frozenset[int]]
"""A group during the search: the index of its shape, and the indices of its services."""


@dataclass(frozen=True, eq=False)
class ShapeOptions:
    """The possible placements of S services on K shapes.

    stages: {(service, shape): seconds of each stage} of the services that fit there and can meet their SLO; memory_gb: {(service,
    shape): memory on each GPU}; gpus: {accelerator: GPUs}; nodes: {accelerator: GPUs of each node}.
    """

    services: tuple[Service, ...]
    shapes: tuple[Shape, ...]
    stages: Mapping[tuple[int, int], tuple[float, ...]]
    memory_gb: Mapping[tuple[int, int], float]
    gpus: Mapping[str, int]
    nodes: Mapping[str, tuple[int, ...]]
    _held: dict[tuple[int, ...], bool] = field(default_factory=dict)

    @property
    def weights(self) -> Floats:
        """(S,) weights of the services."""
        return np.array([service.weight for service in self.services])

    @property
    def slo_seconds(self) -> Floats:
        """(S,) SLOs, infinite without one."""
        return np.array([slo_of(service) for service in self.services])

    @cached_property
    def node_rows(self) -> tuple[tuple[list[NodeRow], Floats], ...]:
        """For each accelerator the rows of groups whose stages the nodes can hold at once, and the numbers of packings."""
        sizes, numbers = np.array([shape[1:3] for shape in self.shapes], dtype=np.intp).T
        own = {name: numbers * [shape.accelerator == name for shape in self.shapes] for name in self.nodes}
        return tuple(node_rows(name, sizes, own[name], nodes) for name, nodes in self.nodes.items())

    def hold(self, counts: Sequence[int]) -> bool:
        """Return whether the nodes can hold these numbers of groups of each shape at once, each stage on one node."""
        key = tuple(counts)
        if key not in self._held:
            self._held[key] = all(_hold(rows, most, key) for rows, most in self.node_rows)
        return self._held[key]

    def room(self, group: Held) -> float:
        """Return the free memory on each GPU of a group, in GB."""
        shape, held = group
        return self.shapes[shape].memory_gb - sum(self.memory_gb[service, shape] for service in held)

    def fits(self, service: int, group: Held) -> bool:
        """Return whether a service can be added to a group."""
        shape, held = group
        is_possible = service not in held and (service, shape) in self.stages
        return is_possible and self.memory_gb[service, shape] <= self.room(group) + INPUT_ROUNDING

    def group(self, held: Held) -> ModelGroup:
        """Return the group as input for the simulator."""
        shape, services = held
        stages = {self.services[service].name: self.stages[service, shape] for service in sorted(services)}
        return ModelGroup(stages, self.shapes[shape].operator_parallel, self.shapes[shape].accelerator)


def _hold(rows: Sequence[NodeRow], most: Floats, counts: Sequence[int]) -> bool:
    left, none = np.array([row.limit - float(row.uses @ counts) for row in rows]), np.zeros(0)
    if not len(most):
        return bool((left >= 0).all())
    packings = Packings(np.stack([row.packings for row in rows], axis=1), most)
    return packing_of(Market((), left, none, none, none, packings=packings), ()) is not None


def slo_of(service: Service) -> float:
    """Return the time in which requests of a service must end, infinite without an SLO."""
    return math.inf if service.slo_seconds is None else service.slo_seconds


def options_of(services: Sequence[Service], cluster: Cluster, profile: ServingProfile, overheads: ServingOverheads) -> ShapeOptions:
    """Return the possible placements. Raises one `InputError` with a fault for each service that does not fit anywhere."""
    cluster = cluster.known_to(profile, allow_unknown_types=True)  # type: ignore[arg-type]
    gpus = dict(zip(cluster.accelerator_names, map(int, cluster.capacities.tolist()), strict=True))
    memory = {kind.name: kind.memory_gb or math.nan for kind in cluster.accelerator_types}
    faults = faults_of_services("placement of models", services)
    shapes: dict[Shape, int] = {}
    stages, taken = {}, {}
    for number, service in enumerate(services):
        rows = [row for row in profile.rows_of(service.model) if row.stage_seconds and row.accelerator in gpus]
        simple = [row for row in rows if row.batch in (None, 1) and row.bucket is None]
        faults += _problems(service, simple, cluster, memory, overheads)
        for row in (row for row in simple if _fits(row, cluster, memory) and _keeps(service, row, overheads)):
            shape = Shape(row.accelerator, row.operator_parallel, row.pipeline_parallel, memory[row.accelerator])
            at = number, shapes.setdefault(shape, len(shapes))
            stages[at], taken[at] = row.stage_seconds, row.memory_gb or 0.0
    InputError.raise_any(list(dict.fromkeys(faults)))
    nodes = {name: tuple(node.num_gpus for node in cluster.nodes_of(name)) for name in gpus}
    return ShapeOptions(tuple(services), tuple(shapes), stages, taken, gpus, nodes)


def _problems(
    service: Service, rows: Sequence[ServingRate], cluster: Cluster, memory: Mapping[str, float], overheads: ServingOverheads
) -> list[Fault]:
    """Return why a service does not fit anywhere, nothing if it fits."""
    where, model = service.where, repr(service.model)
    has_token_slo = service.ttft_seconds is not None or service.tpot_seconds is not None
    faults = faults_among(
        where,
        (has_token_slo, "slo_seconds", "is required: times of tokens are not simulated"),
        (not rows, "model", f"{model} has no stage_seconds without batch and sizes for an accelerator of the cluster"),
        (any(row.memory_gb is None for row in rows), "model", f"the profile does not state memory_gb of {model}"),
    )
    unknown = dict.fromkeys(row.accelerator for row in rows if math.isnan(memory[row.accelerator]))
    needed = "is required in the cluster file, since models share GPUs as far as their memory allows"
    faults += [Fault(f"accelerator type {name!r}", "memory_gb", needed) for name in unknown]
    within = [row for row in rows if _fits(row, cluster, memory)]
    if faults or any(_keeps(service, row, overheads) for row in within):
        return faults
    if within:
        return [slower_than(service, min(overheads.latency(row.stage_seconds) for row in within))]
    least = min(rows, key=lambda row: (row.memory_gb or 0.0) / memory[row.accelerator])
    needs = f"{least.memory_gb:g} GB on each of {least.num_gpus} GPUs of {least.accelerator}"
    there = f"{memory[least.accelerator]:g} GB each, {cluster.largest_gang(least.accelerator):g} in the cluster"
    return [Fault(where, "model", f"{model} fits no group of GPUs: it needs at least {needs}, which have {there}")]


def _fits(row: ServingRate, cluster: Cluster, memory: Mapping[str, float]) -> bool:
    """Return whether an empty group can hold the model: each stage fits on one node, and its memory on each GPU."""
    has_node = row.operator_parallel <= cluster.largest_gang(row.accelerator, "node")
    has_gpus = row.num_gpus <= cluster.largest_gang(row.accelerator)
    return has_node and has_gpus and (row.memory_gb or 0.0) <= memory[row.accelerator] + INPUT_ROUNDING


def _keeps(service: Service, row: ServingRate, overheads: ServingOverheads) -> bool:
    return overheads.latency(row.stage_seconds) <= slo_of(service) + TOLERANCE_SECONDS


# Lists of shapes: (K,) numbers of groups of each shape.
Counts = tuple[int, ...]


def proposals(options: ShapeOptions, rates: Floats, cvs: Floats, overheads: ServingOverheads) -> list[Counts]:
    """Return up to `MAX_LISTS` lists of shapes: those of the program, those with a single shape, and neighbours of these."""
    lists = dict.fromkeys(_filled(options, counts) for counts in _programs(options, rates, cvs, overheads))
    for shape in dict.fromkeys((each.operator_parallel, each.pipeline_parallel) for each in options.shapes):
        lists[_filled(options, (0,) * len(options.shapes), shape)] = None
    found = list(lists)
    for counts in found:  # grows during the loop
        for other in _neighbours(options, counts):
            if len(found) < MAX_LISTS and other not in lists:
                lists[other] = None
                found.append(other)
    return found[:MAX_LISTS]


def _filled(options: ShapeOptions, counts: Counts, preferred: tuple[int, int] = (0, 0)) -> Counts:
    """Return the list with the remaining GPUs of each type added as groups, first of the preferred shape, then of the largest."""
    found = list(counts)
    left = dict(options.gpus)
    for shape, count in zip(options.shapes, counts, strict=True):
        left[shape.accelerator] -= count * shape.num_gpus
    order = sorted(range(len(found)), key=lambda k: (options.shapes[k][1:3] != preferred, -options.shapes[k].num_gpus, k))
    for k in order:
        shape = options.shapes[k]
        more = max(0, left[shape.accelerator]) // shape.num_gpus
        while more and not options.hold([*found[:k], found[k] + more, *found[k + 1 :]]):
            more -= 1
        found[k] += more
        left[shape.accelerator] -= more * shape.num_gpus
    return tuple(found)


def _neighbours(options: ShapeOptions, counts: Counts) -> Iterator[Counts]:
    """Yield the lists with some groups of one shape merged to one group of another, or one split."""
    for small, large, parts in merges(options):
        for sign in (1, -1):
            other = list(counts)
            other[small] -= sign * parts
            other[large] += sign
            if min(other) >= 0 and options.hold(other):
                yield tuple(other)


def merges(options: ShapeOptions) -> Iterator[tuple[int, int, int]]:
    """Yield (small, large, parts): shapes on the same type such that `parts` small groups have the GPUs of one large group."""
    for small, one in enumerate(options.shapes):
        for large, other in enumerate(options.shapes):
            is_multiple = other.num_gpus % one.num_gpus == 0
            if small != large and one.accelerator == other.accelerator and is_multiple:
                yield small, large, other.num_gpus // one.num_gpus


def _programs(options: ShapeOptions, rates: Floats, cvs: Floats, overheads: ServingOverheads) -> Iterator[Counts]:
    """Yield the list of shapes of the program for each attainment."""
    cases = {pair: (times, float(options.slo_seconds[pair[0]]), float(cvs[pair[0]])) for pair, times in options.stages.items()}
    distinct = list(dict.fromkeys(cases.values()))
    served: dict[object, list[float]] = {}
    for at in range(0, len(distinct), MAX_CASES):
        some = distinct[at : at + MAX_CASES]
        served |= zip(some, _coarse_rates(some, ATTAINMENTS, overheads), strict=True)
    table = np.zeros((len(ATTAINMENTS), len(options.services), len(options.shapes)))
    for (service, shape), case in cases.items():
        table[:, service, shape] = served[case]
    for at_slo in table:
        if at_slo.any():
            yield program_of_shapes(options, rates, at_slo)


def _coarse_rates(
    cases: Sequence[tuple[Sequence[float], float, float]], attainments: Sequence[float], overheads: ServingOverheads
) -> list[list[float]]:
    """Return the approximate rate at the SLO of one replica, for each case (stage times, SLO, cv) and attainment.

    The rate is 0 below a load of 0.2 %. Each case has 64 short runs; the runs of all cases are simulated together.
    """
    runs, tried = [], []
    for stage_seconds, slo_seconds, cv in cases:
        table = compile_groups([ModelGroup({"": tuple(stage_seconds)})], [""], overheads)
        tried.append(GRID / float(overheads.stages(stage_seconds).max()))
        limit = slo_seconds - overheads.request_seconds + TOLERANCE_SECONDS
        arrivals = first_arrivals(cv, 4_000, seeds=4)
        runs += runs_at(table, arrivals, np.tile(tried[-1], (len(arrivals), 1)), limit)
    found = []
    for rates, parts in zip(tried, parts_in_time(runs).reshape(len(cases), -1, len(GRID)), strict=True):
        falling = np.minimum.accumulate(parts.mean(axis=0))
        # np.interp needs ascending points; beyond the grid, it returns the ends.
        at = np.interp(attainments, falling[::-1], rates[::-1]).tolist()
        found.append([rate if falling[0] >= share else 0.0 for rate, share in zip(at, attainments, strict=True)])
    return found


def program_of_shapes(options: ShapeOptions, rates: Floats, at_slo: Floats) -> Counts:
    """Return the number of groups of each shape that together serve the most requests within the SLO, by weight.

    n_k groups, y_ik replicas of service i on groups of shape k, x_ik the part of its requests that they serve: maximise
    Σ w_i λ_i x_ik, with Σ_k g_k n_k <= c_j for the shapes on each type, Σ_i m_ik y_ik <= n_k (m: memory over that of the GPU),
    y_ik <= n_k, λ_i x_ik <= T_ik y_ik, Σ_i λ_i x_ik / T_ik <= n_k, Σ_k x_ik <= 1, and the rows of nodes with their packings.
    """
    pairs = [pair for pair in options.stages if at_slo[pair] > 0]
    num_shapes, count = len(options.shapes), len(pairs)
    rows: list[tuple[dict[int, float], float]] = []
    for accelerator, gpus in options.gpus.items():
        held = {k: shape.num_gpus / gpus for k, shape in enumerate(options.shapes) if shape.accelerator == accelerator}
        rows.append((held, 1.0))
    replicas = {pair: num_shapes + n for n, pair in enumerate(pairs)}
    parts = {pair: num_shapes + count + n for n, pair in enumerate(pairs)}
    for k, shape in enumerate(options.shapes):
        here = [pair for pair in pairs if pair[1] == k]
        rows.append(({replicas[pair]: options.memory_gb[pair] / shape.memory_gb for pair in here} | {k: -1.0}, 0.0))
        rows.append(({parts[pair]: rates[pair[0]] / at_slo[pair] for pair in here} | {k: -1.0}, 0.0))
    for pair in pairs:
        rows.append(({replicas[pair]: 1.0, pair[1]: -1.0}, 0.0))
        rows.append(({parts[pair]: rates[pair[0]] / at_slo[pair], replicas[pair]: -1.0}, 0.0))
    for service in range(len(options.services)):
        rows.append(({parts[pair]: 1.0 for pair in pairs if pair[0] == service}, 1.0))
    size = num_shapes + 2 * count
    upper = np.full(size, np.inf)
    for of_nodes, most in options.node_rows:
        for row in of_nodes:
            packed = zip(range(size, size + len(most)), row.packings.tolist(), strict=True)
            rows.append(({k: use for k, use in (*enumerate(row.uses.tolist()), *packed) if use}, row.limit))
        size, upper = size + len(most), np.append(upper, most)
    entries = [(column, row, value) for row, (held, _) in enumerate(rows) for column, value in held.items()]
    entries.sort()
    columns, at, values = (np.array(each) for each in zip(*entries, strict=True))
    costs = np.zeros(size)
    costs[num_shapes + count : num_shapes + 2 * count] = [-options.weights[service] * rates[service] for service, _ in pairs]
    matrix = SparseMatrix(at, columns, values.astype(float), (len(rows), size))
    limits = np.array([limit for _, limit in rows])
    program = LinearProgram(costs, 0.0, matrix, limits, 0, np.zeros(size), upper)
    places = np.arange(size)
    is_whole = (places < num_shapes + count) | (places >= num_shapes + 2 * count)
    found = solve_whole(program, is_whole, gap=1e-3, nodes=NODES)
    return (0,) * num_shapes if found is None else tuple(found.values[:num_shapes].astype(int).tolist())


def simulated_rates(
    services: Sequence[Service], profile: ServingProfile, *, overheads: ServingOverheads = NO_OVERHEADS, seeds: int = 8
) -> ServingProfile:
    """Return a profile in which rows with stage times have rates found by simulation for these services.

    A row with stage_seconds but without a rate is replaced by one row for each SLO of the services of its model, with the condition
    "slo": the rate at this SLO of one replica, at the largest attainment and cv of these services. For services without an SLO,
    there is a row with the rate of the slowest stage and the condition "offline". Rows whose latency exceeds the SLO are left out.

    Args:
        services: The services.
        profile: The profile; rows with a rate are kept.
        overheads: Time that serving adds to the stages.
        seeds: Number of seeds, as for `rate_at_slo`.

    Raises:
        InputError: A service has an SLO below the fastest latency.
        UnknownNameError: The profile lacks a model.
    """
    InputError.raise_any([fault for service in services for fault in _too_fast(service, profile, overheads)])
    rows = []
    for row in profile.rows:
        if row.requests_per_second is not None or not row.stage_seconds:
            rows.append(row)
            continue
        own = [service for service in services if service.model == row.model]
        for slo in sorted({slo_of(service) for service in own}):
            alike = [service for service in own if slo_of(service) == slo]
            found = {"requests_per_second": 1 / float(overheads.stages(row.stage_seconds).max()), "condition": "offline"}
            if slo < math.inf:
                if overheads.latency(row.stage_seconds) > slo:
                    continue
                cv, share = max(service.cv for service in alike), max(service.attainment for service in alike)
                rate = rate_at_slo(row.stage_seconds, slo, cv=cv, attainment=share, overheads=overheads, seeds=seeds).rate
                found = {"requests_per_second": rate, "condition": "slo", "slo_seconds": slo}
            rows.append(ServingRate(**row.model_dump() | found))
    return ServingProfile(profile.name, rows)


def _too_fast(service: Service, profile: ServingProfile, overheads: ServingOverheads) -> list[Fault]:
    """Return the fault of a service whose SLO no row of its model can meet, if all of these rows have only stage times."""
    with relocated_faults(lambda fault: replace(fault, where=service.where)):
        rows = profile.rows_of(service.model)
    if any(row.requests_per_second is not None for row in rows):
        return []
    fastest = min(overheads.latency(row.stage_seconds) for row in rows)
    return [] if fastest <= slo_of(service) else [slower_than(service, fastest)]


def slower_than(service: Service, fastest: float) -> Fault:
    problem = f"must be at least the fastest latency, {fastest:.6g} s, found {service.slo_seconds:g}"
    return Fault(service.where, "slo_seconds", problem)
