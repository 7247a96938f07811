"""Running a workload on a real Slurm, under its own scheduler or the driver, and the results of its jobs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from slurm_workload import work_of

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import log_of
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.submitting import stays, submit
from tests.slurm.loopback.waiting import until

# By itself, Slurm assigns the fastest free GPUs.
NODES = (Nodes("v100", 9, weight=1), Nodes("p100", 9, weight=2), Nodes("k80", 9, weight=3))
LONGEST_RUN_SECONDS = 3600.0


@dataclass(frozen=True)
class System:
    """A scheduler; options: of slurm.conf; driver: the process that drives the cluster, if any; is_known: as for `work_of`."""

    name: str
    partition: str = "plain"
    submit_plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    driver: Callable[[LoopbackCluster], AbstractContextManager[object]] = lambda _: nullcontext()
    is_known: bool = False


@dataclass(frozen=True)
class Played:
    """The result of a run.

    jct_seconds: from the arrival of each job to its end, as the job reports it; starts: mean per job; restart_seconds: median time
    of the driver's stops plus that of its starts, 0 without a driver.
    """

    jct_seconds: list[float]
    makespan_seconds: float
    starts: float
    restart_seconds: float

    def figures(self) -> dict[str, float]:
        """Return the figures of the comparison."""
        same = {name: getattr(self, name) for name in ("makespan_seconds", "starts", "restart_seconds")}
        return {"mean_jct_seconds": mean(self.jct_seconds), **same}


def play(system: System, trace: gp.Trace, log: Path | None = None) -> Played:
    """Play a trace on a cluster of its own; log: where to keep the log of the driver, if there is one."""
    work = [(submission.job.arrival_seconds, work_of(submission.job, is_known=system.is_known)) for submission in trace]
    ids: list[int] = []
    arrived: list[float] = []
    with booted(Settings(NODES, system.submit_plugin, system.options)) as cluster, system.driver(cluster):
        begin = time.time()
        for at, each in work:
            time.sleep(max(0.0, begin + at - time.time()))
            arrived.append(time.time() - begin)
            ids.append(submit(cluster, each, system.partition))
        left = set(ids)
        until(lambda: _all_done(cluster, left), "all jobs to end", within=LONGEST_RUN_SECONDS, every=2.0)
        runs = [stays(cluster, job) for job in ids]
        restart_seconds = _restart_seconds(log_of(cluster))
        if log is not None and log_of(cluster).exists():
            shutil.copy(log_of(cluster), log)
    ends = [end - begin for each in runs if (end := each[-1].end) is not None]
    jct = [end - at for end, at in zip(ends, arrived, strict=True)]
    return Played(jct, max(ends) - min(arrived), mean(map(len, runs)), restart_seconds)


def _restart_seconds(log: Path) -> float:
    """Return the median time that stops and starts took; the log of rounds says how long each took all of its jobs."""
    played = [(each, each.applied) for each in decisions(log) if each.applied is not None and not each.within]
    stops = [told["stop_seconds"] for each, told in played if each.stop]
    starts = [told["start_seconds"] for each, told in played if each.start]
    return float(sum(median(times) for times in (stops, starts) if times))


def _all_done(cluster: LoopbackCluster, left: set[int]) -> bool:
    """Return True if no job is left; jobs that are done are removed from the set."""
    left -= {job for job in left if (found := stays(cluster, job)) and found[-1].done}
    return not left
