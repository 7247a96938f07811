"""What limits are worth to an objective: by how much it gets better where a limit is less strict."""

from __future__ import annotations

from dataclasses import dataclass

from gavel_py.optimization.checking.certificates import Certificate, Prices, Stages
from gavel_py.optimization.formulation.linear_rows import Rules, entries_of, scale_of
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.levels import LevelCertificate
from gavel_py.problem.arrays import Floats

STEP = 1e-6
"""The part of all that there is by which there is more, to see what that is worth."""


def limit_prices(certificate: Certificate | None, rules: Rules) -> Floats | None:
    """Return (R,) by how much the objective gets better at most, per unit by which each of `rules.hard_rows` is less strict.

    For the first small part of a unit it is just that, unless the optimum has a kink there. None where there are no prices.
    """
    while isinstance(certificate, Stages):
        certificate = certificate.stages[certificate.main].certificate
    if certificate is None or not rules.hard_rows:
        return None
    parts = certificate.scarcity.limits[: len(rules.hard_rows)]
    if len(parts) < len(rules.hard_rows):
        return None
    jobs = certificate.jobs
    scales = [scale_of(row.most, entries_of(row, jobs.rows, jobs.num_gpus)[1]) for row in rules.hard_rows]
    worth = level_per_part(certificate) if isinstance(certificate, LevelCertificate) else 1.0
    prices: Floats = parts * worth / scales
    return prices


@dataclass(frozen=True)
class _Richer(Prices):
    """The same prices where more is there to be sold."""

    more: float

    def worth(self, jobs: JobClasses) -> float:
        return super().worth(jobs) + self.more


def level_per_part(certificate: LevelCertificate) -> float:
    """Return by how much the level gets better per unit of what is scarce, at the prices that prove it."""
    levels, prices = certificate.levels, certificate.prices
    here = levels.affordable(levels.alone, prices)
    there = levels.affordable(levels.alone, _Richer(prices.gpus, prices.limits, STEP))
    return abs(there - here) / STEP
