"""Packings: which jobs can be on the GPUs of a type at once, and rows that keep more from being promised.

A GPU holds jobs of fractions that sum to at most 1, with the memory that it has for all of them, or is one of a whole gang's. What
fits is found exactly, as far as there are not too many ways (`patterns_at_once`, `configurations`). Of few jobs, the CPUs and the
memory of their nodes count too.

A job is on one GPU and in one place at a time. Where a type has room for more jobs of a fraction than there are, their sum says too
little of what they take: one job of a third, beside jobs that want whole GPUs only, has a GPU to itself. So `packing_rows` looks
for a mix of what can run at once: on all types together where there are few jobs, else on each type by itself. If no mix has room
for what is asked, the dual values of the program that looks for one are a row (`mixes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gavel_py.optimization.formulation.linear_rows import Load
from gavel_py.optimization.formulation.mixes import LEAST_EXCESS, ONE_EACH, Group, broken_row, group_of, row_of_patterns
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.from_jobs import Hosts
from gavel_py.problem.problem import AllocationProblem

Columns = Mapping[int, Mapping[int, float]]

ROUNDING = 1e-9
"""A part of a GPU that is told from none: three thirds are one."""

MOST_PATTERNS = 500
"""Of one type; more are not looked through."""

MOST_SUMS = 3000
"""What patterns of some GPUs and of one more make together, before those are left out that others exceed."""

MOST_STATES = 100_000
"""Ways to send some jobs to types, or nowhere; more are not looked through."""


class PackingItem(NamedTuple):
    """Jobs of one fraction, or gangs of one size: GPUs of each, GB that each takes of its GPU (0 for whole gangs), and how many."""

    gpus: float
    memory: float
    number: int


class Seeker(NamedTuple):
    """A job that may be on some of K types.

    gpus: how many, or the part of one; runnable: (K,) where it may be; memory: (K,) GB that it takes of a GPU there, 0 for whole
    gangs; cpus, host_memory: what it takes of its nodes; together: whether it must be on one node.
    """

    gpus: float
    runnable: tuple[bool, ...]
    memory: tuple[float, ...]
    cpus: float = 0.0
    host_memory: float = 0.0
    together: bool = False


class Place(NamedTuple):
    """An accelerator type. gpus: in all; memory: GB of each; nodes: GPUs, CPUs and GB of each."""

    gpus: int
    memory: float
    nodes: tuple[tuple[int, float, float], ...]


@lru_cache(maxsize=32)
def patterns_at_once(kinds: tuple[PackingItem, ...], gpus: int, memory: float) -> Indices | None:
    """Return (P, kinds) how many of each kind can be on so many GPUs at once, those with as many fractions as fit beside the gangs.

    memory: GB of each GPU. None where there are too many ways.
    """
    parts = [kind for kind in kinds if kind.gpus < 1]
    fitting = _fractions_on(tuple(parts), gpus, memory)
    if fitting is None:
        return None
    small = np.array([kind.gpus < 1 for kind in kinds])
    found: list[tuple[tuple[int, ...], int]] = [((), gpus)]
    for kind in kinds:
        if kind.gpus >= 1:
            size = int(kind.gpus)
            found = [((*gangs, n), left - n * size) for gangs, left in found for n in range(min(kind.number, left // size) + 1)]
            if len(found) > MOST_PATTERNS:
                return None
    if sum(len(fitting[left]) for _, left in found) > MOST_PATTERNS:
        return None
    patterns = np.zeros((sum(len(fitting[left]) for _, left in found), len(kinds)), dtype=np.int64)
    patterns[:, small] = np.concatenate([fitting[left] for _, left in found])
    patterns[:, ~small] = np.repeat([gangs for gangs, _ in found], [len(fitting[left]) for _, left in found], axis=0)
    return patterns


def _fractions_on(kinds: tuple[PackingItem, ...], gpus: int, memory: float) -> list[Indices] | None:
    """For 0, 1, ... GPUs, the largest numbers of each kind that fit them together; None where there are too many."""
    one = fractions_on_one(kinds, memory)
    if one is None:
        return None
    counts = np.array([kind.number for kind in kinds], dtype=np.int64)
    found = [np.zeros((1, len(kinds)), dtype=np.int64)]
    for _ in range(gpus):
        sums = np.minimum((found[-1][:, None] + one).reshape(-1, len(kinds)), counts)
        largest = _largest(sums) if len(sums) <= MOST_SUMS else None
        if largest is None:
            return None
        found.append(largest)
    return found


@lru_cache(maxsize=32)
def fractions_on_one(kinds: tuple[PackingItem, ...], memory: float) -> Indices | None:
    """Return (P, kinds) the largest numbers of each kind that fit one GPU at once; None where there are too many ways."""
    found = [((), 1.0, memory)]
    for kind in kinds:
        most = [min(kind.number, _times(left, kind.gpus), _times(free, kind.memory)) for _, left, free in found]
        found = [
            ((*numbers, n), left - n * kind.gpus, free - n * kind.memory)  # type: ignore[misc]
            for (numbers, left, free), limit in zip(found, most, strict=True)
            for n in range(limit + 1)
        ]
        if len(found) > MOST_SUMS:
            return None
    return _largest(np.array([numbers for numbers, _, _ in found], dtype=np.int64).reshape(-1, len(kinds)))


def _times(room: float, each: float) -> int:
    """How often something fits."""
    return int(min(1e6, room * (1 + ROUNDING) / each + ROUNDING)) if each > 0 else 1_000_000


def _largest(vectors: Indices) -> Indices | None:
    """Those of (M, kinds) numbers that no other one exceeds; None where there are too many."""
    vectors = np.unique(vectors, axis=0)
    chosen: list[Indices] = []
    for vector in vectors[np.argsort(-vectors.sum(axis=1), kind="stable")]:
        if not chosen or not (np.array(chosen) >= vector).all(axis=1).any():
            chosen.append(vector)
            if len(chosen) > MOST_PATTERNS:
                return None
    return np.array(chosen, dtype=np.int64).reshape(-1, vectors.shape[1])


@lru_cache(maxsize=8)
def configurations(jobs: tuple[Seeker, ...], types: tuple[Place, ...]) -> Mask | None:
    """Return (C, N, K) who can be where at once, for N jobs and K types, in all ways in which nobody idle could be there too.

    At most `MOST_STATES` ways to send jobs to types may be there to look through. None where all jobs can be at once wherever
    they may run.
    """
    count, nowhere = len(jobs), len(types)
    fits = [_sets_on(jobs, place, j) for j, place in enumerate(types)]
    everybody = [sum(1 << i for i, job in enumerate(jobs) if job.runnable[j]) for j in range(nowhere)]
    if all(fit[able] for fit, able in zip(fits, everybody, strict=True)):
        return None
    places = (np.arange((nowhere + 1) ** count)[:, None] // (nowhere + 1) ** np.arange(count)) % (nowhere + 1)
    sets = [(places == j) @ (1 << np.arange(count)) for j in range(nowhere)]
    valid = np.logical_and.reduce([fit[chosen] for fit, chosen in zip(fits, sets, strict=True)])
    places, sets = places[valid], [chosen[valid] for chosen in sets]
    full = np.ones(len(places), dtype=bool)
    for i in range(count):
        idle = places[:, i] == nowhere
        for fit, chosen in zip(fits, sets, strict=True):
            full &= ~(idle & fit[chosen | 1 << i])
    found: Mask = places[full][:, :, None] == np.arange(nowhere)
    return found


def _sets_on(jobs: tuple[Seeker, ...], place: Place, j: int) -> Mask:
    """(2^N,) which sets of N jobs, as bits of a number, fit type j at once.

    Gangs that may be spread over nodes need as many GPUs, CPUs and as much memory as all nodes have; the others fit node by node.
    """
    count = len(jobs)
    sets = np.arange(1 << count)
    member = (sets[:, None] >> np.arange(count)) & 1
    size, small = np.array([job.gpus for job in jobs]), np.array([job.gpus < 1 for job in jobs])
    needed = _gpus_for(member, np.where(small, size, 0.0), [job.memory[j] for job in jobs], place)
    needed = needed[member @ (small * (1 << np.arange(count)))] + member @ np.where(small, 0.0, size)
    takes = np.stack([needed, member @ [job.cpus for job in jobs], member @ [job.host_memory for job in jobs]], axis=1)
    nodes = np.array(place.nodes).reshape(-1, 3)
    astray = member @ [not job.runnable[j] for job in jobs]
    fits: Mask = _within(takes, np.append(place.gpus, nodes[:, 1:].sum(axis=0))) & (astray == 0)
    limited = bool(np.isfinite(nodes[:, 1:]).any()) and bool(takes[-1, 1:].any())
    if limited or any(job.together and job.gpus > 1 for job in jobs):
        of_nodes = sets & sum(1 << i for i, job in enumerate(jobs) if job.gpus <= 1 or job.together)
        held = np.zeros(len(sets), dtype=bool)
        held[0] = True
        for node in nodes:
            held = _unions(held, _within(takes, node) & (of_nodes == sets), count)
            if held[of_nodes[-1]]:
                break
        fits = np.logical_and(fits, held[of_nodes])
    return fits


def _within(takes: Floats, room: Floats) -> Mask:
    """(M,) whether each row of what is taken is no more than what is there."""
    return np.asarray((takes <= room * (1 + ROUNDING)).all(axis=1))


def _gpus_for(member: Indices, sizes: Floats, memory: list[float], place: Place) -> Floats:
    """(2^N,) the GPUs that each set of fractions needs, too many where it does not fit; (2^N, N) member: who is in it."""
    count, gpus = member.shape[1], place.gpus
    small = np.asarray(member @ (sizes == 0) == 0)
    on_one = small & (member @ sizes <= 1 + ROUNDING) & (member @ memory <= place.memory * (1 + ROUNDING))
    on_one[0] = True
    needed = np.full(len(member), gpus + 1.0)
    fitting = np.arange(len(member)) == 0
    needed[0] = 0.0
    for n in range(1, min(gpus, count) + 1):
        fitting = _unions(fitting, on_one, count)
        needed = np.where(fitting, np.minimum(needed, n), needed)
        if (needed[small] <= n).all():
            break
    return needed


def _unions(some: Mask, others: Mask, count: int) -> Mask:
    """(2^N,) which sets are the union of one of each; by the number of such pairs (zeta transform, product, and back)."""
    pairs = _sums(some.astype(np.int64), count, 1) * _sums(others.astype(np.int64), count, 1)
    return _sums(pairs, count, -1) > 0


def _sums(numbers: Indices, count: int, sign: int) -> Indices:
    """(2^N,) the sum over all subsets of each set; with sign -1 its inverse."""
    table = numbers.reshape([2] * count).copy()
    for axis in range(count):
        place: list[slice | int] = [slice(None)] * count
        table[(*place[:axis], 1)] += sign * table[(*place[:axis], 0)]
    return table.ravel()


MOST_GPUS = 8
"""Of a type that is looked at pattern by pattern; of more, each GPU by itself."""

LARGE = 64
"""A type with more GPUs is not looked at: what single GPUs lose beyond the rows of `cuts.fraction_rows` is small."""

ENOUGH = 0.99
"""Where so much of what is asked of one type can be delivered, no further row is looked for."""


def packing_rows(problem: AllocationProblem, fractions: Floats, columns: Columns = ONE_EACH) -> list[Load]:
    """Return rows that every deliverable allocation keeps and (N, K) `fractions` do not; none if they break none.

    columns: as in `gang_rows`. None for a problem that was not built from a cluster, or in which no job asks for a part of a GPU.
    """
    hosts = problem.hosts
    if hosts is None or (problem.num_gpus >= 1).all():
        return []
    types = len(hosts.cpus)
    jobs = np.flatnonzero(problem.runnable[:, :types].any(axis=1))
    few, small = len(jobs) * np.log(types + 1) <= np.log(MOST_STATES), problem.capacities[:types] <= LARGE
    if not few and not small.any():
        return []
    parts = {j: dict(columns.get(j, {j: 1.0})) for j in range(types)}
    times = np.stack([fractions[:, list(each)] @ np.array(list(each.values())) for each in parts.values()], axis=1)
    if not times[problem.num_gpus < 1].any():
        return []
    if few:
        tables = [_of_all_types(problem, hosts, times, jobs)]
    else:
        tables = [_of_one_type(problem, hosts, times, j) for j in np.flatnonzero(small).tolist()]
    rows = []
    for table, most, name in (found for found in tables if found is not None):
        loads = {column: table[:, j] * part for j, each in parts.items() for column, part in each.items() if table[:, j].any()}
        rows.append(Load(f"what fractions of {name} can use", loads, len(problem.capacities), most))
    return rows


def _of_all_types(problem: AllocationProblem, hosts: Hosts, times: Floats, jobs: Indices) -> tuple[Floats, float, str] | None:
    """(N, K) coefficients of a row that these times break, what it allows, and what it is about."""
    types = times.shape[1]
    gpus, runnable = problem.num_gpus[jobs], problem.runnable[jobs, :types]
    known = [_memory(problem, hosts, j) for j in range(types)]
    memory, room = np.column_stack([needed[jobs] for needed, _ in known]), [there for _, there in known]
    hosted = np.column_stack([hosts.cpus_per_gpu[jobs] * gpus, hosts.memory_gb_per_gpu[jobs] * gpus])
    together = hosts.localities[jobs] == "node"
    columns = (gpus.tolist(), runnable.tolist(), memory.tolist(), *hosted.T.tolist(), together.tolist())
    seekers = tuple(Seeker(size, tuple(where), tuple(gb), *rest) for size, where, gb, *rest in zip(*columns, strict=True))
    there = _whole(problem.capacities[:types]).tolist()
    places = tuple(_place(*each) for each in zip(there, room, hosts.rooms, strict=True))
    at_once = configurations(seekers, places)
    if at_once is None:
        return None
    found = broken_row(at_once.reshape(len(at_once), -1).T.astype(float), times[jobs].ravel())
    if found is None:
        return None
    prices, most = found
    # Jobs that can stand for one another and have the same time get the mean of their coefficients: any of them may come first.
    alike = np.column_stack([gpus, runnable, memory, hosted, together, np.round(times[jobs], 9)])
    same = np.unique(alike, axis=0, return_inverse=True)[1].ravel()
    sums = np.zeros((same.max() + 1, types))
    np.add.at(sums, same, prices.reshape(-1, types))
    table = np.zeros_like(times)
    table[jobs] = (sums / np.bincount(same)[:, None])[same]
    return table, most, " and ".join(problem.accelerator_types[:types])


def _of_one_type(problem: AllocationProblem, hosts: Hosts, times: Floats, j: int) -> tuple[Floats, float, str] | None:
    """The same from the patterns of one type."""
    gpus = int(_whole(problem.capacities[j : j + 1])[0])
    able = np.flatnonzero(problem.runnable[:, j])
    if not times[able[problem.num_gpus[able] < 1], j].any():
        return None
    memory, room = _memory(problem, hosts, j)
    groups, kinds = _groups(problem.num_gpus, memory, times[:, j], able, gpus)
    patterns = patterns_at_once(tuple(kinds), gpus, room) if gpus <= MOST_GPUS else None
    if patterns is None:
        found = _gpu_by_gpu(groups, kinds, times[:, j], gpus, room)
    else:
        found = row_of_patterns(groups, times[:, j], patterns, ENOUGH)
    if found is None:
        return None
    table = np.zeros_like(times)
    for group, coefficients in zip(groups, found[0], strict=True):
        table[group.entries, j] = coefficients
    return table, found[1], problem.accelerator_types[j]


def _gpu_by_gpu(
    groups: Sequence[Group], kinds: Sequence[PackingItem], times: Floats, gpus: int, room: float
) -> tuple[list[Floats], float] | None:
    """A row that holds where each GPU by itself runs a mix of what it can hold, as coefficients of each group's entries."""
    small = np.array([kind.gpus < 1 for kind in kinds])
    one = fractions_on_one(tuple(kind for kind in kinds if kind.gpus < 1), room)
    if one is None:
        return None
    rooms = np.zeros((len(one) + 1, int(small.sum()) + 1))
    rooms[:-1, :-1], rooms[-1, -1] = one, 1.0  # the last column: GPUs of whole gangs
    means = np.array([times[group.entries].sum() for group in groups])
    sizes = np.array([kind.gpus for kind in kinds])
    found = broken_row(gpus * rooms.T, np.append(means[small], sizes[~small] @ means[~small]), ENOUGH)
    if found is None:
        return None
    prices, most = found
    each = prices[-1] * sizes
    each[small] = prices[:-1]
    return [np.full(len(group.entries), price) for group, price in zip(groups, each.tolist(), strict=True)], most


