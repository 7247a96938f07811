"""What may be set of a simulation, and what goes with which policy."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Literal, get_args

from gavel_py.errors import Fault, InputError
from gavel_py.policies import Policy
from gavel_py.scheduling.scheduler_base import why_rounds
from gavel_py.simulator.measuring import job_window

__all__ = ["EVENT_CHECKPOINT_SECONDS", "PROGRESS", "Estimates", "JobFailures", "check_settings"]

Estimates = Literal["exact", "recorded"]
JobFailures = float | Literal["recorded"]

PROGRESS = frozenset({"steps_remaining", "isolated_seconds"})
"""What a policy may read that changes as jobs get on; for any other, the scheduler need not be told."""

EVENT_CHECKPOINT_SECONDS = 360.0
"""From one checkpoint to the next where there are no rounds, unless it is said: as often as rounds of the usual length begin."""


def check_settings(
    policy: Policy,
    round_seconds: float | None,
    job_failures: JobFailures,
    checkpoint_seconds: float | None,
    estimates: str,
    seed: int,
    interference: float,
    measure_jobs: object,
) -> None:
    """Raise `InputError` for a setting that is wrong, or does not go with the policy."""
    faults = []
    if checkpoint_seconds is not None and not (
        isinstance(checkpoint_seconds, Real) and not isinstance(checkpoint_seconds, bool) and 0 < checkpoint_seconds < math.inf
    ):
        text = f"must be a finite number greater than 0, or None, found {checkpoint_seconds!r}"
        faults.append(Fault("simulation", "checkpoint_seconds", text))
    if job_failures != "recorded" and not (isinstance(job_failures, Real) and 0 <= job_failures < 1):
        text = f'must be a probability of at least 0 and below 1, or "recorded", found {job_failures!r}'
        faults.append(Fault("simulation", "job_failures", text))
    if not (isinstance(interference, Real) and not isinstance(interference, bool) and 0 <= interference < 1):
        faults.append(Fault("simulation", "interference", f"must be at least 0 and below 1, found {interference!r}"))
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        faults.append(Fault("simulation", "seed", f"must be a whole number of at least 0, found {seed!r}"))
    if estimates not in get_args(Estimates):
        faults.append(Fault("simulation", "estimates", f'must be "exact" or "recorded", found {estimates!r}'))
    try:
        job_window(measure_jobs)
    except ValueError as error:
        faults.append(Fault("simulation", "measure_jobs", str(error)))
    if round_seconds is None and (why := why_rounds(policy)):
        faults.append(Fault("simulation", "round_seconds", f"must be given for {policy.name}, {why}"))
    InputError.raise_any(faults)
