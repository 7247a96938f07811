"""Running a workload on a real Slurm, under its own scheduler or the driver, and the results of its jobs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from slurm_workload import GPUS_PER_NODE, NODES_PER_TYPE, Workload, speeds_of, work_of

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import log_of
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.submitting import Stay, stays, submit
from tests.slurm.loopback.waiting import until

# By itself, Slurm assigns the fastest free GPUs.
NODES = tuple(Nodes(name, NODES_PER_TYPE, GPUS_PER_NODE, weight) for weight, name in enumerate(("v100", "p100", "k80"), 1))
LONGEST_RUN_SECONDS = 3600.0
AT_ONCE_SECONDS = 5.0
"""A job that starts so soon after its submission did not have to wait for GPUs."""


@dataclass(frozen=True)
class System:
    """A scheduler; options: of slurm.conf; driver: the process that drives the cluster, given the loading time, None for none;
    is_known: as for `work_of`.
    """

    partition: str = "plain"
    submit_plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    driver: Callable[[LoopbackCluster, float], AbstractContextManager[object]] | None = None
    is_known: bool = False


def play(system: System, workload: Workload, log: Path | None = None) -> dict[str, Any]:
    """Play a workload on a cluster of its own, and return what became of each job, in the order of arrival.

    jobs: [arrival, end, start of the last stay, {node: GPUs} of it, starts, GPU-seconds without steps]; start_seconds: median time
    from submission to start of jobs that did not wait; stop_seconds and restart_seconds: median times of the driver's stops, and of
    its stops and starts together. log: where to keep the log of the driver, if there is one.
    """
    jobs, loading, driver = workload.trace(), workload.loading_seconds, system.driver
    ids, arrived = list[int](), list[float]()
    with (
        booted(Settings(NODES, system.submit_plugin, system.options)) as cluster,
        nullcontext() if driver is None else driver(cluster, loading),
    ):
        begin = time.time()
        for job in jobs:
            time.sleep(max(0.0, begin + job.arrival_seconds - time.time()))
            arrived.append(time.time() - begin)
            ids.append(submit(cluster, work_of(job, loading, is_known=system.is_known), system.partition))
        left, is_over = set(ids), _started if driver is None else _done
        until(lambda: _none_left(cluster, left, is_over), "all jobs to end", within=LONGEST_RUN_SECONDS, every=2.0)
        runs = [stays(cluster, job) for job in ids]
        stop, restart = _times(log_of(cluster))
        if log is not None and log_of(cluster).exists():
            shutil.copy(log_of(cluster), log)
    rows = [_row(at, job, each, begin, loading) for at, job, each in zip(arrived, jobs, runs, strict=True)]
    soon = [wait for at, each in zip(arrived, runs, strict=True) if (wait := each[0].begin - begin - at) < AT_ONCE_SECONDS]
    times = {"start_seconds": median(soon) if soon else None, "stop_seconds": stop, "restart_seconds": restart}
    return {**{name: None if value is None else round(value, 2) for name, value in times.items()}, "jobs": rows}


def _row(arrived: float, job: gp.Job, runs: list[Stay], begin: float, loading: float) -> list[Any]:
    """Return what became of a job. In Slurm alone, where jobs stay where they have started, a job need not have ended."""
    speeds = [speeds_of(job)[next(iter(each.placement)).partition("-")[0]] for each in runs]
    left = [*(each.left for each in runs), 0.0]
    worked = [(a - b) / speed for (a, b), speed in zip(pairwise(left), speeds, strict=True)]
    last = runs[-1]
    end = last.begin + loading + worked[-1] if last.end is None else last.end
    ends = [*(each.end or end for each in runs[:-1]), end]
    lost = job.num_gpus * sum(to - each.begin - work for each, to, work in zip(runs, ends, worked, strict=True))
    return [*(round(t, 2) for t in (arrived, end - begin, last.begin - begin)), last.placement, len(runs), round(lost, 1)]


def _times(log: Path) -> tuple[float | None, float | None]:
    """Return the median time that stops took, and that of stops and starts; the log says how long each round took for all."""
    played = [(each, each.applied) for each in decisions(log) if each.applied is not None and not each.within]
    stops = [told["stop_seconds"] for each, told in played if each.stop]
    starts = [told["start_seconds"] for each, told in played if each.start]
    return (median(stops) if stops else None), (median(starts) + (median(stops) if stops else 0.0) if starts else None)


def _done(runs: list[Stay]) -> bool:
    return bool(runs) and runs[-1].done


def _started(runs: list[Stay]) -> bool:
    return bool(runs) and bool(runs[-1].placement)


def _none_left(cluster: LoopbackCluster, left: set[int], is_over: Callable[[list[Stay]], bool]) -> bool:
    """Return True if no job is left; jobs that are over are removed from the set."""
    left -= {job for job in left if is_over(stays(cluster, job))}
    return not left
