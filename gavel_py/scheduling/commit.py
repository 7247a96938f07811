"""Applies decisions to the state of a scheduler: `adopt` a plan, `build_round` from it, and `begin_round`.

Nothing else changes the current allocation, the accounts of jobs, or the running gangs as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import filterfalse

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationPromises, PartnerKey
from gavel_py.scheduling.current_allocation import CurrentAllocation, columns_of
from gavel_py.scheduling.delivery import waits_of
from gavel_py.scheduling.round import Assignment, Round
from gavel_py.scheduling.state import RoundPlan, SchedulerState


def adopt(state: SchedulerState, plan: RoundPlan) -> None:
    """Make a plan that of the next round, and its allocation the current one.

    Received rounds are counted anew for a new solution, but not for one that is only reused for other jobs. Raises `ProofError` if
    an audited plan is not what the policy decides.
    """
    allocation = plan.allocation
    if allocation is not state.allocation:
        if isinstance(allocation, CurrentAllocation):
            for job, seconds in zip(allocation.jobs, allocation.policy_input.isolated_seconds, strict=True):
                history = state.registry.histories[job.job_id]
                history.isolated_seconds, history.steps_counted = seconds, job.steps_done
            promises = allocation.colocation_promises
            state.colocation_ledger.keep(() if promises is None else promises.keys)
        if not (isinstance(allocation, CurrentAllocation) and allocation.has_same_solution(state.allocation)):
            state.ledger.begin_allocation()
        state.allocation = allocation
        state.inputs_changed, state.must_solve = state.inputs_changed_meanwhile, state.must_solve_meanwhile
    state.plan = plan
    if plan.is_audited:
        assert state.current_allocation is not None  # resolving it asks the policy  # noqa: S101


def build_round(
    state: SchedulerState, assignments: dict[str, Assignment], start: float, round_seconds: float, moved: Set[str] | None = None
) -> Round:
    """Return the round that follows the latest one with these assignments.

    Args:
        state: The scheduler's state, which is not changed.
        assignments: {job_id: Assignment} of the jobs that run.
        start: Start of the round in seconds.
        round_seconds: Length of the round.
        moved: Jobs whose GPUs may differ between the latest round, now and this round, none of them co-located; None if unknown.
    """
    before = state.last.assignments if state.last is not None else {}
    if moved is None:
        assignments = _with_present_partners(assignments)
        started = _started(state, assignments, assignments)
        stopped = before.keys() - assignments.keys()
    else:
        started = sorted(_started(state, assignments, [job_id for job_id in moved if job_id in assignments]))
        stopped = {job_id for job_id in moved if job_id in before and job_id not in assignments}
    is_started = set(started).__contains__
    return Round(
        index=0 if state.last is None else state.last.index + 1,
        start_seconds=start,
        assignments=assignments,
        kept=tuple(filterfalse(is_started, assignments) if started else assignments),
        started=tuple(started),
        preempted=state.unfinished(stopped),
        excluded=state.excluded,
        end_seconds=start + round_seconds,
        failed=dict(state.newly_failed),
        notes=state.notes,
    )


def _started(state: SchedulerState, assignments: Mapping[str, Assignment], among: Iterable[str]) -> list[str]:
    """Return the jobs among these whose GPUs are not those that they hold."""
    running = state.running
    return [i for i in among if (had := running.get(i)) is not (held := assignments[i]) and had != held]


def _with_present_partners(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return the assignments with `shared_with` reduced to jobs that run."""
    return {
        job_id: replace(held, shared_with=tuple(other for other in held.shared_with if other in assignments))
        if held.shared_with and not assignments.keys() >= set(held.shared_with)
        else held
        for job_id, held in assignments.items()
    }


def begin_round(state: SchedulerState, new_round: Round, round_seconds: float, moved: Set[str] | None = None) -> None:
    """Enter a round that begins now in accounts, histories and running gangs; arguments as for `build_round`."""
    if isinstance(state.allocation, CurrentAllocation):  # a lazy one belongs to the event-driven mode, which counts no rounds
        _account(state, state.allocation, new_round, round_seconds)
    running = state.running
    for job_id in running if moved is None else moved:
        if job_id in running and job_id not in new_round.assignments:
            state.registry.histories[job_id].running_since_seconds = None
    for job_id in new_round.started:
        history = state.registry.histories[job_id]
        history.running_since_seconds, history.has_run = new_round.start_seconds, True
    state.gangs.begin(new_round.assignments)
    state.plan, state.last, state.newly_failed = None, new_round, {}


