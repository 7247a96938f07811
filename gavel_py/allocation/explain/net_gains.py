"""What time would be worth to the objective, less what all that it takes is worth elsewhere: the reduced costs of a proof."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explain.duals import Duals
from gavel_py.optimization.certificates import CheapestMix
from gavel_py.optimization.concave import ConcaveCertificate
from gavel_py.optimization.levels import LevelCertificate
from gavel_py.optimization.shadow_prices import level_per_part
from gavel_py.optimization.soft_levels import ChargedCertificate
from gavel_py.policies.sums import SumCertificate

__all__ = ["net_gains"]

Floats = NDArray[np.float64]


def net_gains(duals: Duals, fractions: Floats) -> Floats | None:
    """Return (G, K') by how much the objective gets better, at most, per unit of time of one job in each column.

    Below 0 it gets worse. fractions: (G, K') of the classes. Of two jobs that share, both have to be added up: rows by which
    partners have each other then cancel out. None where the proof does not tell.
    """
    certificate = duals.certificate
    if isinstance(certificate, LevelCertificate):
        return _at_level(certificate, fractions)
    if isinstance(certificate, SumCertificate | ConcaveCertificate | ChargedCertificate):
        return certificate.program.net_gains()
    return None


def _at_level(certificate: LevelCertificate, fractions: Floats) -> Floats:
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
