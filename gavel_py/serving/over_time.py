"""Plans over time: whole replicas for each interval of a demand curve, taking into account the time to load a model.

A replica that is new in an interval serves nothing for the first `load_seconds`. `plan_over_time` plans each interval when its
demand is known, without knowing later ones. To keep replicas from flapping, a plan must be good for the demand of this interval and
of the previous one, and a load must pay off within `STAY` intervals. For comparison there are the plan of each interval by itself,
one plan for all intervals, and the plan that knows the whole curve, a single program over all intervals. Each is judged by the
requests that it serves, including the time of its loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, SkipValidation

from gavel_py.errors import InputError, SolverError, faults_among, refuse, unknown_names
from gavel_py.io.records import Count, Flag, NotNegative, Options, Positive, SecondsAboveZero, SecondsFromZero, faults_of
from gavel_py.io.tabular import Rows, Tabular
from gavel_py.optimization.solving.highs import TimeLimit
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.serving.market import NamedMarket, Offer, Quota, named_market
from gavel_py.serving.replay import PlanReplay, requests_in_time, target_of
from gavel_py.serving.replicas import Changes, Market, MarketProgram, Packings
from gavel_py.serving.requests import RequestTrace
from gavel_py.serving.services import Service, ServingProfile
from gavel_py.serving.whole_replicas import GAP, best_level

if TYPE_CHECKING:
    from gavel_py.io.tabular import Array
    from gavel_py.serving.keywords import ScheduleKeywords

MIN_DEMAND = 1e-9
"""Requests/s up to this count as none."""

STAY = 2
"""Number of intervals that a replica is expected to stay; the time of its load is spread over these."""

TIE = GAP / 10
"""Part of all requests that the maximum number of loads costs in the plan that knows the future."""

NODES = 20_000

Replicas = tuple[Floats, ...]


@dataclass(frozen=True)
class PlanOutcome:
    """The result of a sequence of plans on a demand curve.

    Attributes:
        served_requests: Weighted requests served in all intervals.
        loads: Number of replicas loaded after the first interval.
        bound: An upper bound on the requests that any sequence of plans serves; None if unknown.
    """

    served_requests: float
    loads: int
    bound: float | None = None


@dataclass(frozen=True, eq=False)
class ServingSchedule(Tabular):
    """Replicas for each interval of a demand curve.

    Attributes:
        interval_seconds: Length of an interval.
        load_seconds: Time that loading a model takes.
        requests: Weighted requests that arrive.
        intervals: A row for each interval and service: demand, served fraction, loads, and GPUs by type.
        replicas: A row for each interval, service and type of replica in use.
        outcome: The result of the schedule.
        compared: The results of other plans on the same curve: "each interval alone", "one plan for all" and "known future".
    """

    interval_seconds: float
    load_seconds: float
    requests: float
    intervals: Rows
    replicas: Rows
    outcome: PlanOutcome
    compared: dict[str, PlanOutcome] = field(default_factory=dict)
    _named: NamedMarket | None = None
    _curve: _Curve | None = None
    _plans: Sequence[Replicas] = ()

    def to_columns(self) -> dict[str, Array]:
        """Return the table of intervals as {column: (rows,) array}."""
        return self.intervals.to_columns()

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data, for JSON."""
        return {
            "interval_seconds": self.interval_seconds,
            "load_seconds": self.load_seconds,
            "requests": self.requests,
            "outcome": vars(self.outcome),
            "compared": {name: vars(outcome) for name, outcome in self.compared.items()},
            "intervals": list(self.intervals),
            "replicas": list(self.replicas),
        }

    def __repr__(self) -> str:
        count = max((row["interval"] for row in self.intervals), default=-1) + 1
        served = f"{self.outcome.served_requests / self.requests:.1%} of {self.requests:,.0f} requests" if self.requests else "none"
        return f"ServingSchedule({count} intervals of {self.interval_seconds:g} s: {served}, {self.outcome.loads} loads)"


def demand_curve(traces: Mapping[str, RequestTrace], intervals: int) -> dict[str, Floats]:
    """Return {service: (T,) requests/s in each interval} of traces that start at the same time.

    Args:
        traces: {service: its requests}.
        intervals: Number of intervals, T, into which the longest trace is divided.

    Raises:
        InputError: There is no trace, or no interval.
    """
    faults = faults_among("demand curve", (not traces, "traces", "must not be empty"))
    InputError.raise_any(faults + faults_of("demand curve", intervals=(intervals, Count)))
    length = max(trace.duration_seconds for trace in traces.values()) / intervals
    edges = np.arange(intervals + 1) * length
    edges[-1] = np.inf
    return {name: np.histogram(trace.seconds, bins=edges)[0] / length for name, trace in traces.items()}


