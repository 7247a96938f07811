"""Attainment: the part of the requests of a trace that ends within the SLO, and the largest rate that reaches an attainment.

Rates come from simulation, since queueing formulas err in both directions. By Kingman's formula, requests wait for
Wq = ρ s cv² / (2 (1 - ρ)) on average at equal service times s, and if those that wait do so for exponential times, P(W > x) is
ρ exp(-ρ x / Wq). This does not account for refused requests, which leave room for others. And at a coefficient of variation of 2 or
more, gamma arrivals come in bursts at nearly the same time, of which a server can serve only a few within the SLO, even if the load
is low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gavel_py.errors import InputError, faults_among, refuse
from gavel_py.io.records import Count, Integer, faults_of
from gavel_py.io.tabular import Tabular
from gavel_py.problem.arrays import Floats
from gavel_py.report.measures import estimate
from gavel_py.serving.requests import Attainment, RequestTrace, Variation, first_arrivals
from gavel_py.serving.simulation import (
    NO_OVERHEADS,
    TOLERANCE_SECONDS,
    ModelGroup,
    RequestRun,
    ServerTable,
    ServingOverheads,
    busy_seconds,
    compile_groups,
    run_of,
    serve,
)

if TYPE_CHECKING:
    from gavel_py.io.tabular import Array

MARGIN_SECONDS = 10.0
"""At both ends of a trace, the average number of requests that arrive in this time is not counted. AlpaServe does the same.
Leaving out the requests that actually arrive in this time instead changes attainment in the third digit."""


@dataclass(frozen=True, eq=False)
class RequestResult(Tabular):
    """How a trace was served.

    Attributes:
        trace: The N requests.
        groups: The groups.
        slo_seconds: {service: its SLO}, infinite without one.
        latencies: (N,) seconds from arrival to end, NaN for refused requests.
        group_index: (N,) number of the group that served each request, -1 for refused ones.
        busy_seconds: (G,) time for which a stage of each group was computing, on average over its stages.
        margin_seconds: At both ends of the trace, the average number of requests that arrive in this time is not counted.
    """

    trace: RequestTrace
    groups: tuple[ModelGroup, ...]
    slo_seconds: Mapping[str, float]
    latencies: Floats
    group_index: NDArray[np.intp]
    busy_seconds: Floats
    margin_seconds: float

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """(N,) whether a request counts: it is in the window between the margins."""
        found = np.zeros(len(self.trace), dtype=bool)
        found[window(self.trace.seconds, self.margin_seconds)] = True
        return found

    @cached_property
    def is_good(self) -> NDArray[np.bool_]:
        """(N,) whether a request ended within its SLO."""
        slo = np.array([self.slo_seconds[service] for service in self.trace.services])[self.trace.service_index]
        with np.errstate(invalid="ignore"):
            good: NDArray[np.bool_] = self.latencies <= slo + TOLERANCE_SECONDS
        return good

    @property
    def attainment(self) -> float:
        """Requests that ended within their SLO divided by all that arrived in the window; NaN if none arrived."""
        return _share(self.is_good[self.counted])

    @property
    def attainments(self) -> dict[str, float]:
        """The attainment of each service."""
        of = self.trace.service_index
        return {name: _share(self.is_good[self.counted & (of == n)]) for n, name in enumerate(self.trace.services)}

    @property
    def mean_seconds(self) -> float:
        """Mean latency of the served requests of the window; NaN if none was served."""
        found = self._served()
        return float(found.mean()) if len(found) else np.nan

    def percentile(self, percent: float, service: str | None = None) -> float:
        """Return a percentile of the latency of the served requests of the window, in seconds; NaN if none was served.

        Args:
            percent: The percentile, from 0 to 100.
            service: Count only the requests of this service; None for all.
        """
        found = self._served(service)
        return float(np.percentile(found, percent)) if len(found) else np.nan

    @property
    def utilization(self) -> Floats:
        """(G,) part of the duration for which the GPUs of each group were computing."""
        return self.busy_seconds / self.trace.duration_seconds

    def to_columns(self) -> dict[str, Array]:
        """Return a row for each service: requests, attainment, mean and percentiles of the latency in seconds."""
        names, attained = self.trace.services, self.attainments
        at = self.trace.service_index[self.counted]
        columns: dict[str, Array] = {
            "service": np.array(names, dtype=object),
            "requests": np.bincount(at, minlength=len(names)),
            "attainment": np.array([attained[name] for name in names]),
        }
        for percent in (50, 90, 99):
            columns[f"p{percent}_seconds"] = np.array([self.percentile(percent, name) for name in names])
        return columns

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, with None for figures without requests."""
        columns = {name: [_plain(value) for value in values.tolist()] for name, values in self.to_columns().items()}
        services = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        groups = [group.to_dict() | {"utilization": use} for group, use in zip(self.groups, self.utilization.tolist(), strict=True)]
        whole = {"mean_seconds": self.mean_seconds} | {f"p{each}_seconds": self.percentile(each) for each in (50, 90, 99)}
        return {
            "requests": int(self.counted.sum()),
            "attainment": _plain(self.attainment),
            "refused": int((self.counted & np.isnan(self.latencies)).sum()),
            **{name: _plain(value) for name, value in whole.items()},
            "services": services,
            "groups": groups,
        }

    def _served(self, service: str | None = None) -> Floats:
        counted = self.counted & ~np.isnan(self.latencies)
        if service is not None:
            counted = counted & (self.trace.service_index == self.trace.services.index(service))
        return self.latencies[counted]

    def _title(self) -> str:
        return f"{int(self.counted.sum()):,} requests, attainment {self.attainment:.4f}"


