"""Jobs and job sets, with readers for CSV, JSON, JSON Lines and Gavel's trace format."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, overload

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from gavel_py.errors import Fault, InputError, together
from gavel_py.io import names, reading
from gavel_py.io.records import (
    MAX_COUNT,
    Finite,
    Integer,
    JobSize,
    Name,
    NotNegative,
    Positive,
    Record,
    Text,
    Whole,
    check_records,
    is_absent,
    repeated,
)
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.problem.eligibility import ANY_SPLIT, EVEN_SPLIT, check_per_node
from gavel_py.problem.gpu_counts import check_counts
from gavel_py.problem.workflows import WorkflowGraph, check_dependencies, check_known

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Locality = Literal["any", "rack", "node"]

DEFAULT_RETRIES = 3
"""Enough for transient faults of machines and networks, while a faulty job is started four times at most."""

RECORDED = "recorded_"
"""Prefix of columns with the recorded outcome of a job, which traces read and job sets ignore."""


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

    job_id: Name
    job_type: Text = ""
    num_gpus: JobSize = 1
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
    gpus_per_node: Whole | None = None
    cpus_per_gpu: NotNegative = 0.0
    memory_gb_per_gpu: NotNegative = 0.0
    gpu_memory_gb: Positive | None = None
    duration_seconds: Positive | None = None
    duration_accelerator: Name | None = None
    restart_seconds: NotNegative | None = None
    max_retries: Annotated[Integer, Field(ge=0, le=MAX_COUNT)] = DEFAULT_RETRIES
    depends_on: tuple[Name, ...] = ()
    workflow: Text = ""
    gpu_counts: tuple[Integer, ...] | None = None
    min_gpus: Whole | None = None
    max_gpus: Whole | None = None

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
    def gpu_range(self) -> tuple[int, int]:
        """The smallest and the largest number of GPUs on which the job may run."""
        if self.gpu_counts:
            return self.gpu_counts[0], self.gpu_counts[-1]
        return (self.min_gpus or 1, self.max_gpus) if self.max_gpus is not None else (self.whole_gpus, self.whole_gpus)

    @field_validator("allowed_accelerators", "depends_on", "gpu_counts", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        """Split a cell of a CSV file with several values, such as v100|p100."""
        return tuple(part.strip() for part in value.split("|")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_together(self) -> Job:
        if self.duration_seconds is not None and self.total_steps is not None:
            raise ValueError("total_steps and duration_seconds are both given; give only one, since each follows from the other")
        if (self.duration_seconds is None) != (self.duration_accelerator is None):
            raise ValueError("duration_seconds and duration_accelerator must be given together")
        if self.deadline_seconds is not None and self.deadline_factor is not None:
            raise ValueError("deadline_seconds and deadline_factor are both given; give only one")
        if self.allowed_accelerators is not None and not self.allowed_accelerators:
            raise ValueError("allowed_accelerators must name at least one accelerator, or be omitted to allow all")
        if self.depends_on:
            check_dependencies(self.job_id, self.depends_on, self.workflow)
        if self.gpu_counts is not None or self.min_gpus is not None or self.max_gpus is not None:
            check_counts(
                self.gpu_counts, self.min_gpus, self.max_gpus, self.num_gpus if "num_gpus" in self.model_fields_set else None
            )
            self.__dict__["gpu_counts"] = self.gpu_counts and tuple(sorted(self.gpu_counts))  # the record is frozen
            self.__dict__["num_gpus"] = self.gpu_range[0]
        if self.gpus_per_node is not None:
            check_per_node(self.gpu_counts or (() if self.is_elastic else (self.num_gpus,)), self.gpus_per_node)
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


def check_unique(job_ids: Iterable[str]) -> None:
    """Raise `InputError` for ids that occur more than once."""
    twice = names.repeated(job_ids)
    InputError.raise_any([Fault(f"job {job_id!r}", "job_id", "appears twice; job ids must be unique") for job_id in twice])


class JobSet(Sequence[Job], Tabular):
    """An immutable sequence of jobs with unique ids.

    Args:
        jobs: The jobs, in order. They may wait for jobs that are not among them.

    Raises:
        InputError: An id occurs twice, an entry is not a `Job`, or jobs wait for each other in a cycle.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs: tuple[Job, ...] = tuple(jobs)
        invalid = [Fault("job set", "", f"must hold Job objects, found {job!r}") for job in self.jobs if not isinstance(job, Job)]
        InputError.raise_any(invalid)
        check_unique(job.job_id for job in self.jobs)
        if any(job.depends_on for job in self.jobs):
            WorkflowGraph(self.jobs)

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
    def from_file(cls, path: str | Path, *, ignore: Collection[str] = ()) -> JobSet:
        """Read jobs from a file.

        Args:
            path: A .csv, .json, .jsonl (.ndjson) file or a Gavel .trace; the suffix gives the format.
            ignore: Columns (CSV) or keys (JSON) to ignore, which would be unknown otherwise; none of them is a field of a job.

        Raises:
            InputError: All faults of the file, each with its place; or a name in `ignore` is a field of a job.
        """
        check_ignored("jobs", ignore)
        readers: dict[str, Callable[[str | Path], Iterable[tuple[str, Any]]]] = {
            ".csv": partial(reading.csv_rows, required=("job_id",), known=Job.model_fields),
            ".json": partial(reading.document_rows, key="jobs"),
            ".jsonl": reading.json_lines,
            ".ndjson": reading.json_lines,
            ".trace": _gavel_rows,
        }
        rows = readers[reading.suffix_of(path, readers)](path)
        return cls._from_rows((where, _without(row, ignore)) for where, row in rows)

    @classmethod
    def from_csv(cls, path: str | Path) -> JobSet:
        """Read jobs from CSV.

        Args:
            path: A file with columns named as the fields of `Job`; an empty cell means the default.

        Raises:
            InputError: All faults of the file, each with its place.
        """
        return cls._from_rows(reading.csv_rows(path, required=("job_id",), known=Job.model_fields))

    @classmethod
    def from_json(cls, path: str | Path) -> JobSet:
        """Read jobs from JSON.

        Args:
            path: A file with a list of objects, or an object with the list under "jobs".

        Raises:
            InputError: All faults of the file, each with its place.
        """
        return cls._from_rows(reading.document_rows(path, "jobs"))

    @classmethod
    def from_json_lines(cls, path: str | Path) -> JobSet:
        """Read jobs from JSON Lines.

        Args:
            path: A file with one object per line.

        Raises:
            InputError: All faults of the file, each with its place.
        """
        return cls._from_rows(reading.json_lines(path))

    @classmethod
    def from_gavel_trace(cls, path: str | Path) -> JobSet:
        """Read a trace in Gavel's format; job ids are the line numbers from 0.

        Args:
            path: A file of 10 tab-separated fields per line, without header.

        Raises:
            InputError: All faults of the file, each with its place.
        """
        return cls._from_rows(_gavel_rows(path))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Iterable[Any]]) -> JobSet:
        """Build jobs from columns, such as those of `to_columns` or of a polars or pyarrow table.

        >>> JobSet.from_columns({"job_id": ["a", "b"], "num_gpus": [1, 8], "total_steps": [1e5, None]})
        JobSet(2 jobs)

        Args:
            columns: {name of a field of `Job`: values}, all of one length. A missing value (None, NaN) or an empty text means the
                default.

        Raises:
            InputError: All faults, each with its row, counted from 0.
        """
        listed = {str(name): values.tolist() if hasattr(values, "tolist") else list(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in listed.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
            raise InputError(Fault("jobs", "columns", f"must have the same length, found {counts}"))
        rows = [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]
        return cls._from_rows((f"row {n}", {k: v for k, v in row.items() if not _is_empty(v)}) for n, row in enumerate(rows))

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame) -> JobSet:
        """Build jobs from a pandas DataFrame with a column for each field that is given; see `from_columns`.

        Args:
            frame: The data frame. Its index is not read, unless it is named job_id.

        Raises:
            InputError: All faults, each with its row, counted from 0.
        """
        named = frame.reset_index() if frame.index.name == "job_id" else frame
        return cls.from_columns({str(name): named[name] for name in named.columns})

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return the jobs as {field: (N,) array}, as `from_columns` takes them; several names are joined by "|"."""
        columns = {name: [getattr(job, name) for job in self.jobs] for name in Job.model_fields}
        columns["num_gpus"] = [None if job.is_elastic else job.num_gpus for job in self.jobs]
        return {name: array_of(map(_joined, values)) for name, values in columns.items()}

    @classmethod
    def _from_rows(cls, rows: Iterable[tuple[str, Any]]) -> JobSet:
        placed = []
        for where, row in rows:
            if isinstance(row, Mapping):  # null in JSON means the default, as an empty cell does in CSV
                row = {n: value for n, value in row.items() if value is not None and not str(n).startswith(RECORDED)}
            placed.append((where, row))
        ids = [(where, str(row["job_id"]).strip()) for where, row in placed if isinstance(row, Mapping) and "job_id" in row]
        with together() as attempt:
            attempt(lambda: InputError.raise_any(repeated("job", "job_id", ids)))
            jobs = attempt(lambda: check_records(Job, placed))
        with together() as attempt:
            found: JobSet = attempt(lambda: cls(jobs))
            attempt(lambda: check_known(jobs))
        return found


def _joined(value: object) -> object:
    return "|".join(map(str, value)) if isinstance(value, tuple) else value


def _is_empty(value: object) -> bool:
    return value == "" if isinstance(value, str) else is_absent(value)


FIELDS = frozenset(Job.model_fields)


def check_ignored(where: str, names: Collection[str]) -> None:
    """Raise `InputError` for names of columns to ignore that are fields of a job."""
    text = "is a field of a job, not an unknown column"
    InputError.raise_any([Fault(where, "ignore", f"{name!r} {text}") for name in names if name in FIELDS])


def _without(row: Any, names: Collection[str]) -> Any:
    return {name: value for name, value in row.items() if name not in names} if names and isinstance(row, Mapping) else row


GAVEL_FIELDS = ("job_type", "", "", "", "", "total_steps", "num_gpus", "weight", "slo", "arrival_seconds")
"""The fields of Gavel's traces; "" is an ignored field (a command, its folder and arguments)."""


def _gavel_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    for index, (number, line) in enumerate(reading.numbered_lines(path)):
        cells = line.split("\t")
        where, expected = f"{path}, line {number}", len(GAVEL_FIELDS)
        if len(cells) != expected:
            raise InputError(Fault(where, "", f"has {len(cells)} tab-separated fields, but Gavel's traces have {expected}"))
        row = {name: cell for name, cell in zip(GAVEL_FIELDS, cells, strict=True) if name}
        # A negative SLO means none; other values are factors, which Job validates.
        slo = row.pop("slo")
        yield where, {"job_id": str(index), **row} | ({} if slo.strip().startswith("-") else {"deadline_factor": slo})


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