def _groups(sizes: Floats, memory: Floats, times: Floats, able: Indices, gpus: int) -> tuple[list[Group], list[PackingItem]]:
    """The jobs that may be given time by what they take, the largest gangs first."""
    kinds, of = np.unique(np.column_stack([sizes[able], memory[able]]), axis=0, return_inverse=True)
    groups, counted = [], []
    for g in range(len(kinds) - 1, -1, -1):
        entries = able[of.ravel() == g]
        size, taken = kinds[g].tolist()
        entries = entries[np.argsort(-times[entries], kind="stable")]
        most = min(len(entries), int(gpus / size + LEAST_EXCESS))
        groups.append(group_of(int(size), "any", entries, times[entries], most))
        counted.append(PackingItem(size, taken, most))
    return groups, counted


def _memory(problem: AllocationProblem, hosts: Hosts, j: int) -> tuple[Floats, float]:
    """(N,) GB that each job with a part of a GPU takes of it on a type, and GB of each GPU; 0 and infinite where unknown."""
    memory = hosts.gpu_memory
    if memory is None or np.isnan(memory.capacity[j]):
        return np.zeros(problem.num_jobs), np.inf
    return np.where(problem.num_gpus < 1, np.nan_to_num(memory.needed[:, j]), 0.0), float(memory.capacity[j])


def _place(gpus: int, memory: float, nodes: tuple[tuple[int, float, float], ...]) -> Place:
    """A type with its nodes; GPUs beyond theirs, in problems with other capacities, are on a node that has all that they need."""
    more = gpus - sum(node[0] for node in nodes)
    return Place(gpus, memory, (*nodes, (more, np.inf, np.inf)) if more > 0 else nodes)


def _whole(capacities: Floats) -> Indices:
    return (capacities + LEAST_EXCESS).astype(np.int64)
