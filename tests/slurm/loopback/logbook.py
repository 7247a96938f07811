"""The log of the driver: planned rounds and their outcomes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Decision", "decisions", "events"]


@dataclass(frozen=True)
class Decision:
    """A planned round, or starts within a round. start, targets: {job: {node: GPUs}} of jobs to start, and of all jobs to run;
    applied: the entry of its outcome, None if the driver ended before; within: whether these are starts within a round.
    """

    seconds: float
    start: dict[int, dict[str, int]]
    stop: frozenset[int]
    targets: dict[int, dict[str, int]]
    applied: dict[str, Any] | None
    within: bool = False


def events(path: Path, *names: str) -> list[dict[str, Any]]:
    """Return the complete lines of the log, optionally of some events only."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in found if not names or event["event"] in names]


def decisions(path: Path) -> list[Decision]:
    """Return the rounds of the log and the starts within them, in order."""
    made: list[Decision] = []
    known: dict[int, dict[str, int]] = {}  # where each job was seen last: what a driver decided that was killed then may not be so
    for event in events(path, "started", "round", "applied", "filled"):
        if event["event"] == "started":
            known[int(event["job"])] = event["nodes"]
        elif event["event"] == "round":
            start = {int(job): target for job, target in event["start"].items()}
            kept = {int(job): known[int(job)] for job in event["keep"]}
            made.append(Decision(event["seconds"], start, frozenset(map(int, event["stop"])), kept | start, None))
        elif event["event"] == "filled":
            start = {int(job): target for job, target in event["start"].items()}
            made.append(Decision(event["seconds"], start, frozenset(), made[-1].targets | start, event, within=True))
        else:
            last = made[-1]
            made[-1] = Decision(last.seconds, last.start, last.stop, last.targets, event)
    return made
