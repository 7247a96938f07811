"""The least-cost fleet in whole nodes that serves a share of the hours, proven by a bound.

An hour with demand d (GPUs of each class) is served by C (GPUs of each type) iff there is x ≥ 0 with Σ_j r_ij x_ij ≥ d_i and
Σ_i x_ij ≤ C_j, where r_ij is the throughput of class i on type j over that on its own type. By Farkas' lemma, iff π·d ≤ μ·C for
each ray (π, μ) ≥ 0 with r_ij π_i ≤ μ_j. The rays are the same for all hours, so a ray makes one series w_h = π·d_h, and "all but k
hours are served" is a mixing set over these series: with w_(1) ≥ w_(2) ≥ ... and hour h(l) of w_(l),

    μ·C + Σ_l (w_(l) − w_(l+1)) u_l ≥ w_(1),   u_(l+1) ≤ u_l ≤ z_h(l),   Σ_h z_h ≤ k

(Luedtke, Ahmed, Nemhauser: An integer programming approach for linear programs with probabilistic constraints, 2010). Only the
k + 1 largest of a series matter. Rays are added when an hour needs them, first for the relaxation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import (
    OPTIONS,
    InfeasibleError,
    LinearProgram,
    TimeLimit,
    WholeSolution,
    new_highs,
    run_here,
    solve_whole,
)
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import CLEAR, INPUT_ROUNDING, WHOLE_TOLERANCE

NEW_RAYS = 12
"""Rays added in each step: more make the program larger, fewer need more steps."""


class HourCoverage:
    """Which hours a fleet serves, and what it lacks in the others.

    speeds: (I, J) r_ij, 0 where a class cannot run.
    """

    def __init__(self, speeds: Floats) -> None:
        self.speeds = speeds
        self.is_apart = bool(
            np.isin(speeds, (0.0, 1.0)).all() and (speeds.sum(axis=1) == 1).all() and (speeds.sum(axis=0) <= 1).all()
        )

    @cached_property
    def _program(self) -> Any:
        """The program max π·d − μ·C, 0 ≤ π ≤ 1, of which each hour changes the costs only: the GPUs that it lacks."""
        count, types = self.speeds.shape
        highs = new_highs(OPTIONS)
        highs.addVars(count + types, np.zeros(count + types), np.array([1.0] * count + [np.inf] * types))
        for i, j in np.argwhere(self.speeds > 0).tolist():
            highs.addRow(-np.inf, 0.0, 2, np.array([i, count + j], np.int32), np.array([self.speeds[i, j], -1.0]))
        highs.setOptionValue("simplex_strategy", 4)
        highs.changeObjectiveSense(_maximize())
        return highs

    def lack(self, demand: Floats, gpus: Floats) -> tuple[float, Floats, Floats]:
        """Return the GPUs that an hour lacks, in those of its classes, and a ray (π, μ) that proves it.

        demand: (I,); gpus: (J,) those of the fleet.
        """
        count = len(demand)
        if self.is_apart:
            short = demand @ self.speeds > gpus
            return float((demand @ self.speeds - gpus)[short].sum()), self.speeds @ short, short.astype(float)
        highs = self._program
        highs.changeColsCost(count + len(gpus), np.arange(count + len(gpus), dtype=np.int32), np.concatenate([demand, -gpus]))
        run_here(highs)
        found = np.array(highs.getSolution().col_value)
        return float(found[:count] @ demand - found[count:] @ gpus), found[:count], found[count:]

    def lacks(self, demand: Floats, gpus: Floats) -> Floats:
        """Return the (H,) GPUs that each hour lacks."""
        if self.is_apart:
            return np.asarray(np.maximum(demand @ self.speeds - gpus, 0.0).sum(axis=1))
        unique, place = np.unique(demand, axis=0, return_inverse=True)
        return np.array([self.lack(each, gpus)[0] for each in unique])[place.ravel()]

    def work(self, demand: Floats, gpus: Floats) -> tuple[float, Floats]:
        """Return the GPU-hours served of (H, I) demand, a concave function of the fleet, and its (J,) slopes there."""
        if self.is_apart:
            by_type = demand @ self.speeds
            return float(np.minimum(by_type, gpus).sum()), (by_type > gpus).sum(axis=0).astype(float)
        found = [self.lack(each, gpus) for each in demand]
        return float(demand.sum()) - sum(lack for lack, _, _ in found), np.sum([ray for _, _, ray in found], axis=0)


def _maximize() -> Any:
    import highspy

    return highspy.ObjSense.kMaximize


@dataclass(frozen=True, eq=False)
class Purchases:
    """What can be had: numbers y ≤ `most` of P kinds of nodes, each kept, bought or rented.

    costs: (P,) per hour; gpus: (J, P) GPUs of a node by type; rows, limits: rows·y ≤ limits, those of budget, power and racks.
    """

    costs: Floats
    most: Floats
    gpus: Floats
    rows: Floats
    limits: Floats

    @property
    def scaled(self) -> tuple[Floats, Floats]:
        """The rows and limits, each row divided by its largest number."""
        largest = np.maximum(np.abs(self.rows).max(axis=1, initial=0.0), np.abs(self.limits))
        sizes = np.where(largest > 0, largest, 1.0)
        return self.rows / sizes[:, None], self.limits / sizes

    def at_most(self, demand: Floats, speeds: Floats) -> Purchases:
        """Return the same purchases without more nodes of a kind than could be used by all demand at its peak."""
        slowest = np.where(speeds > 0, speeds, np.inf).min(axis=0)
        used = np.where(np.isfinite(slowest), demand.max(axis=0, initial=0.0).sum() / slowest, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            enough = np.nanmin(np.where(self.gpus > 0, np.ceil(used[:, None] / self.gpus) + 1, np.nan), axis=0)
        return Purchases(self.costs, np.minimum(self.most, enough), self.gpus, self.rows, self.limits)


def tolerance_of(gpus: Floats) -> float:
    """Return the GPUs up to which an hour that lacks them counts as served by the (J,) GPUs of a fleet, by rounding."""
    return WHOLE_TOLERANCE * max(1.0, float(gpus.max(initial=0.0)))


class Fleet(NamedTuple):
    """A fleet that serves what was asked for. nodes: (P,) of each kind; bound: lower bound on the cost of all such fleets."""

    nodes: NDArray[np.int64]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """(cost − bound) / cost, 0 for a fleet without cost."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0


