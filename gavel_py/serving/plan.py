"""Plans of whole replicas for services on the GPUs of a cluster, alone or beside training jobs.

`plan_serving` builds the market of the services (`market`) and solves it (`whole_replicas`). The plan contains the routing of
requests, its bound, and the dual values from which `verify` recomputes the bound without a solver.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, Unpack

import numpy as np
from pydantic import Field, SkipValidation

from gavel_py.errors import Fault, GavelWarning, InputError, ProofError, unknown_names
from gavel_py.io.records import Options, SecondsAboveZero
from gavel_py.io.tabular import Rows, Tabular
from gavel_py.optimization.solving.highs import TimeLimit
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import CLEAR, PROOF_TOLERANCE
from gavel_py.serving.market import NamedMarket, Objective, Quota, ReplicaType, check_feasible, named_market, raise_unsolved
from gavel_py.serving.replicas import Multipliers, Relaxed, bound_of, packing_of, relaxed
from gavel_py.serving.requests import Bucket
from gavel_py.serving.services import Service, ServingProfile
from gavel_py.serving.whole_replicas import GAP, WIDE, WholePlan, best_level, trimmed, whole_plan

if TYPE_CHECKING:
    from gavel_py.allocation.result import Allocation
    from gavel_py.io.tabular import Array
    from gavel_py.policies import Policy
    from gavel_py.problem.problem import AllocationProblem
    from gavel_py.serving.keywords import PlanKeywords


class BoundedPlan:
    """A plan with a value, and a bound on the value of any plan."""

    value: float
    bound: float

    @property
    def gap(self) -> float:
        """The difference of value and bound, relative to the bound."""
        distance = abs(self.bound - self.value)
        return distance / max(abs(self.bound), 1e-12) if distance > 1e-12 else 0.0

    @property
    def status(self) -> str:
        """Whether the plan is "optimal" up to a gap of 0.0001, or only "feasible"."""
        return "optimal" if self.gap <= GAP else "feasible"


class _Evidence(NamedTuple):
    """That from which `ServingPlan.verify` checks a plan without a solver; packing: on the nodes, None if there is none."""

    market: NamedMarket
    multipliers: Multipliers
    packing: Floats | None


@dataclass(frozen=True, eq=False)
class ServingPlan(BoundedPlan, Tabular):
    """Whole replicas for services, and the requests that each of them serves.

    Attributes:
        objective: "max_min", "weighted_rate" or "min_cost".
        value: The least served fraction, the weighted requests per second served, or the price per hour.
        bound: A bound on the value of any plan.
        gap: The difference of value and bound, relative to the bound.
        status: "optimal" up to a gap of 0.0001, else "feasible".
        services: The services.
        served: Served fraction of each service: the largest t <= 1 with t times its demand routed in every size.
        replicas: A row for each service and type of replica in use.
        routes: A row for each service, size of requests and type of replica that serves some of them.
        gpus_used: GPUs in use by accelerator type.
        gpus_free: GPUs left by accelerator type.
        price_per_hour: Price of all GPUs in use, None if the price of one of them is unknown.
        prices: Dual price of each shared limit that binds, such as the GPUs of a type, in the relaxation, where replicas may be
            divided: one more unit improves its value by at most this price. Whole replicas may gain more or less.
        notes: Assumptions behind the rates, such as factors for an SLO.
        training: The allocation of the training jobs on the remaining GPUs; None without training jobs.
        replica_prices: How much the objective of the training jobs loses because of one replica, by service and type, and the part
            of its work that each tenant would gain without it; empty without training jobs.
    """

    objective: Objective
    value: float
    bound: float
    services: tuple[Service, ...]
    served: dict[str, float]
    replicas: Rows
    routes: Rows
    gpus_used: dict[str, int]
    gpus_free: dict[str, int]
    price_per_hour: float | None
    prices: dict[str, float]
    notes: tuple[str, ...]
    training: Allocation | None = None
    replica_prices: Rows = field(default_factory=Rows)
    _evidence: _Evidence | None = None

    def verify(self) -> None:
        """Check the plan from its rows alone, and recompute the bound of the relaxation from its dual values.

        Raises:
            ProofError: A limit is exceeded, requests are lost or served twice, a replica serves more than its rate, or the value
                differs from the reported one or is better than a bound.
        """
        assert self._evidence is not None  # noqa: S101
        market, multipliers, packing = self._evidence
        tables = [tables_of(market, i, self) for i in range(len(market.offers))]
        replicas = [y for y, _ in tables]
        _check_limits(market, replicas, packing)
        levels = np.array([_checked_level(market, i, *table) for i, table in enumerate(tables)])
        for (name, stated), found in zip(self.served.items(), levels.tolist(), strict=True):
            if abs(stated - found) > PROOF_TOLERANCE:
                raise ProofError(f"service {name!r}: {found:.9g} of its demand is routed, but {stated:.9g} is stated")
        sign = -1.0 if self.objective == "min_cost" else 1.0
        value = sign * market.market.value(levels, replicas)
        if abs(value - self.value) > PROOF_TOLERANCE * max(1.0, abs(value)):
            raise ProofError(f"the value is {value:.9g}, but {self.value:.9g} is stated")
        bound = bound_of(market.market, multipliers)
        if max(sign * self.value, sign * self.bound) > bound + PROOF_TOLERANCE * max(1.0, abs(bound)):
            raise ProofError(
                f"the value {self.value:.9g} or the bound {self.bound:.9g} is better than the bound {sign * bound:.9g}"
            )

    def explain(self) -> str:
        """Return sentences on what limits the plan, what it assumes, and what its replicas cost the training jobs."""
        lines = [
            f"{_MEANING[self.objective]}: {self.value:.4g}; no plan has a better one than {self.bound:.4g} (gap {self.gap:.2%})."
        ]
        per = {"max_min": "least served fraction", "weighted_rate": "weighted rate", "min_cost": "price per hour"}[self.objective]
        word = "would lower" if self.objective == "min_cost" else "would raise"
        change = f"if replicas could be divided, one more {word} the {per} by at most"
        lines += [f"Dual price of {name}: {change} {price:.4g}." for name, price in self.prices.items()]
        if self.prices:
            lines.append("Whole replicas may gain more or less; to see how much, plan again with one more.")
        lines += [f"{note}." for note in self.notes]
        for row in self.replica_prices:
            price, values = row["price"], f"{row['objective_without_replica']:.6g} instead of {row['objective']:.6g}"
            costs = f"{price:.4g}: {values}" if price else "nothing"
            lines.append(f"A replica of {row['service']} on {row['replica']} costs the objective of the training jobs {costs}.")
            parts = {name: "some" if part is None else f"{part:+.1%}" for name, part in row["work_gained"].items()}
            gains = ", ".join(f"{name or 'all of it'} {part}" for name, part in parts.items() if part[1:] != "0.0%")
            lines.append(f"Without it, their work would change: {gains}." if gains else "Without it, no tenant gains.")
        return "\n".join(lines)

    def to_columns(self) -> dict[str, Array]:
        """Return the table of replicas as {column: (rows,) array}."""
        return self.replicas.to_columns()

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, for JSON."""
        training = None if self.training is None else self.training.to_dict()
        return {
            "objective": self.objective,
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "status": self.status,
            "served_fractions": self.served,
            "replicas": list(self.replicas),
            "routes": list(self.routes),
            "gpus_used": self.gpus_used,
            "gpus_free": self.gpus_free,
            "price_per_hour": self.price_per_hour,
            "prices": self.prices,
            "notes": list(self.notes),
            **({} if training is None else {"training": training, "replica_prices": list(self.replica_prices)}),
        }

    def __repr__(self) -> str:
        count = sum(row["replicas"] for row in self.replicas)
        reached = f"{self.objective} {self.value:.4g}, bound {self.bound:.4g}"
        return f"ServingPlan({reached}: {count} replicas of {len(self.served)} services)"

    def _title(self) -> str:
        return repr(self)


