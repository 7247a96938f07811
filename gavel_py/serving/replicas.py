"""The program of serving on a fixed set of GPUs: columns of replicas, shared limits, the relaxation and its bound.

A column k of service i is a replica on g_k GPUs of one type, which serves T_kb requests/s of size b. With y_k replicas,
which serve the part x_kb of the demand λ_ib,

    Σ_k x_kb = t_i for each size b,  Σ_b λ_ib x_kb / T_kb <= y_k,  l_i <= Σ_k y_k <= u_i,  Σ_i Σ_k a_rk y_k + Σ_p d_rp z_p <= c_r,

where t_i is the served fraction of the service, and each row r with limit c_r is shared: the GPUs of a type, a budget, a quota, or
places on nodes, which z_p <= w_p nodes with the packing p make (d_rp < 0). All objectives have the same form,
max m min_i t_i + Σ_i v_i t_i - Σ_k f_k y_k, with t_i between bounds.

**Bound.** For prices p_r >= 0 of the shared limits, and weights μ_i >= 0 with Σ_i μ_i = m, the objective of every plan is at most

    Σ_r p_r c_r + Σ_p w_p max(0, -Σ_r p_r d_rp) + Σ_i max over t_i and y of ((v_i + μ_i) t_i - Σ_k (f_k + Σ_r p_r a_rk) y_k),

by weak duality, and the services are independent of each other. For fractions of replicas, a request of size b costs h_k / T_kb
at the price h_k of a replica, and the maximum has a closed form (`relaxed_costs`). For whole replicas, it is a small program with
whole numbers for each service, and the bound is better (`whole_replicas`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import (
    NO_LIMIT,
    InfeasibleError,
    LinearProgram,
    LinearSolver,
    Solution,
    TimeLimit,
    WholeSolution,
    solve_whole,
)
from gavel_py.problem.arrays import Floats, Indices, Mask

MAX_REPLICAS = 1e6

FEW_NODES = 2_000


@dataclass(frozen=True, eq=False)
class ReplicaColumns:
    """The n ways to place a replica of one service, whose requests have B sizes.

    Attributes:
        demand: (B,) requests/s, each greater than 0.
        rates: (n, B) requests/s of one replica.
        uses: (n, R) how much of each shared limit a replica uses.
        costs: (n,) price per hour of a replica.
        least, most: Limits of the number of replicas.
    """

    demand: Floats
    rates: Floats
    uses: Floats
    costs: Floats
    least: int = 0
    most: float = np.inf

    @cached_property
    def loads(self) -> Floats:
        """(n, B) the number of replicas kept busy by all requests of one size; infinite if they cannot serve that size."""
        return np.divide(self.demand, self.rates, out=np.full_like(self.rates, np.inf), where=self.rates > 0)

    def loads_of(self, parts: Floats) -> Floats:
        """Return (n,) the number of replicas that (n, B) parts of the demand keep busy."""
        busy: Floats = (np.where(parts > 0, self.loads, 0.0) * parts).sum(axis=1)
        return busy

    @cached_property
    def best_of_type(self) -> Mask:
        """(n, B) whether a column uses the least of the limits for a size, among those that use them in the same proportion."""
        size = np.maximum(self.uses.max(axis=1), 1e-300)
        _, same = np.unique(np.round(self.uses / size[:, None], 12), axis=0, return_inverse=True)
        needed, best = self.loads * size[:, None], np.zeros(self.rates.shape, dtype=bool)
        for group in range(same.max(initial=-1) + 1):
            rows = np.flatnonzero(same.ravel() == group)
            best[rows[needed[rows].argmin(axis=0)], np.arange(len(self.demand))] = True
        return np.logical_and(best, np.isfinite(self.loads))

    def useful(self, num_gpus: Sequence[int], parts: Sequence[int], names: Sequence[str]) -> Mask:
        """Return (n,) the useful columns: those that serve requests, and more of them than smaller ones on the same GPUs.

        num_gpus, parts, names: the GPUs of each column, those of them that must be on one node, and their type. If the number of
        replicas is limited, large replicas may be useful.
        """
        size = np.array(num_gpus, dtype=float)
        kept: Mask = np.asarray((self.rates > 0).any(axis=1))
        for k in np.flatnonzero(kept).tolist() if self.most == np.inf else ():
            for q in np.flatnonzero(kept).tolist():
                many = size[k] // size[q]
                fits = names[q] == names[k] and size[k] % size[q] == 0 and parts[k] % parts[q] == 0
                is_first = (size[q], parts[q], q) < (size[k], parts[k], k)
                if fits and is_first and (many * self.rates[q] >= self.rates[k]).all():
                    kept[k] = False
                    break
        return kept

    def restricted_to(self, columns: Mask) -> ReplicaColumns:
        """Return some of the columns."""
        return replace(self, rates=self.rates[columns], uses=self.uses[columns], costs=self.costs[columns])


class Packings(NamedTuple):
    """The P ways to pack replicas on nodes. uses: (P, R) d_rp; most: (P,) w_p."""

    uses: Floats
    most: Floats


NO_PACKINGS = Packings(np.zeros((0, 0)), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Market:
    """Services and their shared limits. limits: (R,) c_r; gains: (I,) v_i; lower, upper: (I,) bounds of t_i.

    common: m, the value of the least served fraction; has_costs: whether the costs of replicas count.
    """

    services: tuple[ReplicaColumns, ...]
    limits: Floats
    gains: Floats
    lower: Floats
    upper: Floats
    common: float = 0.0
    has_costs: bool = False
    packings: Packings = NO_PACKINGS

    def costs_of(self, i: int) -> Floats:
        """Return (n,) the costs f_k of the replicas of a service in the objective."""
        columns = self.services[i]
        return columns.costs if self.has_costs else np.zeros(len(columns.costs))

    def value(self, levels: Floats, replicas: Sequence[Floats]) -> float:
        """Return the objective at these served fractions and replicas."""
        paid = sum(float(self.costs_of(i) @ y) for i, y in enumerate(replicas)) if self.has_costs else 0.0
        return self.common * float(levels.min()) + float(self.gains @ levels) - paid

    def used(self, replicas: Sequence[Floats]) -> Floats:
        """Return (R,) the use of the shared limits by these replicas."""
        used = [y @ columns.uses for y, columns in zip(replicas, self.services, strict=True)]
        return np.asarray(np.sum(used, axis=0), dtype=float)

    def left(self, replicas: Sequence[Floats]) -> Floats:
        """Return (R,) what these replicas leave of the shared limits, below 0 for places that packings must make."""
        left = self.limits - self.used(replicas)
        return np.where(self.limits > 0, np.maximum(left, 0.0), left)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Values from which a bound follows. prices: (R,) p_r; weights: (I,) μ_i, with sum m; least, most: (I,) of l_i and u_i."""

    prices: Floats
    weights: Floats
    least: Floats
    most: Floats


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The best plan with fractions of replicas. levels: (I,) t_i; replicas: (n_i,) of each service; bound: of every plan."""

    levels: Floats
    replicas: tuple[Floats, ...]
    multipliers: Multipliers
    bound: float


@dataclass(frozen=True, eq=False)
class Changes:
    """The cost of loading replicas: of the y_k of a service, z_k >= y_k - before_k are new, and serve less at first.

    before: for each service, its (n,) earlier replicas, or the position in the market of the same service at an earlier time, or
    None if no replica counts as new; lost: the part of the time in which a new replica serves nothing; cost: of a new replica.
    """

    before: tuple[Floats | int | None, ...]
    lost: float
    cost: float


class MarketProgram:
    """The program of a market in the form of HiGHS, which minimises.

    Values: the served fractions t_i, their minimum if it counts, the replicas of each service, the packings, and the parts x_kb.

    is_whole: whether replicas must be whole. If not, they follow from the parts, and a service without limits of their number needs
    no values for them. used: (n_i, B) mask of the x_kb of each service, by default all with a rate. changes: the cost of new
    replicas, whose numbers are the last values.
    """

    def __init__(
        self, market: Market, used: Sequence[Mask] | None = None, *, is_whole: bool = True, changes: Changes | None = None
    ) -> None:
        self.market, self.changes, services = market, changes, market.services
        masks = [np.isfinite(columns.loads) for columns in services] if used is None else used
        self._cells = [np.nonzero(mask) for mask in masks]
        self._is_counted = [columns.least > 0 or columns.most < np.inf for columns in services]
        self._has_replicas = [is_whole or each for each in self._is_counted]
        counts = [len(c.costs) if there else 0 for c, there in zip(services, self._has_replicas, strict=True)]
        self.first_replica = len(services) + (market.common > 0)
        self._replicas = self.first_replica + _starts(counts)
        self._packed = np.arange(len(market.packings.most)) + self._replicas[-1]
        self._parts = self._replicas[-1] + len(self._packed) + _starts([len(k) for k, _ in self._cells])
        changing = () if changes is None else changes.before
        self._new = self._parts[-1] + _starts(
            [0 if before is None else len(services[i].costs) for i, before in enumerate(changing)]
        )
        self._served = _starts([len(columns.demand) for columns in services])
        self._loaded = self._served[-1] + _starts(counts)
        self._shared = int(self._loaded[-1])
        self._counts = self._shared + len(market.limits)
        self._common = self._counts + 2 * sum(self._is_counted)
        self._changed = self._common + (len(services) if market.common > 0 else 0)
        self._entries: list[tuple[Indices, Indices, Floats]] = []
        self.first_new = int(self._parts[-1])
        self.num_whole = int(self._parts[0]) - self.first_replica
        self.program = self._compiled()

    def _compiled(self) -> LinearProgram:
        market, num, count = self.market, len(self.market.services), int(self._new[-1])
        limits = np.zeros(self._changed + count - int(self._parts[-1]))
        limits[self._shared : self._counts] = market.limits
        costs, lower, upper = np.zeros(count), np.zeros(count), np.full(count, MAX_REPLICAS)
        costs[:num], lower[:num], upper[:num] = -market.gains, market.lower, market.upper
        for i in range(num):
            self._enter_service(i, costs, upper)
        upper[self._packed] = market.packings.most
        which, at = np.nonzero(market.packings.uses)
        self._enter(self._shared + at, self._packed[which], market.packings.uses[which, at])
        counted = np.flatnonzero(self._is_counted).tolist()
        for row, i in zip(range(self._counts, self._common, 2), counted, strict=True):
            y = np.arange(self._replicas[i], self._replicas[i + 1])
            self._enter(row, y, -1.0)
            self._enter(row + 1, y, 1.0)
            limits[row : row + 2] = -market.services[i].least, min(market.services[i].most, MAX_REPLICAS * len(y))
        if market.common > 0:
            costs[num], upper[num] = -market.common, market.upper.max()
            self._enter(self._common + np.arange(num), num, 1.0)
            self._enter(self._common + np.arange(num), np.arange(num), -1.0)
        for i, before in enumerate(self.changes.before if self.changes is not None else ()):
            if before is not None:
                self._enter_changes(i, before, costs, limits)
        rows, columns, values = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        order = np.lexsort((rows, columns))
        matrix = SparseMatrix(rows[order], columns[order], values[order], (len(limits), count))
        return LinearProgram(costs, 0.0, matrix, limits, int(self._served[-1]), lower, upper)

    def _enter(self, rows: ArrayLike, columns: ArrayLike, values: ArrayLike) -> None:
        row, column, value = np.broadcast_arrays(rows, columns, np.asarray(values, dtype=float))
        self._entries.append((row, column, value))

    def _enter_service(self, i: int, costs: Floats, upper: Floats) -> None:
        """Enter the rows of one service, and set costs and upper bounds of its values."""
        market, columns = self.market, self.market.services[i]
        k, b = self._cells[i]
        x, loads, each = np.arange(self._parts[i], self._parts[i + 1]), columns.loads[k, b], market.costs_of(i)
        upper[x] = market.upper[i]
        self._enter(np.arange(self._served[i], self._served[i + 1]), i, -1.0)
        self._enter(self._served[i] + b, x, 1.0)
        if self._has_replicas[i]:
            y = np.arange(self._replicas[i], self._replicas[i + 1])
            costs[y] = each
            self._enter(self._loaded[i] + k, x, loads)
            self._enter(self._loaded[i] + np.arange(len(y)), y, -1.0)
            of, row = np.nonzero(columns.uses)
            self._enter(self._shared + row, y[of], columns.uses[of, row])
        else:
            costs[x] = each[k] * loads
            of, row = np.nonzero(columns.uses[k])
            self._enter(self._shared + row, x[of], columns.uses[k[of], row] * loads[of])

    def _enter_changes(self, i: int, before: Floats | int, costs: Floats, limits: Floats) -> None:
        """Enter the rows of the new replicas of one service, and set their costs."""
        assert self.changes is not None  # noqa: S101
        y, z = np.arange(self._replicas[i], self._replicas[i + 1]), np.arange(self._new[i], self._new[i + 1])
        rows = self._changed + z - self._parts[-1]
        costs[z] = self.changes.cost
        self._enter(self._loaded[i] + np.arange(len(y)), z, self.changes.lost)
        self._enter(rows, y, 1.0)
        self._enter(rows, z, -1.0)
        if isinstance(before, int):
            self._enter(rows, np.arange(self._replicas[before], self._replicas[before + 1]), -1.0)
        else:
            limits[rows] = before

    def relaxed(self, solver: LinearSolver | None = None) -> Relaxed:
        """Return the best plan with fractions of replicas, and the bound that follows from its dual values."""
        solution = (solver or LinearSolver()).solve_first(self.program)
        multipliers = self._multipliers(solution)
        levels, replicas = self.plan_of(solution.values)
        return Relaxed(levels, replicas, multipliers, bound_of(self.market, multipliers))

    def whole(self, *, gap: float, limit: TimeLimit = NO_LIMIT, nodes: int | None = None) -> WholeSolution | None:
        """Return the best plan with whole replicas, None if none was found; the arguments are those of `solve_whole`."""
        try:
            return solve_whole(self.program, self.is_whole, gap=gap, limit=limit, nodes=nodes)
        except InfeasibleError:
            return None

    @property
    def is_whole(self) -> Mask:
        """Whether each value must be a whole number if replicas are whole."""
        places = np.arange(len(self.program.costs))
        return (places >= self.first_replica) & (places < self.first_replica + self.num_whole)

    def is_feasible(self, *, is_whole: bool) -> bool:
        """Return False if a short search proves that there is no plan. is_whole: with whole replicas."""
        try:
            solve_whole(self.program, self.is_whole & is_whole, gap=1.0, nodes=FEW_NODES)
        except InfeasibleError:
            return False
        return True

    def plan_of(self, values: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        """Return (I,) served fractions and the replicas of each service."""
        replicas = [
            values[self._replicas[i] : self._replicas[i + 1]] if there else (columns.loads_of(self.parts_of(values, i)))
            for i, (columns, there) in enumerate(zip(self.market.services, self._has_replicas, strict=True))
        ]
        return values[: len(replicas)], tuple(replicas)

    def parts_of(self, values: Floats, i: int) -> Floats:
        """Return (n, B) the parts x_kb of a service."""
        found = np.zeros(self.market.services[i].rates.shape)
        found[self._cells[i]] = values[self._parts[i] : self._parts[i + 1]]
        return found

    def use_of(self, limit: int) -> Floats:
        """Return how much of a shared limit a unit of each value uses."""
        matrix, uses = self.program.matrix, np.zeros(len(self.program.costs))
        there = matrix.rows == self._shared + limit
        uses[matrix.columns[there]] = matrix.values[there]
        return uses

    def _multipliers(self, solution: Solution) -> Multipliers:
        num, duals, common = len(self.market.services), solution.duals, self.market.common
        least, most = np.zeros(num), np.zeros(num)
        least[self._is_counted], most[self._is_counted] = (duals[self._counts + end : self._common : 2] for end in (0, 1))
        weights = duals[self._common : self._changed] if common > 0 else np.zeros(num)
        weights = weights * (common / weights.sum()) if weights.any() else np.full(num, common / num)
        return Multipliers(duals[self._shared : self._counts], weights, least, most)


def relaxed(market: Market) -> Relaxed:
    """Return the best plan with fractions of replicas.

    Without limits of the number of replicas, only the best column of each type counts for requests of one size.
    """
    used = [c.best_of_type if c.least == 0 and c.most == np.inf else np.isfinite(c.loads) for c in market.services]
    return MarketProgram(market, used, is_whole=False).relaxed()


def is_feasible(market: Market, *, is_whole: bool = False) -> bool:
    """Return False if a short search proves that no plan keeps all floors and limits. is_whole: with whole replicas."""
    program = MarketProgram(replace(market, gains=np.zeros(len(market.services)), common=0.0, has_costs=False), is_whole=is_whole)
    return program.is_feasible(is_whole=is_whole)


def bound_of(market: Market, at: Multipliers) -> float:
    """Return an upper bound on the objective of all plans, with whole replicas or fractions of them."""
    total = float(at.prices @ market.limits)
    total += float(market.packings.most @ np.maximum(0.0, -market.packings.uses @ at.prices))
    for i, columns in enumerate(market.services):
        cost, fixed = relaxed_costs(columns, market.costs_of(i) + columns.uses @ at.prices, float(at.least[i]), float(at.most[i]))
        gain = market.gains[i] + at.weights[i] - cost
        level = market.upper[i] if gain > 0 else market.lower[i]
        total += (gain * level if level else 0.0) - fixed
    return total


def relaxed_costs(columns: ReplicaColumns, prices: Floats, least: float = 0.0, most: float = 0.0) -> tuple[float, float]:
    """Return lower bounds on the cost of a service at (n,) prices of its replicas: per served fraction, and the fixed part.

    least, most: multipliers of the limits of the number of replicas.
    """
    most = most if columns.most < np.inf else 0.0
    least = min(least, float((prices + most).min(initial=np.inf))) if columns.least else 0.0
    each = np.maximum(0.0, prices + most - least)
    per_size = np.where(
        np.isfinite(columns.loads), each[:, None] * np.where(np.isfinite(columns.loads), columns.loads, 0.0), np.inf
    )
    fixed = least * columns.least - (most * columns.most if most else 0.0)
    return float(per_size.min(axis=0, initial=np.inf).sum()), fixed


def packing_of(market: Market, replicas: Sequence[Floats]) -> Floats | None:
    """Return (P,) the numbers of packings with which these replicas keep the shared limits, None if there are none."""
    packings, none = market.packings, np.zeros(0)
    if not len(packings.most):
        return none
    found = MarketProgram(Market((), market.left(replicas), none, none, none, packings=packings)).whole(gap=1.0)
    return None if found is None else found.values


def _starts(counts: Sequence[int]) -> NDArray[np.intp]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
