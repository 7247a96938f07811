"""The state of a round scheduler: everything that must survive between rounds, and caches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.scheduling.colocation.groups import ColocationGroups, ColocationLedger, PartnerKey, match_partners
from gavel_py.scheduling.current_allocation import CurrentAllocation, LazyAllocation, least_gpus
from gavel_py.scheduling.delivery import Wait
from gavel_py.scheduling.jobs import JobTable, on_groups
from gavel_py.scheduling.jobs.waiting import Backoffs, BlockedJobs
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.limits import NO_LIMITS, RoundLimit, RoundLimits, first_within
from gavel_py.scheduling.mechanism.tenants import TenantClaims, TenantLedger
from gavel_py.scheduling.nodes import NodeStates, cluster_from_dict, cluster_to_dict
from gavel_py.scheduling.options import JobTimes
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import HeldGpus, Spans, preferences_of
from gavel_py.scheduling.placement.topology import Layout, Resources
from gavel_py.scheduling.problem_cache import ProblemCache, is_by_type
from gavel_py.scheduling.round import Assignment, Assignments, Fallback, Round

if TYPE_CHECKING:
    from gavel_py.policies.constraints.base import Constraint
    from gavel_py.scheduling.event_driven import EventDrivenPlanner, GangChanges
    from gavel_py.scheduling.mechanism.demand import RoundDemand


ROUNDING = 1e-9
"""Relative part of the CPUs and memory beside running gangs that is not reserved, so that no gang loses its GPUs to rounding."""

MAX_UNUSED_FACTOR, UNUSED_SLACK = 4, 20_000
"""Gangs are renumbered when there are more than `MAX_UNUSED_FACTOR * rows + UNUSED_SLACK` of them."""


class RunningGangs:
    """The gangs that hold GPUs, by their rows in the `JobTable`.

    Attributes:
        layout: All GPUs of the cluster.
        types: (rows,) columns of the accelerator types, -1 for none.
        is_spread: (rows,) whether a gang is on more nodes than it needs.
        moved: Rows of jobs whose GPUs may have changed since the latest round began; None before the first round of this process.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.types: Indices = np.zeros(0, dtype=np.int64)
        self.is_spread: Mask = np.zeros(0, dtype=bool)
        self.moved: set[int] | None = None
        self._rows: Indices = np.zeros(0, dtype=np.int64)
        self._held = HeldGpus.none(0)
        self._places: Indices = np.zeros(0, dtype=np.int64)  # (rows,) index in `_held`
        self._new: dict[int, list[int]] = {}  # {row: GPUs} of gangs that are not in `_held`
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Indices:
        """(N,) rows of the gangs, ascending."""
        return np.flatnonzero(self.types >= 0)

    @property
    def are_shared(self) -> bool:
        """Whether any GPUs are shared by several jobs."""
        return bool(self._held.partners)

    def gpus_of(self, row: int) -> list[int]:
        """Return the GPUs of the gang in a row."""
        if self.types[row] < 0:
            return []
        return self._new[row] if row in self._new else self._held.list_of(self._places.item(row))

    def partners_of(self, row: int) -> tuple[str, ...]:
        """Return the ids of the jobs that share GPUs with the gang in a row."""
        partners = self._held.partners
        return partners.get(self._places.item(row), ()) if partners and self.types[row] >= 0 and row not in self._new else ()

    def of(self, rows: Indices) -> HeldGpus:
        """Return the GPUs of the gangs in these rows."""
        if self._new:
            self._gather()
        if self.moved is not None and not self.moved and np.array_equal(rows, self._rows):
            return self._held  # nothing has changed since the round began
        return self._held.take(np.where(self.types[rows] >= 0, self._places[rows], -1))

    def holds(self, rows: Indices, held: HeldGpus) -> bool:
        """Return whether the running gangs are exactly those with which the latest round began, with these rows and GPUs."""
        return held is self._held and not self._new and not self.moved and self.moved is not None and len(rows) == self._count

    def fit(self, capacity: int) -> None:
        """Make room for this number of rows."""
        more = capacity - len(self.types)
        if more > 0:
            self.types = np.concatenate([self.types, np.full(more, -1, dtype=np.int64)])
            self.is_spread = np.concatenate([self.is_spread, np.zeros(more, dtype=bool)])
            self._places = np.concatenate([self._places, np.zeros(more, dtype=np.int64)])

    def begin(self, rows: Indices, held: HeldGpus, is_spread: Mask) -> None:
        """Replace all gangs by those of a new round; held, is_spread: (N,) of these rows."""
        self.types.fill(-1)
        self.types[rows], self.is_spread[rows], self._places[rows] = held.types, is_spread, np.arange(len(rows))
        self._rows, self._held, self._count, self.moved = rows, held, len(rows), set()
        self._new = {}

    def put(self, row: int, column: int, gpus: list[int], *, is_spread: bool) -> None:
        """Set the type and the GPUs of one gang."""
        self.stop(row)
        self.types[row], self.is_spread[row], self._new[row] = column, is_spread, gpus
        self._count += 1
        if self.moved is not None:
            self.moved.add(row)

    def _gather(self) -> None:
        """Merge the gangs of `_new` into the arrays."""
        rows, new = self.rows, np.array([*self._new], dtype=np.int64)
        held = self._held.take(np.where(np.isin(rows, new), -1, self._places[rows]))
        parts = None if held.parts is None else np.where(held.runs, held.parts, 1.0)
        joined = held.replaced(np.searchsorted(rows, new), HeldGpus.of(self.types[new], list(self._new.values())))
        self._rows, self._held, self._new = rows, replace(joined, parts=parts, partners=held.partners), {}
        self._places[rows] = np.arange(len(rows))

    def add(self, rows: Indices, held: HeldGpus, is_spread: Mask) -> None:
        """Set the GPUs of several gangs that hold none."""
        others = self.rows
        moved = None if self.moved is None else self.moved | set(rows.tolist())
        self.begin(np.append(others, rows), self.of(others).joined(held), np.append(self.is_spread[others], is_spread))
        self.moved = moved

    def stop(self, row: int) -> None:
        """Remove the GPUs of a gang, if it holds any; its partners keep theirs."""
        if self.types[row] < 0:
            return
        self.types[row] = -1
        self._new.pop(row, None)
        self._count -= 1
        if self.moved is not None:
            self.moved.add(row)

    def drop_partner(self, job_id: str, row: int) -> None:
        """Record that a job no longer shares its GPUs with the gang of a row."""
        if self._new:
            self._gather()
        place, partners = int(self._places[row]), dict(self._held.partners)
        partners[place] = tuple(other for other in partners.get(place, ()) if other != job_id)
        self._held = replace(self._held, partners={i: others for i, others in partners.items() if others})
        if self.moved is not None:
            self.moved.add(row)


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
class SchedulerState:
    """The state of a scheduler: jobs, nodes, accounts, the current allocation, running gangs, and the latest and planned rounds.

    Flags ending in `_meanwhile` record changes that a policy or mechanism reports while a round is being decided.
    """

    nodes: NodeStates
    table: JobTable = field(default_factory=JobTable)  # without blocked jobs
    blocked: BlockedJobs = field(default_factory=BlockedJobs)
    allocation: CurrentAllocation | LazyAllocation | None = None  # as it was decided; `current_allocation` resolves it
    inputs_changed: bool = False  # whether the policy's input has changed since the allocation was adopted
    must_solve: bool = False  # whether nodes, policy or profile have changed, so that `solve_seconds` must not delay the next solve
    inputs_changed_meanwhile: bool = False
    must_solve_meanwhile: bool = False
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
    event_planner: EventDrivenPlanner | None = None
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

    def to_dict(self) -> dict[str, Any]:
        """Return the state without caches as plain data; jobs are identified by their places in the saved job table."""
        current, table = self.current_allocation, self.table
        rows = table.saved_rows
        places = {row: place for place, row in enumerate(rows.tolist())}
        running, plan, last = self.gangs.rows, self.plan, self.last
        return {
            "cluster": cluster_to_dict(self.nodes.cluster),
            "nodes": self.nodes.to_dict(),
            "jobs": table.to_dict(),
            "ledger": self.ledger.to_dict(rows),
            "allocation": None if current is None else current.to_dict(table, places),
            "inputs_changed": self.inputs_changed,
            "must_solve": self.must_solve,
            "running": _held_to_dict(running, self.gangs.of(running), places),
            "plan": None if plan is None else {"start_seconds": plan.start_seconds, **_held_to_dict(plan.rows, plan.held, places)},
            "last": None if last is None else replace(last, assignments={}).to_dict() | {"assignments": _assignments_to_dict(last)},
            "newly_failed": dict(self.newly_failed),
            "colocation": self.colocation_ledger.to_list(),
            **({"tenants": tenants} if (tenants := self.tenant_ledger.to_dict()) else {}),
            **({"counted_since": dict(self.counted_since)} if self.counted_since else {}),
            **({"backoffs": self.backoffs.to_dict()} if self.backoffs else {}),
            **(
                {"fallback_rounds": [[*astuple(k), n] for k, n in fallbacks.items()]} if (fallbacks := self.fallback_rounds) else {}
            ),
            **({"limit_rounds": {name: list(each) for name, each in self.limit_rounds.items()}} if self.limit_rounds else {}),
            **({"failed_meanwhile": sorted(self.failed_meanwhile)} if self.failed_meanwhile else {}),
            **({"blocked": blocked} if (blocked := self.blocked.to_dict()) else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], profile: Profile, *, whole_gangs: bool) -> SchedulerState:
        """Restore a state from `to_dict`.

        Args:
            document: The plain data.
            profile: The throughputs with which it was saved.
            whole_gangs: As for `RoundScheduler`.
        """
        cluster = cluster_from_dict(document["cluster"])
        state = cls(
            NodeStates.from_dict(cluster, document["nodes"]),
            JobTable.from_dict(document["jobs"]),
            inputs_changed=document["inputs_changed"],
            must_solve=document["must_solve"],
            newly_failed=dict(document["newly_failed"]),
            colocation_ledger=ColocationLedger.from_list(document["colocation"]),
            tenant_ledger=TenantLedger.from_dict(document.get("tenants", {})),
            counted_since=dict(document.get("counted_since", {})),
            backoffs=Backoffs.from_dict(document.get("backoffs", {})),
            failed_meanwhile=set(document.get("failed_meanwhile", ())),
            limit_rounds={name: (rounds, exceeded) for name, (rounds, exceeded) in document.get("limit_rounds", {}).items()},
            fallback_rounds=Counter({Fallback(*each): number for *each, number in document.get("fallback_rounds", ())}),
        )
        if not state.backoffs.by_job.keys() <= state.table.by_id.keys():
            raise ValueError("a job that is not in the system waits after a failure")
        state.blocked = BlockedJobs.from_dict(document.get("blocked", {}), state.table.jobs_at(state.table.in_natural_order))
        cache = state.problem_cache(profile, whole_gangs=whole_gangs)
        state.ledger = DeliveryLedger.from_dict(document["ledger"])
        if state.ledger.accelerator_types != cluster.accelerator_names:
            raise ValueError("the accelerator types of the accounts are not those of the cluster")
        state.fit()
        if document["allocation"] is not None:
            state.allocation = CurrentAllocation.from_dict(document["allocation"], cluster, state.table, cache)
        rows, held = _held_from_dict(document["running"], state)
        state.gangs.begin(rows, held, state.is_spread(held))
        state.gangs.moved = None
        if document["plan"] is not None:
            if state.allocation is None:
                raise ValueError("a round is planned without an allocation")
            state.plan = RoundPlan(
                document["plan"]["start_seconds"], *_held_from_dict(document["plan"], state), allocation=state.allocation
            )
        if document["last"] is not None:
            state.last = Round.from_dict(document["last"] | {"assignments": {}})
            state.last = replace(state.last, assignments=_assignments_from_dict(document["last"]["assignments"], state.layout))
        return state

    def problem_cache(self, profile: Profile, *, whole_gangs: bool) -> ProblemCache:
        """Return the problem cache for a profile. If the profile has changed, all jobs are looked up again."""
        table, cluster = self.table, self.nodes.cluster
        if self.cache is None or not self.cache.holds_for(cluster, profile, whole_gangs, table.models):
            if table.is_by_type != is_by_type(profile):
                table.number_gangs(by_type=is_by_type(profile))
            self.cache = ProblemCache(cluster, profile, whole_gangs, table.models)
            table.update_requests(self.cache)
        return self.cache

    def drop_unused_gangs(self) -> None:
        """Renumber the gangs if most of them belong to forgotten jobs, so that their cached rows can be dropped."""
        table = self.table
        if len(table.models) <= MAX_UNUSED_FACTOR * table.capacity + UNUSED_SLACK:
            return
        current = self.current_allocation
        same = None if current is None else current.policy_input.gangs == table.gangs[current.rows]
        table.number_gangs(by_type=table.is_by_type)
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
        made = replace(self, nodes=nodes, allocation=None, plan=None, inputs_changed=True, must_solve=True)
        made.drop_caches()
        first = {kind: cluster.profile_names.index(kind) for kind in cluster.profile_names}
        number = {name: column for column, name in enumerate(cluster.accelerator_names)}
        names = zip(before.accelerator_names, before.profile_names, strict=True)
        columns = [number.get(name, first.get(kind, 0)) for name, kind in names]
        made.ledger = self.ledger.moved(cluster.accelerator_names, np.array(columns, dtype=np.int64))
        made.fit()
        kept = running.moved(made.layout)
        made.gangs.begin(np.array([table.by_id[i] for i in kept.ids], dtype=np.int64), kept.held, made.is_spread(kept.held))
        made.gangs.moved = None
        stopped = tuple(job_id for job_id in running if job_id not in kept)
        table.columns["running_since_seconds"][[table.by_id[job_id] for job_id in stopped]] = np.nan
        if last is not None:
            assert isinstance(last.assignments, Assignments)  # noqa: S101
            given = last.assignments.moved(made.layout)
            made.last = replace(last, assignments=given)
            made.last_rows = np.array([row for row in rows.tolist() if table.ids[row] in given], dtype=np.int64)
        table.track(on=False)
        table.regroup(before, cluster)
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
        pool = FreeResources(self.layout, loads=self._reserved())
        closed = self.nodes.closed(self.layout)
        if closed is not None:
            pool.free &= ~closed
            open_nodes = [name not in self.nodes.not_up for name in self.layout.names]
            pool.num_open = [sum(open_nodes[part.nodes]) for part in self.layout.parts]
        return pool

    def loads(self, rows: Indices, held: HeldGpus) -> tuple[Floats, Floats]:
        """Return (nodes,) CPUs and (nodes,) memory that these jobs need with these GPUs."""
        requests = [(job.cpus_per_gpu, job.memory_gb_per_gpu) for job in self.table.jobs[rows].tolist()]
        per_gpu = np.array(requests, dtype=float).reshape(-1, 2)
        if held.parts is not None:
            per_gpu *= held.parts[:, None]
        nodes, count = self.layout.node_of[held.gpus], len(self.layout.names)
        cpus, memory_gb = (np.bincount(nodes, column, count).astype(float) for column in per_gpu[held.owners].T)
        return cpus, memory_gb

    def _reserved(self) -> dict[str, Resources]:
        """Return {node: CPUs and memory} used by other work, at most what running gangs leave."""
        reserved, layout = self.nodes.reserved, self.layout
        if not reserved:
            return {}
        own_cpus, own_memory_gb = self.loads(self.gangs.rows, self.gangs.of(self.gangs.rows))
        cpus = np.maximum(0.0, (layout.cpus - own_cpus) * (1 - ROUNDING))
        memory_gb = np.maximum(0.0, (layout.memory_gb - own_memory_gb) * (1 - ROUNDING))
        left = {name: (cpus.item(layout.number[name]), memory_gb.item(layout.number[name])) for name in reserved}
        return {name: Resources(*map(min, amounts, left[name])) for name, amounts in reserved.items()}

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
        rows = self.table.in_order_of_ids
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

    def is_spread(self, held: HeldGpus) -> Mask:
        """Return (N,) which gangs are on more nodes than they need."""
        return self.spans.are_spread(held, self.layout)

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
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that the current allocation excludes."""
        return {} if self.allocation is None else dict(self.allocation.excluded)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the current allocation, for its rounds."""
        return (self.allocation.note,) if isinstance(self.allocation, CurrentAllocation) and self.allocation.note else ()

    @property
    def fallback(self) -> Fallback | None:
        """How the current allocation was found if its solve failed, for its rounds."""
        return self.allocation.fallback if isinstance(self.allocation, CurrentAllocation) else None

    @property
    def rows_of_last(self) -> Indices:
        """Rows of the jobs of the latest round, without those that have been forgotten."""
        if self.last_rows is not None:
            return self.last_rows
        found = [] if self.last is None else [self.table.row_of(job_id) for job_id in self.last.assignments]
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
        if self.is_backing_off(plan.start_seconds):
            valid &= ~self.waits_after_failure(plan.rows, plan.start_seconds)
            for gang, avoided in self.avoided_gpus(plan.rows, plan.start_seconds).items():
                if self.table.ids[plan.rows[gang]] in self.failed_meanwhile:  # others were planned there for want of other nodes
                    valid[gang] &= not avoided[plan.held.list_of(gang)].any()
        return valid

    def unfinished(self, rows: Indices) -> tuple[str, ...]:
        """Return the ids of the unfinished jobs in these rows that are in the system, in the order of the current allocation."""
        if not len(rows) or self.allocation is None:
            return ()
        if isinstance(self.allocation, CurrentAllocation):
            left = self.allocation.unfinished(self.table, rows)
            if self.counted_since:  # jobs that have started between rounds may have arrived after the allocation was solved
                left = self._with_later(left, rows)
            return tuple(self.table.ids[left].tolist())
        # A lazy allocation has just been decided, when all jobs in the system had steps left.
        there = [job_id for job_id in self.table.ids[rows].tolist() if job_id in self.table]
        return tuple(self.table.in_order(there))

    def _with_later(self, left: Indices, rows: Indices) -> Indices:
        """Return unfinished jobs, and the jobs in these rows that the current allocation does not cover, in natural order."""
        table, among = self.table, np.zeros(self.table.capacity, dtype=bool)
        among[rows] = ~(table.columns["steps_done"][rows] >= table.columns["total_steps"][rows])
        among[self.is_in_decision] = False
        among[left] = True
        in_order = table.in_natural_order
        return in_order[among[in_order]]

    def row_of(self, job_id: str) -> int:
        """Return the row of a job that can run. Raises `UnknownNameError` for others, and for jobs that wait for others."""
        if job_id in self.blocked.jobs:
            text = "waits for other jobs, so it neither runs nor makes progress yet"
            raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
        return self.table.known(job_id)

    def partners(self, current: CurrentAllocation, demand: RoundDemand, running: HeldGpus) -> ColocationGroups:
        """Return the pairs of jobs that are to share all of their GPUs; running: (N,) the GPUs of running gangs."""
        promises = current.colocation_promises
        if promises is None:
            return ColocationGroups((), demand)
        numbers = {job_id: row for row, job_id in enumerate(current.problem.job_ids)}
        partners = np.full(len(numbers), -1, dtype=np.int64)
        for i, others in running.partners.items():
            partners[i] = numbers.get(others[0], -1)
        return match_partners(demand, promises, promises.divided(self.colocation_ledger.deficits(promises.keys)), partners)

    def preferences(
        self, current: CurrentAllocation, running_on: Indices, deficits: Floats, restart_rounds: Floats
    ) -> NDArray[np.int8]:
        """Return (N, K) the `PlacementPreference` of each job on each type."""
        spread, faster = current.spread_fractions, current.spread_is_faster
        if spread is None or faster is None:
            return np.zeros((), dtype=np.int8)
        runs_spread, running = np.zeros(spread.shape), np.flatnonzero(running_on >= 0)
        runs_spread[running, running_on[running]] = np.where(self.gangs.is_spread[current.rows[running]], 1.0, -1.0)
        deficits_spread = self.ledger.spread_deficits[current.rows]
        return preferences_of(current.fractions, spread, faster, deficits, deficits_spread, runs_spread, restart_rounds)

    # Back-offs

    def back_off(self, job_id: str, now: float, retry_seconds: float, round_seconds: float) -> None:
        """Begin the back-off of a job that failed and is about to stop; seconds: as for `Backoffs.fail`."""
        row = self.table.known(job_id)
        nodes = self.layout.nodes_of(self.gangs.gpus_of(row))
        if self.plan is not None:
            self.failed_meanwhile.add(job_id)
        self.backoffs.fail(job_id, sorted({self.layout.names[node] for node in nodes}), now, retry_seconds, round_seconds)

    def end_backoffs(self, among: Callable[[int], bool]) -> None:
        """End the back-offs of the jobs that hold GPUs and for whose row `among` is true: they have succeeded."""
        rows = {job_id: self.table.by_id[job_id] for job_id in self.backoffs.by_job}
        self.backoffs.drop([job_id for job_id, row in rows.items() if self.gangs.types[row] >= 0 and among(row)])

    def is_backing_off(self, now: float) -> bool:
        """Return whether any job without GPUs waits after a failure or avoids nodes."""
        ids = (job_id for job_id, each in self.backoffs.by_job.items() if now < each.until_seconds or each.avoided(now))
        return any(self.gangs.types[self.table.by_id[job_id]] < 0 for job_id in ids)

    def waits_after_failure(self, rows: Indices, now: float) -> Mask:
        """Return (N,) which of these jobs wait after a failure."""
        waits = np.zeros(self.table.capacity, dtype=bool)
        waits[[self.table.by_id[job_id] for job_id in self.backoffs.waiting(now)]] = True
        waiting: Mask = waits[rows] & (self.gangs.types[rows] < 0)
        return waiting

    def avoided_gpus(self, rows: Indices, now: float) -> dict[int, Mask]:
        """Return {index: (GPUs,) the GPUs that the job avoids} for the jobs in these rows that do not run and avoid nodes."""
        nodes = {self.table.by_id[job_id]: names for job_id, names in self.backoffs.avoiding(now).items()}
        avoided = {}
        for i in np.flatnonzero(np.isin(rows, list(nodes)) & (self.gangs.types[rows] < 0)).tolist():
            numbers = [self.layout.number[name] for name in nodes[rows.item(i)]]
            avoided[i] = np.isin(self.layout.node_of, numbers)
        return avoided

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

    def watch_for_changes(self) -> None:
        """Begin a decision: from now on, record the changes that happen while it is made."""
        self.inputs_changed_meanwhile = self.must_solve_meanwhile = False

    def note_change(self, *, changed: bool = True) -> None:
        """Record that jobs have arrived, changed or left; with `changed=False`, do nothing."""
        self.inputs_changed |= changed
        self.inputs_changed_meanwhile |= changed

    def require_solve(self, *, changed: bool = True) -> None:
        """Record that nodes, policy or profile have changed; with `changed=False`, do nothing."""
        self.note_change(changed=changed)
        self.must_solve |= changed
        self.must_solve_meanwhile |= changed

    # Time that passes

    def times_of(self, rows: Indices, now: float, *, by_events: bool) -> JobTimes:
        """Return (N,) the times of these jobs. Those of rounds are counted in full when they begin, by events as they pass."""
        attained, since = (self.table.columns[name] for name in ("attained_gpu_seconds", "waiting_since_seconds"))
        if by_events:
            attained, since = attained.copy(), since.copy()
            self._add_latest(now, attained, since)
        return JobTimes(attained[rows], np.maximum(0.0, now - since[rows]))

    def count_until(self, now: float) -> None:
        """Enter in the job table how long the gangs of the latest round have run, in event-driven mode."""
        self._add_latest(now, self.table.columns["attained_gpu_seconds"], self.table.columns["waiting_since_seconds"])

    def _add_latest(self, now: float, attained: Floats, since: Floats) -> None:
        """Add the time from the start of the latest round until now; attained, since: columns of the job table."""
        if self.last is not None:
            assert isinstance(self.last.assignments, Assignments)  # noqa: S101
            ran = self.rows_of_last
            attained[ran] += (now - self.last.start_seconds) * self.last.assignments.held_by(self.table.ids[ran].tolist()).shares
            since[ran] = now

    def locked_gangs(
        self, current: CurrentAllocation, held: HeldGpus, start: float, least: Floats, limits: tuple[RoundLimit, ...]
    ) -> HeldGpus:
        """Return (N,) the GPUs of running gangs that must keep them in the round that begins at `start` seconds.

        Args:
            current: The allocation, of N jobs.
            held: (N,) GPUs that they may keep.
            start: The start of the round.
            least: (N,) or a number, the seconds for which gangs run at least.
            limits: The limits that hold in every round, which come first.
        """
        columns = self.table.columns
        since, kept_until = (columns[name][current.rows] for name in ("running_since_seconds", "kept_until_seconds"))
        new = held.runs & ((start - since < least * (1 - ROUNDING)) | (start < kept_until))
        if not new.any():
            return HeldGpus.none(len(held))
        index = {job_id: i for i, job_id in enumerate(current.problem.job_ids)} if held.partners else {}
        for i in np.flatnonzero(new).tolist():  # co-located jobs stay or go together
            new[[index[other] for other in held.partners.get(i, ()) if other in index]] = True
        locked = held.where(new & current.problem.runnable[np.arange(len(held)), held.types])
        return locked.where(first_within(limits, locked)) if limits else locked

    def limits_of(self, current: CurrentAllocation | LazyAllocation | None, constraints: tuple[Constraint, ...]) -> RoundLimits:
        """Return the limits of constraints in rounds, for the jobs of an allocation."""
        if not constraints or not isinstance(current, CurrentAllocation):
            return NO_LIMITS
        if self.limits.problem is not current.problem or self.limits.constraints != constraints:
            self.limits = RoundLimits.of(current.problem, constraints)
        return self.limits

    def tenant_claims(self, current: CurrentAllocation) -> TenantClaims | None:
        """Return the claims of tenants in a round of this allocation; None if there are not several."""
        table, problem = self.table, current.problem
        if len(table.tenants) < 2:
            return None
        promised = current.promised.sum(axis=1) * problem.num_gpus * current.present(table)
        gpus = problem.num_gpus
        if problem.counts is not None:
            gpus = np.where(problem.counts.is_elastic, np.maximum(least_gpus(problem), promised), gpus)
        return self.tenant_ledger.claims(table.tenants, table.tenant_of[current.rows], promised, gpus)

    def next_unlock(self, min_run_seconds: float) -> float:
        """Return when the minimum run time of a gang ends next, infinite if no job waits for that."""
        rows, columns = self.gangs.rows, self.table.columns
        if self.last is None or len(rows) == len(self.table):
            return math.inf
        ends = np.fmax(columns["running_since_seconds"][rows] + min_run_seconds, columns["kept_until_seconds"][rows])
        return float(ends[ends > self.last.start_seconds].min(initial=np.inf))

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

    def stop_lost(self) -> tuple[str, ...]:
        """Stop gangs whose GPUs are lost or on nodes that are down, revert the rest of their round, and return their jobs."""
        gone = self.nodes.gone(self.layout)
        if gone is None:
            return ()
        rows = self.sorted_by_id(self.gangs.types >= 0)
        held = self.gangs.of(rows)
        lost = rows[np.unique(held.owners[gone[held.gpus]])]
        for row in lost.tolist():
            self.take_back(row)
        return tuple(self.table.ids[lost].tolist())

    def take_back(self, row: int) -> None:
        """Stop a gang, if it runs, and revert the time that it was credited for the round in progress."""
        column = int(self.gangs.types[row])
        self.stop(row)
        counted = self.counted(row)
        # A gang that was found running has received nothing for this round.
        if counted is not None and column >= 0 and counted.accelerator == self.layout.types[column]:
            self.revert(row, -math.inf, Wait.NODE)

    def counted(self, row: int) -> Assignment | None:
        """Return the GPUs for which a job is credited until the end of the latest round, None if there are none."""
        job_id = str(self.table.ids[row])
        if self.last is None or self.counted_since.get(job_id, -math.inf) >= self.last.end_seconds:
            return None
        return self.last.assignments.get(job_id)

    def revert(self, row: int, from_seconds: float, reason: Wait) -> None:
        """Revert the time of the latest round that a job was credited from this time on. reason: why it does not receive it.

        Without an account of the job, as in the event-driven mode, there is nothing to revert.
        """
        counted, last, job_id = self.counted(row), self.last, str(self.table.ids[row])
        if counted is None or last is None or not self.ledger.knows(np.array([row])).all():
            return
        seconds = last.end_seconds - max(from_seconds, self.counted_since.get(job_id, last.start_seconds))
        rounds, attained = seconds / (last.end_seconds - last.start_seconds), self.table.columns["attained_gpu_seconds"]
        column, is_spread, size = self.layout.type_number[counted.accelerator], self.is_assigned_spread(counted), counted.size
        each, gpus = (size, 1.0) if self.table.jobs[row].is_elastic else (1.0, size)  # accounts of elastic jobs are in GPU-seconds
        self.ledger.take_back(row, column, gpus, seconds * each, rounds=rounds * each, is_spread=is_spread, reason=reason)
        attained[row] = max(0.0, attained.item(row) - seconds * counted.gpu_share)
        tenant = self.table.tenant_of[row : row + 1]
        self.tenant_ledger.receive(self.table.tenants, tenant, np.array([-counted.gpu_share]), rounds, seconds)
        for key in self.partner_keys(job_id, counted):
            self.colocation_ledger.receive(key, -rounds)
        self.counted_since[job_id] = last.end_seconds

    def is_assigned_spread(self, held: Assignment) -> bool:
        """Return whether a gang with these GPUs is on more nodes than it needs."""
        return self.spans.is_spread(held.accelerator, [name for name, _ in held.gpus])

    def partner_keys(self, job_id: str, held: Assignment) -> list[PartnerKey]:
        """Return the keys of the accounts of co-located time of a job with these GPUs."""
        partners = [row for row in map(self.table.by_id.get, held.shared_with) if row is not None]
        return [PartnerKey(job_id, self.table.jobs[partner].job_type, held.accelerator) for partner in partners]


