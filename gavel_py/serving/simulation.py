"""The request simulator: groups of GPUs serve requests first come, first served, and refuse those that would miss their SLO.

A group holds models, each split into the stages of its pipeline. A request goes to the group on which it would end first; among
equal groups, to the one whose last stage has been free for longest. A request that would miss its SLO there is refused at once.

If all models of a group take the same time in each stage, its pipeline is equivalent to one server: of requests at a_1 <= a_2 <=
..., the n-th leaves at D_n = max(a_n + Σ_k s_k, D_(n-1) + max_k s_k), since requests only wait behind the slowest stage (Friedman,
1965). Other groups have a clock for each stage.

A few runs are simulated one by one in plain Python. From about 16 runs on, it is faster to simulate them together, with one NumPy
step per request. Both do the same floating-point operations in the same order, and return the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import refuse
from gavel_py.io.records import NotNegative, check
from gavel_py.problem.arrays import Floats
from gavel_py.serving.requests import RequestTrace

SIDE_BY_SIDE = 16
"""Number of runs from which one array step per request is faster than plain Python for each run."""

REQUESTS_AT_ONCE = 2**17
"""Number of requests, of all runs together, whose arrays are stacked at a time: some 8 MB, which caches hold."""

MANY_GROUPS = 32
"""Number of groups from which a heap of equal groups is faster than array steps."""

TOLERANCE_SECONDS = 1e-9
"""A request that exceeds its SLO by this much still meets it, so that rounding does not decide if the SLO equals a latency."""

REFUSED = -1
"""Stands for a refused request in place of the number of a group."""


@dataclass(frozen=True)
class ModelGroup:
    """GPUs of one type that hold several models, each split over all of these GPUs.

    Attributes:
        stage_seconds: {service: seconds of a request in each stage of the pipeline} of the services on the group.
        operator_parallel: GPUs over which each stage is split.
        accelerator: Type of the GPUs; the simulation does not use it.

    Raises:
        InputError: Services with different numbers of stages, or a time that is not greater than 0.
    """

    stage_seconds: Mapping[str, Sequence[float]]
    operator_parallel: int = 1
    accelerator: str = ""

    def __post_init__(self) -> None:
        refuse(
            f"group of {self.accelerator or 'GPUs'}",
            *(
                (
                    not seconds or not all(0 < each < np.inf for each in seconds),
                    f"stage_seconds.{service}",
                    f"must be finite numbers greater than 0, found {tuple(seconds)!r:.60}",
                )
                for service, seconds in self.stage_seconds.items()
            ),
            (len(set(map(len, self.stage_seconds.values()))) > 1, "stage_seconds", "services must have the same number of stages"),
        )

    @property
    def pipeline_parallel(self) -> int:
        """Number of stages."""
        return max(map(len, self.stage_seconds.values()), default=1)

    @property
    def num_gpus(self) -> int:
        """GPUs of the group."""
        return self.operator_parallel * self.pipeline_parallel

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain data, which `read_groups` reads."""
        return {
            "accelerator": self.accelerator,
            "operator_parallel": self.operator_parallel,
            "pipeline_parallel": self.pipeline_parallel,
            "num_gpus": self.num_gpus,
            "stage_seconds": {name: list(seconds) for name, seconds in self.stage_seconds.items()},
        }


@dataclass(frozen=True)
class ServingOverheads:
    """Time that serving adds to the measured times of stages.

    Attributes:
        request_seconds: Added to the latency of each request, without occupying a GPU.
        per_stage: Relative increase of the time of each stage per stage of its pipeline. AlpaServe's simulator uses 0.009, and
            0.011 s per request.
    """

    request_seconds: float = 0.0
    per_stage: float = 0.0

    def __post_init__(self) -> None:
        check("serving overheads", request_seconds=(self.request_seconds, NotNegative), per_stage=(self.per_stage, NotNegative))

    def stages(self, seconds: Sequence[float]) -> Floats:
        """Return the times of stages including their overhead.

        Args:
            seconds: Measured times.
        """
        return np.array(seconds, dtype=float) * (1 + self.per_stage * len(seconds))

    def latency(self, seconds: Sequence[float]) -> float:
        """Return the time of a request that never waits.

        Args:
            seconds: Measured times of its stages.
        """
        return float(self.stages(seconds).sum()) + self.request_seconds


NO_OVERHEADS = ServingOverheads()


