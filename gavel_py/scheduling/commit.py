"""The begin of a round: what it changes against the last one, in words and in the books."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import filterfalse

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationPromises, PartnerKey
from gavel_py.scheduling.current_allocation import InForce, columns_of
from gavel_py.scheduling.delivery import waits_of
from gavel_py.scheduling.round import Assignment, Round
from gavel_py.scheduling.state import SchedulerState


def in_words(
    state: SchedulerState, assignments: dict[str, Assignment], start: float, round_seconds: float, moved: Set[str] | None = None
) -> Round:
    """Return the round that follows the last one, with these assignments of the allocation in force.

    moved: all who hold other GPUs than in the last round or get others now, where nobody shares them; None: that may be anybody.
    """
    before = state.last.assignments if state.last is not None else {}
    if moved is None:
        assignments = _with_current_partners(assignments)
        started = _started(state, assignments, assignments)
        stopped = before.keys() - assignments.keys()
    else:
        started = sorted(_started(state, assignments, [job_id for job_id in moved if job_id in assignments]))
        stopped = {job_id for job_id in moved if job_id in before and job_id not in assignments}
    anew = set(started)
    return Round(
        index=0 if state.last is None else state.last.index + 1,
        start_seconds=start,
        assignments=assignments,
        kept=tuple(filterfalse(anew.__contains__, assignments) if started else assignments),
        started=tuple(started),
        preempted=state.unfinished(stopped),
        excluded=state.excluded,
        end_seconds=start + round_seconds,
        failed=dict(state.newly_failed),
        notes=state.notes,
    )


def _started(state: SchedulerState, assignments: Mapping[str, Assignment], among: Iterable[str]) -> list[str]:
    """Those of these jobs that get other GPUs than they have."""
    running = state.running
    return [i for i in among if (had := running.get(i)) is not (held := assignments[i]) and had != held]


def _with_current_partners(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return them without partners that have left since they were decided."""
    return {
        job_id: replace(held, shared_with=tuple(other for other in held.shared_with if other in assignments))
        if held.shared_with and not assignments.keys() >= set(held.shared_with)
        else held
        for job_id, held in assignments.items()
    }


def begin(state: SchedulerState, begun: Round, round_seconds: float, moved: Set[str] | None = None) -> None:
    """Enter a round that starts now; moved: as for `in_words`."""
    if isinstance(state.told, InForce):
        _account(state, state.told, begun, round_seconds)
    running = state.running
    for job_id in running if moved is None else moved:
        if job_id in running and job_id not in begun.assignments:
            state.book.standings[job_id].running_since_seconds = None
    for job_id in begun.started:
        past = state.book.standings[job_id]
        past.running_since_seconds, past.has_run = begun.start_seconds, True
    state.gangs.begin(begun.assignments)
    state.coming, state.last, state.newly_failed = None, begun, {}


def copied(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return copies: what a caller does with the lists must not change what runs."""
    return {
        job_id: Assignment(held.accelerator, list(held.gpus), held.shared_with, held.gpu_part)
        for job_id, held in assignments.items()
    }


def given_away(told: Round) -> Round:
    """Return a copy of a round, for the same reason."""
    return replace(told, assignments=copied(told.assignments), excluded=dict(told.excluded), failed=dict(told.failed))


def _account(state: SchedulerState, in_force: InForce, begun: Round, round_seconds: float) -> None:
    problem, pasts = in_force.problem, state.book.standings
    # Who has left since the round was planned is promised nothing of it.
    present = in_force.present(state.book)[:, None]
    fractions = in_force.fractions * present
    columns = columns_of(problem, begun.assignments)
    waits = _waits(state, in_force, fractions, columns, present, _shares(problem, begun.assignments))
    offered = _offered(problem, columns)
    state.ledger.record(problem.job_ids, problem.num_gpus, in_force.lasting, fractions, columns, round_seconds, waits, offered)
    if in_force.apart is not None:
        runs_apart = {job_id for job_id, held in begun.assignments.items() if state.spans.is_spread(held)}
        is_apart = np.array([job_id in runs_apart for job_id in problem.job_ids], dtype=bool)
        state.ledger.record_placement(problem.job_ids, fractions, in_force.apart, columns, is_apart, round_seconds)
    if in_force.colocation_promises is not None:
        state.company.record(
            in_force.colocation_promises.keys, *_co_located(in_force, in_force.colocation_promises, begun, present)
        )
    for job_id, held in begun.assignments.items():
        past = pasts[job_id]
        past.attained_gpu_seconds += round_seconds * held.gpu_share
        past.waiting_since_seconds = begun.end_seconds


def _waits(
    state: SchedulerState,
    in_force: InForce,
    fractions: Floats,
    columns: NDArray[np.int64],
    present: NDArray[np.bool_],
    shares: Floats,
) -> NDArray[np.int64]:
    """(N,) why jobs that are owed time do not run in the round that begins.

    present: (N, 1) those that are still there; shares: (N,) the GPUs that count as each job's.
    """
    problem, ids = in_force.problem, in_force.problem.job_ids
    ran = columns >= 0
    used = np.bincount(columns[ran], weights=shares[ran], minlength=len(problem.capacities))
    claims = np.where(present & in_force.lasting, state.ledger.deficits(ids) + fractions, 0.0)
    return waits_of(claims, ran, problem.runnable, problem.capacities - used, problem.num_gpus, ~state.ledger.knows(ids))


def _offered(problem: AllocationProblem, columns: NDArray[np.int64]) -> Floats:
    """(K,) the GPUs that could be given this round; two jobs that may share one count it twice, as their gangs do."""
    ran = columns >= 0
    used = np.bincount(columns[ran], weights=problem.num_gpus[ran], minlength=len(problem.capacities))
    # Nodes may have come back since the allocation was found.
    return np.maximum(problem.capacities * (1 if problem.pairs is None else 2), used)


def _shares(problem: AllocationProblem, assignments: Mapping[str, Assignment]) -> Floats:
    """(N,) the GPUs that count as each job's, 0 for who does not run."""
    return np.array([assignments[i].gpu_share if i in assignments else 0.0 for i in problem.job_ids], dtype=float)


def _co_located(
    in_force: InForce, companies: ColocationPromises, begun: Round, present: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """(A,) what is promised of this round with partners of each job type, and (A,) what is had of it."""
    types, had = {job.job_id: job.job_type for job in in_force.jobs}, set()
    for job_id, held in begun.assignments.items():
        had |= {PartnerKey(job_id, types[other], held.accelerator) for other in held.shared_with}
    received = np.array([key in had for key in companies.keys], dtype=float)
    promised = companies.fractions * present[companies.rows, 0]
    return np.bincount(companies.accounts, promised, len(companies.keys)).astype(float), received
