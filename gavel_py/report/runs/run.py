"""One run as reports show it, whatever made it: what was asked, numbers, and what happened over time; to and from JSON.

`OverTimeCollector` collects what happens over time in few stretches of time however long it goes on; `StayCollector` collects which gang held
which GPUs, from when to when. `quantiles` keeps a bounded number of samples, and `document_of` and `run_from` convert runs to plain
data and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gavel_py.problem.arrays import Floats

Labels = Mapping[str, str | float | None]

MAX_SAMPLES = 1000
"""So many completion times are kept of a run; of more, so many quantiles at equal steps from the least to the largest."""


def quantiles(samples: Iterable[float], most: int = MAX_SAMPLES) -> Floats:
    """Return the samples, ascending; of more than `most`, the quantiles 0, 1 / (most - 1), ..., 1.

    >>> quantiles([3.0, 1.0]), quantiles(range(101), most=3)
    (array([1., 3.]), array([  0.,  50., 100.]))
    """
    values = np.sort(np.fromiter(samples, dtype=float))
    return values if len(values) <= most else np.asarray(np.quantile(values, np.linspace(0.0, 1.0, most)), dtype=float)


def list_of(values: Floats) -> list[float | None]:
    """Return an array as a list, with None where it is not a finite number."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def array_of(values: Sequence[float | None]) -> Floats:
    """Return what `list_of` was given; NaN where it has None."""
    if not isinstance(values, list) or any(value is not None and type(value) not in (int, float) for value in values):
        raise TypeError("a list of numbers is not one")
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def values_of(numbers: dict[str, float | None]) -> dict[str, float | None]:
    """Return numbers by name with None where they are not finite."""
    return {name: value if value is None or math.isfinite(value) else None for name, value in numbers.items()}


METRICS = {
    "mean_jct_seconds": "mean completion time of the finished jobs, from arrival to end",
    "median_jct_seconds": "their median completion time",
    "p99_jct_seconds": "the completion time that 99 % of them do not exceed",
    "makespan_seconds": "from the first arrival to the end of the last job",
    "mean_queueing_seconds": "mean time in the system without GPUs",
    "finish_time_fairness": "mean of ρ = completion time / that of the same trace under `isolated`",
    "utilization": "used part of the GPU-seconds that were not down, all types",
    "undelivered_share": "part of the promised GPU-seconds that the rounds did not deliver",
    "cost": "of all GPUs held, in the unit of their prices per hour",
    "finished": "number of jobs that finished",
    "unfinished": "number of measured jobs that did not: failed, cancelled, or still in the system",
    "ended_after_arrivals": "number of measured jobs that ended when no job of the trace was still to arrive",
    "late": "number of jobs that missed their deadline",
    "preemptions": "how often a job lost its GPUs before it was done",
    "solver_seconds": "time spent on allocations",
    "wall_seconds": "time that the run took",
    "cpu_seconds": "processor time that its process took meanwhile",
    "objective": "of a static solve: the value of the policy's objective, as proven",
    "gap": "of a static solve: bound less value, relative",
}
"""The numbers of a run by name, and what they are; a run may lack any of them, and have others."""


@dataclass(frozen=True, eq=False)
class OverTime:
    """What happened in each of T stretches of time.

    seconds: (T + 1,) their limits, on the clock of the trace; used: {type: (T,)} the share of its GPUs in use, in [0, 1];
    prices: {type: (T,)} what one more GPU would have added to the policy's objective, relative to the objective, NaN where unknown;
    active_jobs: (T,) jobs in the system; promised_gpu_seconds, delivered_gpu_seconds: (T,) by the allocation and the rounds.
    """

    seconds: Floats
    used: Mapping[str, Floats]
    prices: Mapping[str, Floats]
    active_jobs: Floats
    promised_gpu_seconds: Floats
    delivered_gpu_seconds: Floats


@dataclass(frozen=True, slots=True)
class Stay:
    """A gang on GPUs of one node from one moment to another, in seconds on the clock of the trace."""

    job_id: str
    job_type: str
    node: str
    accelerator: str
    gpus: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    labels: what was asked ("policy", "trace", "load" in jobs per hour, "cluster", "seed", "round_seconds", ...), None where it
    does not apply; metrics: numbers by name (`METRICS`), None where there is none; jct_seconds: of each finished job, ascending;
    fairness: ρ of each job, ascending, empty where it is not known; over_time: None for a static solve; stays: for one run, where
    each gang was, empty where that was not kept; shares: {job type: {accelerator type: mean share of the time of its jobs}}.
    """

    labels: Labels
    metrics: Mapping[str, float | None]
    jct_seconds: Floats = field(default_factory=lambda: np.zeros(0))
    fairness: Floats = field(default_factory=lambda: np.zeros(0))
    over_time: OverTime | None = None
    stays: Sequence[Stay] = ()
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What `run_from` raises for a document that is no run."""

