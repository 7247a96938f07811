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

from collections.abc import Mapping, Sequence
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

Regions = tuple[tuple[int, ...], ...]
"""The GPUs of each region by locality, in the order of `LOCALITIES`: all GPUs, nodes, and racks."""

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
    localities = _numbered(hosts.localities)
    entries_of = {j: requested_times(problem, localities, fractions, columns.get(j, {j: 1.0})) for j in range(len(hosts.cpus))}
    return [row for j, entries in entries_of.items() for row in _row_on_type(problem, hosts, entries, j)]


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
    return [row for j, entries in entries_of.items() for row in _row_on_type(problem, hosts, entries, j)]


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


def _row_on_type(problem: AllocationProblem, hosts: Hosts, requested: _Entries, j: int) -> list[Load]:
    return row_of_gangs(problem, requested, _regions(problem, hosts, j), problem.accelerator_types[j])


def _regions(problem: AllocationProblem, hosts: Hosts, j: int) -> Regions:
    return (int(problem.capacities[j] + CLEAR),), *(hosts.gpus[scope][j] for scope in SCOPES)


def row_of_gangs(problem: AllocationProblem, requested: _Entries, regions: Regions, name: str) -> list[Load]:
    """Return a row that the times break, or none; name: of the GPUs."""
    able = np.flatnonzero(requested.able)
    codes, kinds, means = _kinds(requested, able)
    if not kinds or (kinds[0].size == 1 and (problem.num_gpus >= 1).all()):
        return []
    takes, places = _bounds(kinds, regions)
    if (takes @ np.ceil(means - CLEAR) <= places).all():
        return []  # always enough places for the mean number of gangs
    entries = [able[codes == kind.code] for kind in kinds]
    groups, patterns = _groups_at_once(kinds, entries, requested.times, regions)
    found: tuple[Sequence[Floats] | Floats, float] | None = (
        _broken_bound(means, takes, places) if patterns is None else row_of_patterns(groups, requested.times, patterns)
    )
    if found is None:
        return []
    values, limit = found
    coefficients = np.zeros(len(requested.times))
    for own, each in zip([group.entries for group in groups] or entries, values, strict=True):
        coefficients[own] = each
    loads, text = requested.loads(coefficients, problem.num_jobs), f"what whole gangs can use of {name}"
    return [Load(text, loads, len(problem.capacities), limit)]


