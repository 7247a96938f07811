"""The state of a round scheduler: all that it must not lose between rounds, and caches that save time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.colocation.groups import ColocationLedger, PartnerKey
from gavel_py.scheduling.current_allocation import CurrentAllocation, LazyAllocation
from gavel_py.scheduling.jobs import JobRegistry
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.nodes import NodeStates, cluster_from_dict, cluster_to_dict
from gavel_py.scheduling.placement.gangs import PlacementContext, ResourceRequests, Spans
from gavel_py.scheduling.problem_cache import ProblemCache
from gavel_py.scheduling.round import Assignment, Round

if TYPE_CHECKING:
    from gavel_py.scheduling.event_driven import EventDrivenPlanner


class RunningSet:
    """{job_id: Assignment} of the gangs that hold GPUs, copied only when it is changed after it was handed out.

    Every change goes through this class. `moved` holds the jobs whose GPUs may have changed since the latest round began; None if
    no round has begun in this process, so that any may have.
    """

    def __init__(self, held: dict[str, Assignment] | None = None) -> None:
        self._held = {} if held is None else held
        self._is_shared = True
        self._moved: set[str] | None = None

    @property
    def held(self) -> Mapping[str, Assignment]:
        """The assignments, valid until the next change."""
        return self._held

    def shared_view(self) -> dict[str, Assignment]:
        """Return the assignments to be kept, unchanged by later calls; the caller must not change them."""
        self._is_shared = True
        return self._held

    @property
    def moved(self) -> Set[str] | None:
        return self._moved

    def put(self, job_id: str, assignment: Assignment) -> None:
        """Set the GPUs that a gang holds."""
        self._writable(job_id)[job_id] = assignment

    def take(self, job_id: str) -> Assignment | None:
        """Take all GPUs away from a gang; return what it held."""
        return self._writable(job_id).pop(job_id) if job_id in self._held else None

    def begin(self, assignments: dict[str, Assignment]) -> None:
        """Replace all assignments by those of a round that begins; the dictionary is kept, and not changed."""
        self._held, self._is_shared, self._moved = assignments, True, set()

    def _writable(self, job_id: str) -> dict[str, Assignment]:
        """Return the dictionary for a change of one job."""
        if self._moved is not None:
            self._moved.add(job_id)
        if self._is_shared:
            self._held, self._is_shared = self._held.copy(), False
        return self._held


@dataclass(frozen=True)
class RoundPlan:
    """A round that has been decided and has not begun."""

    start_seconds: float  # start of the round
    assignments: dict[str, Assignment]  # {job_id: Assignment} of the jobs that run
    allocation: CurrentAllocation | LazyAllocation  # the allocation that the round follows
    moved: Set[str] | None = None  # jobs whose GPUs may differ between the latest round, now and this round; None if unknown
    is_audited: bool = False  # whether the policy's answer to the whole problem must be compared with this event-driven decision

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, except for its allocation."""
        return {"start_seconds": self.start_seconds, "assignments": _assignments_to_dict(self.assignments)}


