"""Workflows: jobs that wait for other jobs (`dependencies`), and computations on the graph that they form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.problem.dependencies import Condition, Dependency, dependency_of

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.job import Job


def dependencies_of(job: Job) -> Sequence[Dependency]:
    """Return what a job waits for."""
    return [dependency_of(text) for text in job.depends_on] if job.depends_on else ()  # nearly all jobs wait for none


def has_dependencies(jobs: Iterable[Job]) -> bool:
    """Return whether any of these jobs waits for another."""
    return any(job.depends_on for job in jobs)


def why_blocked(dependencies: Iterable[str], shown: int = 3) -> str:
    """Return the reason why a job with these unfulfilled dependencies gets no time."""
    names = [repr(name) for name in dependencies]
    more = [f"{len(names) - shown} more jobs"] if len(names) > shown + 1 else []
    listed = [*names[:shown], *more] if more else names
    return f"it waits for {' and '.join(filter(None, [', '.join(listed[:-1]), listed[-1]]))}"


def why_never(dependency: Dependency) -> str:
    """Return the reason why a job with this dependency, which can no longer be fulfilled, gets no time."""
    if dependency.condition is Condition.AFTERNOTOK:
        return f"it can never start: {dependency.job_id!r}, for whose failure it waits, has finished"
    return f"it can never start: {dependency.job_id!r}, for which it waits, can never start"


class Waiting(NamedTuple):
    """The jobs that may not start.

    Attributes:
        blocked: {row: reason} of those that wait for others.
        never: {row: reason} of those that can never start.
        unexpected: {row: the jobs whose end cancels it} of the blocked ones that are not expected to run: if all jobs that start
            succeed, they are cancelled.
    """

    blocked: dict[int, str]
    never: dict[int, str]
    unexpected: dict[int, set[int]]


class WorkflowGraph:
    """N jobs, and which of them wait for which. Dependencies on jobs that are not among them are ignored.

    parents, children: N lists of row numbers. order: the rows, each after those it waits for.

    Raises `InputError`, which names the jobs of a cycle.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self.parents: list[list[int]] = [[] for _ in jobs]
        self.children: list[list[int]] = [[] for _ in jobs]
        self._conditions: dict[tuple[int, int], Condition] = {}  # by row and parent, but for singletons
        rows = {job.job_id: row for row, job in enumerate(jobs)} if has_dependencies(jobs) else {}
        earlier: dict[tuple[str, str], list[int]] = {}
        for row, job in enumerate(jobs) if rows else ():
            before = earlier.setdefault((job.workflow, job.tenant), []) if job.workflow else []
            for condition, job_id in dependencies_of(job):
                found = list(before) if condition is Condition.SINGLETON else [rows[job_id]] if job_id in rows else []
                self.parents[row] += [parent for parent in found if parent not in self.parents[row]]
                if condition is Condition.SINGLETON:
                    before.clear()  # it waits for all of them, and later ones for it
                    continue
                self._conditions.update(((row, parent), condition) for parent in found)
            before.append(row)
            for parent in self.parents[row]:
                self.children[parent].append(row)
        self.order = self._sorted()

    def _sorted(self) -> list[int]:
        missing = [len(each) for each in self.parents]
        order = [row for row, count in enumerate(missing) if not count]
        for row in order:  # which grows meanwhile
            for child in self.children[row]:
                missing[child] -= 1
                if not missing[child]:
                    order.append(child)
        if len(order) < len(missing):
            self._raise_cycle({row for row, count in enumerate(missing) if count})
        return order

    def _raise_cycle(self, rows: set[int]) -> None:
        """Raise for a cycle among jobs each of which waits for another one of them."""
        path, at = dict[int, None](), min(rows)
        while at not in path:
            path[at] = None
            at = next(parent for parent in self.parents[at] if parent in rows)
        cycle = list(path)[list(path).index(at) :]
        names = ", which waits for ".join(repr(self._jobs[row].job_id) for row in [*cycle[1:], at])
        raise InputError(Fault(self._jobs[at].where, "depends_on", f"is a cycle: it waits for {names}"))

    def longest_paths(self, seconds: Sequence[float]) -> list[float]:
        """Return the longest path from the start of each job to an end of the graph; seconds: of the jobs alone."""
        paths = list(seconds)
        for row in reversed(self.order):
            paths[row] += max((paths[child] for child in self.children[row]), default=0.0)
        return paths

    def outlook(self, seconds: Floats, deadlines: Floats, waiting: Waiting) -> WorkflowOutlook:
        """Return the outlook of the workflows of the jobs.

        Args:
            seconds: (N,) remaining work of each job, in seconds on its fastest type.
            deadlines: (N,) on any clock, NaN for none.
            waiting: The jobs that may not start.
        """
        work = dict(enumerate(zip(seconds.tolist(), np.where(np.isnan(deadlines), np.inf, deadlines).tolist(), strict=True)))
        expected = {row: work[row] for row in waiting.blocked if row not in waiting.unexpected}
        ahead: dict[int, Ahead] = {}
        look_ahead(range(len(self._jobs)), self.children.__getitem__, expected, waiting.unexpected, ahead)
        numbers: dict[tuple[str, str], int] = {}
        keys = [(job.workflow, job.tenant) for job in self._jobs]
        workflow_of = np.array([numbers.setdefault(key, len(numbers)) if key[0] else -1 for key in keys], dtype=np.int64)
        members = np.array([row for row in expected if workflow_of[row] >= 0], dtype=np.int64)
        left = np.bincount(workflow_of[members], ticks(seconds[members]), len(numbers) + 1).astype(float)  # the last for -1
        paths, ends = np.array([ahead[row] for row in range(len(workflow_of))]).reshape(-1, 2).T
        return WorkflowOutlook(workflow_of, left[workflow_of], paths, np.where(np.isinf(ends), np.nan, ends))

    def waiting(self, is_finished: Callable[[int], bool]) -> Waiting:
        """Return the jobs that wait for an unfinished one, and those that can never start since others have finished."""
        ended: dict[int, bool] = {}  # {row: whether it ended well} of the jobs that run no more
        found = Waiting({}, {}, {})
        for row in self.order:
            conditions = {parent: self._conditions.get((row, parent), Condition.SINGLETON) for parent in self.parents[row]}
            broken = [p for p, condition in conditions.items() if p in ended and not condition.holds(ended_well=ended[p])]
            open_ = [parent for parent in conditions if parent not in ended]
            if is_finished(row):
                ended[row] = True
            elif broken:
                ended[row] = False
                found.never[row] = why_never(Dependency(conditions[broken[0]], self._jobs[broken[0]].job_id))
            elif open_:
                found.blocked[row] = why_blocked(self._jobs[parent].job_id for parent in open_)
                cancelling = {p for p in open_ if not conditions[p].holds(ended_well=p not in found.unexpected)}
                if cancelling:
                    found.unexpected[row] = cancelling
        return found


