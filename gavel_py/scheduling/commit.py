"""Applies decisions to the state of a scheduler: `adopt`, `build_round`, `begin_round`, and `begin_starts` within a round.

`stop_lost` and `take_back` revert what gangs were credited that stop within a round. Nothing else changes the current allocation,
the accounts of jobs, or the running gangs as a whole. `waits_of` finds why jobs wait in a round; `delivery.py` has the reasons.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import DEFICIT_ROUNDING
from gavel_py.scheduling.colocation.groups import ColocationPromises, PartnerKey
from gavel_py.scheduling.current_allocation import CurrentAllocation, LazyAllocation, least_gpus, whole_sizes
from gavel_py.scheduling.delivery import WAITS, Wait
from gavel_py.scheduling.mechanism.limits import NO_LIMITS, RoundLimit, RoundLimits
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.round import Assignment, Assignments, GangChanges, Round
from gavel_py.scheduling.state import EventPlan, RoundPlan, SchedulerState


def adopt(state: SchedulerState, plan: RoundPlan | EventPlan) -> None:
    """Make this the plan of the next round, and its allocation the current one.

    A new solution resets the count of received rounds; a solution that is only reused for other jobs does not. Raises `ProofError`
    if an audited plan differs from the policy's decision.
    """
    allocation = plan.allocation
    if allocation is not state.allocation:
        _replace_allocation(state, allocation)
        state.changes.adopt()
    state.plan, state.failed_meanwhile = plan, set()
    if isinstance(plan, EventPlan) and plan.is_audited:
        assert state.current_allocation is not None  # resolving it asks the policy  # noqa: S101


def _replace_allocation(state: SchedulerState, allocation: CurrentAllocation | LazyAllocation) -> None:
    """Make an allocation the current one."""
    if isinstance(allocation, CurrentAllocation):
        columns = state.table.columns
        columns["isolated_seconds"][allocation.rows] = allocation.problem.isolated_seconds
        columns["steps_counted"][allocation.rows] = allocation.policy_input.requests["steps_done"]
        if (promises := allocation.colocation_promises) is not None or state.colocation_ledger.accounts:
            state.colocation_ledger.keep(() if promises is None else promises.keys)
    if not (isinstance(allocation, CurrentAllocation) and allocation.has_same_solution(state.allocation)):
        state.ledger.begin_allocation()
    state.allocation = allocation


def build_round(
    state: SchedulerState,
    rows: Indices,
    held: HeldGpus,
    keeps: Mask,
    start: float,
    round_seconds: float,
    limits: Sequence[RoundLimit],
) -> Round:
    """Return the round that follows the latest one with these gangs.

    Args:
        state: The scheduler's state, which is not changed.
        rows: (N,) rows of the jobs that run, sorted by their ids.
        held: (N,) their GPUs.
        keeps: (N,) which of them hold these GPUs now.
        start: Start of the round in seconds.
        round_seconds: Length of the round.
        limits: The limits on average, for the current allocation.
    """
    current = state.allocation
    assert current is not None  # noqa: S101
    if isinstance(current, LazyAllocation) and current.assignments.held is held:
        assignments = current.assignments
    else:
        assignments = state.assignments(rows, held)
    ids, runs = state.table.ids, np.zeros(state.table.capacity, dtype=bool)
    runs[rows] = True
    before = state.rows_of_last
    return Round(
        index=0 if state.last is None else state.last.index + 1,
        start_seconds=start,
        assignments=assignments,
        kept=assignments.ids if keeps.all() else tuple(ids[rows[keeps]].tolist()),
        started=() if keeps.all() else tuple(ids[rows[~keeps]].tolist()),
        preempted=_unfinished(state, current, before[~runs[before]]),
        excluded=dict(current.excluded),
        end_seconds=start + round_seconds,
        failed=dict(state.newly_failed),
        notes=(current.note,) if current.note else (),
        fallback=current.fallback,
        exceeded=_exceeded(state, current, rows, held, limits) if limits else (),
    )


def _unfinished(state: SchedulerState, current: CurrentAllocation | LazyAllocation, rows: Indices) -> tuple[str, ...]:
    """Return the ids of the unfinished jobs in these rows that are in the system, in the order of the current allocation."""
    table = state.table
    if isinstance(current, LazyAllocation):  # it has just been decided, when all jobs in the system had steps left
        return tuple(sorted((job_id for job_id in table.ids[rows].tolist() if job_id in table), key=natural_key))
    left = current.unfinished(table, rows) if len(rows) else rows
    if len(rows) and state.counted_since:  # jobs that have started between rounds may have arrived after the solve
        among = np.zeros(table.capacity, dtype=bool)
        among[rows] = ~(table.columns["steps_done"][rows] >= table.columns["total_steps"][rows])
        among[state.is_in_decision] = False
        among[left] = True
        left = table.natural_order.rows[among[table.natural_order.rows]]
    return tuple(table.ids[left].tolist())


def _exceeded(
    state: SchedulerState, current: object, rows: Indices, held: HeldGpus, limits: Sequence[RoundLimit]
) -> tuple[str, ...]:
    """Return the limits that gangs exceed, by name; rows: (M,) rows of the gangs; held: (M,) their GPUs."""
    assert isinstance(current, CurrentAllocation)  # event-driven mode has no constraints  # noqa: S101
    own = _of_jobs(state, current, rows, held)
    return tuple(dict.fromkeys(limit.name for limit in limits if limit.is_exceeded(float(limit.used(own).sum()))))


def _of_jobs(state: SchedulerState, current: CurrentAllocation, rows: Indices, held: HeldGpus) -> HeldGpus:
    """Return (N,) the GPUs of all jobs of an allocation; rows: (M,) rows of the gangs that run; held: (M,) their GPUs."""
    places = np.full(state.table.capacity, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return held.take(places[current.rows])


def begin_round(
    state: SchedulerState, plan: RoundPlan | EventPlan, start: float, options: SchedulerOptions, limits: RoundLimits = NO_LIMITS
) -> Round:
    """Begin a planned round now: enter it in accounts, histories and running gangs, and return it.

    The event-driven mode keeps no accounts of promises: its rounds last until the next event, and no policy that it follows divides
    time.
    """
    if isinstance(plan, EventPlan) and plan.changes is not None:
        return _begin_at_event(state, plan.assignments, plan.changes, start, options.round_seconds)
    gangs, columns, rows, held = state.gangs, state.table.columns, plan.rows, plan.held
    if options.by_events:
        state.add_latest(start, columns["attained_gpu_seconds"], columns["waiting_since_seconds"])
    keeps = gangs.of(rows).same_as(held)
    new_round = build_round(state, rows, held, keeps, start, options.round_seconds, limits.on_average)
    for name in dict.fromkeys(limit.name for limit in limits.on_average):
        rounds, exceeded = state.limit_rounds.get(name, (0, 0))
        state.limit_rounds[name] = rounds + 1, exceeded + (name in new_round.exceeded)
    if new_round.fallback is not None:
        state.fallback_rounds[new_round.fallback] += 1
    if not gangs.holds(rows, held):
        is_spread, new = gangs.is_spread[rows], np.flatnonzero(~keeps)
        if len(new):
            is_spread[new] = state.spans.are_spread(held.take(new), state.layout)
        # Stopped gangs no longer have a start time; gangs that start get theirs below.
        stopped = gangs.types >= 0
        stopped[rows] = False
        columns["running_since_seconds"][stopped] = np.nan
        started = rows[new]
        columns["running_since_seconds"][started], columns["has_run"][started] = new_round.start_seconds, True
        columns["starts"][started] += 1
        gangs.begin(rows, held, is_spread)
    gangs.moved = set()
    if isinstance(state.allocation, CurrentAllocation) and not options.by_events:
        _account(state, state.allocation, new_round, rows, held, options, limits.in_every_round)
    _make_latest(state, new_round, rows)
    return new_round


def _begin_at_event(
    state: SchedulerState, assignments: Assignments, changes: GangChanges, start: float, round_seconds: float
) -> Round:
    """Begin a round that differs from the latest one in few gangs, in event-driven mode."""
    columns, layout, started = state.table.columns, state.layout, changes.started_ids
    new_round = Round(
        index=0 if state.last is None else state.last.index + 1,
        start_seconds=start,
        assignments=assignments,
        kept=_without(assignments.ids, started) if started else assignments.ids,
        started=started,
        preempted=changes.preempted,
        excluded={} if state.allocation is None else dict(state.allocation.excluded),
        end_seconds=start + round_seconds,
        failed=dict(state.newly_failed),
    )
    for row in changes.stopped:
        columns["running_since_seconds"][row] = np.nan
        state.gangs.stop(row)
    for row, (column, gpus) in changes.started.items():
        columns["running_since_seconds"][row], columns["has_run"][row] = start, True
        is_spread = state.spans.is_spread(layout.types[column], layout.nodes_of(gpus))
        state.gangs.put(row, column, gpus, is_spread=is_spread)
    state.gangs.moved = set()
    _make_latest(state, new_round, None)
    return new_round


def _without(ids: tuple[str, ...], gone: Iterable[str]) -> tuple[str, ...]:
    """Return sorted ids without some of them; fast if these are few."""
    left = list(ids)
    for job_id in gone:
        del left[bisect_left(left, job_id)]
    return tuple(left)


def _make_latest(state: SchedulerState, new_round: Round, rows: Indices | None) -> None:
    state.plan, state.last, state.last_rows, state.newly_failed, state.counted_since = None, new_round, rows, {}, {}


def begin_starts(
    state: SchedulerState, starts: RoundPlan, plan: RoundPlan | None, limits: Sequence[RoundLimit] = ()
) -> Assignments:
    """Enter gangs that start within the latest round in accounts, histories and running gangs, and return their GPUs.

    Args:
        state: The scheduler's state.
        starts: The gangs, their time, and the current allocation applied to the current jobs.
        plan: The next round if it is planned, including the gangs that continue in it.
        limits: The limits on average of the allocation of `starts`.
    """
    rows, held, now, last = starts.rows, starts.held, starts.start_seconds, state.last
    assert last is not None  # noqa: S101
    assert isinstance(last.assignments, Assignments)  # noqa: S101
    started, columns = state.assignments(rows, held), state.table.columns
    is_spread = state.spans.are_spread(held, state.layout)
    counted = np.array([_is_counted(state, row, starts, i) for i, row in enumerate(rows.tolist())], dtype=bool)
    state.gangs.add(rows, held, is_spread)
    _receive(state, starts, np.flatnonzero(~counted), started, is_spread)
    columns["running_since_seconds"][rows], columns["has_run"][rows] = now, True
    columns["starts"][rows] += 1
    columns["waiting_since_seconds"][rows] = last.end_seconds
    state.last_rows = np.union1d(state.rows_of_last, rows)
    new = []
    if limits:
        running = state.gangs.rows
        found = _exceeded(state, starts.allocation, running, state.gangs.of(running), limits)
        new = [name for name in found if name not in last.exceeded]
    for name in new:
        rounds, exceeded = state.limit_rounds.get(name, (1, 0))
        state.limit_rounds[name] = rounds, exceeded + 1
    state.last = replace(last, assignments=last.assignments.updated(started), exceeded=(*last.exceeded, *new))
    state.counted_since |= dict.fromkeys(started.ids, now)
    if plan is not None:
        if plan.allocation is not state.allocation:
            _replace_allocation(state, plan.allocation)
        state.plan, state.failed_meanwhile = plan, set()
    return started


def _is_counted(state: SchedulerState, row: int, starts: RoundPlan, i: int) -> bool:
    """Return whether the rest of the round has already been credited to a gang that starts, as for a job that failed within it.

    If it was credited on other GPUs, it is taken back.
    """
    before = _counted(state, row)
    if before is None:
        return False
    now = state.assignments(np.array([row]), starts.held.take(np.array([i])))[str(state.table.ids[row])]
    if _key_of(state, before) == _key_of(state, now):
        return True
    _revert(state, row, starts.start_seconds, Wait.OTHER_TYPE)
    return False


def _key_of(state: SchedulerState, held: Assignment) -> tuple[object, ...]:
    """Return the properties of a gang's GPUs on which its accounts depend."""
    return held.accelerator, held.size, held.shared_with, _is_spread(state, held)


