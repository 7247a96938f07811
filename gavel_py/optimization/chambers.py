"""Chambers: jobs of one kind that need different throughputs, reduced to a few rows without loss, and expanded again.

Let T_1 <= ... <= T_K be the throughputs of a kind of jobs on its types, and P(τ) = {x >= 0: Σ_j T_j x_j >= τ, Σ_j x_j <= 1} the
ways to give a job the throughput τ. While τ stays between two neighbouring T (in one chamber), P(τ) keeps its shape, and
Σ_i P(τ_i) = {x >= 0: Σ_j T_j x_j >= Σ_i τ_i, Σ_j x_j <= n}: n jobs are one row. docs/exact-reduction.md has the proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.row_hashing import content_keys

__all__ = ["Chambers", "Slots"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

JUST_ABOVE = 4e-9
"""Relative difference of throughputs that the solver's tolerance, 1e-9, does not tell apart."""

NOTHING = 1e-250
"""A need that can be divided by nothing is none."""


@dataclass(frozen=True)
class Slots:
    """The S pairs (kind, chamber) with jobs in them. kinds, chambers, counts (jobs), needs (sum over jobs): (S,).

    of: (G,) slot of each class; keys: (S,) what tells of the same kind and chamber has the same key in every problem.
    """

    kinds: Indices
    chambers: Indices
    counts: Floats
    needs: Floats
    of: Indices
    keys: NDArray[np.uint64]

    @property
    def means(self) -> Floats:
        """(S,) the mean need of the jobs in each slot."""
        return self.needs / self.counts


