"""The market of services on a cluster: the replicas that a profile offers to each service, and the limits that services share.

`named_market` builds the arrays of `replicas` from records, and keeps the names. `check_feasible` finds a
minimal set of floors and rules that contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from gavel_py.errors import (
    ConflictError,
    Fault,
    InputError,
    SolverError,
    check_known,
    refuse,
    relocated_faults,
    unknown_names,
)
from gavel_py.io.records import Part, faults_of
from gavel_py.optimization.checking.infeasibility import irreducible
from gavel_py.optimization.formulation.packings import node_rows
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import PROOF_TOLERANCE
from gavel_py.serving.replicas import Market, Packings, ReplicaColumns, is_feasible
from gavel_py.serving.requests import Bucket, RequestTrace
from gavel_py.serving.services import Service, ServingProfile, ServingRate, Slo, faults_of_services
from gavel_py.serving.shapes import slower_than

if TYPE_CHECKING:
    from gavel_py.io.tabular import Array

Objective = Literal["max_min", "weighted_rate", "min_cost"]
Quota = float | Mapping[str, float]

WITHOUT_SLO = ("closed_loop", "offline")
"""Conditions of rates that were measured without an SLO."""

PREFERRED = ("slo", "interactive", "server", "offline", "closed_loop")
"""Conditions of rates for a service with an SLO, in order of preference."""


class ReplicaType(NamedTuple):
    """A way to place a replica of a service."""

    accelerator: str
    num_gpus: int
    operator_parallel: int
    pipeline_parallel: int
    batch: int | None

    def parts_on(self, cluster: Cluster) -> tuple[int, int]:
        """Return the GPUs of each part that is on one node, and the number of parts: all of it, or its stages if no node can."""
        is_whole = self.num_gpus <= cluster.largest_gang(self.accelerator, "node")
        return (self.num_gpus, 1) if is_whole else (self.operator_parallel, self.pipeline_parallel)

    def __str__(self) -> str:
        stages = f" in {self.pipeline_parallel} stages" if self.pipeline_parallel > 1 else ""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.num_gpus} {self.accelerator}{stages}{batch}"


@dataclass(frozen=True, eq=False)
class Offer:
    """The n types of replicas that a profile offers to a service with B sizes of requests.

    columns: the columns of the program, without uses; speeds: (n, B) largest known requests/s under any condition; stages: seconds
    of each stage by type, empty if unknown; note: a note on the rates.
    """

    buckets: tuple[Bucket | None, ...]
    columns: ReplicaColumns
    types: tuple[ReplicaType, ...]
    speeds: Floats
    stages: tuple[tuple[float, ...], ...]
    note: str


class Rule(NamedTuple):
    """A limit of the user on replicas. use: of a replica, by the tenant of its service, its accelerator type and its GPUs."""

    name: str
    limit: float
    use: Callable[[str | None, str, int], float]


@dataclass(frozen=True, eq=False)
class NamedMarket:
    """A market with the names of its parts. is_rule: which shared limits are rules of the user, and could be lifted.

    cluster: with the names of the profile.
    """

    services: tuple[Service, ...]
    cluster: Cluster
    offers: tuple[Offer, ...]
    market: Market
    limit_names: tuple[str, ...]
    is_rule: tuple[bool, ...]


def named_market(
    services: tuple[Service, ...],
    cluster: Cluster,
    profile: ServingProfile,
    objective: str,
    floors: Mapping[str, float],
    budget: float | None,
    quotas: Mapping[str, Quota],
    rules: Iterable[Rule] = (),
) -> NamedMarket:
    _check_request(services, objective, floors, quotas)
    known = cluster.known_to(profile, allow_unknown_types=True)  # type: ignore[arg-type]
    offers = _offers(services, known, profile)
    each = _prices(known, offers, needed=objective == "min_cost" or budget is not None)
    rows, packings = _limits(services, offers, known, each, budget, quotas, rules)
    ends = np.cumsum([len(offer.types) for offer in offers])[:-1]
    uses, costs = np.split(np.stack([row.uses for row in rows], axis=1), ends), np.split(each, ends)
    columns = tuple(replace(o.columns, uses=use, costs=cost) for o, use, cost in zip(offers, uses, costs, strict=True))
    is_cost = objective == "min_cost"
    lower = np.array([1.0 if is_cost else floors.get(service.name, 0.0) for service in services])
    rates = np.array([float(offer.columns.demand.sum()) for offer in offers])
    gains = np.array([s.weight for s in services]) * rates if objective == "weighted_rate" else np.zeros(len(services))
    limits = np.array([row.limit for row in rows])
    market = Market(columns, limits, gains, lower, np.ones(len(services)), float(objective == "max_min"), is_cost, packings)
    return NamedMarket(services, known, offers, market, tuple(row.name for row in rows), tuple(row.is_rule for row in rows))


def _check_request(services: Sequence[Service], objective: str, floors: Mapping[str, float], quotas: Mapping[str, Quota]) -> None:
    names, tenants = [service.name for service in services], {service.tenant for service in services}
    check_known("plan_serving", "objective", [objective], get_args(Objective))
    faults = faults_of_services("plan_serving", services)
    faults += unknown_names("floors", None, floors, names, "is not a service")
    faults += faults_of("floors", **{name: (value, Part) for name, value in floors.items()})
    faults += unknown_names("quotas", None, quotas, [tenant for tenant in tenants if tenant], "is not a tenant of a service")
    InputError.raise_any(faults)


# ---------------------------------------------------------------------------------------------------------- what a profile offers


def _offers(services: Sequence[Service], cluster: Cluster, profile: ServingProfile) -> tuple[Offer, ...]:
    faults: list[Fault] = []
    offers: list[Offer] = []
    for service in services:
        try:
            offers.append(_offer(service, cluster, profile))
        except InputError as error:
            faults += [replace(fault, where=service.where) if fault.where != service.where else fault for fault in error.faults]
    InputError.raise_any(faults)
    return tuple(offers)


def _offer(service: Service, cluster: Cluster, profile: ServingProfile) -> Offer:
    """Return the replicas of a service that the cluster can hold, with their rates. Raises `InputError` if a size has none."""
    rates, notes = _usable_rates(service, cluster, profile)
    demand = _demand(service, sorted({bucket for each in rates.values() for bucket in each if bucket is not None}))
    buckets, types = tuple(demand), tuple(rates)
    table = np.array([[rates[each].get(bucket, rates[each].get(None, 0.0)) for bucket in buckets] for each in types])
    unserved = [bucket for b, bucket in enumerate(buckets) if not table[:, b].any()]
    if unserved:
        own = [row for row in profile.rows_of(service.model) if _replica_type(row) in rates and row.bucket in (None, unserved[-1])]
        fastest = min((row.latency() for row in own if _is_late(service, row)), default=math.inf)
        if fastest < math.inf:  # else nothing is served at these rates
            raise InputError(slower_than(service, fastest))
        replica = f"no replica of model {service.model!r} in the cluster"
        why, is_all = " within the SLO, with such bursts" if service.has_slo else "", unserved == [None]
        refuse(
            service.where,
            (is_all, "model", f"{replica} serves any requests{why}: all of its rates are 0"),
            (not is_all, "mix", f"{replica} serves requests of size {', '.join(map(str, unserved))}"),
        )
    most = np.inf if service.max_replicas is None else service.max_replicas
    none = np.zeros((len(types), 0))
    columns = ReplicaColumns(np.array(list(demand.values())), table, none, np.zeros(len(types)), service.min_replicas, most)
    parts = [each.parts_on(cluster)[0] for each in types]
    chosen = columns.useful([each.num_gpus for each in types], parts, [each.accelerator for each in types])
    kept = tuple(each for each, keep in zip(types, chosen.tolist(), strict=True) if keep)
    speeds, stages = _known_speeds(profile.rows_of(service.model), kept, buckets)
    return Offer(buckets, columns.restricted_to(chosen), kept, speeds, stages, "; ".join(sorted(notes)))


def _known_speeds(
    rows: Sequence[ServingRate], types: Sequence[ReplicaType], buckets: Sequence[Bucket | None]
) -> tuple[Floats, tuple[tuple[float, ...], ...]]:
    """Return (n, B) the largest known requests/s of each type of replica, and the seconds of its stages."""
    fastest: dict[tuple[ReplicaType, Bucket | None], float] = {}
    stages: dict[ReplicaType, tuple[float, ...]] = {}
    for row in rows:
        each = _replica_type(row)
        fastest[each, row.bucket] = max(fastest.get((each, row.bucket), 0.0), row.requests_per_second or 0.0)
        if row.stage_seconds and row.bucket is None:
            stages[each] = row.stage_seconds
    speeds = [[fastest.get((each, bucket), fastest.get((each, None), 0.0)) for bucket in buckets] for each in types]
    return np.array(speeds), tuple(stages.get(each, ()) for each in types)


def _replica_type(row: ServingRate) -> ReplicaType:
    return ReplicaType(row.accelerator, row.num_gpus, row.operator_parallel, row.pipeline_parallel, row.batch)


def _usable_rates(
    service: Service, cluster: Cluster, profile: ServingProfile
) -> tuple[dict[ReplicaType, dict[Bucket | None, float]], set[str]]:
    """Return requests/s by type of replica and size that the service may rely on, and notes on them."""
    found: dict[tuple[ReplicaType, Bucket | None], tuple[float, float, str]] = {}
    rows, reasons = profile.rows_of(service.model), dict[str, None]()
    here = [row for row in rows if row.accelerator in cluster.accelerator_names and cluster.largest_gang(row.accelerator)]
    for row in here:
        reason = _not_placed(row, cluster) or _not_usable(service, row)
        if reason:
            reasons.setdefault(reason)
            continue
        factor = service.rate_factor if service.has_slo and row.condition in WITHOUT_SLO else 1.0
        rate = (row.requests_per_second or 0.0) * (factor or 1.0)
        trust = -PREFERRED.index(str(row.condition)) if service.has_slo else 0
        factor, trust, rate = (1.0, -len(PREFERRED), 0.0) if _is_late(service, row) else (factor, trust, rate)
        note = f"Service {service.name!r} relies on {factor:g} of {row.condition} rates" if factor != 1.0 else ""
        key = _replica_type(row), row.bucket
        found[key] = max(found.get(key, (-math.inf, 0.0, "")), (trust, rate, note))
    names = ", ".join(dict.fromkeys(row.accelerator for row in rows))
    why = "; ".join(reasons) or f"its accelerators are not in the cluster: {names}"
    refuse(service.where, (not found, "model", f"{service.model!r} cannot be served here: {why}"))
    rates: dict[ReplicaType, dict[Bucket | None, float]] = {}
    for (each, bucket), (_, rate, _) in found.items():
        rates.setdefault(each, {})[bucket] = rate
    return rates, {note for _, _, note in found.values() if note}


def _not_placed(row: ServingRate, cluster: Cluster) -> str:
    """Return why the cluster cannot hold a replica although it has GPUs of its type, empty if it can."""
    name = row.accelerator
    kind = cluster.accelerator_types[cluster.accelerator_names.index(name)]
    if row.memory_gb is not None and kind.memory_gb is not None and row.memory_gb > kind.memory_gb:
        return f"it needs {row.memory_gb:g} GB of each {name}, which has {kind.memory_gb:g}"
    if row.operator_parallel > cluster.largest_gang(name, "node"):
        return f"no node has {row.operator_parallel} {name}"
    if row.num_gpus > cluster.largest_gang(name):
        return f"the cluster has fewer than {row.num_gpus} {name}"
    places = sum(node.num_gpus // row.operator_parallel for node in cluster.nodes_of(name))
    stages = f"{row.pipeline_parallel} stages of {row.operator_parallel} {name}, each on one node"
    return f"the cluster cannot hold {stages}" if row.pipeline_parallel > places else ""


def _not_usable(service: Service, row: ServingRate) -> str:
    """Return why the service may not rely on a rate, empty if it may."""
    if row.requests_per_second is None:
        return f"on {row.accelerator}, the profile has stage times only; gp.simulated_rates finds rates for them"
    if not service.has_slo:
        return ""
    if row.condition in WITHOUT_SLO:
        needs = f"on {row.accelerator}, {row.condition} rates need a rate_factor for its SLO"
        return "" if service.rate_factor is not None else needs
    for name in Slo.model_fields:
        measured, needed = getattr(row, name), getattr(service, name)
        if measured is not None and needed is not None and measured > needed * (1 + PROOF_TOLERANCE):
            return f"on {row.accelerator}, rates are known for {name} of {measured:g} only, more than the SLO of {needed:g}"
    return ""


def _is_late(service: Service, row: ServingRate) -> bool:
    """Return whether requests at a rate at full load miss their SLO even if they never wait."""
    return row.condition in WITHOUT_SLO and row.latency() > (service.slo_seconds or math.inf) * (1 + PROOF_TOLERANCE)


def _demand(service: Service, sizes: Sequence[Bucket]) -> dict[Bucket | None, float]:
    """Return requests/s by size. sizes: the sizes in the profile; each request of a trace counts for the nearest one."""
    if service.trace is None:
        rate = float(service.rate or 0.0)
        if service.mix or not sizes:
            return {bucket: rate * (service.mix[bucket] if bucket is not None else 1.0) for bucket in service.buckets}
        refuse(service.where, (len(sizes) > 1, "mix", f"is required, since the rates of model {service.model!r} depend on sizes"))
        return {sizes[0]: rate}
    with relocated_faults(lambda fault: Fault(service.where, "trace", str(fault))):
        trace = RequestTrace.from_file(service.trace, service=service.name)
    trace = trace.of(service.name) if len(trace.services) > 1 else trace
    found = {bucket: service.mix[bucket] for bucket in service.buckets if bucket is not None} or nearest_sizes(trace, sizes)
    shares = {bucket: share for bucket, share in found.items() if share > 0}
    return {bucket: share * len(trace) / trace.duration_seconds for bucket, share in shares.items()}


def nearest_sizes(trace: RequestTrace, sizes: Sequence[Bucket]) -> Mapping[Bucket | None, float]:
    """Return the share of requests by size; each request counts for the size with the nearest logarithms of token numbers."""
    if not sizes:
        return {None: 1.0}
    counts = np.bincount(nearest_index(trace, sizes), minlength=len(sizes))
    return dict(zip(sizes, (counts / max(1, counts.sum())).tolist(), strict=True))


def nearest_index(trace: RequestTrace, sizes: Sequence[Bucket]) -> Array:
    """Return (N,) the index of the size that is nearest to each request of a trace."""
    if trace.input_tokens is None or trace.output_tokens is None:
        problem = "needs input_tokens and output_tokens, since rates depend on the sizes of requests"
        raise InputError(Fault("request trace", "", problem))
    tokens = np.log(np.maximum(np.stack([trace.input_tokens, trace.output_tokens], axis=1), 1.0))
    centres = np.log(np.maximum(np.array(sizes, dtype=float), 1.0))
    distances = np.stack([((tokens - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    return np.asarray(distances.argmin(axis=1))


def _prices(cluster: Cluster, offers: Sequence[Offer], *, needed: bool) -> Floats:
    """Return the price per hour of each replica, 0 if unknown. needed: whether to raise `InputError` for unknown prices."""
    prices = dict(zip(cluster.accelerator_names, cluster.prices_per_hour.tolist(), strict=True))
    types = [each for offer in offers for each in offer.types]
    unknown = [name for name, price in prices.items() if math.isnan(price) and name in {each.accelerator for each in types}]
    problem = "is required for a budget and for min_cost"
    InputError.raise_any([Fault(f"accelerator type {name!r}", "price_per_hour", problem) for name in unknown if needed])
    return np.array([0.0 if math.isnan(prices[k.accelerator]) else prices[k.accelerator] * k.num_gpus for k in types])


# -------------------------------------------------------------------------------------------------------------------- shared limits


class _Row(NamedTuple):
    """A shared limit: name, right-hand side, use by each replica, whether the user could lift it, and use by packings."""

    name: str
    limit: float
    uses: Floats
    is_rule: bool = False
    packings: tuple[int, Floats] = 0, np.zeros(0)


def gpus_of(accelerator: str) -> str:
    """Return the name of the limit that the GPUs of a type are."""
    return f"GPUs of {accelerator}"


def _limits(
    services: Sequence[Service],
    offers: Sequence[Offer],
    cluster: Cluster,
    prices: Floats,
    budget: float | None,
    quotas: Mapping[str, Quota],
    rules: Iterable[Rule],
) -> tuple[list[_Row], Packings]:
    types = [each for offer in offers for each in offer.types]
    own = np.repeat(np.arange(len(offers)), [len(offer.types) for offer in offers])
    gpus = {name: np.array([float(k.num_gpus * (k.accelerator == name)) for k in types]) for name in cluster.accelerator_names}
    rows: list[_Row] = []
    most = np.zeros(0)
    for name, capacity in zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True):
        rows.append(_Row(gpus_of(name), capacity, gpus[name]))
        sizes, numbers = np.array([k.parts_on(cluster) if k.accelerator == name else (1, 0) for k in types], dtype=np.intp).T
        of_nodes, more = node_rows(name, sizes, numbers, [node.num_gpus for node in cluster.nodes_of(name)])
        rows += [_Row(row.name, row.limit, row.uses, packings=(len(most), row.packings)) for row in of_nodes]
        most = np.append(most, more)
    if budget is not None:
        rows.append(_Row(f"the budget of {budget:g} per hour", float(budget), prices, is_rule=True))
    for tenant, quota in quotas.items():
        parts = quota.items() if isinstance(quota, Mapping) else [("", quota)]
        for name, limit in parts:
            known = same_accelerator(name, cluster.accelerator_names) if name else ""
            if known is None:
                check_known("quotas", tenant, [name], cluster.accelerator_names, "is not in the cluster")
            uses = (gpus[known] if known else sum(gpus.values())) * np.array([s.tenant == tenant for s in services])[own]
            of_type = f" of {name}" if name else ""
            rows.append(_Row(f"the quota of tenant {tenant}: {limit:g} GPUs{of_type}", float(limit), uses, is_rule=True))
    for name, limit, use in rules:
        uses = np.array([use(services[i].tenant, k.accelerator, k.num_gpus) for i, k in zip(own.tolist(), types, strict=True)])
        rows.append(_Row(name, limit, uses, is_rule=True))
    packings = np.zeros((len(most), len(rows)))
    for r, row in enumerate(rows):
        first, values = row.packings
        packings[first : first + len(values), r] = values
    return rows, Packings(packings, most)


# ------------------------------------------------------------------------------------------------------------------------ conflicts


def check_feasible(named: NamedMarket) -> None:
    market = named.market
    has_floors = market.lower.any() or any(columns.least for columns in market.services)
    if has_floors and not is_feasible(market):
        _raise_conflict(named)


def raise_unsolved(named: NamedMarket) -> None:
    if not is_feasible(named.market, is_whole=True):
        _raise_conflict(named)
    raise SolverError("no plan with whole replicas was found; give more time (time_limit_seconds), or lower the floors")


def _raise_conflict(named: NamedMarket) -> None:
    """Raise a `ConflictError` with a minimal set of floors and rules that contradict each other: without any one, the rest hold."""
    market, count = named.market, len(named.services)
    floors = [i for i in range(count) if market.lower[i] > 0 or market.services[i].least > 0]
    rules = [count + r for r, is_rule in enumerate(named.is_rule) if is_rule]

    def hold(items: list[int]) -> bool:
        kept = set(items)
        lower = np.where([i in kept for i in range(count)], market.lower, 0.0)
        services = tuple(c if i in kept else replace(c, least=0) for i, c in enumerate(market.services))
        limits = np.where([not rule or count + r in kept for r, rule in enumerate(named.is_rule)], market.limits, np.inf)
        return is_feasible(replace(market, services=services, lower=lower, limits=limits), is_whole=True)

    conflict = irreducible(floors + rules, hold)
    raise ConflictError([_item_name(named, item) for item in sorted(conflict)], alone=False, can_be_soft=False)


def _item_name(named: NamedMarket, item: int) -> str:
    if item >= len(named.services):
        return named.limit_names[item - len(named.services)]
    service, level = named.services[item], float(named.market.lower[item])
    parts = [f"{level:.0%} of its demand"] * (level > 0) + [f"{service.min_replicas} replicas"] * (service.min_replicas > 0)
    return f"service {service.name!r}: at least {' and '.join(parts)}"
