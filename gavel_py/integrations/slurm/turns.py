"""The cost of preemption on this cluster, and the length of turns that follows from it.

`RestartCost` is measured from the stops and starts of the driver. `choose` is the mechanism of the driver's rounds: if every job
has GPUs, jobs rarely exchange types.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.demand import HYSTERESIS_ROUNDS, URGENT_ROUNDS, GangSelection, RoundDemand, sizing
from gavel_py.scheduling.mechanism.elastic import choose_promised
from gavel_py.scheduling.mechanism.rules import choose_jobs

if TYPE_CHECKING:
    from gavel_py.scheduling import RoundScheduler

MECHANISM = f"{__name__}:choose"

PATIENCE = 5.0
"""Factor by which turns are longer if no job waits. Exchanging types then only evens out speeds, which is not urgent: 45 equal jobs
on 36 fast and 36 slower GPUs exchange 18 places about every 20 rounds instead of every third round."""

LOST_SHARE = 0.02
"""Share of GPU time that preemptions may cost: before it is preempted, a job runs for the cost of a restart divided by this."""

UNMEASURED_STOP_SECONDS = 10.0
"""Assumed stop time before the first stop is measured: a third of Slurm's default KillWait."""

SAMPLES = 20
"""Number of latest measurements from which the median is taken."""


@sizing
def choose(demand: RoundDemand) -> NDArray[np.int64] | GangSelection:
    """Return the (N,) column of the type on which each job runs this round, -1 for none; with elastic jobs, also their GPUs.

    Deficits decide as in `choose_jobs`, but turns are `PATIENCE` times as long if all jobs that can run have GPUs then, and
    exchanges that gain nothing are avoided (`gathered`). With elastic jobs this is `choose_promised`, under which running jobs soon
    take over the GPUs of jobs that have ended.
    """
    if demand.sizes is not None:
        return choose_promised(demand)
    demand = gathered(demand)
    patient = choose_jobs(demand, hysteresis_rounds=PATIENCE * HYSTERESIS_ROUNDS, urgent_rounds=PATIENCE * URGENT_ROUNDS)
    return patient if (patient[demand.possible.any(axis=1)] >= 0).all() else choose_jobs(demand)


def gathered(demand: RoundDemand) -> RoundDemand:
    """Return the demand with a job's fractions and deficits on equally fast types moved to the one on which it runs.

    GPUs of one type in different partitions are such types. For a waiting job, deficits are divided in proportion to its fractions.
    """
    speeds = demand.throughputs
    alike = (speeds[:, :, None] == speeds[:, None, :]) & (speeds[:, :, None] > 0)
    if not (alike.sum(axis=2) > 1).any():
        return demand
    stays = demand.running & (speeds > 0)
    is_beside = (alike & stays[:, None, :]).any(axis=2)
    fractions, deficits = ((alike * each[:, None, :]).sum(axis=2) for each in (demand.fractions, demand.deficits))
    parts = np.divide(demand.fractions, fractions, out=1.0 / np.maximum(alike.sum(axis=2), 1), where=fractions > 0)
    parts = np.where(is_beside, stays, np.where(speeds > 0, parts, 0.0))
    return replace(demand, fractions=parts * fractions, deficits=np.where(speeds > 0, parts * deficits, demand.deficits))


@dataclass
class RestartCost:
    """Seconds for which GPUs are idle when one job replaces another. stops, starts: the latest measurements, in seconds."""

    stops: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def measure(self, *, stop_seconds: float | None, start_seconds: float | None) -> None:
        """Add the times that the stops and the starts of a round took; None if there were none."""
        if stop_seconds is not None:
            self.stops = [*self.stops, stop_seconds][-SAMPLES:]
        if start_seconds is not None:
            self.starts = [*self.starts, start_seconds][-SAMPLES:]

    @property
    def seconds(self) -> float:
        """The median time of a stop plus that of a start."""
        return (median(self.starts) if self.starts else 0.0) + (median(self.stops) if self.stops else UNMEASURED_STOP_SECONDS)

    def apply(self, scheduler: RoundScheduler, fixed: frozenset[str]) -> None:
        """Make a scheduler plan with this cost, except for options that the user has fixed.

        If no job waits, jobs may change their GPUs at any time, since they only do so for faster ones or after a long turn.
        """
        if "restart_seconds" not in fixed:
            scheduler.restart_seconds = self.seconds
        if "min_run_seconds" not in fixed:
            is_crowded = len(scheduler.jobs) > len(scheduler.running)
            scheduler.min_run_seconds = self.seconds / LOST_SHARE if is_crowded else 0.0
