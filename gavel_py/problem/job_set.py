"""Sets of jobs, with readers for CSV, JSON, JSON Lines and Gavel's trace format, and saved jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

from pydantic import BaseModel, ConfigDict, Field

from gavel_py.errors import Fault, InputError, refuse, together, wrong_types
from gavel_py.io import names, reading
from gavel_py.io.names import is_absent
from gavel_py.io.records import PlainName, check_records, repeated
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.problem.job import Job, read_deadline, with_values
from gavel_py.problem.workflows import WorkflowGraph, check_parents, has_dependencies

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

RECORDED = "recorded_"
"""Prefix of columns with the recorded outcome of a job, which traces read and job sets ignore."""


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
        InputError.raise_any(wrong_types("job set", "", self.jobs, Job, "must hold Job objects"))
        check_unique(job.job_id for job in self.jobs)
        if has_dependencies(self.jobs):
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
    def from_file(cls, path: str | Path, *, ignore: Collection[str] = (), now: datetime | None = None) -> JobSet:
        """Read jobs from a file.

        Args:
            path: A .csv, .json, .jsonl (.ndjson) file or a Gavel .trace; the suffix gives the format.
            ignore: Columns (CSV) or keys (JSON) to ignore, which would be unknown otherwise; none of them is a field of a job.
            now: When `deadline` counts from, by default the present.

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
        return cls._from_rows(readers[reading.suffix_of(path, readers)](path), ignore, now)

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
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        refuse("jobs", (len(set(lengths.values())) > 1, "columns", f"must have the same length, found {counts}"))
        rows = [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]
        given = ({k: v for k, v in row.items() if not (v == "" if isinstance(v, str) else is_absent(v))} for row in rows)
        return cls._from_rows((f"row {n}", row) for n, row in enumerate(given))

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
        return {
            name: array_of("|".join(map(str, each)) if isinstance(each, tuple) else each for each in values)
            for name, values in columns.items()
        }

    @classmethod
    def _from_rows(cls, rows: Iterable[tuple[str, Any]], ignore: Collection[str] = (), now: datetime | None = None) -> JobSet:
        placed = []
        for where, row in rows:
            if isinstance(row, Mapping):  # null in JSON means the default, as an empty cell does in CSV
                given = ((n, value) for n, value in row.items() if value is not None and n not in ignore)
                row = {n: value for n, value in given if not str(n).startswith(RECORDED)}
            placed.append((where, row))
        ids = [(where, str(row["job_id"]).strip()) for where, row in placed if isinstance(row, Mapping) and "job_id" in row]
        with together() as attempt:
            attempt(lambda: InputError.raise_any(repeated("job", "job_id", ids)))
            jobs = attempt(lambda: check_records(Job, placed, partial(read_deadline, now=now or datetime.now().astimezone())))
        with together() as attempt:
            found: JobSet = attempt(lambda: cls(jobs))
            attempt(lambda: check_parents(jobs))
        return found


def check_ignored(where: str, names: Collection[str]) -> None:
    """Raise `InputError` for names of columns to ignore that are fields of a job."""
    text = "is a field of a job, not an unknown column"
    InputError.raise_any([Fault(where, "ignore", f"{name!r} {text}") for name in names if name in Job.model_fields])


GAVEL_FIELDS = ("job_type", "", "", "", "", "total_steps", "num_gpus", "weight", "deadline_factor", "arrival_seconds")
"""The fields of Gavel's traces; "" is an ignored field (a command, its folder and arguments)."""


def gavel_fields(names: Iterable[str], cells: Iterable[str]) -> dict[str, str]:
    """Return the fields of a job that a line of a trace has in these cells; a negative SLO (the factor of a deadline) is none."""
    row = {name: cell for name, cell in zip(names, cells, strict=True) if name}
    return {name: cell for name, cell in row.items() if name != "deadline_factor" or not cell.strip().startswith("-")}


def _gavel_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    for index, (number, line) in enumerate(reading.numbered_lines(path)):
        cells = line.split("\t")
        where, expected = f"{path}, line {number}", len(GAVEL_FIELDS)
        text = f"has {len(cells)} tab-separated fields, but Gavel's traces have {expected}"
        refuse(where, (len(cells) != expected, "", text))
        yield where, {"job_id": str(index)} | gavel_fields(GAVEL_FIELDS, cells)


class _OwnFields(BaseModel):
    """Columns of the fields in which nearly all jobs differ. Rules of several fields read only whether `total_steps` is given.

    Saved numbers are never text, so pydantic checks them without a Python function for each value, unlike those of `Job`.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    job_id: list[PlainName]
    arrival_seconds: list[float] = []
    total_steps: list[Annotated[float, Field(gt=0)] | None] = []
    steps_done: list[Annotated[float, Field(ge=0)]] = []


def jobs_from_dict(fields: Mapping[str, list[Any]]) -> list[Job]:
    """Restore jobs from `jobs_to_dict`. Of all jobs that are equal but for `_OwnFields`, one is checked as a job."""
    checked_columns = _OwnFields(**{name: fields[name] for name in _OwnFields.model_fields if name in fields})
    columns = {name: getattr(checked_columns, name) for name in checked_columns.model_fields_set}
    others = {name: _hashable(column) for name, column in fields.items() if name not in columns}
    rows = zip(*others.values(), strict=True) if others else repeat((), len(fields["job_id"]))
    jobs, checked = [], dict[tuple[Any, ...], Job]()
    for row, own_row in zip(rows, zip(*columns.values(), strict=True), strict=True):
        own = dict(zip(columns, own_row, strict=True))
        key = own.get("total_steps") is None, row
        alike = checked.get(key)
        if alike is None or alike.parents:  # a job must not wait for itself
            alike = checked[key] = Job(**without_derived(dict(zip(others, row, strict=True)) | own))
        jobs.append(with_values(alike, own))
    return jobs


def _hashable(column: list[Any]) -> list[Any]:
    """Return a column of JSON data with tuples instead of lists."""
    return [tuple(value) if isinstance(value, list) else value for value in column] if list in set(map(type, column)) else column


def without_derived(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a saved job without `num_gpus` if it follows from others."""
    if fields.get("gpu_counts") is None and fields.get("max_gpus") is None:
        return fields
    return {name: value for name, value in fields.items() if name != "num_gpus"}


def jobs_to_dict(jobs: Sequence[Job]) -> dict[str, list[Any]]:
    """Return {field: values} of jobs, for the id and the fields that differ from their default in any job."""
    columns = {name: list(map(attrgetter(name), jobs)) for name in Job.model_fields}
    defaults = {name: field.default for name, field in Job.model_fields.items()}
    return {name: values for name, values in columns.items() if name == "job_id" or values.count(defaults[name]) < len(values)}
