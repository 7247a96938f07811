"""Rounds that need no choice: what the allocation gives is what runs already, and nobody else could use what is left."""

from __future__ import annotations

import numpy as np

from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.in_force import InForce, columns_of
from gavel_py.rounds.scheduler_state import SchedulerState

__all__ = ["settled"]

NONE = 5e-7
"""Rounds; a mechanism rounds what is owed, and sees nothing of less."""


def settled(state: SchedulerState, in_force: InForce, *, backfill: bool) -> dict[str, Assignment] | None:
    """Return who runs where, if any rule for who runs would leave all as it is; None if there is something to choose.

    So it is when each job that runs has all of its time on the type where it runs, and its gang stands as it should; the others
    have none; nobody is owed anything from before; and, with `backfill`, no gang that waits fits the GPUs that are left.
    """
    fractions = in_force.allocation.time_fractions
    if not ((fractions == 0) | (fractions == 1)).all():
        return None
    problem, lasting = in_force.problem, state.lasting
    columns = columns_of(problem, lasting)
    runs = columns[:, None] == np.arange(len(problem.capacities))
    if np.count_nonzero(columns >= 0) < len(lasting) or not np.array_equal(fractions, runs):
        return None
    # Jobs may have left, changed or finished since they were asked about, if that was before an earlier round.
    if in_force is state.in_force and not in_force.present(state.book).all():
        return None
    if (np.abs(state.ledger.deficits(problem.job_ids)) > NONE).any() or not _stand_well(state, in_force, lasting):
        return None
    if backfill:
        left = problem.capacities - problem.num_gpus @ runs
        waits = (columns < 0)[:, None] & problem.runnable
        if (waits & (problem.num_gpus[:, None] <= left)).any():
            return None
    return dict(lasting)


def _stand_well(state: SchedulerState, in_force: InForce, lasting: dict[str, Assignment]) -> bool:
    """Say whether each gang that is to be spread is spread, and each that is not to be is not."""
    if in_force.apart is None:
        return True
    types = {name: column for column, name in enumerate(in_force.problem.accelerator_types)}
    for job_id, apart in zip(in_force.problem.job_ids, in_force.apart.tolist(), strict=True):
        held = lasting.get(job_id)
        if held is None or len(held.gpus) == 1:
            continue
        part = apart[types[held.accelerator]]
        if part == part and part != state.spans.is_spread(held):  # not NaN, where it is no matter
            return False
    return True