class ServingScheduleOptions(Options):
    """The options of `plan_over_time`. Every field is also a keyword argument of it.

    Raises:
        InputError: A value is out of range, or an option is not known.
    """

    label: ClassVar[str] = "plan_over_time"

    load_seconds: SecondsFromZero = Field(
        30.0,
        description="Time to load a model. A new replica serves nothing for this time, which is less than an interval. "
        "The replicas of the first interval are loaded before it.",
    )
    load_cost: NotNegative = Field(
        1.0, description="Weighted requests that a new replica must serve in addition to those lost while it loads."
    )
    quotas: Annotated[Mapping[str, Quota] | None, SkipValidation] = Field(None, description="As for `ServingPlanOptions`.")
    compare: Flag = Field(False, description="Whether to compute the results of other plans as well.")
    time_limit_seconds: SecondsAboveZero | None = Field(
        60.0, description="Time limit of the program that knows the whole curve. Its bound is valid in any case."
    )

    def changed(self, **changes: Unpack[ScheduleKeywords]) -> Self:
        """Return the options with other values for some fields, checked."""
        return self._with(changes)


DEFAULTS = ServingScheduleOptions()


def plan_over_time(
    services: Iterable[Service],
    cluster: Cluster,
    profile: ServingProfile,
    demand: Mapping[str, ArrayLike],
    *,
    interval_seconds: float,
    options: ServingScheduleOptions = DEFAULTS,
    **changes: Unpack[ScheduleKeywords],
) -> ServingSchedule:
    """Return replicas for each interval of a demand curve that serve the most weighted requests without needless loads.

    Args:
        services: The services, with the mix of their requests; their rates come from the curve.
        cluster: The GPUs.
        profile: The rates of replicas.
        demand: {service: (T,) requests/s in each interval}.
        interval_seconds: Length of an interval.
        options: What a load costs, and limits.
        **changes: Fields of `ServingScheduleOptions` that replace those of `options`, such as `load_seconds` and `compare`.

    Returns:
        The schedule.

    Raises:
        InputError: A service without a curve, curves of different lengths, or an invalid number.
        SolverError: HiGHS finds no plan.
    """
    chosen, options = tuple(services), options.changed(**changes)
    load_seconds = options.load_seconds
    rates = _checked_curve(chosen, demand, interval_seconds, load_seconds)
    mean = {service.name: max(float(rates[:, i].mean()), MIN_DEMAND) for i, service in enumerate(chosen)}
    # A trace keeps its own mix; only the rate comes from the curve.
    rated = [service.model_copy(update={"rate": None if service.trace else mean[service.name]}) for service in chosen]
    named = named_market(tuple(rated), cluster, profile, "weighted_rate", {}, None, options.quotas or {})
    curve = _Curve(named.market, rates, interval_seconds, load_seconds, options.load_cost)
    plans = curve.plans(keep=True)
    compared = {}
    if options.compare:
        alone = curve.plans(keep=False)
        compared = {"each interval alone": curve.outcome(alone), **curve.compared(options.time_limit_seconds, [plans, alone])}
    rows, replicas = Rows(), Rows()
    for at, plan in enumerate(plans):
        before = plans[at - 1] if at else None
        for i, service in enumerate(chosen):
            types, y = named.offers[i].types, plan[i]
            gpus = {f"gpus_{k.accelerator}": 0 for k in types}
            for each, count in zip(types, y.tolist(), strict=True):
                gpus[f"gpus_{each.accelerator}"] += each.num_gpus * int(count)
                if count > 0:
                    replicas.append({"interval": at, "service": service.name, **each._asdict(), "replicas": int(count)})
            level, loads = curve.served(at, i, y, before)
            rate = float(rates[at, i])
            rows.append(
                {
                    "interval": at,
                    "service": service.name,
                    "requests_per_second": rate,
                    "served_fraction": level,
                    "loads": loads,
                    **gpus,
                }
            )
    requests = float((rates @ np.array([service.weight for service in chosen])).sum() * interval_seconds)
    return ServingSchedule(
        interval_seconds, load_seconds, requests, rows, replicas, curve.outcome(plans), compared, named, curve, plans
    )


