"""Throughputs by job instead of by job type: a matrix of jobs x accelerators, from a file or an array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, MissingThroughputError, UnknownNameError, decimal_hint, nearest
from gavel_py.io import reading
from gavel_py.io.names import is_absent
from gavel_py.io.records import number_of, repeated
from gavel_py.problem.arrays import ArrayChecker
from gavel_py.problem.job import Job


def counted(job: Job, count: int) -> str:
    """Return "job 'a'" or "job 'a' (jobs.csv, line 2) and 2 more" for `count` jobs, of which this one is the first."""
    place = f" ({job.place})" if job.place else ""
    return f"job {job.job_id!r}{place}" + (f" and {count - 1:,} more" if count > 1 else "")


class ThroughputMatrix:
    """Steps/s of the whole gang of each job on each accelerator, looked up by job id; immutable.

    Args:
        name: Name of the profile, for messages.
        job_ids: N job ids.
        accelerators: K accelerator names.
        values: (N, K) steps/s as an array, nested lists, a masked array or a labelled DataFrame. None, a masked cell or an absent
            value of a DataFrame is missing; 0 means that the job cannot run there.
        places: Where each row was read, for messages.

    Attributes:
        values: (N, K) steps/s, read-only, NaN where missing.

    Raises:
        InputError: Wrong shape, duplicate names, or values that are negative or not finite.

    >>> ThroughputMatrix("mine", ["a", "b"], ["v100", "k80"], [[4.0, 1.0], [3.0, None]])
    ThroughputMatrix('mine': 2 jobs on v100, k80)
    """

    def __init__(
        self,
        name: str,
        job_ids: Iterable[object],
        accelerators: Iterable[object],
        values: ArrayLike,
        places: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.job_ids: tuple[str, ...] = tuple("" if is_absent(job_id) else str(job_id) for job_id in job_ids)
        self.accelerators: tuple[str, ...] = tuple("" if is_absent(each) else str(each) for each in accelerators)
        self._lines = None if places is None else tuple(places)
        if places is None:
            places = [f"{self._where}, row {number}" for number in range(1, len(self.job_ids) + 1)]
        faults = _name_faults("job", "job_id", zip(places, self.job_ids, strict=True))
        columns = ((f"{self._where}, column {k}", name) for k, name in enumerate(self.accelerators, 1))
        faults += _name_faults("accelerator", "accelerator", columns)
        check, axes = ArrayChecker(), [("job", self.job_ids), ("accelerator type", self.accelerators)]
        values = check.in_order("values", values, axes) if isinstance(values, list | tuple) else values  # rows may have labels
        cells = check.in_order("values", _cells(values), axes, labelled=values)
        InputError.raise_any(faults + [replace(fault, where=self._where) for fault in check.faults] if check.faults else [])
        self.values, wrong = _checked(cells, places, self.accelerators, self._where)
        InputError.raise_any(faults + wrong)
        self.values.flags.writeable = False
        self._rows = {job_id: row for row, job_id in enumerate(self.job_ids)}

    def __len__(self) -> int:
        return len(self.job_ids)

    def __repr__(self) -> str:
        return f"ThroughputMatrix({self.name!r}: {len(self)} jobs on {', '.join(self.accelerators) or 'nothing'})"

    @classmethod
    def from_csv(cls, path: str | Path, name: str | None = None) -> ThroughputMatrix:
        """Read a matrix from a CSV file with a column job_id and one column per accelerator; an empty cell is missing."""
        rows = list(reading.csv_rows(path, required=("job_id",)))
        # Rows leave out empty cells, so only the header names all columns.
        accelerators = [column for column in reading.csv_header(path)[1] if column != "job_id"]
        job_ids = [row.get("job_id", "") for _, row in rows]
        cells: Any = [[row.get(a) for a in accelerators] for _, row in rows]
        return cls(Path(path).stem if name is None else name, job_ids, accelerators, cells, [where for where, _ in rows])

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Return the steps/s of the gang of a job.

        Args:
            job: The job, looked up by its id.
            accelerator: Accelerator name.
            placement: Only "consolidated" is known.

        Raises:
            UnknownNameError: The accelerator has no column.
            MissingThroughputError: The job has no row, the cell is empty, or the placement is not "consolidated".
        """
        if placement != "consolidated":
            problem = f"has only consolidated throughputs; {placement!r} was requested for job {job.job_id!r}"
            raise MissingThroughputError(Fault(self._where, "", problem))
        speed = self._speeds([job], [accelerator])[0, 0]
        if math.isnan(speed):
            error = MissingThroughputError if accelerator in self.accelerators else UnknownNameError
            raise error(*self._faults([(job, accelerator)]))
        return float(speed)

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return (N, K) steps/s of N jobs on K accelerators; 0 where a job cannot run or may not use the accelerator.

        Raises:
            MissingThroughputError: Throughputs are missing on accelerators that the jobs may use; the error has all of them.
        """
        speeds = self._speeds(jobs, accelerators)
        absent = np.isnan(speeds)
        needed = [(jobs[n], accelerators[k]) for n, k in np.argwhere(absent) if jobs[n].allows(accelerators[k])]
        MissingThroughputError.raise_any(self._faults(needed))
        speeds[absent] = 0.0
        return speeds

    def _speeds(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return (N, K) steps/s, NaN where missing."""
        # An unknown job or accelerator has index -1, an extra row and column that are all NaN.
        padded = np.pad(self.values, ((0, 1), (0, 1)), constant_values=np.nan)
        columns = {accelerator: column for column, accelerator in enumerate(self.accelerators)}
        rows = np.array([self._rows.get(job.job_id, -1) for job in jobs], dtype=np.intp)
        return padded[np.ix_(rows, np.array([columns.get(a, -1) for a in accelerators], dtype=np.intp))]

    def _faults(self, needed: Iterable[tuple[Job, str]]) -> list[Fault]:
        """Return one fault per cause, which names the first job concerned and the number of jobs."""
        causes: dict[tuple[str, str], dict[str, Job]] = {}
        for job, accelerator in needed:
            if accelerator not in self.accelerators:
                cause = ("accelerator", accelerator)
            else:
                cause = ("", accelerator) if job.job_id in self._rows else ("job_id", "")
            causes.setdefault(cause, {}).setdefault(job.job_id, job)
        faults = []
        for (field, accelerator), concerned_jobs in causes.items():
            where, first = self._where, next(iter(concerned_jobs.values()))
            concerned = counted(first, len(concerned_jobs))
            if field == "accelerator":
                problem = f"{accelerator!r} is missing, needed by {concerned}{nearest(accelerator, self.accelerators)}"
            elif field == "job_id":
                problem = f"has no row for {concerned}{nearest(first.job_id, self.job_ids)}"
            else:
                where = self._where if self._lines is None else self._lines[self._rows[first.job_id]]
                problem = f"has no throughput on {accelerator!r} for {concerned}; use 0 if it cannot run there"
            faults.append(Fault(where, field, problem))
        return faults

    @property
    def _where(self) -> str:
        return f"throughput matrix {self.name!r}"


