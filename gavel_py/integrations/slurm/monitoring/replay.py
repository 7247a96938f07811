"""Conversion of a driver's log to a `Run`, and comparison of the two schedules in the log of a shadow."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gavel_py.errors import InputError, faults_from, refuse
from gavel_py.integrations.slurm.monitoring.backfill import BackfilledJob, backfilled
from gavel_py.integrations.slurm.monitoring.event_log import ACTUAL, LOG, STAY_EVENTS
from gavel_py.io import reading
from gavel_py.report.metrics import completions_of
from gavel_py.report.runs import OverTime, Run, Stay
from gavel_py.report.runs.run import StayCollector

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats


ROUND_FIELDS = (
    *("seconds", "gpus", "down", "active", "promised_gpu_seconds", "delivered_gpu_seconds"),
    *("owed_gpu_seconds", "solver_seconds", "prices"),
)
"""Fields of a round's log entry that a replay uses."""

UNPROMISED = {"promised_gpu_seconds": 0.0, "owed_gpu_seconds": 0.0, "solver_seconds": 0.0, "prices": dict[str, float]()}
"""Fields of a round in Slurm's schedule, which promises nothing."""

ROTATED = re.compile(r"([.-]\d+)?")
"""Suffixes that log rotation adds to the name of a log. Compressed logs are not read."""

ARRIVAL = ("job_type", "gpus", "arrival_seconds")


@dataclass
class LoggedJob:
    """A job in a log. While it is in the system, `outcome` is "" and `left_seconds` is None."""

    job_type: str
    gpus: int
    arrival_seconds: float
    tenant: str = ""
    outcome: str = ""
    left_seconds: float | None = None
    running_seconds: float = 0.0
    preemptions: int = 0


@dataclass
class Replay:
    """The contents of a log.

    start: the entry of the driver's latest start; rounds: the fields of each round; totals: the entries with the GPU-seconds
    promised and owed until then; end_seconds: time of the last entry; works: {job: its entry when it had ended in Slurm}, assumed:
    the costs of starts, and nodes: [[GPU type, GPUs, how many of these nodes]], in the log of a shadow; is_actual: whether this is
    Slurm's schedule in the log of a shadow.
    """

    is_actual: bool = False
    is_shadow: bool = False
    works: dict[str, dict[str, Any]] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    nodes: list[list[Any]] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, LoggedJob] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)
    end_seconds: float = 0.0
    collector: StayCollector = field(default_factory=lambda: StayCollector((), stays=True))

    @classmethod
    def of(cls, path: Path, *, is_actual: bool = False) -> Replay:
        """Read a log, or all logs in a directory; incomplete lines from killed drivers are skipped. Raises `InputError`."""
        replay = cls(is_actual)
        for where, entry in (each for log in _logs(path) for each in _entries(log)):
            with faults_from(where, "is not from the log of a driver", KeyError, TypeError, AttributeError, named=True):
                replay.end_seconds = max(replay.end_seconds, entry["seconds"])
                replay._apply(entry)
        for job_id, job in replay.jobs.items():
            left = replay.end_seconds if job.left_seconds is None else job.left_seconds
            replay.collector.leave(job_id, job.job_type, max(0.0, left - job.arrival_seconds), replay.end_seconds)
        refuse(str(path), (not replay.rounds, "", f"contains no round; it must be a {LOG} written by gavel slurm run"))
        return replay

    def _apply(self, entry: dict[str, Any]) -> None:
        event: str = entry["event"]
        self.is_shadow = self.is_shadow or event == "shadow" or event.startswith(ACTUAL)
        if event.removeprefix(ACTUAL) in STAY_EVENTS:
            if event.startswith(ACTUAL) is self.is_actual:
                self._apply_stay(event.removeprefix(ACTUAL), entry)
        elif event == "begun":
            self.start = entry
        elif event == "work":
            self.works[entry["job"]] = entry
        elif event == "assumed":
            self.assumed = entry
        elif event == "nodes":
            self.nodes = entry["nodes"]
        elif event == "round":
            self.rounds.append({name: entry[name] for name in ROUND_FIELDS} | (UNPROMISED if self.is_actual else {}))
            self.totals.append(self.rounds[-1])
        elif event == "ended" and "promised_gpu_seconds" in entry:
            self.totals.append(entry | (UNPROMISED if self.is_actual else {}))
        elif event == "arrived":
            self.jobs.setdefault(entry["job"], LoggedJob(**{name: entry[name] for name in ARRIVAL}, tenant=entry.get("tenant", "")))

    def _apply_stay(self, event: str, entry: dict[str, Any]) -> None:
        if event == "started":
            self.collector.hold(entry["job"], entry["accelerator"], entry["nodes"], entry["seconds"])
        elif event == "stopped":
            self.collector.release(entry["job"], entry["seconds"])
            if entry["preempted"] and entry["job"] in self.jobs:
                self.jobs[entry["job"]].preemptions += 1
        elif entry["job"] in self.jobs:
            job = self.jobs[entry["job"]]
            job.outcome, job.left_seconds = entry["outcome"], entry["seconds"]
            job.running_seconds = entry["running_seconds"]

    @property
    def finished(self) -> dict[str, LoggedJob]:
        """The jobs that have finished."""
        return {i: job for i, job in self.jobs.items() if job.outcome == "finished" and job.left_seconds is not None}


