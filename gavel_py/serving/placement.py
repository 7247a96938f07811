"""Placement of models on groups of GPUs: most requests within their SLO under bursts, promised and found.

`shapes` proposes how many groups to make of each shape, `groups` puts models on them. All of that is judged on one trace of
requests; what is found on traces of other seeds stands beside the promise. Li et al. (AlpaServe, OSDI 2023) showed what is gained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import Fault, InputError, nearest, relocated_faults, together
from gavel_py.io import reading
from gavel_py.io.records import number_of
from gavel_py.io.tabular import Tabular
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.report.measures import Estimate, estimate
from gavel_py.serving.attainment import MARGIN_SECONDS, RequestResult, rate_at_slo, simulate_requests
from gavel_py.serving.groups import BATCH, Judge, filled_greedily, keeps_limits, refined
from gavel_py.serving.requests import MAX_CV, RequestTrace
from gavel_py.serving.services import Service, ServingProfile, ServingRate
from gavel_py.serving.shapes import options_of, proposals, slo_of
from gavel_py.serving.simulation import NO_OVERHEADS, ModelGroup, ServingOverheads

if TYPE_CHECKING:
    from gavel_py.io.tabular import Array

BEST_LISTS = 2
"""Lists of shapes that are changed one thing at a time, of those tried."""


class Arrivals:
    """Requests of services, drawn or from their files."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self._files = {service.name: _read(service) for service in services if service.trace is not None}
        self.cvs: Floats = np.array([_cv(self._files[s.name]) if s.name in self._files else s.cv for s in services])

    @property
    def are_drawn(self) -> bool:
        """Whether requests of some service are drawn, so that another seed gives another trace."""
        return len(self._files) < len(self._services)

    def seconds(self, requests: int) -> float:
        """Return the time in which about as many requests arrive; half of the shortest file, if there is one."""
        if self._files:
            return min(trace.duration_seconds for trace in self._files.values()) / 2
        return requests / sum(service.rate or 0.0 for service in self._services)

    def trace(self, seconds: float, seed: int, *, is_second_half: bool) -> RequestTrace:
        """Return requests of this time: drawn with a seed, and from the first or the last part of files."""
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
    if len(trace.services) == 1:
        return replace(trace, services=(service.name,))
    problem = f"{service.trace} has requests of {len(trace.services)} services, but none named {service.name!r}"
    raise InputError(Fault(f"service {service.name!r}", "trace", problem))


def _cv(trace: RequestTrace) -> float:
    """Return the coefficient of variation of the gaps in a trace."""
    gaps = np.diff(trace.seconds)
    return float(min(MAX_CV, gaps.std() / gaps.mean()))


@dataclass(frozen=True, eq=False)
class ModelPlacement(Tabular):
    """Groups of GPUs with the models on them, and the attainment promised and found.

    Attributes:
        services: The services.
        groups: The groups.
        promised: Result on the trace that the search saw.
        found: Results on traces that it did not see.
        overheads: Of the simulations.
    """

    services: tuple[Service, ...]
    groups: tuple[ModelGroup, ...]
    promised: RequestResult
    found: tuple[RequestResult, ...]
    overheads: ServingOverheads

    @property
    def attainment(self) -> Estimate:
        """Attainment found: mean over the traces that the search did not see, with a 95 % confidence interval."""
        spread = estimate(result.attainment for result in self.found)
        return Estimate(math.nan, None, 0) if spread is None else spread

    @property
    def replicas(self) -> dict[str, int]:
        """Groups that hold each service."""
        counts = Counter(name for group in self.groups for name in group.stage_seconds)
        return {service.name: counts[service.name] for service in self.services}

    @property
    def utilization(self) -> Floats:
        """(G,) part of the time for which the GPUs of each group compute, on average over the traces that were found."""
        used: Floats = np.array([result.utilization for result in self.found]).mean(axis=0)
        return used

    def replay(self, trace: RequestTrace, *, margin_seconds: float = MARGIN_SECONDS) -> RequestResult:
        """Serve another trace with this placement.

        Args:
            trace: Requests of some of the services.
            margin_seconds: As for `simulate_requests`.

        Raises:
            InputError: As `simulate_requests`; a service without a place has its requests refused.
        """
        known = {service.name: slo_of(service) for service in self.services if service.name in trace.services}
        return simulate_requests(trace, self.groups, known, overheads=self.overheads, margin_seconds=margin_seconds)

    def to_columns(self) -> dict[str, Array]:
        """Return a row for each service: rate, SLO, replicas, attainment asked for, promised, found (mean), and found least."""
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


