"""The job: its fields with their types, uses and rules, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from gavel_py.errors import Fault, InputError, check_together, refuse
from gavel_py.io.names import MAX_COUNT
from gavel_py.io.records import (
    Finite,
    Integer,
    JobSize,
    Name,
    NotNegative,
    Positive,
    Record,
    Seconds,
    SecondsAboveZero,
    SecondsFromZero,
    Text,
    Whole,
)
from gavel_py.io.times import seconds_until
from gavel_py.problem.arrays import Floats
from gavel_py.problem.columns import Fixed, Gang, Host, Number, Size, Use, fields_for, fixed_fields
from gavel_py.problem.dependencies import Condition, dependency_of
from gavel_py.problem.eligibility import ANY_SPLIT, EVEN_SPLIT

Locality = Literal["any", "rack", "node"]

SETTLED = Fixed("is settled when the job is submitted")

DEFAULT_RETRIES = 3
"""Enough for transient faults of machines and networks, while a faulty job is started four times at most."""


class Job(Record):
    """A job as submitted: its type, gang and work, and its claims on the cluster.

    >>> Job("j1", job_type="ResNet-50 (batch size 64)", num_gpus=2, total_steps=1e5).num_gpus
    2

    Attributes:
        job_id: Unique name.
        job_type: Row of the throughput profile; not needed with throughputs by job (`--throughputs`).
        num_gpus: GPUs of the gang, all or nothing, or a fraction of one GPU (docs/sharing.md#fractions-of-gpus).
        gpu_counts: Numbers of GPUs that an elastic job may have (docs/elastic.md), as far as the profile has them, instead of
            `num_gpus`, which is then the smallest.
        min_gpus: Smallest number of GPUs, 1 by default, of an elastic job that may have any gang size of the profile in a range.
        max_gpus: Largest one, instead of `gpu_counts`.
        weight: Relative claim: weight 2 is worth twice as much as weight 1.
        priority: Jobs with higher priority are served first by `priority`.
        total_steps: Work in training steps, None if unknown. A job that has done them is finished and left out.
        steps_done: Steps already done.
        duration_seconds: Run time on `duration_accelerator`, instead of `total_steps` (steps = duration x throughput there).
        duration_accelerator: The type on which `duration_seconds` was measured.
        arrival_seconds: Time of arrival, on the clock of the cluster. It orders jobs; all jobs of a file count as present.
        deadline_seconds: Absolute deadline, on the clock of the cluster, for `min_lateness` and the constraint `deadline`.
            Files may have it as `deadline`, from now: a duration, or a date (docs/file-formats.md#jobs).
        deadline_factor: The same as time from arrival, as a multiple of the job's duration on its fastest type.
        tenant: Tenant to which the job belongs, empty for none; read by `hierarchical` and by quotas.
        allowed_accelerators: Types on which the job may run, None for all.
        locality: Largest part of the topology that the gang may span: anything, one rack, or one node.
        even_split: Whether a gang on several nodes must have the same number of GPUs on each; it is never spread deliberately.
        gpus_per_node: GPUs that the gang must have on each of its nodes, None for any number; every gang size must be a multiple.
        cpus_per_gpu: Cores that each GPU requires on its node; a fraction of a GPU requires that part.
        memory_gb_per_gpu: Host memory that each GPU requires on its node; a fraction of a GPU requires that part.
        gpu_memory_gb: Memory used on each GPU (docs/throughput-profiles.md#gpu-memory), not scaled by a fraction of a GPU; by
            default from the throughput profile.
        restart_seconds: Cost of each start or move (docs/rounds.md#restarts-and-minimum-run-time), by default of the scheduler.
        max_retries: Number of new starts after failures (docs/rounds.md#failures), after which the job is reported as failed.
        depends_on: What the job waits for (docs/workflows.md), in Slurm's words: "afterok:ID" or "ID" (that job has finished),
            "afterany:ID" (it has ended), "afternotok:ID" (it has failed for good or was cancelled), "singleton" (all earlier jobs
            of its workflow and tenant have ended). Until all conditions are fulfilled, the job is blocked and gets no time.
        workflow: Name of the workflow to which the job belongs, empty for none.
    """

    label: ClassVar[str] = "job"
    identifier: ClassVar[str] = "job_id"

    job_id: Annotated[Name, Fixed("identifies the job; submit another job instead")]
    job_type: Gang[Text] = ""
    num_gpus: Size[Number[JobSize]] = 1
    weight: Number[Positive] = 1.0
    priority: Number[Finite] = 0.0
    total_steps: Number[Positive | None] = None
    steps_done: Annotated[NotNegative, Use.NUMBER, Fixed("is set by `report`")] = 0.0
    arrival_seconds: Annotated[Seconds, Use.NUMBER, Fixed("has happened")] = 0.0
    deadline_seconds: Number[Seconds | None] = None
    deadline_factor: Positive | None = None
    tenant: Text = ""
    allowed_accelerators: Gang[tuple[Name, ...] | None] = None
    locality: Gang[Locality] = "any"
    even_split: Gang[bool] = False
    gpus_per_node: Gang[Whole | None] = None
    cpus_per_gpu: Host[NotNegative] = 0.0
    memory_gb_per_gpu: Host[NotNegative] = 0.0
    gpu_memory_gb: Gang[Positive | None] = None
    duration_seconds: SecondsAboveZero | None = None
    duration_accelerator: Name | None = None
    restart_seconds: Number[SecondsFromZero | None] = None
    max_retries: Annotated[Integer, Field(ge=0, le=MAX_COUNT)] = DEFAULT_RETRIES
    depends_on: Annotated[tuple[Name, ...], SETTLED] = ()
    workflow: Annotated[Text, SETTLED] = ""
    gpu_counts: Size[tuple[Integer, ...] | None] = None
    min_gpus: Size[Whole | None] = None
    max_gpus: Size[Whole | None] = None

    def __init__(self, job_id: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if job_id is None else {"job_id": job_id}), **fields)

    @property
    def whole_gpus(self) -> int:
        """Number of GPUs on which the job runs: its gang, or 1 for a fraction."""
        return math.ceil(self.num_gpus)

    @property
    def is_elastic(self) -> bool:
        """Whether the scheduler chooses the number of GPUs."""
        return self.gpu_counts is not None or self.max_gpus is not None

    @property
    def has_deadline(self) -> bool:
        """Whether it has a deadline, as a time or as a factor."""
        return self.deadline_seconds is not None or self.deadline_factor is not None

    @property
    def gpu_range(self) -> tuple[int, int]:
        """The smallest and the largest number of GPUs on which the job may run."""
        if self.gpu_counts:
            return self.gpu_counts[0], self.gpu_counts[-1]
        return (self.min_gpus or 1, self.max_gpus) if self.max_gpus is not None else (self.whole_gpus, self.whole_gpus)

    @property
    def allowed_counts(self) -> Sequence[int]:
        """The numbers of GPUs on which an elastic job may run, ascending, as far as the profile has them."""
        if self.gpu_counts is not None:
            return self.gpu_counts
        (least, most), part = self.gpu_range, self.gpus_per_node or 1
        return range(-(-least // part) * part, most + 1, part)

    @property
    def host_requests(self) -> dict[str, float]:
        """What each of its GPUs requires on its node, {field: value}, as `Cluster.largest_gang` takes it."""
        return {name: getattr(self, name) for name in HOST_FIELDS}

    def allows(self, accelerator: str) -> bool:
        """Return whether the job may run on a type of this name."""
        return self.allowed_accelerators is None or accelerator in self.allowed_accelerators

    def allowing(self, accelerators: Iterable[str] | None) -> Job:
        """Return the job restricted to types of these names, None for all types; names may repeat."""
        allowed = None if accelerators is None else tuple(dict.fromkeys(accelerators))
        return self if allowed == self.allowed_accelerators else with_values(self, {"allowed_accelerators": allowed})

    def on_renamed(self, rename: Callable[[str], str]) -> Job:
        """Return the job with other names for the types on which it may run."""
        return self if self.allowed_accelerators is None else self.allowing(map(rename, self.allowed_accelerators))

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the jobs for which it waits by name."""
        return tuple(each.job_id for each in map(dependency_of, self.depends_on) if each.job_id)

    def without_dependencies(self) -> Job:
        """Return the job as one that waits for no other."""
        return with_values(self, {"depends_on": ()}) if self.depends_on else self

    def with_gpus(self, count: float) -> Job:
        """Return an elastic job as a gang of a fixed number of GPUs."""
        return with_values(self, dict.fromkeys(ELASTIC_FIELDS) | {"num_gpus": count})

    @field_validator("allowed_accelerators", "depends_on", "gpu_counts", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        """Split a cell of a CSV file with several values, such as v100|p100."""
        return tuple(part.strip() for part in value.split("|")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_together(self) -> Job:
        has_duration, on = self.duration_seconds is not None, self.duration_accelerator
        if has_duration or on is not None or self.deadline_factor is not None or self.allowed_accelerators is not None:
            check_together(
                (
                    has_duration and self.total_steps is not None,
                    "total_steps and duration_seconds are both given; give only one, since each follows from the other",
                ),
                (has_duration != (on is not None), "duration_seconds and duration_accelerator must be given together"),
                (
                    self.deadline_seconds is not None and self.deadline_factor is not None,
                    "deadline_seconds and deadline_factor are both given; give only one",
                ),
                (
                    self.allowed_accelerators == (),
                    "allowed_accelerators must name at least one accelerator, or be omitted to allow all",
                ),
            )
        if self.depends_on:
            check_dependencies(self.job_id, self.depends_on, self.workflow)
        if self.gpu_counts is not None or self.min_gpus is not None or self.max_gpus is not None:
            check_counts(
                self.gpu_counts, self.min_gpus, self.max_gpus, self.num_gpus if "num_gpus" in self.model_fields_set else None
            )
            self.__dict__["gpu_counts"] = self.gpu_counts and tuple(sorted(self.gpu_counts))  # the record is frozen
            self.__dict__["num_gpus"] = self.gpu_range[0]
        if (part := self.gpus_per_node) is not None:
            sizes = self.gpu_counts or (() if self.is_elastic else (self.num_gpus,))
            check_together(*((size % part, f"gpus_per_node is {part}, of which {size:g} GPUs are no multiple") for size in sizes))
            self.__dict__["even_split"] = True
        return self

    @model_serializer(mode="wrap")
    def _without_derived(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields from which an equal job can be built."""
        fields: dict[str, Any] = dump(self)
        return {name: value for name, value in fields.items() if name != "num_gpus" or not self.is_elastic}

    @property
    def split(self) -> int:
        """How its GPUs are divided over nodes: `ANY_SPLIT`, `EVEN_SPLIT`, or the number on each."""
        return self.gpus_per_node or (EVEN_SPLIT if self.even_split else ANY_SPLIT)


def read_deadline(fields: dict[str, Any], now: datetime | None = None) -> dict[str, Any]:
    """Return fields of a job in a file with `deadline`, a time from now, as `deadline_seconds`; time 0 of the clock is now.

    Args:
        fields: {name: value}.
        now: What dates count from, by default the present.

    Raises:
        InputError: `deadline` is no such time, or has passed, or there is another deadline.
    """
    if "deadline" not in fields:
        return fields
    where = f"job {fields['job_id']!r}" if "job_id" in fields else "job"
    others = [name for name in ("deadline_seconds", "deadline_factor") if name in fields]
    refuse(where, (others, "", f"deadline and {' and '.join(others)} are both given; give only one"))
    value = fields.pop("deadline")
    try:
        return fields | {"deadline_seconds": seconds_until(value, now)}
    except ValueError as error:
        raise InputError(Fault(where, "deadline", str(error))) from None


def check_counts(counts: Sequence[int] | None, least: int | None, most: int | None, fixed: int | float | None) -> None:
    """Raise `InputError` for numbers of GPUs of a job that contradict each other. fixed: `num_gpus`, None if not given."""
    given, is_range = counts or (), least is not None or most is not None
    twice = sorted({count for count in given if given.count(count) > 1})
    wrong = [count for count in given if not 1 <= count <= MAX_COUNT]
    name = "gpu_counts" if counts is not None else "max_gpus"
    check_together(
        (counts is not None and is_range, "gpu_counts and min_gpus or max_gpus are both given; give only one"),
        (counts == (), "gpu_counts must name at least one number of GPUs, or be omitted for a fixed gang"),
        (twice, f"gpu_counts has {twice and twice[0]} twice; each number of GPUs is given once"),
        (wrong, f"gpu_counts must be whole numbers of GPUs from 1 to {MAX_COUNT:,}, found {wrong and wrong[0]}"),
        (counts is None and most is None, "min_gpus needs max_gpus, the largest number of GPUs on which the job may run"),
        ((least or 0) > (most or MAX_COUNT), f"min_gpus must not exceed max_gpus, found {least} and {most}"),
        (
            fixed is not None,
            f"num_gpus and {name} are both given; give num_gpus for a fixed gang, or {name} for an elastic job",
        ),
    )


def check_dependencies(job_id: str, texts: Iterable[str], workflow: str) -> None:
    """Raise `InputError` for a job that waits for itself or twice for another one, and for a singleton without a workflow."""
    found = [dependency_of(text) for text in texts]
    named = [each.job_id for each in found]
    twice = next((each.job_id or str(each) for n, each in enumerate(found) if each.job_id in named[:n]), None)
    is_singleton = Condition.SINGLETON in (each.condition for each in found)
    check_together(
        (job_id in named, "depends_on must not name the job itself"),
        (twice, f"depends_on has {twice!r} twice; list each job once"),
        (
            is_singleton and not workflow,
            "singleton needs a workflow: it waits for the earlier jobs of the same workflow and tenant",
        ),
    )


ELASTIC_FIELDS = frozenset(fields_for(Use.SIZE, Job))

HOST_FIELDS = fields_for(Use.HOST, Job)

GANG_KEY = attrgetter(*fields_for(Use.GANG, Job))
"""Returns the fields of a job that determine its gang, as a tuple that is equal for equal gangs."""


NUMBERS = fields_for(Use.NUMBER, Job)
"""Fields that are columns of numbers in the job table."""

_read_host, _read_numbers = attrgetter(*HOST_FIELDS), attrgetter(*NUMBERS)


def host_requests_of(jobs: Sequence[Job]) -> Floats:
    """Return (N, 2) what each GPU of N jobs requires on its node: CPUs, and memory in GB."""
    return np.fromiter(chain.from_iterable(map(_read_host, jobs)), dtype=float).reshape(len(jobs), len(HOST_FIELDS))


def requests_of(jobs: Sequence[Job]) -> dict[str, Floats]:
    """Return {field: (N,) values} of the fields that are columns of numbers, NaN for none."""
    values = np.array(list(map(_read_numbers, jobs)), dtype=float).reshape(len(jobs), len(NUMBERS))
    # Each column is contiguous in memory, since policies and the cache read one column at a time.
    return dict(zip(NUMBERS, np.ascontiguousarray(values.T), strict=True))


def with_values(job: Job, values: dict[str, Any]) -> Job:
    """Return the job with these values, which are not checked; much faster than `model_copy`."""
    copy = Job.__new__(Job)
    put = object.__setattr__  # jobs are frozen
    put(copy, "__dict__", job.__dict__ | values)
    given = job.__pydantic_fields_set__
    put(copy, "__pydantic_fields_set__", given if given.issuperset(values) else given.union(values))
    put(copy, "__pydantic_extra__", None)
    put(copy, "__pydantic_private__", None)
    return copy


def changed_job(job: Job, fields: dict[str, object]) -> Job:
    """Return the job with these fields changed, validated like a new job. Raises `InputError`."""
    place = f"job {job.job_id!r}"
    InputError.raise_any(
        [Fault(place, name, f"cannot be changed: it {why}") for name, why in fixed_fields(Job).items() if name in fields]
    )
    kept = job.model_dump()
    if not ELASTIC_FIELDS.isdisjoint(fields):  # one kind of them replaces the others, but a bound keeps the other bound
        is_range = not fields.keys() & {"num_gpus", "gpu_counts"} and fields.get("max_gpus", job.max_gpus) is not None
        replaced = ELASTIC_FIELDS - {"min_gpus", "max_gpus"} if is_range else ELASTIC_FIELDS
        kept = {name: value for name, value in kept.items() if name not in replaced}
    return Job(**kept | fields)
