"""Jobs and job sets, readable from CSV, JSON, JSON Lines and Gavel's trace format.

`with_steps` is a job with other progress. It is called for every running job in every round, so it has to be quick.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, overload

from pydantic import Field, field_validator, model_validator

from gavel_py.errors import Fault, InputError, together
from gavel_py.io import reading
from gavel_py.io.records import MOST, Finite, GangSize, Integer, Name, NotNegative, Positive, Record, Text, check_records, repeated

Locality = Literal["any", "rack", "node"]

DEFAULT_RETRIES = 3
"""A fault of a machine or the network is over by then, and a job with a fault of its own has cost four starts, not more."""

RECORDED = "recorded_"
"""Columns of this prefix say what became of a job in the past. A trace reads them; a job set is about the future and does not."""


class Job(Record):
    """A job as it is submitted: what it runs, how large its gang is, and what it is owed.

    job_id: unique name; job_type: row of the throughput profile; num_gpus: GPUs of the gang, all or nothing, or a fraction of one
    GPU, 0.25 for a quarter, of which other jobs may have the rest at the same time;
    weight: a job of weight 2 is owed twice as much; priority: higher goes first;
    total_steps, steps_done: work in training steps, unknown total when None; duration_seconds on duration_accelerator:
    stands in for total_steps (steps = duration x throughput there);
    arrival_seconds, deadline_seconds: on the clock of the cluster, a deadline is absolute;
    deadline_factor: the deadline as a multiple of the job's duration on its fastest accelerator, after arrival;
    tenant: who pays; allowed_accelerators: None means all; locality: the gang must fit one node, one rack, or anywhere;
    even_split: on several nodes, it must have the same number of GPUs on each;
    cpus_per_gpu, memory_gb_per_gpu: cores and host memory, GB, that each of its GPUs needs on the same node, a fraction of a GPU
    that part of them;
    gpu_memory_gb: what it takes of the memory of each of its GPUs, GB, by default what the throughput profile says; all that it
    takes, also with a fraction of a GPU;
    restart_seconds: what it costs to start, move or be resumed, checkpoint and load, by default what the scheduler says (0);
    max_retries: a job that has failed is started anew so many times, then reported as failed.

    >>> Job("j1", job_type="ResNet-50 (batch size 64)", num_gpus=2, total_steps=1e5).num_gpus
    2
    """

    label: ClassVar[str] = "job"
    identifier: ClassVar[str] = "job_id"

    job_id: Name
    job_type: Text = ""
    num_gpus: GangSize = 1
    weight: Positive = 1.0
    priority: Finite = 0.0
    total_steps: Positive | None = None
    steps_done: NotNegative = 0.0
    arrival_seconds: Finite = 0.0
    deadline_seconds: Finite | None = None
    deadline_factor: Positive | None = None
    tenant: Text = ""
    allowed_accelerators: tuple[Name, ...] | None = None
    locality: Locality = "any"
    even_split: bool = False
    cpus_per_gpu: NotNegative = 0.0
    memory_gb_per_gpu: NotNegative = 0.0
    gpu_memory_gb: Positive | None = None
    duration_seconds: Positive | None = None
    duration_accelerator: Name | None = None
    restart_seconds: NotNegative | None = None
    max_retries: Annotated[Integer, Field(ge=0, le=MOST)] = DEFAULT_RETRIES

    def __init__(self, job_id: str | None = None, /, **fields: Any) -> None:
        super().__init__(**({} if job_id is None else {"job_id": job_id}), **fields)

    @property
    def whole_gpus(self) -> int:
        """On how many GPUs it runs: those of its gang, or the one of which it has a fraction."""
        return math.ceil(self.num_gpus)

    @field_validator("allowed_accelerators", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        """A cell of a CSV file holds several names, as in v100|p100."""
        return tuple(part.strip() for part in value.split("|")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_together(self) -> Job:
        if (self.duration_seconds is None) != (self.duration_accelerator is None):
            raise ValueError("duration_seconds and duration_accelerator must be given together")
        if self.duration_seconds is not None and self.total_steps is not None:
            raise ValueError("total_steps and duration_seconds are both given; the one follows from the other, so give one")
        if self.deadline_seconds is not None and self.deadline_factor is not None:
            raise ValueError("deadline_seconds and deadline_factor are both given; give one")
        if self.allowed_accelerators is not None and not self.allowed_accelerators:
            raise ValueError("allowed_accelerators must name at least one accelerator, or be left out to allow all")
        return self


class JobSet(Sequence[Job]):
    """Jobs with unique ids, in the order given. Raises `InputError` when an id stands twice."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs: tuple[Job, ...] = tuple(jobs)
        strange = [Fault("job set", "", f"must hold Job objects, found {job!r}") for job in self.jobs if not isinstance(job, Job)]
        InputError.raise_any(strange)
        twice = [job_id for job_id, times in Counter(job.job_id for job in self.jobs).items() if times > 1]
        InputError.raise_any([Fault(f"job {job_id!r}", "job_id", "stands twice; job ids must be unique") for job_id in twice])

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> JobSet: ...
    def __getitem__(self, index: int | slice) -> Job | JobSet:
        return JobSet(self.jobs[index]) if isinstance(index, slice) else self.jobs[index]

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __eq__(self, other: object) -> bool:
        return self.jobs == other.jobs if isinstance(other, JobSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.jobs)

    def __repr__(self) -> str:
        return f"JobSet({len(self)} jobs)"

    @classmethod
    def from_file(cls, path: str | Path) -> JobSet:
        """Read jobs from .csv, .json, .jsonl or a Gavel .trace, told apart by the file's suffix."""
        readers: dict[str, Callable[[str | Path], JobSet]] = {
            ".csv": cls.from_csv,
            ".json": cls.from_json,
            ".jsonl": cls.from_json_lines,
            ".ndjson": cls.from_json_lines,
            ".trace": cls.from_gavel_trace,
        }
        return readers[reading.suffix_of(path, readers)](path)

    @classmethod
    def from_csv(cls, path: str | Path) -> JobSet:
        """Read jobs from CSV: columns named as the fields of `Job`; an empty cell means the default."""
        return cls._from_rows(reading.csv_rows(path, required=("job_id",)))

    @classmethod
    def from_json(cls, path: str | Path) -> JobSet:
        """Read jobs from JSON: a list of objects, or an object with the list under "jobs"."""
        return cls._from_rows(json_rows(path))

    @classmethod
    def from_json_lines(cls, path: str | Path) -> JobSet:
        """Read jobs from JSON Lines: one object a line."""
        return cls._from_rows(reading.json_lines(path))

    @classmethod
    def from_gavel_trace(cls, path: str | Path) -> JobSet:
        """Read Gavel's trace of 10 tab-separated fields without header; job ids are the line numbers from 0."""
        return cls._from_rows(_gavel_rows(path))

    @classmethod
    def _from_rows(cls, rows: Iterable[tuple[str, Any]]) -> JobSet:
        placed = [(where, _told(row)) for where, row in rows]
        ids = [(where, str(row["job_id"]).strip()) for where, row in placed if isinstance(row, Mapping) and "job_id" in row]
        with together() as attempt:
            attempt(lambda: InputError.raise_any(repeated("job", "job_id", ids)))
            jobs = attempt(lambda: check_records(Job, placed))
        return cls(jobs)


