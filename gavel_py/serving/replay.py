"""Attainment that plans and placements promise, and attainment found by simulating requests on them.

A placement holds several models on a group, and is replayed as it is. In a plan, each replica serves one model. It is replayed with
the stage times of the profile or, if there are none, with rates: a request occupies a replica for 1/rate seconds, at the largest
known rate for its size. Times of tokens and batching of requests are not simulated then, so a time to the first token limits the
wait alone.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import InputError, faults_among, refuse
from gavel_py.io.records import Count, faults_of
from gavel_py.io.tabular import Tabular
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import PROOF_TOLERANCE
from gavel_py.report.measures import SampleMean, estimate
from gavel_py.serving.attainment import MARGIN_SECONDS, RequestResult, simulate_requests, window
from gavel_py.serving.market import Offer, ReplicaType, nearest_index
from gavel_py.serving.plan import ServingPlan, tables_of, type_of
from gavel_py.serving.requests import GOLDEN, MAX_CV, RequestTrace
from gavel_py.serving.services import Service
from gavel_py.serving.shapes import slo_of
from gavel_py.serving.simulation import (
    NO_OVERHEADS,
    TOLERANCE_SECONDS,
    ModelGroup,
    RequestRun,
    ServerTable,
    ServingOverheads,
    busy_seconds,
    compile_groups,
    serve,
)

if TYPE_CHECKING:
    from gavel_py.io.tabular import Array


class RequestArrivals:
    """Requests of services, drawn at random or from their files."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self._files = {service.name: _read(service) for service in services if service.trace is not None}
        self.cvs: Floats = np.array([_cv(self._files[s.name]) if s.name in self._files else s.cv for s in services])

    @property
    def are_drawn(self) -> bool:
        """Whether the requests of any service are drawn, so that another seed gives another trace."""
        return len(self._files) < len(self._services)

    def seconds(self, requests: int, part: float = 0.5) -> float:
        """Return the time in which about this number of requests arrives; with files, this part of the shortest file."""
        if self._files:
            return part * min(trace.duration_seconds for trace in self._files.values())
        return requests / sum(service.rate or 0.0 for service in self._services)

    def trace(self, seconds: float, seed: int, *, is_second_half: bool) -> RequestTrace:
        """Return the requests of a period of this length: drawn with a seed, or from the first or last part of files."""
        rates = {service.name: service.rate for service in self._services if service.rate is not None}
        cvs = {service.name: service.cv for service in self._services}
        parts = [RequestTrace.generate(rates, seconds, cv=cvs, seed=seed)] if rates else []
        for file in self._files.values():
            first = file.duration_seconds - seconds if is_second_half else 0.0
            parts.append(file.between(first, first + seconds))
        return RequestTrace.merged(parts)


def _read(service: Service) -> RequestTrace:
    trace = RequestTrace.from_file(str(service.trace), service=service.name)
    if service.name in trace.services:
        return trace.of(service.name)
    problem = f"{service.trace} has requests of {len(trace.services)} services, but none named {service.name!r}"
    refuse(f"service {service.name!r}", (len(trace.services) != 1, "trace", problem))
    return replace(trace, services=(service.name,))


def _cv(trace: RequestTrace) -> float:
    """Return the coefficient of variation of the gaps in a trace; 1 if all requests arrive at once."""
    gaps = np.diff(trace.seconds)
    return float(min(MAX_CV, gaps.std() / gaps.mean())) if gaps.any() else 1.0