def check_parents(jobs: Sequence[Job], others: Collection[str] = ()) -> None:
    """Raise `InputError` for jobs that wait for a job which is neither among them nor among the others."""
    waiting = [job for job in jobs if job.depends_on]
    ids = {job.job_id for job in jobs} if waiting else set()
    faults = [
        Fault(job.where, "depends_on", f"waits for job {each.job_id!r}, which does not exist{_meant(each, ids)}")
        for job in waiting
        for each in dependencies_of(job)
        if each.condition is not Condition.SINGLETON and each.job_id not in ids and each.job_id not in others
    ]
    InputError.raise_any(faults)


def _meant(dependency: Dependency, ids: Collection[str]) -> str:
    """Return a suggestion for a dependency on a job that does not exist, as the end of a message."""
    name, found = dependency.job_id, _several(dependency)
    word, _, rest = name.partition(":")
    if word.lower() in set(Condition) and rest:
        return f"; conditions are written in lower case: {word.lower()}:{rest}"
    if len(found) > 1 and ids and all(each.job_id in ids or each.condition is Condition.SINGLETON for each in found):
        if "?" in name:
            return "; '?' (any one of several jobs) is not supported"
        return f"; several jobs are separated by |: {'|'.join(map(str, found))}"
    return nearest(name, sorted(ids))


def _several(dependency: Dependency) -> list[Dependency]:
    """Return the dependencies in a text with Slurm's separators, such as a:b or a,afterany:b, that was read as one."""
    condition, found = dependency.condition, []
    for part in map(str.strip, re.split("[,:?]", dependency.job_id)):
        if part == Condition.SINGLETON:
            found.append(Dependency(Condition.SINGLETON))
        elif part in set(Condition):
            condition = Condition(part)
        else:
            found.append(Dependency(condition, part))
    return found


TICKS = 2.0**20
"""Ticks per second, in which work is added up: sums of whole numbers do not depend on their order."""


def ticks(seconds: Floats) -> Floats:
    """Return times in ticks."""
    return np.rint(seconds * TICKS)


