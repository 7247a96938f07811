"""Who can be on the GPUs of a type at once: jobs that ask for parts of GPUs and whole gangs, by the GPUs and memory that they need.

A GPU holds jobs of fractions that sum to at most 1, with the memory that it has for all of them, or is one of a whole gang's. What
fits is found exactly, as far as there are not too many ways. Of few jobs, the CPUs and the memory of their nodes count too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_STATES", "Kind", "Place", "Seeker", "configurations", "fractions_on_one", "patterns_at_once"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-9
"""A part of a GPU that is told from none: three thirds are one."""

MOST_PATTERNS = 500
"""Of one type; more are not looked through."""

MOST_SUMS = 3000
"""What patterns of some GPUs and of one more make together, before those are left out that others exceed."""

MOST_STATES = 100_000
"""Ways to send some jobs to types, or nowhere; more are not looked through."""


class Kind(NamedTuple):
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
def patterns_at_once(kinds: tuple[Kind, ...], gpus: int, memory: float) -> Indices | None:
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


def _fractions_on(kinds: tuple[Kind, ...], gpus: int, memory: float) -> list[Indices] | None:
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
def fractions_on_one(kinds: tuple[Kind, ...], memory: float) -> Indices | None:
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
