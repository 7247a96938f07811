"""The table of jobs: their requests and progress as columns, with a row for each job.

Problems, demands and accounts of N jobs are read from the columns by row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.job import GANG_KEY, NUMBERS, Job, requests_of, with_values

Objects = NDArray[np.object_]

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


Unit = tuple[str, str]
"""A workflow: its name and the tenant."""


class WorkflowNumbers:
    """Small integer ids for the workflows of jobs in the system; an id becomes free when the last job of its workflow has left.

    blocked_ticks: remaining work of the blocked jobs by workflow number; the last entry is 0, for number -1.
    """

    def __init__(self) -> None:
        self.blocked_ticks = np.zeros(8)
        self._numbers: dict[Unit, int] = {}
        self._members: list[int] = []
        self._free: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def enter(self, job: Job, blocked: float = 0.0) -> int:
        """Count a job, and return the number of its workflow, -1 for none. blocked: remaining ticks of work of a blocked job."""
        if not job.workflow:
            return -1
        unit = job.workflow, job.tenant
        number = self._numbers.get(unit, -1)
        if number < 0:
            number = self._free.pop() if self._free else len(self._members)
            self._numbers[unit] = number
            if number == len(self._members):
                self._members.append(0)
            if number + 1 == len(self.blocked_ticks):
                self.blocked_ticks = np.concatenate([self.blocked_ticks, np.zeros(number + 1)])
        self._members[number] += 1
        self.blocked_ticks[number] += blocked
        return number

    def leave(self, job: Job, blocked: float = 0.0) -> None:
        """Stop counting a job; blocked: the same value as when it was entered."""
        if not job.workflow:
            return
        unit = job.workflow, job.tenant
        number = self._numbers[unit]
        self._members[number] -= 1
        self.blocked_ticks[number] -= blocked
        if not self._members[number]:
            del self._numbers[unit]
            self.blocked_ticks[number] = 0.0
            self._free.append(number)


class GangNumbers:
    """Numbers of gangs, which are equal for jobs with an equal `GANG_KEY`.

    Attributes:
        is_by_type: Whether such jobs share a number; otherwise each job has its own.
        models: One job for each number.
    """

    def __init__(self, *, is_by_type: bool = True) -> None:
        self.is_by_type = is_by_type
        self.models: list[Job] = []
        self._numbers: dict[Any, int] = {}

    def of(self, jobs: Iterable[Job]) -> Indices:
        """Return (N,) the numbers of the gangs of these jobs; new gangs get a number."""
        # A profile of the user may distinguish jobs by any field, so each job then has its own gang number.
        keys = list(map(GANG_KEY if self.is_by_type else lambda job: (GANG_KEY(job), job.job_id), jobs))
        found = list(map(self._numbers.get, keys, repeat(-1)))
        if -1 in found:
            for job, key in zip(jobs, keys, strict=True):
                if key not in self._numbers:
                    self._numbers[key] = len(self.models)
                    self.models.append(job)
            found = [self._numbers[key] for key in keys]
        return np.array(found, dtype=np.int64)


class JobTable:
    """Jobs with a row each.

    Progress is a column; `Job.steps_done` is updated when a job is read. further: names of columns beside `NUMBERS`.

    Attributes:
        ids: (rows,) ids of the jobs.
        jobs: (rows,) the jobs; their `steps_done` may be older than the column of that name.
        gangs: (rows,) numbers of the gangs; gang_numbers: these numbers.
        tenant_of: (rows,) numbers of the tenants of the jobs, -1 for none; tenants: {tenant: its number}.
        workflow_of: (rows,) numbers of the workflows of the jobs, -1 for none; workflows: these numbers.
        is_present: (rows,) whether there is a job, which has not left.
        columns: {name: (rows,) numbers} of `NUMBERS` and the further columns.
        by_id: {job_id: row}, in the order in which the jobs were added.
        natural_order: The rows in natural order of the ids.
        order_of_ids: The rows sorted by the ids as text.
    """

    def __init__(self, further: Collection[str] = ()) -> None:
        self.ids: Objects = np.empty(0, dtype=object)
        self.jobs: Objects = np.empty(0, dtype=object)
        self.gangs: Indices = np.empty(0, dtype=np.int64)
        self.gang_numbers = GangNumbers()
        self.tenant_of: Indices = np.empty(0, dtype=np.int64)
        self.tenants: dict[str, int] = {}
        self.workflow_of: Indices = np.empty(0, dtype=np.int64)
        self.workflows = WorkflowNumbers()
        self.is_present: Mask = np.zeros(0, dtype=bool)
        self._values: Floats = np.zeros((len(NUMBERS) + len(further), 0))
        self.columns: dict[str, Floats] = dict(zip((*NUMBERS, *further), self._values, strict=True))
        self.by_id: dict[str, int] = {}
        self._free: list[int] = []
        self.natural_order, self.order_of_ids = SortedRows(natural_key), SortedRows(str)

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self.by_id

    @property
    def capacity(self) -> int:
        """Number of rows, including those without a job."""
        return len(self.ids)

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

    def requests_of(self, jobs: Sequence[Job]) -> dict[str, NDArray[Any]]:
        """Return the columns of `NUMBERS` and `gangs` for jobs that need not be in the table.

        If the steps or the deadline of a job depend on throughputs, `ProblemCache.complete` computes them.
        """
        return requests_of(jobs) | {"gangs": self.gang_numbers.of(jobs)}

    def requests_at(self, rows: Indices) -> dict[str, Floats]:
        """Return the columns of `NUMBERS` of these rows."""
        return dict(zip(NUMBERS, self._values[: len(NUMBERS), rows], strict=True))

    def add(self, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> list[int]:
        """Add jobs with new ids, and return their rows. requests: their `requests_of`."""
        if len(self._free) < len(jobs):
            self._grow(self.capacity - len(self._free) + len(jobs))
        ids, rows = [job.job_id for job in jobs], [self._free.pop() for _ in jobs]
        at = index_of(rows)
        self.ids[at] = np.fromiter(ids, dtype=object, count=len(ids))
        self._put(at, jobs, requests)
        self.is_present[at] = True
        self.workflow_of[at] = list(map(self.workflows.enter, jobs))
        self.by_id.update(zip(ids, rows, strict=True))
        self.natural_order.add(ids, rows)
        self.order_of_ids.add(ids, rows)
        return rows

    def replace(self, job: Job, requests: Mapping[str, NDArray[Any]]) -> int:
        """Replace a job by one with the same id, and return its row."""
        row = self.by_id[job.job_id]
        self.workflows.leave(self.jobs[row])
        self.workflow_of[row] = self.workflows.enter(job)
        self._put(index_of([row]), [job], requests)
        return row

    def leave(self, job_id: str) -> int:
        """Take a job out, and return its row, which keeps what is known of it."""
        row = self.by_id.pop(job_id)
        self.natural_order.discard(job_id, row)
        self.order_of_ids.discard(job_id, row)
        self.workflows.leave(self.jobs[row])
        self.workflow_of[row], self.is_present[row] = -1, False
        return row

    def _put(self, rows: slice | Indices, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> None:
        self.jobs[rows] = objects_of(jobs)
        self.gangs[rows] = requests["gangs"]
        numbers = self.tenants
        self.tenant_of[rows] = [numbers.setdefault(job.tenant, len(numbers)) if job.tenant else -1 for job in jobs]
        for name in NUMBERS:
            self.columns[name][rows] = requests[name]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, whose columns are views of its own tables."""
        vars(self).update(state)
        self._name_columns()

    def _name_columns(self) -> None:
        self.columns = dict(zip(self.columns, self._values, strict=True))

    def _grow(self, least: int) -> None:
        before = self.capacity
        more = max(least, 64, 2 * before) - before
        for name in ("ids", "jobs", "gangs", "tenant_of", "is_present"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.workflow_of = np.concatenate([self.workflow_of, np.full(more, -1, dtype=np.int64)])
        self._values = np.pad(self._values, ((0, 0), (0, more)))
        self._free = [*reversed(range(before, before + more)), *self._free]  # rows that were freed are used first
        self._name_columns()


def index_of(rows: list[int]) -> slice | Indices:
    """Return an index of rows; for a single row this is a slice, with which numpy is several times as fast."""
    return slice(rows[0], rows[0] + 1) if len(rows) == 1 else np.array(rows, dtype=np.int64)


def objects_of(jobs: Sequence[Job]) -> Objects:
    """Return (N,) jobs as an object array, without letting numpy probe each job for array attributes."""
    return np.fromiter(jobs, dtype=object, count=len(jobs))
