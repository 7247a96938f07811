"""Cutting planes: rows on what nodes and GPUs can deliver, added to a program if its answer breaks them.

Whole gangs (`gang_rows`, `placement_rows`): at any one time a type runs a pattern, n_s gangs of each size s with Σ_s s·n_s <= c_j.
In the long run it runs a mix of patterns, λ_p >= 0 of the time with Σ_p λ_p <= 1, in which each job holds at most one place at a
time. So the k jobs of size s with the most time on the type can have no more than Σ_p λ_p·min(k, n_sp) together, for every k, and
these inequalities suffice for one type by itself. If no mix delivers the time fractions of a type, the dual values of the linear
program that searches for one (`mixes`) are a row that all deliverable allocations satisfy and these fractions break. For gangs that
must stay on one node or rack, gangs of at least d GPUs take Σ_s ⌊s/d⌋·n_s of the Σ_v ⌊m_v/d⌋ places of d GPUs there. If gangs are
small relative to a type, there are too many patterns, and a row would make little difference.

Fractions of GPUs (`fraction_rows`): let f be a dual feasible function, f(s_1) + f(s_2) + ... <= 1 whenever s_1 + s_2 + ... <= 1. At
any one time a GPU holds jobs whose fractions sum to at most 1, or belongs to a whole gang, so that Σ_i f(s_i) X_ij <= c_j with
f(s) = s for whole gangs, wherever the jobs are. Such functions are

    cut_λ(s) = 0 below λ, 1 above 1 - λ, and s between, for 0 < λ <= 1/2:  beside a large job, only small jobs fit;
    part_k(s) = s if (k+1) s is whole, otherwise ⌊(k+1) s⌋ / k:  at most k jobs above 1/(k+1) fit,

and their compositions (Martello and Toth, 1990; Fekete and Schepers, 2001). The same holds for the parts of the GPU's memory that
jobs take instead of their fractions.

CPUs and host memory (`node_rows`) are rows from the start. `type_rows` returns the broken rows of gangs and fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.formulation.linear_rows import Load
from gavel_py.optimization.formulation.mixes import LEAST_EXCESS, ONE_EACH, Group, group_of, row_of_patterns
from gavel_py.optimization.formulation.packings import packing_rows
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.from_jobs import Hosts
from gavel_py.problem.pair_throughputs import PlacementSpeeds
from gavel_py.problem.problem import AllocationProblem

NO_SECOND: Mapping[int, int] = MappingProxyType({})

SCOPES: tuple[Literal["node", "rack"], ...] = ("node", "rack")
"""The localities that keep a gang together, the narrowest first."""

MOST_PATTERNS = 1000

SMALL = 16
"""Patterns are enumerated for types with less than this multiple of the GPUs of their largest gang."""


def gang_rows(problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH) -> list[Load]:
    """Return rows that all deliverable allocations satisfy and (N, K') `fractions` break, at most one for each type.

    columns: {j: {column: part of its GPUs that a gang has there}} of the types with several columns (`Columns.columns_of`). There
    are no rows for a problem that was not built from a cluster.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    found = (
        _row_of(problem, hosts, _together(problem, hosts, fractions, columns.get(j, {j: 1.0})), j) for j in range(len(hosts.cpus))
    )
    return [row for row in found if row is not None]


def placement_rows(problem: AllocationProblem, fractions: Floats, second: Mapping[int, int] = NO_SECOND) -> list[Load]:
    """Return such rows for types on which no packing places gangs consolidated or spread as their columns demand.

    In a column for the consolidated placement, a gang must stay on a node, or in a rack, that can hold it. second: {type: the
    column of the slower placement}.
    """
    hosts = problem.hosts
    if hosts is None or hosts.speeds is None:
        return []
    types = np.flatnonzero(hosts.speeds.differ.any(axis=0)).tolist()
    entries_of = {j: _by_placement(problem, hosts, hosts.speeds, fractions, j, second.get(j)) for j in types}
    found = (_row_of(problem, hosts, entries, j) for j, entries in entries_of.items())
    return [row for row in found if row is not None]


@dataclass(frozen=True, eq=False)
class _Entries:
    """Requested times on one type: M entries, each a job with a locality.

    able: (M,) entries that may have time; columns: for each of equally long parts of the entries, the columns of the problem that
    they stand for, with the factor of a coefficient there.
    """

    jobs: Indices
    able: Mask
    times: Floats
    localities: NDArray[np.str_]
    columns: tuple[Mapping[int, float], ...]

    def loads(self, coefficients: Floats, num_jobs: int) -> dict[int, Floats]:
        """Return (M,) coefficients as {column: (N,) coefficients of the jobs}."""
        parts = np.split(np.arange(len(self.jobs)), len(self.columns))
        by_column: dict[int, Floats] = {}
        for part, columns in zip(parts, self.columns, strict=True):
            load = np.zeros(num_jobs)
            load[self.jobs[part]] = coefficients[part]
            by_column |= {column: load * weight for column, weight in columns.items()}
        return by_column


def _together(problem: AllocationProblem, hosts: Hosts, fractions: Floats, columns: Mapping[int, float]) -> _Entries:
    """Return all time on a type, with gangs anywhere within their locality."""
    these = list(columns)
    times: Floats = fractions[:, these] @ np.array(list(columns.values()))
    able = np.asarray(problem.runnable[:, these].any(axis=1))
    return _Entries(np.arange(len(times)), able, times, hosts.localities, (columns,))


def _by_placement(
    problem: AllocationProblem, hosts: Hosts, speeds: PlacementSpeeds, fractions: Floats, j: int, second: int | None
) -> _Entries:
    """Return the time in both placements; consolidated gangs have the narrowest locality that can hold them."""
    narrow = _narrowed(problem.num_gpus, hosts, j)
    differ, apart = speeds.differ[:, j], speeds.spread_is_faster[:, j]
    faster = np.where(differ & ~apart, narrow, hosts.localities)
    jobs = np.arange(len(faster))
    if second is None:
        return _Entries(jobs, problem.runnable[:, j], fractions[:, j], faster, ({j: 1.0},))
    slower, columns = np.where(apart, narrow, hosts.localities), [j, second]
    return _Entries(
        np.tile(jobs, 2),
        problem.runnable[:, columns].T.ravel(),
        fractions[:, columns].T.ravel(),
        np.concatenate([faster, slower]),
        ({j: 1.0}, {second: 1.0}),
    )


def _narrowed(num_gpus: Floats, hosts: Hosts, j: int) -> NDArray[np.str_]:
    """Return (N,) the narrowest locality in which a gang fits on a type."""
    largest = {scope: max(hosts.gpus[scope][j], default=0) for scope in SCOPES}
    return np.select([num_gpus <= largest[scope] for scope in SCOPES], list(SCOPES), "any")


def _row_of(problem: AllocationProblem, hosts: Hosts, requested: _Entries, j: int) -> Load | None:
    gpus = int(problem.capacities[j] + LEAST_EXCESS)
    groups = _groups(problem, requested, gpus)
    if not groups or (groups[0].size == 1 and (problem.num_gpus >= 1).all()):
        return None
    bounds = _bounds(groups, hosts, j, gpus)
    means = np.array([requested.times[group.entries].sum() for group in groups])
    if all(takes @ np.ceil(means - LEAST_EXCESS) <= places for takes, places in bounds):
        return None  # enough places at all times for the mean
    patterns = _patterns(groups, bounds) if groups[0].size * SMALL > gpus else None
    found = _by_places(groups, means, bounds) if patterns is None else row_of_patterns(groups, requested.times, patterns)
    if found is None:
        return None
    by_group, limit = found
    coefficients = np.zeros(len(requested.times))
    for group, values in zip(groups, by_group, strict=True):
        coefficients[group.entries] = values
    name = f"what whole gangs can use of {problem.accelerator_types[j]}"
    return Load(name, requested.loads(coefficients, problem.num_jobs), len(problem.capacities), limit)


def _by_places(groups: Sequence[Group], means: Floats, bounds: Sequence[tuple[Floats, int]]) -> tuple[list[Floats], float] | None:
    """Return the most violated bound as coefficients of the entries of each group and a right-hand side, None if all hold."""
    parts = [float(takes @ means) / max(places, LEAST_EXCESS) for takes, places in bounds]
    takes, places = bounds[int(np.argmax(parts))]
    if max(parts) <= 1 + LEAST_EXCESS:
        return None
    return [np.full(len(group.entries), each) for group, each in zip(groups, takes.tolist(), strict=True)], float(places)


def _groups(problem: AllocationProblem, requested: _Entries, gpus: int) -> list[Group]:
    """Group the entries that may have time by size and locality; single-GPU jobs come last and fill the gaps.

    Jobs of more than half a GPU need one each. Smaller ones are left out: they can share.
    """
    able, times = np.flatnonzero(requested.able), requested.times
    num_gpus, localities = problem.num_gpus[requested.jobs[able]], requested.localities[able]
    sizes = np.where(num_gpus > 1 / 2, np.ceil(num_gpus), 0).astype(np.int64)
    localities[sizes == 1] = "any"
    groups = []
    for size in np.unique(sizes[sizes > 0])[::-1].tolist():
        for locality in np.unique(localities[sizes == size]).tolist():
            entries = able[(sizes == size) & (localities == locality)]
            if times[entries].any():
                entries = entries[np.argsort(-times[entries], kind="stable")]
                groups.append(group_of(size, locality, entries, times[entries], min(len(entries), gpus // size)))
    return groups


def _bounds(groups: Sequence[Group], hosts: Hosts, j: int, gpus: int) -> list[tuple[Floats, int]]:
    """Return bounds for places of d GPUs, anywhere, in racks and on nodes: the places that a gang of each group takes, and their
    number.
    """
    sizes = np.array([group.size for group in groups])
    regions = {"any": (gpus,), "rack": hosts.gpus["rack"][j], "node": hosts.gpus["node"][j]}
    bounds = [(sizes.astype(float), gpus)]
    for scope, kept in (("any", ("node", "rack", "any")), ("rack", ("node", "rack")), ("node", ("node",))):
        within = np.array([group.locality in kept for group in groups])
        for d in np.unique(sizes[within & (sizes > 1)]).tolist():
            places = sum(held // d for held in regions[scope])
            bounds.append((np.where(within, sizes // d, 0).astype(float), places))
    return bounds


def _patterns(groups: Sequence[Group], bounds: Sequence[tuple[Floats, int]]) -> Indices | None:
    """Return (P, groups) all combinations of gangs that fit, with the most of the last group; None if there are too many."""
    patterns = np.zeros((1, 0), dtype=np.int64)
    takes, left = np.array([each for each, _ in bounds]), np.array([[places for _, places in bounds]], dtype=float)
    for g, group in enumerate(groups):
        limits = np.divide(left, takes[:, g], out=np.full(left.shape, np.inf), where=takes[:, g] > 0)
        room = np.minimum(group.limit, np.floor(limits.min(axis=1))).astype(np.int64)
        if g == len(groups) - 1:
            break
        if int((room + 1).sum()) > MOST_PATTERNS:
            return None
        parents = np.repeat(np.arange(len(room)), room + 1)
        counts = np.concatenate([np.arange(limit + 1) for limit in room.tolist()])
        patterns = np.column_stack([patterns[parents], counts])
        left = left[parents] - counts[:, None] * takes[:, g]
    return np.column_stack([patterns, room])


MOST_PARTS = 20
"""The largest k of part_k."""

MEMORY_PARTS = 64
"""Parts into which the memory of a GPU is divided, to limit the number of functions."""

ROUNDING = 1e-9


def fraction_rows(
    problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH
) -> list[Load]:
    """Return for each type the dual-feasible-function rows that (N, K') `fractions` break most, none if they break none.

    columns: as in `gang_rows`. There are no rows for a problem that was not built from a cluster.
    """
    hosts = problem.hosts
    if hosts is None or (problem.num_gpus >= 1).all():
        return []
    parts = _Functions(problem.num_gpus)
    rows = []
    for j, gpus in enumerate(problem.capacities[: len(hosts.cpus)].tolist()):
        widths = columns.get(j, {j: 1.0})
        times = sum((fractions[:, column] * width for column, width in widths.items()), np.zeros(problem.num_jobs))
        memory = _memory_parts(problem.num_gpus, hosts.gpu_memory, j)
        for what, functions in (("fractions", parts), ("the memory of fractions", None if memory is None else _Functions(memory))):
            counted = None if functions is None else functions.most_broken(times, gpus)
            if counted is not None:
                loads = {column: counted * width for column, width in widths.items()}
                name = f"what {what} of {problem.accelerator_types[j]} can use"
                rows.append(Load(name, loads, len(problem.capacities), gpus))
    return rows


def _memory_parts(num_gpus: Floats, memory: GpuMemory | None, j: int) -> Floats | None:
    """Return (N,) the part of a GPU's memory that each fractional job takes, rounded down, and the GPUs of whole gangs.

    None if the memory is unknown.
    """
    if memory is None or np.isnan(memory.capacity[j]):
        return None
    taken = np.nan_to_num(memory.needed[:, j]) / memory.capacity[j]
    taken = np.floor(np.minimum(taken, 1.0) * MEMORY_PARTS + ROUNDING) / MEMORY_PARTS
    small = num_gpus < 1
    return np.where(small, taken, num_gpus) if taken[small].any() else None


class _Functions:
    """The values of all functions for (N,) sizes of jobs in GPUs."""

    def __init__(self, sizes: Floats) -> None:
        known, self._of = np.unique(sizes, return_inverse=True)
        self._table = np.zeros((1, len(known)))
        if known[-1] > 0:
            self._table = np.pad(_values(known[known > 0]), ((0, 0), (int((known <= 0).sum()), 0)))

    def most_broken(self, times: Floats, gpus: float) -> Floats | None:
        """Return (N,) the values of the function by which these times exceed the GPUs most, None if by none."""
        used = self._table @ np.bincount(self._of, times, self._table.shape[1])
        worst = int(used.argmax())
        if used[worst] <= gpus + LEAST_EXCESS * max(1.0, gpus):
            return None
        counted: Floats = self._table[worst][self._of]
        return counted


def _values(sizes: Floats) -> Floats:
    """Return (F, S) the value of each function for sorted sizes; f(s) = s for whole gangs."""
    small = sizes[sizes <= 1 / 2]
    cuts = [sizes, *(_cut(sizes, least) for least in small.tolist())]
    every = [*cuts, *(_part(each, k) for each in cuts for k in range(1, min(MOST_PARTS, int(1 / sizes[0] + ROUNDING)) + 1))]
    return np.where(sizes >= 1, sizes, np.unique(every, axis=0))


def _cut(sizes: Floats, least: float) -> Floats:
    return np.where(sizes < least - ROUNDING, 0.0, np.where(sizes > 1 - least + ROUNDING, 1.0, sizes))


def _part(sizes: Floats, k: int) -> Floats:
    multiples = (k + 1) * sizes
    whole = np.abs(multiples - np.round(multiples)) < ROUNDING
    return np.where(whole, sizes, np.floor(multiples) / k)


def type_rows(problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH) -> list[Load]:
    """Return the rows of whole gangs and of fractions that (N, K) `fractions` break. columns: as in `gang_rows`."""
    if problem.hosts is None or (problem.num_gpus == 1).all():
        return []
    rows = gang_rows(problem, fractions, columns)
    if (problem.num_gpus >= 1).all():
        return rows
    return [*rows, *fraction_rows(problem, fractions, columns), *packing_rows(problem, fractions, columns)]


def node_rows(problem: AllocationProblem) -> list[Load]:
    """Return Σ_i s_i·cpus_per_gpu_i·X_ij <= CPUs of type j, and the same for memory, if jobs could need more than a type has.

    There are no rows for a problem that was not built from a cluster. Placement checks single nodes.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    rows = []
    for name, per_gpu, available in (
        ("CPUs", hosts.cpus_per_gpu, hosts.cpus),
        ("memory", hosts.memory_gb_per_gpu, hosts.memory_gb),
    ):
        for j in np.flatnonzero(np.isfinite(available)).tolist():
            requested = np.where(problem.runnable[:, j], per_gpu, 0.0)
            if requested.max(initial=0.0) * problem.capacities[j] > available[j]:
                text = f"the {name} of the nodes with {problem.accelerator_types[j]}"
                rows.append(Load(text, {j: requested * problem.num_gpus}, len(available), float(available[j])))
    return rows
