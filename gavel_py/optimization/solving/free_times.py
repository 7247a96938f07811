"""The total times of agnostic jobs where an optimum leaves them open: weighted max-min fairness.

If all types are equally fast, only the total time t_g = Σ_j x_gj of a job matters. Where an optimum allows several values, jobs get
t_g = max(least_g, min(most_g, θ w_g / s_g)) for the largest θ for which there is room. Jobs that are held back by scarce types or
by rules stay there, and θ rises further for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.formulation.linear_rows import Row, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.time_limit import TimeLimit
from gavel_py.problem.arrays import Floats, Indices, Mask, size_numbers
from gavel_py.problem.row_hashing import number_equal

if TYPE_CHECKING:
    import scipy.sparse as sp

ROUNDING = 1e-12
"""Relative rounding error of a sum over many jobs."""

TOLERANCE = 1e-9
"""The solver's relative tolerance."""

MOST_CUTS = 200

LAST = 1e-12
"""The weight of a further column of a type relative to its first one: it is used only if there is no room in the first."""


@dataclass(frozen=True, eq=False)
class FreeTimes:
    """The total times t_g that are as good as those of an answer.

    Attributes:
        least: (G,) the lower bound on the time of a job of each class.
        most: (G,) the upper bound, at most 1.
        rows: Rows that keep the answer as good as it is, beside capacities and rules.
        where: (G, K) the types that must have room for these times; None if any on which the jobs may run will do.
        is_certain: Whether all such times are known to be as good, so that the objective need not be compared.
    """

    least: Floats
    most: Floats
    rows: tuple[Row, ...] = ()
    where: Mask | None = None
    is_certain: bool = False


