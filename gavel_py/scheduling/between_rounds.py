"""Selects the waiting jobs that start within a round on its idle GPUs (`select_starts`); `commit` enters their starts.

They are selected and placed by the mechanism and the placement of rounds. Running gangs stay as they are, and the current
allocation is not solved again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavel_py.problem.arrays import Indices, Mask
from gavel_py.problem.tolerances import INPUT_ROUNDING
from gavel_py.scheduling.current_allocation import CurrentAllocation
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.planner import RoundPlanner
from gavel_py.scheduling.state import RoundPlan, SchedulerState, plan_of


def select_starts(planner: RoundPlanner, state: SchedulerState, now: float) -> tuple[RoundPlan, RoundPlan | None] | None:
    """Return the gangs that start at `now`, within the latest round, and the next round if it is planned; None if no gang starts.

    A planned round does not change, except that gangs that need none of its GPUs continue in it.
    """
    before = state.current_allocation
    if before is None or not _fits_waiting_job(state):
        return None
    plan = None if state.plan is None else planner.revise(state, state.plan)
    current = replace(planner.applied_now(before, planner.policy_input(state, now), state), note=before.note)
    running = state.gangs.of(current.rows)
    previous = running if plan is None else _with_planned(state, running, current.rows, plan)
    demand = _demand_within_round(planner, state, current, running, now)
    held = planner.place(state, current, demand, running, previous, now)
    found = plan_of(state, now, current.rows, held.where(~running.runs), current)
    starts = _part_of(state, found, _startable(state, current, found))
    if not len(starts.rows):
        return None
    return starts, plan if plan is None or not planner.backfills else _continued(state, plan, starts)


def _fits_waiting_job(state: SchedulerState) -> bool:
    """Return whether some type has enough idle GPUs for any waiting job."""
    rows = state.table.order_of_ids.rows
    waiting = rows[state.gangs.types[rows] < 0]
    if not len(waiting):
        return False
    idle = _idle_gpus(state)
    most = max((np.count_nonzero(idle[part.gpus]) for part in state.layout.parts), default=0)
    return bool(most > 0 and state.table.columns["num_gpus"][waiting].min() <= most)


def _idle_gpus(state: SchedulerState) -> Mask:
    """Return (GPUs,) the GPUs on which gangs may start and which no gang holds."""
    idle = state.free_resources().free
    idle[state.gangs.of(state.gangs.rows).gpus] = False
    return idle


def _demand_within_round(
    planner: RoundPlanner, state: SchedulerState, current: CurrentAllocation, running: HeldGpus, now: float
) -> RoundDemand:
    """Return the demand for idle GPUs within a round; running: (N,) GPUs of running gangs, which keep them."""
    demand = planner.demand(state, current, running, now)
    # The deficits already contain the promise of this round.
    deficits = np.where(demand.runnable, demand.deficits - demand.fractions, 0.0)
    demand = replace(demand, deficits=deficits)
    return demand if demand.backfill else replace(demand, runnable=demand.runnable & (demand.claims > 0))


def _with_planned(state: SchedulerState, running: HeldGpus, rows: Indices, plan: RoundPlan) -> HeldGpus:
    """Return (N,) the GPUs of running gangs, and the planned GPUs of the other jobs; rows: (N,) rows of the jobs."""
    places = np.full(state.table.capacity, -1, dtype=np.int64)
    places[plan.rows] = np.arange(len(plan.rows))
    waiting = np.flatnonzero(~running.runs & (places[rows] >= 0))
    return running.replaced(waiting, plan.held.take(places[rows[waiting]])) if len(waiting) else running


def _startable(state: SchedulerState, current: CurrentAllocation, found: RoundPlan) -> Mask:
    """Return (N,) the gangs that can still start, given the changes that a mechanism may have reported while it selected."""
    present = np.zeros(state.table.capacity, dtype=bool)
    present[current.rows] = current.present(state.table)
    return present[found.rows] & (state.gangs.types[found.rows] < 0) & _all_in(_idle_gpus(state), found.held)


def _all_in(gpus: Mask, held: HeldGpus) -> Mask:
    """Return (N,) which gangs have all of their GPUs among these; gpus: (GPUs,)."""
    inside = np.ones(len(held), dtype=bool)
    inside[held.owners[~gpus[held.gpus]]] = False
    return inside


def _part_of(state: SchedulerState, plan: RoundPlan, among: Mask) -> RoundPlan:
    """Return a plan with some of its gangs only; among: (N,)."""
    rows = plan.rows[among]
    held = plan.held.take(np.flatnonzero(among)).with_partners_among(state.table.ids[rows].tolist())
    return replace(plan, rows=rows, held=held)


def _continued(state: SchedulerState, plan: RoundPlan, starts: RoundPlan) -> RoundPlan:
    """Return a planned round extended by the gangs that start before it and need none of its GPUs, CPUs and memory."""
    pool = state.free_resources()
    pool.free[plan.held.gpus] = False
    keep = ~np.isin(starts.rows, plan.rows) & _all_in(pool.free, starts.held)
    if state.layout.limited:
        for part in (plan, _part_of(state, starts, keep)):
            cpus, memory_gb = state.loads(part.rows, part.held)
            pool.cpus -= cpus
            pool.memory_gb -= memory_gb
        keep &= _all_in(((pool.cpus > -INPUT_ROUNDING) & (pool.memory_gb > -INPUT_ROUNDING))[state.layout.node_of], starts.held)
    if not keep.any():
        return plan
    kept = _part_of(state, starts, keep)
    rows, held = np.append(plan.rows, kept.rows), plan.held.joined(kept.held)
    order = np.array(sorted(range(len(rows)), key=state.table.ids[rows].tolist().__getitem__), dtype=np.int64)
    return replace(plan, rows=rows[order], held=held.take(order), allocation=starts.allocation)
