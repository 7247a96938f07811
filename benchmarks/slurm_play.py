"""Running a workload on a real Slurm, under its own scheduler or the driver, and the results of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import mean

from slurm_workload import work_of

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
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
    """The result of a run; jct_seconds: from the arrival of each job to its end, as the job reports it; starts: mean per job."""

    jct_seconds: list[float]
    makespan_seconds: float
    starts: float

    def figures(self) -> dict[str, float]:
        return {"mean_jct_seconds": mean(self.jct_seconds), "makespan_seconds": self.makespan_seconds, "starts": self.starts}


def play(system: System, trace: gp.Trace) -> Played:
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
        until(lambda: _all_done(cluster, left), LONGEST_RUN_SECONDS, "all jobs to end", every=2.0)
        runs = [stays(cluster, job) for job in ids]
    ends = [end - begin for each in runs if (end := each[-1].end) is not None]
    return Played([end - at for end, at in zip(ends, arrived, strict=True)], max(ends) - min(arrived), mean(map(len, runs)))


def _all_done(cluster: LoopbackCluster, left: set[int]) -> bool:
    """Return True if no job is left; jobs that are done are removed from the set."""
    left -= {job for job in left if (found := stays(cluster, job)) and found[-1].done}
    return not left