def replayed_schedule(schedule: ServingSchedule, traces: Mapping[str, RequestTrace], *, seed: int = 0) -> PlanReplay:
    """Return the attainment that a schedule promises, and the one found by simulating the requests of traces on its replicas.

    Requests are routed as in `replayed_plan`, interval by interval. While new replicas load, only the others serve. Requests that
    are in a queue when an interval ends are still served, but do not delay those of the next interval; without an SLO they count if
    they end within the length of another interval.

    Args:
        schedule: The schedule, as `plan_over_time` returns it.
        traces: {service: its requests}, from which the demand curve was made.
        seed: Seed of the sizes of requests, for services with a mix.

    Raises:
        InputError: The schedule was not made by `plan_over_time`, or a service has no trace.
    """
    named, curve = schedule._named, schedule._curve
    services = () if named is None else named.services
    refuse(
        "replay of a schedule",
        (named is None, "schedule", "was not made by plan_over_time"),
        *((each.name not in traces, "traces", f"has none of service {each.name!r}") for each in services),
    )
    assert named is not None and curve is not None  # noqa: S101, PT018
    rates, served, found = {}, {}, {}
    for i, service in enumerate(services):
        rows = [row for row in schedule.intervals if row["service"] == service.name]
        demand = np.array([row["requests_per_second"] for row in rows])
        levels = np.array([row["served_fraction"] for row in rows])
        rates[service.name] = float(demand.mean())
        served[service.name] = float(demand @ levels / demand.sum()) if demand.any() else 1.0
        good = list(_good_requests(schedule, named.offers[i], service, i, traces[service.name], seed))
        found[service.name] = float(np.concatenate(good).mean()) if good else float("nan")
    promised = {each.name: served[each.name] * target_of(each) for each in services}
    requests = sum(len(traces[each.name]) for each in services)
    return PlanReplay(rates=rates, served=served, promised=promised, found=(found,), requests=(requests,), utilization=())


def _good_requests(
    schedule: ServingSchedule, offer: Offer, service: Service, i: int, trace: RequestTrace, seed: int
) -> Iterator[Mask]:
    """Yield which requests of a service are in time, for each period with the same replicas."""
    curve, length = schedule._curve, schedule.interval_seconds
    assert curve is not None  # noqa: S101
    plans = [plan[i] for plan in schedule._plans]
    for at, replicas in enumerate(plans):
        staying = np.minimum(replicas, plans[at - 1]) if at else replicas
        loaded = schedule.load_seconds if (staying < replicas).any() else 0.0
        for first, last, present in ((0.0, loaded, staying), (loaded, length, replicas)):
            start, end = (min(at * length + each, trace.duration_seconds) for each in (first, last))
            if start < end:
                parts = best_level(curve.markets[at].services[i], present)[1]
                yield requests_in_time(service, offer, present, parts, [trace.between(start, end)], seed, length)[0][0]


def _checked_curve(services: Sequence[Service], demand: Mapping[str, ArrayLike], interval: float, load: float) -> Floats:
    """Return (T, I) requests/s of each interval and service. Raises `InputError`."""
    where = "plan_over_time"
    faults = unknown_names(where, "demand", [each.name for each in services], demand, "has no curve", noun="service")
    times = faults_of(where, interval_seconds=(interval, Positive))
    faults += times or faults_among(
        where, (load >= interval, "load_seconds", f"must be at least 0 and less than an interval, {interval:g} s, found {load!r}")
    )
    InputError.raise_any(faults)
    curves = [np.asarray(demand[service.name], dtype=float) for service in services]
    is_wrong = not curves or any(each.shape != curves[0].shape or each.ndim != 1 or not len(each) for each in curves)
    refuse(where, (is_wrong, "demand", "all curves must be lists of the same length, at least 1"))
    rates = np.stack(curves, axis=1)
    refuse(where, (not (np.isfinite(rates) & (rates >= 0)).all(), "demand", "must have finite numbers of at least 0"))
    return rates


