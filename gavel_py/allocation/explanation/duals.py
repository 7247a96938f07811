"""Dual values that bind the jobs of one class, read from the proof of an allocation.

`duals_of` selects the stage of a proof that determines the throughput of a job class, with its dual prices. `net_gains` returns the
reduced costs of columns. `time_bindings` reports jobs that are limited by their own time. The dual prices themselves come from the
linear programs: `optimization/solving/level_search.py` for levels, `optimization/formulation/matrices.py` for sums; for a large
number of different jobs, from `level_decomposition.py` and `price_decomposition.py` beside it; those of limits from `levels.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.allocation.explanation.records import Binding
from gavel_py.optimization.checking.certificates import Certificate, CheapestMix, Prices, Stages
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.levels import LevelCertificate, level_per_part
from gavel_py.policies.nash_welfare import BeforeDiscount
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.tolerances import INTERIOR_TOLERANCE, PROOF_TOLERANCE, SOLVER_TOLERANCE


@dataclass(frozen=True)
class Duals:
    """One stage of a proof, seen from the jobs of one class.

    Attributes:
        stage: The name of the stage, empty if the proof has only one.
        certificate: The proof of the stage.
        jobs: The job classes.
        at: The row of the class.
        prices: Prices of GPUs and limits, 0 for those that are not scarce.
        is_main: Whether the allocation reports the value of this stage.
        level: The level that limits the jobs, None if they have more than it requires or there is none.
        certain: Whether the jobs have the same throughput in every optimal allocation.
        kept_part: The part of their time that remains after a discount.
    """

    stage: str
    certificate: Certificate
    jobs: JobClasses
    at: int
    prices: Prices
    is_main: bool = True
    level: float | None = None
    certain: bool = False
    kept_part: float = 1.0


def duals_of(certificate: Certificate, fractions: Floats, at: int) -> Duals:
    """Return the stage that determines the throughput of class `at`, with its dual prices.

    This is the first level that gives the class no more than it requires, else the main stage if it is a sum, else the last stage.
    fractions: (G, K) of the certificate's classes.
    """
    *earlier, last = _stages(certificate, "", is_main=True, tolerance=0.0)
    for stage in earlier:
        if isinstance(stage.certificate, LevelCertificate):
            is_tight, duals = _of_level(stage, stage.certificate, fractions, at)
            if is_tight:
                return duals
        elif stage.is_main:
            return _of_sum(stage, at)
    if isinstance(last.certificate, LevelCertificate):
        return _of_level(last, last.certificate, fractions, at)[1]
    return _of_sum(last, at)


@dataclass(frozen=True)
class _Stage:
    """A stage of a proof that is not divided further."""

    name: str
    certificate: Certificate
    is_main: bool
    tolerance: float


def _stages(certificate: Certificate, name: str, *, is_main: bool, tolerance: float) -> Iterator[_Stage]:
    """Yield the stages of a proof in order, with those of nested proofs."""
    if not isinstance(certificate, Stages):
        yield _Stage(name, certificate, is_main, tolerance)
        return
    for number, stage in enumerate(certificate.stages):
        path = f"{name}, {stage.name}" if name else stage.name
        main = is_main and number == certificate.main
        yield from _stages(stage.certificate, path, is_main=main, tolerance=max(tolerance, stage.tolerance))


def _of_sum(stage: _Stage, at: int) -> Duals:
    """Return the dual values of a sum or concave program; a discount may have reduced the time of jobs afterwards."""
    proven = stage.certificate
    kept_part = float(proven.kept[at]) if isinstance(proven, BeforeDiscount) else 1.0
    certificate = proven.whole if isinstance(proven, BeforeDiscount) else proven
    prices = _significant(certificate.jobs, certificate.scarcity)
    return Duals(stage.name, certificate, certificate.jobs, at, prices, is_main=stage.is_main, kept_part=kept_part)


def _of_level(stage: _Stage, certificate: LevelCertificate, fractions: Floats, at: int) -> tuple[bool, Duals]:
    """Return whether the level limits the class, and its prices.

    The level does not limit jobs that have more than it requires, or could have more at no cost (`free_until`).
    """
    levels, jobs = certificate.levels, certificate.jobs
    level = certificate.value(fractions)
    need, fastest = float(levels.needs(level)[at]), float(jobs.fastest[at])
    # At the level of a job that is alone on the cluster, only time binds, and nothing is scarce.
    is_utopia = certificate.bound() == levels.alone
    prices = certificate.scarcity.scaled(0.0) if is_utopia else _significant(jobs, certificate.scarcity)
    all_time = need >= fastest * (1 - SOLVER_TOLERANCE)
    has_more = float(jobs.throughputs[at] @ fractions[at]) > need * (1 + PROOF_TOLERANCE)
    is_tight = not has_more and (
        all_time or (not is_utopia and float(levels.free_until(level, prices)[at]) <= need * (1 + SOLVER_TOLERANCE))
    )
    duals = Duals(stage.name, certificate, jobs, at, prices, is_main=stage.is_main)
    if not is_tight:
        return False, duals
    # In later levels of progressive filling, the level no longer counts for jobs at full speed: only their time binds.
    required = 0.0 if stage.name and all_time else float(levels.demand.need(jobs, level)[at])
    is_level = required > 0 and required >= float(jobs.floors[at])
    return True, replace(duals, level=level if is_level else None, certain=stage.tolerance <= PROOF_TOLERANCE)


def _significant(jobs: JobClasses, prices: Prices) -> Prices:
    """Return the prices, with 0 for those that are rounding errors."""
    values = np.concatenate([prices.gpus * jobs.capacities, np.abs(prices.limits)])
    scarce = values > SOLVER_TOLERANCE * values.max(initial=0.0)
    count = len(prices.gpus)
    return Prices(np.where(scarce[:count], prices.gpus, 0.0), np.where(scarce[count:], prices.limits, 0.0))


def net_gains(duals: Duals, fractions: Floats) -> Floats | None:
    """Return (G, K') the reduced cost of each column: the largest gain in the objective per unit of time of one job there.

    Negative values are losses. For two co-located jobs, the sum of both entries counts, in which the balance rows cancel out.
    None if the certificate does not determine the reduced costs. fractions: (G, K') of the classes.
    """
    certificate = duals.certificate
    if isinstance(certificate, LevelCertificate):
        return _net_gains_at_level(certificate, fractions)
    find = getattr(certificate, "net_gains", None)  # not by class: that of soft rules would import cvxpy, which takes a second
    return None if find is None else find()


def _net_gains_at_level(certificate: LevelCertificate, fractions: Floats) -> Floats:
    """Return net gains at the prices of a level: throughput is worth the slope of the cheapest mix, time its negative offset."""
    levels, jobs = certificate.levels, certificate.jobs
    if certificate.bound() == levels.alone:
        return np.zeros(fractions.shape)  # at the utopia bound nothing is scarce
    costs = certificate.prices.costs(jobs)
    mix = CheapestMix(jobs.throughputs, jobs.runnable, costs)
    needs = levels.needs(certificate.value(fractions))
    at = (mix.slopes * (needs - mix.corners) + mix.heights).argmax(axis=0)
    time_prices = mix.slopes * mix.corners - mix.heights
    price, time = (np.take_along_axis(table, at[None], axis=0)[0] for table in (mix.slopes, time_prices))
    net = np.where(jobs.runnable, price[:, None] * jobs.throughputs - costs - time[:, None], 0.0)
    return net * level_per_part(certificate)


def is_all(times: Floats) -> Mask:
    """Return whether (..., K) time fractions sum to 1."""
    return times.sum(axis=-1) >= 1 - INTERIOR_TOLERANCE  # type: ignore[no-any-return]


def could_use(speeds: Floats, runnable: Mask, times: Floats) -> Mask:
    """Return (K,) the types that could make a job faster.

    All runnable types if the job has time left, else those that are faster than its slowest type in use.
    """
    if not is_all(times):
        return runnable
    faster: Mask = runnable & (speeds > speeds[times > INTERIOR_TOLERANCE].min())
    return faster


def time_bindings(jobs: JobClasses, at: int, times: Floats, names: Sequence[str]) -> Iterator[Binding]:
    """Yield the binding of a job that runs all of the time, so that more GPUs of its types cannot help; nothing for other jobs.

    names: the accelerator type of each column.
    """
    if not is_all(times):
        return
    runnable, real = jobs.runnable[at], jobs.real_throughputs[at]
    where = " and ".join(dict.fromkeys(names[j] for j in np.flatnonzero(times > INTERIOR_TOLERANCE).tolist()))
    if could_use(jobs.throughputs[at], runnable, times).any():
        own = ", or GPUs of its own," if (jobs.gpu_parts < 1).any() else ""
        own = ", or more of them," if jobs.is_elastic[at] else own
        what = f"it runs all of the time: only faster GPUs{own} would help it"
    elif could_use(real, runnable, times).any():
        what = f"it runs all of the time, on {where}, and the policy takes no type to be faster"
    else:
        what = f"it runs all of the time, on {where}: it can run nowhere faster"
    yield Binding("time", "time", None, what)
