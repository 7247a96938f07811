"""What the proof of an allocation says of the jobs of one class: what is scarce to them, and whether their throughput is certain.

`duals_of` picks the stage of the proof that decides on their share, with its dual prices. `net_gains` are the reduced costs: what
time would be worth to the objective, less what all that it takes is worth elsewhere. `time_binding` says whether a job's own time
binds: whether it runs all of it, and whether any type could make it faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gavel_py.allocation.explain.records import Binding
from gavel_py.optimization.checking.certificates import Certificate, CheapestMix, Prices, Stages
from gavel_py.optimization.checking.shadow_prices import level_per_part
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.concave import ConcaveCertificate
from gavel_py.optimization.solving.levels import LevelCertificate
from gavel_py.optimization.solving.soft_levels import ChargedCertificate
from gavel_py.policies.nash_welfare import BeforeDiscount
from gavel_py.policies.sums import SumCertificate
from gavel_py.problem.arrays import Floats, Mask

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


def net_gains(duals: Duals, fractions: Floats) -> Floats | None:
    """Return (G, K') by how much the objective gets better, at most, per unit of time of one job in each column.

    Below 0 it gets worse. fractions: (G, K') of the classes. Of two jobs that share, both have to be added up: rows by which
    partners have each other then cancel out. None where the proof does not tell.
    """
    certificate = duals.certificate
    if isinstance(certificate, LevelCertificate):
        return _net_gains_at_level(certificate, fractions)
    if isinstance(certificate, SumCertificate | ConcaveCertificate | ChargedCertificate):
        return certificate.program.net_gains()
    return None


def _net_gains_at_level(certificate: LevelCertificate, fractions: Floats) -> Floats:
    """At the prices of a level, a job's throughput is worth the slope of its cheapest mix, and its time what that saves."""
    levels, jobs = certificate.levels, certificate.jobs
    if certificate.bound() == levels.alone:
        return np.zeros(fractions.shape)  # nothing is scarce: a job would be no better off alone
    costs = certificate.prices.costs(jobs)
    mix = CheapestMix(jobs.throughputs, jobs.runnable, costs)
    needs = levels.needs(certificate.value(fractions))
    at = (mix.slopes * needs + mix.offsets).argmax(axis=0)
    worth, time = (np.take_along_axis(table, at[None], axis=0)[0] for table in (mix.slopes, -mix.offsets))
    net = np.where(jobs.runnable, worth[:, None] * jobs.throughputs - costs - time[:, None], 0.0)
    gains: Floats = net * level_per_part(certificate)
    return gains


SOME = 1e-5
"""Time that is as good as none: an interior point is as near to 0 as this."""


def is_all(times: Floats) -> Mask:
    """Return whether (..., K) time fractions are all of a job's time."""
    return times.sum(axis=-1) >= 1 - SOME  # type: ignore[no-any-return]


def could_use(speeds: Floats, runnable: Mask, times: Floats) -> Mask:
    """Return (K,) the types that could make a job faster: any, or, if it runs all of its time, those faster than one it is on."""
    if not is_all(times):
        return runnable
    faster: Mask = runnable & (speeds > speeds[times > SOME].min())
    return faster


def time_binding(jobs: JobClasses, at: int, times: Floats, names: Sequence[str]) -> Binding | None:
    """Return that its own time binds a job, if it runs all of it; so more GPUs of the types where it runs cannot help it.

    names: of the types of the columns.
    """
    if not is_all(times):
        return None
    runnable, real = jobs.runnable[at], jobs.real_throughputs[at]
    where = " and ".join(dict.fromkeys(names[j] for j in np.flatnonzero(times > SOME).tolist()))
    if could_use(jobs.throughputs[at], runnable, times).any():
        own = ", or GPUs of its own," if (jobs.gpu_parts < 1).any() else ""
        what = f"it runs all of the time: only faster GPUs{own} would help it"
    elif could_use(real, runnable, times).any():
        what = f"it runs all of the time, on {where}, and the policy takes no type to be faster"
    else:
        what = f"it runs all of the time, on {where}: it can run nowhere faster"
    return Binding("time", "time", None, what)