def json_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, fields) for each job of a JSON file: a list of objects, or an object with the list under "jobs"."""
    read = reading.document(path)
    document = read.value
    rows = document.get("jobs") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise InputError(Fault(read.line("jobs"), "", 'must be a list of jobs, or an object with the list under "jobs"'))
    above = ("jobs",) if isinstance(document, dict) else ()
    others = [name for name in document if name != "jobs"] if above else []
    InputError.raise_any([Fault(read.line(name), "", f'key {name!r} is not known beside "jobs"') for name in others])
    for index, row in enumerate(rows):
        yield f"{read.line(*above, index)}, entry {index + 1}", row


def _told(row: Any) -> Any:
    """What a row says of the job to come. In JSON, null means the default, as an empty cell does in CSV."""
    if not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if value is not None and not str(name).startswith(RECORDED)}


GAVEL_FIELDS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "num_gpus",
    "weight",
    "slo",
    "arrival_seconds",
)


def _gavel_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    for index, (number, line) in enumerate(reading.numbered_lines(path)):
        cells = line.split("\t")
        where = f"{path}, line {number}"
        if len(cells) != len(GAVEL_FIELDS):
            problem = f"has {len(cells)} tab-separated fields, Gavel's trace has {len(GAVEL_FIELDS)}"
            raise InputError(Fault(where, "", problem))
        row: dict[str, Any] = dict(zip(GAVEL_FIELDS, cells, strict=True))
        job = {k: row[k] for k in ("job_type", "total_steps", "num_gpus", "weight", "arrival_seconds")}
        # A negative SLO means none; anything else is a factor, and Job checks that it is a positive number.
        if not row["slo"].strip().startswith("-"):
            job["deadline_factor"] = row["slo"]
        yield where, {"job_id": str(index), **job}


PROGRESS = "steps_done"


def with_steps(job: Job, steps_done: float) -> Job:
    """Return the job with so many steps done; the same as `model_copy`, without its copies of what does not change."""
    made = Job.__new__(Job)
    put = object.__setattr__  # jobs are frozen
    put(made, "__dict__", job.__dict__ | {PROGRESS: steps_done})
    told = job.__pydantic_fields_set__
    put(made, "__pydantic_fields_set__", told if PROGRESS in told else told | {PROGRESS})
    put(made, "__pydantic_extra__", None)
    put(made, "__pydantic_private__", None)
    return made
