"""Decides a round: finds the allocation that it follows, solves if needed, selects jobs, and places them on GPUs.

`RoundPlanner.decide` returns a `RoundPlan` and leaves jobs, nodes and accounts as they are; `commit` applies the plan. Two
shortcuts avoid selection and placement: `forced_assignments` finds rounds in which there is nothing to choose, and in event-driven
mode `event_driven` decides from what has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.solver import Solver
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile, gpu_memory
from gavel_py.problem.job import Job
from gavel_py.scheduling.colocation import plan_groups
from gavel_py.scheduling.colocation.fractional import pack_fractional
from gavel_py.scheduling.colocation.groups import ColocationGroups
from gavel_py.scheduling.colocation.matching import match_partners
from gavel_py.scheduling.current_allocation import (
    CurrentAllocation,
    LazyAllocation,
    PolicyInput,
    columns_of,
    reuse_allocation,
    solve_allocation,
)
from gavel_py.scheduling.event_driven import EventDrivenPlanner
from gavel_py.scheduling.mechanism import resolve_mechanism
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.placement.gangs import Spans, preferences_of
from gavel_py.scheduling.round import Assignment
from gavel_py.scheduling.round_planning import plan_round
from gavel_py.scheduling.state import RoundPlan, SchedulerState

logger = logging.getLogger(__name__)

ROUNDING = 1e-9
"""Relative slack of `solve_seconds`: starts are sums of round lengths, and rounding must not delay a solve by a round."""


@dataclass(frozen=True)
class RoundPlanner:
    """Decides rounds with one solver, profile and set of options.

    A scheduler replaces its planner when policy, profile or an option changes, so that a `LazyAllocation` is resolved with those
    that were current when it was decided.
    """

    solver: Solver
    profile: Profile
    options: SchedulerOptions

    def decide(self, state: SchedulerState, start: float) -> RoundPlan:
        """Return the plan of the round that begins at `start` seconds. Raises whatever the policy's solve raises."""
        plan = self._decide_at_event(state, start)
        if plan is not None:
            return plan
        current = self._allocation(state, start)
        assignments = None
        if isinstance(self.options.mechanism, str):  # a user's function may choose otherwise even if nothing has to change
            assignments = forced_assignments(state, current, backfill=self._backfills)
        if assignments is None:
            assignments = self._select_and_place(state, current, self._locked(state, current, start))
        return RoundPlan(start, assignments, current)

    def revise(self, state: SchedulerState, plan: RoundPlan) -> RoundPlan:
        """Return a plan without the gangs that can no longer run as planned, and their GPUs offered to the other jobs."""
        assignments = state.still_valid(plan)
        if len(assignments) < len(plan.assignments):
            assert state.current_allocation is not None  # noqa: S101
            assignments = self._select_and_place(state, state.current_allocation, assignments)
        return replace(plan, assignments=assignments, moved=None)

    # The allocation that the round follows

    def _allocation(self, state: SchedulerState, start: float) -> CurrentAllocation:
        """Return the current allocation, the same for the jobs that are in the system now, or a new one."""
        before = None if state.inputs_changed else state.current_allocation
        if before is not None and (before.is_up_to_date or self._is_too_early(before, start)):
            logger.debug("the allocation in force is kept: nothing has changed since")
            return before
        policy_input = self._policy_input(state, start)
        before = state.current_allocation if self.options.solve_seconds and not state.must_solve else None
        if before is not None and self._is_too_early(before, start):
            found = self._reuse(before, policy_input, state)
            if found is not None:
                logger.debug("the allocation of %g s is carried over to the %d jobs of now", found.solved_seconds, len(found.jobs))
                return found
        return self._solve_in_time(policy_input, state)

    def _is_too_early(self, before: CurrentAllocation, start: float) -> bool:
        """Return whether `solve_seconds` have not passed, so that changes of jobs alone are no reason to solve."""
        return start - before.solved_seconds < self.options.solve_seconds * (1 - ROUNDING)

    def _policy_input(self, state: SchedulerState, start: float) -> PolicyInput:
        options, policy = self.options, self.solver.policy
        before = None
        if not options.by_events or policy.constraints or "previous_fractions" in policy.reads:
            before = state.current_allocation
        return PolicyInput.of(
            state.registry,
            start,
            state.continuing,
            before,
            with_history=not options.by_events,
            whole_gangs=options.whole_gangs,
            sharing=options.sharing,
            min_gain=options.min_gain,
        )

    def _reuse(self, before: CurrentAllocation, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation | None:
        constraints = self.solver.policy.constraints
        return reuse_allocation(before, policy_input, state.nodes, self.profile, constraints, state.problem_cache)

    def _solve_in_time(self, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation:
        """Return a new allocation; if the time limit ends the solve, the current one while that is at least as good."""
        found, before = self._solve(policy_input, state, state.nodes), state.current_allocation
        if not found.is_time_limited:
            return found
        if before is not None and not state.must_solve:
            if before.is_time_limited:  # for the same jobs, the better of the two
                same_jobs = before.reused is None and not state.inputs_changed
                kept = before if same_jobs and (found.allocation.gap or 0) >= (before.allocation.gap or 0) else None
            else:
                kept = self._reuse(before, policy_input, state)
            if kept is not None:
                what = f"the allocation that was solved at {kept.solved_seconds:g} s stays in force"
                return replace(kept, note=f"the time limit of {self.options.time_limit_seconds:g} s was reached: {what}")
        return replace(found, note=found.allocation.notes[0])

    def _solve(self, policy_input: PolicyInput, state: SchedulerState, nodes: NodeStates) -> CurrentAllocation:
        with state.calling_out():
            found = solve_allocation(policy_input, nodes, self.profile, self.solver, state.problem_cache)
        state.solver_seconds += found.allocation.seconds["solve"]
        return found

    # Event-driven mode

    def event_planner(self, state: SchedulerState) -> EventDrivenPlanner | None:
        """Return the event-driven planner of this state, None if options or policy need rounds to be decided in full."""
        options, policy = self.options, self.solver.policy
        if not options.by_events or options.sharing or not isinstance(options.mechanism, str) or options.min_run_seconds:
            return None
        kept = state.event_planner
        if kept is not None and kept.holds_for(policy, self.profile, options.restart_seconds):
            return kept
        if not isinstance(policy, OrderedPolicy) or not EventDrivenPlanner.can(policy, state):
            state.event_planner = None
            state.registry.track(on=False)
            return None
        seconds = {"restart_seconds": options.restart_seconds, "round_seconds": options.round_seconds}
        state.event_planner = EventDrivenPlanner(policy, state, self.profile, whole_gangs=options.whole_gangs, **seconds)
        return state.event_planner

    def _decide_at_event(self, state: SchedulerState, start: float) -> RoundPlan | None:
        """Return the plan that follows from what has changed, None if the round must be decided in full."""
        event_planner, began = self.event_planner(state), time.perf_counter()
        decision = None if event_planner is None or not len(state.registry) else event_planner.decide(state)
        if event_planner is None or decision is None:
            return None
        allocation = LazyAllocation(
            start,
            *state.registry.jobs_and_steps,
            state.gangs.shared_view(),
            decision.accelerators,
            decision.excluded,
            self.options.whole_gangs,
            # All nodes are up now, and may be down when the allocation is resolved.
            partial(self._solve, state=state, nodes=NodeStates(state.nodes.cluster)),
        )
        state.solver_seconds += time.perf_counter() - began
        return RoundPlan(start, decision.assignments, allocation, decision.moved, is_audited=event_planner.audit_is_due)

    # Selection and placement

    def _select_and_place(
        self, state: SchedulerState, current: CurrentAllocation, fixed: Mapping[str, Assignment]
    ) -> dict[str, Assignment]:
        """Return {job_id: Assignment} of the jobs that run; fixed: assignments that must stay."""
        jobs, types = current.jobs, current.problem.accelerator_types
        plan = partial(
            plan_round,
            jobs=jobs,
            accelerator_types=types,
            nodes=state.nodes.up,
            mechanism=self._mechanism(state, types),
            lost=state.nodes.lost,
        )
        context, demand, running = state.placement_context(jobs), self._demand(state, current, fixed), state.continuing
        parts = np.minimum(1.0, current.problem.num_gpus)
        if not self.options.sharing and (parts == 1).all():
            return plan(demand, previous=running, fixed=fixed, context=context)
        first_gpus = [running[job.job_id].gpus[0] if job.job_id in running else None for job in jobs]
        pack = partial(pack_fractional, parts=parts, memory=gpu_memory(jobs, state.nodes.cluster, self.profile), gpus=first_gpus)
        return plan_groups(plan, pack, _partners(state, current, demand), demand, context, parts, running, fixed)

    def _mechanism(self, state: SchedulerState, accelerator_types: Sequence[str]) -> Mechanism:
        """Return the mechanism, which may call the scheduler back while it selects."""
        mechanism = resolve_mechanism(self.options.mechanism, accelerator_types)

        def select(demand: RoundDemand) -> NDArray[np.int64]:
            with state.calling_out():
                return mechanism(demand)

        return select

    def _demand(self, state: SchedulerState, current: CurrentAllocation, fixed: Mapping[str, Assignment]) -> RoundDemand:
        problem, histories, ids = current.problem, state.registry.histories, current.problem.job_ids
        runnable = problem.runnable & current.present(state.registry)[:, None]
        deficits = np.where(runnable, state.ledger.deficits(ids), 0.0)
        costs = [self.options.restart_seconds if job.restart_seconds is None else job.restart_seconds for job in current.jobs]
        restart_rounds = np.array(costs, dtype=float) / self.options.round_seconds
        return RoundDemand(
            deficits=deficits,
            fractions=current.fractions,
            runnable=runnable,
            throughputs=np.where(runnable, problem.throughputs, 0.0),
            num_gpus=np.ceil(problem.num_gpus).astype(np.int64),
            capacities=problem.capacities.astype(np.int64),
            running_on=columns_of(problem, state.continuing),
            backfill=self._backfills,
            # Rounds received under the previous allocation do not count.
            received=state.ledger.received(ids) * current.has_same_solution(state.allocation),
            restart_rounds=restart_rounds,
            preferences=_preferences(state, current, deficits, restart_rounds),
            locked=np.array([job_id in fixed for job_id in ids], dtype=bool),
            promised=state.ledger.promised(ids).sum(axis=1) / self.options.round_seconds,
            new=np.array([not histories[job_id].has_run for job_id in ids], dtype=bool),
        )

    @property
    def _backfills(self) -> bool:
        """Whether idle GPUs go to waiting jobs; constraints may mean to keep GPUs free."""
        return self.solver.policy.backfills and not self.solver.policy.constraints

    def _locked(self, state: SchedulerState, current: CurrentAllocation, start: float) -> dict[str, Assignment]:
        """Return the running gangs that have not run for their minimum time yet and may continue where they run."""
        problem, continuing = current.problem, state.continuing
        since = {job_id: state.registry.histories[job_id].running_since_seconds for job_id in continuing}
        min_run = self.options.min_run_seconds
        new = {job_id for job_id, started in since.items() if started is not None and start - started < min_run}
        new |= {other for job_id in new for other in continuing[job_id].shared_with}  # co-located jobs stay or go together
        if not new:
            return {}
        columns = columns_of(problem, continuing)
        may_stay = problem.runnable[np.arange(len(columns)), columns].tolist()
        return {job_id: continuing[job_id] for job_id, may in zip(problem.job_ids, may_stay, strict=True) if may and job_id in new}


def _partners(state: SchedulerState, current: CurrentAllocation, demand: RoundDemand) -> ColocationGroups:
    """Return the pairs of jobs that are to share all of their GPUs."""
    promises = current.colocation_promises
    if promises is None:
        return ColocationGroups((), demand)
    numbers = {job_id: row for row, job_id in enumerate(current.problem.job_ids)}
    partners = np.full(len(numbers), -1, dtype=np.int64)
    for job_id, held in state.continuing.items():
        if job_id in numbers and held.shared_with:
            partners[numbers[job_id]] = numbers.get(held.shared_with[0], -1)
    return match_partners(demand, promises, promises.divided(state.colocation_ledger.deficits(promises.keys)), partners)


def _preferences(state: SchedulerState, current: CurrentAllocation, deficits: Floats, restart_rounds: Floats) -> NDArray[np.int8]:
    """Return (N, K) the `PlacementPreference` of each job on each type."""
    problem, spread = current.problem, current.spread_fractions
    if problem.speeds is None or spread is None:
        return np.zeros((), dtype=np.int8)
    runs_spread, continuing = np.zeros(spread.shape), state.continuing
    columns = columns_of(problem, continuing)
    rows = np.flatnonzero(columns >= 0)
    is_spread = [1.0 if state.spans.is_spread(continuing[problem.job_ids[row]]) else -1.0 for row in rows.tolist()]
    runs_spread[rows, columns[rows]] = is_spread
    faster, deficits_spread = problem.speeds.spread_is_faster, state.ledger.spread_deficits(problem.job_ids)
    return preferences_of(current.fractions, spread, faster, deficits, deficits_spread, runs_spread, restart_rounds)


NOISE_ROUNDS = 5e-7
"""Deficits below this are zero: mechanisms round deficits to 6 digits."""


def forced_assignments(state: SchedulerState, current: CurrentAllocation, *, backfill: bool) -> dict[str, Assignment] | None:
    """Return the assignments of a round in which no mechanism has a choice, None if there is a choice.

    There is no choice if every running job has all of its time on the type where it runs, in its promised placement; at most one
    other job has time, all of it on one type, and fits on one node; no job has a deficit; and, with `backfill`, no waiting gang
    fits the GPUs left over.
    """
    fractions, problem, continuing = current.fractions, current.problem, state.continuing
    if (problem.num_gpus < 1).any():
        return None  # fractional jobs are packed onto GPUs in each round
    if current.colocation_promises is not None or any(held.shared_with for held in continuing.values()):
        return None
    if not ((fractions == 0) | (fractions == 1)).all():
        return None
    columns = columns_of(problem, continuing)
    given = np.where(fractions.any(axis=1), fractions.argmax(axis=1), -1) if fractions.size else columns
    other = np.flatnonzero(given != columns)
    if len(other) > 1 or (columns[other] >= 0).any() or np.count_nonzero(columns >= 0) < len(continuing):
        return None
    # An allocation that is kept may include jobs that have left, changed or finished since.
    if current is state.allocation and not current.present(state.registry).all():
        return None
    if (np.abs(state.ledger.deficits(problem.job_ids)) > NOISE_ROUNDS).any() or not _placed_as_promised(
        current, continuing, state.spans
    ):
        return None
    if backfill and _fits_waiting_gang(current, given):
        return None
    return _with_new_gang(state, current, int(other[0]), int(given[other[0]])) if len(other) else dict(continuing)


def _placed_as_promised(current: CurrentAllocation, running: Mapping[str, Assignment], spans: Spans) -> bool:
    """Return whether every running gang is spread or consolidated as the allocation promises."""
    if current.spread_fractions is None:
        return True
    types = {name: column for column, name in enumerate(current.problem.accelerator_types)}
    for job_id, spread in zip(current.problem.job_ids, current.spread_fractions.tolist(), strict=True):
        held = running.get(job_id)
        if held is None or len(held.gpus) == 1:
            continue
        part = spread[types[held.accelerator]]
        if part == part and part != spans.is_spread(held):  # NaN if the placement makes no difference
            return False
    return True


def _fits_waiting_gang(current: CurrentAllocation, given: Indices) -> bool:
    """Return whether a gang without time would fit the GPUs left over; given: (N,) columns of the jobs with time."""
    problem = current.problem
    used = np.bincount(given[given >= 0], weights=problem.num_gpus[given >= 0], minlength=len(problem.capacities))
    waits = (given < 0)[:, None] & problem.runnable
    return bool((waits & (problem.num_gpus[:, None] <= problem.capacities - used)).any())


def _with_new_gang(state: SchedulerState, current: CurrentAllocation, row: int, column: int) -> dict[str, Assignment] | None:
    """Return the running gangs and one that starts, None if it has no place on one node or should be spread."""
    job, spread = current.jobs[row], current.spread_fractions
    if (spread is not None and job.num_gpus > 1 and spread[row, column] > 0) or not state.nodes.all_up:
        return None
    place = best_fit(job, current.problem.accelerator_types[column], state.nodes.cluster, state.continuing.values())
    if place is None:
        return None
    found = {**state.continuing, job.job_id: place}
    return {job_id: found[job_id] for job_id in sorted(found)}


def best_fit(job: Job, accelerator: str, cluster: Cluster, held: Iterable[Assignment]) -> Assignment | None:
    """Return the lowest free GPUs of the node that the job fills best; None if no single node has room.

    The rule is that of `FreeRoom.fit` in `placement/free_gpus.py`.

    Args:
        job: A gang that is to start.
        accelerator: The type on which it starts.
        cluster: Nodes, all of them up. None is returned also if a node of the type limits CPUs or memory.
        held: Assignments of all other gangs.
    """
    nodes = cluster.nodes_of(accelerator)
    if any(node.cpus is not None or node.memory_gb is not None for node in nodes):
        return None
    taken: dict[str, set[int]] = {}
    for other in held:
        if other.accelerator == accelerator:
            for name, index in other.gpus:
                taken.setdefault(name, set()).add(index)
    rooms = ((node.num_gpus - len(taken.get(node.name, ())), node) for node in nodes)
    best = min((each for each in rooms if each[0] >= job.whole_gpus), key=lambda each: each[0], default=None)
    if best is None:
        return None
    name = best[1].name
    free = [(name, index) for index in range(best[1].num_gpus) if index not in taken.get(name, ())]
    return Assignment(accelerator, free[: job.whole_gpus])