class _Rays:
    """Rays (π, μ) found so far, scaled to max μ = 1; at first, each class on the types where it can run."""

    def __init__(self, speeds: Floats) -> None:
        self.speeds, self.pis, self.mus = speeds, list[Floats](), list[Floats]()
        for row in speeds:
            self.add(row)

    def add(self, mu: Floats) -> bool:
        """Add the ray of these μ with the largest π, unless it is known."""
        size = mu.max()
        if size <= 0 or any(np.abs(mu / size - old).max() < CLEAR for old in self.mus):
            return False
        with np.errstate(divide="ignore", invalid="ignore"):
            pi = np.where(self.speeds > 0, mu / size / self.speeds, np.inf).min(axis=1)
        self.pis.append(np.where(np.isfinite(pi), pi, 0.0))
        self.mus.append(mu / size)
        return True

    @property
    def arrays(self) -> tuple[Floats, Floats]:
        return np.array(self.pis), np.array(self.mus)


def least_cost(
    demand: Floats, speeds: Floats, open_: Purchases, missed: int, *, gap: float = 1e-4, limit: TimeLimit | None = None
) -> Fleet:
    """Return a least-cost fleet that serves all but `missed` of the hours, all classes of an hour at once.

    demand: (H, I); speeds: (I, J). At the time limit, it is the best fleet found; it always serves what was asked for.

    Raises `InfeasibleError` if there is no such fleet, `TimeLimitReached` if none was found in time.
    """
    if missed >= len(demand) or not demand.any():
        return Fleet(np.zeros(len(open_.costs), dtype=np.int64), 0.0, 0.0)
    limit, served, open_ = limit or TimeLimit(), HourCoverage(speeds), open_.at_most(demand, speeds)
    rays = _Rays(speeds)
    best, bound, is_relaxed, tried = None, 0.0, True, set[tuple[float, ...]]()
    started = limit.remaining
    while True:
        found = _mixing(demand, rays, open_, missed, gap, limit, is_relaxed)
        if found is None:
            break  # the time limit, without any whole numbers
        if not is_relaxed:
            bound = max(bound, found.bound)
        nodes = found.values[: len(open_.costs)]
        failed, new = _separate(demand, served, rays, open_.gpus @ nodes)
        if is_relaxed:
            is_relaxed = bool(new) and not (limit.is_set and limit.remaining < started * 2 / 3)
            continue
        candidate = nodes if failed.sum() <= missed else _repaired(demand, speeds, open_, missed, open_.gpus @ nodes, served, tried)
        if candidate is not None and (best is None or open_.costs @ candidate < open_.costs @ best):
            best = candidate
        is_closed = best is not None and open_.costs @ best - bound <= gap * (open_.costs @ best)
        if is_closed or failed.sum() <= missed or not new or (limit.is_set and not limit.remaining):
            break
    if best is None:
        best = _repaired(demand, speeds, open_, missed, open_.gpus @ open_.most, served, tried)
    if best is None:
        limit.check()
        raise InfeasibleError("no fleet within the limits serves the demand")
    return Fleet(np.round(best).astype(np.int64), float(open_.costs @ best), bound)


