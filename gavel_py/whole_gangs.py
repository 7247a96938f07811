"""What no packing of whole gangs can deliver: rows that keep it from being promised.

At any one time a type runs a pattern, so many gangs of each size with Σ_s s·n_s <= c_j. What is delivered in the long run is a mix
of patterns, λ_p >= 0 of the time with Σ_p λ_p <= 1, in which each job holds at most one place at a time. So of the jobs of size s,
those k with the most time on the type can have no more than Σ_p λ_p·min(k, n_sp) together, for every k; and these inequalities are
also enough for one type by itself. Where none of the mixes has room for a type's time fractions, the dual values of the linear
program that looks for one are a row that all deliverable allocations keep and these do not.

Gangs that must stay on one node or rack count by what these hold: gangs of at least d GPUs take Σ_s ⌊s/d⌋·n_s of the Σ_v ⌊m_v/d⌋
places of d GPUs there. Where gangs are small against a type there are too many patterns, and hardly anything is lost without a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.hosts import Hosts
from gavel_py.problem import AllocationProblem
from gavel_py.rules import Load

__all__ = ["gang_rows"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MOST_PATTERNS = 1000

SMALL = 16
"""A type with so many times the GPUs of its largest gang is not looked at pattern by pattern."""

LEAST_EXCESS = 1e-7
"""Time fractions that exceed what can be delivered by a smaller part are taken for deliverable."""


def gang_rows(problem: AllocationProblem, fractions: Floats) -> list[Load]:
    """Return rows that every deliverable allocation keeps and (N, K) `fractions` do not, at most one for each type.

    None for a problem that was not built from a cluster.
    """
    if problem.hosts is None:
        return []
    found = (_row_of(problem, problem.hosts, fractions[:, j], j) for j in range(len(problem.capacities)))
    return [row for row in found if row is not None]


def _row_of(problem: AllocationProblem, hosts: Hosts, times: Floats, j: int) -> Load | None:
    gpus = int(problem.capacities[j] + LEAST_EXCESS)
    groups = _groups(problem, hosts, times, j, gpus)
    if all(group.size == 1 for group in groups):
        return None
    bounds = _bounds(groups, hosts, j, gpus)
    means = np.array([times[group.jobs].sum() for group in groups])
    if all(takes @ np.ceil(means - LEAST_EXCESS) <= places for takes, places in bounds):
        return None  # as many places all of the time as are needed in the mean
    patterns = _patterns(groups, bounds) if groups[0].size * SMALL > gpus else None
    found = _by_places(groups, means, bounds) if patterns is None else _by_patterns(groups, times, patterns)
    if found is None:
        return None
    by_group, most = found
    coefficients = np.zeros(len(times))
    for group, values in zip(groups, by_group, strict=True):
        coefficients[group.jobs] = values
    name = f"what whole gangs can use of {problem.accelerator_types[j]}"
    return Load(name, coefficients, j, len(problem.capacities), most)


def _by_places(groups: Sequence[_Group], means: Floats, bounds: Sequence[tuple[Floats, int]]) -> tuple[list[Floats], float] | None:
    """The bound that is broken most, as coefficients of the jobs of each group and what they sum up to at most."""
    parts = [float(takes @ means) / max(places, LEAST_EXCESS) for takes, places in bounds]
    takes, places = bounds[int(np.argmax(parts))]
    if max(parts) <= 1 + LEAST_EXCESS:
        return None
    return [np.full(len(group.jobs), each) for group, each in zip(groups, takes.tolist(), strict=True)], float(places)


def _by_patterns(groups: Sequence[_Group], times: Floats, patterns: Indices) -> tuple[list[Floats], float] | None:
    """A row that all mixes of patterns keep and these times do not, in the same form."""
    rooms = np.vstack([group.rooms(counts) for group, counts in zip(groups, patterns.T, strict=True)])
    deliverable, prices = _best_mix(rooms, np.concatenate([group.asked(times) for group in groups]))
    if deliverable >= 1 - LEAST_EXCESS:
        return None
    ends = np.cumsum([len(group.numbers) for group in groups])
    own = np.split(prices, ends[:-1])
    return [group.coefficients(times, each) for group, each in zip(groups, own, strict=True)], float((prices @ rooms).max())


@dataclass(frozen=True, eq=False)
class _Group:
    """The jobs of one gang size and locality that may run on a type, those with the most time first; most: of them at once."""

    size: int
    locality: str
    jobs: Indices
    most: int

    @property
    def numbers(self) -> list[int]:
        """The k for which those k with the most time are looked at; the last is all of them."""
        return [*range(1, self.most), len(self.jobs)]

    def rooms(self, counts: Indices) -> Floats:
        """(k, P) the places that k of them can hold at once in each pattern."""
        return np.array([np.minimum(k, counts) for k in self.numbers], dtype=float)

    def asked(self, times: Floats) -> Floats:
        """(k,) the time of those k with the most."""
        sums: Floats = np.cumsum(times[self.jobs])[np.array(self.numbers) - 1]
        return sums

    def coefficients(self, times: Floats, prices: Floats) -> Floats:
        """What a job's time counts for: the prices of all k in which it is among the k, their mean for jobs with the same time."""
        alone = np.zeros(len(self.jobs))
        for k, price in zip(self.numbers, prices, strict=True):
            alone[:k] += price
        same = np.unique(np.round(times[self.jobs], 9), return_inverse=True)[1]
        means: Floats = np.bincount(same, alone) / np.bincount(same)
        return means[same]