class JobGroups:
    """Q kinds of jobs: classes with equal gangs, equal types and equal coefficients in all rows.

    Whether capacities and rows hold depends only on the total time of each kind on each type.

    Attributes:
        jobs: One class of each kind, with the number of jobs of the kind as its count and these rows as its rules.
        of: (G,) the kind of each class.
        even: (Q, K) ρ_qj = c_j / Σ_k c_k over the types on which the kind may run.
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
        """Return (Q,) the sums of (G,) numbers over the classes of each kind."""
        # numpy adds up each run pairwise; adding a million terms one by one would lose four more digits.
        runs = np.add.reduceat(by_class, self._starts)
        return np.bincount(self.of[self._starts], runs, int(self.of.max()) + 1).astype(float)

    def excess(self, times: Floats) -> float:
        """Return the largest part by which (Q, K) total times exceed a capacity or a row, below 0 if they exceed none."""
        used = self.jobs.num_gpus @ times
        over = [used / np.where(self.jobs.capacities > 0, self.jobs.capacities, 1.0) - 1.0]
        if self.jobs.rules.rows:
            limits, most = self.jobs.limits
            over.append(limits @ times.ravel() - most)
        return float(np.concatenate(over).max())


def _even(jobs: JobClasses, source: Indices | None) -> Floats:
    """(Q, K) ρ. source: (K,) the type of each column, where types have several, the preferred one first."""
    gpus = np.where(jobs.runnable, jobs.capacities, 0.0)
    if source is not None:
        earlier = np.equal.outer(source, source) & np.tri(len(source), k=-1, dtype=bool)
        gpus *= np.where(jobs.runnable @ earlier.T, LAST, 1.0)
    even: Floats = gpus / gpus.sum(axis=1, keepdims=True)
    return even


def fairest_times(jobs: JobClasses, kinds: JobGroups, free: FreeTimes, weights: Floats, limit: TimeLimit | None) -> Floats:
    """Return (G,) the fairest times within these bounds: the lexicographic maximum of the sorted s_g t_g / w_g.

    Args:
        jobs: The job classes, G of them.
        kinds: Their kinds under the rows that the times must keep.
        free: The bounds on the times.
        weights: (G,) w_g.
        limit: When to stop; None if there is no time for linear programs.

    Raises:
        SolverError: If there is no room even for the least times, or a linear program is needed without time for one.
        TimeLimitReached: The limit has passed.
    """
    gpus = float(jobs.capacities[kinds.jobs.runnable.any(axis=0)].sum())
    if (jobs.counts * jobs.num_gpus) @ free.least >= gpus * (1 - TOLERANCE) or np.array_equal(free.least, free.most):
        return free.least
    solver = None if limit is None else LinearSolver(limit=limit)
    cuts = _row_cuts(kinds, kinds.sums(jobs.counts * np.maximum(free.least, free.most)))
    for _ in range(MOST_CUTS):
        # The fairest times under some cuts are the fairest of all if there is room for them. This takes a program for each cut
        # that is found, and not for each level at which jobs are held, of which there are as many as quotas.
        times = _Filling(jobs, kinds, free, weights, solver, cuts).filled(with_programs=False)
        cut = _Filling(jobs, kinds, free, weights, solver, cuts).cut(times)
        if cut is None:
            return times
        if cut.excess(kinds.sums(jobs.counts * times)) <= TOLERANCE * max(1.0, abs(cut.worth)):
            break  # it says more only once some jobs are held
        cuts = cuts.also(cut)
    return _Filling(jobs, kinds, free, weights, solver, cuts).filled(with_programs=True)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Σ_q p_q t_q <= worth, which holds for (Q,) total times t of all kinds if there is room for them; prices: (Q,) p."""

    prices: Floats
    worth: float

    def excess(self, times: Floats) -> float:
        """By how much (Q,) total times cost more than there is."""
        return float(self.prices @ times) - self.worth


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Several cuts. prices: (C, Q); worth: (C,)."""

    prices: sp.csr_array
    worth: Floats

    def also(self, cut: _Cut) -> _Cuts:
        """Return these cuts and one more."""
        import scipy.sparse as sp

        return _Cuts(sp.vstack([self.prices, sp.csr_array(cut.prices[None])], format="csr"), np.append(self.worth, cut.worth))

    def most_broken(self, times: Floats) -> _Cut | None:
        """Return the cut that (Q,) total times break most, or None if they break none."""
        over = (self.prices @ times - self.worth) / np.maximum(1.0, np.abs(self.worth))
        if over.max() <= ROUNDING:
            return None
        most = int(over.argmax())
        return _Cut(self.prices[[most]].toarray()[0], float(self.worth[most]))


def _row_cuts(kinds: JobGroups, most: Floats) -> _Cuts:
    """The cuts that take no program: all GPUs, and each row with each kind on the type where it uses least of it.

    most: (Q,) the upper bounds on the total times.
    """
    import scipy.sparse as sp

    jobs = kinds.jobs
    costs, limits = jobs.limit_tables
    least = np.where(jobs.runnable, costs, np.inf).min(axis=2)
    gpus = jobs.capacities[jobs.runnable.any(axis=0)].sum()
    prices = np.vstack([jobs.num_gpus, np.maximum(least, 0.0)])
    return _Cuts(sp.csr_array(prices), np.append(gpus, limits - np.minimum(least, 0.0) @ most))


class _Filling:
    """Raises the times of all jobs together until some are held back, and then those of the others.

    Whether there is room for some times is a linear program over kinds. If there is none, its dual values are a cut, and the
    highest level that keeps the cut is the next one to try (Newton's method, as in `level_search`). Jobs with a price in the last
    cut are held at that level: more time for them would take some from jobs with no more than they have.

    solver: None if there is no time for programs; cuts: those that are known before.
    """

    def __init__(
        self, jobs: JobClasses, kinds: JobGroups, free: FreeTimes, weights: Floats, solver: LinearSolver | None, cuts: _Cuts
    ) -> None:
        self._counts = jobs.counts.astype(float)
        self._kinds, self._solver, self._cuts = kinds, solver, cuts
        self._least, self._most = free.least, np.maximum(free.least, free.most)
        self._rates = weights / jobs.num_gpus
        self._held = np.zeros(len(kinds.jobs), dtype=bool)

    def filled(self, *, with_programs: bool) -> Floats:
        """Return (G,) the times at which all jobs are held back, if need be only by the cuts that are known before."""
        while not self._held.all():
            self._rise(with_programs=with_programs)
        return self._times(0.0)

    def _times(self, level: float) -> Floats:
        """(G,) the time of a job of each class at this level."""
        return np.clip(level * self._rates, self._least, self._most)

    def _rise(self, *, with_programs: bool) -> None:
        """Rise to the highest level for which there is room, and hold the jobs there that can rise no further."""
        level, stopped = float((self._most / self._rates).max()), np.ones(len(self._held), dtype=bool)
        for _ in range(MOST_CUTS):
            times = self._times(level)
            cut = self._cuts.most_broken(self._kinds.sums(self._counts * times))
            if cut is None and with_programs:
                cut = self.cut(times)
            if cut is None:
                self._hold(stopped, level)
                return
            before, stopped = level, (cut.prices > 0) & ~self._held
            level = self._level(cut, stopped, before)
            if level == before:  # what seems to be exceeded is rounding
                self._hold(stopped, level)
                return
        raise SolverError(f"there are still too few GPUs after {MOST_CUTS} levels of the times that are left open")

    def _hold(self, kinds: Mask, level: float) -> None:
        """Hold the jobs of these kinds at this level; the others keep at least what they have there."""
        there = kinds[self._kinds.of]
        self._least = self._times(level)
        self._most = np.where(there, self._least, self._most)
        self._held |= kinds

    def cut(self, times: Floats) -> _Cut | None:
        """Return a cut that (G,) times break, or None if there is room for them."""
        kinds = self._kinds
        jobs, given = kinds.jobs, kinds.sums(self._counts * times)
        if kinds.excess(kinds.even * given[:, None]) <= ROUNDING:
            return None
        prices = self._prices(given)
        if prices is None:
            return None
        costs = prices.costs(jobs)
        costs[np.abs(costs) <= TOLERANCE * prices.sizes(jobs)] = 0.0  # terms of opposite sign that cancel out but for rounding
        costs = np.where(jobs.runnable, costs, np.inf).min(axis=1)
        # A negative cost is a gain, which is largest if these jobs run as long as they may.
        most = kinds.sums(self._counts * self._most)
        return _Cut(np.maximum(costs, 0.0), prices.worth(jobs) - float(np.minimum(costs, 0.0) @ most))

    def _prices(self, given: Floats) -> Prices | None:
        """Return prices at which (Q,) total times cost more than there is, or None if there is room for them.

        There is also room if jobs that are not held have to get more than that.
        """
        from gavel_py.optimization.formulation.matrices import AllocationLP

        if self._solver is None:
            raise SolverError("there is no time for the program of the times that are left open")
        jobs, most = self._kinds.jobs, self._kinds.sums(self._counts * self._most)
        program = AllocationLP(jobs)
        times, largest = program.normalized_rows(np.ones(len(program.rows)))
        program.compile_factor(times, given / jobs.counts / largest, most / jobs.counts)
        solution = program.solve(self._solver, "times")
        if solution.value <= 1 + TOLERANCE:
            return None
        prices = program.scarcity
        return prices.scaled(1 / prices.worth(jobs)) if prices.worth(jobs) > 0 else prices

    def _level(self, cut: _Cut, rising: Mask, top: float) -> float:
        """Return the highest level up to `top` that keeps a cut if only the kinds in `rising` move.

        The cost of the times is piecewise linear in the level, so this is Newton's method within a shrinking interval.
        """
        slopes = self._counts * cut.prices[self._kinds.of] * self._rates
        slopes *= rising[self._kinds.of] & (self._most > self._least)
        low, high, excess = 0.0, top, self._excess(cut, 0.0)
        if excess >= 0:
            if excess > TOLERANCE * max(1.0, abs(cut.worth)):
                raise SolverError("there are not enough GPUs for the time that jobs must have")
            return low
        level = min(top, cut.worth / float(slopes.sum())) if slopes.any() else top
        while high - low > 2 * np.spacing(high):
            excess = self._excess(cut, level)
            low, high = (low, level) if excess > 0 else (level, high)
            # Where the line of a job starts or ends, its slope counts on the side to which the level will move.
            lines = level * self._rates
            ends = (lines > self._least, lines <= self._most) if excess > 0 else (lines >= self._least, lines < self._most)
            slope = float(slopes @ (ends[0] & ends[1]))
            following = level - excess / slope if slope > 0 else -1.0
            if abs(following - level) <= 2 * np.spacing(level):
                break
            level = following if low < following < high else (low + high) / 2
        return level

    def _excess(self, cut: _Cut, level: float) -> float:
        """By how much the times of a level cost more than there is."""
        return cut.excess(self._kinds.sums(self._counts * self._times(level)))