def window(seconds: Floats, margin_seconds: float) -> slice:
    """Return the slice of the requests that count, given their times."""
    span = seconds[-1] - seconds[0] if len(seconds) else 0.0
    skipped = int(margin_seconds / span * len(seconds)) if span > 0 else 0
    return slice(skipped, len(seconds) - skipped)


def _share(good: NDArray[np.bool_]) -> float:
    return float(good.mean()) if len(good) else np.nan


def _plain(value: Any) -> Any:
    return None if value != value else value


class RequestScenario(NamedTuple):
    """A trace, the groups that serve it, and the SLO in seconds: one for all services, by service, or None for none."""

    trace: RequestTrace
    groups: Sequence[ModelGroup]
    slo_seconds: float | Mapping[str, float] | None = None


def simulate_requests(
    trace: RequestTrace,
    groups: Sequence[ModelGroup],
    slo_seconds: float | Mapping[str, float] | None = None,
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    refuse: bool = True,
    margin_seconds: float = MARGIN_SECONDS,
) -> RequestResult:
    """Simulate groups of GPUs that serve the requests of a trace, first come, first served.

    >>> trace = RequestTrace.generate({"chat": 5.0}, 1000, cv=3)
    >>> one, two = (simulate_requests(trace, [ModelGroup({"chat": [0.1]})] * n, 0.3).attainment for n in (1, 2))
    >>> one < two
    True

    Args:
        trace: The requests.
        groups: The groups. If no group holds a service, all its requests are refused.
        slo_seconds: Latency within which requests must end: one for all services, by service (missing services have none), or None
            for no limit.
        overheads: Time that serving adds to the stages.
        refuse: Whether to refuse requests that would miss their SLO; otherwise they are served late.
        margin_seconds: At both ends of the trace, the average number of requests that arrive in this time is not counted.

    Raises:
        InputError: An SLO that is not greater than 0 or of a service that is not in the trace, or margins as long as the trace.
    """
    return simulate_many(
        [RequestScenario(trace, groups, slo_seconds)], overheads=overheads, refuse=refuse, margin_seconds=margin_seconds
    )[0]