def _receive(state: SchedulerState, starts: RoundPlan, gangs: Indices, started: Assignments, is_spread: Mask) -> None:
    """Enter the rest of the round in the accounts of some gangs that start within it; gangs: their indices in `starts`."""
    current, last, rows, held = starts.allocation, state.last, starts.rows[gangs], starts.held.take(gangs)
    if not len(gangs) or last is None or not isinstance(current, CurrentAllocation):
        return
    seconds = last.end_seconds - starts.start_seconds
    rest, at = seconds / (last.end_seconds - last.start_seconds), current.index_of(state.table)[rows]
    fractions, types = current.promised[at], held.types
    given = fractions[np.arange(len(at)), types]
    shares = np.ones(len(current.rows))
    shares[at] = held.shares
    units = current.units_of(shares)
    more = 1.0 if units is None else units[at]
    state.tenant_ledger.receive(state.table.tenants, state.table.tenant_of[rows], held.shares, rest, seconds, last.index)
    state.ledger.receive(rows, current.problem.num_gpus[at], given, types, seconds * more, rest * more)
    if current.spread_fractions is not None:
        spread = current.spread_fractions[at]
        state.ledger.record_placement(rows, fractions, spread, types, is_spread[gangs], seconds, rest)
    state.table.columns["attained_gpu_seconds"][rows] += seconds * held.shares
    for job_id in [started.ids[i] for i in gangs.tolist() if starts.held.partners.get(i)]:
        for key in _partner_keys(state, job_id, started[job_id]):
            state.colocation_ledger.receive(key, rest)


