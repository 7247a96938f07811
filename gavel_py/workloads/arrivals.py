"""When generated jobs arrive: as a Poisson process, or in bursts with pauses between them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError

__all__ = ["arrivals"]

Floats = NDArray[np.float64]
SECONDS_PER_HOUR = 3600.0


def arrivals(jobs_per_hour: float, burstiness: float, phases: Floats, places: Floats) -> Floats:
    """Return N arrival times, s, from 2 N numbers in [0, 1); the first job arrives after the first gap.

    Gaps have the mean 1 / jobs_per_hour and the coefficient of variation c = burstiness. For c = 1 they are exponential, a Poisson
    process. For c > 1 a gap is exponential with rate 2 p r with probability p, otherwise with rate 2 (1 - p) r, where r is the rate
    of arrivals and p = (1 + sqrt((c^2 - 1) / (c^2 + 1))) / 2: many short gaps, and as much time in few long ones.
    """
    if not 0 < jobs_per_hour < math.inf:
        raise InputError(Fault("arrivals", "jobs_per_hour", f"must be a finite number above 0, found {jobs_per_hour!r}"))
    if not 1 <= burstiness < math.inf:
        problem = f"must be at least 1 (1 = Poisson, more = burstier), found {burstiness!r}"
        raise InputError(Fault("arrivals", "burstiness", problem))
    squared = burstiness**2
    part = (1 + math.sqrt((squared - 1) / (squared + 1))) / 2
    rates = np.where(phases < part, 2 * part, 2 * (1 - part)) * jobs_per_hour / SECONDS_PER_HOUR
    return np.cumsum(-np.log1p(-places) / rates)
