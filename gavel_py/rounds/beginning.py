"""The begin of a round: what it changes against the last one, in words and in the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.assignment import Assignment, Round
from gavel_py.rounds.in_force import InForce, columns_of
from gavel_py.rounds.scheduler_state import SchedulerState
from gavel_py.rounds.waits import waits_of

__all__ = ["begin", "copied", "given_away", "in_words"]

Floats = NDArray[np.float64]


def in_words(
    state: SchedulerState, in_force: InForce, assignments: Mapping[str, Assignment], start: float, round_seconds: float
) -> Round:
    """Return the round that follows the last one, with these assignments."""
    before = state.last.assignments if state.last is not None else {}
    running, stopped = state.running, before.keys() - assignments.keys()
    kept = {job_id for job_id, held in assignments.items() if (had := running.get(job_id)) is held or had == held}
    return Round(
        index=0 if state.last is None else state.last.index + 1,
        start_seconds=start,
        assignments=dict(assignments),
        kept=tuple(job_id for job_id in assignments if job_id in kept),
        started=tuple(job_id for job_id in assignments if job_id not in kept),
        preempted=tuple(i for i in in_force.unfinished(state.book) if i in stopped) if stopped else (),
        excluded=dict(in_force.allocation.excluded),
        end_seconds=start + round_seconds,
        failed=dict(state.newly_failed),
    )


def begin(state: SchedulerState, in_force: InForce, begun: Round, round_seconds: float) -> None:
    """Enter a round that starts now."""
    _account(state, in_force, begun, round_seconds)
    state.running = dict(begun.assignments)
    state.coming, state.last, state.newly_failed = None, begun, {}


def copied(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return copies: what a caller does with the lists must not change what runs."""
    return {job_id: Assignment(held.accelerator, list(held.gpus)) for job_id, held in assignments.items()}


def given_away(told: Round) -> Round:
    """Return a copy of a round, for the same reason."""
    return replace(told, assignments=copied(told.assignments), excluded=dict(told.excluded), failed=dict(told.failed))


def _account(state: SchedulerState, in_force: InForce, begun: Round, round_seconds: float) -> None:
    problem, pasts = in_force.problem, state.book.standings
    # Who has left since the round was planned is promised nothing of it.
    present = in_force.present(state.book)[:, None]
    fractions = in_force.allocation.time_fractions * present
    columns = columns_of(problem, begun.assignments)
    waits = _waits(state, in_force, fractions, columns, present)
    state.ledger.record(problem.job_ids, problem.num_gpus, in_force.lasting, fractions, columns, round_seconds, waits)
    if in_force.apart is not None:
        runs_apart = {job_id for job_id, held in begun.assignments.items() if state.spans.is_spread(held)}
        is_apart = np.array([job_id in runs_apart for job_id in problem.job_ids], dtype=bool)
        state.ledger.record_placement(problem.job_ids, fractions, in_force.apart, columns, is_apart, round_seconds)
    for job_id in state.running.keys() - begun.assignments.keys():
        pasts[job_id].running_since_seconds = None
    for job_id, held in begun.assignments.items():
        past = pasts[job_id]
        past.attained_gpu_seconds += round_seconds * len(held.gpus)
        past.waiting_since_seconds = begun.end_seconds
    for job_id in begun.started:
        pasts[job_id].running_since_seconds = begun.start_seconds


def _waits(
    state: SchedulerState, in_force: InForce, fractions: Floats, columns: NDArray[np.int64], present: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(N,) why jobs that are owed time do not run in the round that begins; present: (N, 1) those that are still there."""
    problem, ids = in_force.problem, in_force.problem.job_ids
    ran = columns >= 0
    used = np.bincount(columns[ran], weights=problem.num_gpus[ran], minlength=len(problem.capacities))
    claims = np.where(present & in_force.lasting, state.ledger.deficits(ids) + fractions, 0.0)
    return waits_of(claims, ran, problem.runnable, problem.capacities - used, problem.num_gpus, ~state.ledger.knows(ids))