def _name_faults(label: str, field: str, placed: Iterable[tuple[str, str]]) -> list[Fault]:
    rows = list(placed)
    faults = repeated(label, field, (row for row in rows if row[1]))
    return faults + [Fault(where, field, "is required") for where, name in rows if not name]


def _checked(
    cells: NDArray[np.object_], places: Sequence[str], accelerators: Sequence[str], where: str
) -> tuple[NDArray[np.float64], list[Fault]]:
    """Return the (N, K) numbers, NaN for missing cells, and a fault for each cell that is not a throughput."""
    values = np.full((len(places), len(accelerators)), np.nan)
    if cells.shape != values.shape and cells.size + values.size > 0:
        return values, [Fault(where, "", f"must be of shape (jobs, accelerators) = {values.shape}, found {cells.shape}")]
    faults = []
    for n, row in enumerate(cells.tolist()):
        for k, cell in enumerate(row):
            value = _number(cell)
            if value is None:
                problem = f"must be a finite number of steps/s of at least 0, or empty (None) if missing, found {cell!r}"
                faults.append(Fault(places[n], accelerators[k], problem + decimal_hint(cell)))
            else:
                values[n, k] = value
    return values, faults


def _cells(values: Any) -> NDArray[np.object_]:
    """Return the values as objects, with None for masked cells and, in a DataFrame, for absent values (NaN among them)."""
    cells = np.asarray(values, dtype=object)
    if isinstance(values, np.ma.MaskedArray):
        cells[np.ma.getmaskarray(values)] = None
    elif hasattr(values, "columns"):
        cells = np.array([None if is_absent(cell) else cell for cell in cells.flat], dtype=object).reshape(cells.shape)
    return cells


def _number(cell: object) -> float | None:
    """Return the throughput in a cell, NaN if the cell is empty, or None if it holds anything else."""
    if is_absent(cell) and not isinstance(cell, float):
        return math.nan
    value = number_of(cell)
    return value if 0 <= value < math.inf else None