def place_models(
    services: Sequence[Service],
    cluster: Cluster,
    profile: ServingProfile,
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    seed: int = 0,
    search_requests: int = 12_000,
    changes: int = 512,
    test_seeds: int = 5,
) -> ModelPlacement:
    """Return groups of GPUs with models on them, so that as many requests as possible end within their SLO, by weight.

    Args:
        services: Services with a rate and cv, or with a trace file. Of files, the search sees the first half; what is found is of
            the second half.
        cluster: The GPUs, with the memory of each type.
        profile: Rows with stage_seconds and memory_gb, without batch and sizes of requests, say which shapes there are.
        overheads: Time that serving adds to the stages.
        seed: Of the arrivals that the search sees, and of its random changes.
        search_requests: Requests that the search sees; more make it slower, and the promise more reliable.
        changes: Single changes that are tried at the end.
        test_seeds: Traces of other seeds on which the placement is replayed.

    Raises:
        InputError: A service fits no group, has an SLO below the fastest latency, or neither a rate nor a trace; the cluster or the
            profile does not state memory; a name appears twice; floors do not fit.
        UnknownNameError: The profile lacks a model.
    """
    if not services:
        raise InputError("there are no services to place")
    for name, value in (("search_requests", search_requests), ("test_seeds", test_seeds)):
        if value < 1:
            raise InputError(Fault("placement of models", name, f"must be a whole number of at least 1, found {value!r}"))
    options = options_of(services, cluster, profile, overheads)
    arrivals = Arrivals(services)
    trace = arrivals.trace(arrivals.seconds(search_requests), seed, is_second_half=False)
    judge = Judge(options, trace, overheads)
    rates = np.array([trace.rates[service.name] for service in services])
    lists = proposals(options, rates, arrivals.cvs, overheads)
    placements = [each for each in filled_greedily(options, lists, judge) if keeps_limits(options, each)]
    if not placements:
        raise InputError("the least numbers of replicas (min_replicas) do not fit on the groups together")
    judged = judge.judged(placements)
    order = sorted(range(len(placements)), key=lambda n: -judged[n].score)[:BEST_LISTS]
    chance = np.random.default_rng(seed)
    batches = math.ceil(changes / BATCH / len(order))
    best = max((refined(options, placements[n], judge, batches, chance) for n in order), key=lambda found: found[0].score)
    groups = tuple(options.group(held) for held in best[1] if held[1])
    return replayed_placement(services, groups, overheads=overheads, seed=seed, requests=search_requests, test_seeds=test_seeds)


def replayed_placement(
    services: Sequence[Service],
    groups: Sequence[ModelGroup],
    *,
    overheads: ServingOverheads = NO_OVERHEADS,
    seed: int = 0,
    requests: int = 12_000,
    test_seeds: int = 5,
) -> ModelPlacement:
    """Return the placement with these groups, with its attainment on the traces of which `place_models` promises and finds.

    Args:
        services: Services with a rate and cv, or with a trace file.
        groups: The groups, such as those that `read_groups` reads.
        overheads: Time that serving adds to the stages.
        seed: Of the trace whose attainment is promised; those of the next seeds are found.
        requests: Expected in the first trace; the others have twice as many.
        test_seeds: Number of the others. Files give one, their second half.

    Raises:
        InputError: There is no group, or a file of requests has faults.
    """
    arrivals = Arrivals(services)
    tests = range(seed + 1, seed + 1 + (test_seeds if arrivals.are_drawn else 1))
    traces = [arrivals.trace(arrivals.seconds(requests), seed, is_second_half=False)]
    traces += [arrivals.trace(arrivals.seconds(2 * requests), each, is_second_half=True) for each in tests]
    slo = {service.name: slo_of(service) for service in services}
    results = []
    for trace in traces:
        margin = min(MARGIN_SECONDS, trace.duration_seconds / 10)
        results.append(simulate_requests(trace, groups, slo, overheads=overheads, margin_seconds=margin))
    return ModelPlacement(tuple(services), tuple(groups), results[0], tuple(results[1:]), overheads)


GROUP_FIELDS = {"accelerator", "operator_parallel", "pipeline_parallel", "num_gpus", "stage_seconds", "utilization"}


def read_groups(path: str | Path) -> tuple[ModelGroup, ...]:
    """Read groups from a YAML or JSON file with a list of them under `groups`, such as the output of `gavel serve simulate --json`.

    Args:
        path: The file. A group has stage_seconds, {service: [seconds of each stage]}, and may have operator_parallel and
            accelerator.

    Raises:
        InputError: All faults of the file, each with its line.
    """
    document = reading.document(path)
    entries = document.value.get("groups") if isinstance(document.value, Mapping) else document.value
    if not isinstance(entries, list) or not entries:
        raise InputError(Fault(document.where(), "groups", "must be a list of groups"))
    with together() as attempt:
        groups = [attempt(partial(_group, document.where("groups", n), entry)) for n, entry in enumerate(entries)]
    return tuple(groups)


