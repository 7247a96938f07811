"""One run as plain data, whether from a sweep, a simulation or a real cluster, with its JSON form.

`OverTimeCollector` and `StayCollector` gather time series and GPU assignments while a run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.accounting import TenantShare
from gavel_py.io.tabular import Tabular, columns_of
from gavel_py.problem.arrays import Floats

Labels = Mapping[str, str | float | None]

MAX_SAMPLES = 1000
"""Completion times kept per run; a longer list is reduced to this many quantiles."""


def quantiles(samples: Iterable[float], limit: int = MAX_SAMPLES) -> Floats:
    """Return the sorted samples, or their quantiles 0, 1 / (limit - 1), ..., 1 if there are more than `limit`.

    >>> quantiles([3.0, 1.0]), quantiles(range(101), limit=3)
    (array([1., 3.]), array([  0.,  50., 100.]))
    """
    values = np.sort(np.fromiter(samples, dtype=float))
    return values if len(values) <= limit else np.asarray(np.quantile(values, np.linspace(0.0, 1.0, limit)), dtype=float)


@dataclass(frozen=True, eq=False)
class OverTime:
    """Time series of a run over T intervals.

    Attributes:
        seconds: (T + 1,) limits of the intervals, on the clock of the trace.
        used: {accelerator type: (T,) share of its GPUs in use, in [0, 1]}.
        prices: {accelerator type: (T,) relative gain in the policy's objective from one more GPU; NaN if unknown}.
        active_jobs: (T,) mean number of jobs in the system.
        promised_gpu_seconds: (T,) GPU-seconds promised by the allocations.
        delivered_gpu_seconds: (T,) GPU-seconds delivered by the rounds.
    """

    seconds: Floats
    used: Mapping[str, Floats]
    prices: Mapping[str, Floats]
    active_jobs: Floats
    promised_gpu_seconds: Floats
    delivered_gpu_seconds: Floats


@dataclass(frozen=True, slots=True)
class Stay:
    """An interval in which a gang held `gpus` GPUs of one node; times are seconds on the clock of the trace."""

    job_id: str
    job_type: str
    node: str
    accelerator: str
    gpus: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, eq=False)
class Run(Tabular):
    """The record of one simulation, static solve or real cluster, from which reports are made.

    Attributes:
        labels: Inputs by name ("policy", "trace", "load" in jobs per hour, "cluster", "seed", "round_seconds", ...); None if a
            label does not apply.
        metrics: Results by name (`METRICS`); None if a value is not available.
        jct_seconds: Completion times of the finished jobs, ascending.
        fairness: Finish-time fairness ρ of each job, ascending; empty if unknown.
        over_time: Time series; None for a static solve.
        stays: The GPUs held by each gang; empty if they were not recorded.
        shares: {job type: {accelerator type: part of the time in the system for which its jobs held GPUs}}.
        tenants: The promised and actual share of each tenant, parents first; empty if no job has a tenant.
        workflows: {job_id: workflow} of the jobs in `stays` that belong to one.
    """

    labels: Labels
    metrics: Mapping[str, float | None]
    jct_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    fairness: Floats = field(default_factory=lambda: np.zeros(0))
    over_time: OverTime | None = None
    stays: Sequence[Stay] = ()
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tenants: Sequence[TenantShare] = ()
    workflows: Mapping[str, str] = field(default_factory=dict)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return a table of one row, labels and metrics; the list that `read_runs` returns has one of all runs."""
        return Runs([self]).to_columns()


class Runs(list[Run], Tabular):
    """A list of runs with a table: a row for each run, its labels and its metrics."""

    def to_columns(self) -> dict[str, NDArray[Any]]:
        return columns_of([{**run.labels, **run.metrics} for run in self])

    def _title(self) -> str:
        return f"{len(self)} runs"


STAY_TYPES = {each.name: {"str": (str,), "int": (int,), "float": (int, float)}[str(each.type)] for each in fields(Stay)}
TYPE_SERIES = ("used", "prices")
TOTAL_SERIES = ("active_jobs", "promised_gpu_seconds", "delivered_gpu_seconds")


def document_of(run: Run) -> dict[str, Any]:
    """Return the run as plain data; numbers that are not finite become None."""
    return {
        "labels": dict(run.labels),
        "metrics": {name: value if value is None or math.isfinite(value) else None for name, value in run.metrics.items()},
        "jct_seconds": _list(run.jct_seconds),
        "fairness": _list(run.fairness),
        "over_time": None if run.over_time is None else _over_time_document(run.over_time),
        "stays": [[getattr(stay, name) for name in STAY_TYPES] for stay in run.stays],
        "shares": {job_type: dict(shares) for job_type, shares in run.shares.items()},
        **({"tenants": [each.to_dict() for each in run.tenants]} if run.tenants else {}),
        **({"workflows": dict(run.workflows)} if run.workflows else {}),
    }


def run_from(document: Mapping[str, Any]) -> Run:
    """Return the run that `document_of` converted to plain data. Raises one of `DAMAGED` for an invalid document."""
    over_time = document["over_time"]
    return Run(
        labels=labels_from(document["labels"]),
        metrics=dict(_checked(item, (int, float)) for item in document["metrics"].items()),
        jct_seconds=_array(document["jct_seconds"]),
        fairness=_array(document["fairness"]),
        over_time=None if over_time is None else _over_time(over_time),
        stays=tuple(map(_stay, document["stays"])),
        shares={job_type: {name: float(part) for name, part in each.items()} for job_type, each in document["shares"].items()},
        tenants=tuple(map(_tenant, document.get("tenants", ()))),
        workflows=dict(_checked(item, (str,)) for item in document.get("workflows", {}).items()),
    )


def labels_from(labels: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Return the labels of a run after checking names and values. Raises one of `DAMAGED`."""
    return dict(_checked(item, (str, int, float)) for item in labels.items())


def _checked(item: tuple[object, Any], types: tuple[type, ...]) -> tuple[str, Any]:
    name, value = item
    if not isinstance(name, str) or not (value is None or type(value) in types):
        raise TypeError(f"{name!r} is {value!r}")
    return name, value


def _tenant(document: Mapping[str, Any]) -> TenantShare:
    found = TenantShare(**document)
    numbers = [value for name, value in document.items() if name not in ("tenant", "parent", "gpus", "gpu_shares")]
    numbers += [*found.gpus.values(), *found.gpu_shares.values()]
    if not isinstance(found.tenant, str) or any(value is not None and type(value) not in (int, float) for value in numbers):
        raise TypeError(f"the share of tenant {found.tenant!r} holds something other than numbers")
    return found


def _list(values: Floats) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _array(values: Sequence[float | None]) -> Floats:
    if not isinstance(values, list) or any(value is not None and type(value) not in (int, float) for value in values):
        raise TypeError("a value that must be a list of numbers is something else")
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _over_time_document(over_time: OverTime) -> dict[str, Any]:
    by_type = {part: {name: _list(series) for name, series in getattr(over_time, part).items()} for part in TYPE_SERIES}
    return by_type | {part: _list(getattr(over_time, part)) for part in ("seconds", *TOTAL_SERIES)}


def _over_time(document: Mapping[str, Any]) -> OverTime:
    seconds = _array(document["seconds"])
    by_type: dict[str, Any] = {part: {name: _array(series) for name, series in document[part].items()} for part in TYPE_SERIES}
    totals: dict[str, Any] = {part: _array(document[part]) for part in TOTAL_SERIES}
    all_series = [*(series for part in by_type.values() for series in part.values()), *totals.values()]
    count = len(seconds) - 1
    if count < 0 or any(len(series) != count for series in all_series) or not np.isfinite(seconds).all():
        raise ValueError(f"curves over time must have {max(0, count)} intervals each, one fewer than there are limits")
    return OverTime(seconds, **by_type, **totals)


def _stay(values: Sequence[Any]) -> Stay:
    for (name, types), value in zip(STAY_TYPES.items(), values, strict=True):
        if type(value) not in types or (isinstance(value, float) and not math.isfinite(value)):
            raise TypeError(f"{name!r} of a stay is {value!r}")
    return Stay(*values)


MAX_INTERVALS = 200


class OverTimeCollector:
    """Accumulates an `OverTime` from consecutive time spans, such as rounds, in bounded memory.

    Each interval holds 2^n spans, the last one possibly fewer. Above 2 · `MAX_INTERVALS` intervals, neighbours are merged in pairs;
    the result has at most `MAX_INTERVALS`. types, gpus: K accelerator types, and the GPUs of each.
    """

    def __init__(self, start_seconds: float, types: Sequence[str], gpus: Floats) -> None:
        self._types, self._gpus = tuple(types), gpus
        self._limits = [start_seconds]
        self._sums: list[Floats] = []
        self._spans_in_last = 0
        self._spans_per_interval = 1

    @property
    def end_seconds(self) -> float:
        """End of the last span."""
        return self._limits[-1]

    def add(self, end_seconds: float, used: Floats, prices: Floats, active: float, promised: float, delivered: float) -> None:
        """Add a span that begins at the end of the previous one.

        used: (K,) GPU-seconds of each type held by gangs; prices: (K,) price of one more GPU of each type, NaN if unknown; active:
        jobs in the system; promised, delivered: GPUs that the allocation promises and that the round delivers.
        """
        seconds = end_seconds - self._limits[-1]
        if seconds <= 0:
            return
        known = ~np.isnan(prices)
        totals = [seconds, active * seconds, promised * seconds, delivered * seconds]
        sums = np.concatenate([totals, used, np.where(known, prices, 0.0) * seconds, known * seconds])
        if self._spans_in_last in (0, self._spans_per_interval):
            if len(self._sums) == 2 * MAX_INTERVALS:
                self._limits, self._sums = _merged_in_pairs(self._limits, self._sums)
                self._spans_per_interval *= 2
            self._sums.append(sums)
            self._limits.append(end_seconds)
            self._spans_in_last = 1
        else:
            self._sums[-1] += sums
            self._limits[-1] = end_seconds
            self._spans_in_last += 1

    def over_time(self) -> OverTime:
        """Return the time series of all spans added so far."""
        limits, sums = self._limits, self._sums
        while len(sums) > MAX_INTERVALS:
            limits, sums = _merged_in_pairs(limits, sums)
        k = len(self._types)
        table = np.array(sums).reshape(len(sums), 4 + 3 * k)
        seconds, active, promised, delivered = table[:, :4].T
        used, prices, known = (table[:, 4 + k * part : 4 + k * (part + 1)] for part in range(3))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self._gpus > 0, used / (self._gpus * seconds[:, None]), 0.0)
            means = np.where(known > 0, prices / known, np.nan)
        return OverTime(
            seconds=np.array(limits),
            used=dict(zip(self._types, np.clip(shares, 0.0, 1.0).T, strict=True)),
            prices=dict(zip(self._types, means.T, strict=True)),
            active_jobs=active / seconds,
            promised_gpu_seconds=promised,
            delivered_gpu_seconds=delivered,
        )


def _merged_in_pairs(limits: list[float], sums: list[Floats]) -> tuple[list[float], list[Floats]]:
    """Merge neighbouring intervals in pairs; with an odd count, the last one is left unpaired."""
    pairs = [sum(sums[at + 1 : at + 2], sums[at].copy()) for at in range(0, len(sums), 2)]
    ends = [limits[min(at + 2, len(sums))] for at in range(0, len(sums), 2)]
    return [limits[0], *ends], pairs


class StayCollector:
    """Collects the shares of a `Run`, and its stays if `stays` is true.

    Calls per job: `hold` and `release` for each stay, `leave` at the end, which adds the job to the shares of its type.
    """

    def __init__(self, accelerators: Sequence[str], *, stays: bool) -> None:
        self._accelerators, self._with_stays = tuple(accelerators), stays
        self._current: dict[str, tuple[str, Mapping[str, int], float]] = {}
        self._past: dict[str, list[tuple[str, Mapping[str, int], float, float]]] = {}
        self._seconds: dict[str, float] = {}
        self._by_type: dict[str, dict[str, float]] = {}
        self._stays: list[Stay] = []

    @property
    def running(self) -> Set[str]:
        """Jobs that hold GPUs."""
        return self._current.keys()

    def hold(self, job_id: str, accelerator: str, gpus: Mapping[str, int], seconds: float) -> None:
        """Begin a stay of a job on {node: GPUs} of one type, and end its current stay if it has one."""
        self.release(job_id, seconds)
        self._current[job_id] = accelerator, gpus, seconds

    def release(self, job_id: str, seconds: float) -> None:
        """End the current stay of a job, if it has one."""
        if job_id in self._current:
            accelerator, gpus, start = self._current.pop(job_id)
            self._past.setdefault(job_id, []).append((accelerator, gpus, start, seconds))

    def leave(self, job_id: str, job_type: str, seconds_in_system: float, seconds: float, *, measured: bool = True) -> None:
        """Close the record of a job that leaves or is still in the system at the end; only measured jobs count in the shares."""
        self.release(job_id, seconds)
        if measured:
            sums = self._by_type.setdefault(job_type, dict.fromkeys(self._accelerators, 0.0))
            self._seconds[job_type] = self._seconds.get(job_type, 0.0) + seconds_in_system
        for accelerator, gpus, start, end in self._past.pop(job_id, ()):
            if measured:
                sums[accelerator] = sums.get(accelerator, 0.0) + end - start
            if self._with_stays and end > start:
                self._stays += [Stay(job_id, job_type, node, accelerator, count, start, end) for node, count in gpus.items()]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return {job type: {accelerator: share of the time in the system}} over all jobs closed by `leave`.

        It is wall-clock time, independent of the number of GPUs of a job.
        """
        held = {name for sums in self._by_type.values() for name in sums}
        names = [*self._accelerators, *sorted(held.difference(self._accelerators))]
        return {
            job_type: {
                name: sums.get(name, 0.0) / self._seconds[job_type] if self._seconds[job_type] > 0 else 0.0 for name in names
            }
            for job_type, sums in sorted(self._by_type.items())
        }

    def stays(self) -> Iterable[Stay]:
        """Return the stays of all jobs closed by `leave`, sorted by start."""
        return sorted(self._stays, key=lambda stay: (stay.start_seconds, stay.node, stay.job_id))