def plan_of(
    state: SchedulerState, start: float, rows: Indices, held: HeldGpus, allocation: CurrentAllocation | LazyAllocation
) -> RoundPlan:
    """Return the plan in which these jobs hold these GPUs; rows: (N,) of the allocation."""
    places = np.full(state.table.capacity, -1, dtype=np.int64)
    places[rows[held.runs]] = np.flatnonzero(held.runs)
    running = state.sorted_by_id(places >= 0)
    return RoundPlan(start, running, held.take(places[running]), allocation)


def _assignments_to_dict(last: Round) -> dict[str, Any]:
    assert isinstance(last.assignments, Assignments)  # noqa: S101
    return {"jobs": list(last.assignments.ids), "gpus": last.assignments.held.to_dict()}


def _assignments_from_dict(document: Mapping[str, Any], layout: Layout) -> Assignments:
    held = HeldGpus.from_dict(document["gpus"], layout)
    if len(held) != len(document["jobs"]):
        raise ValueError("the jobs and gangs of the last round do not match")
    return Assignments(tuple(document["jobs"]), held, layout)


def _held_to_dict(rows: Indices, held: HeldGpus, places: Mapping[int, int]) -> dict[str, Any]:
    return {"jobs": [places[row] for row in rows.tolist()], "gpus": held.to_dict()}


def _held_from_dict(document: Mapping[str, Any], state: SchedulerState) -> tuple[Indices, HeldGpus]:
    rows, held = np.array(document["jobs"], dtype=np.int64), HeldGpus.from_dict(document["gpus"], state.layout)
    if len(rows) != len(held) or not np.isin(rows, np.arange(state.table.capacity)).all():
        raise ValueError("GPUs are held by jobs that do not exist")
    return rows, held