class ServerTable(NamedTuple):
    """Groups compiled for M services and G groups of at most S clocks.

    lead: (M, G) seconds before the first clock, infinite if the group does not hold the service; stages: (S, M, G) seconds at each
    clock; work: (M, G) seconds of a request summed over the stages.
    """

    lead: Floats
    stages: Floats
    work: Floats


def compile_groups(groups: Sequence[ModelGroup], services: Sequence[str], overheads: ServingOverheads) -> ServerTable:
    """Return the table of the groups for these services; other services on the groups are ignored."""
    number = {service: n for n, service in enumerate(services)}
    timed = []
    for group in groups:
        held = {number[name]: overheads.stages(seconds) for name, seconds in group.stage_seconds.items() if name in number}
        is_one_server = len({tuple(seconds.tolist()) for seconds in held.values()}) <= 1
        timed.append((held, is_one_server))
    clocks = max((1 if is_one else len(each) for held, is_one in timed for each in held.values()), default=1)
    shape = len(services), len(groups)
    table = ServerTable(np.full(shape, np.inf), np.zeros((clocks, *shape)), np.zeros(shape))
    for g, (held, is_one_server) in enumerate(timed):
        for m, seconds in held.items():
            table.work[m, g] = seconds.sum()
            table.lead[m, g] = seconds.sum() - seconds.max() if is_one_server else 0.0
            table.stages[: 1 if is_one_server else len(seconds), m, g] = seconds.max() if is_one_server else seconds
    return table


class RequestRun(NamedTuple):
    """One simulation of N requests.

    deadlines: (N,) latest end of each, without the overhead per request; the largest float for none.
    """

    seconds: Floats
    services: NDArray[np.intp]
    deadlines: Floats
    table: ServerTable


class Served(NamedTuple):
    """Ends of (N,) requests on the GPUs, NaN if refused, and the number of the group of each, or `REFUSED`."""

    ends: Floats
    groups: NDArray[np.intp]


def run_of(
    trace: RequestTrace, slo_seconds: Floats, table: ServerTable, overheads: ServingOverheads = NO_OVERHEADS, *, refuse: bool = True
) -> RequestRun:
    """Return the run of a trace; slo_seconds: (M,) by service, infinite for none; refuse: False to serve late requests as well."""
    left = np.where(np.isfinite(slo_seconds) & refuse, slo_seconds - overheads.request_seconds + TOLERANCE_SECONDS, np.inf)
    deadlines = np.minimum(trace.seconds + left[trace.service_index], sys.float_info.max)
    return RequestRun(trace.seconds, trace.service_index, deadlines, table)


def serve(runs: Sequence[RequestRun]) -> list[Served]:
    """Simulate runs, which may differ in everything."""
    are_alike = [_has_equal_servers(run.table) for run in runs]
    if len(runs) >= SIDE_BY_SIDE and not (all(are_alike) and max(run.table.lead.shape[1] for run in runs) > MANY_GROUPS):
        return _serve_side_by_side(runs)
    found = []
    for run, is_alike in zip(runs, are_alike, strict=True):
        one_by_one = _serve_stages if len(run.table.stages) > 1 else _serve_equal_servers if is_alike else _serve_single_clocks
        found.append(one_by_one(run))
    return found


def _has_equal_servers(table: ServerTable) -> bool:
    """Return whether all groups are single servers with equal times for each service."""
    lead, stage = table.lead, table.stages[0]
    return len(table.stages) == 1 and bool((lead == lead[:, :1]).all() and (stage == stage[:, :1]).all())


def _serve_equal_servers(run: RequestRun) -> Served:
    """Simulate one run in which all groups take equal times: a request ends first on the group that is free first."""
    times = list(zip(run.table.lead[:, 0].tolist(), run.table.stages[0, :, 0].tolist(), strict=True))
    free = [(-np.inf, g) for g in range(run.table.lead.shape[1])]  # a heap
    ends, chosen = [np.nan] * len(run.seconds), [REFUSED] * len(run.seconds)
    requests = zip(run.seconds.tolist(), run.services.tolist(), run.deadlines.tolist(), strict=True)
    for n, (now, service, deadline) in enumerate(requests):
        clock, g = free[0]
        lead, seconds = times[service]
        end = now + lead
        if clock > end:
            end = clock
        end += seconds
        if end <= deadline:
            heapreplace(free, (end, g))
            ends[n], chosen[n] = end, g
    return Served(np.array(ends, dtype=float), np.array(chosen, dtype=np.intp))


