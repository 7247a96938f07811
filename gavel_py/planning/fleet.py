"""The fleet for hourly demand: what to buy, keep and retire, the service that it gives, and what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, ProofError, faults_among, nearest, refuse, together
from gavel_py.io.records import NotNegative, check
from gavel_py.optimization.solving.highs import InfeasibleError, TimeLimit, TimeLimitReached
from gavel_py.planning.catalog import Catalog
from gavel_py.planning.chance import Fleet, HourCoverage, Purchases, least_cost, least_cost_of_work, tolerance_of
from gavel_py.planning.demand import HourlyDemand
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import WHOLE_TOLERANCE

WORST = 5
"""Hours that are named of those that a fleet does not serve."""

FASTEST = 1_000_000
"""The largest relative throughput; programs with larger ones could not be solved reliably."""

MONTH_HOURS = 730
"""The longest block of hours that is held back."""

Kind = Literal["joint", "each", "work"]


@dataclass(frozen=True)
class FleetService:
    """What a fleet must serve.

    Attributes:
        kind: "joint": the demand of all classes at once, in a share of the hours; "each": that of each class by itself, in such a
            share, whatever happens to the others; "work": a share of the GPU-hours.
        share: The share, above 0 and at most 1.
    """

    kind: Kind = "joint"
    share: float = 0.95

    @classmethod
    def parsed(cls, text: str) -> FleetService:
        """Return the service in a text such as "joint=95%".

        Args:
            text: joint, each or work, and a share, as in 95% or 0.95.

        Raises:
            InputError: The text has another form, or the share is not above 0 and at most 100%.
        """
        found = re.fullmatch(r"\s*(joint|each|work)\s*=\s*([0-9]+(?:\.[0-9]*)?)\s*(%?)\s*", text)
        refuse("service", (found is None, "", f"must be joint=SHARE, each=SHARE or work=SHARE, as in joint=95%, found {text!r}"))
        kind, number, percent = found.groups()  # type: ignore[union-attr]
        share = float(number) / (100 if percent else 1)
        hint = f"; write {number}%" if not percent and 1 < share <= 100 else ""
        refuse("service", (not 0 < share <= 1, "", f"must be a share above 0 and at most 100%, found {text!r}{hint}"))
        return cls(kind, share)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind}={self.share:.6g}" if self.share < 0.01 else f"{self.kind}={self.share * 100:.6g}%"

    def missed(self, hours: int) -> int:
        """Return how many of these hours may be missed.

        Args:
            hours: Number of hours.
        """
        return int(np.floor((1 - self.share) * hours + 1e-9))


@dataclass(frozen=True)
class FleetLimits:
    """Limits of a fleet; None for no limit.

    Attributes:
        budget_usd: Price of all nodes that are bought, less what retired ones bring.
        budget_usd_per_hour: Cost of all nodes per hour.
        power_kw: Power of all nodes.
        racks: Racks for all nodes.
        usd_per_kwh: Price of energy, a part of the cost of each node.
    """

    budget_usd: float | None = None
    budget_usd_per_hour: float | None = None
    power_kw: float | None = None
    racks: float | None = None
    usd_per_kwh: float = 0.0

    def __post_init__(self) -> None:
        limits = {name: (value, NotNegative | None) for name, value in vars(self).items() if name != "usd_per_kwh"}
        check("limits", usd_per_kwh=(self.usd_per_kwh, NotNegative), **limits)


@dataclass(frozen=True, eq=False)
class FleetMarket:
    """The types of a catalog with the nodes that are there: what can be kept, bought or rented, and what it costs.

    Attributes:
        catalog: One entry for each of J types.
        have: (J,) nodes that are there.
        limits: Those of the fleet.
    """

    catalog: Catalog
    have: NDArray[np.int64]
    limits: FleetLimits = FleetLimits()

    @property
    def sizes(self) -> Floats:
        """(J,) GPUs of a node."""
        return np.array([each.num_gpus for each in self.catalog.entries], dtype=float)

    def costs(self, *, is_owned: bool = False) -> Floats:
        """Return the (J,) cost of a node per hour.

        Args:
            is_owned: Whether it has been paid for.
        """
        price = self.limits.usd_per_kwh
        return np.array([each.node_usd_per_hour(price, is_owned=is_owned) for each in self.catalog.entries])

    def used(self) -> dict[str, tuple[Floats, float, float | None]]:
        """Return {limit: ((2J,) what a kept and a new node of each type uses of it, what there is already, the limit)}."""
        entries, limits = self.catalog.entries, self.limits
        resale = np.array([each.resale_usd for each in entries])
        lacking = [("power_kw", "watts"), ("racks", "nodes_per_rack")]
        InputError.raise_any(
            [
                Fault(
                    "catalog",
                    f"accelerator {each.accelerator!r}",
                    f"has no {of.removesuffix('s')}s, which the limit of {name} needs",
                )
                for name, of in lacking
                for each in entries
                if getattr(limits, name) is not None and getattr(each, of) is None
            ]
        )
        kilowatts = np.array([(each.watts or 0.0) / 1000 for each in entries])
        racks = np.array([1 / (each.nodes_per_rack or 1) for each in entries])
        prices = np.array([each.buy_usd or 0.0 for each in entries])
        return {
            "budget_usd": (np.concatenate([resale, prices]), -float(resale @ self.have), limits.budget_usd),
            "budget_usd_per_hour": (np.concatenate([self.costs(is_owned=True), self.costs()]), 0.0, limits.budget_usd_per_hour),
            "power_kw": (np.tile(kilowatts, 2), 0.0, limits.power_kw),
            "racks": (np.tile(racks, 2), 0.0, limits.racks),
        }

    def purchases(self, *, is_limited: bool = True) -> Purchases:
        """Return what can be had: J kinds of kept nodes, then J kinds of new ones.

        Args:
            is_limited: Whether the limits hold.
        """
        supply = [np.inf if each.max_nodes is None else each.max_nodes for each in self.catalog.entries]
        rows = [(values, limit - start) for values, start, limit in self.used().values() if limit is not None and is_limited]
        return Purchases(
            np.concatenate([self.costs(is_owned=True), self.costs()]),
            np.concatenate([self.have, supply]),
            np.tile(np.diag(self.sizes), 2),
            np.array([values for values, _ in rows]).reshape(len(rows), 2 * len(supply)),
            np.array([limit for _, limit in rows]),
        )


@dataclass(frozen=True, eq=False)
class HeldBack:
    """A block of hours that a fleet was not planned on.

    Attributes:
        demand: The hours.
        nodes: (J,) the fleet planned on all hours before them.
        promised: The share that was asked for.
        served: The share that these hours got, in the same words.
        worst: Their worst hours, as `FleetPlan.worst`.
    """

    demand: HourlyDemand
    nodes: NDArray[np.int64]
    promised: float
    served: float
    worst: Sequence[tuple[str, float]]


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """A least-cost fleet for hourly demand.

    Attributes:
        types: Names of the J accelerator types, those of demand first.
        market: Prices, nodes that are there, and limits.
        service: What was asked for.
        kept: (J,) nodes that are kept.
        bought: (J,) nodes that are bought or rented.
        usd_per_hour: Cost of the fleet.
        bound: Lower bound on the cost of all fleets that serve what was asked for.
        lacks: (H,) GPUs that each hour lacks.
        demand: The hours it was planned on.
        speeds: (I, J) throughput of each class on each type, relative to its own.
        shares: {kind of service: share that the fleet gives}.
        others: {service in other words: fleet that would be planned for it}.
        held_back: Blocks of hours, each with the fleet planned on the hours before it.
    """

    types: tuple[str, ...]
    market: FleetMarket
    service: FleetService
    kept: NDArray[np.int64]
    bought: NDArray[np.int64]
    usd_per_hour: float
    bound: float
    lacks: Floats
    demand: HourlyDemand
    speeds: Floats
    shares: Mapping[str, float]
    others: Mapping[str, FleetPlan] = field(default_factory=dict)
    held_back: Sequence[HeldBack] = ()

    @property
    def nodes(self) -> NDArray[np.int64]:
        """(J,) nodes of the fleet."""
        return self.kept + self.bought

    @property
    def retired(self) -> NDArray[np.int64]:
        """(J,) nodes that are no longer needed."""
        return self.market.have - self.kept

    @property
    def gap(self) -> float:
        """(cost − bound) / cost."""
        return Fleet(self.nodes, self.usd_per_hour, self.bound).gap

    def use_of(self, limit: str) -> float:
        """Return what the fleet uses of a limit.

        Args:
            limit: An attribute of `FleetLimits`; of budget_usd, what is to be paid now.
        """
        values, start, _ = self.market.used()[limit]
        return start + float(values @ np.concatenate([self.kept, self.bought]))

    @property
    def worst(self) -> list[tuple[str, float]]:
        """The hours that lack most GPUs, at most five: what each is called, and the GPUs."""
        return _worst(self.demand, self.lacks)

    def share_with(self, accelerator: str, nodes: int) -> float:
        """Return the share of service if the fleet had more or fewer nodes of a type.

        Args:
            accelerator: The type.
            nodes: How many more, or below 0 fewer.
        """
        changed = self.nodes + nodes * (np.array(self.types) == accelerator)
        return _shares(self.demand, self.speeds, np.maximum(changed, 0) * self.market.sizes)[self.service.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        new, owned = self.market.costs(), self.market.costs(is_owned=True)
        return {
            "service": str(self.service),
            "usd_per_hour": self.usd_per_hour,
            "usd_now": self.use_of("budget_usd"),
            "power_kw": self.use_of("power_kw"),
            "bound": self.bound,
            "gap": self.gap,
            "served": dict(self.shares),
            "missed_hours": int((self.lacks > tolerance_of(self.nodes * self.market.sizes)).sum()),
            "hours": len(self.demand),
            "worst_hours": [{"hour": name, "gpus_lacking": lack} for name, lack in self.worst],
            "types": [
                {
                    "accelerator": name,
                    "have": int(self.market.have[j]),
                    "keep": int(self.kept[j]),
                    "buy": int(self.bought[j]),
                    "retire": int(self.retired[j]),
                    "usd_per_hour": float(new[j]),
                    "usd_per_hour_owned": float(owned[j]),
                    "served_with_one_more": self.share_with(name, 1),
                    "served_with_one_fewer": self.share_with(name, -1) if self.nodes[j] else None,
                }
                for j, name in enumerate(self.types)
            ],
            "in_other_words": {
                text: {"usd_per_hour": plan.usd_per_hour, "nodes": plan.nodes.tolist(), "served": dict(plan.shares)}
                for text, plan in self.others.items()
            },
            "held_back": [
                {
                    "first_hour": each.demand.name_of(0),
                    "hours": len(each.demand),
                    "nodes": each.nodes.tolist(),
                    "promised": each.promised,
                    "served": each.served,
                    "worst_hours": [{"hour": name, "gpus_lacking": lack} for name, lack in each.worst],
                }
                for each in self.held_back
            ],
        }


def plan_fleet(
    demand: HourlyDemand,
    catalog: Catalog,
    service: FleetService | str | None = None,
    *,
    existing: Cluster | None = None,
    limits: FleetLimits | None = None,
    relative_throughputs: Mapping[str, Mapping[str, float]] | ArrayLike | None = None,
    time_limit: float | None = None,
) -> FleetPlan:
    """Return the least-cost fleet in whole nodes that serves hourly demand, with a bound on all others.

    An hour with demand d is served by a fleet n iff there is x ≥ 0 with Σ_j r_ij x_ij ≥ d_i for each class i and
    Σ_i x_ij ≤ s_j n_j for each type j of s_j GPUs a node. Jobs are divided at will; what does not fit a node is not seen.

    Args:
        demand: GPUs of each class in each hour.
        catalog: Prices and supply of nodes.
        service: What must be served, by default joint=95%; with a budget and no service, as much of the hours as the budget allows.
        existing: Nodes that are there; they can be kept or retired.
        limits: Budgets, power and racks.
        relative_throughputs: r_ij, as {class: {type: throughput relative to the type of the class}} or an (I, J) array, J types in
            the order of the catalog. By default each class is the name of a type, and runs only there.
        time_limit: Time after which the best fleet found is returned; it serves what was asked for, and its gap is stated.

    Returns:
        The plan. `others` and `held_back` are empty (`in_other_words`, `walk_forward`).

    Raises:
        InputError: A class has no type, a share of so few hours lets none be missed, no fleet was found in time, or none within
            supply and limits serves what was asked for; then it names a smallest set of hours and types that conflict.
    """
    limits = limits or FleetLimits()
    goal = FleetService.parsed(service) if isinstance(service, str) else service
    entries, speeds = _speeds(demand, catalog, relative_throughputs)
    used = speeds.max(axis=0) > 0
    have = np.zeros(len(entries.entries), dtype=np.int64) if existing is None else entries.nodes_in(existing)
    keep = used | (have > 0)
    market = FleetMarket(Catalog(tuple(e for e, is_kept in zip(entries.entries, keep, strict=True) if is_kept)), have[keep], limits)
    speeds, timed = speeds[:, keep], TimeLimit(time_limit)
    has_budget = limits.budget_usd is not None or limits.budget_usd_per_hour is not None
    has_goal, goal = goal is not None or not has_budget, goal or FleetService()
    if has_goal:
        _check_hours(goal, len(demand))
    apart = HourCoverage(speeds).is_apart
    text = "counts each class by itself, which means nothing if classes share GPUs; use joint= or work="
    refuse("service", (goal.kind == "each" and not apart, "", f"{goal.kind}= {text}"))
    try:
        if not has_goal:
            return _most_hours(demand, speeds, market, timed)
        fleet = _solved(demand, speeds, market.purchases(), goal, timed)
    except InfeasibleError:
        raise InputError(*_conflict(demand, speeds, market, goal)) from None
    except TimeLimitReached:
        raise InputError(Fault("time_limit", "", f"no fleet was found within {time_limit:g} s; give more time")) from None
    return _plan(demand, speeds, market, goal, fleet)


def in_other_words(plan: FleetPlan, *, time_limit: float | None = None) -> FleetPlan:
    """Return a plan with `others`: the fleets for the same share in other words, and for half and twice as much that is not served.

    Args:
        plan: A plan.
        time_limit: Seconds for each fleet; the best one by then is taken, and services for which there is none are left out.
    """
    share, others = plan.service.share, {}
    kinds: list[Kind] = ["joint", "each", "work"] if HourCoverage(plan.speeds).is_apart else ["joint", "work"]
    goals = [replace(plan.service, kind=kind) for kind in kinds]
    goals += [replace(plan.service, share=other) for other in (max(0.0, 2 * share - 1), (1 + share) / 2)]
    for goal in goals:
        if goal != plan.service and goal.share and (goal.kind == "work" or goal.share == 1 or goal.missed(len(plan.demand))):
            try:
                fleet = _solved(plan.demand, plan.speeds, plan.market.purchases(), goal, TimeLimit(time_limit))
            except (InfeasibleError, TimeLimitReached):
                continue
            others[str(goal)] = _plan(plan.demand, plan.speeds, plan.market, goal, fleet)
    return replace(plan, others=others)


def walk_forward(plan: FleetPlan, blocks: int = 3, *, time_limit: float | None = None) -> FleetPlan:
    """Return a plan with `held_back`: the last blocks of its hours, each served by a fleet planned on all hours before it.

    A share on the hours of the plan itself is optimistic; that on hours which the plan has not seen is what to expect.

    Args:
        plan: A plan.
        blocks: Number of blocks, each of at most a month and all of them at most half of the hours; blocks that could not be
            planned for, since no fleet serves the hours before, are left out.
        time_limit: Seconds for each fleet; the best one by then is taken, and blocks for which there is none are left out.
    """
    length = min(MONTH_HOURS, len(plan.demand) // (2 * max(1, blocks)))
    held = []
    for block in range(blocks if length else 0):
        first = len(plan.demand) - (blocks - block) * length
        before, after = plan.demand.part(0, first), plan.demand.part(first, first + length)
        if plan.service.kind != "work" and plan.service.share < 1 and not plan.service.missed(first):
            continue
        try:
            fleet = _solved(before, plan.speeds, plan.market.purchases(), plan.service, TimeLimit(time_limit))
        except (InfeasibleError, TimeLimitReached):
            continue
        nodes = fleet.nodes.reshape(2, -1).sum(axis=0)
        gpus = nodes * plan.market.sizes
        served = _shares(after, plan.speeds, gpus)[plan.service.kind]
        held.append(
            HeldBack(after, nodes, plan.service.share, served, _worst(after, HourCoverage(plan.speeds).lacks(after.gpus, gpus)))
        )
    return replace(plan, held_back=tuple(held))


def _speeds(
    demand: HourlyDemand, catalog: Catalog, given: Mapping[str, Mapping[str, float]] | ArrayLike | None
) -> tuple[Catalog, Floats]:
    """Return the catalog and the (I, J) relative throughputs on its types."""
    names = catalog.names
    if given is None:
        own = [same_accelerator(name, names) for name in demand.classes]
        missing = [name for name, there in zip(demand.classes, own, strict=True) if there is None]
        text = "is a class of demand, but no accelerator of the catalog, and has no speeds on others"
        InputError.raise_any([Fault("catalog", f"accelerator {name!r}", text + nearest(name, names)) for name in missing])
        speeds = np.array([[float(there == name) for name in names] for there in own])
    elif isinstance(given, Mapping):
        faults = [Fault("speeds", f"class {name!r}", "has no speeds on any type") for name in demand.classes if name not in given]
        for name, row in given.items():
            unknown = [each for each in row if same_accelerator(each, names) is None]
            faults += [
                Fault("speeds", f"class {name!r}", f"{each!r} is not in the catalog{nearest(each, names)}") for each in unknown
            ]
        InputError.raise_any(faults)
        by_name = [{same_accelerator(each, names): value for each, value in given[name].items()} for name in demand.classes]
        speeds = np.array([[row.get(name, 0.0) for name in names] for row in by_name])
    else:
        speeds = np.asarray(given, dtype=float)
        shape = (len(demand.classes), len(names))
        refuse("speeds", (speeds.shape != shape, "", f"must have the shape {shape}, classes by types, found {speeds.shape}"))
    is_usual = (speeds == 0) | ((speeds >= 1 / FASTEST) & (speeds <= FASTEST))
    with together() as attempt:
        attempt(
            lambda: InputError.raise_any(
                faults_among("speeds", (not is_usual.all(), "", f"must be 0, or at least 1/{FASTEST:,} and at most {FASTEST:,}"))
            )
        )
        nowhere = [name for name, row in zip(demand.classes, speeds, strict=True) if not (row > 0).any()]
        attempt(
            lambda: InputError.raise_any(
                [Fault("speeds", f"class {name!r}", "cannot run on any type; leave it out") for name in nowhere]
            )
        )
    return catalog, speeds


def _check_hours(goal: FleetService, hours: int) -> None:
    allowed = goal.kind == "work" or goal.share == 1 or goal.missed(hours)
    needed = int(np.ceil(1 / (1 - goal.share) - 1e-9)) if goal.share < 1 else 0
    text = f"lets none of {hours} hours be missed; write {goal.kind}=100% if that is meant, or give at least {needed} hours"
    refuse("service", (not allowed, "", f"{goal} {text}"))


def _solved(demand: HourlyDemand, speeds: Floats, open_: Purchases, goal: FleetService, limit: TimeLimit) -> Fleet:
    if goal.kind == "work":
        return least_cost_of_work(demand.gpus, speeds, open_, goal.share, limit=limit)
    missed = goal.missed(len(demand))
    if goal.kind == "each":  # each class by itself misses its own largest hours: one hour with what remains of all of them
        return least_cost(np.sort(demand.gpus, axis=0)[-1 - missed][None], speeds, open_, 0, limit=limit)
    return least_cost(demand.gpus, speeds, open_, missed, limit=limit)


def _plan(demand: HourlyDemand, speeds: Floats, market: FleetMarket, goal: FleetService, fleet: Fleet) -> FleetPlan:
    """Return the plan of a fleet, after a check that it serves what was asked for, by other means than the search."""
    kept, bought = fleet.nodes.reshape(2, -1).copy()
    open_ = market.purchases()
    for j, cost in enumerate(market.costs(is_owned=True)):
        with_all = np.concatenate([np.where(np.arange(len(kept)) == j, market.have, kept), bought])
        if cost == 0 and (open_.rows @ with_all <= open_.limits + WHOLE_TOLERANCE).all():
            kept[j] = market.have[j]  # retiring it would save nothing
    gpus = (kept + bought) * market.sizes
    shares = _shares(demand, speeds, gpus)
    if shares[goal.kind] < goal.share - 1e-9 or fleet.bound > fleet.cost * (1 + 1e-6) + 1e-9:
        raise ProofError(
            f"the fleet found serves {shares[goal.kind]:.6%}, asked for were {goal}; its bound is {fleet.bound:g} of {fleet.cost:g}"
        )
    lacks = HourCoverage(speeds).lacks(demand.gpus, gpus)
    return FleetPlan(
        tuple(market.catalog.names), market, goal, kept, bought, fleet.cost, fleet.bound, lacks, demand, speeds, shares
    )


def _shares(demand: HourlyDemand, speeds: Floats, gpus: Floats) -> dict[str, float]:
    """Return the share of service of each kind; of "each" the least one of all classes, only if no classes share types."""
    served, tolerance = HourCoverage(speeds), tolerance_of(gpus)
    lacks = served.lacks(demand.gpus, gpus)
    found = {"joint": float((lacks <= tolerance).mean()), "work": 1 - float(lacks.sum()) / max(float(demand.gpus.sum()), 1e-300)}
    if served.is_apart:
        found["each"] = float((demand.gpus <= speeds @ gpus + tolerance).mean(axis=0).min())
    return found


def _worst(demand: HourlyDemand, lacks: Floats) -> list[tuple[str, float]]:
    order = np.argsort(-lacks, kind="stable")[:WORST].tolist()
    return [(demand.name_of(hour), float(lacks[hour])) for hour in order if lacks[hour] > 1e-6]


def _most_hours(demand: HourlyDemand, speeds: Floats, market: FleetMarket, limit: TimeLimit) -> FleetPlan:
    """Return the plan within the budget that misses fewest hours, and among these one of least cost, by bisection."""
    low, high = 0, len(demand)  # missing all hours is always possible
    best: tuple[int, Fleet] | None = None
    while low < high or best is None:
        middle = (low + high) // 2
        try:
            best = middle, least_cost(demand.gpus, speeds, market.purchases(), middle, limit=limit)
            high = middle
        except InfeasibleError:
            low = middle + 1
    missed, fleet = best
    return _plan(demand, speeds, market, FleetService("joint", 1 - missed / len(demand)), fleet)


def _conflict(demand: HourlyDemand, speeds: Floats, market: FleetMarket, goal: FleetService) -> Iterator[Fault]:
    """Yield why no fleet serves what was asked for: a smallest set of hours and types that conflict, or the limits."""
    missed = goal.missed(len(demand)) if goal.kind != "work" else 0
    open_, served = market.purchases(is_limited=False).at_most(demand.gpus, speeds), HourCoverage(speeds)
    gpus = open_.gpus @ open_.most
    lacks = served.lacks(demand.gpus, gpus)
    short = np.flatnonzero(lacks > tolerance_of(gpus))
    if goal.kind == "work" and len(short):
        yield Fault(
            "service", "", f"{goal} cannot be served: all nodes that can be had serve {_shares(demand, speeds, gpus)['work']:.2%}"
        )
        return
    if len(short) > missed:
        chosen = short[np.argsort(-lacks[short], kind="stable")][: missed + 1]
        yield Fault(
            "service", "", f"{goal} lets {missed} of {len(demand)} hours be missed, but {len(short)} need more than can be had"
        )
        for hour in sorted(chosen[: WORST + 1].tolist()):
            _, pi, mu = served.lack(demand.gpus[hour], gpus)
            classes = [name for name, part in zip(demand.classes, pi, strict=True) if part > 0]
            types = [j for j, part in enumerate(mu) if part > 0]
            asked = float(demand.gpus[hour][pi > 0].sum())
            at_speeds = "" if served.is_apart else " at their speeds"
            had = ", ".join(f"{gpus[j]:g} GPUs of {market.catalog.names[j]}" for j in types)
            place = demand.places[hour] if demand.places else f"hour {hour}"
            yield Fault(
                place, ", ".join(classes), f"asks for {asked:g} GPUs in all; at most there can be {had} (max_nodes){at_speeds}"
            )
        return
    unlimited = _plan(
        demand,
        speeds,
        replace(market, limits=FleetLimits()),
        goal,
        _solved(demand, speeds, market.purchases(is_limited=False), goal, TimeLimit()),
    )
    names = [name for name in market.used() if market.used()[name][2] is not None]
    needs = [f"{unlimited.use_of(name):,.6g} of the {name} of {getattr(market.limits, name):,.6g}" for name in names]
    yield Fault(
        "limits", ", ".join(names), f"no fleet within them serves {goal}; the least-cost one without limits uses {', '.join(needs)}"
    )
