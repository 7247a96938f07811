"""One cell of a figure: a point of a curve for one seed, simulated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from figure_curves import FIGURES, Curve, Figure, Window
from figure_traces import PROFILE

import gavel_py as gp

__all__ = ["Cell", "Played", "Scale", "play"]

TYPES = ("v100", "p100", "k80")

LONGER = 2
"""Length of a trace relative to the end of the window, so that arrivals continue until the last measured job has left."""


@dataclass(frozen=True)
class Scale:
    """gpus: number of GPUs of each type."""

    gpus: int = 36
    round_seconds: float = 360.0


@dataclass(frozen=True)
class Cell:
    """One simulation of x jobs per hour, or of x jobs; scale: the size of the cluster."""

    figure: str
    curve: str
    x: float
    seed: int
    window: Window
    scale: Scale

    @property
    def parts(self) -> tuple[Figure, Curve]:
        """The figure and the curve of the cell."""
        figure = next(each for each in FIGURES if each.key == self.figure)
        return figure, next(each for each in (*figure.curves, *figure.variants) if each.key == self.curve)

    @property
    def cluster(self) -> gp.Cluster:
        """Return a cluster with one node per type: the published simulator has no nodes, and no slowdown of spread gangs."""
        gpus = self.scale.gpus
        return gp.Cluster.from_counts(dict.fromkeys(TYPES, (gpus, gpus)))


@dataclass(frozen=True)
class Played:
    """hours: the mean completion time of the measured jobs, or the makespan; median_hours: of the completion times.

    alone_hours: the mean duration of the measured jobs on V100 without queueing; undelivered: the part of the time promised by
    allocations that rounds did not deliver; seconds: computing time.
    """

    hours: float
    median_hours: float
    alone_hours: float
    undelivered: float
    rounds: int
    seconds: float


def play(cell: Cell) -> Played:
    """Simulate a cell until its last measured job has left."""
    figure, curve = cell.parts
    started = time.perf_counter()
    trace = _trace(figure, curve, cell)
    window = None if figure.is_static else (cell.window.first, cell.window.end)
    result = gp.simulate(
        trace,
        cell.cluster,
        gp.ThroughputProfile.builtin(PROFILE),
        curve.policy(),
        round_seconds=cell.scale.round_seconds,
        measure_jobs=window,
        mechanism=curve.mechanism(),
        **curve.settings,
    )
    summary, jobs = result.summary, result.jobs.values()
    if summary.unfinished or summary.jct.mean is None or summary.jct.median is None:
        raise RuntimeError(f"{cell}: {summary.unfinished} measured jobs can never run")
    promised = sum(job.promised_seconds * job.num_gpus for job in jobs)
    undelivered = sum(job.undelivered_seconds * job.num_gpus for job in jobs)
    return Played(
        hours=(summary.makespan_seconds if figure.is_static else summary.jct.mean) / 3600,
        median_hours=summary.jct.median / 3600,
        alone_hours=fmean(each.run_seconds or 0.0 for each in trace[slice(*window or (None,))]) / 3600,
        undelivered=undelivered / promised if promised else 0.0,
        rounds=summary.rounds,
        seconds=time.perf_counter() - started,
    )


def _trace(figure: Figure, curve: Curve, cell: Cell) -> Sequence[gp.Submission]:
    count = int(cell.x) if figure.is_static else LONGER * cell.window.end
    return curve.jobs(count, None if figure.is_static else cell.x, figure.has_gangs, cell.seed)