_MEANING = {
    "max_min": "Least served fraction",
    "weighted_rate": "Weighted requests per second served",
    "min_cost": "Price per hour",
}


class ServingPlanOptions(Options):
    """The options of `plan_serving`: what a plan must keep to. Every field is also a keyword argument of it.

    Raises:
        InputError: A value is out of range, or an option is not known.
    """

    label: ClassVar[str] = "plan_serving"

    floors: Annotated[Mapping[str, float] | None, SkipValidation] = Field(
        None, description="{service: least served fraction}, from 0 to 1."
    )
    budget_per_hour: Annotated[float | None, SkipValidation] = Field(None, description="Largest price per hour of all GPUs in use.")
    quotas: Annotated[Mapping[str, Quota] | None, SkipValidation] = Field(
        None,
        description="{tenant: largest number of GPUs, or {accelerator type: largest number}} for the services of a tenant.",
    )
    above_floors: bool = Field(
        False,
        description="Of `plan_jointly`: whether services serve more than their floors, by weight times rate, on GPUs that are not "
        "needed even if all jobs with time on their type run at once. Other plans always do.",
    )
    time_limit_seconds: SecondsAboveZero | None = Field(
        None, description="Time after which the search ends with the best plan found. None for no limit."
    )

    @property
    def limit(self) -> TimeLimit:
        """The time limit, from now."""
        return TimeLimit(self.time_limit_seconds)

    @property
    def limits(self) -> tuple[Mapping[str, float], float | None, Mapping[str, Quota]]:
        """The floors, the budget, and the quotas."""
        return self.floors or {}, self.budget_per_hour, self.quotas or {}

    def changed(self, **changes: Unpack[PlanKeywords]) -> Self:
        """Return the options with other values for some fields, checked."""
        return self._with(changes)