def simulate_many(
    scenarios: Sequence[RequestScenario],
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    refuse: bool = True,
    margin_seconds: float = MARGIN_SECONDS,
) -> list[RequestResult]:
    """Return the result of each scenario as `simulate_requests` does; one call for many scenarios is faster than many calls."""
    tables: dict[tuple[int, tuple[str, ...]], ServerTable] = {}
    runs, limits = [], []
    for trace, groups, slo in scenarios:
        if not groups:
            raise InputError("a request simulation needs at least one group")
        limit = _limits(trace, slo)
        _check_margin(trace, margin_seconds)
        key = id(groups), trace.services
        if key not in tables:
            tables[key] = compile_groups(groups, trace.services, overheads)
        runs.append(run_of(trace, np.array(list(limit.values())), tables[key], overheads, refuse=refuse))
        limits.append(limit)
    results = []
    for (trace, groups, _), run, limit, served in zip(scenarios, runs, limits, serve(runs), strict=True):
        busy = busy_seconds(run, served) / np.array([group.pipeline_parallel for group in groups])
        latencies = served.ends - trace.seconds + overheads.request_seconds
        results.append(RequestResult(trace, tuple(groups), limit, latencies, served.groups, busy, margin_seconds))
    return results


def _limits(trace: RequestTrace, slo_seconds: float | Mapping[str, float] | None) -> dict[str, float]:
    given = slo_seconds if isinstance(slo_seconds, Mapping) else dict.fromkeys(trace.services, slo_seconds)
    limits = {name: np.inf if given.get(name) is None else float(given[name]) for name in trace.services}  # type: ignore[arg-type]
    refuse(
        "slo_seconds",
        *((name not in limits, "", f"the trace has no service {name!r}") for name in given),
        *((not limit > 0, name, f"must be greater than 0, found {limit!r}") for name, limit in limits.items()),
    )
    return limits


def _check_margin(trace: RequestTrace, margin: float) -> None:
    refuse(
        "request simulation",
        (
            not 0 <= margin < trace.duration_seconds / 2,
            "margin_seconds",
            f"must be at least 0 and below half of the trace of {trace.duration_seconds:g} s, found {margin!r}",
        ),
    )


POINTS = 8
"""Number of rates that are tried at once for each seed."""

PASSES = 5
"""Number of passes. Each takes the (POINTS + 1)-th root of the ratio of the bounds; after five, 0.03 % remain."""

MIN_LOAD = 1e-6
"""Load of the replicas below which the rate counts as 0."""

WARM_UP = 0.05
"""Part of the requests at the beginning that is not counted, since the simulation starts empty."""


@dataclass(frozen=True)
class RateAtSlo:
    """The largest rate of requests per second that is served within the SLO.

    Attributes:
        rate: Mean over the seeds.
        half_width: Half-width of its 95 % confidence interval, from the spread over the seeds; None for fewer than three seeds.
        by_seed: Rate found with the arrivals of each seed.
        num_requests: Requests simulated with each seed at each rate.
    """

    rate: float
    half_width: float | None
    by_seed: tuple[float, ...]
    num_requests: int


