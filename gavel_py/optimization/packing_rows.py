"""What jobs with parts of GPUs can have beside each other and beside whole gangs: rows that keep more from being promised.

A job is on one GPU and in one place at a time. Where a type has room for more jobs of a fraction than there are, their sum says
too little of what they take: one job of a third, beside jobs that want whole GPUs only, has a GPU to itself. So a mix is looked for
of what can run at once: on all types together where there are few jobs, else on each type by itself (`packings`). If no mix has
room for what is asked, the dual values of the program that looks for one are a row (`mixes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.linear_rows import Load
from gavel_py.optimization.mixes import LEAST_EXCESS, ONE_EACH, Group, broken_row, group_of, row_of_patterns
from gavel_py.optimization.packings import MOST_STATES, Kind, Place, Seeker, configurations, fractions_on_one, patterns_at_once
from gavel_py.problem.from_jobs import Hosts
from gavel_py.problem.problem import AllocationProblem

__all__ = ["packing_rows"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_GPUS = 8
"""Of a type that is looked at pattern by pattern; of more, each GPU by itself."""

LARGE = 64
"""A type with more GPUs is not looked at: what single GPUs lose beyond the rows of all fractions (`fraction_rows`) is small."""

ENOUGH = 0.99
"""Where so much of what is asked of one type can be delivered, no further row is looked for."""

Columns = Mapping[int, Mapping[int, float]]


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
    groups: Sequence[Group], kinds: Sequence[Kind], times: Floats, gpus: int, room: float
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


def _groups(sizes: Floats, memory: Floats, times: Floats, able: Indices, gpus: int) -> tuple[list[Group], list[Kind]]:
    """The jobs that may be given time by what they take, the largest gangs first."""
    kinds, of = np.unique(np.column_stack([sizes[able], memory[able]]), axis=0, return_inverse=True)
    groups, counted = [], []
    for g in range(len(kinds) - 1, -1, -1):
        entries = able[of.ravel() == g]
        size, taken = kinds[g].tolist()
        entries = entries[np.argsort(-times[entries], kind="stable")]
        most = min(len(entries), int(gpus / size + LEAST_EXCESS))
        groups.append(group_of(int(size), "any", entries, times[entries], most))
        counted.append(Kind(size, taken, most))
    return groups, counted


def _memory(problem: AllocationProblem, hosts: Hosts, j: int) -> tuple[Floats, float]:
    """(N,) GB that each job with a part of a GPU takes of it on a type, and GB of each GPU; 0 and infinite where unknown."""
    memory = hosts.gpu_memory
    if memory is None or np.isnan(memory.there[j]):
        return np.zeros(problem.num_jobs), np.inf
    return np.where(problem.num_gpus < 1, np.nan_to_num(memory.needed[:, j]), 0.0), float(memory.there[j])


def _place(gpus: int, memory: float, nodes: tuple[tuple[int, float, float], ...]) -> Place:
    """A type with its nodes; GPUs beyond theirs, in problems with other capacities, are on a node that has all that they need."""
    more = gpus - sum(node[0] for node in nodes)
    return Place(gpus, memory, (*nodes, (more, np.inf, np.inf)) if more > 0 else nodes)


def _whole(capacities: Floats) -> Indices:
    return (capacities + LEAST_EXCESS).astype(np.int64)
