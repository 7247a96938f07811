"""Jobs in the system that may not start yet: `BlockedJobs` wait for other jobs, and `Backoffs` delay jobs that have failed.

Blocked jobs are not in the job table, so problems and rounds have no entries for them. Their remaining work (`BlockedWork`) counts
towards the ready jobs of their workflow, and along the paths of jobs that wait for each other. A job has a back-off only if it has
failed and not succeeded since: it waits before it is tried again, and avoids the nodes on which it failed. Why a job that may start
gets no GPUs in a round is in `commit.py` (`waits_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.dependencies import Condition, Dependency
from gavel_py.problem.job import Job
from gavel_py.problem.job_set import jobs_from_dict, jobs_to_dict
from gavel_py.problem.job_table import JobTable, WorkflowNumbers
from gavel_py.problem.workflows import TICKS, Ahead, WorkflowOutlook, dependencies_of, look_ahead
from gavel_py.scheduling.placement.gangs import RunningGangs
from gavel_py.scheduling.problem_cache import ProblemCache


class Unblocked(NamedTuple):
    """Jobs whose wait for other jobs has ended.

    Attributes:
        ready: Ids of the jobs that may start now.
        cancelled: Ids of the jobs that were cancelled, since their conditions can no longer be fulfilled.
    """

    ready: tuple[str, ...]
    cancelled: tuple[str, ...]


class ReleasedJobs(NamedTuple):
    """As `Unblocked`, but with the jobs themselves, for the job table."""

    ready: list[Job]
    cancelled: list[Job]


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
        jobs = [job.without_dependencies() for job in self._new.values()]
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


class BlockedJobs:
    """The blocked jobs, and their conditions that are not fulfilled yet.

    Attributes:
        jobs: {job_id: job}.
        news: Jobs that have become ready or were cancelled since the last `take_news`.
        children: {job_id: jobs that wait for it, or did}.
        unexpected: As in `problem.workflows.Waiting`.
        work: The remaining work of blocked jobs.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.news = Unblocked((), ())
        self._waits: dict[str, dict[str, Condition]] = {}  # {job_id: {parent: condition}}
        self.children: dict[str, list[str]] = {}
        self.unexpected: dict[str, set[str]] = {}
        self.work = BlockedWork()
        self._members: dict[tuple[str, str], dict[str, None]] = {}  # by workflow and tenant, of the jobs in the system

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """{job_id: dependencies that are not fulfilled, as users write them}."""
        plain = {Condition.SINGLETON: Condition.AFTERANY}
        return {
            job_id: tuple(str(Dependency(plain.get(condition, condition), parent)) for parent, condition in waits.items())
            for job_id, waits in self._waits.items()
        }

    def submit(self, jobs: Sequence[Job], ended_well: Callable[[str], bool | None]) -> ReleasedJobs:
        """Add new jobs, and return those that need not wait and those that could never start.

        ended_well: returns whether a job that has left finished; None for a job in the system.
        """
        new, never = {job.job_id for job in jobs}, list[Job]()
        ready: list[Job] = []
        for job in jobs:
            waits: dict[str, Condition] = {}
            is_possible = True
            for condition, parent in dependencies_of(job):
                if condition is Condition.SINGLETON:
                    waits = dict.fromkeys(self._members.get((job.workflow, job.tenant), ()), condition) | waits
                elif parent in new or parent in self.jobs or (well := ended_well(parent)) is None:
                    waits[parent] = condition
                else:
                    is_possible &= condition.holds(ended_well=well)
            if not is_possible:
                never.append(job)
            elif waits:
                self._block(job, waits)
            else:
                ready.append(job)
            self.note(job)
        later = self._release([(job.job_id, False) for job in never])
        for job in never:
            self._leave_workflow(job)
        self.news = Unblocked(self.news.ready, self.news.cancelled + tuple(job.job_id for job in never))
        return ReleasedJobs(ready + later.ready, never + later.cancelled)

    def note(self, job: Job) -> None:
        """Record a job in the system, for which later jobs of its workflow may wait."""
        if job.workflow:
            self._members.setdefault((job.workflow, job.tenant), {})[job.job_id] = None

    def leave(self, job: Job, *, ended_well: bool) -> ReleasedJobs:
        """Record that a job has left, and return the jobs whose wait has ended with it."""
        if job.job_id in self.jobs:
            self._drop(job.job_id)
        self._leave_workflow(job)
        return self._release([(job.job_id, ended_well)])

    def take_news(self) -> Unblocked:
        """Return the blocked jobs that have become ready or were cancelled since the last call."""
        news, self.news = self.news, Unblocked((), ())
        return news

    def _block(self, job: Job, waits: dict[str, Condition]) -> None:
        self.jobs[job.job_id], self._waits[job.job_id] = job, waits
        for parent in waits:
            self.children.setdefault(parent, []).append(job.job_id)
        cancelling = {parent for parent, condition in waits.items() if self._cancels(parent, condition)}
        if cancelling:
            self.unexpected[job.job_id] = cancelling
        self.work.enter(job, self._waits, is_expected=not cancelling)
        for child, parent, cancels in self._expected_of(job.job_id) if cancelling else ():
            self._expect(child, parent, cancels=cancels)

    def _cancels(self, parent: str, condition: Condition) -> bool:
        """Return whether the end of a job breaks this condition, if all jobs that start succeed."""
        return not condition.holds(ended_well=parent not in self.unexpected)

    def _expect(self, job_id: str, parent: str, *, cancels: bool) -> None:
        """Record whether the end of a parent cancels a job, and what follows for the jobs that wait for this one."""
        changes = [(job_id, parent, cancels)]
        while changes:
            job_id, parent, cancels = changes.pop()
            parents = self.unexpected.get(job_id, set())
            before = len(parents)
            if cancels == (parent in parents):
                continue
            if cancels:
                parents.add(parent)
                self.unexpected[job_id] = parents
            else:
                parents.remove(parent)
            if before and parents:  # only the path after this parent differs
                self.work.forget((parent,), self._waits)
                continue
            if not parents:
                del self.unexpected[job_id]
            self._recount(self.jobs[job_id])
            changes += self._expected_of(job_id)

    def _expected_of(self, job_id: str) -> list[tuple[str, str, bool]]:
        """Return (child, this job, whether its end cancels the child) of the jobs that wait for a job."""
        waits = ((child, self._waits.get(child, {}).get(job_id)) for child in self.children.get(job_id, ()))
        return [(child, job_id, self._cancels(job_id, each)) for child, each in waits if each is not None]

    def _recount(self, job: Job) -> None:
        """Count the work of a blocked job as it is now."""
        self.work.leave(job.job_id, self._waits[job.job_id], self._waits)
        self.work.enter(job, self._waits, is_expected=job.job_id not in self.unexpected)

    def _drop(self, job_id: str) -> Job:
        self.unexpected.pop(job_id, None)
        self.work.leave(job_id, self._waits.pop(job_id), self._waits)
        return self.jobs.pop(job_id)

    def _leave_workflow(self, job: Job) -> None:
        key = job.workflow, job.tenant
        members = self._members.get(key)
        if members is not None:
            members.pop(job.job_id, None)
            if not members:
                del self._members[key]

    def _release(self, ended: list[tuple[str, bool]]) -> ReleasedJobs:
        """Fulfil or fail the conditions on these jobs, (id, whether it ended well), and on the jobs that this cancels."""
        released = ReleasedJobs([], [])
        while ended:
            parent, well = ended.pop()
            self.work.end(parent)
            for child in self.children.pop(parent, ()):
                condition = self._waits.get(child, {}).pop(parent, None)
                if condition is None:  # it was cancelled before
                    continue
                if not condition.holds(ended_well=well):
                    released.cancelled.append(self._drop(child))
                    self._leave_workflow(released.cancelled[-1])
                    ended.append((child, False))
                    continue
                self._expect(child, parent, cancels=False)
                if not self._waits[child]:
                    released.ready.append(self._drop(child))
        ready, cancelled = (tuple(job.job_id for job in jobs) for jobs in released)
        if ready or cancelled:
            self.news = Unblocked(self.news.ready + ready, self.news.cancelled + cancelled)
        return released

    def replace(self, job: Job) -> None:
        """Replace a blocked job by one of the same id."""
        self.move(self.jobs[job.job_id], job)
        self.jobs[job.job_id] = job
        self._recount(job)

    def move(self, before: Job, job: Job) -> None:
        """Record that a job in the system is replaced by one of the same id, which may have another tenant."""
        if before.tenant != job.tenant:
            self._leave_workflow(before)
            self.note(job)

    def to_dict(self) -> dict[str, Any]:
        """Return the blocked jobs and the news as plain data, nothing if there are none."""
        if not self.jobs and not any(self.news):
            return {}
        waits = [[[parent, str(condition)] for parent, condition in self._waits[job_id].items()] for job_id in self.jobs]
        news = {"news": list(map(list, self.news))} if any(self.news) else {}
        return {"jobs": jobs_to_dict(list(self.jobs.values())), "waits": waits, **news}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], others: Sequence[Job]) -> BlockedJobs:
        """Restore from `to_dict`; others: the jobs in the system that are not blocked."""
        made = cls()
        for job in others:
            made.note(job)
        for job, waits in zip(jobs_from_dict(document["jobs"]), document["waits"], strict=True) if document else ():
            made._block(job, {parent: Condition(condition) for parent, condition in waits})
            made.note(job)
        made.news = Unblocked(*map(tuple, document.get("news", ((), ()))))
        return made


