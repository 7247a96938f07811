"""The job table: requests, progress and history of all jobs as columns, with a row for each job.

A job keeps its row from its submission until it is forgotten, even after it has left the system. Problems, demands and accounts of
N jobs are read from the columns by row. `waiting` keeps the jobs that may not start yet, outside the table or after a failure, and
`workflow_units` the data of workflows that policies read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import compress, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.names import natural_key
from gavel_py.io.records import PlainName
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Job, with_values
from gavel_py.scheduling.jobs.workflow_units import WorkflowNumbers

GANG_FIELDS = (
    "num_gpus",
    "job_type",
    "locality",
    "even_split",
    "gpus_per_node",
    "allowed_accelerators",
    "cpus_per_gpu",
    "memory_gb_per_gpu",
    "gpu_memory_gb",
    "gpu_counts",
    "min_gpus",
    "max_gpus",
)
"""Fields of a job that determine where its gang may run and, with a profile by job type, how fast."""

GANG_KEY = attrgetter(*GANG_FIELDS)

ELASTIC_FIELDS = frozenset({"num_gpus", "gpu_counts", "min_gpus", "max_gpus"})
"""Fields that exclude or determine each other."""

Objects = NDArray[np.object_]

if TYPE_CHECKING:
    from gavel_py.scheduling.problem_cache import ProblemCache


class Departure(StrEnum):
    """How a job left the system, as a predicate for messages."""

    COMPLETED = "was completed"
    CANCELLED = "was cancelled"
    FAILED = "failed for good"


DEPARTURES = tuple(Departure)

REQUEST_COLUMNS = {
    "num_gpus": np.nan,
    "weight": np.nan,
    "priority": np.nan,
    "arrival_seconds": np.nan,
    "total_steps": np.nan,
    "deadline_seconds": np.nan,
    "restart_seconds": np.nan,
    "steps_done": 0.0,
}
"""Numeric columns with the `Job` fields of these names; NaN for none. If `total_steps` or `deadline_seconds` depends on
throughputs, `ProblemCache.complete` computes it."""

READ_REQUESTS = attrgetter(*REQUEST_COLUMNS)

HISTORY_COLUMNS = {
    "waiting_since_seconds": 0.0,  # end of the last round that the job ran, or its arrival
    "steps_at_start": 0.0,  # steps done when it was submitted
    "steps_counted": 0.0,  # steps up to which `isolated_seconds` counts
    "isolated_seconds": 0.0,  # Σ steps / isolated throughput at that time: the time its progress would have taken alone
    "attained_gpu_seconds": 0.0,  # GPU-seconds of the rounds that it ran
    "running_since_seconds": np.nan,  # start of its current uninterrupted run, NaN while it does not run
    "has_run": 0,  # 1 if it has ever held GPUs
    "failures": 0,  # how many times it failed
    "starts": 0,  # how often it has been given GPUs that differ from its previous ones
    "kept_until_seconds": np.nan,  # time before which it is not preempted (`keep_running`), NaN for none
    "left": -1,  # how it left, as an index into `DEPARTURES`; -1 while it is in the system
}
"""Columns of the history of jobs, with their first values. Saved files contain them by name."""

NEW_HISTORY = np.array(list(HISTORY_COLUMNS.values()), dtype=float)

# Fields that `update` refuses to change, and why.
FIXED = {
    "job_id": "identifies the job; submit another job instead",
    "arrival_seconds": "has happened",
    "steps_done": "is set by `report`",
    "depends_on": "is settled when the job is submitted",
    "workflow": "is settled when the job is submitted",
}


STILL_HERE = "is still in the system; complete or cancel it first"

FEW_CHANGES = 8
"""Up to this many jobs are inserted or removed one by one; more are merged with all others."""


class SortedRows:
    """Rows of jobs in the order of a key of their ids, sorted when they are read, since few jobs arrive or leave between reads."""

    def __init__(self, key: Callable[[str], Any]) -> None:
        self._key = key
        self._keys: list[Any] = []
        self._rows: Indices = np.zeros(0, dtype=np.int64)
        self._new: dict[int, str] = {}
        self._gone: dict[int, str] = {}

    def add(self, ids: Iterable[str], rows: Sequence[int]) -> None:
        """Add jobs."""
        if not self._gone.keys().isdisjoint(rows):
            self._apply()  # rows are reused
        self._new.update(zip(rows, ids, strict=True))

    def discard(self, job_id: str, row: int) -> None:
        """Remove a job."""
        if self._new.pop(row, None) is None:
            self._gone[row] = job_id

    @property
    def rows(self) -> Indices:
        """(N,) the rows in order."""
        if self._new or self._gone:
            self._apply()
        return self._rows

    def _apply(self) -> None:
        if len(self._new) + len(self._gone) <= FEW_CHANGES:
            for key in map(self._key, self._gone.values()):
                place = bisect_left(self._keys, key)
                del self._keys[place]
                self._rows = np.concatenate([self._rows[:place], self._rows[place + 1 :]])
            for row, job_id in self._new.items():
                key = self._key(job_id)
                place = bisect_left(self._keys, key)
                self._keys.insert(place, key)
                self._rows = np.concatenate([self._rows[:place], [row], self._rows[place:]])
        else:
            left = ~np.isin(self._rows, list(self._gone))
            self._keys = list(compress(self._keys, left.tolist()))
            added = sorted(zip(map(self._key, self._new.values()), self._new, strict=True))
            places = [bisect_left(self._keys, key) for key, _ in added]
            self._rows = np.insert(self._rows[left], places, [row for _, row in added])
            self._keys += [key for key, _ in added]
            self._keys.sort()  # merges two sorted runs
        self._new, self._gone = {}, {}


class ReportedSteps(Mapping[str, float]):
    """{job_id: steps done} of many jobs, as (N,) ids and (N,) numbers, which are read without a loop over the jobs."""

    def __init__(self, ids: Sequence[str], steps: Floats) -> None:
        self._ids, self.steps = ids, steps

    def __getitem__(self, job_id: str) -> float:
        if job_id not in self._ids:
            raise KeyError(job_id)
        return self.steps.item(self._ids.index(job_id))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


class JobTable:
    """Jobs in the system, and the histories of all jobs that were submitted and not forgotten.

    Progress is a column; `Job.steps_done` is updated when a job is read.

    Attributes:
        ids: (rows,) ids of the jobs.
        jobs: (rows,) the jobs; their `steps_done` may be older than the column of that name.
        gangs: (rows,) numbers of the gangs: equal for jobs with equal `GANG_FIELDS`.
        tenant_of: (rows,) numbers of the tenants of the jobs, -1 for none; tenants: {tenant: its number}.
        workflow_of: (rows,) numbers of the workflows of the jobs in the system, -1 for none; workflows: these numbers.
        columns: Further columns: `REQUEST_COLUMNS` and `HISTORY_COLUMNS`.
        models: One job for each number of `gangs`.
        changed: While tracked (`track`): rows of jobs that have arrived, changed or left since the reader last emptied it.
        progressed: (rows,) while tracked: the jobs in the system whose progress was reported since then.
        has_progress: Whether `progressed` contains any job.
    """

    def __init__(self) -> None:
        self.ids: Objects = np.empty(0, dtype=object)
        self.jobs: Objects = np.empty(0, dtype=object)
        self.gangs: Indices = np.empty(0, dtype=np.int64)
        self.tenant_of: Indices = np.empty(0, dtype=np.int64)
        self.tenants: dict[str, int] = {}
        self.workflow_of: Indices = np.empty(0, dtype=np.int64)
        self.workflows = WorkflowNumbers()
        self._requests: Floats = np.zeros((len(REQUEST_COLUMNS), 0))
        self._history: Floats = np.zeros((len(HISTORY_COLUMNS), 0))
        self.columns: dict[str, Floats] = {}
        self._name_columns()
        self.models: list[Job] = []
        self._numbers: dict[Any, int] = {}
        self._by_type = True
        self._present: dict[str, int] = {}
        self._departed: dict[str, int] = {}
        self._free: list[int] = []
        self._count = 0
        self._natural, self._alphabetical = SortedRows(natural_key), SortedRows(str)
        self.changed: set[int] = set()
        self.progressed: Mask = np.zeros(0, dtype=bool)
        self.has_progress = False
        self._is_tracked = False

    def __len__(self) -> int:
        return len(self._present)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._present

    @property
    def is_by_type(self) -> bool:
        """Whether jobs with equal `GANG_FIELDS` share one gang number; otherwise each job has its own."""
        return self._by_type

    @property
    def saved_rows(self) -> Indices:
        """(N,) the rows in the order in which they are saved: the jobs in the system first, then those that have left."""
        return np.array([*self._present.values(), *self._departed.values()], dtype=np.int64)

    def in_order(self, job_ids: Iterable[str]) -> list[str]:
        """Return ids in natural order."""
        return sorted(job_ids, key=natural_key)

    @property
    def capacity(self) -> int:
        """Number of rows, including those without a job."""
        return len(self.ids)

    @property
    def by_id(self) -> Mapping[str, int]:
        """{job_id: row} of the jobs in the system, in the order of their submission; callers must not change it."""
        return self._present

    @property
    def in_natural_order(self) -> Indices:
        """(N,) rows of the jobs in the system, in natural order of their ids."""
        return self._natural.rows

    @property
    def in_order_of_ids(self) -> Indices:
        """(N,) rows of the jobs in the system, sorted by their ids as text."""
        return self._alphabetical.rows

    @property
    def is_present(self) -> Mask:
        """(rows,) the jobs in the system."""
        present: Mask = self.columns["left"] < 0
        return present

    def row_of(self, job_id: str) -> int | None:
        """Return the row of a job in the system or with a history, None if there is none."""
        return self._present.get(job_id, self._departed.get(job_id))

    def known(self, job_id: str) -> int:
        """Return the row of a job in the system. Raises `UnknownNameError`, with how the job left if it has."""
        row = self._present.get(job_id)
        if row is not None:
            return row
        row = self._departed.get(job_id)
        if row is None:
            text = f"there is no such job in the system{nearest(str(job_id), sorted(self._present))}"
        else:
            departure = DEPARTURES[int(self.columns["left"].item(row))]
            failures = _failures(int(self.columns["failures"].item(row)))
            why = f", after {failures}" if departure is Departure.FAILED else ""
            text = f"is no longer in the system: it {departure}{why}; nothing has changed"
        raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))

    def job(self, row: int) -> Job:
        """Return the job of a row with the progress last reported."""
        job: Job = self.jobs[row]
        steps = self.columns["steps_done"].item(row)
        if job.steps_done != steps:
            self.jobs[row] = job = with_values(job, {"steps_done": steps})
        return job

    def jobs_at(self, rows: Indices) -> list[Job]:
        """Return the jobs of these rows with the progress last reported."""
        jobs, steps = self.jobs[rows].tolist(), self.columns["steps_done"][rows].tolist()
        return [job if job.steps_done == done else self.job(row) for row, job, done in zip(rows.tolist(), jobs, steps, strict=True)]

    # Changes

    def check_new(self, job: Job) -> None:
        """Raise `InputError` unless this is a job with a new id."""
        if not isinstance(job, Job):
            raise InputError(Fault("round scheduler", "", f"submit needs a Job, found {job!r}"))
        if job.job_id in self._present or job.job_id in self._departed:
            raise InputError(Fault(f"job {job.job_id!r}", "job_id", "was submitted before; a job id can be used only once"))

    def gangs_of(self, jobs: Iterable[Job]) -> Indices:
        """Return (N,) the numbers of the gangs of these jobs; new gangs get a number."""
        # A profile of the user may distinguish jobs by any field, so each job then has its own gang number.
        keys = list(map(GANG_KEY if self._by_type else _own_key, jobs))
        found = list(map(self._numbers.get, keys, repeat(-1)))
        if -1 in found:
            for job, key in zip(jobs, keys, strict=True):
                if key not in self._numbers:
                    self._numbers[key] = len(self.models)
                    self.models.append(job)
            found = [self._numbers[key] for key in keys]
        return np.array(found, dtype=np.int64)

    def number_gangs(self, *, by_type: bool) -> None:
        """Number the gangs of all jobs; by_type: whether the profile treats jobs with equal `GANG_FIELDS` alike."""
        self.models, self._numbers, self._by_type = [], {}, by_type
        rows = [*self._present.values(), *self._departed.values()]
        self.gangs[rows] = self.gangs_of(self.jobs[rows].tolist())

    def add(self, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> None:
        """Add jobs that `check_new` accepts; requests: their `requests_of`."""
        if self.capacity - self._count + len(self._free) < len(jobs):
            self._grow(self._count - len(self._free) + len(jobs))
        reused = [self._free.pop() for _ in range(min(len(self._free), len(jobs)))]
        new = len(jobs) - len(reused)
        rows = [*reused, *range(self._count, self._count + new)]
        self._count += new
        ids = [job.job_id for job in jobs]
        at = _index(rows)
        self.ids[at] = np.fromiter(ids, dtype=object, count=len(ids))
        self._put(at, jobs, requests)
        self.workflow_of[at] = list(map(self.workflows.enter, jobs))
        self._history[:, at] = NEW_HISTORY[:, None]
        steps = requests["steps_done"]
        self.columns["steps_at_start"][at] = self.columns["steps_counted"][at] = steps
        self.columns["waiting_since_seconds"][at] = requests["arrival_seconds"]
        self._present.update(zip(ids, rows, strict=True))
        self._natural.add(ids, rows)
        self._alphabetical.add(ids, rows)
        if self._is_tracked:
            self.changed.update(rows)

    def update_requests(self, cache: ProblemCache) -> None:
        """Recompute the requests of the jobs in the system that depend on throughputs."""
        rows = [row for row in self._present.values() if cache.depends_on_throughputs(self.jobs[row])]
        jobs = self.jobs[rows].tolist()
        requests = self.requests_of(jobs)
        cache.complete(jobs, requests)
        for name in ("total_steps", "deadline_seconds"):
            self.columns[name][rows] = requests[name]

    def regroup(self, before: Cluster, after: Cluster) -> None:
        """Restrict all jobs to the new groups of their accelerator types (`on_groups`)."""
        rows = self.saved_rows
        self.jobs[rows] = objects_of([on_groups(job, before, after) for job in self.jobs[rows].tolist()])
        self.number_gangs(by_type=self._by_type)

    def replace(self, job: Job, requests: Mapping[str, NDArray[Any]]) -> None:
        """Replace a job in the system by one with the same id."""
        row = self._present[job.job_id]
        self.workflows.leave(self.jobs[row])
        self.workflow_of[row] = self.workflows.enter(job)
        self._put(_index([row]), [job], requests)
        if self._is_tracked:
            self.changed.add(row)

    def _put(self, rows: slice | Indices, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> None:
        self.jobs[rows] = objects_of(jobs)
        self.gangs[rows] = requests["gangs"]
        numbers = self.tenants
        self.tenant_of[rows] = [numbers.setdefault(job.tenant, len(numbers)) if job.tenant else -1 for job in jobs]
        for name in REQUEST_COLUMNS:
            self.columns[name][rows] = requests[name]

    def requests_at(self, rows: Indices) -> dict[str, Floats]:
        """Return the columns of `REQUEST_COLUMNS` of these rows."""
        return dict(zip(REQUEST_COLUMNS, self._requests[:, rows], strict=True))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, whose columns are views of its own tables."""
        vars(self).update(state)
        self._name_columns()

    def _name_columns(self) -> None:
        self.columns = dict(zip((*REQUEST_COLUMNS, *HISTORY_COLUMNS), (*self._requests, *self._history), strict=True))

    def _grow(self, least: int) -> None:
        more = max(least, 64, 2 * self.capacity) - self.capacity
        for name in ("ids", "jobs", "gangs", "tenant_of", "progressed"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.workflow_of = np.concatenate([self.workflow_of, np.full(more, -1, dtype=np.int64)])
        # In rows without a job, `left` is 0, as for jobs that have left.
        self._requests, self._history = (np.pad(each, ((0, 0), (0, more))) for each in (self._requests, self._history))
        self._name_columns()

    def report(self, job_ids: Collection[str], steps_done: Floats) -> None:
        """Store (N,) the progress of jobs. Raises `UnknownNameError` if one is not in the system; then nothing is stored."""
        rows = np.fromiter(map(self._present.get, job_ids, repeat(-1)), dtype=np.int64, count=len(job_ids))
        if (rows < 0).any():
            for job_id in job_ids:
                self.known(job_id)
        self.columns["steps_done"][rows] = steps_done
        if self._is_tracked:
            self.progressed[rows] = self.has_progress = True

    def remove(self, job_id: str, how: Departure) -> int:
        """Remove a job from the system and return its row. Raises `UnknownNameError`."""
        row = self.known(job_id)
        del self._present[job_id]
        self._departed[job_id] = row
        self._natural.discard(job_id, row)
        self._alphabetical.discard(job_id, row)
        if self._is_tracked:
            self.changed.add(row)
            self.progressed[row] = False
        self.columns["left"][row] = DEPARTURES.index(how)
        self.workflows.leave(self.jobs[row])
        self.workflow_of[row] = -1
        return row

    def fail(self, job_id: str) -> bool:
        """Count a failure and return whether the job may be tried again; otherwise remove it. Raises `UnknownNameError`."""
        row = self.known(job_id)
        self.columns["failures"][row] += 1
        if self.columns["failures"].item(row) <= self.jobs[row].max_retries:
            return True
        self.remove(job_id, Departure.FAILED)
        return False

    @property
    def failed(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that failed more often than `max_retries`."""
        code, left = DEPARTURES.index(Departure.FAILED), self.columns["left"]
        failed = sorted((job_id for job_id, row in self._departed.items() if left.item(row) == code), key=natural_key)
        return {job_id: self.why_failed(job_id) for job_id in failed}

    def why_failed(self, job_id: str) -> str:
        """Return why a job may not be tried again."""
        failures = self.columns["failures"].item(self._departed[job_id])
        return f"left after {_failures(int(failures))}, and may not be tried again"

    def check_gone(self, job_ids: Iterable[str], is_in_decision: Mask) -> None:
        """Raise `InputError` unless these jobs have left; is_in_decision: (rows,) the jobs of the latest decision."""
        for job_id in job_ids:
            if job_id in self._present:
                raise InputError(Fault(f"job {job_id!r}", "job_id", STILL_HERE))
            if job_id not in self._departed:
                text = f"there was no such job{nearest(str(job_id), sorted([*self._present, *self._departed]))}"
                raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
            if is_in_decision[self._departed[job_id]]:
                text = "has left since the last round was decided; it can be forgotten after the next one"
                raise InputError(Fault(f"job {job_id!r}", "job_id", text))

    def forget(self, job_ids: Collection[str]) -> list[int]:
        """Drop the rows of jobs that have left, and return them."""
        rows = [self._departed.pop(job_id) for job_id in job_ids]
        self.ids[rows] = self.jobs[rows] = None
        self._free += rows
        return rows

    def track(self, *, on: bool = True) -> None:
        """Start (or stop) filling `changed`, with all jobs at first, and `progressed`."""
        self._is_tracked = on
        self.changed, self.has_progress = set(self._present.values()) if on else set(), False
        self.progressed[:] = False

    # Saving

    def to_dict(self) -> dict[str, Any]:
        """Return jobs and histories as plain data: the jobs in the system first, then those that have left."""
        rows = self.saved_rows
        return {
            "jobs": jobs_to_dict(self.jobs_at(rows)),
            "present": len(self._present),
            "histories": {name: _plain(self.columns[name][rows]) for name in HISTORY_COLUMNS},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobTable:
        """Restore a table from `to_dict`."""
        table = cls()
        jobs = jobs_from_dict(document["jobs"])
        table.add(jobs, table.requests_of(jobs))
        rows = np.arange(len(jobs))
        for name, column in table.columns.items():
            if name in HISTORY_COLUMNS:
                # Earlier versions did not count starts, and kept no job.
                missing = document["histories"]["has_run"] if name == "starts" else [HISTORY_COLUMNS[name]] * len(jobs)
                column[rows] = np.array(document["histories"].get(name, missing), dtype=float)
        for job, left in zip(jobs, table.columns["left"][rows].tolist(), strict=True):
            if left >= 0:
                table.remove(job.job_id, DEPARTURES[int(left)])
        if len(table) != document["present"]:
            raise ValueError("jobs and histories do not match")
        return table

    def requests_of(self, jobs: Sequence[Job]) -> dict[str, NDArray[Any]]:
        """Return the columns of `REQUEST_COLUMNS` and `gangs` for jobs that need not be in the table."""
        values = np.array(list(map(READ_REQUESTS, jobs)), dtype=float).reshape(len(jobs), len(REQUEST_COLUMNS))
        # Each column is contiguous in memory, since policies and the cache read one column at a time.
        return dict(zip(REQUEST_COLUMNS, np.ascontiguousarray(values.T), strict=True)) | {"gangs": self.gangs_of(jobs)}


def changed_job(job: Job, fields: dict[str, object]) -> Job:
    """Return the job with these fields changed, validated like a new job. Raises `InputError`."""
    place = f"job {job.job_id!r}"
    InputError.raise_any([Fault(place, name, f"cannot be changed: it {why}") for name, why in FIXED.items() if name in fields])
    kept = job.model_dump()
    if not ELASTIC_FIELDS.isdisjoint(fields):  # one kind of them replaces the others, but a bound keeps the other bound
        is_range = not fields.keys() & {"num_gpus", "gpu_counts"} and fields.get("max_gpus", job.max_gpus) is not None
        replaced = ELASTIC_FIELDS - {"min_gpus", "max_gpus"} if is_range else ELASTIC_FIELDS
        kept = {name: value for name, value in kept.items() if name not in replaced}
    return Job(**kept | fields)


def on_groups(job: Job, before: Cluster, after: Cluster) -> Job:
    """Return the job allowed on all groups in the new cluster of the types on which it could run before."""
    if job.allowed_accelerators is None:
        return job
    kinds = {
        kind for name, kind in zip(before.accelerator_names, before.profile_names, strict=True) if name in job.allowed_accelerators
    }
    allowed = (name for name, kind in zip(after.accelerator_names, after.profile_names, strict=True) if kind in kinds)
    return job.model_copy(update={"allowed_accelerators": tuple(allowed)})


def _own_key(job: Job) -> tuple[object, ...]:
    return GANG_KEY(job), job.job_id


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures"


def _index(rows: list[int]) -> slice | Indices:
    """Return an index of rows; for a single row this is a slice, with which numpy is several times as fast."""
    return slice(rows[0], rows[0] + 1) if len(rows) == 1 else np.array(rows, dtype=np.int64)


def objects_of(jobs: Sequence[Job]) -> Objects:
    """Return (N,) jobs as an object array, without letting numpy probe each job for array attributes."""
    return np.fromiter(jobs, dtype=object, count=len(jobs))


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
    waits = fields.get("depends_on") or repeat((), len(fields["job_id"]))
    jobs, checked = [], dict[tuple[Any, ...], Job]()
    for row, own_row, depends_on in zip(rows, zip(*columns.values(), strict=True), waits, strict=True):
        own = dict(zip(columns, own_row, strict=True))
        # Jobs that wait for others are checked one by one, since none may wait for itself.
        key = own.get("total_steps") is None, bool(depends_on) and own["job_id"], row
        alike = checked.get(key)
        if alike is None:
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


def _plain(column: NDArray[Any]) -> list[Any]:
    """Return a column as plain data, with None for NaN."""
    return [None if value != value else value for value in column.tolist()]
