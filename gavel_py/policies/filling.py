"""The demand family, level by level: all jobs rise together, and those that cannot rise further leave the others to go on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.certificates import Prices, Stage, Stages
from gavel_py.optimization.free_times import FreeTimes
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.levels import LevelCertificate
from gavel_py.optimization.linear_rows import Rules
from gavel_py.policies.base import Decision, Policy
from gavel_py.policies.demand import best_level_of, kept_levels, proportional_guess

if TYPE_CHECKING:
    from gavel_py.optimization.highs import LinearSolver
    from gavel_py.optimization.progressive_filling import Shares

__all__ = ["FillingPolicy"]


Floats = NDArray[np.float64]

SAME = 1e-9
"""The part by which levels may differ that are the same but for rounding."""

DUST = 1e-9
"""A part of a job's fastest throughput, below which it may have it only since solvers compute with rounding."""

ROOM = 5e-10
"""A part of what a job has, which is less than what a job that has stopped may be short of (`filling.STOPPED`)."""


@dataclass(frozen=True, kw_only=True)
class FillingPolicy(Policy):
    """Raise all jobs from 0 until some can rise no further, let the others rise on, and so on; write `shares`.

    Each level is a demand of its own, with a proven best value given what was reached before. The value told is the level at which
    the first job stops, be it for want of GPUs or since it cannot run any faster.
    """

    family: ClassVar[str] = "demand"

    @abstractmethod
    def shares(self, jobs: JobClasses) -> Shares:
        """Return who rises how fast, in service s_i · v_i."""

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.optimization.progressive_filling import fill

        if jobs.rules.has_penalties:
            text = "takes one level after the other, and cannot weigh them against soft constraints and the cost of change"
            raise InputError(Fault(f"policy {self.name}", "constraints", text))
        filled = fill(jobs, self.shares(jobs), solver, self.name)
        levels, first = zip(filled.levels, filled.found, strict=True), filled.found[0]
        fractions, least = filled.found[-1].fractions, LevelCertificate(filled.first_stop, first.prices)
        certificates = [least, *(LevelCertificate(level, best.prices) for level, best in levels)]
        stages = [Stage(f"level {n}" if n else "first stop", certificate) for n, certificate in enumerate(certificates)]
        # Where the first job stops since it cannot run faster, no GPU changes that.
        scarce = least.value(fractions) >= first.level * (1 - SAME)
        gains = first.shadow_prices if scarce else np.zeros(len(jobs.capacities))
        return Decision(_without_dust(jobs, fractions, certificates), Stages(tuple(stages)), gains)

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes:
        times: Floats = decision.time_fractions @ np.ones(len(jobs.capacities))
        return FreeTimes(times, times, is_certain=not jobs.rules)

    def guess(self, jobs: JobClasses) -> Floats | None:
        from gavel_py.optimization.progressive_filling import first_stop_of

        return proportional_guess(first_stop_of(jobs, self.shares(jobs), self.name))

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        from gavel_py.optimization.progressive_filling import first_stop_of

        return best_level_of(first_stop_of(jobs, self.shares(jobs), self.name), candidates, prices)

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        last = decision.certificate.stages[-1].certificate  # type: ignore[union-attr]
        (floor,) = kept_levels(self.name, jobs, last, decision.time_fractions, tolerance).floors
        # Whoever stopped before the last level keeps what it has; rounding must leave room for that.
        throughputs = np.einsum("ij,ij->i", jobs.throughputs, decision.time_fractions)
        least = np.minimum(floor.throughputs[jobs.rows], throughputs) * (1 - ROOM)
        return Rules(floors=(jobs.floor(self.name, least),))


def _without_dust(jobs: JobClasses, fractions: Floats, certificates: list[LevelCertificate]) -> Floats:
    """Return the time fractions without those next to 0 that no level asks for, as of a job that waits for its turn."""
    throughputs = np.einsum("ij,ij->i", jobs.throughputs, fractions)
    dust = (throughputs < DUST * jobs.fastest) & (fractions > 0).any(axis=1)
    if jobs.rules or not dust.any():  # what rules promise to several jobs together may be made of such parts
        return fractions
    without = np.where(dust, 0.0, throughputs)
    for certificate in certificates:
        with np.errstate(divide="ignore"):
            levels = certificate.levels.demand.level(jobs, without)
        dust &= levels >= certificate.value(fractions) * (1 - SAME)
    return np.where(dust[:, None], 0.0, fractions)