def _mixing(
    demand: Floats, rays: _Rays, open_: Purchases, missed: int, gap: float, limit: TimeLimit, is_relaxed: bool
) -> WholeSolution | None:
    """Solve the program of the module's heading for the rays known so far, its rows scaled to 1."""
    pis, mus = rays.arrays
    series = demand @ pis.T
    order = np.argsort(-series, axis=0, kind="stable")[: missed + 1]
    count, num = len(open_.costs), len(mus)
    hours = {hour: count + num * missed + n for n, hour in enumerate(dict.fromkeys(order[:missed].ravel(order="F").tolist()))}
    entries: list[tuple[int, int, float]] = []
    limits: list[float] = []

    def row(columns: Iterable[int], values: Iterable[float], most: float) -> None:
        entries.extend((len(limits), column, value) for column, value in zip(columns, values, strict=True) if value)
        limits.append(most)

    for values, most in zip(*open_.scaled, strict=True):
        row(range(count), values.tolist(), float(most))
    for q, mu in enumerate(mus):
        w = series[order[:, q], q]
        if not w[0] > 0:
            continue
        first = count + q * missed
        levels = range(first, first + missed)
        row([*range(count), *levels], np.concatenate([-(mu @ open_.gpus), np.diff(w)]).tolist() / w[0], -1.0)
        for level, hour in zip(levels, order[:missed, q].tolist(), strict=True):
            row([level, hours[hour]], [1.0, -1.0], 0.0)
            if level > first:
                row([level, level - 1], [1.0, -1.0], 0.0)
    if missed:
        row(hours.values(), [1.0] * len(hours), float(missed))
    width = count + num * missed + len(hours)
    by_column = sorted(entries, key=lambda each: (each[1], each[0]))
    rows, columns, values = (np.array(each) for each in zip(*by_column, strict=True))
    matrix = SparseMatrix(rows, columns, values, (len(limits), width))
    upper = np.concatenate([open_.most, np.ones(width - count)])
    costs = np.concatenate([open_.costs, np.zeros(width - count)])
    program = LinearProgram(costs, 0.0, matrix, np.array(limits), 0, np.zeros(width), upper)
    whole = np.arange(width) < (0 if is_relaxed else count + num * missed)
    return solve_whole(program, whole, gap=gap / 2, limit=limit)


def _separate(demand: Floats, served: HourCoverage, rays: _Rays, gpus: Floats) -> tuple[NDArray[np.bool_], int]:
    """Return the (H,) hours that a fleet does not serve, as far as known, and the number of new rays, at most `NEW_RAYS`."""
    tolerance = tolerance_of(gpus)
    pis, mus = rays.arrays
    failed = (demand @ pis.T - mus @ gpus).max(axis=1) > tolerance
    new = 0
    for hour in [] if served.is_apart else _undominated(demand, np.flatnonzero(~failed)):
        if failed[hour] or new == NEW_RAYS:
            continue
        lack, _, mu = served.lack(demand[hour], gpus)
        if lack > tolerance:
            failed[hour] = True
            if rays.add(mu):
                new += 1
                failed |= demand @ rays.pis[-1] - rays.mus[-1] @ gpus > tolerance
    return failed, new


def _undominated(demand: Floats, hours: NDArray[np.int64]) -> list[int]:
    """Return those of the hours whose demand no other one of them exceeds in all classes."""
    kept: list[int] = []
    for hour in hours[np.argsort(-demand[hours].sum(axis=1), kind="stable")].tolist():
        if not kept or not (demand[kept] >= demand[hour] - INPUT_ROUNDING).all(axis=1).any():
            kept.append(hour)
    return kept


