"""Choosing a round from the state of a scheduler: solve if need be, compute what is owed, and place the jobs that run.

Many rounds need no choice: the running jobs have all that they are given, and at most one gang starts where there is room.
`settled` recognises them, and `place_of` is the place of the only gang that starts, where it fits on one node and no other gang has
to move.
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
from gavel_py.problem.arrays import Floats
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile, gpu_memory
from gavel_py.problem.job import Job
from gavel_py.scheduling.colocation import plan_groups
from gavel_py.scheduling.colocation.fractional import bundled
from gavel_py.scheduling.colocation.groups import ColocationGroups, Held
from gavel_py.scheduling.colocation.matching import matched
from gavel_py.scheduling.current_allocation import (
    InForce,
    LazyAllocation,
    PolicyInput,
    columns_of,
    policy_input_at_event,
    policy_input_of,
    reused_allocation,
    solved,
)
from gavel_py.scheduling.event_driven import EventDrivenPlanner
from gavel_py.scheduling.mechanism import MechanismName, resolve_mechanism
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.placement.gangs import PlacementContext, preferences_of
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.round import Assignment
from gavel_py.scheduling.round_planning import plan_round
from gavel_py.scheduling.state import PlannedRound, SchedulerState

logger = logging.getLogger(__name__)


def place_of(job: Job, accelerator: str, cluster: Cluster, held: Iterable[Assignment]) -> Assignment | None:
    """Return the free GPUs of the node where the least is left over, lowest first, as `place` would; None where no node has room.

    held: what all other gangs have, on nodes that are all up. None also where nodes limit CPUs or memory.
    """
    nodes = cluster.nodes_of(accelerator)
    if any(node.cpus is not None or node.memory_gb is not None for node in nodes):
        return None
    taken: dict[str, list[int]] = {}
    for other in held:
        if other.accelerator == accelerator:
            for name, index in other.gpus:
                taken.setdefault(name, []).append(index)
    best, room = None, 0
    for node in nodes:
        left = node.num_gpus - len(taken.get(node.name, ()))
        if left >= job.whole_gpus and (best is None or left < room):
            best, room = node, left
    if best is None:
        return None
    gone = set(taken.get(best.name, ()))
    free = [(best.name, index) for index in range(best.num_gpus) if index not in gone]
    return Assignment(accelerator, free[: job.whole_gpus])


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
    if in_force.colocation_promises is not None or any(held.shared_with for held in state.lasting.values()):
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


ROUNDING = 1e-9
"""The starts of rounds are sums of their lengths, and a time that is as long as so many rounds must not come a round late."""


@dataclass(frozen=True)
class RoundPlanner:
    """How a scheduler chooses rounds; the arguments are those of `RoundScheduler`."""

    solver: Solver
    profile: Profile
    mechanism: MechanismName | Mechanism
    round_seconds: float
    restart_seconds: float
    min_run_seconds: float
    whole_gangs: bool
    sharing: bool
    min_gain: float
    by_events: bool
    solve_seconds: float
    time_limit_seconds: float | None

    def decide(self, state: SchedulerState, start: float) -> None:
        """Solve if need be, choose the next round, and only then take note of both."""
        state.begin_decision()
        if self._decided_at_event(state, start):
            return
        in_force = self._in_force(state, start)
        # A mechanism of the user's own may have reasons that nobody else knows.
        assignments = settled(state, in_force, backfill=self._backfills) if isinstance(self.mechanism, str) else None
        if assignments is None:
            assignments = self.chosen(state, in_force, self._locked(state, in_force, start))
        if in_force is not state.told:
            state.take_up(in_force)
        state.coming = PlannedRound(start, assignments)

    def _in_force(self, state: SchedulerState, start: float) -> InForce:
        """The allocation that the round follows: that in force, the same for the jobs that are there now, or a new one."""
        before = None if state.changed else state.in_force
        if before is not None and (before.is_answer or self._is_early(before, start)):
            logger.debug("the allocation in force is kept: nothing has changed since")
            return before
        question = self._question(state, start)
        found = self._reused(question, state, start)
        if found is not None:
            logger.debug("the allocation of %g s is carried over to the %d jobs of now", found.asked_seconds, len(found.jobs))
        return self._solved_in_time(question, state) if found is None else found

    def _solved_in_time(self, question: PolicyInput, state: SchedulerState) -> InForce:
        """A new allocation, or that in force where the time limit has ended the solve and it still holds."""
        found, before = self._solved(question, state, state.nodes), state.in_force
        if not found.is_stopped:
            return found
        if before is not None and not state.at_once:
            if before.is_stopped:  # about the same jobs, it is kept unless the new one is better
                same = before.carried is None and not state.changed
                kept = before if same and (found.allocation.gap or 0) >= (before.allocation.gap or 0) else None
            else:
                kept = reused_allocation(before, question, state.nodes, self.profile, self.solver.policy.constraints, state.rows)
            if kept is not None:
                asked = f"the allocation that was solved at {kept.asked_seconds:g} s stays in force"
                return replace(kept, note=f"the time limit of {self.time_limit_seconds:g} s was reached: {asked}")
        return replace(found, note=found.allocation.notes[0])

    def _reused(self, question: PolicyInput, state: SchedulerState, start: float) -> InForce | None:
        """What is in force, for the jobs that are there now; None where the policy must be asked."""
        before = state.in_force if self.solve_seconds and not state.at_once else None
        if before is None or not self._is_early(before, start):
            return None
        return reused_allocation(before, question, state.nodes, self.profile, self.solver.policy.constraints, state.rows)

    def _is_early(self, before: InForce, start: float) -> bool:
        """Say whether only jobs that come, change or go are no reason yet to ask the policy again."""
        return start - before.asked_seconds < self.solve_seconds * (1 - ROUNDING)

    def _question(self, state: SchedulerState, start: float) -> PolicyInput:
        """What the policy is to be asked now."""
        policy = self.solver.policy
        options = {"whole_gangs": self.whole_gangs, "sharing": self.sharing, "min_gain": self.min_gain}
        if not self.by_events:
            return policy_input_of(state.book, start, state.lasting, state.in_force, **options)
        before = state.in_force if policy.constraints or "previous_fractions" in policy.reads else None
        return policy_input_at_event(state.book, start, state.lasting, before, **options)

    def _solved(self, question: PolicyInput, state: SchedulerState, nodes: NodeStates) -> InForce:
        with state.asking():
            found = solved(question, nodes, self.profile, self.solver, state.rows)
        state.solver_seconds += found.allocation.seconds["solve"]
        return found

    def _decided_at_event(self, state: SchedulerState, start: float) -> bool:
        """Decide by what is kept of jobs and GPUs, where that comes to the same; say whether it does."""
        in_turn = self.in_turn(state)
        began = time.perf_counter()
        turns = None if in_turn is None or not len(state.book) else in_turn.decide(state)
        if turns is None:
            return False
        # All nodes are up now, and may not be when somebody asks.
        ask = partial(self._solved, state=state, nodes=NodeStates(state.nodes.cluster))
        before = state.gangs.as_now()
        later = LazyAllocation(start, *state.book.as_noted, before, turns.given, turns.excluded, self.whole_gangs, ask)
        state.solver_seconds += time.perf_counter() - began
        state.resolve_allocation(later)
        state.coming = PlannedRound(start, turns.assignments, turns.moved)
        if in_turn is not None and in_turn.is_to_be_proven:
            assert state.in_force is not None  # which asks the policy  # noqa: S101
        return True

    def in_turn(self, state: SchedulerState) -> EventDrivenPlanner | None:
        """Return what is kept for decisions in turn, None where they cannot be made so."""
        policy = self.solver.policy
        if not self.by_events or self.sharing or not isinstance(self.mechanism, str) or self.min_run_seconds:
            return None
        kept = state.in_turn
        if kept is not None and kept.holds_for(policy, self.profile, self.restart_seconds):
            return kept
        if not isinstance(policy, OrderedPolicy) or not EventDrivenPlanner.can(policy, state):
            state.in_turn = None
            state.book.follow(on=False)
            return None
        seconds = {"restart_seconds": self.restart_seconds, "round_seconds": self.round_seconds}
        state.in_turn = EventDrivenPlanner(policy, state, self.profile, whole_gangs=self.whole_gangs, **seconds)
        return state.in_turn

    def chosen(self, state: SchedulerState, in_force: InForce, fixed: Mapping[str, Assignment]) -> dict[str, Assignment]:
        """Return who runs where, beside those whose places are fixed."""
        types, nodes = in_force.problem.accelerator_types, state.nodes
        chosen_by, ground = resolve_mechanism(self.mechanism, types), state.grounds.of(in_force.jobs, nodes.up, state.spans)

        def mechanism(demand: RoundDemand) -> NDArray[np.int64]:
            with state.asking():
                return chosen_by(demand)

        def plan(demand: RoundDemand, ground: PlacementContext, previous: Held, fixed: Held) -> dict[str, Assignment]:
            jobs = in_force.jobs
            return plan_round(demand, jobs, types, nodes.up, previous, mechanism, fixed=fixed, lost=nodes.lost, ground=ground)

        demand, parts = self._demand(state, in_force, fixed), np.minimum(1.0, in_force.problem.num_gpus)
        if not self.sharing and (parts == 1).all():
            return plan(demand, ground, state.lasting, fixed)
        memory, gpus = gpu_memory(in_force.jobs, nodes.cluster, self.profile), _first_gpus(state, in_force)

        def on_one_gpu(crews: ColocationGroups) -> ColocationGroups:
            return bundled(crews, parts, memory, gpus)

        crews, idle = on_one_gpu(_pairs(state, in_force, demand)), lambda left: on_one_gpu(ColocationGroups((), left))
        return plan_groups(plan, demand, crews, idle, ground, parts, state.lasting, fixed)

    def _demand(self, state: SchedulerState, in_force: InForce, fixed: Mapping[str, Assignment]) -> RoundDemand:
        problem, standings = in_force.problem, state.book.standings
        runnable = problem.runnable & in_force.present(state.book)[:, None]
        deficits = np.where(runnable, state.ledger.deficits(problem.job_ids), 0.0)
        restarts = self._restart_seconds(in_force.jobs) / self.round_seconds
        return RoundDemand(
            deficits=deficits,
            fractions=in_force.fractions,
            runnable=runnable,
            throughputs=np.where(runnable, problem.throughputs, 0.0),
            num_gpus=np.ceil(problem.num_gpus).astype(np.int64),
            capacities=problem.capacities.astype(np.int64),
            running_on=columns_of(problem, state.lasting),
            backfill=self._backfills,
            # The rounds received under an allocation that ends now do not count.
            received=state.ledger.received(problem.job_ids) * in_force.is_same_as(state.told),
            restart_rounds=restarts,
            kinds=_kinds(state, in_force, deficits, restarts),
            locked=np.array([job_id in fixed for job_id in problem.job_ids], dtype=bool),
            promised=state.ledger.promised(problem.job_ids).sum(axis=1) / self.round_seconds,
            new=np.array([not standings[job_id].has_run for job_id in problem.job_ids], dtype=bool),
        )

    @property
    def _backfills(self) -> bool:
        """Whether idle GPUs go to others; what is left over may be kept free by a constraint."""
        return self.solver.policy.backfills and not self.solver.policy.constraints

    def _restart_seconds(self, jobs: Sequence[Job]) -> NDArray[np.float64]:
        """(N,) what a restart costs each job."""
        costs = [self.restart_seconds if job.restart_seconds is None else job.restart_seconds for job in jobs]
        return np.array(costs, dtype=float)

    def _locked(self, state: SchedulerState, in_force: InForce, start: float) -> dict[str, Assignment]:
        """The gangs that may go on where they run, and have not run for their minimum time yet."""
        problem, lasting = in_force.problem, state.lasting
        since = {job_id: state.book.standings[job_id].running_since_seconds for job_id in lasting}
        new = {job_id for job_id, begun in since.items() if begun is not None and start - begun < self.min_run_seconds}
        new |= {other for job_id in new for other in lasting[job_id].shared_with}  # who would have to make room for whom?
        if not new:
            return {}
        columns = columns_of(problem, lasting)
        may_stay = problem.runnable[np.arange(len(columns)), columns].tolist()
        return {job_id: lasting[job_id] for job_id, may in zip(problem.job_ids, may_stay, strict=True) if may and job_id in new}


def _first_gpus(state: SchedulerState, in_force: InForce) -> list[Gpu | None]:
    """By job, the first GPU that it has and may keep."""
    lasting = state.lasting
    return [lasting[job_id].gpus[0] if job_id in lasting else None for job_id in in_force.problem.job_ids]


def _pairs(state: SchedulerState, in_force: InForce, demand: RoundDemand) -> ColocationGroups:
    """Who shares all of their GPUs with whom."""
    companies = in_force.colocation_promises
    if companies is None:
        return ColocationGroups((), demand)
    numbers = {job_id: row for row, job_id in enumerate(in_force.problem.job_ids)}
    partners = np.full(len(numbers), -1, dtype=np.int64)
    for job_id, held in state.lasting.items():
        if job_id in numbers and held.shared_with:
            partners[numbers[job_id]] = numbers.get(held.shared_with[0], -1)
    return matched(demand, companies, companies.divided(state.company.owed(companies.keys)), partners)


def _kinds(state: SchedulerState, in_force: InForce, deficits: Floats, restart_rounds: Floats) -> NDArray[np.int8]:
    """(N, K) in which placement gangs should run."""
    problem, apart = in_force.problem, in_force.apart
    if problem.speeds is None or apart is None:
        return np.zeros((), dtype=np.int8)
    stands, lasting, is_spread = np.zeros(apart.shape), state.lasting, state.spans.is_spread
    columns = columns_of(problem, lasting)
    runs = np.flatnonzero(columns >= 0)
    stands[runs, columns[runs]] = [1.0 if is_spread(lasting[problem.job_ids[i]]) else -1.0 for i in runs.tolist()]
    owed = state.ledger.apart(problem.job_ids)
    fractions = in_force.fractions
    return preferences_of(fractions, apart, problem.speeds.spread_is_faster, deficits, owed, stands, restart_rounds)
