"""Playing a workload on a real Slurm, by Slurm's own scheduler or driven from outside, and what became of the jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import mean

from slurm_workload import work_of

import gavel_py as gp
from tests.integration.slurm.cluster import LoopbackCluster, booted
from tests.integration.slurm.configuration import Nodes, Settings
from tests.integration.slurm.submitting import stays, submit
from tests.integration.slurm.waiting import until

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
    with booted(Settings(NODES, system.submit_plugin, system.options)) as cluster, system.driver(cluster):
        begin = time.time()
        ids: list[int] = []
        for submission in trace:
            time.sleep(max(0.0, begin + submission.job.arrival_seconds - time.time()))
            ids.append(submit(cluster, work_of(submission.job), system.partition))
        until(lambda: all(_is_done(cluster, job) for job in ids), LONGEST_RUN_SECONDS, "all jobs to end", every=1.0)
        arrived = [submission.job.arrival_seconds for submission in trace]
        runs = [stays(cluster, job) for job in ids]
        ends = [each[-1].end - begin for each in runs]
    return Played([end - at for end, at in zip(ends, arrived, strict=True)], max(ends) - min(arrived), mean(map(len, runs)))


def _is_done(cluster: LoopbackCluster, job: int) -> bool:
    found = stays(cluster, job)
    return bool(found) and found[-1].done
