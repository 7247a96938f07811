"""Rounds that need no choice: who runs has all that it is given, and at most one gang starts where there is room."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.in_force import InForce, columns_of
from gavel_py.scheduling.newcomer import place_of
from gavel_py.scheduling.scheduler_state import SchedulerState

__all__ = ["settled"]


NONE = 5e-7
"""Rounds; a mechanism rounds what is owed, and sees nothing of less."""


def settled(state: SchedulerState, in_force: InForce, *, backfill: bool) -> dict[str, Assignment] | None:
    """Return who runs where, if any rule for who runs would come to the same; None if there is something to choose.

    So it is when each job that runs has all of its time on the type where it runs, and its gang stands as it should; of the others
    at most one is given time, all of it on one type, and its gang fits on one node; nobody is owed anything from before; and, with
    `backfill`, no gang that waits fits the GPUs that are left.
    """
    fractions = in_force.fractions
    if (in_force.problem.num_gpus < 1).any():
        return None  # they are packed onto GPUs
    if in_force.companies is not None or any(held.shared_with for held in state.lasting.values()):
        return None
    if not ((fractions == 0) | (fractions == 1)).all():
        return None
    problem, lasting = in_force.problem, state.lasting
    columns = columns_of(problem, lasting)
    given = np.where(fractions.any(axis=1), fractions.argmax(axis=1), -1) if fractions.size else columns
    other = np.flatnonzero(given != columns)
    if len(other) > 1 or (columns[other] >= 0).any() or np.count_nonzero(columns >= 0) < len(lasting):
        return None
    # Jobs may have left, changed or finished since they were asked about, if that was before an earlier round.
    if in_force is state.told and not in_force.present(state.book).all():
        return None
    if (np.abs(state.ledger.deficits(problem.job_ids)) > NONE).any() or not _stand_well(state, in_force, lasting):
        return None
    if backfill and _fits_somebody(in_force, given):
        return None
    return _with_newcomer(state, in_force, lasting, int(other[0]), int(given[other[0]])) if len(other) else dict(lasting)


def _fits_somebody(in_force: InForce, given: NDArray[np.int64]) -> bool:
    """Say whether a gang that is given nothing would fit the GPUs that are left."""
    problem = in_force.problem
    used = np.bincount(given[given >= 0], weights=problem.num_gpus[given >= 0], minlength=len(problem.capacities))
    waits = (given < 0)[:, None] & problem.runnable
    return bool((waits & (problem.num_gpus[:, None] <= problem.capacities - used)).any())


def _with_newcomer(
    state: SchedulerState, in_force: InForce, lasting: Mapping[str, Assignment], row: int, column: int
) -> dict[str, Assignment] | None:
    """Return the gangs that go on, and the one that starts, if it has a place on one node and is to have it there."""
    job, apart = in_force.jobs[row], in_force.apart
    to_be_spread = apart is not None and job.num_gpus > 1 and apart[row, column] > 0
    if to_be_spread or not state.nodes.all_up:
        return None
    place = place_of(job, in_force.problem.accelerator_types[column], state.nodes.cluster, lasting.values())
    if place is None:
        return None
    found = {**lasting, job.job_id: place}
    return {job_id: found[job_id] for job_id in sorted(found)}


def _stand_well(state: SchedulerState, in_force: InForce, lasting: Mapping[str, Assignment]) -> bool:
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
