"""What a round scheduler knows from one round to the next: all that it must not lose, and what it keeps to save time.

`Running` is which jobs hold GPUs now, and which may have got or lost some since the latest round began. `ContextCache` keeps the
arrays of jobs and nodes from one round to the next as long as these are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.colocation.groups import ColocationLedger, PartnerKey
from gavel_py.scheduling.current_allocation import InForce, LazyAllocation
from gavel_py.scheduling.jobs import JobRegistry
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.nodes import NodeStates, cluster_from_dict, cluster_to_dict
from gavel_py.scheduling.placement.gangs import PlacementContext, ResourceRequests, Spans
from gavel_py.scheduling.problem_cache import JobRows
from gavel_py.scheduling.round import Assignment, Round

if TYPE_CHECKING:
    from gavel_py.scheduling.event_driven import EventDrivenPlanner


class ContextCache:
    """The ground that was asked for last."""

    def __init__(self) -> None:
        self._last: PlacementContext | None = None

    def of(self, jobs: Sequence[Job], nodes: Sequence[Node], spans: Spans) -> PlacementContext:
        """Return the ground of these jobs and nodes; spans: the fewest nodes of gangs."""
        last = self._last
        if last is None or not (nodes is last.nodes or nodes == last.nodes):
            self._last = PlacementContext(jobs, nodes, spans)
        elif jobs is not last.jobs:
            self._last = copy(last)
            self._last.jobs, self._last.asks = jobs, ResourceRequests(jobs, last.layout)
        assert self._last is not None  # noqa: S101
        return self._last


class Running:
    """The gangs that hold GPUs; all that changes them goes through here.

    moved: the jobs that may hold other GPUs than when the latest round began, None where that may be anybody, since nobody has
    seen it begin.
    """

    def __init__(self, held: dict[str, Assignment] | None = None) -> None:
        self._held = {} if held is None else held
        self._is_lent = True
        self._moved: set[str] | None = None

    @property
    def held(self) -> Mapping[str, Assignment]:
        """{job_id: Assignment}, which is another when something has changed: not to be kept."""
        return self._held

    def as_now(self) -> dict[str, Assignment]:
        """Return the same to be kept, not to be changed by others: it stays as it is."""
        self._is_lent = True
        return self._held

    @property
    def moved(self) -> Set[str] | None:
        return self._moved

    def put(self, job_id: str, assignment: Assignment) -> None:
        """Let a gang hold these GPUs, and no others."""
        self._own()[job_id] = assignment
        self._note(job_id)

    def take(self, job_id: str) -> Assignment | None:
        """Let a gang hold none; return what it held."""
        if job_id not in self._held:
            return None
        self._note(job_id)
        return self._own().pop(job_id)

    def begin(self, assignments: dict[str, Assignment]) -> None:
        """Let a round begin: these hold GPUs, and nobody else. They are kept, and not changed."""
        self._held, self._is_lent, self._moved = assignments, True, set()

    def _own(self) -> dict[str, Assignment]:
        """What may be changed: nobody else has it."""
        if self._is_lent:
            self._held, self._is_lent = self._held.copy(), False
        return self._held

    def _note(self, job_id: str) -> None:
        if self._moved is not None:
            self._moved.add(job_id)


@dataclass(frozen=True)
class PlannedRound:
    """The round that has been decided, but has not begun.

    moved: who may get other GPUs with it than in the latest round or hold others than then, where it begins at once; None: anybody.
    """

    start_seconds: float
    assignments: dict[str, Assignment]
    moved: Set[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain data."""
        return {"start_seconds": self.start_seconds, "assignments": _assignments_to_dict(self.assignments)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PlannedRound:
        """Restore a round from `to_dict`."""
        return cls(document["start_seconds"], _assignments_from_dict(document["assignments"]))


def _assignments_to_dict(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    return {job_id: held.to_dict() for job_id, held in assignments.items()}


def _assignments_from_dict(document: Mapping[str, Any]) -> dict[str, Assignment]:
    return {job_id: Assignment.from_dict(held) for job_id, held in document.items()}


@dataclass
class SchedulerState:
    """book: the jobs and their past; nodes: what may be used; ledger: what was promised and delivered; told: the allocation in
    force, as far as anybody has asked for it (`in_force`); changed: whether the policy would be asked something else now; at_once:
    and must be, since more than jobs has changed; changed_since, at_once_since: the same of what has happened since the decision
    in progress began, by calls of the policy or mechanism that makes it; is_asking: whether one of these is at work, and the state
    is at rest; gangs: who holds GPUs now;
    coming: the next round, where it has been planned; last: the round begun last; newly_failed: {job_id: reason} of the jobs that
    failed for good since then; grounds, rows, in_turn: what need not be found anew, and stands in no file; company: what of the
    ledger is time with partners; solver_seconds: what allocations have taken on the clock of this computer.
    """

    book: JobRegistry
    nodes: NodeStates
    ledger: DeliveryLedger
    told: InForce | LazyAllocation | None = None
    changed: bool = False
    at_once: bool = False
    changed_since: bool = False
    at_once_since: bool = False
    is_asking: bool = False
    gangs: Running = field(default_factory=Running)
    coming: PlannedRound | None = None
    last: Round | None = None
    newly_failed: dict[str, str] = field(default_factory=dict)
    grounds: ContextCache = field(default_factory=ContextCache)
    rows: JobRows = field(default_factory=JobRows)
    company: ColocationLedger = field(default_factory=ColocationLedger)
    in_turn: EventDrivenPlanner | None = None
    solver_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data, except for caches."""
        return {
            "cluster": cluster_to_dict(self.nodes.cluster),
            "nodes": self.nodes.to_dict(),
            **self.book.to_dict(),
            "ledger": self.ledger.to_dict(),
            "in_force": None if self.in_force is None else self.in_force.to_dict(),
            "changed": self.changed,
            **({"at_once": True} if self.at_once else {}),
            "running": _assignments_to_dict(self.running),
            "coming": None if self.coming is None else self.coming.to_dict(),
            "last": None if self.last is None else self.last.to_dict(),
            "newly_failed": dict(self.newly_failed),
            "company": self.company.to_list(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], profile: Profile) -> SchedulerState:
        """Restore a state from `to_dict`; profile: the throughputs with which it was saved."""
        cluster = cluster_from_dict(document["cluster"])
        in_force, coming, last = document["in_force"], document["coming"], document["last"]
        return cls(
            JobRegistry.from_dict(document),
            NodeStates.from_dict(cluster, document["nodes"]),
            DeliveryLedger.from_dict(document["ledger"]),
            told=None if in_force is None else InForce.from_dict(in_force, cluster, profile),
            changed=document["changed"],
            at_once=document.get("at_once", False),
            gangs=Running(_assignments_from_dict(document["running"])),
            coming=None if coming is None else PlannedRound.from_dict(coming),
            last=None if last is None else Round.from_dict(last),
            newly_failed=dict(document["newly_failed"]),
            company=ColocationLedger.from_list(document["company"]),
        )

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of, in which no decision is in progress."""
        return vars(self) | {"is_asking": False, "grounds": ContextCache(), "rows": JobRows(), "in_turn": None}

    def drop_caches(self) -> None:
        """Forget what can be found anew, and the decision in progress, if any."""
        vars(self).update(self.__getstate__())

    @property
    def running(self) -> Mapping[str, Assignment]:
        """Who holds GPUs now."""
        return self.gangs.held

    @property
    def in_force(self) -> InForce | None:
        """The allocation in force, None before the first."""
        if isinstance(self.told, LazyAllocation):
            self.told = self.told.in_force()
        return self.told

    @property
    def deciding(self) -> Collection[str]:
        """The jobs that the allocation in force is about; all while another one is being decided on."""
        if self.is_asking:
            return self.book.standings
        if isinstance(self.told, LazyAllocation):
            return self.told.jobs
        return () if self.told is None else self.told.problem.job_ids

    @property
    def excluded(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that the allocation in force leaves out."""
        if isinstance(self.told, LazyAllocation):
            return dict(self.told.excluded)
        return {} if self.told is None else self.told.excluded

    @property
    def notes(self) -> tuple[str, ...]:
        """What the rounds of the allocation in force should say of it."""
        return (self.told.note,) if isinstance(self.told, InForce) and self.told.note else ()

    @cached_property
    def spans(self) -> Spans:
        """On how many nodes of the whole cluster gangs must be."""
        return Spans(self.nodes.cluster)

    @property
    def lasting(self) -> Mapping[str, Assignment]:
        """The gangs that may go on where they run."""
        if self.nodes.all_up:
            return self.running
        return {job_id: held for job_id, held in self.running.items() if self.nodes.is_open(held.gpus)}

    @property
    def plan_still_valid(self) -> dict[str, Assignment]:
        """What still holds of the coming round: not the gangs whose GPUs are gone, or that have left, finished or changed.

        On a draining node those stay that run there, since they have been told so; none starts there.
        """
        if self.coming is None or self.in_force is None:
            return {}
        ids = self.in_force.problem.job_ids
        present = {job_id for job_id, there in zip(ids, self.in_force.present(self.book).tolist(), strict=True) if there}
        return {
            job_id: held
            for job_id, held in self.coming.assignments.items()
            if job_id in present and (self.running.get(job_id) == held or self.nodes.is_open(held.gpus))
        }

    def unfinished(self, job_ids: Set[str]) -> tuple[str, ...]:
        """Those of these jobs that are still in the system and have steps left, in the order of the allocation in force."""
        if not job_ids or self.told is None:
            return ()
        if isinstance(self.told, LazyAllocation):  # it was made just now, when all that were there had steps left
            return self.told.in_order(job_id for job_id in job_ids if job_id in self.book)
        return self.told.unfinished(self.book, job_ids)

    def check_at_rest(self) -> None:
        """Raise `InputError` where a policy or mechanism asks for what it has yet to decide."""
        if self.is_asking:
            text = (
                "a policy or mechanism that is deciding can neither begin nor plan a round, nor read the allocation in the making"
            )
            raise InputError(Fault("round scheduler", "", text))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within this, a policy or mechanism is at work, and may call back. Raises `InputError` where one is already."""
        self.check_at_rest()
        self.is_asking = True
        try:
            yield
        finally:
            self.is_asking = False

    def begin_decision(self) -> None:
        """Note from now on what happens while the next round is being decided."""
        self.changed_since = self.at_once_since = False

    def resolve_allocation(self, later: LazyAllocation) -> None:
        """Let an allocation be in force that nobody has asked for yet."""
        self.ledger.begin_allocation()
        self.told, self.changed, self.at_once = later, self.changed_since, self.at_once_since

    def note(self, *, changed: bool = True) -> None:
        """Note that jobs have come, changed or gone, if they have."""
        self.changed |= changed
        self.changed_since |= changed

    def turn(self, *, changed: bool = True) -> None:
        """Note that nodes, policy or profile have changed, if they have."""
        self.note(changed=changed)
        self.at_once |= changed
        self.at_once_since |= changed

    def take_up(self, in_force: InForce) -> None:
        """Let a new allocation be in force, or the same for other jobs: then the rounds received under it go on being counted."""
        for job, seconds in zip(in_force.jobs, in_force.question.isolated_seconds, strict=True):
            past = self.book.standings[job.job_id]
            past.isolated_seconds, past.steps_counted = seconds, job.steps_done
        if not in_force.is_same_as(self.told):
            self.ledger.begin_allocation()
        self.company.keep(() if in_force.colocation_promises is None else in_force.colocation_promises.keys)
        self.told, self.changed, self.at_once = in_force, self.changed_since, self.at_once_since

    def stop(self, job_id: str) -> Assignment | None:
        """Let a gang hold its GPUs no more; return what it held."""
        self.book.standings[job_id].running_since_seconds = None
        held = self.gangs.take(job_id)
        for other in held.shared_with if held is not None else ():
            if other in self.running:
                rest = tuple(each for each in self.running[other].shared_with if each != job_id)
                self.gangs.put(other, replace(self.running[other], shared_with=rest))
        return held

    def stop_lost(self) -> tuple[str, ...]:
        """Stop the gangs whose GPUs are gone, take back what the round in progress was counted for, and return their jobs."""
        gone = [job_id for job_id, held in self.running.items() if self.nodes.is_gone(held.gpus)]
        for job_id in gone:
            self.take_back(job_id)
        return tuple(gone)

    def take_back(self, job_id: str) -> None:
        """Stop a gang, if it runs, as if the round in progress had not been: it has had nothing of it."""
        held, last = self.stop(job_id), self.last
        counted = None if last is None else last.assignments.get(job_id)
        # One that was found running has been counted for nothing.
        if held is None or last is None or counted is None or counted.accelerator != held.accelerator:
            return
        seconds, past = last.end_seconds - last.start_seconds, self.book.standings[job_id]
        is_apart = self.spans.is_spread(held)
        self.ledger.take_back(job_id, held.accelerator, len(held.gpus), seconds, is_apart=is_apart)
        past.attained_gpu_seconds = max(0.0, past.attained_gpu_seconds - seconds * counted.gpu_share)
        for partner in map(self.book.jobs.get, counted.shared_with):
            if partner is not None:
                self.company.take_back(PartnerKey(job_id, partner.job_type, held.accelerator))
