"""Rounds as values: the GPUs of each job that runs, the changes since the previous round, and leases of jobs on their GPUs.

Why a job waits is not part of a round: `delivery.py` defines the reasons (`Wait`), `commit.py` finds those of a round (`waits_of`),
and the ledger sums them over rounds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.placement.topology import Gpu, Layout


@dataclass(frozen=True)
class Assignment:
    """GPUs of one accelerator type for one job.

    Assignments with equal type and GPUs are equal, so that a job does not restart when its partners change.

    Attributes:
        accelerator: The accelerator type.
        gpus: (node, index) pairs, one for each GPU of the gang.
        shared_with: Ids of the jobs that run on the same GPUs.
        gpu_part: The part of its GPU that a fractional job requested, 1 for a whole gang.
    """

    accelerator: str
    gpus: list[Gpu]
    shared_with: tuple[str, ...] = field(default=(), compare=False, repr=False)
    gpu_part: float = field(default=1.0, compare=False, repr=False)

    @cached_property
    def num_nodes(self) -> int:
        """Number of nodes of the GPUs."""
        return len({node for node, _ in self.gpus})

    @cached_property
    def gpu_share(self) -> float:
        """GPUs accounted to this job: its part of one GPU, or its equal share of the GPUs of co-located jobs."""
        return self.gpu_part if self.gpu_part < 1 else len(self.gpus) / (1 + len(self.shared_with))

    @property
    def size(self) -> float:
        """GPUs that the job requested: those of its gang, or its part of one GPU."""
        return self.gpu_part if self.gpu_part < 1 else len(self.gpus)

    def to_dict(self) -> dict[str, Any]:
        """Return the assignment as plain data."""
        partners = {"shared_with": list(self.shared_with)} if self.shared_with else {}
        part = {"gpu_part": self.gpu_part} if self.gpu_part < 1 else {}
        return {"accelerator": self.accelerator, "gpus": [list(gpu) for gpu in self.gpus], **partners, **part}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Assignment:
        """Restore an assignment from `to_dict`."""
        gpus = [(node, index) for node, index in document["gpus"]]
        return cls(document["accelerator"], gpus, tuple(document.get("shared_with", ())), document.get("gpu_part", 1.0))


MAX_CHANGES = 64
"""Maximum number of gangs that may differ between assignments and those from which `changed` derived them."""


class Assignments(Mapping[str, Assignment]):
    """{job_id: Assignment} of the jobs that run in a round, sorted by job_id; each `Assignment` is created when it is read.

    Attributes:
        ids: (N,) the jobs.
        layout: The GPUs of the cluster.
    """

    def __init__(self, ids: tuple[str, ...], held: HeldGpus, layout: Layout) -> None:
        """held: (N,) GPUs of the jobs."""
        self.ids, self.layout, self._base, self._base_ids = ids, layout, held, ids
        self._changes: dict[str, tuple[int, list[int]] | None] = {}

    def changed(self, gone: Iterable[str], new: Mapping[str, tuple[int, list[int]]]) -> Assignments:
        """Return the assignments without the jobs in `gone`, and with those in `new` on these types and GPUs of the layout.

        The time does not depend on the number of running gangs, since arrays are created when they are read.
        """
        if not new and not gone:
            return self
        ids = list(self.ids)
        for job_id in gone:
            del ids[bisect_left(ids, job_id)]
        for job_id in new:
            if job_id not in self:
                insort(ids, job_id)
        before = self if len(self._changes) <= MAX_CHANGES else Assignments(self.ids, self.held, self.layout)
        made = Assignments(tuple(ids), before._base, self.layout)
        made._base_ids, made._changes = before._base_ids, {**before._changes, **dict.fromkeys(gone), **new}
        vars(made)["_base_index"] = before._base_index
        return made

    @cached_property
    def _base_index(self) -> dict[str, int]:
        return dict(zip(self._base_ids, range(len(self._base_ids)), strict=True))

    @cached_property
    def held(self) -> HeldGpus:
        """(N,) the GPUs of the jobs."""
        if not self._changes:
            return self._base
        own = [(i, place) for i, job_id in enumerate(self.ids) if (place := self._changes.get(job_id)) is not None]
        at = np.array([self._base_index.get(job_id, -1) for job_id in self.ids], dtype=np.int64)
        new = HeldGpus.of([column for _, (column, _) in own], [gpus for _, (_, gpus) in own])
        return self._base.take(at).replaced(np.array([i for i, _ in own], dtype=np.int64), new)

    @property
    def are_shared(self) -> bool:
        """Whether any jobs share GPUs."""
        return bool(self._base.partners)

    def place_of(self, job_id: str) -> tuple[int, list[int]]:
        """Return the type and the GPUs of a job, by their numbers in the layout."""
        if job_id not in self._changes:
            i = self._base_index[job_id]
            return self._base.types.item(i), self._base.list_of(i)
        place = self._changes[job_id]
        if place is None:
            raise KeyError(job_id)
        return place

    def held_by(self, job_ids: Sequence[str]) -> HeldGpus:
        """Return (N,) the GPUs of these jobs."""
        if self._changes:
            places = [self.place_of(job_id) for job_id in job_ids]
            return HeldGpus.of([column for column, _ in places], [gpus for _, gpus in places])
        return self._base.take(np.fromiter(map(self._base_index.__getitem__, job_ids), dtype=np.int64, count=len(job_ids)))

    def __getitem__(self, job_id: str) -> Assignment:
        column, gpus = self.place_of(job_id)
        base, partners, part = self._base, tuple[str, ...](), 1.0
        if job_id not in self._changes and (base.partners or base.parts is not None):
            i = self._base_index[job_id]
            partners, part = base.partners.get(i, ()), 1.0 if base.parts is None else base.parts.item(i)
        return Assignment(self.layout.types[column], self.layout.named(gpus), partners, part)

    def __contains__(self, job_id: object) -> bool:
        return self._changes[job_id] is not None if job_id in self._changes else job_id in self._base_index

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Assignments) and self.layout is other.layout:
            return self.ids == other.ids and bool(self.held.same_as(other.held).all())
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self))

    def moved(self, layout: Layout) -> Assignments:
        """Return the assignments in another layout of the same GPUs, without gangs whose GPUs are not all of one type there."""
        held = self.held.moved(self.layout, layout)
        kept = np.flatnonzero(held.runs)
        return Assignments(tuple(self.ids[i] for i in kept.tolist()), held.take(kept), layout)

    def updated(self, other: Assignments) -> Assignments:
        """Return these assignments combined with those of `other`, which replace those of the same jobs."""
        ids, kept = (*self.ids, *other.ids), [i for i, job_id in enumerate(self.ids) if job_id not in other]
        order = sorted([*kept, *range(len(self), len(ids))], key=ids.__getitem__)
        return Assignments(tuple([ids[i] for i in order]), self.held.joined(other.held).take(np.array(order)), self.layout)


@dataclass(frozen=True)
class Fallback:
    """How a round was decided although no proven answer of its policy was found. See docs/rounds.md.

    Attributes:
        policy: The policy with its options.
        kind: "rounded": the answer is proven for throughputs rounded to 1e-7 of themselves. "kept": jobs keep the times of the last
            solve, and those that it does not cover have equal parts of the GPUs that it leaves.
    """

    policy: str
    kind: Literal["rounded", "kept"]


def fallback_text(rounds: Mapping[str, Mapping[str, int]]) -> str:
    """Return {policy: {kind: number of rounds}} as a sentence, empty without such rounds."""
    texts = {
        "rounded": "with its answer for rounded throughputs",
        "kept": "with the times of its last answer, or equal parts of the free GPUs",
    }
    counts = {policy: ", ".join(f"{number} {texts[kind]}" for kind, number in kinds.items()) for policy, kinds in rounds.items()}
    return " ".join(f"Rounds without a proven answer of {policy}: {text}." for policy, text in counts.items())


def exceeded_notes(limits: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    """Return {constraint: {"rounds": number, "exceeded": of these, those above it}} as notes on the limits that were exceeded."""
    hint = "rounds; every_round: true forbids it"
    exceeded = {name: each for name, each in limits.items() if each["exceeded"]}
    return tuple(f"{name}: exceeded in {each['exceeded']} of {each['rounds']} {hint}" for name, each in exceeded.items())


@dataclass(frozen=True)
class Round:
    """One round. All job ids are sorted.

    Attributes:
        index: Number of the round, from 0.
        start_seconds: Start of the round.
        assignments: {job_id: assignment} of the jobs that run: those kept and those started.
        kept: Jobs that run on the same GPUs as in the previous round.
        started: Jobs that run, but not on the same GPUs: new, resumed or moved.
        preempted: Jobs that ran in the previous round (or were found running before the first), are unfinished and do not run now.
        excluded: {job_id: reason} of the jobs that the current allocation excludes.
        end_seconds: End of the leases of this round that are not renewed.
        failed: {job_id: reason} of the jobs that left since the previous round because they failed too often
            (docs/rounds.md#failures).
        notes: Notes on the current allocation, such as that a time limit ended its solve.
        fallback: How the current allocation was found although its solve failed; None if it did not fail.
        exceeded: Constraints that this round exceeds, since they limit the average over rounds (`every_round`).
    """

    index: int
    start_seconds: float
    assignments: Mapping[str, Assignment]
    kept: tuple[str, ...]
    started: tuple[str, ...]
    preempted: tuple[str, ...]
    excluded: dict[str, str]
    end_seconds: float
    failed: dict[str, str]
    notes: tuple[str, ...] = ()
    fallback: Fallback | None = None
    exceeded: tuple[str, ...] = ()

    def copied(self) -> Round:
        """Return a copy whose dictionaries callers may change."""
        made = object.__new__(Round)
        vars(made).update(vars(self), excluded=dict(self.excluded), failed=dict(self.failed))
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain data."""
        return {
            "index": self.index,
            "start_seconds": self.start_seconds,
            "assignments": {job_id: assignment.to_dict() for job_id, assignment in self.assignments.items()},
            "kept": list(self.kept),
            "started": list(self.started),
            "preempted": list(self.preempted),
            "excluded": dict(self.excluded),
            "end_seconds": self.end_seconds,
            "failed": dict(self.failed),
            **({"notes": list(self.notes)} if self.notes else {}),
            **({} if self.fallback is None else {"fallback": asdict(self.fallback)}),
            **({"exceeded": list(self.exceeded)} if self.exceeded else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Round:
        """Restore a round from `to_dict`."""
        assignments = {job_id: Assignment.from_dict(held) for job_id, held in document["assignments"].items()}
        lists = {name: tuple(document[name]) for name in ("kept", "started", "preempted")}
        fallback = Fallback(**document["fallback"]) if "fallback" in document else None
        texts = {name: tuple(document.get(name, ())) for name in ("notes", "exceeded")}
        optional = texts | {"fallback": fallback}
        return cls(**{**document, **lists, "assignments": assignments, **optional})


@dataclass(frozen=True)
class Lease:
    """A job's right to the GPUs that it holds.

    Attributes:
        assignment: The GPUs.
        end_seconds: End of the lease.
        renewed: Whether the job keeps the GPUs in the next round, so that it need not write a checkpoint; None if the next round is
            not planned yet.
    """

    assignment: Assignment
    end_seconds: float
    renewed: bool | None = None


class GangChanges(NamedTuple):
    """How the gangs of a round differ from those of the round before."""

    stopped: list[int]  # rows of the gangs that lose their GPUs now
    started: dict[int, tuple[int, list[int]]]  # {row: (type, GPUs)} of the gangs that get other GPUs
    started_ids: tuple[str, ...]  # their ids, sorted
    preempted: tuple[str, ...]  # ids of the jobs in the system that ran and do not run now, in natural order
