"""Cutting planes: rows on what nodes and whole gangs can deliver, added to a program if its answer breaks them.

A type runs a pattern at any one time, n_s gangs of each size s with Σ_s s·n_s <= c_j (`gang_rows`, `placement_rows`). In the long
run it runs a mix of patterns, λ_p >= 0 of the time with Σ_p λ_p <= 1, in which each job holds at most one place at a time. So the
k jobs of size s with the most time on the type can have no more than Σ_p λ_p·min(k, n_sp) together, for every k, and these
inequalities suffice for one type by itself. If no mix delivers the time fractions of a type, the dual values of the linear program
that searches for one (`row_of_patterns`) are a row that all deliverable allocations satisfy and these fractions break. For gangs
that must stay on one node or rack, gangs of at least d GPUs take Σ_s ⌊s/d⌋·n_s of the Σ_v ⌊m_v/d⌋ places of d GPUs there. If gangs
are small relative to a type, there are too many patterns, and a row would make little difference.

CPUs and host memory (`node_rows`) are rows from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.formulation.linear_rows import Load, SparseMatrix
from gavel_py.optimization.solving.highs import LinearProgram, solved_once
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import CLEAR, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.problem.from_jobs import Hosts
    from gavel_py.problem.pair_throughputs import PlacementSpeeds
    from gavel_py.problem.problem import AllocationProblem

ONE_EACH: Mapping[int, Mapping[int, float]] = MappingProxyType({})
"""One column for each type: no type has several."""

ENOUGH = 1 - CLEAR
"""The part of time fractions that some mix must deliver."""

NO_SECOND: Mapping[int, int] = MappingProxyType({})

SCOPES: tuple[Literal["node", "rack"], ...] = ("node", "rack")
"""The localities that keep a gang together, the narrowest first."""

LOCALITIES = ("any", *SCOPES)

MOST_PATTERNS = 1000

SMALL = 16
"""Patterns are enumerated for types with less than this multiple of the GPUs of their largest gang."""


def gang_rows(problem: AllocationProblem, fractions: Floats, columns: Mapping[int, Mapping[int, float]] = ONE_EACH) -> list[Load]:
    """Return rows that all deliverable allocations satisfy and (N, K') `fractions` break, at most one for each type.

    columns: {j: {column: GPUs that a gang has there for each that it requests}} of the types with several columns
    (`Columns.columns_of`). There are no rows for a problem that was not built from a cluster.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    localities, types = _numbered(hosts.localities), range(len(hosts.cpus))
    entries_of = {j: requested_times(problem, localities, fractions, columns.get(j, {j: 1.0})) for j in types}
    found = (_row_on_type(problem, hosts, entries, j) for j, entries in entries_of.items())
    return [row for row in found if row is not None]


def placement_rows(problem: AllocationProblem, fractions: Floats, second: Mapping[int, int] = NO_SECOND) -> list[Load]:
    """Return such rows for types on which no packing gives gangs the placements, consolidated or spread, of their columns.

    In a column for the consolidated placement, a gang must stay on a node, or in a rack, that can hold it. second: {type: the
    column of the slower placement}.
    """
    hosts = problem.hosts
    if hosts is None or hosts.speeds is None:
        return []
    localities, types = _numbered(hosts.localities), np.flatnonzero(hosts.speeds.differ.any(axis=0)).tolist()
    narrow = {j: _narrowed(problem.num_gpus, hosts, j) for j in types}
    entries_of = {j: _by_placement(problem, hosts.speeds, (narrow[j], localities), fractions, j, second.get(j)) for j in types}
    found = (_row_on_type(problem, hosts, entries, j) for j, entries in entries_of.items())
    return [row for row in found if row is not None]


@dataclass(frozen=True, eq=False)
class _Entries:
    """Requested times on one type: M entries, each a job with a locality.

    Attributes:
        gpus: (M,) the GPUs of each gang.
        able: (M,) whether an entry may have time.
        localities: (M,) as indices into `LOCALITIES`.
        columns: The entries consist of parts of equal length. For each part, the columns of the problem that it represents, with
            the factor of a coefficient in each.
    """

    jobs: Indices
    gpus: Floats
    able: Mask
    times: Floats
    localities: Indices
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


def _numbered(localities: NDArray[np.str_]) -> Indices:
    """Return localities as indices into `LOCALITIES`."""
    numbers: Indices = sum((localities == name) * LOCALITIES.index(name) for name in SCOPES)
    return numbers


def requested_times(problem: AllocationProblem, localities: Indices, fractions: Floats, columns: Mapping[int, float]) -> _Entries:
    """Return all time on a type, with gangs anywhere within their locality; larger gangs in a column are separate entries."""
    these = list(columns)
    if max(columns.values()) > 1:
        jobs, parts = np.arange(len(fractions)), np.array(list(columns.values()))
        return _Entries(
            np.tile(jobs, len(these)),
            np.outer(parts, problem.num_gpus).ravel(),
            problem.runnable[:, these].T.ravel(),
            fractions[:, these].T.ravel(),
            np.tile(localities, len(these)),
            tuple({column: 1.0} for column in these),
        )
    times: Floats = fractions[:, these] @ np.array(list(columns.values()))
    able = np.asarray(problem.runnable[:, these].any(axis=1))
    return _Entries(np.arange(len(times)), problem.num_gpus, able, times, localities, (columns,))


def _by_placement(
    problem: AllocationProblem,
    speeds: PlacementSpeeds,
    localities: tuple[Indices, Indices],
    fractions: Floats,
    j: int,
    second: int | None,
) -> _Entries:
    """Return the time in both placements; localities: (N,) of consolidated gangs, and of all others."""
    narrow, wide = localities
    differ, apart = speeds.differ[:, j], speeds.spread_is_faster[:, j]
    faster, jobs = np.where(differ & ~apart, narrow, wide), np.arange(problem.num_jobs)
    if second is None:
        return _Entries(jobs, problem.num_gpus, problem.runnable[:, j], fractions[:, j], faster, ({j: 1.0},))
    slower, columns = np.where(apart, narrow, wide), [j, second]
    return _Entries(
        np.tile(jobs, 2),
        np.tile(problem.num_gpus, 2),
        problem.runnable[:, columns].T.ravel(),
        fractions[:, columns].T.ravel(),
        np.concatenate([faster, slower]),
        ({j: 1.0}, {second: 1.0}),
    )


def _narrowed(num_gpus: Floats, hosts: Hosts, j: int) -> Indices:
    """Return (N,) the narrowest locality in which a gang fits on a type."""
    largest = {scope: max(hosts.gpus[scope][j], default=0) for scope in SCOPES}
    return np.select([num_gpus <= largest[scope] for scope in SCOPES], list(map(LOCALITIES.index, SCOPES)), LOCALITIES.index("any"))


def _row_on_type(problem: AllocationProblem, hosts: Hosts, requested: _Entries, j: int) -> Load | None:
    regions = {"any": (int(problem.capacities[j] + CLEAR),), "rack": hosts.gpus["rack"][j], "node": hosts.gpus["node"][j]}
    return row_of_gangs(problem, requested, regions, problem.accelerator_types[j])


def row_of_gangs(problem: AllocationProblem, requested: _Entries, regions: Mapping[str, tuple[int, ...]], name: str) -> Load | None:
    """Return a row that the times break; regions: {locality: GPUs of each region}; name: of the GPUs."""
    (gpus,), able = regions["any"], np.flatnonzero(requested.able)
    codes, kinds, means = _kinds(requested, able)
    if not kinds or (kinds[0].size == 1 and (problem.num_gpus >= 1).all()):
        return None
    bounds = _bounds(kinds, regions)
    if all(takes @ np.ceil(means - CLEAR) <= places for takes, places in bounds):
        return None  # always enough places for the mean number of gangs
    entries: Iterable[Indices] = (able[codes == kind.code] for kind in kinds)
    found: tuple[Sequence[Floats] | Floats, float] | None
    patterns = None
    if kinds[0].size * SMALL > gpus:
        groups = [_group_of_kind(kind, each, requested.times, gpus) for kind, each in zip(kinds, entries, strict=True)]
        patterns, entries = _patterns(groups, bounds), [group.entries for group in groups]
    found = _broken_bound(means, bounds) if patterns is None else row_of_patterns(groups, requested.times, patterns)
    if found is None:
        return None
    values, limit = found
    coefficients = np.zeros(len(requested.times))
    for own, each in zip(entries, values, strict=True):
        coefficients[own] = each
    loads, text = requested.loads(coefficients, problem.num_jobs), f"what whole gangs can use of {name}"
    return Load(text, loads, len(problem.capacities), limit)


def _broken_bound(means: Floats, bounds: Sequence[tuple[Floats, int]]) -> tuple[Floats, float] | None:
    """Return the most violated bound as a coefficient for each kind and a right-hand side, None if all hold; means: by kind."""
    parts = [float(takes @ means) / max(places, CLEAR) for takes, places in bounds]
    takes, places = bounds[int(np.argmax(parts))]
    return (takes, float(places)) if max(parts) > 1 + CLEAR else None


class _Kind(NamedTuple):
    """Size and locality of gangs, and a code for both."""

    size: int
    locality: str
    code: int


def _kinds(requested: _Entries, able: Indices) -> tuple[Indices, list[_Kind], Floats]:
    """Return the code of the kind of each entry that may have time, the kinds with time, and the total time of each.

    Large gangs come first. Single-GPU jobs come last, since they fill the gaps. Jobs of more than half a GPU need one each. Smaller
    ones are left out, since they can share.
    """
    num_gpus, localities = requested.gpus[able], requested.localities[able]
    sizes = np.where(num_gpus > 1 / 2, np.ceil(num_gpus), 0).astype(np.int64)
    codes = np.where(sizes == 1, LOCALITIES.index("any"), localities) - sizes * len(LOCALITIES)
    first = codes.min(initial=0)
    found = np.flatnonzero(np.bincount(codes - first))
    times = np.bincount(codes - first, requested.times[able])[found].astype(float)
    kinds = [_Kind(-(code // len(LOCALITIES)), LOCALITIES[code % len(LOCALITIES)], code) for code in (found + first).tolist()]
    some = [i for i, kind in enumerate(kinds) if kind.size and times[i]]
    return codes, [kinds[i] for i in some], times[some]


def _group_of_kind(kind: _Kind, entries: Indices, times: Floats, gpus: int) -> SizeGroup:
    entries = entries[np.argsort(-times[entries], kind="stable")]
    return group_of(kind.size, kind.locality, entries, times[entries], min(len(entries), gpus // kind.size))


def _bounds(kinds: Sequence[_Kind], regions: Mapping[str, tuple[int, ...]]) -> list[tuple[Floats, int]]:
    """Return, for places of d GPUs anywhere, in racks and on nodes, how many a gang of each kind takes, and how many there are."""
    sizes = np.array([kind.size for kind in kinds])
    bounds = [(sizes.astype(float), regions["any"][0])]
    for scope, kept in (("any", ("node", "rack", "any")), ("rack", ("node", "rack")), ("node", ("node",))):
        within = np.array([kind.locality in kept for kind in kinds])
        for d in np.unique(sizes[within & (sizes > 1)]).tolist():
            bounds.append((np.where(within, sizes // d, 0).astype(float), _places(regions[scope], d)))
    return bounds


@lru_cache(maxsize=256)  # regions depend on the nodes that are up, which rarely change between rounds
def _places(held: tuple[int, ...], size: int) -> int:
    """Return the number of places of `size` GPUs in regions with these numbers of GPUs."""
    return sum(gpus // size for gpus in held)


def _patterns(groups: Sequence[SizeGroup], bounds: Sequence[tuple[Floats, int]]) -> Indices | None:
    """Return (P, groups) all combinations of gangs that fit, with as many of the last group as fit; None if there are too many."""
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


def node_rows(problem: AllocationProblem) -> list[Load]:
    """Return Σ_i s_i·(CPUs per GPU)_i·X_ij <= CPUs of type j, and the same for memory, if jobs could need more than a type has.

    There are no rows for a problem that was not built from a cluster. Placement checks single nodes.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    rows = []
    for name, per_gpu, available in zip(("CPUs", "memory"), hosts.per_gpu.T, (hosts.cpus, hosts.memory_gb), strict=True):
        for j in np.flatnonzero(np.isfinite(available)).tolist():
            requested = np.where(problem.runnable[:, j], per_gpu, 0.0)
            if requested.max(initial=0.0) * problem.capacities[j] > available[j]:
                text = f"the {name} of the nodes with {problem.accelerator_types[j]}"
                rows.append(Load(text, {j: requested * problem.num_gpus}, len(available), float(available[j])))
    return rows


@dataclass(frozen=True, eq=False)
class SizeGroup:
    """The entries of one gang size and locality, in descending order of time. limit: the number that fits at the same time.

    numbers: the k for which the k entries with the most time are checked; the last is all of them. Σ_p λ_p·min(k, n_sp) is concave
    in k, and the sum of the k largest times is linear in k where times are equal, so the ends of equal times suffice.
    """

    size: int
    locality: str
    entries: Indices
    limit: int
    numbers: list[int]

    def rooms(self, counts: Indices) -> Floats:
        """Return (k, P) the number of places that k entries can hold in each pattern. counts: (P,) places of the group."""
        return np.array([np.minimum(k, counts) for k in self.numbers], dtype=float)

    def requested(self, times: Floats) -> Floats:
        """Return (k,) the total time of the k entries with the most time."""
        sums: Floats = np.cumsum(times[self.entries])[np.array(self.numbers) - 1]
        return sums

    def coefficients(self, times: Floats, prices: Floats) -> Floats:
        """Return the coefficient of each entry: the sum of the prices of all k that include it, averaged over equal times."""
        sums = np.zeros(len(self.entries))
        for k, price in zip(self.numbers, prices, strict=True):
            sums[:k] += price
        same = np.unique(np.round(times[self.entries], 9), return_inverse=True)[1]
        means: Floats = np.bincount(same, sums) / np.bincount(same)
        return means[same]


def group_of(size: int, locality: str, entries: Indices, times: Floats, limit: int) -> SizeGroup:
    """Return the group of these entries, sorted by descending time."""
    ends = np.flatnonzero(times[: limit - 1] - times[1:limit] > SOLVER_TOLERANCE) + 1
    return SizeGroup(size, locality, entries, limit, [*ends.tolist(), len(entries)])


def row_of_patterns(groups: Sequence[SizeGroup], times: Floats, patterns: Indices) -> tuple[list[Floats], float] | None:
    """Return a row that all mixes of (P, groups) patterns satisfy and these times break, None if some mix delivers them.

    The row consists of coefficients of the entries of each group and the right-hand side.
    """
    requested = [group.requested(times) for group in groups]
    rooms = np.vstack([group.rooms(counts) for group, counts in zip(groups, patterns.T, strict=True)])
    # Patterns near the mean suffice for most mixes. Each pattern has as many gangs of the last group as fit.
    near = (np.abs(patterns[:, :-1] - [each[-1] for each in requested[:-1]]) < 1).all(axis=1)
    if near.any() and best_mix(rooms[:, near], np.concatenate(requested))[0] >= ENOUGH:
        return None
    found = broken_row(rooms, np.concatenate(requested))
    if found is None:
        return None
    ends = np.cumsum([len(group.numbers) for group in groups])
    own = np.split(found[0], ends[:-1])
    return [group.coefficients(times, each) for group, each in zip(groups, own, strict=True)], found[1]


def broken_row(rooms: Floats, requested: Floats) -> tuple[Floats, float] | None:
    """Return (R,) prices y >= 0 and the largest Σ_r y_r rooms_rp of (R, P) patterns, which Σ_r y_r requested_r exceeds.

    None if a mix delivers the requests up to `CLEAR`. Rows without a request get the largest price that does not weaken the
    cut, so that time does not move there next (lifting).
    """
    some = requested > 0
    deliverable, own = best_mix(rooms[some], requested[some])
    if deliverable >= ENOUGH:
        return None
    prices = np.zeros(len(requested))
    prices[some] = own
    used = own @ rooms[some]
    limit = float(used.max())
    for r in np.flatnonzero(~some).tolist():
        there = rooms[r] > 0
        prices[r] = float(((limit - used[there]) / rooms[r, there]).min(initial=np.inf)) if there.any() else 0.0
        used = used + prices[r] * rooms[r]
    return prices, max(limit, float(used.max()))


def best_mix(rooms: Floats, requested: Floats) -> tuple[float, Floats]:
    """Return the largest α <= 1 with Σ_p λ_p rooms_rp >= α requested_r and Σ_p λ_p <= 1, and the prices y >= 0 of the rows.

    By duality, Σ_r y_r requested_r = 1 and Σ_r y_r rooms_rp <= α for every pattern p if α < 1.
    """
    rows, patterns = rooms.shape
    matrix = np.empty((rows + 1, patterns + 1))
    matrix[:rows, :patterns], matrix[rows, :patterns] = -rooms, 1.0
    matrix[:rows, patterns], matrix[rows, patterns] = requested, 0.0
    columns, entries = np.divmod(np.arange(matrix.size), rows + 1)  # nearly all entries are nonzero, so zeros are stored too
    program = LinearProgram(
        costs=np.append(np.zeros(patterns), -1.0),
        offset=0.0,
        matrix=SparseMatrix(entries, columns, matrix.T.ravel(), (rows + 1, patterns + 1)),
        limits=np.append(np.zeros(rows), 1.0),
        equalities=0,
        lower=np.zeros(patterns + 1),
        upper=np.append(np.full(patterns, np.inf), 1.0),
    )
    answer = solved_once(program)
    return -answer.value, answer.duals[:-1]