def stop_lost(state: SchedulerState) -> tuple[str, ...]:
    """Stop gangs whose GPUs are lost or on nodes that are down, revert the rest of their round, and return their jobs."""
    gone = state.nodes.gone(state.layout)
    if gone is None:
        return ()
    rows = state.sorted_by_id(state.gangs.types >= 0)
    held = state.gangs.of(rows)
    lost = rows[np.unique(held.owners[gone[held.gpus]])]
    for row in lost.tolist():
        take_back(state, row)
    return tuple(state.table.ids[lost].tolist())


def take_back(state: SchedulerState, row: int) -> None:
    """Stop a gang, if it runs, and revert the time that it was credited for the round in progress."""
    column = int(state.gangs.types[row])
    state.stop(row)
    counted = _counted(state, row)
    # A gang that was found running has received nothing for this round.
    if counted is not None and column >= 0 and counted.accelerator == state.layout.types[column]:
        _revert(state, row, -math.inf, Wait.NODE)


def _counted(state: SchedulerState, row: int) -> Assignment | None:
    """Return the GPUs for which a job is credited until the end of the latest round, None if there are none."""
    job_id = str(state.table.ids[row])
    if state.last is None or state.counted_since.get(job_id, -math.inf) >= state.last.end_seconds:
        return None
    return state.last.assignments.get(job_id)