DEFAULTS = ServingPlanOptions()


def plan_serving(
    services: Iterable[Service],
    cluster: Cluster,
    profile: ServingProfile,
    objective: Objective = "max_min",
    *,
    training: AllocationProblem | None = None,
    policy: str | Policy = "max_min_fairness",
    options: ServingPlanOptions = DEFAULTS,
    **changes: Unpack[PlanKeywords],
) -> ServingPlan:
    """Return how many replicas of each service to run on which GPUs, and which requests each of them serves.

    Replicas are whole, and the requests of one size may be divided among them. A service has the served fraction t if t times its
    demand is routed in every size. A replica is on one node if any node is large enough for it, else each of its stages is on one;
    the nodes can hold all replicas together.

    Args:
        services: The services, each with a rate or a trace.
        cluster: The GPUs. Types that the profile lacks are left out, with a `GavelWarning`.
        profile: The rates of replicas.
        objective: "max_min": the least served fraction; "weighted_rate": Σ weight x rate x served fraction; "min_cost": all demand
            at the least price per hour of the GPUs in use.
        training: Training jobs that get the remaining GPUs, as a problem on the same cluster.
        policy: The policy of the training jobs.
        options: What the plan must keep to.
        **changes: Fields of `ServingPlanOptions` that replace those of `options`: `floors`, `budget_per_hour`, `quotas` and
            `time_limit_seconds`.

    Returns:
        The plan with its bound and gap. A gap above 2 % is a `GavelWarning`.

    Raises:
        ConflictError: Floors, budget and quotas contradict each other on these GPUs; the error has a minimal set of them.
        InputError: A service cannot be served anywhere in one of its sizes, has no demand, or is named twice.
        SolverError: No plan was found in time.
    """
    options = options.changed(**changes)
    named, limit = named_market(tuple(services), cluster, profile, objective, *options.limits), options.limit
    check_feasible(named)
    relaxation = relaxed(named.market)
    found = _cheapest_full_plan(named, relaxation, limit) if objective == "max_min" else None
    found = found or whole_plan(named.market, relaxation, limit)
    if found is None:
        raise_unsolved(named)
    assert found is not None  # noqa: S101
    plan = stated(named, objective, found, relaxation.multipliers)
    if plan.gap > WIDE:
        warnings.warn(
            f"the plan may be {plan.gap:.1%} below the best one: {plan.value:.4g}, bound {plan.bound:.4g}",
            GavelWarning,
            stacklevel=2,
        )
    return plan if training is None else beside_training(plan, training, policy)


def _cheapest_full_plan(named: NamedMarket, relaxation: Relaxed, limit: TimeLimit) -> WholePlan | None:
    """Return the plan that serves all demand with the fewest GPUs, None if there is none or none was found."""
    if relaxation.levels.min() < 1 - PROOF_TOLERANCE:
        return None
    sizes = [np.array([float(k.num_gpus) for k in offer.types]) for offer in named.offers]
    columns = tuple(replace(c, costs=size) for c, size in zip(named.market.services, sizes, strict=True))
    full = replace(named.market, services=columns, lower=np.ones(len(sizes)), common=0.0, has_costs=True)
    found = whole_plan(full, relaxed(full), limit)
    return None if found is None else replace(found, value=float(found.levels.min()), bound=1.0)


# --------------------------------------------------------------------------------------------------------------------------- result


