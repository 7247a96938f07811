"""What a mechanism chooses from: the demand of a round, what a place is worth to each job on each type, and the choice so far.

`RoundDemand` is the demand, and `Mechanism` the form of a rule. `scores_of` is what a place is worth: most to the jobs that are
owed most, and more to those that run already. `TypeSelection` says which job has a place on which type while a round is being
chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundDemand:
    """What one round chooses from: N jobs, K accelerator types. Ties go to the job that stands first.

    deficits: (N, K) D_ij, rounds owed from before, negative when ahead; fractions: (N, K) X_ij;
    runnable: (N, K) bool, may job i run on type j this round; throughputs: (N, K) steps/s, 0 where it can never run;
    num_gpus: (N,) s_i; capacities: (K,) GPUs to give; running_on: (N,) column of the previous round or -1;
    backfill: may GPUs that nobody is owed be given to other jobs;
    received: (N, K) rounds received since the allocation in force began;
    restart_rounds: (N,) what a restart costs the job, in rounds;
    locked: (N,) bool, jobs that run now and must stay on their type;
    new: (N,) bool, jobs that have never run;
    kinds: (N, K) the `PlacementPreference` that each job should have on each type. These five are 0 unless given;
    promised: (N,) rounds promised so far, on all types together, since the job came; without limit unless given.
    """

    deficits: Floats
    fractions: Floats
    runnable: NDArray[np.bool_]
    throughputs: Floats
    num_gpus: NDArray[np.int64]
    capacities: NDArray[np.int64]
    running_on: NDArray[np.int64]
    backfill: bool
    received: Floats = field(default_factory=lambda: np.zeros(()))
    restart_rounds: Floats = field(default_factory=lambda: np.zeros(()))
    locked: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    promised: Floats = field(default_factory=lambda: np.full((), np.inf))
    kinds: NDArray[np.int8] = field(default_factory=lambda: np.zeros((), dtype=np.int8))

    def __post_init__(self) -> None:
        """Give what was left out its full shape."""
        jobs, pairs = self.num_gpus.shape, self.fractions.shape
        shapes = {"received": pairs, "restart_rounds": jobs, "locked": jobs, "new": jobs, "promised": jobs, "kinds": pairs}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                object.__setattr__(self, name, np.broadcast_to(getattr(self, name), shape))

    @cached_property
    def claims(self) -> Floats:
        """(N, K) D_ij + X_ij, the rounds that job i would be owed on type j at the end of this round if it did not run there."""
        return rounded(self.deficits + self.fractions)

    @cached_property
    def shares(self) -> Floats:
        """(N, K) X_ij, rounded."""
        return rounded(self.fractions)

    @cached_property
    def running(self) -> NDArray[np.bool_]:
        """(N, K) bool, ran job i on type j in the previous round."""
        running: NDArray[np.bool_] = self.running_on[:, None] == np.arange(len(self.capacities))
        return running

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """(N, K) bool, may job i run on type j, and does its gang fit there if nobody else does."""
        possible: NDArray[np.bool_] = self.runnable & (self.num_gpus[:, None] <= self.capacities)
        return possible


Mechanism = Callable[[RoundDemand], NDArray[np.int64]]


def rounded(rounds: Floats) -> Floats:
    """Without the noise of solvers and sums, so that what is meant to be tied is tied."""
    result: Floats = np.round(rounds, 6)
    return result


HYSTERESIS_ROUNDS = 2.6

URGENT_ROUNDS = 3.0

# Lifts urgent pairs above the others, whose scores differ by a few rounds, and the more the longer they have been urgent. If it
# were much larger, then fractions that no round can deliver would decide alone on how gangs are packed.
URGENT_SCORE = 5.0

# A job that is promised every round, now here and now there, can never make good for one in which it waits.
NO_SLACK_ROUNDS = 0.5

# One round owed is a third of what was promised after three rounds, and a hundredth after a hundred. Jobs that have been promised
# little so far, and may leave before they are compensated, go first and take short turns. Counting the coming round, a job has half
# of the full hysteresis after so many promised rounds.
SETTLING_ROUNDS = 2.0

# Among pairs that are about as near to their bound, the one that is owed more goes first.
CLAIM_WEIGHT = 0.02


def scores_of(demand: RoundDemand, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS) -> Floats:
    """(N, K) the score of each pair that is owed this round, -inf for the others; none that is owed scores less than 0.

    a_i = (P_i + 1) / (P_i + 1 + SETTLING_ROUNDS), P_i: rounds promised to job i so far.
    """
    settled = 1.0 - SETTLING_ROUNDS / (demand.promised[:, None] + 1.0 + SETTLING_ROUNDS)
    kept_for = _hysteresis(demand, hysteresis_rounds, settled)
    claims, running = demand.claims, demand.running
    owed = claims > 0
    if demand.backfill:
        # Running on, ahead of what is owed, is a use of idle GPUs too; the hysteresis says how far ahead.
        owed |= running & (demand.shares > 0) & (claims + kept_for > 0)
    turns_are_free = not hysteresis_rounds and not demand.restart_rounds.any()
    scores = _nearness(demand, urgent_rounds) if turns_are_free else _weighed(demand, kept_for, settled)
    scores += np.where(claims > urgent_rounds, URGENT_SCORE * (1.0 + claims - urgent_rounds), 0.0)
    return np.where(demand.possible & owed, scores, -np.inf)


def _hysteresis(demand: RoundDemand, rounds: float, settled: Floats) -> Floats:
    """(N, K) h_ij of each pair (`hysteresis_of`), where a_i multiplies all but the cost of a restart; settled: (N, 1) a_i."""
    restart = demand.restart_rounds[:, None]
    return restart + settled * hysteresis_of(demand.fractions, demand.num_gpus[:, None], np.zeros_like(restart), rounds)


def hysteresis_of(
    fractions: Floats, num_gpus: NDArray[np.int64], restart_rounds: Floats, rounds: float = HYSTERESIS_ROUNDS
) -> Floats:
    """h_ij = h·(½ + √(X_ij (1 − X_ij)))/√s_i + what a restart costs job i, in rounds; of the shape of the fractions.

    Turns of n rounds let a deficit swing by n·(1 − X) and cost a restart every n/X rounds. For the least of s·swing with so many
    restarts in all, swings must be as √(X (1 − X)/s). But no turn is shorter than a round; hence the ½.
    """
    spread = np.sqrt(np.clip(fractions * (1.0 - fractions), 0.0, None))
    result: Floats = rounds * (0.5 + spread) / np.sqrt(num_gpus) + restart_rounds
    return result


def _weighed(demand: RoundDemand, kept_for: Floats, settled: Floats) -> Floats:
    """(N, K) claim_ij for jobs that have never run, which no restart can hurt; claim_ij − a_i ± h_ij/2 for the others.

    Jobs that have run and are promised every round have half a round more. All scores are raised by the most that is subtracted
    from any, since serving a job is worth more than an idle GPU.
    """
    no_slack = rounded(demand.fractions.sum(axis=1, keepdims=True)) >= 1.0
    kept = np.where(demand.running, kept_for, -kept_for) / 2 + NO_SLACK_ROUNDS * no_slack - settled
    has_run = ~demand.new[:, None]
    raised = kept_for.max(initial=0.0, where=has_run) + 1.0 if has_run.any() else 0.0
    result: Floats = raised + demand.claims + np.where(has_run, kept, 0.0)
    return result


def _nearness(demand: RoundDemand, urgent_rounds: float) -> Floats:
    """(N, K) 1/t_ij + 1/t_i + a little for the claim: the rounds until the claim, and until all that job i is owed, pass the bound.

    Where restarts cost nothing, jobs can take turns by deadline, and deficits stay smaller than with the largest claims first. A
    job that is to run in every round, now here and now there, can never make good for one in which it waits: t_i tells.
    """
    claims, fractions = demand.claims, np.maximum(demand.fractions, 1e-9)
    promised = np.where(demand.shares > 0, claims, np.maximum(claims, 0.0))

    def in_time(owed: Floats, rates: Floats) -> Floats:
        return 1.0 / (1.0 + np.maximum(0.0, urgent_rounds - owed) / rates)

    of_job = in_time(promised.sum(axis=1, keepdims=True), np.maximum(fractions.sum(axis=1, keepdims=True), 1e-9))
    result: Floats = rounded(in_time(claims, fractions) + of_job + CLAIM_WEIGHT * claims)
    return result


class TypeSelection:
    """The choice so far: columns: (N,) type of each job, -1 = none; free: (K,) GPUs left of each type."""

    def __init__(self, num_gpus: Indices, capacities: Indices) -> None:
        self.num_gpus = num_gpus
        self.columns: Indices = np.full(len(num_gpus), -1, dtype=np.int64)
        self.free: list[int] = [int(capacity) for capacity in capacities]

    def copy(self) -> TypeSelection:
        """Return the same choice, to be changed by itself."""
        other = TypeSelection(self.num_gpus, np.array(self.free))
        other.columns = self.columns.copy()
        return other

    def take(self, other: TypeSelection) -> None:
        """Become what a copy has become."""
        self.columns, self.free = other.columns, other.free

    def seat(self, rows: Indices, columns: Indices) -> None:
        """Seat waiting jobs, each on its type; the caller sees to it that the gangs fit."""
        self.columns[rows] = columns
        used = np.bincount(columns, weights=self.num_gpus[rows], minlength=len(self.free))
        self.free = [left - int(taken) for left, taken in zip(self.free, used, strict=True)]

    def move(self, row: int, column: int) -> None:
        """Seat one job on the type, or take its seat away (-1); the caller sees to it that the gangs fit in the end."""
        before, size = int(self.columns[row]), int(self.num_gpus[row])
        if before >= 0:
            self.free[before] += size
        if column >= 0:
            self.free[column] -= size
        self.columns[row] = column