def _revert(state: SchedulerState, row: int, from_seconds: float, reason: Wait) -> None:
    """Revert the time of the latest round that a job was credited from this time on. reason: why it does not receive it.

    Without an account of the job, as in the event-driven mode, there is nothing to revert.
    """
    counted, last, table = _counted(state, row), state.last, state.table
    if counted is None or last is None or not state.ledger.knows(np.array([row])).all():
        return
    job_id, attained = str(table.ids[row]), table.columns["attained_gpu_seconds"]
    seconds = last.end_seconds - max(from_seconds, state.counted_since.get(job_id, last.start_seconds))
    rounds = seconds / (last.end_seconds - last.start_seconds)
    column, is_spread, size = state.layout.type_number[counted.accelerator], _is_spread(state, counted), counted.size
    each, gpus = (size, 1.0) if table.jobs[row].is_elastic else (1.0, size)  # accounts of elastic jobs are in GPU-seconds
    state.ledger.take_back(row, column, gpus, seconds * each, rounds=rounds * each, is_spread=is_spread, reason=reason)
    attained[row] = max(0.0, attained.item(row) - seconds * counted.gpu_share)
    tenant = table.tenant_of[row : row + 1]
    state.tenant_ledger.receive(table.tenants, tenant, np.array([-counted.gpu_share]), rounds, seconds)
    for key in _partner_keys(state, job_id, counted):
        state.colocation_ledger.receive(key, -rounds)
    state.counted_since[job_id] = last.end_seconds