def copy_assignments(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Return copies, so that a caller who changes the lists of GPUs does not change what runs."""
    return {
        job_id: Assignment(held.accelerator, list(held.gpus), held.shared_with, held.gpu_part)
        for job_id, held in assignments.items()
    }


def copy_round(original: Round) -> Round:
    """Return a copy that callers may change."""
    assignments = copy_assignments(original.assignments)
    return replace(original, assignments=assignments, excluded=dict(original.excluded), failed=dict(original.failed))


def _account(state: SchedulerState, current: CurrentAllocation, new_round: Round, round_seconds: float) -> None:
    """Enter promised and received time of a round in all accounts."""
    problem, ids = current.problem, current.problem.job_ids
    # Jobs that have left since the round was planned are promised nothing.
    present = current.present(state.registry)[:, None]
    fractions = current.fractions * present
    columns = columns_of(problem, new_round.assignments)
    waits = _waits(state, current, fractions, columns, present, new_round)
    offered = _offered(problem, columns)
    state.ledger.record(ids, problem.num_gpus, current.runnable_if_up, fractions, columns, round_seconds, waits, offered)
    if current.spread_fractions is not None:
        spread = {job_id for job_id, held in new_round.assignments.items() if state.spans.is_spread(held)}
        is_spread = np.array([job_id in spread for job_id in ids], dtype=bool)
        state.ledger.record_placement(ids, fractions, current.spread_fractions, columns, is_spread, round_seconds)
    promises = current.colocation_promises
    if promises is not None:
        state.colocation_ledger.record(promises.keys, *_colocated(current, promises, new_round, present))
    for job_id, held in new_round.assignments.items():
        history = state.registry.histories[job_id]
        history.attained_gpu_seconds += round_seconds * held.gpu_share
        history.waiting_since_seconds = new_round.end_seconds


def _waits(
    state: SchedulerState, current: CurrentAllocation, fractions: Floats, columns: Indices, present: Mask, new_round: Round
) -> Indices:
    """Return (N,) the reason for which each job with a positive deficit waits (`waits_of`); present: (N, 1)."""
    problem, ids = current.problem, current.problem.job_ids
    shares = np.array([new_round.assignments[i].gpu_share if i in new_round.assignments else 0.0 for i in ids], dtype=float)
    ran = columns >= 0
    free = problem.capacities - np.bincount(columns[ran], weights=shares[ran], minlength=len(problem.capacities))
    claims = np.where(present & current.runnable_if_up, state.ledger.deficits(ids) + fractions, 0.0)
    return waits_of(claims, ran, problem.runnable, free, problem.num_gpus, ~state.ledger.knows(ids))


def _offered(problem: AllocationProblem, columns: Indices) -> Floats:
    """Return (K,) the GPUs that this round could give; twice as many if two jobs may share each."""
    ran = columns >= 0
    used = np.bincount(columns[ran], weights=problem.num_gpus[ran], minlength=len(problem.capacities))
    # Nodes may have come back since the allocation was solved.
    return np.maximum(problem.capacities * (1 if problem.pairs is None else 2), used)


def _colocated(current: CurrentAllocation, promises: ColocationPromises, new_round: Round, present: Mask) -> tuple[Floats, Floats]:
    """Return (A,) the promised and (A,) the received part of this round for each account of co-located time."""
    types, received = {job.job_id: job.job_type for job in current.jobs}, set()
    for job_id, held in new_round.assignments.items():
        received |= {PartnerKey(job_id, types[other], held.accelerator) for other in held.shared_with}
    fractions = promises.fractions * present[promises.rows, 0]
    promised = np.bincount(promises.accounts, fractions, len(promises.keys)).astype(float)
    return promised, np.array([key in received for key in promises.keys], dtype=float)
