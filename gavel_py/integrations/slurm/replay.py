"""The log of a driver, read again: the jobs, their stays on GPUs, and the rounds, as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.report.runs import Stay

__all__ = ["LoggedJob", "Replay", "replayed"]

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
