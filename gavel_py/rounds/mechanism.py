"""Who runs in the next round, and on which accelerator type: a pure function of what is owed.

Any function of the same form can take its place (`RoundScheduler(mechanism=...)`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.displacement import displace
from gavel_py.rounds.exchange import exchange
from gavel_py.rounds.seats import Seats

__all__ = ["HYSTERESIS_ROUNDS", "URGENT_ROUNDS", "Mechanism", "RoundDemand", "choose_jobs"]

Floats = NDArray[np.float64]

HYSTERESIS_ROUNDS = 1.5
URGENT_ROUNDS = 3.0

# Lifts urgent pairs above all others, whose scores are a few rounds; not so large that sums of scores lose their last digits.
URGENT_SCORE = 1e4


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundDemand:
    """What one round chooses from: N jobs, K accelerator types. Ties go to the job that stands first.

    deficits: (N, K) D_ij, rounds owed from before, negative when ahead; fractions: (N, K) X_ij;
    runnable: (N, K) bool, may job i run on type j this round; throughputs: (N, K) steps/s, 0 where it can never run;
    num_gpus: (N,) s_i; capacities: (K,) GPUs to give; running_on: (N,) column of the previous round or -1;
    backfill: may GPUs that nobody is owed be given to other jobs.
    """

    deficits: Floats
    fractions: Floats
    runnable: NDArray[np.bool_]
    throughputs: Floats
    num_gpus: NDArray[np.int64]
    capacities: NDArray[np.int64]
    running_on: NDArray[np.int64]
    backfill: bool

    @property
    def claims(self) -> Floats:
        """(N, K) D_ij + X_ij, the rounds that job i would be owed on type j at the end of this round if it did not run there."""
        return _rounded(self.deficits + self.fractions)

    @property
    def running(self) -> NDArray[np.bool_]:
        """(N, K) bool, ran job i on type j in the previous round."""
        running: NDArray[np.bool_] = self.running_on[:, None] == np.arange(len(self.capacities))
        return running


Mechanism = Callable[[RoundDemand], NDArray[np.int64]]


def choose_jobs(
    demand: RoundDemand, *, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS
) -> NDArray[np.int64]:
    """Return the (N,) column on which each job runs this round, -1 for none; gangs whole, Σ_i s_i <= c_j.

    Job i has a claim of D_ij + X_ij rounds on type j, and is owed this round there when the claim is positive. A pair that is owed
    scores √s_i·claim_ij + h·[i runs on j now]; pairs with a claim above `urgent_rounds` come before all others.
    1. Seat jobs by score, skipping gangs that do not fit.
    2. Let jobs change places (`exchange`) and gangs displace others (`displace`) while Σ s_i·score_i over the seated rises.
    3. If `backfill`, fill what is left with waiting jobs, each where it is fastest compared with its own best type, so that no
       GPU idles while a waiting job that could run there fits.

    Large gangs find room less often than small ones, therefore √s. The hysteresis h = `hysteresis_rounds` spares restarts: it keeps
    a running gang for h/√s rounds more than its claim would, the larger the gang the less.
    For single-GPU jobs step 2 ends with the best choice there is (a maximum-weight assignment), so that deficits stay within a few
    rounds and the time received tends to the fractions, even when all GPUs and all jobs are spoken for all of the time. With gangs
    of mixed sizes each round is a packing problem, which step 2 solves nearly, not exactly.
    """
    possible = demand.runnable & (demand.num_gpus[:, None] <= demand.capacities)
    scores = _scores(demand, possible, hysteresis_rounds, urgent_rounds)
    fractions = _rounded(demand.fractions)
    seats = Seats(demand.num_gpus, demand.capacities)
    _serve(seats, np.isfinite(scores), [-scores, -fractions])
    exchange(seats, scores)
    while displace(seats, scores):
        exchange(seats, scores)
    if demand.backfill:
        _serve(seats, possible, [-_relative_speed(demand), ~demand.running, -demand.claims, -fractions])
    return seats.columns


def _scores(demand: RoundDemand, possible: NDArray[np.bool_], hysteresis_rounds: float, urgent_rounds: float) -> Floats:
    """(N, K) the score of each pair that is owed this round, -inf for the others."""
    claims, running = demand.claims, demand.running
    scores = np.sqrt(demand.num_gpus)[:, None] * claims + hysteresis_rounds * running
    owed = claims > 0
    if demand.backfill:
        # Running on, ahead of what is owed, is a use of idle GPUs too; the hysteresis says how far ahead.
        owed |= running & (_rounded(demand.fractions) > 0) & (scores > 0)
    scores[claims > urgent_rounds] += URGENT_SCORE
    return np.where(possible & owed, scores, -np.inf)


def _rounded(rounds: Floats) -> Floats:
    """Without the noise of solvers and sums, so that what is meant to be tied is tied."""
    result: Floats = np.round(rounds, 6)
    return result


def _relative_speed(demand: RoundDemand) -> Floats:
    """(N, K) T_ij / max_k T_ik, 0 for a job that can run nowhere."""
    best = demand.throughputs.max(axis=1, keepdims=True, initial=0.0)
    relative: Floats = np.divide(demand.throughputs, best, out=np.zeros_like(demand.throughputs), where=best > 0)
    return relative


def _serve(seats: Seats, eligible: NDArray[np.bool_], keys: Sequence[NDArray[Any]]) -> None:
    """Seat waiting jobs greedily on eligible pairs, smallest keys first (the first key counts most), skipping what does not fit."""
    rows, columns = np.nonzero(eligible & (seats.columns < 0)[:, None])
    order = np.lexsort([key[rows, columns] for key in reversed(keys)])
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if seats.fits(row, column):
            seats.move(row, column)