def _repaired(
    demand: Floats, speeds: Floats, open_: Purchases, missed: int, gpus: Floats, served: HourCoverage, tried: set[tuple[float, ...]]
) -> Floats | None:
    """Return the cheapest fleet that serves the hours that lack least on these GPUs, all but `missed`; None if there is none."""
    key = tuple(gpus.tolist())
    if key in tried or not missed:
        return None
    tried.add(key)
    lacks = served.lacks(demand, gpus)
    kept = np.sort(np.argsort(lacks, kind="stable")[: len(demand) - missed])
    try:
        return least_cost(demand[_undominated(demand, kept)], speeds, open_, 0).nodes.astype(float)
    except InfeasibleError:
        return None


def least_cost_of_work(
    demand: Floats, speeds: Floats, open_: Purchases, share: float, *, gap: float = 1e-4, limit: TimeLimit | None = None
) -> Fleet:
    """Return a least-cost fleet that serves a share of the GPU-hours of all hours, by tangent planes of the work that it does.

    Raises `InfeasibleError` if there is no such fleet.
    """
    limit, served, open_ = limit or TimeLimit(), HourCoverage(speeds), open_.at_most(demand, speeds)
    goal = share * float(demand.sum())
    most, slopes = served.work(demand, open_.gpus @ open_.most)
    if most < goal * (1 - INPUT_ROUNDING):
        raise InfeasibleError("no fleet within the limits serves the demand")
    cuts: list[tuple[float, Floats]] = []
    bound, nodes = 0.0, np.zeros(len(open_.costs))
    while True:
        work, slopes = served.work(demand, open_.gpus @ nodes)
        if work >= goal * (1 - INPUT_ROUNDING):
            return Fleet(np.round(nodes).astype(np.int64), float(open_.costs @ nodes), bound)
        limit.check()
        by_kind = slopes @ open_.gpus
        cuts.append((goal - work + float(by_kind @ nodes), by_kind))
        found = solve_whole(_of_cuts(open_, cuts), np.ones(len(nodes), dtype=bool), gap=gap / 2, limit=limit)
        if found is None:
            limit.check()
            raise InfeasibleError("no fleet within the limits serves the demand")
        bound, nodes = max(bound, found.bound), found.values


def most_work(demand: Floats, speeds: Floats, open_: Purchases, *, gap: float = 1e-3, steps: int = 60) -> Floats:
    """Return (P,) nodes within the limits that serve most GPU-hours of all hours, to this gap or after so many tangent planes.

    Raises `InfeasibleError` if no nodes at all are within the limits.
    """
    served, total = HourCoverage(speeds), float(demand.sum()) or 1.0
    cuts: list[tuple[float, Floats]] = []
    best, most, nodes = np.zeros(len(open_.costs)), -1.0, np.zeros(len(open_.costs))
    for _ in range(steps):
        work, slopes = served.work(demand, open_.gpus @ nodes)
        if work > most and (open_.rows @ nodes <= open_.limits + WHOLE_TOLERANCE).all():
            best, most = nodes, work
        by_kind = slopes @ open_.gpus
        cuts.append(((work - float(by_kind @ nodes)) / total, by_kind / total))
        table = np.array([[1.0, *(-values)] for _, values in cuts] + [[0.0, *row] for row in open_.rows])
        limits = np.concatenate([[const for const, _ in cuts], open_.limits])
        size = np.abs(table).max(axis=1, initial=1e-9)
        program = _dense(
            np.array([-1.0, *(1e-9 * open_.costs)]), table / size[:, None], limits / size, np.array([1.0, *open_.most])
        )
        found = solve_whole(program, np.arange(len(nodes) + 1) > 0, gap=gap / 4)
        if found is None or found.values[0] * total <= most * (1 + gap):
            break
        nodes = found.values[1:]
    return best


def _of_cuts(open_: Purchases, cuts: Sequence[tuple[float, Floats]]) -> LinearProgram:
    rows = np.array([*(values / max(abs(least), 1.0) for least, values in cuts)])
    least = np.array([least / max(abs(least), 1.0) for least, _ in cuts])
    scaled, limits = open_.scaled
    return _dense(open_.costs, np.vstack([-rows, scaled]), np.concatenate([-least, limits]), open_.most)


def _dense(costs: Floats, table: Floats, limits: Floats, upper: Floats) -> LinearProgram:
    columns, places = np.nonzero(table.T)
    matrix = SparseMatrix(places, columns, table.T[columns, places], table.shape)
    return LinearProgram(costs, 0.0, matrix, limits, 0, np.zeros(len(costs)), upper)
