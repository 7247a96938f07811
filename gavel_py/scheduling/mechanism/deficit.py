"""Which jobs run in the next round, and on which accelerator type, by their deficits: a pure function of what is owed.

`choose_jobs` is the rule; any function of the same form can take its place (`RoundScheduler(mechanism=...)`). `serve` seats jobs in
an order, skipping gangs that do not fit: greedy, but without a step per job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.scheduling.mechanism.demand import HYSTERESIS_ROUNDS, URGENT_ROUNDS, RoundDemand, TypeSelection, scores_of
from gavel_py.scheduling.mechanism.local_search import improve


def serve(seats: TypeSelection, eligible: NDArray[np.bool_], *keys: NDArray[Any]) -> None:
    """Seat waiting jobs on eligible pairs, smallest keys first (the first key counts most), then by row.

    eligible, keys: (N, K). The same as trying one pair after the other: what comes before the first gang that does not fit is
    seated at once, and that type is closed to gangs of this size and above, so that few rounds of the loop are enough.
    """
    fitting = seats.num_gpus[:, None] <= np.array(seats.free)
    pairs = np.flatnonzero(eligible & fitting & (seats.columns < 0)[:, None])
    order = np.lexsort([key.take(pairs) for key in reversed(keys)])
    rows, columns = np.divmod(pairs[order], eligible.shape[1])
    while rows.size:
        seated = _until_one_does_not_fit(seats, rows, columns)
        seats.seat(rows[seated], columns[seated])
        left = (seats.columns[rows] < 0) & (seats.num_gpus[rows] <= np.array(seats.free)[columns])
        rows, columns = rows[left], columns[left]


def _until_one_does_not_fit(seats: TypeSelection, rows: Indices, columns: Indices) -> Indices:
    """The positions, in a list of pairs, of those that one would seat before the first misfit."""
    first = np.flatnonzero(_first_of_job(rows, len(seats.columns)))
    sizes, types = seats.num_gpus[rows[first]], columns[first]
    fits = np.ones(len(first), dtype=bool)
    for column, free in enumerate(seats.free):
        of_type = types == column
        fits[of_type] = np.cumsum(sizes[of_type]) <= free
    return first if fits.all() else first[: int(fits.argmin())]


def _first_of_job(rows: Indices, count: int) -> NDArray[np.bool_]:
    """Where each job stands for the first time."""
    positions = np.arange(len(rows))
    earliest = np.empty(count, dtype=np.int64)
    earliest[rows[::-1]] = positions[::-1]  # of several, the last one written stays
    result: NDArray[np.bool_] = earliest[rows] == positions
    return result


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
    seats = TypeSelection(demand.num_gpus, demand.capacities)
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
