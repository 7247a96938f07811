"""Workflows as policies see them: numbers of workflows in the job table, and the work of jobs that are blocked.

Blocked jobs have no row in the job table. What they have left counts for the jobs of their workflow that are ready, and along the
paths on which jobs wait for each other. It is looked up when a policy first needs it, and kept while jobs come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.problem.workflows import TICKS, Ahead, Outlook, look_ahead, ticks

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices
    from gavel_py.problem.job import Job
    from gavel_py.scheduling.dependencies import BlockedJobs
    from gavel_py.scheduling.jobs import JobTable
    from gavel_py.scheduling.problem_cache import ProblemCache

Unit = tuple[str, str]
"""A workflow: its name and the tenant."""


class WorkflowNumbers:
    """Small numbers for the workflows of jobs in a table; a number is free again when the last of its jobs has left."""

    def __init__(self) -> None:
        self._numbers: dict[Unit, int] = {}
        self._members: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """One more than the largest number."""
        return len(self._members)

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def enter(self, job: Job) -> int:
        """Count a job, and return the number of its workflow, -1 for none."""
        if not job.workflow:
            return -1
        unit = job.workflow, job.tenant
        number = self._numbers.get(unit, -1)
        if number < 0:
            number = self._free.pop() if self._free else len(self._members)
            self._numbers[unit] = number
            if number == len(self._members):
                self._members.append(0)
        self._members[number] += 1
        return number

    def leave(self, job: Job) -> None:
        """Count a job no longer."""
        if not job.workflow:
            return
        unit = job.workflow, job.tenant
        number = self._numbers[unit]
        self._members[number] -= 1
        if not self._members[number]:
            del self._numbers[unit]
            self._free.append(number)

    def by_number(self, values: Mapping[Unit, float]) -> Floats:
        """Return the values of workflows by their numbers, and a last 0 for -1."""
        found = np.zeros(len(self) + 1)
        for unit, value in values.items():
            number = self._numbers.get(unit)
            if number is not None:
                found[number] = value
        return found


class BlockedWork:
    """What blocked jobs have left: in all by workflow (`ticks`), and ahead of the jobs for which they wait (`ahead_of`).

    Jobs that wait for a failure are not expected to run, and are not entered.
    """

    def __init__(self) -> None:
        self.ticks: dict[Unit, float] = {}
        self._work: dict[str, tuple[float, float]] = {}  # {job_id: seconds, deadline}
        self._new: dict[str, Job] = {}  # those of which these are not known yet
        self._jobs: dict[str, Job] = {}
        self._ahead: dict[str, Ahead] = {}
        self._cache: ProblemCache | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy, which looks all work up anew."""
        return vars(self) | {"_cache": None}

    def enter(self, job: Job, waits: Mapping[str, Mapping[str, object]]) -> None:
        """Count a job; waits: {job_id: the jobs that it waits for}."""
        self._jobs[job.job_id] = self._new[job.job_id] = job
        self._forget(waits[job.job_id], waits)

    def leave(self, job_id: str, parents: Iterable[str], waits: Mapping[str, Mapping[str, object]]) -> None:
        """Count a job no longer; parents: the jobs that it still waited for."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._forget(parents, waits)
        work = self._work.pop(job_id, None)
        if self._new.pop(job_id, None) is None and work is not None and job.workflow:
            unit, left = (job.workflow, job.tenant), round(work[0] * TICKS)
            others = self.ticks.pop(unit, 0.0) - left
            if others > 0:
                self.ticks[unit] = others

    def end(self, job_id: str) -> None:
        """Record that a job that was ready has left."""
        self._ahead.pop(job_id, None)

    def _forget(self, names: Iterable[str], waits: Mapping[str, Mapping[str, object]]) -> None:
        """Forget what is ahead of jobs, and of all those that they wait for."""
        stack = list(names)
        while stack:
            name = stack.pop()
            if self._ahead.pop(name, None) is not None:
                stack += waits.get(name, ())

    def look_up(self, cache: ProblemCache, table: JobTable) -> None:
        """Look up the work of jobs of which it is not known, or known from another profile only."""
        if cache is not self._cache:
            self._cache, self._new = cache, dict(self._jobs)
            self._work, self.ticks, self._ahead = {}, {}, {}
        if not self._new:
            return
        jobs = [job.model_copy(update={"depends_on": ()}) for job in self._new.values()]
        requests = table.requests_of(jobs)
        cache.complete(jobs, requests)
        seconds = cache.seconds_left(requests["gangs"], requests["total_steps"] - requests["steps_done"])
        deadlines = np.nan_to_num(requests["deadline_seconds"], nan=np.inf)
        for job, left, each, deadline in zip(jobs, ticks(seconds).tolist(), seconds.tolist(), deadlines.tolist(), strict=True):
            self._work[job.job_id] = each, deadline
            if job.workflow and left:
                unit = job.workflow, job.tenant
                self.ticks[unit] = self.ticks.get(unit, 0.0) + left
        self._new = {}

    def ahead_of(self, names: Sequence[str], children: Mapping[str, Sequence[str]]) -> list[Ahead]:
        """Return what is ahead of jobs; children: {job_id: those that wait for it}."""
        look_ahead(names, lambda name: children.get(name, ()), self._work, self._ahead)
        return [self._ahead[name] for name in names]


def outlook_of(table: JobTable, blocked: BlockedJobs, rows: Indices, cache: ProblemCache) -> Outlook | None:
    """Return what is known of the workflows of jobs in these rows of the table; None if they have none and no job is blocked."""
    if not table.workflows and not blocked:
        return None
    units, blocked_ticks = units_of(table, blocked, rows, cache)
    paths, ends = np.zeros(len(rows)), np.full(len(rows), np.nan)
    if blocked:
        children = blocked.children
        names = table.ids[rows].tolist()
        places = [place for place, name in enumerate(names) if name in children]
        found = np.array(blocked.work.ahead_of([names[place] for place in places], children)).reshape(-1, 2)
        paths[places], ends[places] = found[:, 0], np.where(np.isinf(found[:, 1]), np.nan, found[:, 1])
    return Outlook(units, blocked_ticks, paths, ends)


def units_of(table: JobTable, blocked: BlockedJobs, rows: Indices, cache: ProblemCache) -> tuple[Indices, Floats]:
    """Return `units` and `blocked_ticks` of an `Outlook` of jobs in these rows of the table."""
    blocked.work.look_up(cache, table)
    units = table.units[rows]
    return units, table.workflows.by_number(blocked.work.ticks)[units]


def workflow_seconds(table: JobTable, blocked: BlockedJobs, rows: Indices, cache: ProblemCache) -> Floats:
    """Return `AllocationProblem.workflow_seconds` of jobs in these rows of the table, while all nodes are up."""
    found = np.zeros(table.capacity)
    members = np.flatnonzero(table.units >= 0)
    if len(members):
        columns, zeros = table.columns, np.zeros(len(members))
        left = np.maximum(0.0, columns["total_steps"][members] - columns["steps_done"][members])
        seconds = cache.seconds_left(table.gangs[members], left)
        runnable = cache.can_run(table.gangs[members]) & (left != 0)[:, None]
        outlook = Outlook(*units_of(table, blocked, members, cache), zeros, zeros)
        found[members] = outlook.columns(zeros, seconds, runnable, 0.0)["workflow_seconds"]
    return found[rows]