def _groups_at_once(
    kinds: Sequence[_Kind], entries: Sequence[Indices], times: Floats, regions: Regions
) -> tuple[list[SizeGroup], Indices | None]:
    """Return the entries of each kind as groups, and all patterns of these; none if there are too many patterns."""
    ((gpus,), *_) = regions
    limits = tuple(min(len(own), gpus // kind.size) for kind, own in zip(kinds, entries, strict=True))
    patterns = _patterns(kinds, limits, regions) if kinds[0].size * SMALL > gpus else None
    if patterns is None:
        return [], None
    ordered = [own[np.argsort(-times[own], kind="stable")] for own in entries]
    return [group_of(own, times[own], limit) for own, limit in zip(ordered, limits, strict=True)], patterns


def _broken_bound(means: Floats, takes: Floats, places: Floats) -> tuple[Floats, float] | None:
    """Return the most violated bound as a coefficient for each kind and a right-hand side, None if all hold; means: by kind."""
    parts = takes @ means / np.maximum(places, CLEAR)
    most = int(np.argmax(parts))
    return (takes[most], float(places[most])) if parts[most] > 1 + CLEAR else None


class _Kind(NamedTuple):
    """Size and locality of gangs, and a code for both."""

    size: int
    locality: str
    code: int


def _kinds(requested: _Entries, able: Indices) -> tuple[Indices, tuple[_Kind, ...], Floats]:
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
    return codes, tuple(kinds[i] for i in some), times[some]


@lru_cache(maxsize=256)  # nodes rarely change between rounds, and the sizes of gangs hardly more often
def _bounds(kinds: Sequence[_Kind], regions: Regions) -> tuple[Floats, Floats]:
    """Return (B, kinds) how many places of d GPUs anywhere, in racks and on nodes a gang takes, and (B,) how many there are."""
    sizes = np.array([kind.size for kind in kinds])
    takes, places = [sizes], [regions[0][0]]
    for scope, kept in (("any", LOCALITIES), ("rack", SCOPES), ("node", SCOPES[:1])):
        within = np.array([kind.locality in kept for kind in kinds])
        for d in np.unique(sizes[within & (sizes > 1)]).tolist():
            takes.append(np.where(within, sizes // d, 0))
            places.append(sum(gpus // d for gpus in regions[LOCALITIES.index(scope)]))
    return np.array(takes, dtype=float), np.array(places, dtype=float)


@lru_cache(maxsize=256)
def _patterns(kinds: Sequence[_Kind], most: Sequence[int], regions: Regions) -> Indices | None:
    """Return (P, kinds) all combinations of gangs that fit, with as many of the last kind as fit; None if there are too many.

    most: the number of gangs of each kind.
    """
    patterns, (takes, places) = np.zeros((1, 0), dtype=np.int64), _bounds(kinds, regions)
    left = places[None]
    for g, limit in enumerate(most):
        limits = np.divide(left, takes[:, g], out=np.full(left.shape, np.inf), where=takes[:, g] > 0)
        room = np.minimum(limit, np.floor(limits.min(axis=1))).astype(np.int64)
        if g == len(most) - 1:
            break
        if int((room + 1).sum()) > MOST_PATTERNS:
            return None
        parents = np.repeat(np.arange(len(room)), room + 1)
        counts = np.concatenate([np.arange(free + 1) for free in room.tolist()])
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
    """The entries of one kind of gangs, in descending order of time.

    numbers: the k for which the k entries with the most time are checked; the last is all of them. Σ_p λ_p·min(k, n_sp) is concave
    in k, and the sum of the k largest times is linear in k where times are equal, so the ends of equal times suffice.
    """

    entries: Indices
    numbers: list[int]

    def requested(self, times: Floats) -> Floats:
        """Return (k,) the total time of the k entries with the most time."""
        return np.asarray(np.cumsum(times[self.entries])[np.array(self.numbers) - 1])

    def coefficients(self, times: Floats, prices: Floats) -> Floats:
        """Return the coefficient of each entry: the sum of the prices of all k that include it, averaged over equal times."""
        sums = np.zeros(len(self.entries))
        for k, price in zip(self.numbers, prices, strict=True):
            sums[:k] += price
        same = np.unique(np.round(times[self.entries], 9), return_inverse=True)[1]
        return np.asarray(np.bincount(same, sums) / np.bincount(same))[same]


def group_of(entries: Indices, times: Floats, limit: int) -> SizeGroup:
    """Return the group of these entries, sorted by descending time. limit: the number that fits at the same time."""
    ends = np.flatnonzero(times[: limit - 1] - times[1:limit] > SOLVER_TOLERANCE) + 1
    return SizeGroup(entries, [*ends.tolist(), len(entries)])


def row_of_patterns(groups: Sequence[SizeGroup], times: Floats, patterns: Indices) -> tuple[list[Floats], float] | None:
    """Return a row that all mixes of (P, groups) patterns satisfy and these times break, None if some mix delivers them.

    The row consists of coefficients of the entries of each group and the right-hand side.
    """
    requested = [group.requested(times) for group in groups]
    wanted = np.concatenate(requested)
    in_turns = _mix_in_turns(np.array([each[-1] for each in requested[:-1]]), patterns[:, :-1])
    if in_turns is not None and (_rooms(groups, patterns[in_turns[0]]) @ in_turns[1] >= ENOUGH * wanted).all():
        return None
    found = broken_row(_rooms(groups, patterns), wanted)
    if found is None:
        return None
    own = np.split(found[0], np.cumsum([len(group.numbers) for group in groups])[:-1])
    return [group.coefficients(times, each) for group, each in zip(groups, own, strict=True)], found[1]


def _rooms(groups: Sequence[SizeGroup], patterns: Indices) -> Floats:
    """Return (R, P) the number of places that the entries of each group, for each k, can hold in (P, groups) patterns."""
    pairs = zip(groups, patterns.T, strict=True)
    return np.vstack([np.minimum(np.array(group.numbers)[:, None], counts) for group, counts in pairs]).astype(float)


def _mix_in_turns(means: Floats, counts: Indices) -> tuple[Indices, Floats] | None:
    """Return some of (P, groups) patterns and the part of the time of each, in which the groups have these mean counts.

    Each group has its mean rounded down, and one more for a part of the time that begins where that of the group before ends, round
    and round: counts near the mean serve most requests, and few groups have one more at the same time. None if there is no such
    pattern.
    """
    down = np.floor(means + CLEAR)
    ends = np.cumsum(np.maximum(means - down, 0.0)) % 1.0
    starts, times = np.append(0.0, ends[:-1]), np.unique(np.append(0.0, ends))[:, None]
    before, after = times >= starts, times < ends
    same = (counts == (down + np.where(starts <= ends, before & after, before | after))[:, None]).all(axis=2)
    return (same.argmax(axis=1), np.diff(times[:, 0], append=1.0)) if same.any(axis=1).all() else None


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
    matrix = np.block([[-rooms, requested[:, None]], [np.ones(patterns), np.zeros(1)]])
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