def stated(named: NamedMarket, objective: Objective, found: WholePlan, multipliers: Multipliers) -> ServingPlan:
    """Return the plan with the names of a market: its replicas without those that it does not need, and the best routes to them."""
    market, cluster = named.market, named.cluster
    replicas = [_needed(named, i, found) for i in range(len(named.offers))]
    routed = [best_level(columns, y) for columns, y in zip(market.services, replicas, strict=True)]
    levels = np.array([level for level, _ in routed])
    sign = -1.0 if objective == "min_cost" else 1.0
    value = sign * market.value(levels, replicas)
    there = dict(zip(cluster.accelerator_names, map(int, cluster.capacities.tolist()), strict=True)) | cluster.left_out
    used = dict.fromkeys(there, 0)
    for offer, y in zip(named.offers, replicas, strict=True):
        for each, count in zip(offer.types, y.tolist(), strict=True):
            used[each.accelerator] += each.num_gpus * int(count)
    bound = sign * found.bound
    return ServingPlan(
        objective=objective,
        value=value,
        bound=max(bound, value) if sign > 0 else min(bound, value),
        services=named.services,
        served={service.name: level for service, level in zip(named.services, levels.tolist(), strict=True)},
        replicas=Rows(_replica_rows(named, replicas)),
        routes=Rows(row for i, (_, parts) in enumerate(routed) for row in _route_rows(named, i, parts)),
        gpus_used=used,
        gpus_free={name: count - used[name] for name, count in there.items()},
        price_per_hour=_price(cluster, used),
        prices={
            name: price
            for name, price in zip(named.limit_names, multipliers.prices.tolist(), strict=True)
            if price > PROOF_TOLERANCE**2
        },
        notes=tuple(offer.note for offer in named.offers if offer.note),
        _evidence=_Evidence(named, multipliers, packing_of(market, replicas)),
    )


def _needed(named: NamedMarket, i: int, found: WholePlan) -> Floats:
    """Return the replicas of a service, without those that it does not need."""
    columns, y, level = named.market.services[i], found.replicas[i], float(found.levels[i])
    if named.market.has_costs or level < 1 - PROOF_TOLERANCE:
        return y
    fewer = trimmed(columns, y, level)
    return fewer if fewer.sum() >= columns.least else y


def _replica_rows(named: NamedMarket, replicas: Sequence[Floats]) -> Iterable[dict[str, Any]]:
    for service, offer, y in zip(named.services, named.offers, replicas, strict=True):
        for each, count in zip(offer.types, y.tolist(), strict=True):
            if count > 0:
                yield {"service": service.name, "model": service.model, **each._asdict(), "replicas": int(count)}


def _route_rows(named: NamedMarket, i: int, parts: Floats) -> Iterable[dict[str, Any]]:
    service, offer = named.services[i], named.offers[i]
    for b, bucket in enumerate(offer.buckets):
        size = dict.fromkeys(Bucket._fields) if bucket is None else bucket._asdict()
        for each, part in zip(offer.types, parts[:, b].tolist(), strict=True):
            if part > 0:
                rate = part * float(offer.columns.demand[b])
                yield {"service": service.name, **size, **each._asdict(), "share": part, "requests_per_second": rate}


def _price(cluster: Cluster, used: Mapping[str, int]) -> float | None:
    prices = dict(zip(cluster.accelerator_names, cluster.prices_per_hour.tolist(), strict=True))
    total = sum(count * prices[name] for name, count in used.items() if count)
    return None if math.isnan(total) else float(total)


def _check_limits(named: NamedMarket, replicas: Sequence[Floats], packing: Floats | None) -> None:
    if packing is None or (packing != np.round(packing)).any() or (packing < 0).any():
        raise ProofError("the nodes cannot hold these replicas")
    used = named.market.used(replicas) + packing @ named.market.packings.uses
    for name, taken, limit in zip(named.limit_names, used.tolist(), named.market.limits.tolist(), strict=True):
        if taken > limit * (1 + PROOF_TOLERANCE):
            raise ProofError(f"{name}: {taken:g} are taken, but there are {limit:g}")
    for service, columns, y in zip(named.services, named.market.services, replicas, strict=True):
        if (y != np.round(y)).any() or (y < 0).any() or not columns.least <= y.sum() <= columns.most:
            raise ProofError(f"service {service.name!r}: its replicas are not whole, or not as many as they must be: {y.tolist()}")