def _is_spread(state: SchedulerState, held: Assignment) -> bool:
    """Return whether a gang with these GPUs is on more nodes than it needs."""
    return state.spans.is_spread(held.accelerator, [name for name, _ in held.gpus])


def _partner_keys(state: SchedulerState, job_id: str, held: Assignment) -> list[PartnerKey]:
    """Return the keys of the accounts of co-located time of a job with these GPUs."""
    partners = [row for row in map(state.table.by_id.get, held.shared_with) if row is not None]
    return [PartnerKey(job_id, state.table.jobs[partner].job_type, held.accelerator) for partner in partners]


def _account(
    state: SchedulerState,
    current: CurrentAllocation,
    new_round: Round,
    rows: Indices,
    held: HeldGpus,
    options: SchedulerOptions,
    limits: Sequence[RoundLimit],
) -> None:
    """Enter promised and received time of a round in all accounts."""
    problem, round_seconds = current.problem, options.round_seconds
    # Nothing is promised to jobs that have left since the round was planned.
    present = current.present(state.table)[:, None]
    fractions = current.promised * present
    columns, shares = state.gangs.types[current.rows], np.zeros(state.table.capacity)
    shares[rows] = held.shares
    received = shares[current.rows]
    waits = _waits(state, current, fractions, columns, present, received, new_round.start_seconds)
    if limits:
        waits[_lacks_room(limits, _of_jobs(state, current, rows, held), waits == WAITS.index(Wait.PLACE), problem)] = LIMITED
    if (table := state.table).tenants:
        of_tenant = table.tenants, table.tenant_of[current.rows], fractions.sum(axis=1) * problem.num_gpus, received
        sizes = np.where(problem.num_gpus < 1, problem.num_gpus, least_gpus(problem))
        lacks = state.tenant_ledger.leaves_no_room(*of_tenant, sizes)
        waits[lacks & (waits == WAITS.index(Wait.TURN))] = WAITS.index(Wait.TENANT)
        state.tenant_ledger.record(*of_tenant, whole_sizes(problem), new_round.index, round_seconds)
    units = current.units_of(received)
    restarts, ledger = current.restart_seconds(options.restart_seconds)[:, None] / round_seconds, state.ledger
    ledger.begin_round(round_seconds, _offered(problem, columns, units))
    ledger.record(current.rows, problem.num_gpus, current.runnable_if_up, fractions, columns, waits, units, restarts)
    if current.spread_fractions is not None:
        is_spread = state.gangs.is_spread[current.rows] & (columns >= 0)
        ledger.record_placement(current.rows, fractions, current.spread_fractions, columns, is_spread, round_seconds)
    promises = current.colocation_promises
    if promises is not None:
        state.colocation_ledger.record(promises.keys, *_colocated(current, promises, new_round, present))
    state.table.columns["attained_gpu_seconds"][rows] += round_seconds * shares[rows]
    state.table.columns["waiting_since_seconds"][rows] = new_round.end_seconds