def _groups(problem: AllocationProblem, hosts: Hosts, times: Floats, j: int, gpus: int) -> list[_Group]:
    """The jobs that may run on type j by size and locality; single-GPU jobs come last and fill what others leave."""
    able = np.flatnonzero(problem.runnable[:, j])
    sizes, localities = problem.num_gpus[able], hosts.localities[able]
    localities[sizes == 1] = "any"
    groups = []
    for size in np.unique(sizes)[::-1].tolist():
        for locality in np.unique(localities[sizes == size]).tolist():
            jobs = able[(sizes == size) & (localities == locality)]
            if times[jobs].any():
                jobs = jobs[np.argsort(-times[jobs], kind="stable")]
                groups.append(_Group(size, locality, jobs, min(len(jobs), gpus // size)))
    return groups


def _bounds(groups: Sequence[_Group], hosts: Hosts, j: int, gpus: int) -> list[tuple[Floats, int]]:
    """What one gang of each group takes of the places of d GPUs, anywhere, on nodes and in racks; and how many there are."""
    sizes = np.array([group.size for group in groups])
    regions = {"any": (gpus,), "rack": hosts.gpus["rack"][j], "node": hosts.gpus["node"][j]}
    bounds = [(sizes.astype(float), gpus)]
    for scope, kept in (("any", ("node", "rack", "any")), ("rack", ("node", "rack")), ("node", ("node",))):
        within = np.array([group.locality in kept for group in groups])
        for d in np.unique(sizes[within & (sizes > 1)]).tolist():
            places = sum(held // d for held in regions[scope])
            bounds.append((np.where(within, sizes // d, 0).astype(float), places))
    return bounds


def _patterns(groups: Sequence[_Group], bounds: Sequence[tuple[Floats, int]]) -> Indices | None:
    """(P, groups) all numbers of gangs that fit, but of the last group as many as fit; None if there are too many."""
    patterns = np.zeros((1, 0), dtype=np.int64)
    takes, left = np.array([each for each, _ in bounds]), np.array([[places for _, places in bounds]], dtype=float)
    for g, group in enumerate(groups):
        limits = np.divide(left, takes[:, g], out=np.full(left.shape, np.inf), where=takes[:, g] > 0)
        room = np.minimum(group.most, np.floor(limits.min(axis=1))).astype(np.int64)
        if g == len(groups) - 1:
            break
        if int((room + 1).sum()) > MOST_PATTERNS:
            return None
        parents = np.repeat(np.arange(len(room)), room + 1)
        counts = np.concatenate([np.arange(most + 1) for most in room.tolist()])
        patterns = np.column_stack([patterns[parents], counts])
        left = left[parents] - counts[:, None] * takes[:, g]
    return np.column_stack([patterns, room])


def _best_mix(rooms: Floats, asked: Floats) -> tuple[float, Floats]:
    """Return the most α <= 1 with Σ_p λ_p rooms_rp >= α asked_r and Σ_p λ_p <= 1, and the prices y >= 0 of the rows.

    By duality Σ_r y_r asked_r = 1 and Σ_r y_r rooms_rp <= α for every pattern p where α < 1.
    """
    from scipy.optimize import linprog

    count = rooms.shape[1]
    answer = linprog(
        np.append(np.zeros(count), -1.0),
        np.vstack([np.column_stack([-rooms, asked]), np.append(np.ones(count), 0.0)]),
        np.append(np.zeros(len(asked)), 1.0),
        bounds=[*([(0, None)] * count), (0, 1)],
        method="highs",
    )
    return float(-answer.fun), np.maximum(0.0, -answer.ineqlin.marginals[:-1])