def _group(where: str, entry: Any) -> ModelGroup:
    if not isinstance(entry, Mapping) or not isinstance(stages := entry.get("stage_seconds"), Mapping):
        raise InputError(
            Fault(where, "stage_seconds", "must map services to the seconds of each stage, such as {chat: [0.1, 0.1]}")
        )
    unknown = [
        Fault(where, str(name), f"is not known{nearest(str(name), GROUP_FIELDS)}") for name in entry if name not in GROUP_FIELDS
    ]
    InputError.raise_any(unknown)
    operators = entry.get("operator_parallel", 1)
    if isinstance(operators, bool) or not isinstance(operators, int) or operators < 1:
        raise InputError(Fault(where, "operator_parallel", f"must be a whole number of at least 1, found {operators!r:.60}"))
    seconds = {str(name): [number_of(each) for each in times] if isinstance(times, list) else [] for name, times in stages.items()}
    with relocated_faults(lambda fault: Fault(where, fault.field, fault.problem)):
        return ModelGroup(seconds, operators, str(entry.get("accelerator", "")))


def simulated_rates(
    services: Sequence[Service], profile: ServingProfile, *, overheads: ServingOverheads = NO_OVERHEADS, seeds: int = 8
) -> ServingProfile:
    """Return a profile in which rows with stage times have the rates that simulation finds for these services.

    A row with stage_seconds and no rate gets one row for each SLO of the services of its model: the rate at the SLO of one replica,
    at the largest attainment and cv of a service of the model with this SLO, with the condition "slo". Services without an SLO get
    what the slowest stage can do, with the condition "offline". Rows for SLOs below their latency are left out.

    Args:
        services: The services.
        profile: The profile; rows with a rate stay as they are.
        overheads: Time that serving adds to the stages.
        seeds: Of `rate_at_slo`.

    Raises:
        InputError: No row is left.
    """
    rows = []
    for row in profile.rows:
        if row.requests_per_second is not None or not row.stage_seconds:
            rows.append(row)
            continue
        own = [service for service in services if service.model == row.model]
        for slo in sorted({slo_of(service) for service in own}):
            alike = [service for service in own if slo_of(service) == slo]
            found = {"requests_per_second": 1 / float(overheads.stages(row.stage_seconds).max()), "condition": "offline"}
            if slo < math.inf:
                if overheads.latency(row.stage_seconds) > slo:
                    continue
                cv, share = max(service.cv for service in alike), max(service.attainment for service in alike)
                rate = rate_at_slo(row.stage_seconds, slo, cv=cv, attainment=share, overheads=overheads, seeds=seeds).rate
                found = {"requests_per_second": rate, "condition": "slo", "slo_seconds": slo}
            rows.append(ServingRate(**row.model_dump() | found))
    if not rows:
        raise InputError(Fault(f"serving profile {profile.name!r}", "", "has no rate within the SLOs of the services"))
    return ServingProfile(profile.name, rows)


def replica_groups(replicas: Iterable[Mapping[str, Any]], profile: ServingProfile) -> tuple[ModelGroup, ...]:
    """Return a group for each replica of a plan, so that `replayed_placement` finds the attainment of the plan.

    Args:
        replicas: Rows with service, model, accelerator, operator_parallel, pipeline_parallel and the number of replicas, such as
            those of a serving plan.
        profile: Rows with the stage times of these replicas.

    Raises:
        InputError: The profile has no stage times of a replica.
        UnknownNameError: The profile lacks a model.
    """
    groups: list[ModelGroup] = []
    for each in replicas:
        shape = each["accelerator"], each["operator_parallel"], each["pipeline_parallel"]
        timed = [row for row in profile.rows_of(each["model"]) if row.stage_seconds and row.bucket is None]
        times = {(row.accelerator, row.operator_parallel, row.pipeline_parallel): row.stage_seconds for row in timed}
        if shape not in times:
            problem = f"has no stage_seconds of {each['model']!r} on {shape[0]}, operator parallel {shape[1]}, {shape[2]} stages"
            raise InputError(Fault(f"serving profile {profile.name!r}", "stage_seconds", problem))
        groups += [ModelGroup({each["service"]: times[shape]}, shape[1], shape[0])] * int(each["replicas"])
    return tuple(groups)