def _waits(
    state: SchedulerState,
    current: CurrentAllocation,
    fractions: Floats,
    columns: Indices,
    present: Mask,
    shares: Floats,
    start: float,
) -> Indices:
    """Return (N,) the reason for which each job with a positive deficit waits from `start` on (`waits_of`); present: (N, 1)."""
    problem, ran = current.problem, columns >= 0
    free = problem.capacities - np.bincount(columns[ran], weights=shares[ran], minlength=len(problem.capacities))
    is_new = ~state.ledger.knows(current.rows)
    claims = np.where(present & current.runnable_if_up, state.ledger.deficits[current.rows] + fractions, 0.0)
    codes = waits_of(claims, ran, problem.runnable, free, problem.num_gpus, is_new)
    if not state.backoffs.by_job:
        return codes
    waits = state.backoffs.waiting(state.table, state.gangs, current.rows, start)
    return np.where(waits & (codes >= 0), WAITS.index(Wait.BACKOFF), codes)


LIMITED = WAITS.index(Wait.LIMIT)


def _lacks_room(limits: Sequence[RoundLimit], held: HeldGpus, waits: Mask, problem: AllocationProblem) -> Mask:
    """Return (N,) which of the jobs that wait would exceed a limit on every type where they can run; held: (N,) GPUs of jobs."""
    lacks, rows = np.zeros(len(held), dtype=bool), np.flatnonzero(waits)
    for limit in limits:
        left = limit.less(float(limit.used(held).sum()))
        table = limit.cost_table(rows, least_gpus(problem)[rows])
        costs = np.where(problem.runnable[rows], table, np.inf).min(axis=1, initial=np.inf)
        lacks[rows] |= (costs > 0) & (costs > left.most)
    return lacks


def waits_of(claims: Floats, ran: Mask, open_types: Mask, free: Floats, num_gpus: Floats, new: Mask) -> Indices:
    """Return (N,) why each job waited, as its place in `WAITS`; -1 for jobs that ran or have no deficit.

    Args:
        claims: (N, K) deficits in rounds, this round included.
        ran: (N,) the jobs that ran.
        open_types: (N, K) whether nodes of the type that could hold the job are up.
        free: (K,) GPUs left over.
        num_gpus: (N,) gang sizes.
        new: (N,) jobs in their first round.
    """
    codes, waits = np.full(len(ran), -1), ~ran
    waits[waits] = (claims[waits] > DEFICIT_ROUNDING).any(axis=1)
    here = (claims[waits] > DEFICIT_ROUNDING) & open_types[waits]
    enough = here & (num_gpus[waits, None] <= free)
    some = here & (free > 0)
    # The first condition that holds counts. If enough GPUs were free, only their nodes can have been unsuitable.
    conditions = [new[waits], *(pairs.any(axis=1) for pairs in (enough, some, here))]
    reasons = [WAITS.index(wait) for wait in (Wait.NEW, Wait.PLACE, Wait.GANG, Wait.TURN)]
    codes[waits] = np.select(conditions, reasons, WAITS.index(Wait.NODE))
    return codes


def _offered(problem: AllocationProblem, columns: Indices, units: Floats | None) -> Floats:
    """Return (K,) the GPUs that this round could give, doubled if two jobs may share each; units: (N,) as for a ledger."""
    ran, gpus = columns >= 0, problem.num_gpus if units is None else problem.num_gpus * units
    used = np.bincount(columns[ran], weights=gpus[ran], minlength=len(problem.capacities))
    # Nodes may have come back since the allocation was solved.
    return np.maximum(problem.capacities * (1 if problem.pairs is None else 2), used)


def _colocated(current: CurrentAllocation, promises: ColocationPromises, new_round: Round, present: Mask) -> tuple[Floats, Floats]:
    """Return (A,) the promised and (A,) the received part of this round for each account of co-located time."""
    types, received = {job.job_id: job.job_type for job in current.jobs.tolist()}, set()
    for job_id, held in new_round.assignments.items():
        received |= {PartnerKey(job_id, types[other], held.accelerator) for other in held.shared_with}
    fractions = promises.fractions * present[promises.rows, 0]
    promised = np.bincount(promises.accounts, fractions, len(promises.keys)).astype(float)
    return promised, np.array([key in received for key in promises.keys], dtype=float)