def _serve_single_clocks(run: RequestRun) -> Served:
    """Simulate one run in which each group is one server."""
    table = run.table
    choices = [[(groups, lead, stages[0]) for groups, lead, stages in each] for each in _alike(table)]
    count, inf = len(run.seconds), np.inf
    ends, chosen = [np.nan] * count, [REFUSED] * count
    free = [-inf] * table.lead.shape[1]
    free_from = free.__getitem__
    requests = zip(run.seconds.tolist(), run.services.tolist(), run.deadlines.tolist(), strict=True)
    for n, (now, service, deadline) in enumerate(requests):
        end, at = inf, REFUSED
        for groups, lead, seconds in choices[service]:
            g = min(groups, key=free_from)  # with equal times, the group that is free first ends first
            clock, candidate = free[g], now + lead
            if clock > candidate:
                candidate = clock
            candidate += seconds
            if candidate < end or (candidate == end and (clock, g) < (free[at], at)):
                end, at = candidate, g
        if end <= deadline:
            free[at] = ends[n] = end
            chosen[n] = at
    return Served(np.array(ends, dtype=float), np.array(chosen, dtype=np.intp))


def _alike(table: ServerTable) -> list[list[tuple[list[int], float, list[float]]]]:
    """Return (groups, lead, seconds at each clock) for each service; groups with equal times are listed together."""
    found = []
    for m, lead in enumerate(table.lead.tolist()):
        same: dict[tuple[float, ...], list[int]] = {}
        for g, times in enumerate(zip(lead, *table.stages[:, m].tolist(), strict=True)):
            if times[0] < np.inf:
                same.setdefault(times, []).append(g)
        found.append([(groups, times[0], list(times[1:])) for times, groups in same.items()])
    return found


def _serve_stages(run: RequestRun) -> Served:
    """Simulate one run with a clock for each stage.

    No clock of a group is later than its last one. So a group whose last clock is free is idle, and among idle groups with equal
    times the best is the one that has been idle for longest. The first four stages are written out, which takes half the time of a
    loop; shorter pipelines are padded with stages of 0 s, which have no effect.
    """
    table, inf = run.table, np.inf
    choices = [[(groups, lead, *_first_four(times), times[-1]) for groups, lead, times in each] for each in _alike(table)]
    idle: tuple[float, float, float, float, Sequence[float]] = (-inf, -inf, -inf, -inf, [-inf] * max(0, len(table.stages) - 4))
    clocks = [idle] * table.lead.shape[1]
    free = [-inf] * len(clocks)
    free_from = free.__getitem__
    ends, chosen = [np.nan] * len(run.seconds), [REFUSED] * len(run.seconds)
    requests = zip(run.seconds.tolist(), run.services.tolist(), run.deadlines.tolist(), strict=True)
    for n, (now, service, deadline) in enumerate(requests):
        end, at, after = inf, REFUSED, clocks[0]
        for groups, lead, (s1, s2, s3, s4), others, last in choices[service]:
            first = min(groups, key=free_from)
            for g in (first,) if free[first] <= now else (first, *groups):
                if g == at or free[g] + last > end:
                    continue  # the last stage alone would end later there
                c1, c2, c3, c4, later = clocks[g]
                start = now + lead
                m1 = (c1 if c1 > start else start) + s1
                m2 = (c2 if c2 > m1 else m1) + s2
                m3 = (c3 if c3 > m2 else m2) + s3
                moment = m4 = (c4 if c4 > m3 else m3) + s4
                if others:
                    passed = later = []
                    for clock, seconds in zip(clocks[g][4], others, strict=True):
                        moment = (clock if clock > moment else moment) + seconds
                        passed.append(moment)
                if moment < end or (moment == end and (free[g], g) < (free[at], at)):
                    end, at, after = moment, g, (m1, m2, m3, m4, later)
        if end <= deadline:
            clocks[at], free[at], ends[n], chosen[n] = after, end, end, at
    return Served(np.array(ends, dtype=float), np.array(chosen, dtype=np.intp))


def _first_four(times: Sequence[float]) -> tuple[tuple[float, float, float, float], Sequence[float]]:
    """Return the first four times, padded with zeros, and the remaining times."""
    a, b, c, d = [*times[:4], 0.0, 0.0, 0.0][:4]
    return (a, b, c, d), times[4:]