def rate_at_slo(
    stage_seconds: Sequence[float],
    slo_seconds: float,
    *,
    cv: float = 1.0,
    attainment: float = 0.99,
    replicas: int = 1,
    overheads: ServingOverheads = NO_OVERHEADS,
    seeds: int = 8,
    num_requests: int = 20_000,
) -> RateAtSlo:
    """Return the largest rate, in requests per second, at which this part of the requests ends within the SLO.

    For each seed, the gaps between requests are drawn once and divided by each rate that is tried. The search narrows the range in
    which attainment falls below its target. Requests that would miss their SLO are refused.

    Args:
        stage_seconds: Time of a request in each stage of the pipeline of a replica.
        slo_seconds: Latency within which requests must end.
        cv: Coefficient of variation of the gaps between requests, from 0 to 20.
        attainment: Part of the requests that must end within the SLO, above 0 and at most 1.
        replicas: Equal replicas that share the requests; the rate is that of all of them.
        overheads: Time that serving adds to the stages.
        seeds: Independent simulations at each rate.
        num_requests: Requests in each simulation. A target of 1 - 1/n needs many times n requests.

    Raises:
        InputError: An SLO below the latency of a request that never waits, or another argument outside its range.
    """
    _check_rate(stage_seconds, slo_seconds, cv, attainment, replicas, overheads, seeds, num_requests)
    table = compile_groups([ModelGroup({"": tuple(stage_seconds)})] * replicas, [""], overheads)
    arrivals = first_arrivals(cv, num_requests, seeds)
    limit = slo_seconds - overheads.request_seconds + TOLERANCE_SECONDS
    # At the upper bound, `attainment` of the requests is what the slowest stages can serve; no rate above it can reach the target.
    capacity = replicas / float(overheads.stages(stage_seconds).max())
    low, high = np.full(seeds, math.log(MIN_LOAD * capacity)), np.full(seeds, math.log(1.01 * capacity / attainment))
    is_reached = _attained(table, arrivals, np.exp(low)[:, None], limit)[:, 0] >= attainment
    for _ in range(PASSES):
        tried = low[:, None] + (high - low)[:, None] * np.arange(1, POINTS + 1) / (POINTS + 1)
        enough = _attained(table, arrivals, np.exp(tried), limit) >= attainment
        # The first rate that misses the target: with few requests, attainment need not fall from each rate to the next.
        first = np.where(enough.all(axis=1), POINTS, (~enough).argmax(axis=1))
        bounds = np.hstack([low[:, None], tried, high[:, None]])
        seed = np.arange(seeds)
        low, high = bounds[seed, first], bounds[seed, first + 1]
    found = np.where(is_reached, np.exp(low), 0.0)
    spread = estimate(found.tolist())
    return RateAtSlo(float(found.mean()), spread.half_width if spread else None, tuple(found.tolist()), num_requests)


def _attained(table: ServerTable, arrivals: Sequence[Floats], rates: Floats, limit: float) -> Floats:
    """Return (seeds, P) parts of the requests that end within the limit at (seeds, P) rates."""
    return parts_in_time(runs_at(table, arrivals, rates, limit)).reshape(rates.shape)


def runs_at(table: ServerTable, arrivals: Sequence[Floats], rates: Floats, limit: float) -> list[RequestRun]:
    """Return a run for each of (seeds, P) rates of arrivals with a rate of 1."""
    runs = []
    for unit, tried in zip(arrivals, rates, strict=True):
        services = np.zeros(len(unit), dtype=np.intp)
        for rate in tried.tolist():
            seconds = unit / rate
            runs.append(RequestRun(seconds, services, seconds + limit, table))
    return runs


def parts_in_time(runs: Sequence[RequestRun]) -> Floats:
    """Return (R,) the part of the requests of each run that end in time, after the warm-up."""
    parts = [1 - np.isnan(served.ends[int(WARM_UP * len(served.ends)) :]).mean() for served in serve(runs)]
    return np.array(parts, dtype=float)


Enough = Annotated[Integer, Field(ge=100)]
"""Number of requests from which an attainment can be estimated."""


def _check_rate(
    stage_seconds: Sequence[float],
    slo_seconds: float,
    cv: float,
    attainment: float,
    replicas: int,
    overheads: ServingOverheads,
    seeds: int,
    num_requests: int,
) -> None:
    where = "rate at the SLO"
    is_wrong = not stage_seconds or not all(0 < each < math.inf for each in stage_seconds)
    fastest = math.nan if is_wrong else overheads.latency(stage_seconds)
    least = f"at least {fastest:.6g}, the latency of a request that never waits"
    numbers = faults_of(
        where,
        cv=(cv, Variation),
        attainment=(attainment, Attainment),
        replicas=(replicas, Count),
        seeds=(seeds, Count),
        num_requests=(num_requests, Enough),
    )
    others = faults_among(
        where,
        (is_wrong, "stage_seconds", f"must be finite numbers greater than 0, found {tuple(stage_seconds)!r:.60}"),
        (
            not is_wrong and not fastest <= slo_seconds < math.inf,
            "slo_seconds",
            f"must be finite and {least}, found {slo_seconds!r}",
        ),
    )
    InputError.raise_any(others + numbers)
