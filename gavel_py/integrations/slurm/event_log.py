"""The log of a driver, a line of JSON for each decision and each event with its time, and the run that is read from it.

`RunLog` writes the lines, `round_line` and `applied_line` are those of rounds. `replayed` reads jobs, their stays on GPUs and the
rounds again, and `slurm_run` makes a `Run` of them: the plain data that reports show, with the same numbers as of a simulation.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gavel_py.errors import Fault, GavelWarning, InputError
from gavel_py.integrations.slurm.apply import Applied
from gavel_py.integrations.slurm.decision import Decided
from gavel_py.io import reading
from gavel_py.problem.arrays import Floats
from gavel_py.report.runs import OverTime, Run, Stay


def round_line(decided: Decided) -> dict[str, Any]:
    """Return what was decided, and what a report needs to know of it."""
    begun, moves = decided.begun, decided.moves
    return {
        "round": begun.index,
        "keep": list(moves.keep),
        "stop": list(moves.stop),
        "hold": list(moves.hold),
        "start": {job_id: dict(target) for job_id, target in moves.start.items()},
        "cannot": dict(moves.cannot),
        "give_back": dict(moves.give_back),
        "excluded": begun.excluded,
        "refused": dict(decided.picture.refused),
        **decided.account(),
    }


def applied_line(applied: Applied) -> dict[str, Any]:
    """Return what came of it."""
    return {
        "started": applied.started,
        "elsewhere": applied.elsewhere,
        "waiting": applied.waiting,
        "left": applied.left,
        "lingering": applied.lingering,
        "given_back": applied.given_back,
        "errors": applied.errors,
        "stop_seconds": round(applied.stop_seconds, 3),
        "start_seconds": round(applied.start_seconds, 3),
    }


ROUND = (
    *("seconds", "gpus", "down", "active", "promised_gpu_seconds", "delivered_gpu_seconds"),
    *("owed_gpu_seconds", "solver_seconds", "prices"),
)
"""What is read of the line of a round."""


@dataclass
class LoggedJob:
    """One job. stays: on each of its nodes; outcome: empty while it is in the system; left_seconds: None then."""

    job_type: str
    gpus: int
    arrival_seconds: float
    stays: list[Stay] = field(default_factory=list)
    outcome: str = ""
    left_seconds: float | None = None
    running_seconds: float = 0.0
    preemptions: int = 0


@dataclass
class Replay:
    """about: what the log's latest start says; jobs: by id; rounds: the lines that begin one; end_seconds: of the last line;
    open_stays: where jobs run at its end, with the time when that began.
    """

    about: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, LoggedJob] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    end_seconds: float = 0.0
    open_stays: dict[str, dict[str, Any]] = field(default_factory=dict)


def replayed(path: Path) -> Replay:
    """Return what a log tells; a line that was cut off when its writer was killed is left out. Raises `InputError`."""
    made = Replay()
    for where, line in _lines(path):
        try:
            made.end_seconds = max(made.end_seconds, line["seconds"])
            _take(made, line)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(Fault(where, "", f"is not of the log of a driver: {type(error).__name__} {error}")) from None
    for job_id in list(made.open_stays):
        _close(made, job_id, made.end_seconds)
    if not made.rounds:
        raise InputError(Fault(str(path), "", "tells of no round; it must be the log.jsonl that gavel slurm run has written"))
    return made


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    numbered = list(reading.numbered_lines(path))
    for place, (number, text) in enumerate(numbered):
        try:
            yield f"{path}, line {number}", reading.json_line(path, text, number)
        except InputError:
            # A driver that was killed has left half a line; the next one begins behind it.
            if place + 1 < len(numbered) and '{"event":' not in text[1:]:
                raise
            if '{"event":' in text[1:]:
                rest = text[text.index('{"event":', 1) :]
                yield f"{path}, line {number}", reading.json_line(path, rest, number)


def _take(made: Replay, line: dict[str, Any]) -> None:
    event = line["event"]
    if event == "begun":
        made.about = line
    elif event == "round":
        made.rounds.append({name: line[name] for name in ROUND})
    elif event == "arrived":
        made.jobs.setdefault(line["job"], LoggedJob(line["job_type"], line["gpus"], line["arrival_seconds"]))
    elif event == "started":
        _close(made, line["job"], line["seconds"])
        made.open_stays[line["job"]] = line
    elif event == "stopped":
        _close(made, line["job"], line["seconds"])
        if line["preempted"] and line["job"] in made.jobs:
            made.jobs[line["job"]].preemptions += 1
    elif event == "left" and line["job"] in made.jobs:
        job = made.jobs[line["job"]]
        job.outcome, job.left_seconds = line["outcome"], line["seconds"]
        job.running_seconds = line["running_seconds"]


def _close(made: Replay, job_id: str, seconds: float) -> None:
    """End the stay of a job, if it has one."""
    began, job = made.open_stays.pop(job_id, None), made.jobs.get(job_id)
    if began is None or job is None:
        return
    for node, gpus in began["nodes"].items():
        end = max(seconds, began["seconds"])
        job.stays.append(Stay(job_id, job.job_type, node, began["accelerator"], gpus, began["seconds"], end))


def warn(text: str) -> None:
    """Issue a `GavelWarning`; where that fails too, since standard error is closed, say, the driver goes on all the same."""
    with suppress(OSError):
        warnings.warn(text, GavelWarning, stacklevel=3)


class RunLog:
    """Appends to a file; each line is on its way to the disk before the next thing is done.

    Jobs depend on the driver, not on its log: where a line cannot be written, it is left out with a `GavelWarning`, and the next
    one is tried again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def write(self, event: str, seconds: float, **told: Any) -> None:
        """Write one line."""
        line = json.dumps({"event": event, "seconds": round(seconds, 3), **told}, separators=(",", ":"), allow_nan=False)
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self._file.write(f"{line}\n".encode())
        except OSError as error:
            warn(f"{self._path} cannot be written, and the driver goes on without it: {error.strerror or error}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


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
