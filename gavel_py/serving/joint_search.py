"""The search for the replicas of services that leave training jobs the best objective.

Let u be the GPUs of each type that the replicas take, and V(u) the training objective on the rest, negative where less is better,
with the normalisers of the whole cluster. V falls with u, and is concave without whole gangs: with the value R and the gains p per
extra GPU at some u', V(u) <= R + p · (u' - u) for every u. A program with whole numbers finds the replicas with the best bound of
all these rows, the training problem is solved there, which adds a row, and so on until the best plan reaches the bound (Benders,
Numerische Mathematik 4, 1962).

Whole gangs make V smaller than R. Then this u and all larger ones are ruled out, and count with the most that they can have. A
policy in levels has its first level as V. `min_cost` costs the least among plans with the least shortfall, so that shortfall is V
first, and then cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import ConflictError
from gavel_py.io.tabular import Rows
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.job_classes import separate_jobs
from gavel_py.optimization.solving.highs import InfeasibleError, LinearProgram, TimeLimit, solve_whole
from gavel_py.policies import Policy
from gavel_py.policies.demand import DemandPolicy, FillingPolicy
from gavel_py.policies.max_min_fairness import MaxMinFairness
from gavel_py.policies.min_cost import MinCost, Shortfall
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import PROOF_TOLERANCE, SOLVER_TOLERANCE
from gavel_py.serving.held import Held, has_shared_limits, without_guarantees
from gavel_py.serving.market import NamedMarket, gpus_of, raise_unsolved
from gavel_py.serving.replicas import MarketProgram, relaxed
from gavel_py.serving.whole_replicas import GAP as MANY_GAP
from gavel_py.serving.whole_replicas import SMALL, trimmed, whole_plan

GAP = PROOF_TOLERANCE
"""Part of the objective with the whole cluster up to which two objectives count as equal."""

FEWER = 10 * SOLVER_TOLERANCE
"""Part of it that all GPUs of a type are worth, so that of equal plans the one with fewer is found."""

SOME = 0.01
"""GPUs of a type that are left at least when V is bounded, since jobs that can run on no other would have no objective."""

FIRST_SERVICE = SOLVER_TOLERANCE
"""Service of the job that rises fastest, at which the rates of the first level are found."""

MOST_PLANS = 200
"""Maximum number of plans that are tried."""

MANY_NODES = 2_000
"""Nodes of branch and bound for the program of many replicas (`SMALL`)."""

LEAST_SCALE = SOLVER_TOLERANCE
"""Objective with the whole cluster up to which it counts as 0."""

LARGE = 1e9
"""Largest part of the objective with the whole cluster."""


class Objective(NamedTuple):
    """An objective of training: its policy, for problems as `of` prepares them."""

    policy: Policy
    of: Callable[[AllocationProblem], AllocationProblem]

    @property
    def sign(self) -> float:
        """1 if more is better, else -1."""
        return -1.0 if getattr(self.policy, "direction", "max") == "min" else 1.0

    @property
    def without_time(self) -> float | None:
        """V if a job has no time: 0, or -inf, or None for the V of the others."""
        return {"max_min_fairness": 0.0, "max_total_throughput": None}.get(self.policy.name, -math.inf)


def objectives_of(policy: Policy) -> tuple[Objective, ...]:
    """Return the objectives of a policy in the order in which they count."""
    if isinstance(policy, FillingPolicy):
        first = MaxMinFairness(efficiency=False, constraints=policy.constraints)
        return (Objective(first, partial(_as_first_level, policy)),)
    if isinstance(policy, MinCost):
        shortfall = Shortfall(min_share=policy.min_share, constraints=policy.constraints)
        return Objective(shortfall, _as_it_is), Objective(policy, _as_it_is)
    return (Objective(replace(policy, efficiency=False) if isinstance(policy, DemandPolicy) else policy, _as_it_is),)


def _as_it_is(problem: AllocationProblem) -> AllocationProblem:
    return problem


def _as_first_level(policy: FillingPolicy, problem: AllocationProblem) -> AllocationProblem:
    """Return the jobs that rise first, with the service that each has per level as its weight."""
    jobs = policy.view(separate_jobs(problem, policy.name, policy.reads))
    rise = policy.shares(jobs).rise(np.ones(len(jobs)))
    level = float(rise.levels(np.full(len(jobs), FIRST_SERVICE)).min(initial=1.0))
    services = rise.services(level) / level
    some = services > 0
    return replace(problem.select(jobs.rows[some]), weights=services[some])


class Tried(NamedTuple):
    """Replicas that were tried.

    Attributes:
        replicas: (n_i,) of each service.
        gpus: (K,) that they take.
        places: A row for each part of a replica on a node.
        rest: What is left of the cluster.
        values: V of each objective.
        most: What V can be at most with the same GPUs, wherever the replicas are.
        missing: The jobs that fit nowhere beside them.
    """

    replicas: list[Floats]
    gpus: Floats
    places: Rows
    rest: Cluster
    values: tuple[float, ...]
    most: tuple[float, ...]
    missing: frozenset[str]


Row = tuple[float, Floats]
"""R and (K,) p of a row R - p · u."""


class Bounded(NamedTuple):
    """R with some GPUs in use, and the row that bounds V elsewhere, if there is one."""

    value: float
    rows: tuple[Row, ...]


class Next(NamedTuple):
    """A bound on all plans that are not ruled out, and the replicas that reach it; None if there are none, or none was found."""

    bound: float
    replicas: list[Floats] | None


class _ReplicaProgram:
    """The program of the replicas that serve the floors, with rows that bound V.

    Attributes:
        capacities: (K,) GPUs.
        per_replica: (n_i, K) GPUs of the replicas of each service.
        uses: (K, values) GPUs that the values of the program take.
    """

    def __init__(self, market: NamedMarket) -> None:
        self.market, self.capacities = market, market.cluster.capacities
        self.program = MarketProgram(replace(market.market, common=0.0))
        limits = [market.limit_names.index(gpus_of(name)) for name in market.cluster.accelerator_names]
        self.per_replica = [columns.uses[:, limits] for columns in market.market.services]
        self.uses = np.stack([self.program.use_of(limit) for limit in limits])

    def first(self, limit: TimeLimit) -> list[Floats]:
        """Return the replicas that serve the floors with the least part of the GPUs. Raises `ConflictError` if there are none."""
        market, parts = self.market.market, 1 / np.maximum(self.capacities, 1.0)
        columns = tuple(replace(c, costs=per @ parts) for c, per in zip(market.services, self.per_replica, strict=True))
        least = replace(market, services=columns, common=0.0, has_costs=True, upper=market.lower)
        found = whole_plan(least, relaxed(least), limit)
        if found is None:
            raise_unsolved(self.market)
        assert found is not None  # noqa: S101
        return found.replicas

    def next(self, rows: Sequence[Row], kept: Sequence[Row], ruled_out: Sequence[Tried], limit: TimeLimit) -> Next:
        """Return the replicas with the best bound on V.

        The values of the program are those of the market, then V, then for each plan that is ruled out and each type whether fewer
        GPUs of it are taken.

        Args:
            rows: V <= R - p · u.
            kept: R - p · u >= 0.
            ruled_out: Plans of which all replicas must take fewer GPUs of some type.
            limit: Time limit.
        """
        program, (types, count) = self.program.program, self.uses.shape
        size = count + 1 + types * len(ruled_out)
        added, limits = list[Floats](), list[float]()

        def add(limit: float, replicas: Floats | float, columns: Sequence[int], values: float) -> None:
            row = np.zeros(size)
            row[:count], row[list(columns)] = replicas, values
            added.append(row)
            limits.append(limit)

        for value, prices in rows:
            add(value, prices @ self.uses, [count], 1.0)
        for value, prices in kept:
            add(value, prices @ self.uses, (), 0.0)
        for k, plan in enumerate(ruled_out):
            chosen = range(count + 1 + types * k, count + 1 + types * (k + 1))
            add(-1.0, 0.0, chosen, -1.0)
            for t, column in enumerate(chosen):
                add(float(self.capacities[t]), self.uses[t], [column], float(self.capacities[t] - plan.gpus[t] + 1))
        is_value = np.arange(size - count) == 0
        found = LinearProgram(
            np.concatenate([FEWER / np.maximum(self.capacities, 1.0) @ self.uses, -1.0 * is_value]),
            0.0,
            _with_rows(program.matrix, np.array(added).reshape(-1, size)),
            np.concatenate([program.limits, limits]),
            program.equalities,
            np.concatenate([program.lower, -LARGE * is_value]),
            np.concatenate([program.upper, np.where(is_value, LARGE, 1.0)]),
        )
        whole = np.concatenate([self.program.is_whole, ~is_value])
        gap, nodes = (GAP / 10, None) if self.program.num_whole <= SMALL else (MANY_GAP, MANY_NODES)
        try:
            solution = solve_whole(found, whole, gap=gap, limit=limit, nodes=nodes)
        except InfeasibleError:
            return Next(-math.inf, None)
        if solution is None:
            return Next(min((value for value, _ in rows), default=LARGE), None)
        return Next(FEWER * types - solution.bound, list(self.program.plan_of(solution.values[:count])[1]))


class JointSearch:
    """The search for the replicas under which training has the best objective.

    Attributes:
        tried: The plans found so far.
        rows: Of each objective, what bounds it: R + p · u' and (K,) p.
        ruled_out: Plans that are not tried again, nor any with no fewer GPUs of each type.
        hopeless: Jobs that fit nowhere beside any replicas, and count in no objective.
    """

    def __init__(
        self, market: NamedMarket, cluster: Cluster, build: Callable[[Cluster], AllocationProblem], policy: Policy, limit: TimeLimit
    ) -> None:
        self.market, self.cluster, self.policy, self.limit, self._build = market, cluster, policy, limit, build
        self.whole = build(cluster)
        self.objectives = objectives_of(policy)
        self.bounding = [Solver(each.policy) for each in objectives_of(without_guarantees(policy))]
        self.program = _ReplicaProgram(market)
        # (K, K') whether a type of the services is one of the training problem; either may lack some.
        types = self.whole.accelerator_types
        found = [same_accelerator(name, types) for name in market.cluster.accelerator_names]
        self.same = np.array([[float(name == each) for name in types] for each in found])
        self._begin(frozenset())

    def _begin(self, hopeless: frozenset[str]) -> None:
        self.hopeless = hopeless
        self.tried: list[Tried] = []
        self.ruled_out: list[Tried] = []
        # An objective after the first is a cost, so that V is at most 0.
        self.rows: list[list[Row]] = [[(0.0, np.zeros(len(self.same)))] * (n > 0) for n in range(len(self.objectives))]

    def _counted(self, problem: AllocationProblem) -> AllocationProblem:
        """Return the problem without hopeless jobs."""
        return problem.select(~np.isin(problem.job_ids, list(self.hopeless))) if self.hopeless else problem

    def build(self, rest: Cluster) -> AllocationProblem:
        """Return the training problem on the rest of the cluster, with the normalisers of all of it."""
        return replace(self._build(rest), share_capacities=self.whole.share_capacities)

    def best(self) -> tuple[Tried, float, float]:
        """Return the best plan, its objective, and a bound on that of all plans."""
        first = self.program.first(self.limit)
        while True:
            tops = [self._bounded(n, np.zeros(len(self.same))) for n in range(len(self.objectives))]
            self.scales = [abs(top.value) if LEAST_SCALE < abs(top.value) < math.inf else 1.0 for top in tops]
            self.rows[0] += tops[0].rows
            self._try(first)
            kept: tuple[float, ...] = ()
            for n in range(len(self.objectives)):
                best, bound = self._best_by(n, kept)
                kept = (*kept, best.values[n])
            if not best.missing or self.objectives[-1].without_time is None:
                sign = self.objectives[-1].sign
                return best, sign * best.values[-1], sign * bound
            self._begin(self.hopeless | best.missing)

    def held(self, replicas: Sequence[Floats]) -> Held:
        """Return what these replicas hold."""
        found = [
            (service.tenant, each.accelerator, each.num_gpus)
            for service, offer, y in zip(self.market.services, self.market.offers, replicas, strict=True)
            for each, count in zip(offer.types, y.tolist(), strict=True)
            for _ in range(round(count))
        ]
        return Held.on(self.cluster, *found)

    def _best_by(self, n: int, kept: tuple[float, ...]) -> tuple[Tried, float]:
        """Return the best plan by one objective among those that keep the values of the earlier ones, and a bound on it."""
        while True:
            some = [each for each in self.tried if self._keeps(each.values, kept)]
            best = max(some, key=lambda each: (each.values[n], -len(each.missing), -each.gpus.sum()), default=None)
            bound, replicas = self._next(n, kept)
            bound = max([bound, *(each.most[n] for each in self.ruled_out if self._keeps(each.most, kept))])
            is_best = best is not None and best.values[n] >= bound - GAP * self.scales[n]
            is_over = len(self.tried) >= MOST_PLANS or self.limit.remaining <= 0
            if is_best or is_over or replicas is None or not self._try(replicas):
                if best is None:
                    raise_unsolved(self.market)
                assert best is not None  # noqa: S101
                return best, max(bound, best.values[n])

    def _next(self, n: int, kept: tuple[float, ...]) -> Next:
        scale = self.scales[n]
        rows = [(value / scale, prices / scale) for value, prices in self.rows[n]]
        earlier = zip(self.rows, kept, self.scales, strict=False)
        also = [(value - least + GAP * unit, prices) for found, least, unit in earlier for value, prices in found]
        found = self.program.next(rows, also, self.ruled_out, self.limit)
        return found._replace(bound=found.bound * scale)

    def _keeps(self, values: Sequence[float], kept: Sequence[float]) -> bool:
        """Return whether earlier objectives have the values that were found for them."""
        return all(value >= least - GAP * scale for value, least, scale in zip(values, kept, self.scales, strict=False))

    def _try(self, replicas: Sequence[Floats]) -> bool:
        """Add a plan with these replicas, without those that no floor needs; return False if the same was tried before."""
        services, lower = self.market.market.services, self.market.market.lower.tolist()
        needed = [trimmed(c, y, low) if low else np.zeros(len(y)) for c, y, low in zip(services, replicas, lower, strict=True)]
        needed = [few if few.sum() >= c.least else y for c, few, y in zip(services, needed, replicas, strict=True)]
        gpus = np.sum([y @ per for y, per in zip(needed, self.program.per_replica, strict=True)], axis=0)
        if any(self._is_same(each, needed, gpus) for each in (*self.tried, *self.ruled_out)):
            return False
        found = [self._bounded(n, gpus) for n in range(len(self.objectives))]
        bounds = tuple(each.value for each in found)
        placed, values, missing = self.placed(needed), tuple(-math.inf for _ in bounds), frozenset[str]()
        if placed is not None:
            problem, held = self.build(placed[1]), self.held(needed)
            missing = frozenset(problem.excluded.keys() - self.whole.excluded.keys() - self.hopeless)
            values = tuple(self._value(n, problem, held, is_missing=bool(missing)) for n in range(len(bounds)))
        # The less jobs may lack, the more they cost: if whole gangs lack more here, a bound on their cost is none.
        is_bound = [self._keeps(values[:n], bounds[:n]) for n in range(len(bounds))]
        most = tuple(r if holds else 0.0 for r, holds in zip(bounds, is_bound, strict=True))
        if placed is not None:
            most = values if _is_anywhere(self.whole) and not has_shared_limits(self.policy) else most
            self.tried.append(Tried(needed, gpus, *placed, values, most, missing))
        for n in np.flatnonzero(is_bound).tolist():
            self.rows[n] += found[n].rows
        is_exact = all(v >= r - GAP / 2 * scale and r > -math.inf for v, r, scale in zip(values, bounds, self.scales, strict=True))
        if not is_exact:
            self.ruled_out.append(Tried(needed, gpus, Rows(), self.cluster, values, most, missing))
        return True

    def _is_same(self, plan: Tried, replicas: Sequence[Floats], gpus: Floats) -> bool:
        """Return whether replicas have the same V as those of a plan; limits of tenants depend on whose they are."""
        if has_shared_limits(self.policy):
            return all(np.array_equal(a, b) for a, b in zip(plan.replicas, replicas, strict=True))
        return np.array_equal(plan.gpus, gpus)

    def _bounded(self, n: int, gpus: Floats) -> Bounded:
        """Return R with these GPUs in use, without whole gangs and guarantees, and the row that follows from it."""
        left = np.maximum(self.whole.capacities - gpus @ self.same, np.minimum(self.whole.capacities, SOME))
        problem = self._counted(replace(self.whole, hosts=None, capacities=left))
        try:
            found = self.bounding[n].solve(self.objectives[n].of(problem))
        except ConflictError:
            return Bounded(-math.inf, ())
        if found.objective_bound is None or found.shadow_prices is None:
            return Bounded(math.inf, ())
        prices = self.same @ found.shadow_prices
        value = self.objectives[n].sign * found.objective_bound + float(found.shadow_prices @ (self.whole.capacities - left))
        return Bounded(value - float(prices @ gpus), ((value, prices),))

    def _value(self, n: int, rest: AllocationProblem, held: Held, *, is_missing: bool) -> float:
        """Return V of the training jobs on the rest of the cluster; is_missing: whether a job fits there no more."""
        objective, lacking = self.objectives[n], 0.0
        if is_missing and objective.without_time is not None:
            return objective.without_time
        rest, whole = self._counted(rest), self._counted(self.whole)
        if isinstance(self.policy, MinCost):
            # A job that is slower on all that is left needs less there: w (1 - thr / need) is the rest of what it lacks.
            part = self._needs(rest) / self._needs(whole)
            lacking = float(whole.weights @ (1 - part)) * (n == 0)
            rest = replace(rest, weights=whole.weights * part)
        try:
            solver = Solver(held.policy(objective.policy))
            found = solver.solve(objective.of(rest))
        except ConflictError:
            return -math.inf
        return objective.sign * ((found.objective_value or 0.0) + lacking)

    def _needs(self, problem: AllocationProblem) -> Floats:
        """Return (N,) the throughputs that `min_cost` requires, 1 for jobs without one."""
        assert isinstance(self.policy, MinCost)  # noqa: S101
        jobs, needs = separate_jobs(problem, self.policy.name, self.policy.reads), np.ones(problem.num_jobs)
        needs[jobs.rows] = self.policy.enough(jobs)
        return np.where(needs > 0, needs, 1.0)

    # ---------------------------------------------------------------------------------------------------------- on which nodes

    def placed(self, replicas: Sequence[Floats]) -> tuple[Rows, Cluster] | None:
        """Return the nodes of all replicas, the largest first, each where least is left, and the rest; None if some do not fit."""
        cluster = self.market.cluster
        free = {node.name: node.num_gpus for node in self.cluster.nodes}
        parts = [
            (size, service.name, number, each)
            for service, offer, y in zip(self.market.services, self.market.offers, replicas, strict=True)
            for each, count in zip(offer.types, y.tolist(), strict=True)
            for size, stages in [each.parts_on(cluster)]
            for number in range(1, round(count) + 1)
            for _ in range(stages)
        ]
        places = Rows()
        for size, service, number, each in sorted(parts, key=lambda part: -part[0]):
            room = [node.name for node in cluster.nodes_of(each.accelerator) if free[node.name] >= size]
            if not room:
                return None
            name = min(room, key=free.__getitem__)
            free[name] -= size
            where = {"node": name, "accelerator": each.accelerator, "num_gpus": size}
            places.append({"service": service, "replica": str(each), "number": number, **where})
        return places, with_gpus(self.cluster, free)


def _with_rows(matrix: SparseMatrix, rows: Floats) -> SparseMatrix:
    """Return a matrix with more rows and columns, its entries in the order of columns."""
    down, across = np.nonzero(rows)
    columns = np.concatenate([matrix.columns, across])
    order = np.argsort(columns, kind="stable")
    places = np.concatenate([matrix.rows, down + matrix.shape[0]])
    values = np.concatenate([matrix.values, rows[down, across]])
    return SparseMatrix(places[order], columns[order], values[order], (matrix.shape[0] + len(rows), rows.shape[1]))


def with_gpus(cluster: Cluster, gpus: Mapping[str, int]) -> Cluster:
    """Return a cluster with these numbers of GPUs on its nodes."""
    nodes = [node.model_copy(update={"num_gpus": gpus[node.name]}) for node in cluster.nodes]
    found = Cluster(nodes, cluster.accelerator_types)
    found.left_out = cluster.left_out
    return found


def _is_anywhere(problem: AllocationProblem) -> bool:
    """Return whether gangs may be on any GPUs of a type, so that V depends on the numbers of GPUs alone."""
    hosts = problem.hosts
    return hosts is None or (hosts.speeds is None and not hosts.per_gpu.any() and bool((hosts.localities == "any").all()))
