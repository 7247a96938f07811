"""Who runs in the next round, and on which accelerator type: a pure function of what is owed.

Any function of the same form can take its place (`RoundScheduler(mechanism=...)`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.mechanism.local_search import improve
from gavel_py.scheduling.mechanism.scores import HYSTERESIS_ROUNDS, URGENT_ROUNDS, scores_of
from gavel_py.scheduling.mechanism.seats import Seats
from gavel_py.scheduling.mechanism.serving import serve

__all__ = ["choose_jobs"]

Floats = NDArray[np.float64]


def choose_jobs(
    demand: RoundDemand, *, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS
) -> NDArray[np.int64]:
    """Return the (N,) column on which each job runs this round, -1 for none; gangs whole, Σ_i s_i <= c_j.

    Job i has a claim of D_ij + X_ij rounds on type j, and is owed this round there when the claim is positive. A pair that is owed
    scores its claim if the job has never run; otherwise a_i less, plus h_ij/2 where it runs now and minus h_ij/2 where not, and
    half a round more when the job is promised all rounds. With what has been promised to the job so far, a_i grows from ⅓ to 1, and
    h_ij with it (`scores_of`). Pairs with a claim above `urgent_rounds` come before the others.
    1. Seat the jobs that are locked.
    2. Seat jobs by score, skipping gangs that do not fit.
    3. Let jobs change places and displace each other (`improve`) while Σ s_i·score_i over the seated rises.
    4. If `backfill`, fill what is left with waiting jobs, each where it is fastest compared with its own best type, so that no
       GPU idles while a waiting job that could run there fits.

    So a running gang keeps its place until another is owed more than it is by the mean of their h; `hysteresis_of` has the formula.
    With h = 0 and restarts that cost nothing, jobs take turns by the time that is left until their claims pass `urgent_rounds`; for
    single-GPU jobs a bound of 1 then holds nearly always. For these, step 3 ends with the best choice there is (a maximum-weight
    assignment); with gangs of mixed sizes each round is a packing problem, which it solves nearly, not exactly.
    """
    seats = Seats(demand.num_gpus, demand.capacities)
    if demand.locked.any():
        serve(seats, demand.possible & demand.running & demand.locked[:, None], -demand.claims)
    scores = scores_of(demand, hysteresis_rounds, urgent_rounds)
    # Who is locked has no other choice, so the steps below leave it alone.
    scores[seats.columns >= 0] = -np.inf
    serve(seats, np.isfinite(scores), -scores, -demand.shares)
    improve(seats, scores)
    if demand.backfill and any(seats.free):
        serve(seats, demand.possible, -_relative_speed(demand), ~demand.running, -demand.claims, -demand.shares)
    return seats.columns


def _relative_speed(demand: RoundDemand) -> Floats:
    """(N, K) T_ij / max_k T_ik, 0 for a job that can run nowhere."""
    best = demand.throughputs.max(axis=1, keepdims=True, initial=0.0)
    relative: Floats = np.divide(demand.throughputs, best, out=np.zeros_like(demand.throughputs), where=best > 0)
    return relative
