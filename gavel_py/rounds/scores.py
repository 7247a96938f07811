"""What a place in the next round is worth to each job on each type: who is owed most, and who runs already."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.demand import RoundDemand, rounded

__all__ = ["HYSTERESIS_ROUNDS", "URGENT_ROUNDS", "hysteresis_of", "scores_of"]

Floats = NDArray[np.float64]

HYSTERESIS_ROUNDS = 2.4
URGENT_ROUNDS = 3.0

# Lifts urgent pairs above the others, whose scores differ by a few rounds, and the more the longer they have been urgent. If it
# were much larger, then fractions that no round can deliver would decide alone on how gangs are packed.
URGENT_SCORE = 5.0

# A job that is promised every round, now here and now there, can never make good for one in which it waits.
NO_SLACK_ROUNDS = 0.5

# Among pairs that are about as near to their bound, the one that is owed more goes first.
CLAIM_WEIGHT = 0.02


def scores_of(demand: RoundDemand, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS) -> Floats:
    """(N, K) the score of each pair that is owed this round, -inf for the others; none that is owed scores less than 0."""
    kept_for = _hysteresis(demand, hysteresis_rounds)
    claims, running = demand.claims, demand.running
    owed = claims > 0
    if demand.backfill:
        # Running on, ahead of what is owed, is a use of idle GPUs too; the hysteresis says how far ahead.
        owed |= running & (demand.shares > 0) & (claims + kept_for > 0)
    most = kept_for.max(initial=0.0)
    # A GPU that serves anybody is worth more than one that serves nobody: `most` keeps scores above 0.
    scores = most + _weighed(demand, kept_for) if most else _nearness(demand, urgent_rounds)
    scores += np.where(claims > urgent_rounds, URGENT_SCORE * (1.0 + claims - urgent_rounds), 0.0)
    return np.where(demand.possible & owed, scores, -np.inf)


def _hysteresis(demand: RoundDemand, rounds: float) -> Floats:
    """(N, K) h_ij of each pair, `hysteresis_of`."""
    return hysteresis_of(demand.fractions, demand.num_gpus[:, None], demand.restart_rounds[:, None], rounds)


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


def _weighed(demand: RoundDemand, kept_for: Floats) -> Floats:
    """(N, K) claim_ij ± h_ij/2, and half a round more for jobs that are promised every round."""
    no_slack = rounded(demand.fractions.sum(axis=1, keepdims=True)) >= 1.0
    result: Floats = demand.claims + np.where(demand.running, kept_for, -kept_for) / 2 + NO_SLACK_ROUNDS * no_slack
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