@dataclass(frozen=True, eq=False)
class ModelPlacement(Tabular):
    """Groups of GPUs with the models on them, and their attainment, promised and found.

    Attributes:
        services: The services.
        groups: The groups.
        promised: Result on the trace that the search saw.
        found: Results on traces that the search did not see.
        overheads: Overheads in the simulations.
    """

    services: tuple[Service, ...]
    groups: tuple[ModelGroup, ...]
    promised: RequestResult
    found: tuple[RequestResult, ...]
    overheads: ServingOverheads

    @property
    def attainment(self) -> SampleMean:
        """Attainment found: mean over the traces that the search did not see, with a 95 % confidence interval."""
        spread = estimate(result.attainment for result in self.found)
        return SampleMean(math.nan, None, 0) if spread is None else spread

    @property
    def replicas(self) -> dict[str, int]:
        """Groups that hold each service."""
        counts = Counter(name for group in self.groups for name in group.stage_seconds)
        return {service.name: counts[service.name] for service in self.services}

    @property
    def utilization(self) -> Floats:
        """(G,) part of the time for which the GPUs of each group are computing, on average over the traces in `found`."""
        used: Floats = np.array([result.utilization for result in self.found]).mean(axis=0)
        return used

    def replay(self, trace: RequestTrace, *, margin_seconds: float = MARGIN_SECONDS) -> RequestResult:
        """Simulate another trace on this placement. Requests of a service without a place are refused.

        Args:
            trace: Requests of some of the services.
            margin_seconds: As for `simulate_requests`.

        Raises:
            InputError: As for `simulate_requests`.
        """
        known = {service.name: slo_of(service) for service in self.services if service.name in trace.services}
        return simulate_requests(trace, self.groups, known, overheads=self.overheads, margin_seconds=margin_seconds)

    def to_columns(self) -> dict[str, Array]:
        """Return a row for each service: rate, SLO, replicas, and attainment: required, promised, mean found and least found."""
        names = [service.name for service in self.services]
        found = np.array([[result.attainments[name] for name in names] for result in self.found])
        return {
            "service": np.array(names, dtype=object),
            "rate": np.array([self.promised.trace.rates[each.name] if each.rate is None else each.rate for each in self.services]),
            "slo_seconds": np.array([slo_of(service) for service in self.services]),
            "replicas": np.array(list(self.replicas.values())),
            "target": np.array([service.attainment for service in self.services]),
            "promised": np.array([self.promised.attainments[name] for name in names]),
            "found": found.mean(axis=0),
            "found_least": found.min(axis=0),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as plain data."""
        columns = {name: values.tolist() for name, values in self.to_columns().items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        plain = [
            {name: None if value in (math.inf, None) or value != value else value for name, value in row.items()} for row in rows
        ]
        groups = [group.to_dict() | {"utilization": use} for group, use in zip(self.groups, self.utilization.tolist(), strict=True)]
        attained = self.attainment
        return {
            "promised": self.promised.attainment,
            "found": attained.mean,
            "found_half_width": attained.half_width,
            "found_by_seed": [result.attainment for result in self.found],
            "services": plain,
            "groups": groups,
        }

    def _title(self) -> str:
        return f"{len(self.groups)} groups, attainment {self.attainment.mean:.4f} found, {self.promised.attainment:.4f} promised"


def replayed_placement(
    services: Sequence[Service],
    groups: Sequence[ModelGroup],
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    seed: int = 0,
    requests: int = 12_000,
    test_seeds: int = 5,
) -> ModelPlacement:
    """Return the placement with these groups, with its attainment on the same traces as in `place_models`.

    Args:
        services: Services with a rate and cv, or with a trace file.
        groups: The groups, such as those that `read_groups` returns.
        overheads: Time that serving adds to the stages.
        seed: Seed of the trace for the promised attainment; the next seeds are for the attainment found.
        requests: Expected requests in the first trace; the others have twice as many.
        test_seeds: Number of the other traces. Files give only one, their second half.

    Raises:
        InputError: There is no group, or a file of requests has faults.
    """
    arrivals = RequestArrivals(services)
    tests = range(seed + 1, seed + 1 + (test_seeds if arrivals.are_drawn else 1))
    traces = [arrivals.trace(arrivals.seconds(requests), seed, is_second_half=False)]
    traces += [arrivals.trace(arrivals.seconds(2 * requests), each, is_second_half=True) for each in tests]
    slo = {service.name: slo_of(service) for service in services}
    results = []
    for trace in traces:
        margin = min(MARGIN_SECONDS, trace.duration_seconds / 10)
        results.append(simulate_requests(trace, groups, slo, overheads=overheads, margin_seconds=margin))
    return ModelPlacement(tuple(services), tuple(groups), results[0], tuple(results[1:]), overheads)


# ---------------------------------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True, eq=False)
class PlanReplay(Tabular):
    """The attainment that a plan promises its services, and the attainment found by simulating their requests.

    Attributes:
        rates: {service: requests/s}.
        served: {service: served fraction of the plan}.
        promised: {service: attainment}: the served fraction times the attainment that the service requires, if it has an SLO.
        found: {service: attainment} on each trace; without an SLO, the part of the requests that end before the trace does.
        requests: Number of requests of each trace.
        utilization: Part of the time for which the replicas of each row of the plan are busy, on average over the traces; empty for
            plans over time.
    """

    rates: dict[str, float]
    served: dict[str, float]
    promised: dict[str, float]
    found: tuple[dict[str, float], ...]
    requests: tuple[int, ...]
    utilization: tuple[float, ...]

    @property
    def attainment(self) -> SampleMean:
        """Attainment found for all requests: mean over the traces, with a 95 % confidence interval."""
        spread = estimate(self._of_all(found) for found in self.found)
        return SampleMean(math.nan, None, 0) if spread is None else spread

    @property
    def promised_attainment(self) -> float:
        """Attainment promised for all requests."""
        return self._of_all(self.promised)

    def _of_all(self, attained: Mapping[str, float]) -> float:
        known = [name for name, part in attained.items() if not math.isnan(part)]
        total = sum(self.rates[name] for name in known)
        return sum(self.rates[name] * attained[name] for name in known) / total if total else math.nan

    def to_columns(self) -> dict[str, Array]:
        """Return a row for each service: rate, served fraction, and attainment: promised, mean found and least found."""
        found = np.array([[each[name] for name in self.rates] for each in self.found])
        return {
            "service": np.array(list(self.rates), dtype=object),
            "requests_per_second": np.array(list(self.rates.values())),
            "served_fraction": np.array(list(self.served.values())),
            "promised": np.array(list(self.promised.values())),
            "found": found.mean(axis=0),
            "found_least": found.min(axis=0),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the replay as plain data, with None for services without requests."""
        columns = {name: values.tolist() for name, values in self.to_columns().items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {
            "promised": self.promised_attainment,
            "found": self.attainment.mean,
            "found_half_width": self.attainment.half_width,
            "requests": list(self.requests),
            "services": [{name: None if value != value else value for name, value in row.items()} for row in rows],
            "utilization": list(self.utilization),
        }

    def __repr__(self) -> str:
        return f"PlanReplay({self._title()})"

    def _title(self) -> str:
        return f"attainment {self.attainment.mean:.4f} found, {self.promised_attainment:.4f} promised"


def replayed_plan(plan: ServingPlan, *, seed: int = 0, requests: int | None = None, traces: int = 5) -> PlanReplay:
    """Return the attainment that a plan promises, and the attainment found by simulating requests on its replicas.

    Requests of each size go to types of replicas in the shares of the plan, and there to the replica that is free first. Replicas
    with stage times are simulated as pipelines. On others, a request occupies a replica for 1/rate seconds, with the largest known
    rate for its size under any condition. It is late if it waits for longer than `ttft_seconds`, or if its wait and 1/rate together
    are longer than `slo_seconds`. So the times of tokens are not simulated, and a replica whose only rate was measured at an SLO
    has no slack for bursts.

    Args:
        plan: The plan, as `plan_serving` returns it.
        seed: Seed of the arrivals.
        requests: Expected requests in each trace, by default 200 for each replica and at least 12,000. Files of requests are
            replayed as they are, up to the end of the shortest.
        traces: Number of traces, with this seed and the next ones; 1 if all services have files.

    Raises:
        InputError: The plan was not made by `plan_serving`, or a number is below 1.
    """
    market = None if plan._evidence is None else plan._evidence.market
    requests = max(12_000, 200 * sum(row["replicas"] for row in plan.replicas)) if requests is None else requests
    faults = faults_among("replay of a plan", (market is None, "plan", "was not made by plan_serving"))
    InputError.raise_any(faults + faults_of("replay of a plan", requests=(requests, Count), traces=(traces, Count)))
    assert market is not None  # noqa: S101
    arrivals = RequestArrivals(plan.services)
    seconds = arrivals.seconds(requests, part=1.0)
    seeds = range(seed, seed + (traces if arrivals.are_drawn else 1))
    drawn = [arrivals.trace(seconds, each, is_second_half=False) for each in seeds]
    found: list[dict[str, float]] = [{} for _ in drawn]
    busy: dict[tuple[str, ReplicaType], float] = {}
    for i, service in enumerate(plan.services):
        tables = tables_of(market, i, plan)
        in_time, used = requests_in_time(service, market.offers[i], *tables, [trace.of(service.name) for trace in drawn], seed)
        for attained, good, trace in zip(found, in_time, drawn, strict=True):
            counted = good[window(trace.of(service.name).seconds, min(MARGIN_SECONDS, trace.duration_seconds / 10))]
            attained[service.name] = float(counted.mean()) if len(counted) else math.nan
        busy |= {(service.name, each): part for each, part in zip(market.offers[i].types, used.tolist(), strict=True)}
    return PlanReplay(
        rates={each.name: float(offer.columns.demand.sum()) for each, offer in zip(plan.services, market.offers, strict=True)},
        served=dict(plan.served),
        promised={each.name: plan.served[each.name] * target_of(each) for each in plan.services},
        found=tuple(found),
        requests=tuple(map(len, drawn)),
        utilization=tuple(busy[row["service"], type_of(row)] for row in plan.replicas),
    )


def target_of(service: Service) -> float:
    """Return the part of the routed requests that a plan promises to end in time."""
    return service.attainment if service.has_slo else 1.0


def requests_in_time(
    service: Service,
    offer: Offer,
    replicas: Floats,
    parts: Floats,
    traces: Sequence[RequestTrace],
    seed: int,
    more_seconds: float = 0.0,
) -> tuple[list[Mask], Floats]:
    """Simulate the requests of one service on its (n,) replicas, to which (n, B) parts of its demand are routed.

    Without an SLO, requests must end within `more_seconds` after the end of their trace.

    Returns:
        (N,) which requests ended in time, for each trace, and (n,) the part of the time for which each type of replica was busy.
    """
    tables = {k: _table(offer, k, int(count)) for k, count in enumerate(replicas.tolist()) if count > 0}
    runs, places = [], []
    for number, trace in enumerate(traces):
        sizes = _sizes(service, offer, trace, np.random.default_rng([seed, number]))
        routed = _routed(sizes, parts)
        for k, table in tables.items():
            chosen = np.flatnonzero(routed == k)
            limits = _limits(service, table)[sizes[chosen]]
            seconds = trace.seconds[chosen]
            deadlines = np.where(np.isfinite(limits), seconds + limits + TOLERANCE_SECONDS, sys.float_info.max)
            runs.append(RequestRun(seconds, sizes[chosen], deadlines, table))
            places.append((number, k, chosen))
    in_time = [np.zeros(len(trace), dtype=bool) for trace in traces]
    busy = np.zeros(len(replicas))
    for run, served, (number, k, chosen) in zip(runs, serve(runs), places, strict=True):
        latest = np.inf if service.has_slo else traces[number].duration_seconds + more_seconds
        in_time[number][chosen] = served.ends <= latest  # refused requests have no end, NaN
        ended = float(np.nanmax(served.ends, initial=traces[number].duration_seconds))
        busy[k] += busy_seconds(run, served).sum() / (replicas[k] * max(1, len(offer.stages[k])) * ended * len(traces))
    return in_time, busy


def _table(offer: Offer, k: int, count: int) -> ServerTable:
    """Return `count` replicas of one type as servers for each size of requests."""
    speeds = dict(enumerate(offer.speeds[k].tolist()))
    stages = {str(b): offer.stages[k] or (1 / speed,) for b, speed in speeds.items() if offer.stages[k] or speed > 0}
    return compile_groups([ModelGroup(stages)] * count, [str(b) for b in speeds], NO_OVERHEADS)


def _limits(service: Service, table: ServerTable) -> Floats:
    """Return (B,) the seconds after arrival within which requests of each size must end."""
    if service.slo_seconds is not None:
        return np.full(len(table.work), service.slo_seconds)
    wait = math.inf if service.ttft_seconds is None else service.ttft_seconds
    return wait + table.work[:, 0]


def _sizes(service: Service, offer: Offer, trace: RequestTrace, chance: np.random.Generator) -> Indices:
    """Return (N,) the index of the size of each request: the nearest size for requests from a file, else drawn from the mix."""
    buckets = [bucket for bucket in offer.buckets if bucket is not None]
    if service.trace is not None and not service.mix and buckets:
        return nearest_index(trace, buckets)
    shares = offer.columns.demand / offer.columns.demand.sum()
    return np.asarray(chance.choice(len(shares), len(trace), p=shares), dtype=np.intp)


def _routed(sizes: Indices, parts: Floats) -> Indices:
    """Return (N,) the type of replica of each request, by the parts of each size; the number of types if it is not routed."""
    found = np.full(len(sizes), len(parts))
    for b in range(parts.shape[1]):
        own = np.flatnonzero(sizes == b)
        shares = np.cumsum(parts[:, b])
        if shares[-1] > 1 - PROOF_TOLERANCE:
            shares /= shares[-1]
        found[own] = np.searchsorted(shares, (np.arange(len(own)) * GOLDEN) % 1, side="right")
    return found