class _Curve:
    """A market whose demand changes. lost: part of an interval that a load takes; cost: cost of a load in weighted requests/s."""

    def __init__(self, market: Market, rates: Floats, interval: float, load: float, cost: float) -> None:
        self.market, self.interval = market, interval
        self.lost, self.cost = load / interval, cost / interval
        base = np.array([columns.demand.sum() for columns in market.services])
        weights = market.gains / base
        self.markets = [self._at(np.maximum(each, MIN_DEMAND), base, weights) for each in rates]
        self._levels: dict[tuple[int, int, bytes], float] = {}

    def _at(self, rates: Floats, base: Floats, weights: Floats) -> Market:
        services = tuple(
            replace(c, demand=c.demand * part) for c, part in zip(self.market.services, (rates / base).tolist(), strict=True)
        )
        return replace(self.market, services=services, gains=weights * rates)

    def plans(self, *, keep: bool) -> list[Replicas]:
        """Return the replicas of each interval. keep: whether each plan starts from the replicas of the previous interval."""
        found: list[Replicas] = []
        for at, market in enumerate(self.markets):
            if keep and found:
                found.append(self._kept(market, self.markets[at - 1], found[-1]))
            else:
                found.append(_solved(MarketProgram(market)))
        return found

    def _kept(self, market: Market, last: Market, before: Replicas) -> Replicas:
        """Return the best replicas for the demand of this and the previous interval, starting from the previous replicas."""
        count = len(before)
        again = tuple(replace(columns, uses=np.zeros_like(columns.uses)) for columns in last.services)
        gains = np.concatenate([market.gains, last.gains])
        lower, upper = np.zeros(2 * count), np.ones(2 * count)
        both = replace(market, services=(*market.services, *again), gains=gains, lower=lower, upper=upper)
        program = MarketProgram(both, changes=Changes((*before, *range(count)), self.lost / STAY, self.cost))
        first = program.first_new + sum(map(len, before))
        program.program.upper[first:] = 0.0  # the previous interval has the same replicas as this one
        return _solved(program)[:count]

    def compared(self, limit: float | None, known: Sequence[list[Replicas]]) -> dict[str, PlanOutcome]:
        """Return the results of one plan for all intervals and of the plan that knows the whole curve. known: other plans."""
        joint, count = self._joint(), len(self.market.services)
        before = tuple(None if i < count else i - count for i in range(len(joint.services)))
        fixed = MarketProgram(joint, changes=Changes(before, 1.0, self.cost))
        fixed.program.upper[fixed.first_new :] = 0.0  # replicas can only be given up
        static = self._split(_solved(fixed, TimeLimit(limit)))
        # Loads cost just enough to avoid needless ones, in total less than the gap, since there is at most one replica per GPU.
        most_loads = max(1.0, float(joint.limits.sum()))
        price = TIE * float(joint.gains.sum()) / most_loads
        program = MarketProgram(joint, changes=Changes(before, self.lost, price))
        found = program.whole(gap=GAP, limit=TimeLimit(limit))
        plans = [static, *known, *([] if found is None else [self._split(program.plan_of(found.values)[1])])]
        # The best of all known plans, since the time limit may end the program early.
        best = max(map(self.outcome, plans), key=lambda each: each.served_requests)
        bound = None if found is None else (price * most_loads - found.bound) * self.interval
        return {"one plan for all": self.outcome(static), "known future": replace(best, bound=bound)}

    def _joint(self) -> Market:
        """Return the market of all intervals, in which each interval has its own services and limits."""
        times, rows = len(self.markets), len(self.market.limits)
        services = []
        for at, market in enumerate(self.markets):
            for columns in market.services:
                uses = np.zeros((len(columns.costs), rows * times))
                uses[:, at * rows : (at + 1) * rows] = columns.uses
                services.append(replace(columns, uses=uses))
        gains = np.concatenate([market.gains for market in self.markets])
        limits = np.tile(self.market.limits, times)
        own = self.market.packings
        packings = Packings(np.asarray(np.kron(np.eye(times), own.uses), dtype=float), np.tile(own.most, times))
        return Market(tuple(services), limits, gains, np.zeros(len(services)), np.ones(len(services)), packings=packings)

    def _split(self, replicas: Replicas) -> list[Replicas]:
        count = len(self.market.services)
        return [replicas[at : at + count] for at in range(0, len(replicas), count)]

    def served(self, at: int, i: int, replicas: Floats, before: Replicas | None) -> tuple[float, int]:
        """Return the served fraction of a service in an interval, and the replicas that it loads."""
        new = np.maximum(replicas - before[i], 0.0) if before is not None else np.zeros(len(replicas))
        working = replicas - self.lost * new
        key = at, i, working.tobytes()
        if key not in self._levels:
            self._levels[key] = best_level(self.markets[at].services[i], working)[0]
        return self._levels[key], round(float(new.sum()))

    def outcome(self, plans: Sequence[Replicas]) -> PlanOutcome:
        total, loads = 0.0, 0
        for at, plan in enumerate(plans):
            for i, replicas in enumerate(plan):
                level, new = self.served(at, i, replicas, plans[at - 1] if at else None)
                total += float(self.markets[at].gains[i]) * level
                loads += new
        return PlanOutcome(total * self.interval, loads)


def _solved(program: MarketProgram, limit: TimeLimit | None = None) -> Replicas:
    found = program.whole(gap=GAP, nodes=NODES) if limit is None else program.whole(gap=GAP, limit=limit)
    if found is None:
        raise SolverError("no plan with whole replicas was found; give more time (time_limit_seconds)")
    return tuple(np.round(y) for y in program.plan_of(found.values)[1])