def _logs(path: Path) -> list[Path]:
    """Return the log itself, or the logs in a directory, oldest first, including rotated ones (log.jsonl.1, log.jsonl-20261101)."""
    if not path.is_dir():
        return [path]
    logs = [each for each in path.glob(f"{LOG}*") if ROTATED.fullmatch(each.name.removeprefix(LOG)) and each.stat().st_size]
    return sorted(logs, key=_begin) or [path / LOG]


def _begin(log: Path) -> float:
    entry = next((entry for _, entry in _entries(log)), None)
    seconds = entry.get("seconds") if isinstance(entry, dict) else None
    return seconds if isinstance(seconds, int | float) else 0.0


ENTRY = '{"event":'
"""How each entry begins."""


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, entry) of each line, without entries that a full disk or the end of a killed driver has left incomplete."""
    numbered = list(reading.numbered_lines(path))
    for place, (number, text) in enumerate(numbered):
        where = f"{path}, line {number}"
        try:
            yield where, reading.parse_json(path, text, number)
        except InputError:
            if place + 1 < len(numbered) and not (text.startswith(ENTRY) or ENTRY.startswith(text)):
                raise


def slurm_run(path: str | Path) -> Run:
    """Return the run in the log of a driver.

    Jobs that have not finished, or whose end was not observed, have no completion time.

    Args:
        path: The log.jsonl of a driver, or the directory of its state, for that log and all rotated logs there.

    Returns:
        The run; its times are seconds since the first arrival.

    Raises:
        InputError: The file is no log of a driver.
    """
    replay = Replay.of(Path(path))
    return _run_of(replay, replay.finished.keys())


def _run_of(replay: Replay, counted: Collection[str]) -> Run:
    """Return the run in a log; counted: the finished jobs whose completion times count."""
    jobs, rounds = replay.jobs.values(), replay.rounds
    origin = min((job.arrival_seconds for job in jobs), default=rounds[0]["seconds"])
    stays = list(replay.collector.stays())
    limits = np.maximum.accumulate(np.array([*(entry["seconds"] for entry in rounds), replay.end_seconds]))
    finished = [job for job_id, job in replay.finished.items() if job_id in counted]
    jcts = np.sort(np.array([float(job.left_seconds or 0.0) - job.arrival_seconds for job in finished]))
    return Run(
        labels={
            "policy": "Slurm" if replay.is_actual else replay.start.get("policy"),
            "cluster": replay.start.get("partition"),
            "round_seconds": replay.start.get("round_seconds"),
        },
        metrics=_metrics(replay, finished, jcts, origin, stays),
        jct_seconds=jcts,
        over_time=replace(_over_time(replay, stays, limits), seconds=limits - origin),
        stays=[replace(stay, start_seconds=stay.start_seconds - origin, end_seconds=stay.end_seconds - origin) for stay in stays],
        shares=replay.collector.shares(),
    )


def _metrics(
    replay: Replay, finished: Sequence[LoggedJob], jcts: Floats, origin: float, stays: Sequence[Stay]
) -> dict[str, float | None]:
    ended = [job.left_seconds for job in (finished if replay.is_shadow else replay.jobs.values()) if job.left_seconds is not None]
    latest, nothing = replay.totals[-1], None if replay.is_actual else 0.0
    return {
        **completions_of(
            jcts,
            max(ended) - origin if ended else None,
            np.array([max(0.0, float(job.left_seconds or 0.0) - job.arrival_seconds - job.running_seconds) for job in finished]),
        ),
        "utilization": _utilization(replay, stays),
        "undelivered_share": latest["owed_gpu_seconds"] / latest["promised_gpu_seconds"]
        if latest["promised_gpu_seconds"]
        else nothing,
        "delivered_gpu_seconds": sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in stays),
        "finished": float(len(finished)),
        "preemptions": float(sum(job.preemptions for job in replay.jobs.values())),
        "solver_seconds": float(sum(entry["solver_seconds"] for entry in replay.rounds)),
        "wall_seconds": replay.end_seconds - replay.rounds[0]["seconds"],
    }


def _utilization(replay: Replay, stays: Sequence[Stay]) -> float | None:
    """Return used over available GPU-seconds from the first round to the end of the log; GPUs of down nodes do not count."""
    begin = replay.rounds[0]["seconds"]
    ends = [*(entry["seconds"] for entry in replay.rounds[1:]), replay.end_seconds]
    rounds = zip(replay.rounds, ends, strict=True)
    available = sum((sum(e["gpus"].values()) - sum(e["down"].values())) * (end - e["seconds"]) for e, end in rounds)
    used = sum(stay.gpus * max(0.0, stay.end_seconds - max(begin, stay.start_seconds)) for stay in stays)
    return used / available if available > 0 else None


def _over_time(replay: Replay, stays: Sequence[Stay], limits: Floats) -> OverTime:
    """Return the time series of the rounds. limits: (T + 1,) their starts, and the end of the log."""
    rounds, lengths = replay.rounds, np.maximum(np.diff(limits), 1e-9)
    gpus: Mapping[str, float] = rounds[-1]["gpus"]
    used = {name: np.zeros(len(lengths)) for name in gpus}
    delivered = np.zeros(len(lengths))
    for stay in stays:
        overlap = np.minimum(stay.end_seconds, limits[1:]) - np.maximum(stay.start_seconds, limits[:-1])
        held = np.maximum(0.0, overlap) * stay.gpus
        delivered += held
        if stay.accelerator in used:
            used[stay.accelerator] += held
    return OverTime(
        seconds=limits,
        used={name: np.minimum(1.0, used[name] / lengths / max(gpus[name], 1.0)) for name in gpus},
        prices={name: np.array([entry["prices"].get(name, np.nan) for entry in rounds]) for name in gpus},
        active_jobs=_active(replay),
        promised_gpu_seconds=_promised(replay, limits),
        delivered_gpu_seconds=delivered,
    )


def _active(replay: Replay) -> Floats:
    """Return (T,) the jobs in the system at the start of each round."""
    if not replay.is_actual:
        return np.array([float(entry["active"]) for entry in replay.rounds])
    seconds = np.array([entry["seconds"] for entry in replay.rounds])
    jobs = replay.jobs.values()
    arrived = np.searchsorted(np.sort([job.arrival_seconds for job in jobs]), seconds, side="right")
    left = np.searchsorted(np.sort([job.left_seconds for job in jobs if job.left_seconds is not None]), seconds, side="right")
    return (arrived - left).astype(float)


def _promised(replay: Replay, limits: Floats) -> Floats:
    """Return (T,) the GPU-seconds promised in each round, from running totals that restart when the cluster changes."""
    seconds = [entry["seconds"] for entry in replay.totals]
    increments = np.maximum(0.0, np.diff([float(entry["promised_gpu_seconds"]) for entry in replay.totals]))
    at = np.clip(np.searchsorted(limits, seconds[:-1], side="right") - 1, 0, len(limits) - 2)
    return np.bincount(at, weights=increments, minlength=len(limits) - 1).astype(float)


class TenantFigures(NamedTuple):
    """One tenant under Slurm and in the shadow: number of jobs finished in both, their mean completion times, and GPU-seconds."""

    jobs: int
    slurm_jct_seconds: float | None
    shadow_jct_seconds: float | None
    slurm_gpu_seconds: float
    shadow_gpu_seconds: float


@dataclass(frozen=True)
class SlurmComparison:
    """Slurm's schedule and that of a shadow.

    In both runs, completion times and the makespan cover the jobs that have finished in both; GPUs in use cover all jobs.

    Attributes:
        slurm: What Slurm did.
        shadow: What the driver would have done.
        both: Number of jobs that have finished in both.
        only_slurm: Number of jobs that have finished in Slurm only.
        only_shadow: Number of jobs that have finished in the shadow only.
        tenants: {tenant: its figures}, with the names of `TenantFigures`.
        slowness: Median over jobs of the work done in Slurm, at the speeds of the profile, divided by the steps that the job
            specifies; None if no job specifies any. Above 1, the shadow is too fast by this factor for jobs that it ends by their
            steps.
        change: Relative change of the mean completion time, and half the width of its 95 % confidence interval, from batches of
            jobs in the order of their arrival; None for too few jobs.
        assumed: What the shadow assumed of starts, in seconds, and where the values come from.
        knowing: {metric: value} of these jobs by a model of Slurm's backfill, if users left out the GPU types on which their jobs
            are more than `knowing_factor` times as slow as on their fastest; None for logs of earlier versions.
    """

    knowing_factor: ClassVar[float] = 2.5

    slurm: Run
    shadow: Run
    both: int
    only_slurm: int
    only_shadow: int
    tenants: Mapping[str, TenantFigures]
    slowness: float | None
    change: tuple[float, float] | None
    assumed: Mapping[str, Any]
    knowing: Mapping[str, float | None] | None


BATCHES, STUDENT = 10, 2.262
"""Number of batches, and the 97.5 % quantile of Student's distribution with one degree of freedom less."""


