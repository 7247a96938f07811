"""Helpers for tests of schedulers: short constructors of jobs, clusters and policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import gavel_py as gp
from tests.scheduling.support import Fixed
from tests.support.fakes import FakeProfile

__all__ = ["PROFILE", "busy", "goes_on", "job", "line", "refused", "scheduler", "shares"]

PROFILE = FakeProfile({"fast": {"v100": 4.0, "k80": 1.0}, "slow": {"v100": 1.0, "k80": 1.0}, "stuck": {"v100": 0.0}})


def job(job_id: str, num_gpus: int = 1, job_type: str = "fast", **fields: Any) -> gp.Job:
    return gp.Job(job_id, job_type=job_type, num_gpus=num_gpus, **fields)


def scheduler(cluster: str = "v100:1", jobs: Sequence[gp.Job] = (), **options: Any) -> gp.RoundScheduler:
    made = gp.RoundScheduler(gp.Cluster.from_inline(cluster), PROFILE, **options)
    for each in jobs:
        made.submit(each)
    return made


def busy(teams: int = 2, **options: Any) -> gp.RoundScheduler:
    """Return a scheduler with jobs and nodes in many states."""
    kinds = ["fast", "slow"]
    jobs = [job(f"j{i}", 1 + i % 3, kinds[i % 2], total_steps=1000 / (1 + i), tenant=f"t{i % teams}") for i in range(9)]
    made = scheduler("v100:6/4,k80:4/2", jobs, **{"round_seconds": 10, "min_run_seconds": 15} | options)
    for _ in range(3):
        made.next_round()
    made.report("j1", steps_done=0.1 + 0.2)
    made.job_failed("j2")
    made.node_down("k80-1")
    made.gpu_lost("v100-0", 2)
    made.cancel("j3")
    made.next_round()
    made.drain("v100-1")
    made.submit(job("new", 2, total_steps=50))
    made.plan_next()
    made.complete("j4")
    made.update("j5", max_retries=0)
    made.job_failed("j5")
    return made


def goes_on(made: gp.RoundScheduler) -> tuple[object, ...]:
    """Return what a scheduler does next."""
    rounds: list[gp.Round] = [made.next_round()]
    made.node_up("v100-1")
    made.report("j1", steps_done=7)
    rounds += [made.plan_next(), made.next_round(), made.next_round()]
    return rounds, made.delivery(), made.failed, made.nodes, made.jobs, made.running


def shares(**fractions: float) -> Fixed:
    """A policy that gives each job this part of its time on v100."""
    return Fixed(shares={job_id: {"v100": fraction} for job_id, fraction in fractions.items()})


def line(rounds: Sequence[gp.Round]) -> list[str]:
    """The jobs that run in each round, as one text."""
    return ["".join(round_.assignments) for round_ in rounds]


def refused(call: Callable[..., object], *args: Any, **fields: Any) -> str:
    """The message of the `InputError` that the call raises."""
    with pytest.raises(gp.InputError) as caught:
        call(*args, **fields)
    return str(caught.value)