def tables_of(named: NamedMarket, i: int, plan: ServingPlan) -> tuple[Floats, Floats]:
    """Return (n,) replicas of a service and (n, B) parts of its demand, from the rows of the plan."""
    service, offer = named.services[i], named.offers[i]
    types = {each: k for k, each in enumerate(offer.types)}
    sizes: dict[Bucket | None, int] = {bucket: b for b, bucket in enumerate(offer.buckets)}
    replicas, parts = np.zeros(len(types)), np.zeros((len(types), len(sizes)))
    for row in plan.replicas:
        if row["service"] == service.name:
            replicas[types[type_of(row)]] += row["replicas"]
    for row in plan.routes:
        if row["service"] == service.name:
            bucket = None if row["prompt_tokens"] is None else Bucket(row["prompt_tokens"], row["output_tokens"])
            b = sizes[bucket]
            parts[types[type_of(row)], b] += row["requests_per_second"] / offer.columns.demand[b]
    return replicas, parts


def type_of(row: Mapping[str, Any]) -> ReplicaType:
    return ReplicaType(*(row[name] for name in ReplicaType._fields))


def _checked_level(named: NamedMarket, i: int, replicas: Floats, parts: Floats) -> float:
    """Return the fraction that is routed in every size. Raises `ProofError` if a replica serves more than its rate."""
    service, columns = named.services[i], named.market.services[i]
    if (columns.loads_of(parts) > replicas * (1 + PROOF_TOLERANCE)).any():
        raise ProofError(f"service {service.name!r}: its replicas serve more than their rates")
    if (parts.sum(axis=0) > 1 + PROOF_TOLERANCE).any() or (parts < 0).any():
        raise ProofError(f"service {service.name!r}: more requests are routed than arrive")
    return float(parts.sum(axis=0).min())


# -------------------------------------------------------------------------------------------------------------------- training jobs


def beside_training(plan: ServingPlan, training: AllocationProblem, policy: str | Policy = "max_min_fairness") -> ServingPlan:
    """Return the plan with the allocation of training jobs on the remaining GPUs, and the cost of its replicas to them.

    The price of a replica is the difference of the training objective with and without its GPUs, both solved and proven.

    Args:
        plan: A plan for services.
        training: The jobs, as a problem on the whole cluster.
        policy: Their policy.

    Raises:
        InputError: The problem has fewer GPUs of a type than the plan uses, or lacks the type.
        SolverError: HiGHS fails.
    """
    from gavel_py.allocation.solver import Solver

    solver, names = Solver(policy), list(training.accelerator_types)
    taken = {name: count for name, count in plan.gpus_used.items() if count}
    there = {name: same_accelerator(name, names) for name in taken}
    used = np.array([sum(count for name, count in taken.items() if there[name] == each) for each in names], dtype=float)
    missing = [name for name in taken if there[name] is None]
    faults = unknown_names("training", None, missing, names, "is used by services, but not in the problem")
    numbers = zip(names, training.capacities.tolist(), used.tolist(), strict=True)
    faults += [Fault("training", name, f"has {c:g} GPUs, but services use {u:g}") for name, c, u in numbers if u > c]
    InputError.raise_any(faults)
    left = training.capacities - used
    allocation = solver.solve(training.with_capacities(left))
    rows = Rows()
    for row in plan.replicas if allocation.objective_value is not None else ():
        extra = np.array([float(row["num_gpus"]) if name == there[row["accelerator"]] else 0.0 for name in names])
        other = solver.solve(training.with_capacities(left + extra))
        without = other.objective_value
        assert without is not None and allocation.objective_value is not None  # noqa: S101, PT018
        prices = {"objective": allocation.objective_value, "objective_without_replica": without}
        price = 0.0 if math.isclose(without, allocation.objective_value) else abs(without - allocation.objective_value)
        kind = {"service": row["service"], "replica": str(type_of(row)), **type_of(row)._asdict()}
        rows.append({**kind, **prices, "price": price, "work_gained": work_gained(allocation, other)})
    return replace(plan, training=allocation, replica_prices=rows)


def _work(allocation: Allocation) -> dict[str, float]:
    """Return Σ s_i v_i of the jobs of each tenant."""
    assert allocation.evidence is not None  # noqa: S101
    problem, work = allocation.evidence.base, dict[str, float]()
    for tenant, each in zip(problem.tenants, (problem.num_gpus * allocation.normalized_throughputs).tolist(), strict=True):
        work[tenant] = work.get(tenant, 0.0) + each
    return work


def work_gained(now: Allocation, then: Allocation) -> dict[str, float | None]:
    """Return the part of its work by which each tenant has more in another allocation of the same jobs; None if it had none."""
    work = _work(then)
    return {tenant: _gain(mine, work[tenant]) for tenant, mine in _work(now).items()}


def _gain(now: float, then: float) -> float | None:
    """Return the relative gain, None if there was nothing before, up to rounding."""
    return then / now - 1 if now > CLEAR * then else 0.0 if then <= now else None
