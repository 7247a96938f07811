"""What became of a real run, as the plain data that reports show: the same numbers as of a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.integrations.slurm.replay import LoggedJob, Replay, replayed
from gavel_py.report.runs import OverTime, Run, Stay

__all__ = ["slurm_run"]

Floats = NDArray[np.float64]


def slurm_run(path: str | Path) -> Run:
    """Return the run that the log of a driver tells of; times are seconds since its first job arrived.

    Jobs whose end nobody saw, and those still in the system, count in no completion time. Raises `InputError` for another file.
    """
    told = replayed(Path(path))
    origin = min((job.arrival_seconds for job in told.jobs.values()), default=told.rounds[0]["seconds"])
    stays = sorted((stay for job in told.jobs.values() for stay in job.stays), key=lambda stay: (stay.start_seconds, stay.job_id))
    limits = np.array([*(line["seconds"] for line in told.rounds), told.end_seconds])
    limits = np.maximum.accumulate(limits)
    finished = [job for job in told.jobs.values() if job.outcome == "finished" and job.left_seconds is not None]
    jcts = np.sort(np.array([float(job.left_seconds or 0.0) - job.arrival_seconds for job in finished]))
    labels = {
        "policy": told.about.get("policy"),
        "cluster": told.about.get("partition"),
        "round_seconds": told.about.get("round_seconds"),
    }
    over_time = _over_time(told, stays, limits)
    return Run(
        labels=labels,
        metrics=_metrics(told, finished, jcts, origin, stays),
        jct_seconds=jcts,
        over_time=_shifted(over_time, origin),
        stays=[_moved(stay, origin) for stay in stays],
        shares=_shares(told.jobs, told.end_seconds),
    )


def _metrics(
    told: Replay, finished: Sequence[LoggedJob], jcts: Floats, origin: float, stays: Sequence[Stay]
) -> dict[str, float | None]:
    ended = [job.left_seconds for job in told.jobs.values() if job.left_seconds is not None]
    waits = [float(job.left_seconds or 0.0) - job.arrival_seconds - job.running_seconds for job in finished]
    latest = told.rounds[-1]
    return {
        "mean_jct_seconds": float(jcts.mean()) if len(jcts) else None,
        "median_jct_seconds": float(np.median(jcts)) if len(jcts) else None,
        "p99_jct_seconds": float(np.percentile(jcts, 99)) if len(jcts) else None,
        "makespan_seconds": max(ended) - origin if ended else None,
        "mean_queueing_seconds": float(np.mean(np.maximum(0.0, waits))) if waits else None,
        "utilization": _utilization(told, stays),
        "undelivered_share": latest["owed_gpu_seconds"] / latest["promised_gpu_seconds"] if latest["promised_gpu_seconds"] else 0.0,
        "finished": float(len(finished)),
        "preemptions": float(sum(job.preemptions for job in told.jobs.values())),
        "solver_seconds": float(sum(line["solver_seconds"] for line in told.rounds)),
        "wall_seconds": told.end_seconds - told.rounds[0]["seconds"],
    }


def _utilization(told: Replay, stays: Sequence[Stay]) -> float | None:
    """The used part of the GPU-seconds that were not down, from the first round to the end of the log."""
    begin = told.rounds[0]["seconds"]
    ends = [*(line["seconds"] for line in told.rounds[1:]), told.end_seconds]
    lines = zip(told.rounds, ends, strict=True)
    there = sum((sum(line["gpus"].values()) - sum(line["down"].values())) * (end - line["seconds"]) for line, end in lines)
    used = sum(stay.gpus * max(0.0, stay.end_seconds - max(begin, stay.start_seconds)) for stay in stays)
    return used / there if there > 0 else None


def _over_time(told: Replay, stays: Sequence[Stay], limits: Floats) -> OverTime:
    lengths = np.maximum(np.diff(limits), 1e-9)
    gpus: Mapping[str, float] = told.rounds[-1]["gpus"]
    used = {name: np.zeros(len(lengths)) for name in gpus}
    for stay in stays:
        if stay.accelerator in used:
            overlap = np.minimum(stay.end_seconds, limits[1:]) - np.maximum(stay.start_seconds, limits[:-1])
            used[stay.accelerator] += np.maximum(0.0, overlap) * stay.gpus
    return OverTime(
        seconds=limits,
        used={name: np.minimum(1.0, used[name] / lengths / max(gpus[name], 1.0)) for name in gpus},
        prices={name: np.array([line["prices"].get(name, np.nan) for line in told.rounds]) for name in gpus},
        active_jobs=np.array([float(line["active"]) for line in told.rounds]),
        promised_gpu_seconds=_steps_of(told.rounds, "promised_gpu_seconds"),
        delivered_gpu_seconds=_steps_of(told.rounds, "delivered_gpu_seconds"),
    )


def _steps_of(rounds: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """(T,) what each round adds to a sum, which begins anew where jobs are forgotten or a driver begins with other nodes."""
    return np.maximum(0.0, np.diff(np.array([0.0, *(float(line[name]) for line in rounds)])))


def _shifted(over_time: OverTime, origin: float) -> OverTime:
    return OverTime(**over_time.__dict__ | {"seconds": over_time.seconds - origin})


def _moved(stay: Stay, origin: float) -> Stay:
    start, end = stay.start_seconds - origin, stay.end_seconds - origin
    return Stay(stay.job_id, stay.job_type, stay.node, stay.accelerator, stay.gpus, start, end)


def _shares(jobs: Mapping[str, LoggedJob], end: float) -> dict[str, dict[str, float]]:
    """{job type: {accelerator: mean share of the time of its jobs in the system}}."""
    parts: dict[str, list[dict[str, float]]] = defaultdict(list)
    for job in jobs.values():
        there = (end if job.left_seconds is None else job.left_seconds) - job.arrival_seconds
        part: dict[str, float] = defaultdict(float)
        for stay in job.stays:
            part[stay.accelerator] += (stay.end_seconds - stay.start_seconds) * stay.gpus / job.gpus / max(there, 1e-9)
        parts[job.job_type].append(part)
    names = sorted({name for all_parts in parts.values() for part in all_parts for name in part})
    return {
        job_type: {name: sum(part.get(name, 0.0) for part in all_parts) / len(all_parts) for name in names}
        for job_type, all_parts in sorted(parts.items())
    }
