"""Initial workloads for tests of the driver: more jobs with known throughputs than there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.submitting import SPEEDS, Work, stays, steps_done, submit
from tests.slurm.loopback.waiting import until

__all__ = ["crowd", "faster_are_ahead", "finish", "gang", "profile_text", "sleeper"]

JOB_TYPE = "steady"
SIZES = (1, 2, 3, 4, 8, 12)
FOR_EVER = 1e7
"""More steps than any test completes."""


def profile_text() -> str:
    """Write a CSV profile with the actual throughputs of the jobs."""
    rows = [f"{JOB_TYPE},{size},{name},{speed}" for size in SIZES for name, speed in SPEEDS.items()]
    return "\n".join(["job_type,num_gpus,accelerator,steps_per_second", *rows]) + "\n"


def gang(cluster: LoopbackCluster, *request: str, steps: float = FOR_EVER) -> int:
    """Submit a job with this GPU request, and return its id."""
    return submit(cluster, Work("gang", request, steps, options=(comment(steps),)))


def sleeper(
    cluster: LoopbackCluster,
    user: int,
    gpus: int = 1,
    *,
    partition: str = "gavel",
    words: Sequence[str] = (),
    command: str = "exec sleep 600",
) -> int:
    """Submit a job of another user on one node; it does no steps, since that user may be unable to run the interpreter."""
    words = [
        "--parsable",
        f"--partition={partition}",
        "--nodes=1",
        f"--gres=gpu:{gpus}",
        "--output=/dev/null",
        "--chdir=/",
        comment(FOR_EVER),
        *words,
        f"--wrap={command}",
    ]
    return int(cluster.tell("sbatch", *words, user=user))


def comment(steps: float) -> str:
    return f"--comment=gavel: type={JOB_TYPE} steps={steps:g}"


def crowd(cluster: LoopbackCluster, count: int = 36, *, steps: float = FOR_EVER) -> list[int]:
    """Submit 36 gangs that fill a node each; 27 have room."""
    return [gang(cluster, "--nodes=1", "--gres=gpu:4", steps=steps) for _ in range(count)]


def faster_are_ahead(cluster: LoopbackCluster) -> bool:
    """Return whether jobs on p100 are closer to their end than all but those on v100, so that all move to the next type."""
    done: dict[str, list[float]] = {kind: [] for kind in SPEEDS}
    for job, each in cluster.jobs().items():
        for node in each.placement:
            done[node.partition("-")[0]].append(steps_done(cluster, job))
    return all(
        min(done[fast]) > max(done[slow]) + 1 for fast, slow in pairwise(sorted(SPEEDS, key=SPEEDS.__getitem__, reverse=True))
    )


def finish(cluster: LoopbackCluster, *jobs: int) -> None:
    """Let running jobs complete their work, once their processes are ready for the signal."""
    until(
        lambda: (
            cluster.running() >= set(jobs)
            and all(runs and (runs[-1].done or runs[-1].end is None) for runs in (stays(cluster, job) for job in jobs))
        ),
        "the jobs to have started",
    )
    cluster.tell("scancel", "--signal=USR1", "--batch", *map(str, jobs))
