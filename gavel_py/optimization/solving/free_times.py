"""Weighted max-min fairness of the total times of jobs under an agnostic policy, where the optimum does not determine them.

If all types are equally fast, only the total time t_g = Σ_j x_gj of a job matters. If an optimum allows several values, jobs get
t_g = max(least_g, min(most_g, θ w_g / s_g)) for the largest feasible θ. Jobs that are limited by scarce types or rules stay at
their θ, and θ rises further for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.formulation.linear_rows import Row, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimit
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.row_hashing import number_equal, size_numbers
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

if TYPE_CHECKING:
    import scipy.sparse as sp

    from gavel_py.optimization.checking.certificates import Prices

MOST_CUTS = 200

LAST = 1e-12
"""Weight of a further column of a type relative to its first one, so that it is used only if the first is full."""


@dataclass(frozen=True, eq=False)
class FreeTimes:
    """The range of total times t_g with the same objective as a given answer.

    Attributes:
        least: (G,) the lower bound on the time of a job of each class.
        most: (G,) the upper bound, at most 1.
        rows: Rows that preserve the objective, beside capacities and rules.
        where: (G, K) the types that must have room for these times; None for all on which the jobs may run.
        is_certain: Whether all such times are known to have the same objective, without a comparison.
    """

    least: Floats
    most: Floats
    rows: tuple[Row, ...] = ()
    where: Mask | None = None
    is_certain: bool = False


class JobGroups:
    """Q groups of job classes with equal gangs, types and coefficients in all rows.

    Whether capacities and rows hold depends only on the total time of each group on each type.

    Attributes:
        jobs: One class for each group, with the number of jobs of the group as its count and these rows as its rules.
        of: (G,) the group of each class.
        even: (Q, K) ρ_qj = c_j / Σ_k c_k over the types on which the group may run.
    """

    def __init__(self, jobs: JobClasses, rows: tuple[Row, ...], source: Indices | None = None) -> None:
        rules = Rules(rows=rows)
        columns = [size_numbers(jobs.num_gpus), *np.packbits(jobs.runnable, axis=1).T]
        if rows:
            columns += list(replace(jobs, rules=rules).limit_marks)
        found = number_equal(columns, len(jobs))
        self.of = found.index
        self._starts = np.concatenate([[0], np.flatnonzero(np.diff(self.of)) + 1])
        counts = self.sums(jobs.counts).astype(np.int64)
        self.jobs = replace(jobs.rows_as(found.first, counts, found.keys), rules=rules)
        self.even = _even(self.jobs, source)

    def sums(self, by_class: Floats | Indices) -> Floats:
        """Return (Q,) the sums of (G,) numbers over the classes of each group."""
        # numpy sums each run pairwise. Adding a million terms one by one would lose four more digits.
        runs = np.add.reduceat(by_class, self._starts)
        return np.bincount(self.of[self._starts], runs, int(self.of.max()) + 1).astype(float)

    def excess(self, times: Floats) -> float:
        """Return the largest relative excess of (Q, K) total times over a capacity or a row, below 0 if there is none."""
        used = self.jobs.num_gpus @ times
        over = [used / np.where(self.jobs.capacities > 0, self.jobs.capacities, 1.0) - 1.0]
        if self.jobs.rules.rows:
            limits, most = self.jobs.limits
            over.append(limits @ times.ravel() - most)
        return float(np.concatenate(over).max())


def _even(jobs: JobClasses, source: Indices | None) -> Floats:
    """Return (Q, K) ρ, 0 for jobs that may have no time. source: (K,) the type of each column, the preferred one first."""
    gpus = np.where(jobs.runnable, jobs.capacities, 0.0)
    if source is not None:
        earlier = np.equal.outer(source, source) & np.tri(len(source), k=-1, dtype=bool)
        gpus *= np.where(jobs.runnable @ earlier.T, LAST, 1.0)
    sums = gpus.sum(axis=1, keepdims=True)
    even: Floats = np.divide(gpus, sums, out=np.zeros_like(gpus), where=sums > 0)
    return even


def fairest_times(jobs: JobClasses, groups: JobGroups, free: FreeTimes, weights: Floats, limit: TimeLimit | None) -> Floats:
    """Return (G,) the fairest times within these bounds: the lexicographic maximum of the sorted s_g t_g / w_g.

    Args:
        jobs: The job classes, G of them.
        groups: Their groups under the rows that the times must keep.
        free: The bounds on the times.
        weights: (G,) w_g.
        limit: When to stop; None if there is no time for linear programs.

    Raises:
        SolverError: The least times do not fit, or there is no time for a linear program that is needed.
        TimeLimitReached: The limit has passed.
    """
    gpus = float(jobs.capacities[groups.jobs.runnable.any(axis=0)].sum())
    if (jobs.counts * jobs.num_gpus) @ free.least >= gpus * (1 - SOLVER_TOLERANCE) or np.array_equal(free.least, free.most):
        return free.least
    solver = None if limit is None else LinearSolver(limit=limit)
    cuts = _row_cuts(groups, groups.sums(jobs.counts * np.maximum(free.least, free.most)))
    for _ in range(MOST_CUTS):
        # If the fairest times under some cuts fit, no others are fairer. This takes one program for each cut found, instead of
        # one for each level at which jobs are held, and each quota may have its own level.
        times = _TimeFilling(jobs, groups, free, weights, solver, cuts).filled(with_programs=False)
        cut = _TimeFilling(jobs, groups, free, weights, solver, cuts).cut(times)
        if cut is None:
            return times
        if cut.excess(groups.sums(jobs.counts * times)) <= SOLVER_TOLERANCE * max(1.0, abs(cut.worth)):
            break  # this cut binds only after some jobs are held
        cuts = cuts.also(cut)
    return _TimeFilling(jobs, groups, free, weights, solver, cuts).filled(with_programs=True)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Σ_q p_q t_q <= worth, a necessary condition for (Q,) total times t of all groups to fit. prices: (Q,) p."""

    prices: Floats
    worth: float

    def excess(self, times: Floats) -> float:
        """Return the excess of the cost of (Q,) total times over the worth."""
        return float(self.prices @ times) - self.worth


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Several cuts. prices: (C, Q); worth: (C,)."""

    prices: sp.csr_array
    worth: Floats

    def also(self, cut: _Cut) -> _Cuts:
        """Return these cuts with one added."""
        import scipy.sparse as sp

        return _Cuts(sp.vstack([self.prices, sp.csr_array(cut.prices[None])], format="csr"), np.append(self.worth, cut.worth))

    def most_broken(self, times: Floats) -> _Cut | None:
        """Return the cut that (Q,) total times violate most, None if they violate none."""
        over = (self.prices @ times - self.worth) / np.maximum(1.0, np.abs(self.worth))
        if over.max() <= FLOAT_ROUNDING:
            return None
        most = int(over.argmax())
        return _Cut(self.prices[[most]].toarray()[0], float(self.worth[most]))


def _row_cuts(groups: JobGroups, most: Floats) -> _Cuts:
    """Return the cuts that need no program: all GPUs, and each row, with each group on the type with its smallest coefficient.

    most: (Q,) the upper bounds on the total times.
    """
    import scipy.sparse as sp

    jobs = groups.jobs
    costs, limits = jobs.limit_tables
    least = np.where(jobs.runnable, costs, np.inf).min(axis=2)
    gpus = jobs.capacities[jobs.runnable.any(axis=0)].sum()
    prices = np.vstack([jobs.num_gpus, np.maximum(least, 0.0)])
    return _Cuts(sp.csr_array(prices), np.append(gpus, limits - np.minimum(least, 0.0) @ most))


class _TimeFilling:
    """Progressive filling of times: raises the times of all jobs until some cannot rise, then those of the others.

    Whether times fit is a linear program over groups. If they do not, its dual values are a cut, and the highest level that
    satisfies the cut is the next one to try (Newton's method, as in `level_search`). Jobs with a price in the last cut are held at
    that level: more time for them would take time from jobs at the same level or below.

    solver: None if there is no time for programs; cuts: cuts known in advance.
    """

    def __init__(
        self, jobs: JobClasses, groups: JobGroups, free: FreeTimes, weights: Floats, solver: LinearSolver | None, cuts: _Cuts
    ) -> None:
        self._counts = jobs.counts.astype(float)
        self._groups, self._solver, self._cuts = groups, solver, cuts
        self._least, self._most = free.least, np.maximum(free.least, free.most)
        self._rates = weights / jobs.num_gpus
        self._held = np.zeros(len(groups.jobs), dtype=bool)

    def filled(self, *, with_programs: bool) -> Floats:
        """Return (G,) the times from which no job can rise; without programs, only the known cuts limit them."""
        while not self._held.all():
            self._rise(with_programs=with_programs)
        return self._times(0.0)

    def _times(self, level: float) -> Floats:
        """Return (G,) the time of a job of each class at this level."""
        return np.clip(level * self._rates, self._least, self._most)

    def _rise(self, *, with_programs: bool) -> None:
        """Rise to the highest feasible level, and hold the jobs there that cannot rise further."""
        level, stopped = float((self._most / self._rates).max()), np.ones(len(self._held), dtype=bool)
        for _ in range(MOST_CUTS):
            times = self._times(level)
            cut = self._cuts.most_broken(self._groups.sums(self._counts * times))
            if cut is None and with_programs:
                cut = self.cut(times)
            if cut is None:
                self._hold(stopped, level)
                return
            before, stopped = level, (cut.prices > 0) & ~self._held
            level = self._level(cut, stopped, before)
            if level == before:  # the excess is rounding
                self._hold(stopped, level)
                return
        raise SolverError(f"too few GPUs remain for the times that are still open after {MOST_CUTS} levels")

    def _hold(self, groups: Mask, level: float) -> None:
        """Hold the jobs of these groups at this level; the others keep at least their time there."""
        self._least = self._times(level)
        self._most = np.where(groups[self._groups.of], self._least, self._most)
        self._held |= groups

    def cut(self, times: Floats) -> _Cut | None:
        """Return a cut that (G,) times violate, None if they fit."""
        groups = self._groups
        jobs, given = groups.jobs, groups.sums(self._counts * times)
        if groups.excess(groups.even * given[:, None]) <= FLOAT_ROUNDING:
            return None
        prices = self._prices(given)
        if prices is None:
            return None
        costs = prices.costs(jobs)
        costs[np.abs(costs) <= SOLVER_TOLERANCE * prices.sizes(jobs)] = 0.0  # terms of opposite sign cancel out, up to rounding
        costs = np.where(jobs.runnable, costs, np.inf).min(axis=1)
        # A negative cost is a gain, which is largest at the upper bounds of these jobs.
        most = groups.sums(self._counts * self._most)
        return _Cut(np.maximum(costs, 0.0), prices.worth(jobs) - float(np.minimum(costs, 0.0) @ most))

    def _prices(self, given: Floats) -> Prices | None:
        """Return prices at which (Q,) total times cost more than all resources are worth, None if the times fit.

        Times also fit if jobs that are not held get more.
        """
        from gavel_py.optimization.formulation.matrices import AllocationLP

        if self._solver is None:
            raise SolverError("no time is left to solve for the times that are still open")
        jobs, most = self._groups.jobs, self._groups.sums(self._counts * self._most)
        program = AllocationLP(jobs)
        times, largest = program.normalized_rows(np.ones(len(program.rows)))
        program.compile_factor(times, given / jobs.counts / largest, most / jobs.counts)
        solution = program.solve(self._solver, "times")
        if solution.value <= 1 + SOLVER_TOLERANCE:
            return None
        prices = program.scarcity
        return prices.scaled(1 / prices.worth(jobs)) if prices.worth(jobs) > 0 else prices

    def _level(self, cut: _Cut, rising: Mask, top: float) -> float:
        """Return the highest level up to `top` that satisfies a cut if only the groups in `rising` move.

        The cost of the times is piecewise linear in the level, so this is Newton's method within a shrinking interval.
        """
        slopes = self._counts * cut.prices[self._groups.of] * self._rates
        slopes *= rising[self._groups.of] & (self._most > self._least)
        low, high, excess = 0.0, top, self._excess(cut, 0.0)
        if excess >= 0:
            if excess > SOLVER_TOLERANCE * max(1.0, abs(cut.worth)):
                raise SolverError("there are not enough GPUs for the time that jobs must have")
            return low
        level = min(top, cut.worth / float(slopes.sum())) if slopes.any() else top
        while high - low > 2 * np.spacing(high):
            excess = self._excess(cut, level)
            low, high = (low, level) if excess > 0 else (level, high)
            # At the ends of a job's line, use the slope on the side to which the level will move.
            lines = level * self._rates
            ends = (lines > self._least, lines <= self._most) if excess > 0 else (lines >= self._least, lines < self._most)
            slope = float(slopes @ (ends[0] & ends[1]))
            following = level - excess / slope if slope > 0 else -1.0
            if abs(following - level) <= 2 * np.spacing(level):
                break
            level = following if low < following < high else (low + high) / 2
        return level

    def _excess(self, cut: _Cut, level: float) -> float:
        """Return the excess of the cost of the times at a level over the worth of the cut."""
        return cut.excess(self._groups.sums(self._counts * self._times(level)))