class Chambers:
    """The kinds of jobs among classes: those with equal throughputs, gangs and types, in the same groups of rules.

    kinds: (Q,) one class of each kind; one: (Q rows) the jobs as if those of a kind were equal.
    """

    def __init__(self, jobs: JobClasses) -> None:
        self.jobs = jobs
        changes = np.flatnonzero(np.diff(jobs.kinds)) + 1  # classes come kind by kind
        self.kinds = np.concatenate([[0], changes])
        self.lengths = np.diff(np.append(self.kinds, len(jobs)))
        self.of_class = np.repeat(np.arange(len(self.kinds)), self.lengths)
        self.counts = np.add.reduceat(jobs.counts, self.kinds)
        self.one = jobs.rows_as(self.kinds, self.counts, jobs.kind_keys[self.kinds])
        self.throughputs = jobs.throughputs[self.kinds]
        self.runnable = jobs.runnable[self.kinds]
        self.num_gpus = jobs.num_gpus[self.kinds]
        self.fastest = jobs.fastest[self.kinds]
        below = self.runnable & (self.throughputs < self.fastest[:, None])
        self._borders = np.sort(np.where(below, self.throughputs, np.inf), axis=1)

    def slots(self, needs: Floats) -> Slots:
        """Sort the classes, one of whose jobs needs (G,) steps/s, at most its fastest throughput, into slots."""
        chamber = np.zeros(len(needs), dtype=np.int64)
        for column in self._borders.T:
            border = np.repeat(column, self.lengths)
            # A need above a border by less than the solver can tell counts as below it: that type is fast enough for it.
            chamber += (needs == border) | (needs > border * (1 + JUST_ABOVE))
        size = self._borders.shape[1] + 1
        code = self.of_class * size + chamber
        counts = self.sums(code, np.ones(len(needs)), len(self.kinds) * size)
        present = np.flatnonzero(counts)
        number = np.zeros(len(counts), dtype=np.int64)
        number[present] = np.arange(len(present))
        kinds, chambers = np.divmod(present, size)
        # A kind of one class is one row whatever its need is, and keeps its key when that moves to another chamber.
        named = np.where(self.lengths[kinds] > 1, chambers, 0)
        keys = content_keys([self.jobs.kind_keys[self.kinds[kinds]], named], len(kinds))
        return Slots(kinds, chambers, counts[present], self.sums(code, needs, len(counts))[present], number[code], keys)

    def sums(self, of: Indices, needs: Floats, count: int) -> Floats:
        """Return (count,) the sum over the jobs of each slot, `of` the classes, of what each needs."""
        return np.bincount(of, self.jobs.counts * needs, count).astype(float)

    def expand(self, slots: Slots, times: Floats, needs: Floats) -> Floats:
        """Return (G, K) the time of each class's jobs from (S, K) the mean time of each slot's; each gets what it needs.

        The mean time of a slot is a mix of corners of P(mean need), and every corner moves in a straight line with the need:
        the same mix of the corners of P(τ_i) is job i's share, and the shares add up to what the slot has.
        """
        borders = self._lower_borders(slots)
        base, slope = self._mixes(slots, times, borders)
        middle = base + slope * (slots.means - borders)[:, None]
        used: Floats = (slots.counts * self.num_gpus[slots.kinds]) @ middle
        room = np.divide(self.jobs.capacities, used, out=np.ones_like(used), where=used > self.jobs.capacities)
        fractions: Floats = (slope * room)[slots.of]
        fractions *= (needs - borders[slots.of])[:, None]
        fractions += (base * room)[slots.of]
        np.maximum(fractions, 0.0, out=fractions)
        total = fractions @ np.ones(fractions.shape[1])
        if total.max() > 1 + 1e-12:  # types of nearly the same speed: what rounding has added to the corners
            fractions /= np.maximum(1.0, total)[:, None]
        return fractions

    def _mixes(self, slots: Slots, times: Floats, borders: Floats) -> tuple[Floats, Floats]:
        """(S, K) A and B such that a job of need τ has the time A + B (τ - border), border the lower end of the chamber.

        Counted from there, and not from the mean, the least needs lose no digits to the largest.
        """
        speed, mean = self.throughputs[slots.kinds], slots.means
        lower, upper = self._sides(slots, borders)
        base, slope = np.zeros(speed.shape), np.zeros(speed.shape)
        weight = np.zeros(len(mean))
        free = np.where(upper, times, 0.0)
        for low in range(speed.shape[1]):
            left = np.where(lower[:, low], times[:, low], 0.0)
            for high in np.flatnonzero(free.any(axis=0)).tolist() if left.any() else ():
                # Corner: time on one slower and one faster type, all of it used, in proportion to how far the other is away.
                down, up = np.maximum(0.0, mean - speed[:, low]), np.maximum(0.0, speed[:, high] - mean)
                pairs = lower[:, low] & upper[:, high]
                most = np.divide(free[:, high] * up, down, out=np.full_like(mean, np.inf), where=pairs & (down > 0))
                slow = np.where(pairs, np.minimum(left, most), 0.0)
                fast = np.divide(slow * down, up, out=np.zeros_like(mean), where=pairs & (up > 0))
                left, weight = left - slow, weight + slow + fast
                free[:, high] = np.maximum(0.0, free[:, high] - fast)
                turn = np.divide(slow + fast, speed[:, high] - speed[:, low], out=np.zeros_like(mean), where=pairs)
                base[:, low] += turn * (speed[:, high] - borders)
                base[:, high] += turn * (borders - speed[:, low])
                slope[:, low] -= turn
                slope[:, high] += turn
            # What finds no partner is short of what is needed by no more than the solver's tolerance, and stays where it is.
            base[:, low] += left
            weight += left
        return self._fill(slots, free, np.maximum(0.0, 1.0 - weight), borders, base, slope)

    def _fill(
        self, slots: Slots, free: Floats, rest: Floats, borders: Floats, base: Floats, slope: Floats
    ) -> tuple[Floats, Floats]:
        """Add the corners with one type only: just as much time as is needed, or all of it. Their weights sum to `rest`."""
        mean = slots.means
        needed = mean > NOTHING
        speed = np.where(free > 0, self.throughputs[slots.kinds], 1.0)
        ratio = np.divide(speed, mean[:, None], out=np.ones_like(speed), where=needed[:, None])
        room = (free * (ratio - 1)).sum(axis=1)
        # t: which part of the time is just enough, rather than all that there is; 0 where time is short, 1 where speed is.
        t = np.divide(rest - free.sum(axis=1), room, out=np.zeros_like(rest), where=room > 0)
        t = np.clip(t, 0.0, 1.0)[:, None]
        enough, all_time = free * t * ratio, free * (1 - t)
        weight = (enough + all_time).sum(axis=1)
        # Weights that fall short of 1 by the solver's tolerance would leave a job short; they are made up for here.
        scale = np.divide(rest, weight, out=np.zeros_like(rest), where=weight > 0)
        scale = np.where(needed, scale, np.minimum(1.0, scale))[:, None]
        per_need = np.divide(enough * scale, speed)
        short = np.flatnonzero((weight <= 0) & (rest > 0))
        best = np.where(self.runnable, self.throughputs, -1.0).argmax(axis=1)[slots.kinds[short]]
        per_need[short, best] += rest[short] / self.fastest[slots.kinds[short]]
        return base + per_need * borders[:, None] + all_time * scale, slope + per_need

    def _lower_borders(self, slots: Slots) -> Floats:
        """(S,) the lower end of each slot's chamber, 0 for the lowest."""
        ends: Floats = np.hstack([np.zeros((len(self.kinds), 1)), self._borders])[slots.kinds, slots.chambers]
        return ends

    def _sides(self, slots: Slots, borders: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(S, K) the types slower than all needs of the slot, and the others."""
        speed, runnable = self.throughputs[slots.kinds], self.runnable[slots.kinds]
        lower = runnable & (speed < self.fastest[slots.kinds][:, None]) & (speed <= borders[:, None])
        return lower, runnable & ~lower
