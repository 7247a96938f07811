"""A job's own time: does it run all of it, and could any type make it faster?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explain.records import Binding
from gavel_py.optimization.job_classes import JobClasses

__all__ = ["could_use", "is_all", "time_binding"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

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