def slurm_comparison(path: str | Path) -> SlurmComparison | None:
    """Return what Slurm did and what a shadow would have done, or None if the log is not from a shadow.

    Args:
        path: The log.jsonl of `gavel slurm run --shadow`, or the directory of its state, as for `slurm_run`.

    Returns:
        Both runs, with times in seconds since the first arrival.

    Raises:
        InputError: The file is no log of a driver.
    """
    shadow = Replay.of(Path(path))
    if not shadow.is_shadow:
        return None
    slurm = Replay.of(Path(path), is_actual=True)
    both = shadow.finished.keys() & slurm.finished.keys()
    runs = _run_of(slurm, both), _run_of(shadow, both)
    works = [entry for job_id, entry in shadow.works.items() if job_id in slurm.finished]
    ratios = [entry["steps"] / entry["given"] for entry in works if entry["given"]]
    return SlurmComparison(
        slurm=runs[0],
        shadow=runs[1],
        both=len(both),
        only_slurm=len(slurm.finished) - len(both),
        only_shadow=len(shadow.finished) - len(both),
        tenants=_tenants((slurm, shadow), runs, both),
        slowness=float(np.median(ratios)) if ratios else None,
        change=_change(slurm.finished, shadow.finished, both),
        assumed={name: value for name, value in shadow.assumed.items() if name not in ("event", "seconds")},
        knowing=_knowing(slurm, shadow, both),
    )


