"""What the proof of an allocation says of the jobs of one class: what is scarce to them, and whether they are tied down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.certificates import Certificate, Prices, Stages
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.levels import LevelCertificate
from gavel_py.policies.nash_welfare import BeforeDiscount

__all__ = ["SMALL", "Duals", "duals_of"]

Floats = NDArray[np.float64]

SMALL = 1e-9
"""A price below this part of what the dearest type or limit is worth in all is none."""

JUST = 1e-6
"""A throughput above what is needed by no more than this part is just that."""


@dataclass(frozen=True)
class Duals:
    """What one stage of a proof says of the jobs of a class.

    stage: its name, empty where there is only one; certificate: its proof; jobs: the classes; at: the row of the class; prices: of
    GPUs and limits, 0 for what is not scarce; told: whether this is about the objective that is told; level: the level that the job
    is at, None where it has more than its level asks for or there is none; certain: whether such a job has the same throughput in
    every best allocation; kept: what part of its time a discount leaves it.
    """

    stage: str
    certificate: Certificate
    jobs: JobClasses
    at: int
    prices: Prices
    told: bool = True
    level: float | None = None
    certain: bool = False
    kept: float = 1.0


def duals_of(certificate: Certificate, fractions: Floats, at: int) -> Duals:
    """Return what holds the jobs of class `at` where they are, in the stage that decides on their share.

    fractions: (G, K) of the certificate's classes. That is the first level which leaves them no more than they need; else the sum
    that is told, or the last one.
    """
    stages = list(_stages(certificate, "", told=True, tolerance=0.0))
    for stage in stages:
        if isinstance(stage.certificate, LevelCertificate):
            duals = _at_level(stage, stage.certificate, fractions, at)
            if duals is not None:
                return duals
        elif stage.told or stage is stages[-1]:
            return _of_sum(stage, at)
    return _beyond(stages[-1], at)


@dataclass(frozen=True)
class _Stage:
    """A proof that has no stages of its own."""

    name: str
    certificate: Certificate
    told: bool
    tolerance: float


def _stages(certificate: Certificate, name: str, *, told: bool, tolerance: float) -> Iterator[_Stage]:
    if not isinstance(certificate, Stages):
        yield _Stage(name, certificate, told, tolerance)
        return
    for number, stage in enumerate(certificate.stages):
        path = f"{name}, {stage.name}" if name else stage.name
        is_told = told and number == certificate.main
        yield from _stages(stage.certificate, path, told=is_told, tolerance=max(tolerance, stage.tolerance))


def _of_sum(stage: _Stage, at: int) -> Duals:
    """What the dual values of a program say; jobs may have been left a part only of what was optimal."""
    whole = stage.certificate
    kept = float(whole.kept[at]) if isinstance(whole, BeforeDiscount) else 1.0
    certificate = whole.whole if isinstance(whole, BeforeDiscount) else whole
    prices = _significant(certificate.jobs, certificate.scarcity)
    return Duals(stage.name, certificate, certificate.jobs, at, prices, told=stage.told, kept=kept)


def _at_level(stage: _Stage, certificate: LevelCertificate, fractions: Floats, at: int) -> Duals | None:
    """What the prices of a level say; None of jobs that have more than it asks for, or could have at no cost (`free_until`)."""
    levels, jobs = certificate.levels, certificate.jobs
    level = certificate.value(fractions)
    need, fastest = float(levels.needs(level)[at]), float(jobs.fastest[at])
    if float(jobs.throughputs[at] @ fractions[at]) > need * (1 + JUST):
        return None
    alone, prices = _scarce_at_level(certificate)
    tied = need >= fastest * (1 - SMALL) or (not alone and float(levels.free_until(level, prices)[at]) <= need * (1 + SMALL))
    if not tied:
        return None
    # In a later level, who is as fast as can be takes no part any more: its own time says it all.
    asked = 0.0 if stage.name and need >= fastest * (1 - SMALL) else float(levels.demand.need(jobs, level)[at])
    return Duals(
        stage.name,
        certificate,
        jobs,
        at,
        prices,
        told=stage.told,
        level=level if asked > 0 and asked >= float(jobs.floors[at]) else None,
        certain=stage.tolerance <= JUST,
    )


def _scarce_at_level(certificate: LevelCertificate) -> tuple[bool, Prices]:
    """Whether some jobs would be no better off alone, and what is scarce: then nothing, since it is their own time that binds."""
    alone = certificate.bound() == certificate.levels.alone
    return alone, certificate.scarcity.scaled(0.0) if alone else _significant(certificate.jobs, certificate.scarcity)


def _beyond(stage: _Stage, at: int) -> Duals:
    """What a level says of jobs that have more than it asks for: what is scarce is so because of others."""
    certificate = stage.certificate
    assert isinstance(certificate, LevelCertificate)  # noqa: S101
    prices = _scarce_at_level(certificate)[1]
    return Duals(stage.name, certificate, certificate.jobs, at, prices, told=stage.told)


def _significant(jobs: JobClasses, prices: Prices) -> Prices:
    """The prices without those that are rounding."""
    worths = np.concatenate([prices.gpus * jobs.capacities, np.abs(prices.limits)])
    scarce = worths > SMALL * worths.max(initial=0.0)
    count = len(prices.gpus)
    return Prices(np.where(scarce[:count], prices.gpus, 0.0), np.where(scarce[count:], prices.limits, 0.0))
