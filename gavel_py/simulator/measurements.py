"""What a simulation measures: which jobs of a trace, from when to when, and where the time of all GPUs goes.

`Usage`: used, idle or down; nothing is counted twice, and nothing is left out. `Measuring`: the window of jobs that are measured,
and the time over which GPUs are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.problem.cluster import Cluster
from gavel_py.simulator.node_events import NodeEvent

JobWindow = tuple[int, int]
"""The jobs from the first number to before the second, by order of arrival, from 0."""


class Usage:
    """GPU-seconds by accelerator type: all there were, those that gangs held, and those of nodes that were down.

    start_seconds: when the clock starts; what a node was down before does not count.
    """

    def __init__(self, cluster: Cluster, start_seconds: float = 0.0) -> None:
        self._start_seconds = start_seconds
        self.total, self.used, self.down = (dict.fromkeys(cluster.accelerator_names, 0.0) for _ in range(3))
        self._gpus = dict(zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True))
        self._nodes = {node.name: (node.accelerator, node.num_gpus) for node in cluster.nodes}
        self._down_since: dict[str, float] = {}

    def note_node_event(self, event: NodeEvent) -> None:
        """Note that a node goes down or comes up."""
        if event.change == "down":
            self._down_since[event.node] = max(event.seconds, self._start_seconds)
        elif event.change == "up":
            self._count_down(event.node, max(event.seconds, self._start_seconds))
            self._down_since.pop(event.node, None)

    def advance(self, start: float, end: float) -> None:
        """Note that this time has passed."""
        for name, count in self._gpus.items():
            self.total[name] += count * (end - start)
        for node in self._down_since:
            self._count_down(node, end)
            self._down_since[node] = end

    def totals(self) -> dict[str, dict[str, float]]:
        """Return by type the GPU-seconds so far: all, used, and down."""
        return {name: {"total": self.total[name], "used": self.used[name], "down": self.down[name]} for name in self.total}

    def to_dict(self, before: Mapping[str, Mapping[str, float]] | None = None) -> dict[str, dict[str, float]]:
        """Return the usage of each type as plain data; before: `totals` of the time that does not count."""
        return {name: _usage(each, {} if before is None else before[name]) for name, each in self.totals().items()}

    def state(self) -> dict[str, Any]:
        """Return all that was counted as plain data."""
        counted = {"total": dict(self.total), "used": dict(self.used), "down": dict(self.down)}
        return counted | {"down_since": dict(self._down_since), "start_seconds": self._start_seconds}

    @classmethod
    def from_state(cls, cluster: Cluster, document: Mapping[str, Any]) -> Usage:
        """Return what `state` described."""
        made = cls(cluster, document["start_seconds"])
        made.total, made.used, made.down = ({n: document[name][n] for n in made.total} for name in ("total", "used", "down"))
        made._down_since = dict(document["down_since"])
        return made

    def _count_down(self, node: str, until: float) -> None:
        if node in self._down_since:
            accelerator, gpus = self._nodes[node]
            self.down[accelerator] += gpus * (until - self._down_since[node])


def _usage(totals: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """GPU-seconds of one type; its utilization is the used part of those that were not down, 0 if there were none."""
    total, used, down = (totals[name] - before.get(name, 0.0) for name in ("total", "used", "down"))
    there = total - down
    return {
        "gpu_seconds": total,
        "used": used,
        "idle": total - used - down,
        "down": down,
        "utilization": used / there if there > 0 else 0.0,
    }


def job_window(value: object) -> JobWindow | None:
    """Return the window that a pair of numbers stands for; None: all jobs. Raises `ValueError` for anything else."""
    if value is None:
        return None
    numbers = list(value) if isinstance(value, tuple | list) else []
    whole = [int(each) for each in numbers if isinstance(each, Integral) and not isinstance(each, bool)]
    if len(numbers) == len(whole) == 2 and 0 <= whole[0] < whole[1]:
        return whole[0], whole[1]
    text = "must be two whole numbers, the first job by arrival (from 0) and the one after the last, as in (4000, 5000)"
    raise ValueError(f"{text}, found {value!r}")


def window_text(window: JobWindow) -> str:
    """Return a window as it is written on the command line, as in "4000:5000"."""
    return f"{window[0]}:{window[1]}"


def check_enough(jobs: int, window: JobWindow | None) -> None:
    """Raise `InputError` unless a trace of so many jobs has all those of the window."""
    if window is not None and jobs < window[1]:
        text = f"must end within the trace, which has {jobs:,} jobs, found {window_text(window)}"
        raise InputError(Fault("simulation", "measure_jobs", text))


class Measuring:
    """The window of a simulation: which jobs its metrics are of, and since when the use of GPUs is measured.

    window: None measures all jobs, from the beginning. ended: measured jobs that have left; ended_after_arrivals: those of them
    that left when no job of the trace was still to arrive.

    GPUs are measured from the round on in which the first measured job is submitted. The simulation is over with the round in
    which the last of them leaves, so that nothing that follows can change what was measured.
    """

    def __init__(self, window: JobWindow | None = None) -> None:
        self.window = window
        self._first, self._end = (0, sys.maxsize) if window is None else window
        self._usage_before: Mapping[str, Mapping[str, float]] | None = None
        self.ended = self.ended_after_arrivals = 0

    @property
    def is_measuring(self) -> bool:
        """Whether the use of GPUs is being measured."""
        return self.window is None or self._usage_before is not None

    @property
    def is_complete(self) -> bool:
        """Whether all measured jobs have left."""
        return self.window is not None and self.ended == self._end - self._first

    def includes(self, number: int) -> bool:
        """Say whether a job is measured; number: how many jobs arrived before it."""
        return self._first <= number < self._end

    def note_submission(self, number: int, usage: Usage) -> None:
        """Note that a job has been submitted; usage: of GPUs until then."""
        if self.window is not None and number == self._first:
            self._usage_before = usage.totals()

    def note_departure(self, *, arrivals_are_over: bool) -> None:
        """Note that a measured job has left; arrivals_are_over: no job of the trace is still to arrive."""
        self.ended += 1
        self.ended_after_arrivals += arrivals_are_over and self.window is not None

    def measured_usage(self, usage: Usage) -> dict[str, dict[str, float]]:
        """Return by type what was used since measuring began."""
        before = self._usage_before
        return usage.to_dict(before if before is not None or self.window is None else usage.totals())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "window": self.window,
            "usage_before": self._usage_before,
            "ended": self.ended,
            "ended_after_arrivals": self.ended_after_arrivals,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measuring:
        """Return what `to_dict` described."""
        made = cls(job_window(document["window"]))
        made._usage_before = document["usage_before"]
        made.ended, made.ended_after_arrivals = document["ended"], document["ended_after_arrivals"]
        return made