def _change(slurm: Mapping[str, LoggedJob], shadow: Mapping[str, LoggedJob], both: Collection[str]) -> tuple[float, float] | None:
    """Return the change of the mean completion time and its interval, by batch means."""
    if len(both) < 2 * BATCHES:
        return None
    order = sorted(both, key=lambda job_id: slurm[job_id].arrival_seconds)
    jcts = [[float(each[i].left_seconds or 0.0) - each[i].arrival_seconds for i in order] for each in (shadow, slurm)]
    sums = np.array([[part.sum() for part in np.array_split(np.array(each), BATCHES)] for each in jcts])
    ratio = sums[0].sum() / sums[1].sum()
    deviations = sums[0] - ratio * sums[1]
    half = STUDENT * math.sqrt(BATCHES / (BATCHES - 1) * (deviations**2).sum()) / sums[1].sum()
    return float(ratio - 1.0), float(half)


def _knowing(slurm: Replay, shadow: Replay, both: Collection[str]) -> dict[str, float | None] | None:
    """Return the metrics of the model of Slurm with users who know the speeds of their jobs."""
    works = {i: entry for i, entry in shadow.works.items() if i in slurm.finished and entry.get("speeds")}
    if not (works and slurm.rounds and shadow.nodes and shadow.assumed and works.keys() >= set(both)):
        return None
    begin, cost = slurm.rounds[0]["seconds"], shadow.assumed["start"] + shadow.assumed["loading"]
    requests = list[BackfilledJob]()
    order = sorted(works, key=lambda i: (not works[i]["ran_on"], slurm.jobs[i].arrival_seconds))
    for job_id in order:
        entry, job, speeds = works[job_id], slurm.jobs[job_id], works[job_id]["speeds"]
        known = {name: speed for name, speed in speeds.items() if SlurmComparison.knowing_factor * speed >= max(speeds.values())}
        seconds = {name: cost + entry["steps"] / speed for name, speed in known.items()}
        if entry["ran_on"]:
            seconds = {entry["ran_on"]: float(job.left_seconds or begin) - begin}
        limit = max(seconds.values()) if entry["limit"] is None else entry["limit"]
        requests.append(
            BackfilledJob(max(begin, job.arrival_seconds), entry["nodes"], -(-job.gpus // entry["nodes"]), limit, seconds)
        )
    # Administrators prefer nodes by weight; here, those on which jobs are fastest come first.
    relative = [{name: speed / max(each["speeds"].values()) for name, speed in each["speeds"].items()} for each in works.values()]
    kinds = sorted(shadow.nodes, key=lambda kind: -sum(each.get(kind[0], 0.0) for each in relative))
    nodes = [(name, gpus) for name, gpus, count in kinds for _ in range(count)]
    ends = dict(zip(order, backfilled(requests, nodes), strict=True))
    jobs = {i: slurm.jobs[i] for i in both if math.isfinite(ends[i])}
    jcts = np.sort(np.array([ends[i] - job.arrival_seconds for i, job in jobs.items()]))
    origin = min(job.arrival_seconds for job in slurm.jobs.values())
    waits = np.array([max(0.0, ends[i] - job.arrival_seconds - job.running_seconds) for i, job in jobs.items()])
    return completions_of(jcts, max(ends[i] for i in jobs) - origin if jobs else None, waits)


def _tenants(replays: tuple[Replay, Replay], runs: tuple[Run, Run], both: Collection[str]) -> dict[str, TenantFigures]:
    """Return the figures of each tenant under Slurm and in the shadow; both: the jobs that have finished in both."""
    jobs = replays[0].jobs
    names = sorted({job.tenant for job in jobs.values()})
    counted = Counter(jobs[job_id].tenant for job_id in both)
    means, gpus = list[dict[str, float | None]](), list[dict[str, float]]()
    for replay, run in zip(replays, runs, strict=True):
        sums, held = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        for job in (replay.finished[job_id] for job_id in both):
            sums[job.tenant] += float(job.left_seconds or 0.0) - job.arrival_seconds
        for stay in run.stays:
            held[jobs[stay.job_id].tenant] += stay.gpus * (stay.end_seconds - stay.start_seconds)
        means.append({name: sums[name] / counted[name] if counted[name] else None for name in names})
        gpus.append(held)
    return {name: TenantFigures(counted[name], means[0][name], means[1][name], gpus[0][name], gpus[1][name]) for name in names}