KINDS = {"str": (str,), "int": (int,), "float": (int, float)}

STAY = {field.name: KINDS[str(field.type)] for field in fields(Stay)}

BY_TYPE = ("used", "prices")

OVER_ALL = ("seconds", "active_jobs", "promised_gpu_seconds", "delivered_gpu_seconds")


def document_of(run: Run) -> dict[str, Any]:
    """Return the run as plain data; a number that is not finite becomes None."""
    return {
        "labels": dict(run.labels),
        "metrics": values_of(dict(run.metrics)),
        "jct_seconds": list_of(run.jct_seconds),
        "fairness": list_of(run.fairness),
        "over_time": None if run.over_time is None else _over_time_document(run.over_time),
        "stays": [[getattr(stay, name) for name in STAY] for stay in run.stays],
        "shares": {job_type: dict(shares) for job_type, shares in run.shares.items()},
    }


def run_from(document: Mapping[str, Any]) -> Run:
    """Return what `document_of` described; raises one of `DAMAGED` for what is no run."""
    over_time = document["over_time"]
    return Run(
        labels=labels_from(document["labels"]),
        metrics=_metrics(document["metrics"]),
        jct_seconds=array_of(document["jct_seconds"]),
        fairness=array_of(document["fairness"]),
        over_time=None if over_time is None else _over_time(over_time),
        stays=tuple(map(_stay, document["stays"])),
        shares={job_type: {name: float(part) for name, part in each.items()} for job_type, each in document["shares"].items()},
    )


def _over_time_document(over_time: OverTime) -> dict[str, Any]:
    by_type = {part: {name: list_of(curve) for name, curve in getattr(over_time, part).items()} for part in BY_TYPE}
    return by_type | {part: list_of(getattr(over_time, part)) for part in OVER_ALL}


def _over_time(document: Mapping[str, Any]) -> OverTime:
    by_type = {part: {name: array_of(curve) for name, curve in document[part].items()} for part in BY_TYPE}
    over_all = {part: array_of(document[part]) for part in OVER_ALL}
    stretches = len(over_all["seconds"]) - 1
    curves = [*(each for part in by_type.values() for each in part.values()), *(over_all[name] for name in OVER_ALL[1:])]
    if stretches < 0 or any(len(curve) != stretches for curve in curves) or not np.isfinite(over_all["seconds"]).all():
        raise ValueError(
            f"curves over time must have {max(0, stretches)} stretches each, one fewer than there are limits"
        )
    return OverTime(
        seconds=over_all["seconds"],
        used=by_type["used"],
        prices=by_type["prices"],
        active_jobs=over_all["active_jobs"],
        promised_gpu_seconds=over_all["promised_gpu_seconds"],
        delivered_gpu_seconds=over_all["delivered_gpu_seconds"],
    )


def _stay(values: Sequence[Any]) -> Stay:
    for (name, kinds), value in zip(STAY.items(), values, strict=True):
        if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
            raise TypeError(f"{name!r} of a stay is {value!r}")
    return Stay(*values)