def _assignments_to_dict(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    return {job_id: held.to_dict() for job_id, held in assignments.items()}


def _assignments_from_dict(document: Mapping[str, Any]) -> dict[str, Assignment]:
    return {job_id: Assignment.from_dict(held) for job_id, held in document.items()}


@dataclass
class SchedulerState:
    """What a scheduler knows: jobs, nodes, accounts, the current allocation, running gangs, and the latest and planned rounds.

    Flags that end in `meanwhile` record changes that policy or mechanism report while a round is being decided.
    """

    registry: JobRegistry
    nodes: NodeStates
    ledger: DeliveryLedger
    allocation: CurrentAllocation | LazyAllocation | None = None  # as it was decided; `current_allocation` resolves it
    inputs_changed: bool = False  # whether the policy's input has changed since the allocation was adopted
    must_solve: bool = False  # whether more than jobs has changed, so that `solve_seconds` must not delay the next solve
    inputs_changed_meanwhile: bool = False
    must_solve_meanwhile: bool = False
    is_calling_out: bool = False  # whether a policy or mechanism is running; the state is consistent then
    gangs: RunningSet = field(default_factory=RunningSet)
    plan: RoundPlan | None = None  # the next round, if it is planned
    last: Round | None = None  # the round begun last
    newly_failed: dict[str, str] = field(default_factory=dict)  # {job_id: reason} of jobs that have failed for good since then
    colocation_ledger: ColocationLedger = field(default_factory=ColocationLedger)
    solver_seconds: float = 0.0  # wall-clock time of allocations in this process
    # Caches, which are neither saved nor copied.
    problem_cache: ProblemCache = field(default_factory=ProblemCache)
    event_planner: EventDrivenPlanner | None = None
    context: PlacementContext | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, in which no decision is in progress and caches are empty."""
        return vars(self) | {"is_calling_out": False, "problem_cache": ProblemCache(), "event_planner": None, "context": None}

    def drop_caches(self) -> None:
        """Empty the caches, and forget the decision in progress, if any."""
        vars(self).update(self.__getstate__())

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data, except for caches."""
        current = self.current_allocation
        return {
            "cluster": cluster_to_dict(self.nodes.cluster),
            "nodes": self.nodes.to_dict(),
            **self.registry.to_dict(),
            "ledger": self.ledger.to_dict(),
            "in_force": None if current is None else current.to_dict(),
            "changed": self.inputs_changed,
            **({"at_once": True} if self.must_solve else {}),
            "running": _assignments_to_dict(self.running),
            "coming": None if self.plan is None else self.plan.to_dict(),
            "last": None if self.last is None else self.last.to_dict(),
            "newly_failed": dict(self.newly_failed),
            "company": self.colocation_ledger.to_list(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], profile: Profile) -> SchedulerState:
        """Restore a state from `to_dict`; profile: the throughputs with which it was saved."""
        cluster = cluster_from_dict(document["cluster"])
        current, planned, last = document["in_force"], document["coming"], document["last"]
        allocation = None if current is None else CurrentAllocation.from_dict(current, cluster, profile)
        plan = None
        if planned is not None:
            if allocation is None:
                raise ValueError("a round is planned without an allocation")
            plan = RoundPlan(planned["start_seconds"], _assignments_from_dict(planned["assignments"]), allocation)
        return cls(
            JobRegistry.from_dict(document),
            NodeStates.from_dict(cluster, document["nodes"]),
            DeliveryLedger.from_dict(document["ledger"]),
            allocation=allocation,
            inputs_changed=document["changed"],
            must_solve=document.get("at_once", False),
            gangs=RunningSet(_assignments_from_dict(document["running"])),
            plan=plan,
            last=None if last is None else Round.from_dict(last),
            newly_failed=dict(document["newly_failed"]),
            colocation_ledger=ColocationLedger.from_list(document["company"]),
        )

    # Queries

    @property
    def running(self) -> Mapping[str, Assignment]:
        """{job_id: Assignment} of the gangs that hold GPUs."""
        return self.gangs.held

    @property
    def continuing(self) -> Mapping[str, Assignment]:
        """{job_id: Assignment} of the running gangs whose nodes accept another round."""
        if self.nodes.all_up:
            return self.running
        return {job_id: held for job_id, held in self.running.items() if self.nodes.is_open(held.gpus)}

    @property
    def current_allocation(self) -> CurrentAllocation | None:
        """The current allocation, resolved; None before the first."""
        if isinstance(self.allocation, LazyAllocation):
            self.allocation = self.allocation.resolve()
        return self.allocation

    @property
    def jobs_in_decision(self) -> Collection[str]:
        """The jobs of the current allocation; while another one is being decided, all jobs with a history."""
        if self.is_calling_out:
            return self.registry.histories
        if isinstance(self.allocation, LazyAllocation):
            return self.allocation.jobs
        return () if self.allocation is None else self.allocation.problem.job_ids

    @property
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that the current allocation excludes."""
        return {} if self.allocation is None else dict(self.allocation.excluded)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the current allocation, for its rounds."""
        return (self.allocation.note,) if isinstance(self.allocation, CurrentAllocation) and self.allocation.note else ()

    @cached_property
    def spans(self) -> Spans:
        """Minimum number of nodes of gangs on the whole cluster."""
        return Spans(self.nodes.cluster)

    def placement_context(self, jobs: Sequence[Job]) -> PlacementContext:
        """Return topology and resource requests for the nodes that are up, cached while nodes and jobs stay the same."""
        last, nodes = self.context, self.nodes.up
        if last is None or not (nodes is last.nodes or nodes == last.nodes):
            self.context = PlacementContext(jobs, nodes, self.spans)
        elif jobs is not last.jobs:
            self.context = last.with_requests(ResourceRequests(jobs, last.layout), jobs)
        assert self.context is not None  # noqa: S101
        return self.context

    def still_valid(self, plan: RoundPlan) -> dict[str, Assignment]:
        """Return the planned assignments of gangs that are in the system, unchanged and unfinished, and whose GPUs are usable.

        A gang that runs on a draining node keeps its place, since its lease may have been renewed; none starts there.
        """
        current = self.current_allocation
        if current is None:
            return {}
        present = dict(zip(current.problem.job_ids, current.present(self.registry).tolist(), strict=True))
        return {
            job_id: held
            for job_id, held in plan.assignments.items()
            if present.get(job_id) and (self.running.get(job_id) == held or self.nodes.is_open(held.gpus))
        }

    def unfinished(self, job_ids: Set[str]) -> tuple[str, ...]:
        """Return those jobs that are in the system and have steps left, in the order of the current allocation."""
        if not job_ids or self.allocation is None:
            return ()
        if isinstance(self.allocation, LazyAllocation):  # decided just now, when all jobs in the system had steps left
            return self.allocation.in_order(job_id for job_id in job_ids if job_id in self.registry)
        return self.allocation.unfinished(self.registry, job_ids)

    # Decisions and what changes while they are made

    def check_idle(self) -> None:
        """Raise `InputError` if a policy or mechanism that decides calls back for the decision itself."""
        if self.is_calling_out:
            text = (
                "a policy or mechanism that is deciding can neither begin nor plan a round, nor read the allocation in the making"
            )
            raise InputError(Fault("round scheduler", "", text))

    @contextmanager
    def calling_out(self) -> Iterator[None]:
        """Mark the time in which a policy or mechanism runs, which may call back. Raises `InputError` if one runs already."""
        self.check_idle()
        self.is_calling_out = True
        try:
            yield
        finally:
            self.is_calling_out = False

    def watch_for_changes(self) -> None:
        """Begin a decision: record from now on which changes happen meanwhile."""
        self.inputs_changed_meanwhile = self.must_solve_meanwhile = False

    def note_change(self, *, changed: bool = True) -> None:
        """Record that jobs have arrived, changed or left; `changed=False`: that they have not."""
        self.inputs_changed |= changed
        self.inputs_changed_meanwhile |= changed

    def require_solve(self, *, changed: bool = True) -> None:
        """Record that nodes, policy or profile have changed; `changed=False`: that they have not."""
        self.note_change(changed=changed)
        self.must_solve |= changed
        self.must_solve_meanwhile |= changed

    # Gangs that stop between rounds

    def stop(self, job_id: str) -> Assignment | None:
        """Take the GPUs away from a gang; return what it held."""
        self.registry.histories[job_id].running_since_seconds = None
        held = self.gangs.take(job_id)
        for other in held.shared_with if held is not None else ():
            if other in self.running:
                rest = tuple(each for each in self.running[other].shared_with if each != job_id)
                self.gangs.put(other, replace(self.running[other], shared_with=rest))
        return held

    def stop_lost(self) -> tuple[str, ...]:
        """Stop the gangs whose GPUs are lost or on nodes that are down, revert their current round, and return their jobs."""
        gone = [job_id for job_id, held in self.running.items() if self.nodes.is_gone(held.gpus)]
        for job_id in gone:
            self.take_back(job_id)
        return tuple(gone)

    def take_back(self, job_id: str) -> None:
        """Stop a gang, if it runs, and revert what its accounts received for the round in progress."""
        held, last = self.stop(job_id), self.last
        counted = None if last is None else last.assignments.get(job_id)
        # A gang that was found running has received nothing for this round.
        if held is None or last is None or counted is None or counted.accelerator != held.accelerator:
            return
        seconds, history = last.end_seconds - last.start_seconds, self.registry.histories[job_id]
        self.ledger.take_back(job_id, held.accelerator, len(held.gpus), seconds, is_spread=self.spans.is_spread(held))
        history.attained_gpu_seconds = max(0.0, history.attained_gpu_seconds - seconds * counted.gpu_share)
        for partner in map(self.registry.jobs.get, counted.shared_with):
            if partner is not None:
                self.colocation_ledger.take_back(PartnerKey(job_id, partner.job_type, held.accelerator))
