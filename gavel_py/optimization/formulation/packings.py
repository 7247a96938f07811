"""Cutting planes of jobs that share a GPU: rows that follow from the sets of jobs that fit on the GPUs of a type at once.

A GPU holds jobs whose fractions sum to at most 1 and whose memory it has, or belongs to a whole gang. The packings are enumerated
if there are not too many (`patterns_at_once`, `configurations`). With few jobs, the CPUs and the memory of their nodes count too.

A job is on one GPU and on one type at a time. If a type has room for more jobs of a fraction than there are, the sum of fractions
underestimates their need: a single job of a third occupies a GPU if the other jobs need whole GPUs. `packing_rows` therefore
searches for a mix of packings that delivers the time fractions: on all types together if there are few jobs, else on each type by
itself. If there is none, the dual values of the program of the mix are a row (`cuts.broken_row`).

If there are too many packings, `fraction_rows` remain: let f be a dual feasible function, f(s_1) + f(s_2) + ... <= 1 whenever s_1
+ s_2 + ... <= 1. At any one time a GPU holds jobs whose fractions sum to at most 1, or belongs to a whole gang, so that Σ_i f(s_i)
X_ij <= c_j with f(s) = s for whole gangs, wherever the jobs are. Such functions are

    cut_λ(s) = 0 below λ, 1 above 1 - λ, and s between, for 0 < λ <= 1/2:  beside a large job, only small jobs fit;
    part_k(s) = s if (k+1) s is whole, otherwise ⌊(k+1) s⌋ / k:  at most k jobs above 1/(k+1) fit,

and their compositions (Martello and Toth, 1990; Fekete and Schepers, 2001). The same holds for the parts of the GPU's memory that
jobs take instead of their fractions.

Whole replicas that stay on their nodes have rows of their own (`node_rows`), and so have gangs under a limit that holds at any one
time (`limit_rows`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavel_py.optimization.formulation.cuts import (
    ONE_EACH,
    SizeGroup,
    broken_row,
    group_of,
    requested_times,
    row_of_gangs,
    row_of_patterns,
)
from gavel_py.optimization.formulation.linear_rows import Limit, Load
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.tolerances import CLEAR, INPUT_ROUNDING

if TYPE_CHECKING:
    from gavel_py.problem.from_jobs import Hosts
    from gavel_py.problem.problem import AllocationProblem

Widths = Mapping[int, Mapping[int, float]]
"""{type: {column: GPUs of the type for each GPU requested}}."""

MOST_PATTERNS = 1500
"""Maximum number of patterns of one type."""

BLOCK = 64
"""Number of patterns that are compared with all others at a time."""

MOST_SUMS = 3000
"""Maximum number of combinations of jobs on one GPU, before dominated ones are removed."""

MOST_UNIONS = 12_000
"""The same on several GPUs, with one more GPU or with gangs."""

MOST_UNIONS_IN_ALL = 80_000
"""Maximum number of combinations that are compared for all numbers of GPUs up to those of a type, which takes about 0.2 s."""

MOST_STATES = 100_000
"""Maximum number of assignments of jobs to types or to none."""


class PackingItem(NamedTuple):
    """Jobs of one size. gpus: of each job; memory: GB of its GPU that each job takes, 0 for whole gangs; number: number of jobs."""

    gpus: float
    memory: float
    number: int


class PackingJob(NamedTuple):
    """A job to be packed.

    Attributes:
        gpus: Number of GPUs, or part of one.
        runnable: (K,) types on which it may run.
        memory: (K,) GB that it takes of a GPU, 0 for whole gangs.
        cpus, host_memory: CPUs and GB of memory that it takes on its nodes.
        together: Whether it must be on one node.
    """

    gpus: float
    runnable: tuple[bool, ...]
    memory: tuple[float, ...]
    cpus: float = 0.0
    host_memory: float = 0.0
    together: bool = False


class TypeCapacity(NamedTuple):
    """The capacity of a type. gpus: total; memory: GB of each GPU; nodes: GPUs, CPUs and GB of each node."""

    gpus: int
    memory: float
    nodes: tuple[tuple[int, float, float], ...]


@lru_cache(maxsize=32)
def patterns_at_once(items: tuple[PackingItem, ...], gpus: int, memory: float) -> Indices | None:
    """Return (P, items) the maximal numbers of jobs that fit on these GPUs at once.

    memory: GB of each GPU. None if there are too many patterns.
    """
    fitting = _fractions_on(tuple(item for item in items if item.gpus < 1), gpus, memory)
    if fitting is None:
        return None
    small = np.array([item.gpus < 1 for item in items])
    found: list[tuple[tuple[int, ...], int]] = [((), gpus)]
    for item in items:
        if item.gpus >= 1:
            size = int(item.gpus)
            found = [((*gangs, n), left - n * size) for gangs, left in found for n in range(min(item.number, left // size) + 1)]
            if len(found) > MOST_PATTERNS:
                return None
    numbers = [len(fitting[left]) for _, left in found]
    if sum(numbers) > MOST_UNIONS:
        return None
    patterns = np.zeros((sum(numbers), len(items)), dtype=np.int64)
    patterns[:, small] = np.concatenate([fitting[left] for _, left in found])
    patterns[:, ~small] = np.repeat([gangs for gangs, _ in found], numbers, axis=0)
    return _largest(patterns)


def _fractions_on(items: tuple[PackingItem, ...], gpus: int, memory: float) -> list[Indices] | None:
    """Return the maximal numbers of fractional jobs that fit on 0, 1, ..., `gpus` GPUs; None if there are too many."""
    one = fractions_on_one(items, memory)
    if one is None:
        return None
    counts = np.array([item.number for item in items], dtype=np.int64)
    found, compared = [np.zeros((1, len(items)), dtype=np.int64)], 0
    for _ in range(gpus):
        more = len(found[-1]) * len(one)
        compared += more
        if more > MOST_UNIONS or compared > MOST_UNIONS_IN_ALL:
            return None
        largest = _largest(np.minimum((found[-1][:, None] + one).reshape(-1, len(items)), counts))
        if largest is None:
            return None
        found.append(largest)
    return found


@lru_cache(maxsize=32)
def fractions_on_one(items: tuple[PackingItem, ...], memory: float) -> Indices | None:
    """Return (P, items) the maximal numbers of jobs that fit on one GPU; None if there are too many."""
    found = [((), 1.0, memory)]
    for item in items:
        limits = [min(item.number, _times(left, item.gpus), _times(free, item.memory)) for _, left, free in found]
        found = [
            ((*numbers, n), left - n * item.gpus, free - n * item.memory)  # type: ignore[misc]
            for (numbers, left, free), limit in zip(found, limits, strict=True)
            for n in range(limit + 1)
        ]
        if len(found) > MOST_SUMS:
            return None
    return _largest(np.array([numbers for numbers, _, _ in found], dtype=np.int64).reshape(-1, len(items)))


def _times(room: float, each: float) -> int:
    """Return how many times `each` fits into `room`."""
    return int(min(1e6, room * (1 + INPUT_ROUNDING) / each + INPUT_ROUNDING)) if each > 0 else 1_000_000


def _largest(vectors: Indices) -> Indices | None:
    """Return the vectors of (M, items) that no other one dominates; None if there are too many."""
    vectors = np.unique(vectors, axis=0)
    vectors = vectors[np.argsort(-vectors.sum(axis=1), kind="stable")]  # a later one dominates none
    chosen = vectors[:0]
    for block in np.split(vectors, range(BLOCK, len(vectors), BLOCK)):
        left = block[~_at_most(block, chosen).any(axis=1)]
        chosen = np.concatenate([chosen, left[~np.tril(_at_most(left, left), -1).any(axis=1)]])
        if len(chosen) > MOST_PATTERNS:
            return None
    return chosen


def _at_most(vectors: Indices, others: Indices) -> Mask:
    """Return (M, M') whether a vector is at most another one in all items."""
    found = np.ones((len(vectors), len(others)), dtype=bool)
    for own, other in zip(vectors.T, others.T, strict=True):
        found &= own[:, None] <= other
    return found


@lru_cache(maxsize=8)
def configurations(jobs: tuple[PackingJob, ...], types: tuple[TypeCapacity, ...]) -> Mask | None:
    """Return (C, N, K) all assignments of N jobs to K types that fit at once and to which no idle job can be added.

    There must be at most `MOST_STATES` assignments. None if all jobs fit at once on any of their types.
    """
    count, nowhere = len(jobs), len(types)
    fits = [_sets_on(jobs, place, j) for j, place in enumerate(types)]
    able = [sum(1 << i for i, job in enumerate(jobs) if job.runnable[j]) for j in range(nowhere)]
    if all(fit[runnable] for fit, runnable in zip(fits, able, strict=True)):
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


def _sets_on(jobs: tuple[PackingJob, ...], place: TypeCapacity, j: int) -> Mask:
    """Return a (2^N,) mask of the sets of N jobs, as bits of the index, that fit on type j at once.

    Gangs that may be spread must fit into the GPUs, CPUs and memory of all nodes; the others must fit node by node.
    """
    count = len(jobs)
    sets = np.arange(1 << count)
    member = (sets[:, None] >> np.arange(count)) & 1
    size, small = np.array([job.gpus for job in jobs]), np.array([job.gpus < 1 for job in jobs])
    needed = _gpus_for(member, np.where(small, size, 0.0), [job.memory[j] for job in jobs], place)
    needed = needed[member @ (small * (1 << np.arange(count)))] + member @ np.where(small, 0.0, size)
    takes = np.stack([needed, member @ [job.cpus for job in jobs], member @ [job.host_memory for job in jobs]], axis=1)
    nodes = np.array(place.nodes).reshape(-1, 3)
    not_runnable = member @ [not job.runnable[j] for job in jobs]
    fits: Mask = _within(takes, np.append(place.gpus, nodes[:, 1:].sum(axis=0))) & (not_runnable == 0)
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
    """Return (M,) whether each row of requests fits into the free room."""
    return np.asarray((takes <= room * (1 + INPUT_ROUNDING)).all(axis=1))


def _gpus_for(member: Indices, sizes: Floats, memory: list[float], place: TypeCapacity) -> Floats:
    """Return (2^N,) the GPUs that each set of fractions needs, gpus + 1 if it does not fit. member: (2^N, N) its jobs."""
    count, gpus = member.shape[1], place.gpus
    small = np.asarray(member @ (sizes == 0) == 0)
    on_one = small & (member @ sizes <= 1 + INPUT_ROUNDING) & (member @ memory <= place.memory * (1 + INPUT_ROUNDING))
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
    """Return a (2^N,) mask of the unions of a set of one mask and a set of the other (zeta transform, product, inverse)."""
    pairs = _sums(some.astype(np.int64), count, 1) * _sums(others.astype(np.int64), count, 1)
    return _sums(pairs, count, -1) > 0


def _sums(numbers: Indices, count: int, sign: int) -> Indices:
    """Return (2^N,) the sums over all subsets of each set (zeta transform), or with sign -1 the inverse."""
    table = numbers.reshape([2] * count).copy()
    for axis in range(count):
        place: list[slice | int] = [slice(None)] * count
        table[(*place[:axis], 1)] += sign * table[(*place[:axis], 0)]
    return table.ravel()


LARGE = 64
"""Maximum size of a type for rows; for larger types, they gain little over those of `fraction_rows`."""


def packing_rows(problem: AllocationProblem, fractions: Floats, columns: Widths = ONE_EACH) -> list[Load]:
    """Return rows that all deliverable allocations satisfy and (N, K') `fractions` break, none if they break none.

    columns: as in `gang_rows`. There are no rows for a problem that was not built from a cluster, or without jobs that need
    fractions of GPUs, or CPUs or memory of nodes. Rows for CPUs and memory exist only if there are few jobs.
    """
    hosts = problem.hosts
    if hosts is None:
        return []
    is_limited = (problem.num_gpus < 1) | (hosts.per_gpu > 0).any(axis=1)
    if not is_limited.any():
        return []
    types = len(hosts.cpus)
    jobs = np.flatnonzero(problem.runnable[:, :types].any(axis=1))
    few, small = len(jobs) * np.log(types + 1) <= np.log(MOST_STATES), problem.capacities[:types] <= LARGE
    if not few and not small.any():
        return []
    parts = {j: dict(columns.get(j, {j: 1.0})) for j in range(types)}
    times = np.stack([fractions[:, list(each)] @ np.array(list(each.values())) for each in parts.values()], axis=1)
    if not times[is_limited].any():
        return []
    if few:
        tables = [_of_all_types(problem, hosts, times, jobs)]
    else:
        tables = [_of_one_type(problem, hosts, times, j) for j in np.flatnonzero(small).tolist()]
    rows, has_fractions = [], bool((problem.num_gpus < 1).any())
    for table, limit, name in (found for found in tables if found is not None):
        loads = {column: table[:, j] * part for j, each in parts.items() for column, part in each.items() if table[:, j].any()}
        what = (
            f"what fractions of {name} can use" if has_fractions else f"what CPUs and memory of the nodes with {name} allow at once"
        )
        rows.append(Load(what, loads, len(problem.capacities), limit))
    return rows


def _of_all_types(problem: AllocationProblem, hosts: Hosts, times: Floats, jobs: Indices) -> tuple[Floats, float, str] | None:
    """Return (N, K) coefficients of a row that these times break, its right-hand side, and the names of the types."""
    types = times.shape[1]
    gpus, runnable = problem.num_gpus[jobs], problem.runnable[jobs, :types]
    known = [_memory(problem, hosts, j) for j in range(types)]
    memory, room = np.column_stack([needed[jobs] for needed, _ in known]), [there for _, there in known]
    hosted = hosts.per_gpu[jobs] * gpus[:, None]
    together = hosts.localities[jobs] == "node"
    columns = (gpus.tolist(), runnable.tolist(), memory.tolist(), *hosted.T.tolist(), together.tolist())
    candidates = tuple(PackingJob(size, tuple(where), tuple(gb), *rest) for size, where, gb, *rest in zip(*columns, strict=True))
    there = _whole(problem.capacities[:types]).tolist()
    places = tuple(_place(*each) for each in zip(there, room, hosts.rooms, strict=True))
    at_once = configurations(candidates, places)
    if at_once is None:
        return None
    found = broken_row(at_once.reshape(len(at_once), -1).T.astype(float), times[jobs].ravel())
    if found is None:
        return None
    prices, limit = found
    # Interchangeable jobs with equal times get the mean of their coefficients, since the row holds for any order of them.
    alike = np.column_stack([gpus, runnable, memory, hosted, together, np.round(times[jobs], 9)])
    same = np.unique(alike, axis=0, return_inverse=True)[1].ravel()
    sums = np.zeros((same.max() + 1, types))
    np.add.at(sums, same, prices.reshape(-1, types))
    table = np.zeros_like(times)
    table[jobs] = (sums / np.bincount(same)[:, None])[same]
    return table, limit, " and ".join(problem.accelerator_types[:types])


def _of_one_type(problem: AllocationProblem, hosts: Hosts, times: Floats, j: int) -> tuple[Floats, float, str] | None:
    """Return a row in the form of `_of_all_types`, from the patterns of one type."""
    gpus = int(_whole(problem.capacities[j : j + 1])[0])
    able = np.flatnonzero(problem.runnable[:, j])
    if not times[able[problem.num_gpus[able] < 1], j].any():
        return None
    memory, room = _memory(problem, hosts, j)
    groups, items = _groups(problem.num_gpus, memory, times[:, j], able, gpus)
    patterns = patterns_at_once(tuple(items), gpus, room)
    if patterns is None:
        found = _gpu_by_gpu(groups, items, times[:, j], gpus, room)
    else:
        found = row_of_patterns(groups, times[:, j], patterns)
    if found is None:
        return None
    table = np.zeros_like(times)
    for group, coefficients in zip(groups, found[0], strict=True):
        table[group.entries, j] = coefficients
    return table, found[1], problem.accelerator_types[j]


def _gpu_by_gpu(
    groups: Sequence[SizeGroup], items: Sequence[PackingItem], times: Floats, gpus: int, room: float
) -> tuple[list[Floats], float] | None:
    """Return a row that holds if each GPU is packed by itself, as coefficients by group and its right-hand side."""
    small = np.array([item.gpus < 1 for item in items])
    one = fractions_on_one(tuple(item for item in items if item.gpus < 1), room)
    if one is None:
        return None
    rooms = np.zeros((len(one) + 1, int(small.sum()) + 1))
    rooms[:-1, :-1], rooms[-1, -1] = one, 1.0  # the last column: GPUs of whole gangs
    means = np.array([times[group.entries].sum() for group in groups])
    sizes = np.array([item.gpus for item in items])
    found = broken_row(gpus * rooms.T, np.append(means[small], sizes[~small] @ means[~small]))
    if found is None:
        return None
    prices, limit = found
    each = prices[-1] * sizes
    each[small] = prices[:-1]
    return [np.full(len(group.entries), price) for group, price in zip(groups, each.tolist(), strict=True)], limit


def _groups(sizes: Floats, memory: Floats, times: Floats, able: Indices, gpus: int) -> tuple[list[SizeGroup], list[PackingItem]]:
    """Group the jobs that may have time by GPUs and memory, the largest gangs first."""
    kinds, kind_of = np.unique(np.column_stack([sizes[able], memory[able]]), axis=0, return_inverse=True)
    groups, counted = [], []
    for g in range(len(kinds) - 1, -1, -1):
        entries = able[kind_of.ravel() == g]
        size, taken = kinds[g].tolist()
        entries = entries[np.argsort(-times[entries], kind="stable")]
        limit = min(len(entries), int(gpus / size + CLEAR))
        groups.append(group_of(entries, times[entries], limit))
        counted.append(PackingItem(size, taken, limit))
    return groups, counted


def _memory(problem: AllocationProblem, hosts: Hosts, j: int) -> tuple[Floats, float]:
    """Return (N,) GB that each fractional job takes of a GPU of a type, and GB of each GPU; 0 and infinite if unknown."""
    memory = hosts.gpu_memory
    if memory is None or np.isnan(memory.capacity[j]):
        return np.zeros(problem.num_jobs), np.inf
    return np.where(problem.num_gpus < 1, np.nan_to_num(memory.needed[:, j]), 0.0), float(memory.capacity[j])


def _place(gpus: int, memory: float, nodes: tuple[tuple[int, float, float], ...]) -> TypeCapacity:
    """Return the capacity of a type; GPUs beyond those of its nodes are on a node with unlimited CPUs and memory."""
    more = gpus - sum(node[0] for node in nodes)
    return TypeCapacity(gpus, memory, (*nodes, (more, np.inf, np.inf)) if more > 0 else nodes)


def _whole(capacities: Floats) -> Indices:
    return (capacities + CLEAR).astype(np.int64)


MOST_PARTS = 20
"""The largest k of part_k."""

MEMORY_PARTS = 64
"""Parts into which the memory of a GPU is divided, to limit the number of functions."""


def fraction_rows(problem: AllocationProblem, fractions: Floats, columns: Widths = ONE_EACH) -> list[Load]:
    """Return the rows of dual feasible functions that (N, K') `fractions` break most, at most one for each type.

    columns: as in `gang_rows`. There are no rows for a problem that was not built from a cluster.
    """
    hosts = problem.hosts
    if hosts is None or (problem.num_gpus >= 1).all():
        return []
    parts = _DualFeasibleFunctions(problem.num_gpus)
    rows = []
    for j, gpus in enumerate(problem.capacities[: len(hosts.cpus)].tolist()):
        widths = columns.get(j, {j: 1.0})
        times = sum((fractions[:, column] * width for column, width in widths.items()), np.zeros(problem.num_jobs))
        memory = _memory_parts(problem.num_gpus, hosts.gpu_memory, j)
        for what, functions in (
            ("fractions", parts),
            ("the memory of fractions", None if memory is None else _DualFeasibleFunctions(memory)),
        ):
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
    taken = np.floor(np.minimum(taken, 1.0) * MEMORY_PARTS + INPUT_ROUNDING) / MEMORY_PARTS
    small = num_gpus < 1
    return np.where(small, taken, num_gpus) if taken[small].any() else None


class _DualFeasibleFunctions:
    """The values of all functions for (N,) sizes of jobs in GPUs."""

    def __init__(self, sizes: Floats) -> None:
        known, self._of = np.unique(sizes, return_inverse=True)
        self._table = np.zeros((1, len(known)))
        if known[-1] > 0:
            self._table = np.pad(_values(known[known > 0]), ((0, 0), (int((known <= 0).sum()), 0)))

    def most_broken(self, times: Floats, gpus: float) -> Floats | None:
        """Return (N,) the values of the function with the largest excess of these times over the GPUs, None if none has one."""
        used = self._table @ np.bincount(self._of, times, self._table.shape[1])
        worst = int(used.argmax())
        if used[worst] <= gpus + CLEAR * max(1.0, gpus):
            return None
        counted: Floats = self._table[worst][self._of]
        return counted


def _values(sizes: Floats) -> Floats:
    """Return (F, S) the value of each function for sorted sizes; f(s) = s for whole gangs."""
    small = sizes[sizes <= 1 / 2]
    cuts = [sizes, *(_cut(sizes, least) for least in small.tolist())]
    every = [*cuts, *(_part(each, k) for each in cuts for k in range(1, min(MOST_PARTS, int(1 / sizes[0] + INPUT_ROUNDING)) + 1))]
    return np.where(sizes >= 1, sizes, np.unique(every, axis=0))


def _cut(sizes: Floats, least: float) -> Floats:
    return np.where(sizes < least - INPUT_ROUNDING, 0.0, np.where(sizes > 1 - least + INPUT_ROUNDING, 1.0, sizes))


def _part(sizes: Floats, k: int) -> Floats:
    multiples = (k + 1) * sizes
    whole = np.abs(multiples - np.round(multiples)) < INPUT_ROUNDING
    return np.where(whole, sizes, np.floor(multiples) / k)


def limit_rows(problem: AllocationProblem, limits: Sequence[Limit], fractions: Floats, parts: Floats) -> list[Load]:
    """Return rows of whole gangs under limits that hold at any one time, as of gangs on one type, that (N, K') `fractions` break.

    There are none for limits on types of different weights. parts: (K',) GPUs in each column for each that a gang requests.
    """
    anywhere, found = np.zeros(problem.num_jobs, dtype=np.int64), list[Load]()
    for limit in limits:
        counted = np.flatnonzero(limit.per_gpu > 0)
        weights = limit.per_gpu[counted] / parts[counted]
        if not len(counted) or np.ptp(weights) > CLEAR * weights[0]:
            continue
        requested = requested_times(problem, anywhere, fractions, dict(zip(counted.tolist(), parts[counted].tolist(), strict=True)))
        whole = (limit.group & (problem.num_gpus >= 1))[requested.jobs]
        regions = (int(limit.limit / weights[0] + CLEAR),), (), ()
        found += row_of_gangs(problem, replace(requested, able=requested.able & whole), regions, limit.name)
    return found


class NodeRow(NamedTuple):
    """The row Σ_k uses_k y_k + Σ_p packings_p z_p <= limit for (K,) kinds of replicas and (P,) packings of nodes."""

    name: str
    limit: float
    uses: Floats
    packings: Floats


def node_rows(name: str, sizes: Indices, numbers: Indices, nodes: Sequence[int]) -> tuple[list[NodeRow], Floats]:
    """Return rows that whole numbers y_k of replicas satisfy if and only if the nodes can hold all of them at once.

    If each size divides the next larger one, P = 0 and the rows are Σ_k n_k ⌊s_k / s⌋ y_k <= Σ_nodes ⌊m / s⌋ for each size s, since
    the largest can be placed first. Otherwise z_p nodes hold the pattern p, with a_ps parts of each size: the rows are
    Σ_k n_k [s_k = s] y_k <= Σ_p a_ps z_p, and Σ_p z_p <= number of nodes for each size m of nodes. If a node has too many
    patterns, z counts its parts of each size: Σ_s s z_s <= m. Parts of one GPU go wherever GPUs are left, and have no row.

    Args:
        name: The type of the nodes.
        sizes: (K,) s_k, the GPUs of a part of each replica; a part is on one node.
        numbers: (K,) n_k, the parts of each replica; 0 for replicas that are not on these nodes.
        nodes: The GPUs of each node.

    Returns:
        The rows, and (P,) the largest z_p.
    """
    kinds, counts = sorted(set(sizes[(numbers > 0) & (sizes > 1)].tolist()), reverse=True), Counter(nodes)
    if all(large % small == 0 for large, small in pairwise(kinds)):
        broken = [size for size in kinds if any(gpus % size for gpus in counts)]
        blocks = {size: float(sum(gpus // size * count for gpus, count in counts.items())) for size in broken}
        none = np.zeros(0)
        return [NodeRow(_groups_name(s, name), limit, numbers * (sizes // s * 1.0), none) for s, limit in blocks.items()], none
    packed = [part for gpus, count in counts.items() for part in _packed(name, kinds, gpus, count)]
    places = np.concatenate([part.places for part in packed])
    rows = [
        NodeRow(_groups_name(size, name), 0.0, numbers * (sizes == size) * 1.0, -places[:, s] * 1.0) for s, size in enumerate(kinds)
    ]
    of = np.repeat(np.arange(len(packed)), [len(part.places) for part in packed])
    taken, none = np.concatenate([part.taken for part in packed]), np.zeros(len(sizes))
    rows += [NodeRow(part.name, part.limit, none, taken * (of == n)) for n, part in enumerate(packed)]
    return rows, np.concatenate([part.most for part in packed])


def _groups_name(size: int, name: str) -> str:
    return f"groups of {size} GPUs of {name} on one node"


class _PackedNodes(NamedTuple):
    """Equal nodes. places: (p, S) parts of each size in a packing; taken: (p,) of the limit; most: (p,) number of each."""

    name: str
    limit: float
    places: Indices
    taken: Floats
    most: Floats


def _packed(name: str, sizes: Sequence[int], gpus: int, count: int) -> list[_PackedNodes]:
    patterns = node_patterns(tuple(sizes), gpus)
    if patterns is not None:
        each = np.ones(len(patterns))
        return [_PackedNodes(f"nodes with {gpus} GPUs of {name}", float(count), patterns, each, count * each)]
    taken = np.array(sizes, dtype=float)
    titles = [f"GPUs of {name} on node {n} of {count} with {gpus}" for n in range(1, count + 1)]
    return [_PackedNodes(title, float(gpus), np.eye(len(sizes), dtype=np.intp), taken, gpus // taken) for title in titles]


@lru_cache(maxsize=256)
def node_patterns(sizes: tuple[int, ...], gpus: int) -> Indices | None:
    """Return (P, S) the maximal numbers of parts of each size, in descending order, on a node; None if there are too many."""
    found: list[tuple[tuple[int, ...], int]] = [((), gpus)]
    for size in sizes[:-1]:
        found = [((*numbers, n), left - n * size) for numbers, left in found for n in range(left // size + 1)]
        if len(found) > MOST_PATTERNS:
            return None
    return np.array([(*numbers, left // sizes[-1]) for numbers, left in found], dtype=np.intp)
