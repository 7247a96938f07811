"""Jobs that do steps, submitted as by users, and their own records of what they did."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.slurm.loopback import worker
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.seen import jobs_of

__all__ = ["SPEEDS", "Stay", "Work", "stays", "steps_done", "submit"]

SPEEDS = {"v100": 4.0, "p100": 2.0, "k80": 1.0}


@dataclass(frozen=True)
class Work:
    """A job to submit.

    request: options that request GPUs; steps: number of steps; speeds: steps per second by accelerator type;
    options: further options of sbatch; loading_seconds: time without steps at each start.
    """

    name: str
    request: tuple[str, ...] = ("--nodes=1", "--gres=gpu:1")
    steps: float = 1e9
    speeds: Mapping[str, float] = field(default_factory=lambda: SPEEDS)
    options: tuple[str, ...] = ()
    loading_seconds: float = 0.0


@dataclass(frozen=True)
class Stay:
    """A run of a job: {node: GPUs}, start, end (None if it still runs or was killed), whether its work was done, and the steps that
    were left at its start.
    """

    placement: dict[str, int]
    begin: float
    end: float | None
    done: bool
    left: float


def submit(cluster: LoopbackCluster, work: Work, partition: str = "gavel") -> int:
    """Submit a job, and return its id."""
    script = cluster.folder / "worker.py"
    if not script.exists():
        shutil.copy(str(worker.__file__), script)
    speeds = [f"{name}={speed}" for name, speed in work.speeds.items()]
    command = shlex.join([sys.executable, "-S", "-E", str(script), str(cluster.folder), str(work.steps), str(work.loading_seconds)])
    shown = f"$(timeout 20 {cluster.program('scontrol')} --details --oneliner show job $SLURM_JOB_ID)"
    asked = ["--parsable", "--partition", partition, "--job-name", work.name, "--output=/dev/null", "--chdir=/", "--requeue"]
    return int(
        cluster.tell("sbatch", *asked, *work.request, *work.options, f'--wrap=exec {command} "{shown}" {shlex.join(speeds)}')
    )


def steps_done(cluster: LoopbackCluster, job_id: int) -> float:
    path = cluster.folder / "progress" / str(job_id)
    return float(path.read_text()) if path.exists() else 0.0


def stays(cluster: LoopbackCluster, job_id: int) -> list[Stay]:
    """Return the runs of a job from its own record."""
    path = cluster.folder / "stays" / str(job_id)
    found: list[Stay] = []
    for line in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        if line["event"] == "start":
            placements = [job.placement for job in jobs_of(line["shown"]).values()] or [{}]  # none if the controller was away
            found.append(Stay(placements[0], line["seconds"], None, done=False, left=line["left"]))
        else:
            found[-1] = replace(found[-1], end=line["seconds"], done=line["done"])
    return found
