"""The state of a round scheduler: everything that must survive between rounds, and caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gavel_py.errors import Fault, InputError, UnknownNameError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import COMPLETED, depends_on_throughputs
from gavel_py.problem.job import host_requests_of
from gavel_py.problem.job_table import objects_of
from gavel_py.problem.profile import Profile
from gavel_py.problem.tolerances import INPUT_ROUNDING
from gavel_py.scheduling.colocation.groups import ColocationLedger
from gavel_py.scheduling.current_allocation import CurrentAllocation, LazyAllocation
from gavel_py.scheduling.jobs.history import ScheduledJobs, on_groups
from gavel_py.scheduling.jobs.waiting import Backoffs, BlockedJobs
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.limits import NO_LIMITS, RoundLimits
from gavel_py.scheduling.mechanism.tenants import TenantLedger
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.options import JobTimes
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import HeldGpus, RunningGangs, Spans
from gavel_py.scheduling.placement.topology import Layout, Resources
from gavel_py.scheduling.problem_cache import ProblemCache, is_by_type
from gavel_py.scheduling.round import Assignments, Fallback, GangChanges, Round

MAX_UNUSED_FACTOR, UNUSED_SLACK = 4, 20_000
"""Gangs are renumbered when there are more than `MAX_UNUSED_FACTOR * rows + UNUSED_SLACK` of them."""


@dataclass(frozen=True)
class RoundPlan:
    """A round that has been decided but has not begun."""

    start_seconds: float  # start of the round
    rows: Indices  # (N,) rows of the jobs that run, sorted by their ids
    held: HeldGpus  # (N,) their GPUs
    allocation: CurrentAllocation | LazyAllocation  # the allocation that the round follows


@dataclass(frozen=True, eq=False)
class EventPlan:
    """A round that has been decided in event-driven mode from the latest changes; has the attributes of `RoundPlan`."""

    start_seconds: float
    assignments: Assignments  # the jobs that run
    changes: GangChanges | None  # the differences from the latest round; None if they are not known
    allocation: LazyAllocation
    is_audited: bool  # whether this decision must be compared with the policy's answer to the whole problem

    @cached_property
    def rows(self) -> Indices:
        """(N,) rows of the jobs that run, sorted by their ids."""
        return np.array([self.allocation.table.row_of(job_id) for job_id in self.assignments.ids], dtype=np.int64)

    @property
    def held(self) -> HeldGpus:
        """(N,) their GPUs."""
        return self.assignments.held


@dataclass
class InputChanges:
    """What has changed since the current allocation was adopted.

    Flags ending in `_meanwhile` record changes that a policy or mechanism reports while a round is being decided.

    Attributes:
        of_inputs: Whether the policy's input has changed.
        must_solve: Whether nodes, policy or profile have changed, so that the next round solves, even soon after the last one.
    """

    of_inputs: bool = False
    must_solve: bool = False
    of_inputs_meanwhile: bool = False
    must_solve_meanwhile: bool = False

    def note(self, *, changed: bool = True) -> None:
        """Record that jobs have arrived, changed or left; with `changed=False`, do nothing."""
        self.of_inputs |= changed
        self.of_inputs_meanwhile |= changed

    def require_solve(self, *, changed: bool = True) -> None:
        """Record that nodes, policy or profile have changed; with `changed=False`, do nothing."""
        self.note(changed=changed)
        self.must_solve |= changed
        self.must_solve_meanwhile |= changed

    def begin_decision(self) -> None:
        """From now on, record the changes that happen while a round is being decided."""
        self.of_inputs_meanwhile = self.must_solve_meanwhile = False

    def adopt(self) -> None:
        """Keep only the changes that the allocation that was decided does not know."""
        self.of_inputs, self.must_solve = self.of_inputs_meanwhile, self.must_solve_meanwhile


@dataclass
class SchedulerState:
    """The state of a scheduler: jobs, nodes, accounts, the current allocation, running gangs, and the latest and planned rounds."""

    nodes: NodeStates
    table: ScheduledJobs = field(default_factory=ScheduledJobs)  # without blocked jobs
    blocked: BlockedJobs = field(default_factory=BlockedJobs)
    allocation: CurrentAllocation | LazyAllocation | None = None  # as it was decided; `current_allocation` resolves it
    changes: InputChanges = field(default_factory=InputChanges)
    is_calling_out: bool = False  # whether a policy or mechanism is running; the state is consistent then
    plan: RoundPlan | EventPlan | None = None  # the next round, if it is planned
    last: Round | None = None  # the latest round, with the gangs that have started within it
    # {job_id: time from which `last` counts as received by the job}, where this is not the start of the round.
    counted_since: dict[str, float] = field(default_factory=dict)
    last_rows: Indices | None = None  # rows of its jobs, without jobs forgotten since; None if they follow from the ids
    backoffs: Backoffs = field(default_factory=Backoffs)  # of jobs that have failed and not succeeded since
    failed_meanwhile: set[str] = field(default_factory=set)  # jobs that have failed since the next round was planned
    fallback_rounds: Counter[Fallback] = field(default_factory=Counter)  # rounds that began after a failed solve
    # {constraint: number of rounds, and of those that exceeded it} of limits that hold on average.
    limit_rounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    newly_failed: dict[str, str] = field(default_factory=dict)  # {job_id: reason} of jobs that have failed for good since `last`
    colocation_ledger: ColocationLedger = field(default_factory=ColocationLedger)
    tenant_ledger: TenantLedger = field(default_factory=TenantLedger)
    solver_seconds: float = 0.0  # wall-clock time of allocations in this process
    # Caches, which are neither saved nor copied.
    cache: ProblemCache | None = None
    event_planner: object = None  # the `EventDrivenPlanner`, which only `RoundPlanner` knows
    limits: RoundLimits = NO_LIMITS

    def __post_init__(self) -> None:
        cluster = self.nodes.cluster
        self.layout = Layout(cluster.nodes, cluster.accelerator_names)
        self.spans = Spans(cluster)
        self.ledger = DeliveryLedger(cluster.accelerator_names)
        self.gangs = RunningGangs(self.layout)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, in which no decision is in progress and caches are empty."""
        return vars(self) | {"is_calling_out": False, "cache": None, "event_planner": None, "limits": NO_LIMITS}

    def drop_caches(self) -> None:
        """Empty the caches, and discard the decision in progress, if any."""
        vars(self).update(self.__getstate__())

    def problem_cache(self, profile: Profile, *, whole_gangs: bool) -> ProblemCache:
        """Return the problem cache for a profile. If the profile has changed, all jobs are looked up again."""
        table, cluster = self.table, self.nodes.cluster
        if self.cache is None or not self.cache.holds_for(cluster, profile, whole_gangs, table.gang_numbers.models):
            if table.gang_numbers.is_by_type != is_by_type(profile):
                table.number_gangs(by_type=is_by_type(profile))
            self.cache = ProblemCache(cluster, profile, whole_gangs, table.gang_numbers.models)
            jobs = list(filter(depends_on_throughputs, table.jobs[list(table.by_id.values())].tolist()))
            requests = table.requests_of(jobs)
            self.cache.complete(jobs, requests)
            rows = [table.by_id[job.job_id] for job in jobs]
            for name in COMPLETED:
                table.columns[name][rows] = requests[name]
        return self.cache

    def drop_unused_gangs(self) -> None:
        """Renumber the gangs if most of them belong to forgotten jobs, so that their cached rows can be dropped."""
        table = self.table
        if len(table.gang_numbers.models) <= MAX_UNUSED_FACTOR * table.capacity + UNUSED_SLACK:
            return
        current = self.current_allocation
        same = None if current is None else current.policy_input.gangs == table.gangs[current.rows]
        table.number_gangs(by_type=table.gang_numbers.is_by_type)
        self.cache = self.event_planner = None
        if current is not None and same is not None:
            gangs = np.where(same, table.gangs[current.rows], -1)  # -1: a gang that has changed since
            self.allocation = replace(current, policy_input=replace(current.policy_input, gangs=gangs))

    def regrouped(self, cluster: Cluster) -> tuple[SchedulerState, tuple[str, ...]]:
        """Return the state with the same nodes in new groups of their types, and the jobs that lose their GPUs.

        These are the jobs whose GPUs are now in several groups.
        """
        before, table, running, last, rows = self.nodes.cluster, self.table, self.running, self.last, self.rows_of_last
        nodes = NodeStates.from_dict(cluster, self.nodes.to_dict())
        made = replace(self, nodes=nodes, allocation=None, plan=None, changes=InputChanges(of_inputs=True, must_solve=True))
        made.drop_caches()
        first = {kind: cluster.profile_names.index(kind) for kind in cluster.profile_names}
        number = {name: column for column, name in enumerate(cluster.accelerator_names)}
        names = zip(before.accelerator_names, before.profile_names, strict=True)
        columns = [number.get(name, first.get(kind, 0)) for name, kind in names]
        made.ledger = self.ledger.moved(cluster.accelerator_names, np.array(columns, dtype=np.int64))
        made.fit()
        kept = running.moved(made.layout)
        rows_of_kept = np.array([table.by_id[job_id] for job_id in kept.ids], dtype=np.int64)
        made.gangs.begin(rows_of_kept, kept.held, made.spans.are_spread(kept.held, made.layout))
        made.gangs.moved = None
        stopped = tuple(job_id for job_id in running if job_id not in kept)
        table.columns["running_since_seconds"][[table.by_id[job_id] for job_id in stopped]] = np.nan
        if last is not None:
            assert isinstance(last.assignments, Assignments)  # noqa: S101
            given = last.assignments.moved(made.layout)
            made.last = replace(last, assignments=given)
            made.last_rows = np.array([row for row in rows.tolist() if table.ids[row] in given], dtype=np.int64)
        table.track(on=False)
        rows = table.saved_rows
        table.jobs[rows] = objects_of([on_groups(job, before, cluster) for job in table.jobs[rows].tolist()])
        table.number_gangs(by_type=table.gang_numbers.is_by_type)
        for job in list(self.blocked.jobs.values()):
            self.blocked.replace(on_groups(job, before, cluster))
        return made, stopped

    # Queries

    def fit(self) -> None:
        """Make room in the accounts and among the running gangs for all rows of the job table."""
        self.ledger.fit(self.table.capacity)
        self.gangs.fit(self.table.capacity)

    def free_resources(self) -> FreeResources:
        """Return the GPUs, CPUs and memory of all nodes on which gangs may start."""
        reserved, layout = self.nodes.reserved, self.layout
        if reserved:  # CPUs and memory for other work, at most what running gangs leave
            own_cpus, own_memory_gb = self.loads(self.gangs.rows, self.gangs.of(self.gangs.rows))
            cpus = np.maximum(0.0, (layout.cpus - own_cpus) * (1 - INPUT_ROUNDING))
            memory_gb = np.maximum(0.0, (layout.memory_gb - own_memory_gb) * (1 - INPUT_ROUNDING))
            left = {name: (cpus.item(layout.number[name]), memory_gb.item(layout.number[name])) for name in reserved}
            reserved = {name: Resources(*map(min, amounts, left[name])) for name, amounts in reserved.items()}
        pool, closed = FreeResources(layout, loads=reserved), self.nodes.closed(layout)
        if closed is not None:
            pool.free &= ~closed
            open_nodes = [name not in self.nodes.not_up for name in layout.names]
            pool.num_open = [sum(open_nodes[part.nodes]) for part in layout.parts]
        return pool

    def loads(self, rows: Indices, held: HeldGpus) -> tuple[Floats, Floats]:
        """Return (nodes,) CPUs and (nodes,) memory that these jobs need with these GPUs."""
        per_gpu = host_requests_of(self.table.jobs[rows].tolist())
        if held.parts is not None:
            per_gpu *= held.parts[:, None]
        nodes, count = self.layout.node_of[held.gpus], len(self.layout.names)
        cpus, memory_gb = (np.bincount(nodes, column, count).astype(float) for column in per_gpu[held.owners].T)
        return cpus, memory_gb

    def assignments(self, rows: Indices, held: HeldGpus) -> Assignments:
        """Return {job_id: Assignment} of these rows, which must be sorted by id."""
        return Assignments(tuple(self.table.ids[rows].tolist()), held, self.layout)

    @property
    def running(self) -> Assignments:
        """{job_id: Assignment} of the gangs that hold GPUs."""
        rows = self.sorted_by_id(self.gangs.types >= 0)
        return self.assignments(rows, self.gangs.of(rows))

    def sorted_by_id(self, among: Mask) -> Indices:
        """Return the rows of the jobs in the system for which `among` is true, sorted by their ids; among: (rows,)."""
        rows = self.table.order_of_ids.rows
        return rows[among[rows]]

    @property
    def continuing_types(self) -> Indices:
        """(rows,) columns of the types of running gangs that may stay on their nodes for another round, -1 for all other jobs."""
        closed = self.nodes.closed(self.layout)
        if closed is None:
            return self.gangs.types
        rows, types = self.gangs.rows, self.gangs.types.copy()
        held = self.gangs.of(rows)
        types[rows[held.owners[closed[held.gpus]]]] = -1
        return types

    def continuing_gangs(self, rows: Indices) -> HeldGpus:
        """Return (N,) the GPUs of those of these jobs that may stay on their nodes for another round."""
        return self.gangs.of(rows).where(self.continuing_types[rows] >= 0)

    @property
    def current_allocation(self) -> CurrentAllocation | None:
        """The current allocation, resolved; None before the first."""
        if isinstance(self.allocation, LazyAllocation):
            self.allocation = self.allocation.resolve()
        return self.allocation

    @property
    def is_in_decision(self) -> Mask:
        """(rows,) the jobs of the current allocation; while another one is being decided, all jobs."""
        if isinstance(self.allocation, LazyAllocation) and not self.is_calling_out:
            return self.allocation.was_present
        found = np.full(self.table.capacity, self.is_calling_out)
        if self.allocation is not None:
            found[self.allocation.rows] = True
        return found

    @property
    def rows_of_last(self) -> Indices:
        """Rows of the jobs of the latest round, without those that were forgotten; before the first, of those found running."""
        if self.last_rows is not None:
            return self.last_rows
        if self.last is None:
            return self.gangs.rows
        found = [self.table.row_of(job_id) for job_id in self.last.assignments]
        return np.array([row for row in found if row is not None], dtype=np.int64)

    def note_forgotten(self, job_ids: Collection[str]) -> None:
        """Remove jobs that are about to be forgotten from those of the latest round, since their ids may be used again."""
        known = [] if self.last is None else [job_id for job_id in job_ids if job_id in self.last.assignments]
        if self.last is not None and known:
            self.counted_since |= dict.fromkeys(known, self.last.end_seconds)
            rows = self.rows_of_last
            self.last_rows = rows[[self.table.ids[row] not in job_ids for row in rows.tolist()]]

    def still_valid(self, plan: RoundPlan | EventPlan) -> Mask:
        """Return (N,) the planned gangs that are in the system, unchanged and unfinished, and whose GPUs are usable.

        A gang that runs on a draining node keeps its place, since its lease may have been renewed; no gang starts there.
        """
        current = self.current_allocation
        if current is None:
            return np.zeros(len(plan.rows), dtype=bool)
        present = np.zeros(self.table.capacity, dtype=bool)
        present[current.rows] = current.present(self.table)
        closed = self.nodes.closed(self.layout)
        is_open = np.ones(len(plan.rows), dtype=bool)
        if closed is not None:
            is_open[plan.held.owners[closed[plan.held.gpus]]] = False
        valid: Mask = present[plan.rows] & (is_open | self.gangs.of(plan.rows).same_as(plan.held))
        if self.backoffs.hold_back(self.table, self.gangs, plan.start_seconds):
            valid &= ~self.backoffs.waiting(self.table, self.gangs, plan.rows, plan.start_seconds)
            for gang, avoided in self.backoffs.avoided_gpus(self.table, self.gangs, plan.rows, plan.start_seconds).items():
                if self.table.ids[plan.rows[gang]] in self.failed_meanwhile:  # others were planned there for want of other nodes
                    valid[gang] &= not avoided[plan.held.list_of(gang)].any()
        return valid

    def row_of(self, job_id: str) -> int:
        """Return the row of a job that can run. Raises `UnknownNameError` for others, and for jobs that wait for others."""
        if job_id in self.blocked.jobs:
            text = "waits for other jobs, so it neither runs nor makes progress yet"
            raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
        return self.table.known(job_id)

    # Decisions and what changes while they are made

    def check_idle(self) -> None:
        """Raise `InputError` if the policy or mechanism that is deciding calls a method that needs its decision."""
        if self.is_calling_out:
            text = "a policy or mechanism that is deciding cannot begin or plan a round, or read the unfinished allocation"
            raise InputError(Fault("round scheduler", "", text))

    @contextmanager
    def calling_out(self) -> Iterator[None]:
        """Mark that a policy or mechanism is running, which may call back. Raises `InputError` if one is running already."""
        self.check_idle()
        self.is_calling_out = True
        try:
            yield
        finally:
            self.is_calling_out = False

    # Time that passes

    def times_of(self, rows: Indices, now: float, *, by_events: bool) -> JobTimes:
        """Return (N,) the times of these jobs. Those of rounds are counted in full when they begin, by events as they pass."""
        attained, since = (self.table.columns[name] for name in ("attained_gpu_seconds", "waiting_since_seconds"))
        if by_events:
            attained, since = attained.copy(), since.copy()
            self.add_latest(now, attained, since)
        return JobTimes(attained[rows], np.maximum(0.0, now - since[rows]))

    def add_latest(self, now: float, attained: Floats, since: Floats) -> None:
        """Add the time from the start of the latest round until now; attained, since: columns of the job table."""
        if self.last is not None:
            assert isinstance(self.last.assignments, Assignments)  # noqa: S101
            ran = self.rows_of_last
            attained[ran] += (now - self.last.start_seconds) * self.last.assignments.held_by(self.table.ids[ran].tolist()).shares
            since[ran] = now

    # Gangs that stop between rounds

    def stop(self, row: int) -> None:
        """Remove the GPUs of a gang."""
        self.table.columns["running_since_seconds"][row] = np.nan
        partners = self.gangs.partners_of(row)
        self.gangs.stop(row)
        for other in partners:
            partner = self.table.by_id.get(other, -1)
            if partner >= 0 and self.gangs.types[partner] >= 0:
                self.gangs.drop_partner(str(self.table.ids[row]), partner)


def plan_of(
    state: SchedulerState, start: float, rows: Indices, held: HeldGpus, allocation: CurrentAllocation | LazyAllocation
) -> RoundPlan:
    """Return the plan in which these jobs hold these GPUs; rows: (N,) of the allocation."""
    places = np.full(state.table.capacity, -1, dtype=np.int64)
    places[rows[held.runs]] = np.flatnonzero(held.runs)
    running = state.sorted_by_id(places >= 0)
    return RoundPlan(start, running, held.take(places[running]), allocation)