def seconds_left(steps_remaining: Floats, fastest: Floats) -> Floats:
    """Return (N,) the remaining work of jobs, in seconds on their fastest types; 0 if unknown, or if a job can run nowhere."""
    seconds = np.divide(steps_remaining, fastest, out=np.zeros(len(fastest)), where=fastest > 0)
    return np.where(np.isnan(seconds), 0.0, seconds)


class WorkflowOutlook(NamedTuple):
    """The rest of the workflows of N jobs: work of blocked jobs, paths and latest ends.

    Attributes:
        workflow_of: (N,) number of the workflow of each job, -1 for none.
        blocked_ticks: (N,) remaining work of the blocked jobs of its workflow, in ticks on their fastest types.
        path_seconds: (N,) as in `AllocationProblem`.
        latest_ends: (N,) `latest_end_seconds` on the clock of the deadlines, NaN for none.
    """

    workflow_of: Indices
    blocked_ticks: Floats
    path_seconds: Floats
    latest_ends: Floats

    def take(self, rows: Indices) -> WorkflowOutlook:
        """Return the outlook of some of the jobs."""
        return WorkflowOutlook(self.workflow_of[rows], self.blocked_ticks[rows], self.path_seconds[rows], self.latest_ends[rows])

    def workflow_seconds(self, seconds: Floats, ready: Indices) -> Floats:
        """Return (N,) `AllocationProblem.workflow_seconds`.

        Args:
            seconds: (N,) remaining work of each job, in seconds on its fastest type.
            ready: The jobs with a workflow that may run.
        """
        workflow_of, own, found = self.workflow_of[ready], ticks(seconds[ready]), np.zeros(len(seconds))
        left = np.bincount(workflow_of, own)[workflow_of] + self.blocked_ticks[ready]
        found[ready] = np.where(left > own, left / TICKS, 0.0)
        return found

    def columns(self, weights: Floats, seconds: Floats, runnable: Mask, now_seconds: float) -> dict[str, Any]:
        """Return the arrays of `AllocationProblem` that depend on workflows, by name.

        Args:
            weights: (N,) of the jobs.
            seconds: (N,) remaining work of each job, in seconds on its fastest type.
            runnable: (N, K) whether a job may run on each type.
            now_seconds: The time on the clock of the deadlines.
        """
        rows = np.flatnonzero((self.workflow_of >= 0) & runnable.any(axis=1))
        workflow_of, ready_tasks = self.workflow_of[rows], np.ones(len(weights))
        ready_tasks[rows] = np.bincount(workflow_of)[workflow_of]
        return {
            "weights": weights / ready_tasks,
            "ready_tasks": ready_tasks,
            "workflow_seconds": self.workflow_seconds(seconds, rows),
            "path_seconds": self.path_seconds,
            "latest_end_seconds": self.latest_ends - now_seconds,
        }


Ahead = tuple[float, float]
"""Longest path of the jobs that wait for a job, in seconds, and its latest end so that they meet deadlines, infinite for none."""


NO_WORK = 0.0, math.inf
"""Seconds and deadline of a job that is not expected to run."""

Name = TypeVar("Name", bound=Hashable)


def look_ahead(
    names: Iterable[Name],
    children: Callable[[Name], Iterable[Name]],
    work: Mapping[Name, tuple[float, float]],
    unexpected: Mapping[Name, Collection[Name]],
    known: dict[Name, Ahead],
) -> None:
    """Add the paths and latest ends of jobs to `known`.

    Args:
        names: The jobs.
        children: Returns the jobs that wait for one.
        work: {job: (seconds, deadline or infinity)} of those that are expected to run. Children that are neither among them nor
            unexpected are ignored.
        unexpected: {job: the jobs whose end cancels it}. Paths lead from each of these through it, and it adds no time: the jobs
            that wait for its end start then. (Of several, the first end cancels it, but which one is first is not known.)
        known: {job: its path and latest end}; it must have all children of its jobs.
    """
    stack = [name for name in names if name not in known]
    while stack:
        name = stack[-1]
        after = [child for child in children(name) if child in work or name in unexpected.get(child, ())]
        missing = [child for child in after if child not in known]
        if missing and name not in known:
            stack += missing
            continue
        stack.pop()
        path, end = 0.0, math.inf
        for child in after:
            (seconds, deadline), (further, limit) = work.get(child, NO_WORK), known[child]
            path, end = max(path, seconds + further), min(end, min(deadline, limit) - seconds)
        known[name] = path, end