def _serve_side_by_side(runs: Sequence[RequestRun]) -> list[Served]:
    """Simulate R runs together: step n handles the n-th request of each."""
    lead, stages, first_rows = _stacked_tables(runs)
    clocks = [np.full((len(runs), lead.shape[1]), -np.inf) for _ in stages]
    found = [Served(np.empty(len(run.seconds)), np.empty(len(run.seconds), dtype=np.intp)) for run in runs]
    steps = max(1, REQUESTS_AT_ONCE // len(runs))
    for start in range(0, max(len(run.seconds) for run in runs), steps):
        part = slice(start, start + steps)
        ends, groups = _serve_steps(*_stacked_requests(runs, first_rows, len(lead) - 1, part), lead, stages, clocks)
        for r, served in enumerate(found):
            count = len(served.ends[part])
            served.ends[part], served.groups[part] = ends[:count, r], groups[:count, r]
    return found


def _serve_steps(
    seconds: Floats, rows: NDArray[np.intp], deadlines: Floats, lead: Floats, stages: Sequence[Floats], clocks: Sequence[Floats]
) -> tuple[Floats, NDArray[np.intp]]:
    """Simulate (steps, R) requests from the (R, G) clocks on, which move; return their ends and groups, as in `Served`."""
    steps, count = seconds.shape
    num_groups = lead.shape[1]
    passed = [np.empty((count, num_groups)) for _ in stages]
    flat = [(clock.reshape(-1), moment.reshape(-1)) for clock, moment in zip(clocks, passed, strict=True)]
    moment, taken = np.empty((count, num_groups)), np.empty((count, num_groups))
    ends, chosen = np.empty((steps, count)), np.empty((steps, count), dtype=np.intp)
    first = np.arange(count) * num_groups
    for n in range(steps):
        row, end = rows[n], ends[n]
        lead.take(row, axis=0, out=moment, mode="clip")
        moment += seconds[n][:, None]
        before = moment
        for clock, after, times in zip(clocks, passed, stages, strict=True):
            np.maximum(before, clock, out=after)
            times.take(row, axis=0, out=taken, mode="clip")
            after += taken
            before = after
        if num_groups > 1:
            np.minimum.reduce(before, axis=1, out=end)
            group = chosen[n]
            np.where(before == end[:, None], clocks[-1], np.inf).argmin(axis=1, out=group)
            group += first
        else:
            end[:], group = before[:, 0], first
        taking = group[end <= deadlines[n]]
        for clock_values, passed_values in flat:
            clock_values[taking] = passed_values[taking]
    is_served = ends <= deadlines
    ends[~is_served] = np.nan
    return ends, np.where(is_served, chosen - first if num_groups > 1 else 0, REFUSED)


def _stacked_tables(runs: Sequence[RequestRun]) -> tuple[Floats, list[Floats], list[int]]:
    """Return lead (rows, G), stages, each (rows, G), and for each run its first row.

    A row is a service of a run; the last one is served by no group, and pads the shorter runs.
    """
    tables = list({id(run.table): run.table for run in runs}.values())
    sizes = [len(table.lead) for table in tables]
    first_row = dict(zip(map(id, tables), np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    shape = sum(sizes) + 1, max(table.lead.shape[1] for table in tables) or 1
    lead, stages = np.full(shape, np.inf), [np.zeros(shape) for _ in range(max(len(table.stages) for table in tables))]
    for table in tables:
        part = slice(first_row[id(table)], first_row[id(table)] + len(table.lead)), slice(table.lead.shape[1])
        lead[part] = table.lead
        for k, times in enumerate(table.stages):
            stages[k][part] = times
    return lead, stages, [first_row[id(run.table)] for run in runs]


def _stacked_requests(
    runs: Sequence[RequestRun], first_rows: Sequence[int], no_service: int, part: slice
) -> tuple[Floats, NDArray[np.intp], Floats]:
    """Return seconds, rows of the tables and deadlines (steps, R) of a part of the requests of each run."""
    steps = max(len(run.seconds[part]) for run in runs)
    seconds, deadlines = np.zeros((steps, len(runs))), np.zeros((steps, len(runs)))
    rows = np.full((steps, len(runs)), no_service, dtype=np.intp)
    for r, (run, first_row) in enumerate(zip(runs, first_rows, strict=True)):
        count = len(run.seconds[part])
        seconds[:count, r], deadlines[:count, r] = run.seconds[part], run.deadlines[part]
        rows[:count, r] = run.services[part] + first_row
    return seconds, rows, deadlines


def busy_seconds(run: RequestRun, served: Served) -> Floats:
    """Return (G,) seconds of work that each group did, summed over its stages."""
    is_served = served.groups != REFUSED
    groups = served.groups[is_served]
    work = run.table.work[run.services[is_served], groups]
    return np.bincount(groups, work, run.table.work.shape[1]).astype(float, copy=False)