def labels_from(labels: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Return the labels of a run, checked; raises one of `DAMAGED` for what are none."""
    return dict(_checked(each, (str, int, float)) for each in labels.items())


def _metrics(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    return dict(_checked(each, (int, float)) for each in metrics.items())


def _checked(item: tuple[object, Any], kinds: tuple[type, ...]) -> tuple[str, Any]:
    name, value = item
    if not isinstance(name, str) or not (value is None or type(value) in kinds):
        raise TypeError(f"{name!r} is {value!r}")
    return name, value


MAX_INTERVALS = 200


class OverTimeCollector:
    """Collects an `OverTime` from one span of time after the other; each stretch is a power of two of spans, the last one fewer.

    start_seconds: where the first span begins; gpus: (K,) of each type. With more than 2 · `MAX_INTERVALS` stretches, they are put
    together two by two, so that memory does not grow with time; at the end there are at most `MAX_INTERVALS`.
    """

    def __init__(self, start_seconds: float, types: Sequence[str], gpus: Floats) -> None:
        self._types, self._gpus = tuple(types), gpus
        self._limits = [start_seconds]
        self._sums: list[Floats] = []
        self._in_last = 0
        self._per_stretch = 1

    @property
    def end_seconds(self) -> float:
        """Where the last span ends."""
        return self._limits[-1]

    def add(self, end_seconds: float, used: Floats, prices: Floats, active: float, promised: float, delivered: float) -> None:
        """Add the span from the end of the last one to this time.

        used: (K,) GPU-seconds of each type in which a gang held them; prices: (K,) NaN where unknown; active: jobs in the system;
        promised, delivered: GPUs.
        """
        seconds = end_seconds - self._limits[-1]
        if seconds <= 0:
            return
        known = ~np.isnan(prices)
        of_all = [seconds, active * seconds, promised * seconds, delivered * seconds]
        sums = np.concatenate([of_all, used, np.where(known, prices, 0.0) * seconds, known * seconds])
        if self._in_last in (0, self._per_stretch):
            self._begin(end_seconds, sums)
        else:
            self._sums[-1] += sums
            self._limits[-1] = end_seconds
            self._in_last += 1

    def over_time(self) -> OverTime:
        """Return what has been added so far."""
        limits, sums = self._limits, self._sums
        while len(sums) > MAX_INTERVALS:
            limits, sums = _halved(limits, sums)
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

    def _begin(self, end_seconds: float, sums: Floats) -> None:
        """Begin a stretch."""
        if len(self._sums) == 2 * MAX_INTERVALS:
            self._limits, self._sums = _halved(self._limits, self._sums)
            self._per_stretch *= 2
        self._sums.append(sums)
        self._limits.append(end_seconds)
        self._in_last = 1


def _halved(limits: list[float], sums: list[Floats]) -> tuple[list[float], list[Floats]]:
    """Put stretches together two by two; an odd one stays alone."""
    pairs = [sum(sums[at + 1 : at + 2], sums[at].copy()) for at in range(0, len(sums), 2)]
    ends = [limits[min(at + 2, len(sums))] for at in range(0, len(sums), 2)]
    return [limits[0], *ends], pairs


class StayCollector:
    """Collects the shares of a `Run`, and its stays where they are asked for.

    A job is told to `hold` GPUs, and to be done with them by `release`; with `leave` it is forgotten, and counts for its type.
    """

    def __init__(self, accelerators: Sequence[str], *, stays: bool) -> None:
        self._accelerators, self._with_stays = tuple(accelerators), stays
        self._now: dict[str, tuple[str, Mapping[str, int], float]] = {}
        self._past: dict[str, list[tuple[str, Mapping[str, int], float, float]]] = {}
        self._seconds: dict[str, float] = {}
        self._by_type: dict[str, dict[str, float]] = {}
        self._stays: list[Stay] = []

    @property
    def now(self) -> Set[str]:
        """The jobs that hold GPUs."""
        return self._now.keys()

    def hold(self, job_id: str, accelerator: str, gpus: Mapping[str, int], seconds: float) -> None:
        """Let a job hold GPUs of one type from this time on, instead of those that it has; gpus: {node: number of GPUs}."""
        self.release(job_id, seconds)
        self._now[job_id] = accelerator, gpus, seconds

    def release(self, job_id: str, seconds: float) -> None:
        """Let a job hold nothing from this time on."""
        if job_id in self._now:
            accelerator, gpus, start = self._now.pop(job_id)
            self._past.setdefault(job_id, []).append((accelerator, gpus, start, seconds))

    def leave(self, job_id: str, job_type: str, seconds_in_system: float, seconds: float, *, measured: bool = True) -> None:
        """Let a job leave at this time, or count as if it did; measured: whether it counts for the shares of its type."""
        self.release(job_id, seconds)
        if measured:
            sums = self._by_type.setdefault(job_type, dict.fromkeys(self._accelerators, 0.0))
            self._seconds[job_type] = self._seconds.get(job_type, 0.0) + seconds_in_system
        for accelerator, gpus, start, end in self._past.pop(job_id, ()):
            if measured:
                sums[accelerator] += end - start
            if self._with_stays and end > start:
                self._stays += [Stay(job_id, job_type, node, accelerator, count, start, end) for node, count in gpus.items()]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return {job type: {accelerator: part of the time in the system}} over the jobs that have left."""
        return {
            job_type: {name: held / self._seconds[job_type] if self._seconds[job_type] > 0 else 0.0 for name, held in sums.items()}
            for job_type, sums in sorted(self._by_type.items())
        }

    def stays(self) -> Iterable[Stay]:
        """Return the stays of the jobs that have left, by their beginning."""
        return sorted(self._stays, key=lambda stay: (stay.start_seconds, stay.node, stay.job_id))
