"""Decides a round: finds the allocation that it follows, solving if necessary, selects jobs, and places them on GPUs.

`RoundPlanner.decide` returns a `RoundPlan` and leaves jobs, nodes and accounts unchanged; `commit` applies the plan. Two shortcuts
avoid selection and placement: `forced_gangs` finds rounds in which there is no choice, and in event-driven mode `event_driven`
decides incrementally.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.solver import Solver
from gavel_py.errors import InputError, SolverError
from gavel_py.optimization.job_classes import rounded
from gavel_py.policies import OrderedPolicy
from gavel_py.policies.constraints.shares import Shared
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.profile import Profile
from gavel_py.problem.tolerances import DURATION_ROUNDING, SOLVER_TOLERANCE
from gavel_py.scheduling.colocation import plan_groups
from gavel_py.scheduling.colocation.fractional import pack_fractional
from gavel_py.scheduling.colocation.groups import match_partners
from gavel_py.scheduling.current_allocation import (
    CurrentAllocation,
    LazyAllocation,
    keep_allocation,
    least_gpus,
    reuse_allocation,
    solve_allocation,
    speeds_of,
    unpromised_allocation,
)
from gavel_py.scheduling.event_driven import EventDrivenPlanner, EventParts
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.jobs.waiting import outlook_of, workflows_of
from gavel_py.scheduling.learning import ProgressObserver
from gavel_py.scheduling.mechanism import NAMES as MECHANISMS
from gavel_py.scheduling.mechanism import resolve_mechanism
from gavel_py.scheduling.mechanism.demand import GangSelection, RoundDemand, SizeDemand, SizingMechanism
from gavel_py.scheduling.mechanism.limits import NO_LIMITS, RoundLimits, first_within
from gavel_py.scheduling.mechanism.tenants import TenantClaims
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.options import SchedulerOptions, TimedOrder
from gavel_py.scheduling.placement.gangs import HeldGpus, ResourceRequests
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache
from gavel_py.scheduling.round import Fallback
from gavel_py.scheduling.round_planning import forced_gangs, locked_gangs, place_elsewhere, plan_round
from gavel_py.scheduling.state import EventPlan, RoundPlan, SchedulerState, plan_of

logger = logging.getLogger(__name__)

FOLLOWING = tuple(name for name in MECHANISMS if name != "direct")
"""The built-in mechanisms that follow an allocation."""


def may_decide_at_events(options: SchedulerOptions) -> bool:
    """Return whether options allow decisions from the order of jobs alone."""
    return options.by_events and not options.sharing and options.mechanism in FOLLOWING and not options.min_run_seconds


@dataclass(frozen=True)
class RoundPlanner:
    """Decides rounds with one solver, profile and set of options.

    A scheduler replaces its planner when the policy, the profile or an option changes, so that a `LazyAllocation` is resolved with
    those at the time of its decision.
    """

    solver: Solver
    profile: Profile
    options: SchedulerOptions
    observer: ProgressObserver | None = None

    def decide(self, state: SchedulerState, start: float) -> RoundPlan | EventPlan:
        """Return the plan of the round that begins at `start` seconds. Raises whatever the policy's solve raises."""
        state.drop_unused_gangs()
        plan = self._decide_at_event(state, start)
        if plan is not None:
            return plan
        current = self._allocation(state, start)
        # A user's function may choose differently even if nothing has to change.
        measures = self.observer is not None and self.observer.choose(state, current)
        running, held = state.continuing_gangs(current.rows), None
        backs_off = state.backoffs.by_job and state.backoffs.hold_back(state.table, state.gangs, start)
        if self.options.mechanism in FOLLOWING and not measures and not backs_off:
            held = forced_gangs(state, current, running, self.limits(state, current).in_every_round, backfill=self.backfills)
        if held is None:
            # No preemption during a restart, where numbers of GPUs are chosen.
            chooses = current.problem.counts is not None or self.options.mechanism == "direct"
            least = np.maximum(
                self.options.min_run_seconds, current.restart_seconds(self.options.restart_seconds) if chooses else 0.0
            )
            fixed = locked_gangs(state, current, running, start, least, self.limits(state, current).in_every_round)
            held = self.place(state, current, self.demand(state, current, fixed, start), fixed, running, start)
        return plan_of(state, start, current.rows, held, current)

    def revise(self, state: SchedulerState, plan: RoundPlan | EventPlan) -> RoundPlan:
        """Return a plan without the gangs that can no longer run as planned, with their GPUs offered to the other jobs."""
        valid, current = state.still_valid(plan), state.current_allocation
        if valid.all():
            return RoundPlan(plan.start_seconds, plan.rows, plan.held, plan.allocation)
        assert current is not None  # noqa: S101
        places = np.full(state.table.capacity, -1, dtype=np.int64)
        places[plan.rows[valid]] = np.flatnonzero(valid)
        fixed, running = plan.held.take(places[current.rows]), state.continuing_gangs(current.rows)
        if limits := self.limits(state, current).in_every_round:  # a gang without its partner counts in full
            fixed = fixed.where(first_within(limits, fixed))
        demand = self.demand(state, current, fixed, plan.start_seconds)
        held = self.place(state, current, demand, fixed, running, plan.start_seconds)
        return plan_of(state, plan.start_seconds, current.rows, held, plan.allocation)

    # The allocation that the round follows

    def _allocation(self, state: SchedulerState, start: float) -> CurrentAllocation:
        """Return the current allocation, unchanged or applied to the current jobs, or a new one."""
        before = None if state.changes.of_inputs else state.current_allocation
        if before is not None and (self._is_too_early(before, start) or self._still_holds(before, state, start)):
            logger.debug("the current allocation is kept: nothing has changed since")
            return before
        policy_input = self.policy_input(state, start)
        before = state.current_allocation if self.options.solve_seconds and not state.changes.must_solve else None
        if before is not None and self._is_too_early(before, start):
            found = self._reuse(before, policy_input, state)
            if found is not None:
                logger.debug("the allocation of %g s is carried over to the %d current jobs", found.solved_seconds, len(found.jobs))
                return found
        return self._solve_in_time(policy_input, state)

    @cached_property
    def order(self) -> TimedOrder | None:
        """How the order of the policy depends on time; None if it does not, or nothing asks it."""
        return None if self.options.mechanism == "direct" else TimedOrder.of(self.solver.policy)

    def _still_holds(self, before: CurrentAllocation, state: SchedulerState, start: float) -> bool:
        """Return whether the policy would decide the same again, although time has passed."""
        if self.order is None or not before.is_up_to_date:
            return before.is_up_to_date
        now = state.times_of(before.rows, start, by_events=self.options.by_events)
        return not self.order.has_changed(before.policy_input.history, now)

    def next_change(self, state: SchedulerState) -> float:
        """Return when time alone changes the next decision: the order changes, or a gang may be preempted; infinite if never."""
        change = np.inf if self.order is None else self._next_change_of(self.order, state)
        rows, columns, last = state.gangs.rows, state.table.columns, state.last
        # Incremental decisions know no minimum run times, and none matters if no job waits.
        if not self.options.by_events or state.event_planner is not None or last is None or len(rows) == len(state.table):
            return change
        least = columns["running_since_seconds"][rows] + self.options.min_run_seconds
        ends = np.fmax(least, columns["kept_until_seconds"][rows])
        return min(change, float(ends[ends > last.start_seconds].min(initial=np.inf)))

    def _next_change_of(self, order: TimedOrder, state: SchedulerState) -> float:
        """Return when the order changes if nothing happens: gangs with GPUs continue to run, and other jobs continue to wait."""
        table, last, found = state.table, state.last, np.inf
        gpus = np.zeros(table.capacity)
        gpus[state.gangs.rows] = state.gangs.of(state.gangs.rows).shares
        runs = gpus > 0
        if last is not None:
            attained = table.columns["attained_gpu_seconds"][runs]
            start = last.start_seconds if self.options.by_events else last.end_seconds
            found = order.next_change("attained_gpu_seconds", attained, attained, start, gpus[runs])
        since = table.columns["waiting_since_seconds"][table.is_present & ~runs]
        decided = -np.inf if last is None else last.start_seconds
        return min(found, order.next_change("waiting_seconds", decided - since, 0.0, since, 1.0))

    def _is_too_early(self, before: CurrentAllocation, start: float) -> bool:
        """Return whether `solve_seconds` have not passed, so that changes of jobs alone do not cause a solve."""
        return before.unsolved is None and start - before.solved_seconds < self.options.solve_seconds * (1 - DURATION_ROUNDING)

    def policy_input(self, state: SchedulerState, start: float) -> PolicyInput:
        """Return the input that the policy would have at this time."""
        options, policy, table = self.options, self.solver.policy, state.table
        cache = self.cache(state)  # first, since columns of the table follow from another profile
        before, speeds, rows = None, np.zeros(table.capacity), table.natural_order.rows
        if not options.by_events or policy.constraints or "previous_fractions" in policy.reads:
            before = state.current_allocation
        if before is not None:
            speeds[before.rows] = before.problem.isolated_throughput
        history = {
            **state.times_of(rows, start, by_events=options.by_events)._asdict(),
            "isolated_seconds": _isolated_seconds(table, rows, speeds[rows]),
            "running_on": state.continuing_types[rows],
            **({} if before is None else {"previous_fractions": before.fractions_for(table, rows)}),
        }
        counts = options.by_workflow and (table.workflows or state.blocked.jobs)
        outlook = outlook_of(table, state.blocked, rows, cache) if counts else None
        return PolicyInput(start, rows, table.jobs[rows], table.gangs[rows], table.requests_at(rows), history, options, outlook)

    def cache(self, state: SchedulerState) -> ProblemCache:
        """Return the problem cache of the state for the profile and options of this planner."""
        return state.problem_cache(self.profile, whole_gangs=self.options.whole_gangs)

    def _reuse(self, before: CurrentAllocation, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation | None:
        """Return the current allocation applied to the current jobs, None if it gives none of them any time."""
        found = self.applied_now(before, policy_input, state)
        return found if (found.fractions[found.problem.runnable] > SOLVER_TOLERANCE).any() else None

    def applied_now(self, before: CurrentAllocation, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation:
        """Return the current allocation applied to the current jobs; new jobs get no time."""
        constraints = self.solver.policy.constraints
        return reuse_allocation(before, policy_input, state.nodes, constraints, state.table, self.cache(state))

    def _solve_in_time(self, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation:
        """Return a new allocation; if the time limit ends the solve, the current one if that is at least as good."""
        found, before = self._solve_or_keep(policy_input, state), state.current_allocation
        if not found.is_time_limited:
            return found
        if before is not None and not state.changes.must_solve:
            if before.is_time_limited:  # for the same jobs, the better of the two
                same_jobs = before.reused is None and not state.changes.of_inputs
                kept = before if same_jobs and (found.allocation.gap or 0) >= (before.allocation.gap or 0) else None
            else:
                kept = self._reuse(before, policy_input, state)
            if kept is not None:
                what = f"the allocation solved at {kept.solved_seconds:g} s remains in use"
                return replace(kept, note=f"the time limit of {self.options.time_limit_seconds:g} s was reached: {what}")
        return replace(found, note="; ".join(filter(None, (found.note, found.allocation.notes[0]))))

    def _solve_or_keep(self, policy_input: PolicyInput, state: SchedulerState) -> CurrentAllocation:
        """Return a new allocation; if its solve fails, that for rounded throughputs, or else the times of the last solve.

        Raises what is wrong with the input.
        """
        began, label = time.perf_counter(), self.solver.policy.label
        try:
            return self._solve(policy_input, state)
        except SolverError as error:
            why = f"no proven answer of {label} was found ({str(error).splitlines()[-1].strip()})"
        limit = self.options.time_limit_seconds
        if limit is None or time.perf_counter() - began < limit:
            with suppress(SolverError, InputError):  # rounding may also break requirements that can just be satisfied
                found = self._solve(policy_input, state, view=rounded)
                note = f"{why}; throughputs were rounded to 1e-7 of themselves"
                return replace(found, note=note, fallback=Fallback(label, "rounded"))
        solver, cache = self.solver, self.cache(state)
        found = keep_allocation(state.current_allocation, policy_input, state.nodes, solver, state.table, cache)
        return replace(found, note=f"{why}; {found.note}", fallback=Fallback(label, "kept"))

    def _solve(
        self,
        policy_input: PolicyInput,
        state: SchedulerState,
        *,
        if_up: bool = False,
        view: Callable[[AllocationProblem], AllocationProblem] = lambda problem: problem,
    ) -> CurrentAllocation:
        """Return a new allocation; if_up: as if all nodes were up; view: the problem that is solved instead."""
        cache, nodes = self.cache(state), NodeStates(state.nodes.cluster) if if_up else state.nodes
        if self.options.mechanism == "direct":
            return unpromised_allocation(policy_input, nodes, self.solver.policy, cache)
        began = time.perf_counter()
        try:
            with state.calling_out():
                now = None if self.options.by_events else state.current_allocation
                before = None if now is None else partial(now.fractions_for, state.table, policy_input.rows, followed=True)
                return solve_allocation(policy_input, nodes, lambda problem: self.solver.solve(view(problem)), cache, before)
        finally:
            state.solver_seconds += time.perf_counter() - began

    # Event-driven mode

    def event_planner(self, state: SchedulerState) -> EventDrivenPlanner | None:
        """Return the event-driven planner of this state, None if options or policy require the full path."""
        options, policy = self.options, self.solver.policy
        if not may_decide_at_events(options):
            return None
        kept, cache, seconds = state.event_planner, self.cache(state), (options.restart_seconds, options.round_seconds)
        if isinstance(kept, EventDrivenPlanner) and kept.holds_for(policy, cache, *seconds, options.by_workflow):
            return kept
        if not isinstance(policy, OrderedPolicy) or not EventParts.can(policy) or state.layout.limited:
            state.event_planner = None
            state.table.track(on=False)
            return None
        state.event_planner = made = EventDrivenPlanner(policy, state, cache, *seconds, by_workflow=options.by_workflow)
        return made

    def _decide_at_event(self, state: SchedulerState, start: float) -> EventPlan | None:
        """Return the plan of an incremental decision, None if the full path must decide."""
        event_planner, began = self.event_planner(state), time.perf_counter()
        if event_planner is None or not len(state.table):
            return None
        if state.backoffs.by_job and state.backoffs.hold_back(state.table, state.gangs, start):
            return None
        # The fields of workflows that the policy reads; a queue has no weights.
        of_workflows = self.solver.policy.reads if self.options.by_workflow and state.table.workflows else ()
        decision = None if "weights" in of_workflows else event_planner.decide(state)
        if decision is None:
            return None
        allocation = LazyAllocation(
            start,
            state.table,
            state.table.is_present.copy(),
            state.gangs.types.copy(),
            decision.assignments,
            decision.excluded,
            partial(self._solve, state=state, if_up=True),  # nodes may be down when the allocation is resolved
            workflows_of(state.table, state.blocked, self.cache(state), slice(None))
            if "workflow_seconds" in of_workflows
            else None,
        )
        state.solver_seconds += time.perf_counter() - began
        return EventPlan(start, decision.assignments, decision.changes, allocation, decision.is_audited)

    # Selection and placement

    def place(
        self,
        state: SchedulerState,
        current: CurrentAllocation,
        demand: RoundDemand,
        fixed: HeldGpus,
        previous: HeldGpus,
        start: float,
    ) -> HeldGpus:
        """Return (N,) the GPUs of the jobs that run.

        Args:
            state: The scheduler's state.
            current: The allocation that is followed, of N jobs.
            demand: Their demand.
            fixed: (N,) GPUs that jobs must keep.
            previous: (N,) GPUs that jobs get if possible: those on which they run or are planned to run.
            start: When gangs start, in seconds.
        """
        place = partial(self._place, state, current)
        if not state.backoffs.by_job or not state.backoffs.hold_back(state.table, state.gangs, start):
            return place(demand, fixed, previous)
        waits = state.backoffs.waiting(state.table, state.gangs, current.rows, start)
        demand = replace(demand, runnable=demand.runnable & ~waits[:, None])
        avoided = state.backoffs.avoided_gpus(state.table, state.gangs, current.rows, start)
        return place_elsewhere(place, demand, fixed, previous, avoided)

    def _place(
        self,
        state: SchedulerState,
        current: CurrentAllocation,
        demand: RoundDemand,
        fixed: HeldGpus,
        previous: HeldGpus,
        closed: Mask | None = None,
    ) -> HeldGpus:
        """Return (N,) the GPUs of the jobs that run, none of them `closed`."""
        problem, layout = current.problem, state.layout
        cache = self.cache(state)
        requests = ResourceRequests(*cache.gang_requests(current.policy_input.gangs), limited=layout.limited)
        pool, mechanism = state.free_resources(), self._mechanism(state, problem.accelerator_types)
        if closed is not None:
            pool.free &= ~closed
        plan = partial(plan_round, pool=pool, spans=state.spans, mechanism=mechanism)
        parts = np.minimum(1.0, problem.num_gpus)
        if not self.options.sharing and (parts == 1).all():
            return plan(demand, requests, previous=previous, fixed=fixed)
        running = state.continuing_gangs(current.rows)
        first = np.full(len(running), -1, dtype=np.int64)
        first[running.runs] = running.gpus[running.starts[:-1][running.runs]]
        pack = partial(pack_fractional, parts=parts, memory=cache.memory_of(current.policy_input.gangs), gpus=first)
        partners = match_partners(demand, current.colocation_promises, state.colocation_ledger, problem.job_ids, running)
        return plan_groups(plan, pack, partners, demand, requests, problem, previous, fixed)

    def _mechanism(self, state: SchedulerState, accelerator_types: Sequence[str]) -> SizingMechanism:
        """Return the mechanism, which may call the scheduler back while it selects."""
        mechanism = resolve_mechanism(self.options.mechanism, accelerator_types)

        def select(demand: RoundDemand) -> NDArray[np.int64] | GangSelection:
            with state.calling_out():
                return mechanism(demand)

        return select

    def demand(self, state: SchedulerState, current: CurrentAllocation, fixed: HeldGpus, start: float) -> RoundDemand:
        """Return the demand of the round that begins at `start` seconds; fixed: (N,) GPUs that jobs must keep."""
        problem, rows, ledger, columns = current.problem, current.rows, state.ledger, state.table.columns
        runnable = problem.runnable & current.present(state.table)[:, None]
        deficits = np.where(runnable, ledger.deficits[rows], 0.0)
        restart_rounds = current.restart_seconds(self.options.restart_seconds) / self.options.round_seconds
        running_on = state.continuing_types[rows]
        sizes = self._sizes(state, current, running_on, start)
        if self.observer is not None:
            self.observer.raise_deficits(deficits, problem.job_ids, state.nodes.cluster.profile_names, sizes)
        return RoundDemand(
            deficits=deficits,
            fractions=current.promised,
            runnable=runnable,
            throughputs=np.where(runnable, problem.throughputs, 0.0),
            num_gpus=least_gpus(problem),
            capacities=problem.capacities.astype(np.int64),
            running_on=running_on,
            backfill=self.backfills,
            # Rounds received under the previous allocation do not count.
            received=ledger.received[rows] * current.has_same_solution(state.allocation),
            restart_rounds=restart_rounds,
            turn_rounds=np.nan_to_num((start - columns["running_since_seconds"][rows]) / self.options.round_seconds),
            preferences=current.preferences(running_on, state.gangs.is_spread, deficits, ledger.spread_deficits, restart_rounds),
            locked=fixed.runs,
            promised=ledger.promised[rows].sum(axis=1) / self.options.round_seconds,
            new=columns["has_run"][rows] == 0,
            sizes=sizes,
            limits=self.limits(state, current).in_every_round,
            tenants=self._tenant_claims(state, current),
        )

    def limits(self, state: SchedulerState, current: CurrentAllocation | LazyAllocation | None) -> RoundLimits:
        """Return the limits of constraints in rounds, for the jobs of an allocation."""
        constraints = self.solver.policy.constraints
        if not constraints or not isinstance(current, CurrentAllocation):
            return NO_LIMITS
        if state.limits.problem is not current.problem or state.limits.constraints != constraints:
            state.limits = RoundLimits.of(current.problem, constraints)
        return state.limits

    def _tenant_claims(self, state: SchedulerState, current: CurrentAllocation) -> TenantClaims | None:
        """Return the claims of tenants in a round of this allocation; None if there are not several."""
        table, problem = state.table, current.problem
        if len(table.tenants) < 2:
            return None
        promised = current.promised.sum(axis=1) * problem.num_gpus * current.present(table)
        gpus = problem.num_gpus
        if problem.counts is not None:
            gpus = np.where(problem.counts.is_elastic, np.maximum(least_gpus(problem), promised), gpus)
        return state.tenant_ledger.claims(table.tenants, table.tenant_of[current.rows], promised, gpus)

    def _sizes(self, state: SchedulerState, current: CurrentAllocation, running_on: Indices, start: float) -> SizeDemand | None:
        """Return the data for choosing numbers of GPUs, None if all are fixed and the mechanism follows the allocation."""
        if (problem := current.problem).counts is None and self.options.mechanism != "direct":
            return None
        speeds = speeds_of(problem)
        elastic = np.zeros(problem.num_jobs, dtype=bool) if problem.counts is None else problem.counts.is_elastic
        return SizeDemand(
            speeds=speeds,
            is_elastic=elastic,
            running_on=running_on,
            held=np.where(running_on >= 0, state.gangs.of(current.rows).sizes, 0),
            promised=current.promised_options(speeds, state.ledger.deficits[current.rows]),
            weights=problem.weights,
            age_seconds=np.maximum(0.0, start - problem.arrival_seconds),
            restarts=np.maximum(state.table.columns["starts"][current.rows] - 1, 0),
            restart_seconds=current.restart_seconds(self.options.restart_seconds),
        )

    @property
    def backfills(self) -> bool:
        """Whether idle GPUs go to waiting jobs.

        With constraints they do not, since these may be meant to keep GPUs free, unless all of them hold in every round anyway.
        """
        policy = self.solver.policy
        return policy.backfills and all(isinstance(each, Shared) and each.every_round for each in policy.constraints)


def _isolated_seconds(table: ScheduledJobs, rows: Indices, speeds: Floats) -> Floats:
    """Return (N,) `isolated_seconds` with the progress since they were counted, at isolated throughputs of `speeds`, steps/s.

    Steps lost by a restart from an older checkpoint reduce the time in proportion.
    """
    steps, counted, first, seconds = (
        table.columns[name][rows] for name in ("steps_done", "steps_counted", "steps_at_start", "isolated_seconds")
    )
    new = steps - counted
    more = np.divide(new, speeds, out=np.zeros(len(rows)), where=(speeds > 0) & (new > 0))
    counted_again: Floats = seconds + more
    if (new >= 0).all():
        return counted_again
    kept = np.divide(np.maximum(0.0, steps - first), np.maximum(counted - first, -new), out=np.ones(len(rows)), where=new < 0)
    return np.where(new >= 0, counted_again, seconds * kept)
