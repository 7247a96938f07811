"""Workflows as policies see them: integer ids of workflows in the job table, and the remaining work of blocked jobs.

Blocked jobs have no row in the job table. Their remaining work counts towards the ready jobs of their workflow, and along the paths
of jobs that wait for each other. It is looked up when a policy first needs it, and cached while jobs come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.problem.workflows import TICKS, Ahead, WorkflowOutlook, look_ahead

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices
    from gavel_py.problem.job import Job
    from gavel_py.scheduling.jobs import JobTable
    from gavel_py.scheduling.jobs.waiting import BlockedJobs
    from gavel_py.scheduling.problem_cache import ProblemCache

EVERY = slice(None)

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


class BlockedWork:
    """Remaining work of blocked jobs: the total of each workflow (`WorkflowNumbers`), and the path after each job (`ahead_of`).

    The work of jobs that are not expected to run does not count.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._new: dict[str, Job] = {}  # jobs whose work has not been looked up
        self._work: dict[str, tuple[float, float]] = {}  # {job_id: seconds, deadline} of the others
        self._ahead: dict[str, Ahead] = {}
        self._cache: ProblemCache | None = None
        self._workflows = WorkflowNumbers()

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy, which looks up all work again."""
        return vars(self) | {"_cache": None}

    def enter(self, job: Job, waits: Mapping[str, Mapping[str, object]], *, is_expected: bool = True) -> None:
        """Count a job if it is expected to run; waits: {job_id: the jobs that it waits for}."""
        if is_expected:
            self._jobs[job.job_id] = self._new[job.job_id] = job
        self.forget(waits[job.job_id], waits)

    def leave(self, job_id: str, parents: Iterable[str], waits: Mapping[str, Mapping[str, object]]) -> None:
        """Stop counting a job; parents: the jobs for which it still waited."""
        self.forget(parents, waits)
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._new.pop(job_id, None)
        if job_id in self._work:
            self._workflows.leave(job, round(self._work.pop(job_id)[0] * TICKS))

    def end(self, job_id: str) -> None:
        """Record that a ready job has left."""
        self._ahead.pop(job_id, None)

    def forget(self, names: Iterable[str], waits: Mapping[str, Mapping[str, object]]) -> None:
        """Drop the cached paths after these jobs, and after all jobs for which they wait."""
        stack = list(names)
        while stack:
            name = stack.pop()
            if self._ahead.pop(name, None) is not None:
                stack += waits.get(name, ())

    def look_up(self, cache: ProblemCache, table: JobTable) -> None:
        """Look up the work of jobs for which it is unknown, or known only from another profile."""
        if cache is not self._cache:
            for job_id, (seconds, _) in self._work.items():
                self._workflows.leave(self._jobs[job_id], round(seconds * TICKS))
            self._cache, self._workflows, self._new = cache, table.workflows, dict(self._jobs)
            self._work, self._ahead = {}, {}
        if not self._new:
            return
        jobs = [job.model_copy(update={"depends_on": ()}) for job in self._new.values()]
        requests = table.requests_of(jobs)
        cache.complete(jobs, requests)
        left = np.maximum(0.0, requests["total_steps"] - requests["steps_done"])
        found = cache.seconds_left(requests["gangs"], left)
        deadlines = np.nan_to_num(requests["deadline_seconds"], nan=np.inf)
        for job, seconds, deadline in zip(jobs, found.tolist(), deadlines.tolist(), strict=True):
            self._work[job.job_id] = seconds, deadline
            self._workflows.enter(job, round(seconds * TICKS))
        self._new = {}

    def ahead_of(self, names: Sequence[str], blocked: BlockedJobs) -> list[Ahead]:
        """Return the longest path and the latest end that follow from the jobs waiting for each of these jobs."""
        look_ahead(names, lambda name: blocked.children.get(name, ()), self._work, blocked.unexpected, self._ahead)
        return [self._ahead[name] for name in names]


def outlook_of(table: JobTable, blocked: BlockedJobs, rows: Indices, cache: ProblemCache) -> WorkflowOutlook | None:
    """Return the workflow outlook of the jobs in these rows of the table; None if they have no workflows and no job is blocked."""
    if not table.workflows and not blocked:
        return None
    outlook = workflows_of(table, blocked, cache, rows)
    if blocked:
        names = table.ids[rows].tolist()
        places = [place for place, name in enumerate(names) if name in blocked.children]
        found = np.array(blocked.work.ahead_of([names[place] for place in places], blocked)).reshape(-1, 2)
        outlook.path_seconds[places] = found[:, 0]
        outlook.latest_ends[places] = np.where(np.isinf(found[:, 1]), np.nan, found[:, 1])
    return outlook


def workflows_of(table: JobTable, blocked: BlockedJobs, cache: ProblemCache, rows: Indices | slice = EVERY) -> WorkflowOutlook:
    """Return the outlook of jobs in these rows of the table, without the paths of jobs that wait for them."""
    blocked.work.look_up(cache, table)
    workflow_of = table.workflow_of[rows].copy()
    zeros = np.zeros(len(workflow_of))
    return WorkflowOutlook(workflow_of, table.workflows.blocked_ticks[workflow_of], zeros, zeros + np.nan)


def workflow_seconds(table: JobTable, blocked: BlockedJobs, cache: ProblemCache, *, by_workflow: bool) -> Floats:
    """Return (rows,) `AllocationProblem.workflow_seconds` of the jobs of the table while all nodes are up; 0 if not by workflow."""
    found = np.zeros(table.capacity)
    if by_workflow and table.workflows:
        members, columns = np.flatnonzero(table.workflow_of >= 0), table.columns
        left = np.maximum(0.0, columns["total_steps"][members] - columns["steps_done"][members])
        seconds = cache.seconds_left(table.gangs[members], left)
        outlook = workflows_of(table, blocked, cache, members)
        found[members] = outlook.workflow_seconds(seconds, np.flatnonzero(seconds > 0))
    return found
