"""What a place in the next round is worth to each job on each type: who is owed most, and who runs already."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.demand import RoundDemand, rounded

__all__ = ["HYSTERESIS_ROUNDS", "URGENT_ROUNDS", "hysteresis_of", "scores_of"]

Floats = NDArray[np.float64]

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
