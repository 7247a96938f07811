"""Short cuts for tests of schedulers: jobs, clusters and policies in a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import gavel_py as gp
from tests.fakes import FakeProfile
from tests.rounds.support import Fixed

__all__ = ["PROFILE", "job", "line", "refused", "scheduler", "shares"]

PROFILE = FakeProfile({"fast": {"v100": 4.0, "k80": 1.0}, "slow": {"v100": 1.0, "k80": 1.0}, "stuck": {"v100": 0.0}})


def job(job_id: str, num_gpus: int = 1, job_type: str = "fast", **fields: Any) -> gp.Job:
    return gp.Job(job_id, job_type=job_type, num_gpus=num_gpus, **fields)


def scheduler(cluster: str = "v100:1", jobs: Sequence[gp.Job] = (), **options: Any) -> gp.RoundScheduler:
    made = gp.RoundScheduler(gp.Cluster.from_inline(cluster), PROFILE, **options)
    for each in jobs:
        made.submit(each)
    return made


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
