"""Whole replicas: a plan near the relaxation, improved by small programs with whole numbers, and a bound for whole replicas.

Small markets are solved as one program. For larger ones, branch and bound finds no plan in acceptable time, so the plan is rounded
service by service, the smallest first. Each service gets the whole replicas that serve its level at the least price, with prices
from the relaxation of the remaining services on the remaining GPUs. The level at which all of this fits is estimated from the
additional cost of whole replicas over fractions in a sample. The largest services, which can use any remaining types, are planned
together at the end as one small program. Then a few services at a time are planned again on their own GPUs and the free ones.

The better bound prices the best whole plan of each service at the dual values of the relaxation (`replicas`, Bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavel_py.optimization.solving.highs import NO_LIMIT, LinearSolver, TimeLimit
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import SOLVER_TOLERANCE, WHOLE_TOLERANCE
from gavel_py.serving.replicas import (
    NO_PACKINGS,
    Market,
    MarketProgram,
    Relaxed,
    ReplicaColumns,
    is_feasible,
    relaxed,
    relaxed_costs,
)

SMALL = 80
"""Number of whole numbers up to which a market is solved as one program."""

GAP = 1e-4
"""Relative gap to which small markets are solved; a smaller gap counts as optimal."""

WIDE = 0.02
"""Relative gap to the relaxation above which the better bound is computed."""

LAST_SECONDS = 60.0
"""Default time limit of the program of a large market for which rounding finds no plan."""

NODES = {"one": 50, "few": 100, "bound": 10}
"""Nodes of branch and bound for the program of one service, of a few services, and for the bound of one service."""

CHUNK = 10
"""Number of services that are rounded at the same prices."""

LAST = 5
"""Number of the largest services, which are planned together at the end of rounding."""

NEIGHBOURS = 4
"""Number of services that are planned again together."""

TRIES = 3
"""Number of times that a few services are planned again; each takes about as long as rounding 8 services."""

MOST_TRIES, ENOUGH = 15, 0.985
"""Maximum number of times while a service is below a part of the level to aim at, and that part."""

SAMPLE = 7
"""Every n-th service is in the sample from which the level is estimated."""

SAMPLED_LEVEL = 0.93
"""Level of the sample, as a part of the level of the relaxation."""

NEAR = 1.15
"""Columns that cost more than this times the cheapest one, for every size of requests, are left out when a service is rounded."""

LEFT_OVER = 1e-3
"""Part of the first prices that is added to later ones, so that no GPU has the price 0."""

LEAST_PRICE = 0.01
"""Price of all GPUs, as a part of what they could serve, where they are not scarce."""

STEP = 1.015
"""The level at which the bound is tested, over the estimated one."""

UNUSED = 0.5
"""Units of each shared limit that remain unused."""

MAX_LEVEL = 1e6


@dataclass(eq=False)
class WholePlan:
    """replicas: (n_i,) whole numbers of each service; levels: (I,) served fractions; bound: no plan has a higher value."""

    replicas: list[Floats]
    levels: Floats
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """The difference of value and bound, relative to the bound."""
        return max(0.0, self.bound - self.value) / max(abs(self.bound), 1e-12)


def whole_plan(market: Market, relaxation: Relaxed, limit: TimeLimit = NO_LIMIT) -> WholePlan | None:
    """Return a plan with whole replicas and its bound, None if there is no plan or none was found.

    Raises `SolverError` if HiGHS fails.
    """
    if sum(len(columns.costs) for columns in market.services) <= SMALL:
        return _solved(market, relaxation, limit)
    search = _PlanSearch(market, relaxation)
    found = search.plan(limit)
    if found is None:  # a rare market that is barely feasible
        return _solved(market, relaxation, limit if limit.is_set else TimeLimit(LAST_SECONDS))
    if found.gap > WIDE and limit.remaining > 0:
        found.bound = min(found.bound, max(found.value, search.bound()))
    return found


def _solved(market: Market, relaxation: Relaxed, limit: TimeLimit) -> WholePlan | None:
    """Return the plan of a market that is solved as one program."""
    program = MarketProgram(market)
    found = program.whole(gap=GAP, limit=limit)
    if found is None:
        return None
    return _evaluated(market, list(program.plan_of(found.values)[1]), min(relaxation.bound, -found.bound))


def _evaluated(market: Market, replicas: list[Floats], bound: float) -> WholePlan:
    levels = np.array([_level(market, i, y) for i, y in enumerate(replicas)])
    return WholePlan(replicas, levels, market.value(levels, replicas), bound)


def _level(market: Market, i: int, replicas: Floats) -> float:
    return best_level(market.services[i], replicas, float(market.upper[i]))[0]


def best_level(columns: ReplicaColumns, replicas: Floats, upper: float = 1.0) -> tuple[float, Floats]:
    """Return the largest fraction of the demand that these replicas serve, and (n, B) the parts of it that each column serves."""
    there = replicas > 0
    some = replace(columns.restricted_to(there), uses=np.zeros((int(there.sum()), 0)), least=0, most=np.inf)
    parts = np.zeros(columns.rates.shape)
    if not (np.isfinite(some.loads).any(axis=0)).all():
        return 0.0, parts
    market = Market((some,), np.zeros(0), np.ones(1), np.zeros(1), np.array([upper]))
    program = MarketProgram(market)
    fixed = program.program.upper.copy()
    fixed[program.first_replica : program.first_replica + len(some.costs)] = replicas[there]
    solution = LinearSolver().solve_first(replace(program.program, upper=fixed))
    parts[there] = program.parts_of(solution.values, 0)
    # HiGHS keeps rows to 1e-9. The level is lowered to what the replicas can serve, and is the same for all sizes.
    over = max(1.0, float((columns.loads_of(parts)[there] / replicas[there]).max()))
    parts = np.maximum(parts / over, 0.0)
    return float(min(upper, parts.sum(axis=0).min())), parts


class _PlanSearch:
    """The search for a plan with whole replicas of a market of many services.

    Attributes:
        each: (n_i,) prices of the replicas of each service in the relaxation.
        costs: (I,) the cost of serving all demand of a service by fractions of replicas.
        order: The services, the cheapest first.
        level: The served fraction to aim at, None unless the least one counts.
        extra: The additional cost of whole replicas of a service over fractions, on average.
    """

    def __init__(self, market: Market, relaxation: Relaxed) -> None:
        self.market, self.known_bound = market, relaxation.bound
        if market.common > 0:
            relaxation = _without_limit(market)
        self.relaxation, self.prices = relaxation, relaxation.multipliers.prices
        if market.common == 0 and not market.has_costs:
            scarce = _without_limit(
                replace(market, common=1.0, gains=np.zeros(len(market.gains)), lower=np.zeros(len(market.gains)))
            )
            per_level = float(market.gains.sum()) / max(float(scarce.levels.min()), 1e-300)
            self.prices = self.prices + LEAST_PRICE * per_level * scarce.multipliers.prices
        self.each = [market.costs_of(i) + columns.uses @ self.prices for i, columns in enumerate(market.services)]
        pairs = zip(market.services, self.each, strict=True)
        self.costs = np.array([relaxed_costs(columns, prices)[0] for columns, prices in pairs])
        self.order = np.argsort(self.costs, kind="stable")
        self.worth = float(self.prices @ market.limits)
        self.level: float | None = None
        self.extra = 0.0
        self.whole_level = 0.0
        if market.common > 0:
            self.level, self.whole_level = self._levels()

    def plan(self, limit: TimeLimit) -> WholePlan | None:
        """Return a plan within all limits, None if a service does not reach its floor."""
        plan = _evaluated(self.market, self._rounded(), self.known_bound)
        self._improve(plan, self.order[-LAST:].tolist())
        if not self._keeps_floors(plan) and (floors := self._served_floors(limit)) is not None:
            plan = _evaluated(self.market, floors, self.known_bound)
        for number in range(MOST_TRIES):
            is_below = self.level is not None and plan.value < ENOUGH * self.market.common * self.level
            if limit.remaining > 0 and plan.gap > GAP and (number < TRIES or is_below):
                self._improve(plan, self._neighbours(plan, number))
        return plan if self._keeps_floors(plan) else None

    def _served_floors(self, limit: TimeLimit) -> list[Floats] | None:
        """Return replicas that serve the floor of each service, found as a plan for the floors alone."""
        market = self.market
        some = np.flatnonzero(market.lower > 0)
        part = _part_of(market, some, market.limits)
        services = tuple(replace(c, demand=c.demand * low) for c, low in zip(part.services, part.lower, strict=True))
        none, full = np.zeros(len(some)), np.ones(len(some))
        served = replace(part, services=services, gains=none, lower=none, upper=full, common=1.0, has_costs=False)
        found = _PlanSearch(served, relaxed(served)).plan(limit) if len(some) > LAST else None
        if found is None or found.value < 1 - WHOLE_TOLERANCE:
            return None
        replicas = [np.zeros(len(columns.costs)) for columns in market.services]
        for i, y in zip(some.tolist(), found.replicas, strict=True):
            replicas[i] = y
        return replicas

    def bound(self) -> float:
        """Return a bound on the value of plans with whole replicas."""
        market = self.market
        if self.level is None:
            multipliers = self.relaxation.multipliers
            gains = market.gains + multipliers.weights
            total = sum(self._best_of_one(i, multipliers.prices, float(gain)) for i, gain in enumerate(gains.tolist()))
            return float(multipliers.prices @ market.limits) + total
        tested = self.whole_level * STEP
        least = np.array([-self._best_of_one(i, self.prices, 0.0, tested) for i in range(len(self.costs))])
        is_out_of_reach = least.sum() > self.worth * (1 + SOLVER_TOLERANCE)
        return market.common * (tested if is_out_of_reach else self._level_at(tested, least))

    def _level_at(self, tested: float, least: Floats) -> float:
        """Return a level above which the services cost more than all GPUs are worth; (I,) least: their costs at a lower one."""
        low, high = tested, max(tested, float(self.relaxation.levels.min()) * (1 + SOLVER_TOLERANCE))
        for _ in range(60):
            middle = (low + high) / 2
            enough = np.maximum(least, middle * self.costs).sum() > self.worth
            low, high = (low, middle) if enough else (middle, high)
        return high

    def _levels(self) -> tuple[float, float]:
        """Return the level to aim at, and the level at which whole replicas use all GPUs, estimated from a sample of services."""
        level = float(self.relaxation.levels.min())
        sample = self.order[SAMPLE // 2 :: SAMPLE].tolist()
        tested = SAMPLED_LEVEL * level
        found = [(i, self._one(i, self.each[i], None, tested)) for i in sample]
        more = sum(float(self.each[i] @ y) - tested * self.costs[i] for i, y in found if y is not None)
        self.extra = more / max(1, len(sample))
        whole = self.worth - self.extra * len(self.costs)
        total = max(float(self.costs.sum()), 1e-300)
        # Some units of each limit remain unused, since the last replicas do not fit exactly.
        level = min(level, float(self.market.upper.max()))
        aimed, full = (max(0.0, min(level, part / total)) for part in (whole - UNUSED * float(self.prices.sum()), whole))
        return aimed, full

    def _one(self, i: int, prices: Floats, limits: Floats | None, level: float | None, near: float = NEAR) -> Floats | None:
        """Return the best replicas of one service at (n,) prices, None if the limits leave no room."""
        chosen = _near(self.market.services[i], prices, near)
        program = self._program_of(i, prices, limits, level, chosen)
        gap = 0.1 * float(prices[chosen].min(initial=np.inf)) / max(float(self.costs[i]), 1e-300)
        found = program.whole(gap=min(0.01, max(0.001, gap)), nodes=NODES["one"])
        if found is None:
            return self._one(i, prices, limits, level, np.inf) if near < np.inf else None
        return _spread(chosen, program.plan_of(found.values)[1][0])

    def _best_of_one(self, i: int, prices: Floats, gain: float, level: float | None = None) -> float:
        """Return a bound on the gain of one service less the price of its replicas, at (R,) prices of the shared limits."""
        market, columns = self.market, self.market.services[i]
        each = market.costs_of(i) + columns.uses @ prices
        found = self._program_of(i, each, None, level, _near(columns, each, np.inf), gain).whole(gap=1e-3, nodes=NODES["bound"])
        if found is not None:
            return float(-found.bound)
        gain -= relaxed_costs(columns, each)[0]
        bounds = (market.lower[i], market.upper[i]) if level is None else (level, level)
        return float(max(gain * bounds[0], gain * bounds[1]))

    def _program_of(
        self, i: int, prices: Floats, limits: Floats | None, level: float | None, chosen: Mask, gain: float | None = None
    ) -> MarketProgram:
        """Return the program of some columns of one service, which pays these prices for its replicas."""
        market = self.market
        some = replace(market.services[i].restricted_to(chosen), costs=prices[chosen])
        low, high = (market.lower[i], market.upper[i]) if level is None else (max(level, market.lower[i]),) * 2
        gain = 0.0 if level is not None else float(market.gains[i]) if gain is None else gain
        room, packings = (np.full(len(market.limits), np.inf), NO_PACKINGS) if limits is None else (limits, market.packings)
        return MarketProgram(Market((some,), room, np.array([gain]), np.array([low]), np.array([high]), 0.0, True, packings))

    def _rounded(self) -> list[Floats]:
        """Return whole replicas within all limits, service by service; none for the last services and where there is no room."""
        market, left, prices, level = self.market, self.market.limits, self.prices, self.level
        replicas = [np.zeros(len(columns.costs)) for columns in market.services]
        first = self.order[:-LAST]
        for at in range(0, len(first), CHUNK):
            if at:
                prices, level = self._prices_of(self.order[at:], left, level)
            for i in first[at : at + CHUNK].tolist():
                columns = market.services[i]
                found = self._one(i, market.costs_of(i) + columns.uses @ prices, left, level)
                if found is not None:
                    replicas[i] = found
                    left = market.left(replicas)
        return replicas

    def _prices_of(self, services: Indices, left: Floats, level: float | None) -> tuple[Floats, float | None]:
        """Return prices of the shared limits for some services on the rest, and the level that they reach, at most `level`."""
        part = _part_of(self.market, services, left)
        part = replace(part, services=tuple(replace(each, least=0) for each in part.services))
        if level is not None:
            found = _without_limit(replace(part, lower=np.zeros(len(services))))
            prices = found.multipliers.prices
            more = self.extra * len(services) + UNUSED * float(self.prices.sum())
            reached = float(found.levels.min()) - more / max(float(self.costs[services].sum()), 1e-300)
            scale = self.prices.sum() / prices.sum() if prices.any() else 1.0
            return scale * prices + LEFT_OVER * self.prices, max(0.0, min(level, reached))
        if part.lower.any() and not is_feasible(part):
            part = replace(part, lower=np.zeros(len(services)))  # the floors are repaired later
        return relaxed(part).multipliers.prices + LEFT_OVER * self.prices, None

    def _neighbours(self, plan: WholePlan, number: int) -> list[int]:
        """Return the service with the least served fraction, or any, and larger ones, preferably with higher served fractions."""
        random = np.random.default_rng(number)
        first = int(plan.levels.argmin()) if self.level is not None else int(random.choice(self.order))
        others = np.array([i for i in self.order[len(self.order) // 2 :].tolist() if i != first])
        spare = (plan.levels[others] - plan.levels.min()) * self.costs[others] if self.level is not None else np.ones(len(others))
        spare = spare + 1e-3 * max(float(spare.max()), 1e-12)
        chosen = random.choice(others, min(NEIGHBOURS - 1, len(others)), replace=False, p=spare / spare.sum())
        return [first, *chosen.tolist()]

    def _improve(self, plan: WholePlan, some: list[int]) -> None:
        """Plan a few services again on their own GPUs and the free ones, and keep the result if it is better."""
        market, services = self.market, np.array(some)
        others = [np.zeros(len(y)) if i in some else y for i, y in enumerate(plan.replicas)]
        part = _part_of(market, services, market.left(others))
        masks = [_near(market.services[i], self.each[i], NEAR) | (plan.replicas[i] > 0) for i in some]
        part = replace(part, services=tuple(c.restricted_to(mask) for c, mask in zip(part.services, masks, strict=True)))
        program = MarketProgram(part)
        found = program.whole(gap=1e-3, nodes=NODES["few"])
        if found is None:
            return
        replicas = [_spread(mask, y) for mask, y in zip(masks, program.plan_of(found.values)[1], strict=True)]
        tried = WholePlan(list(plan.replicas), plan.levels.copy(), 0.0, plan.bound)
        for i, y in zip(some, replicas, strict=True):
            tried.replicas[i], tried.levels[i] = y, _level(market, i, y)
        if self._merit(tried, services) > self._merit(plan, services):
            plan.replicas, plan.levels = tried.replicas, tried.levels
            plan.value = market.value(plan.levels, plan.replicas)

    def _merit(self, plan: WholePlan, services: Indices) -> tuple[float, float]:
        """Return the merit of a plan for some services: their distance from the floors, and their contribution to the objective."""
        market = self.market
        floors = np.array([min(0.0, plan.replicas[i].sum() - market.services[i].least) for i in services.tolist()])
        lacking = float(np.minimum(plan.levels - market.lower + WHOLE_TOLERANCE, 0.0)[services].sum() + floors.sum())
        part = _part_of(market, services, market.limits)
        return lacking, part.value(plan.levels[services], [plan.replicas[i] for i in services.tolist()])

    def _keeps_floors(self, plan: WholePlan) -> bool:
        return self._merit(plan, np.arange(len(self.costs)))[0] >= -SOLVER_TOLERANCE


def _without_limit(market: Market) -> Relaxed:
    """Return the relaxation in which served fractions may exceed 1, so that there are prices even if everything can be served."""
    return relaxed(replace(market, upper=np.full(len(market.services), MAX_LEVEL)))


def _part_of(market: Market, services: Indices, limits: Floats) -> Market:
    """Return the market of some services with other shared limits."""
    bounds = {name: getattr(market, name)[services] for name in ("gains", "lower", "upper")}
    return replace(market, services=tuple(market.services[i] for i in services.tolist()), limits=limits, **bounds)


def _spread(chosen: Mask, replicas: Floats) -> Floats:
    """Return the replicas of all columns, given those of the chosen ones."""
    found = np.zeros(len(chosen))
    found[chosen] = replicas
    return found


def _near(columns: ReplicaColumns, prices: Floats, near: float) -> Mask:
    """Return (n,) the columns that cost at most `near` times the cheapest one for some size of requests."""
    serves = np.isfinite(columns.loads)
    if near < np.inf:
        costs = np.where(serves, prices[:, None] * np.where(serves, columns.loads, 0.0), np.inf)
        serves = serves & (costs <= near * costs.min(axis=0))
    return np.asarray(serves.any(axis=1))


def trimmed(columns: ReplicaColumns, replicas: Floats, level: float) -> Floats:
    """Return the fewest of these replicas, by GPUs, that serve the level."""
    there = replicas > 0
    size = columns.uses.max(axis=1)
    some = replace(columns.restricted_to(there), uses=np.eye(int(there.sum())), costs=size[there])
    market = Market((some,), replicas[there], np.zeros(1), np.array([level - SOLVER_TOLERANCE]), np.array([level]), has_costs=True)
    program = MarketProgram(market)
    found = program.whole(gap=0.0, nodes=NODES["one"])
    return replicas if found is None else _spread(there, program.plan_of(found.values)[1][0])
