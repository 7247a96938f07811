"""Playing a workload on a real Slurm, by Slurm's own scheduler or driven from outside, and what became of the jobs."""

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

# Left to itself, Slurm gives the fastest GPUs that are free.
NODES = (Nodes("v100", 9, weight=1), Nodes("p100", 9, weight=2), Nodes("k80", 9, weight=3))
LONGEST_RUN_SECONDS = 3600.0


@dataclass(frozen=True)
class System:
    """Who schedules. options: of slurm.conf; driver: what drives the cluster meanwhile."""

    name: str
    partition: str = "plain"
    submit_plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    driver: Callable[[LoopbackCluster], AbstractContextManager[object]] = lambda _: nullcontext()


@dataclass(frozen=True)
class Played:
    """jct_seconds: from a job's arrival to its end, by its own account; starts: how often jobs started, on the average."""

    jct_seconds: list[float]
    makespan_seconds: float
    starts: float

    def figures(self) -> dict[str, float]:
        return {"mean_jct_seconds": mean(self.jct_seconds), "makespan_seconds": self.makespan_seconds, "starts": self.starts}


def play(system: System, trace: gp.Trace) -> Played:
    work = [(submission.job.arrival_seconds, work_of(submission.job)) for submission in trace]
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
    ends = [each[-1].end - begin for each in runs]
    return Played([end - at for end, at in zip(ends, arrived, strict=True)], max(ends) - min(arrived), mean(map(len, runs)))


def _all_done(cluster: LoopbackCluster, left: set[int]) -> bool:
    """Whether no job is left; those that are done leave the set."""
    left -= {job for job in left if (found := stays(cluster, job)) and found[-1].done}
    return not left