def outlook_of(table: JobTable, blocked: BlockedJobs, rows: Indices, cache: ProblemCache) -> WorkflowOutlook:
    """Return the workflow outlook of the jobs in these rows of the table."""
    outlook = workflows_of(table, blocked, cache, rows)
    if blocked:
        names = table.ids[rows].tolist()
        places = [place for place, name in enumerate(names) if name in blocked.children]
        found = np.array(blocked.work.ahead_of([names[place] for place in places], blocked)).reshape(-1, 2)
        outlook.path_seconds[places] = found[:, 0]
        outlook.latest_ends[places] = np.where(np.isinf(found[:, 1]), np.nan, found[:, 1])
    return outlook


def workflows_of(table: JobTable, blocked: BlockedJobs, cache: ProblemCache, rows: Indices | slice) -> WorkflowOutlook:
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


MAX_BACKOFF_SECONDS = 3600.0
"""Longest back-off, unless the first one is longer."""

AVOIDED_ROUNDS = 2
"""After a back-off, nodes are avoided for the same time again, and for at least this number of rounds: a job whose back-off ends
within a round is tried again at the start of the next one."""


@dataclass(frozen=True)
class Backoff:
    """The back-off of a job.

    Attributes:
        failures: Failures since the job last succeeded.
        until_seconds: The time before which it is not started.
        nodes: {node: time until which the job avoids it}, of nodes on which it failed.
    """

    failures: int
    until_seconds: float
    nodes: Mapping[str, float] = field(default_factory=dict)

    def avoided(self, now: float) -> frozenset[str]:
        """Return the nodes that the job avoids at this time."""
        return frozenset(node for node, until in self.nodes.items() if now < until)


