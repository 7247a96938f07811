"""The jobs of a scheduler: the job table with the history of each job, and how it has left."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, check_known, nearest, wrong_types
from gavel_py.io.names import natural_key
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import NUMBERS, Job
from gavel_py.problem.job_set import jobs_from_dict, jobs_to_dict
from gavel_py.problem.job_table import GangNumbers, JobTable, index_of


class Departure(StrEnum):
    """How a job left the system, as a predicate for messages."""

    COMPLETED = "was completed"
    CANCELLED = "was cancelled"
    FAILED = "failed for good"


DEPARTURES = tuple(Departure)

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


def is_tried_again(job: Job, failures: float) -> bool:
    """Return whether a job that has failed this often is tried again."""
    return failures <= job.max_retries


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


class ScheduledJobs(JobTable):
    """Jobs in the system, and the histories of all jobs that were submitted and not forgotten.

    A job keeps its row from its submission until it is forgotten, even after it has left the system.

    Attributes:
        departed: {job_id: row} of the jobs that have left and are not forgotten, in the order in which they left.
        changed: While tracked (`track`): rows of jobs that have arrived, changed or left since the reader last emptied it.
        progressed: (rows,) while tracked: the jobs in the system whose progress was reported since then.
        has_progress: Whether `progressed` contains any job.
    """

    def __init__(self) -> None:
        super().__init__(HISTORY_COLUMNS)
        self.departed: dict[str, int] = {}
        self.changed: set[int] = set()
        self.progressed: Mask = np.zeros(0, dtype=bool)
        self.has_progress = False
        self._is_tracked = False

    @property
    def saved_rows(self) -> Indices:
        """(N,) the rows in the order in which they are saved: the jobs in the system first, then those that have left."""
        return np.array([*self.by_id.values(), *self.departed.values()], dtype=np.int64)

    def row_of(self, job_id: str) -> int | None:
        """Return the row of a job in the system or with a history, None if there is none."""
        return self.by_id.get(job_id, self.departed.get(job_id))

    def known(self, job_id: str) -> int:
        """Return the row of a job in the system. Raises `UnknownNameError`, with how the job left if it has."""
        if (row := self.by_id.get(job_id)) is not None:
            return row
        row = self.departed.get(job_id)
        if row is None:
            text = f"there is no such job in the system{nearest(str(job_id), sorted(self.by_id))}"
        else:
            departure = DEPARTURES[int(self.columns["left"].item(row))]
            why = f", after {self._failures(row)}" if departure is Departure.FAILED else ""
            text = f"is no longer in the system: it {departure}{why}; nothing has changed"
        raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))

    # Changes

    def check_new(self, jobs: Sequence[Job], blocked: Container[str]) -> None:
        """Raise `InputError` unless these are jobs with new ids; blocked: the ids of those that wait for others."""
        InputError.raise_any(wrong_types("round scheduler", "", jobs, Job, "submit needs a Job"))
        used = [job_id for job_id in (job.job_id for job in jobs) if self.row_of(job_id) is not None or job_id in blocked]
        text = "was submitted before; a job id can be used only once"
        InputError.raise_any([Fault(f"job {job_id!r}", "job_id", text) for job_id in used])

    def number_gangs(self, *, by_type: bool) -> None:
        """Number the gangs of all jobs; by_type: whether the profile treats jobs with an equal `GANG_KEY` alike."""
        self.gang_numbers, rows = GangNumbers(is_by_type=by_type), self.saved_rows
        self.gangs[rows] = self.gang_numbers.of(self.jobs[rows].tolist())

    def add(self, jobs: Sequence[Job], requests: Mapping[str, NDArray[Any]]) -> list[int]:
        """Add jobs that `check_new` accepts, and return their rows. requests: their `requests_of`."""
        rows = super().add(jobs, requests)
        at = index_of(rows)
        self._values[len(NUMBERS) :, at] = NEW_HISTORY[:, None]
        self.columns["steps_at_start"][at] = self.columns["steps_counted"][at] = requests["steps_done"]
        self.columns["waiting_since_seconds"][at] = requests["arrival_seconds"]
        if self._is_tracked:
            self.changed.update(rows)
        return rows

    def replace(self, job: Job, requests: Mapping[str, NDArray[Any]]) -> int:
        """Replace a job in the system by one with the same id, and return its row."""
        row = super().replace(job, requests)
        if self._is_tracked:
            self.changed.add(row)
        return row

    def _grow(self, least: int) -> None:
        super()._grow(least)
        self.progressed = np.concatenate([self.progressed, np.zeros(self.capacity - len(self.progressed), dtype=bool)])

    def report(self, job_ids: Collection[str], steps_done: Floats) -> None:
        """Store (N,) the progress of jobs. Raises `UnknownNameError` if one is not in the system; then nothing is stored."""
        rows = np.fromiter(map(self.by_id.get, job_ids, repeat(-1)), dtype=np.int64, count=len(job_ids))
        if (rows < 0).any():
            for job_id in job_ids:
                self.known(job_id)
        self.columns["steps_done"][rows] = steps_done
        if self._is_tracked:
            self.progressed[rows] = self.has_progress = True

    def remove(self, job_id: str, how: Departure) -> int:
        """Remove a job from the system and return its row. Raises `UnknownNameError`."""
        self.known(job_id)
        self.departed[job_id] = row = self.leave(job_id)
        if self._is_tracked:
            self.changed.add(row)
            self.progressed[row] = False
        self.columns["left"][row] = DEPARTURES.index(how)
        return row

    def fail(self, job_id: str) -> bool:
        """Count a failure and return whether the job may be tried again; otherwise remove it. Raises `UnknownNameError`."""
        row = self.known(job_id)
        self.columns["failures"][row] += 1
        if is_tried_again(self.jobs[row], self.columns["failures"].item(row)):
            return True
        self.remove(job_id, Departure.FAILED)
        return False

    @property
    def failed(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that failed more often than `max_retries`."""
        code, left = DEPARTURES.index(Departure.FAILED), self.columns["left"]
        failed = sorted((job_id for job_id, row in self.departed.items() if left.item(row) == code), key=natural_key)
        return {job_id: self.why_failed(job_id) for job_id in failed}

    def why_failed(self, job_id: str) -> str:
        """Return why a job may not be tried again."""
        return f"left after {self._failures(self.departed[job_id])}, and may not be tried again"

    def _failures(self, row: int) -> str:
        count = int(self.columns["failures"].item(row))
        return "1 failure" if count == 1 else f"{count} failures"

    def check_gone(self, job_ids: Sequence[str], blocked: Container[str], is_in_decision: Mask) -> None:
        """Raise `InputError` unless these jobs have left; is_in_decision: (rows,) the jobs of the latest decision."""
        here = [job_id for job_id in job_ids if job_id in self.by_id or job_id in blocked]
        text = "is still in the system; complete or cancel it first"
        InputError.raise_any([Fault(f"job {job_id!r}", "job_id", text) for job_id in here])
        check_known("round scheduler", "job_id", job_ids, self.departed, "was never in the system")
        decided = [job_id for job_id in job_ids if is_in_decision[self.departed[job_id]]]
        text = "has left since the last round was decided; it can be forgotten after the next one"
        InputError.raise_any([Fault(f"job {job_id!r}", "job_id", text) for job_id in decided])

    def forget(self, job_ids: Collection[str]) -> list[int]:
        """Drop the rows of jobs that have left, and return them."""
        rows = [self.departed.pop(job_id) for job_id in job_ids]
        self.ids[rows] = self.jobs[rows] = None
        self._free += rows
        return rows

    def track(self, *, on: bool = True) -> None:
        """Start (or stop) filling `changed`, with all jobs at first, and `progressed`."""
        self._is_tracked = on
        self.changed, self.has_progress = set(self.by_id.values()) if on else set(), False
        self.progressed[:] = False

    # Saving

    def to_dict(self) -> dict[str, Any]:
        """Return jobs and histories as plain data: the jobs in the system first, then those that have left."""
        rows = self.saved_rows
        return {
            "jobs": jobs_to_dict(self.jobs_at(rows)),
            "present": len(self.by_id),
            "histories": {
                name: [None if value != value else value for value in self.columns[name][rows].tolist()] for name in HISTORY_COLUMNS
            },
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ScheduledJobs:
        """Restore a table from `to_dict`."""
        table = cls()
        jobs = jobs_from_dict(document["jobs"])
        table.add(jobs, table.requests_of(jobs))
        rows = np.arange(len(jobs))
        for name in HISTORY_COLUMNS:
            table.columns[name][rows] = np.array(document["histories"][name], dtype=float)
        for job, left in zip(jobs, table.columns["left"][rows].tolist(), strict=True):
            if left >= 0:
                table.remove(job.job_id, DEPARTURES[int(left)])
        if len(table) != document["present"]:
            raise ValueError("jobs and histories do not match")
        return table


def on_groups(job: Job, before: Cluster, after: Cluster) -> Job:
    """Return the job allowed on all groups in the new cluster of the types on which it could run before."""
    if job.allowed_accelerators is None:
        return job
    kinds = {kind for name, kind in zip(before.accelerator_names, before.profile_names, strict=True) if job.allows(name)}
    return job.allowing(name for name, kind in zip(after.accelerator_names, after.profile_names, strict=True) if kind in kinds)