class Backoffs:
    """{job_id: Backoff} of jobs that have failed."""

    def __init__(self, entries: Mapping[str, Backoff] | None = None) -> None:
        self.by_job: dict[str, Backoff] = dict(entries or {})

    def __len__(self) -> int:
        return len(self.by_job)

    def fail(self, job_id: str, nodes: Iterable[str], now: float, retry_seconds: float, round_seconds: float = 0.0) -> None:
        """Begin the back-off of a job that failed on these nodes, twice as long as its last. round_seconds: 0 without rounds."""
        before = self.by_job.get(job_id)
        failures = 1 if before is None else before.failures + 1
        longest = max(MAX_BACKOFF_SECONDS, retry_seconds)
        # The exponent is bounded to avoid overflow.
        seconds = min(longest, retry_seconds * 2.0 ** min(failures - 1, 60))
        avoided = {} if before is None else {node: end for node, end in before.nodes.items() if now < end}
        avoided |= dict.fromkeys(nodes, now + seconds + max(seconds, AVOIDED_ROUNDS * round_seconds))
        self.by_job[job_id] = Backoff(failures, now + seconds, avoided)

    def drop(self, job_ids: Iterable[str]) -> None:
        """End the back-offs of jobs that have succeeded or left."""
        for job_id in job_ids:
            self.by_job.pop(job_id, None)

    def succeed(self, table: JobTable, gangs: RunningGangs, among: Callable[[int], bool]) -> None:
        """End the back-offs of the jobs that hold GPUs and for whose row `among` is true: they have succeeded."""
        self.drop([job_id for job_id in self.by_job if gangs.types[row := table.by_id[job_id]] >= 0 and among(row)])

    def hold_back(self, table: JobTable, gangs: RunningGangs, now: float) -> bool:
        """Return whether any job without GPUs waits after a failure or avoids nodes."""
        ids = (job_id for job_id, each in self.by_job.items() if now < each.until_seconds or each.avoided(now))
        return any(gangs.types[table.by_id[job_id]] < 0 for job_id in ids)

    def waiting(self, table: JobTable, gangs: RunningGangs, rows: Indices, now: float) -> Mask:
        """Return (N,) which of these jobs wait after a failure."""
        waits = np.zeros(table.capacity, dtype=bool)
        waits[[table.by_id[job_id] for job_id, each in self.by_job.items() if now < each.until_seconds]] = True
        return waits[rows] & (gangs.types[rows] < 0)

    def avoided_gpus(self, table: JobTable, gangs: RunningGangs, rows: Indices, now: float) -> dict[int, Mask]:
        """Return {index: (GPUs,) the GPUs that the job avoids} for the jobs in these rows that do not run and avoid nodes."""
        nodes = {table.by_id[job_id]: names for job_id, each in self.by_job.items() if (names := each.avoided(now))}
        avoided = {}
        for i in np.flatnonzero(np.isin(rows, list(nodes)) & (gangs.types[rows] < 0)).tolist():
            numbers = [gangs.layout.number[name] for name in nodes[rows.item(i)]]
            avoided[i] = np.isin(gangs.layout.node_of, numbers)
        return avoided

    def to_dict(self) -> dict[str, Any]:
        """Return the back-offs as plain data."""
        return {job_id: [each.failures, each.until_seconds, dict(each.nodes)] for job_id, each in self.by_job.items()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Backoffs:
        """Restore back-offs from `to_dict`."""
        made = {job_id: Backoff(int(n), float(until), dict(nodes)) for job_id, (n, until, nodes) in document.items()}
        return cls(made)
