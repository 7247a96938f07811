"""Jobs in event-driven mode: the properties that policy and placement read, the type and GPUs of each job, and their order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from gavel_py.io.names import natural_key
from gavel_py.optimization.job_classes import separate_jobs
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.job import Job, with_values
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.placement.gangs import CONSOLIDATED, SPREAD, Spans
from gavel_py.scheduling.placement.topology import NODE, SCOPES, Layout
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The properties of a job that policy and placement read, equal for jobs of one gang (`JobTable.gangs`). Types are columns."""

    size: int  # GPUs of the gang, 0 for a fractional job
    is_regular: bool  # whether the job requests whole GPUs without an even split
    types: tuple[int, ...]  # types on which it can run, fastest first
    fastest: float  # steps/s on the first of them
    scope: int  # locality, as index into `SCOPES`
    preferences: list[int]  # by type, the `PlacementPreference`
    min_nodes: list[int]  # by type, the least number of nodes
    reason: str | None  # why it cannot run anywhere, None if it can


class JobProfiler:
    """Returns the profiles of jobs on a cluster with all nodes up, under one policy.

    checked: gangs that are known to be valid for the policy.
    """

    def __init__(self, policy: OrderedPolicy, table: ScheduledJobs, layout: Layout, spans: Spans, cache: ProblemCache) -> None:
        self._policy, self._table, self._layout, self._spans, self._cache = policy, table, layout, spans, cache
        self._by_gang: dict[int, JobProfile] = {}
        self.checked: set[int] = set()

    def knows(self, jobs: Sequence[Job], gangs: Collection[int]) -> bool:
        """Return whether these gangs have been checked, and the total steps of their jobs are known."""
        return all(gang in self._by_gang or gang in self.checked for gang in gangs) and all(
            job.total_steps is not None for job in jobs
        )

    def __call__(self, row: int) -> JobProfile:
        """Return the profile of a job of the table. Raises `InputError` as `Policy.check`."""
        return self._profile_of(self._table.gangs.item(row), self._table.jobs[row])

    def of(self, job: Job) -> JobProfile:
        """Return the profile of a job that need not be in the table. Raises `InputError` as `Policy.check`."""
        return self._profile_of(self._table.gang_numbers.of([job]).item(0), job)

    def _profile_of(self, gang: int, job: Job) -> JobProfile:
        if gang not in self._by_gang:
            self._by_gang[gang] = self._new_profile_of(job)
        return self._by_gang[gang]

    def _new_profile_of(self, job: Job) -> JobProfile:
        new = [with_values(job, {"steps_done": 0.0})]
        requests = self._table.requests_of(new)
        self._cache.complete(new, requests)
        problem = self._cache.problem_if_up(PolicyInput.of_new(new, requests))
        self._policy.check(problem)
        jobs = self._policy.view(separate_jobs(problem, self._policy.name, self._policy.reads))
        is_eligible = len(jobs) > 0
        fastest_first = np.argsort(-jobs.throughputs[0], kind="stable").tolist() if is_eligible else []
        preferences, min_nodes = np.zeros(len(self._layout.types), dtype=np.int64), np.ones(len(self._layout.types), dtype=np.int64)
        scope = SCOPES.index(job.locality)
        if problem.speeds is not None:
            for j in np.flatnonzero(problem.speeds.differ[0]).tolist():
                min_nodes[j] = self._spans.min_nodes(self._layout.types[j], int(job.num_gpus))
                # As in `GangBatch.with_preferences_on`.
                if job.num_gpus > min_nodes[j] and min_nodes[j] < len(self._layout.parts[j].sizes) and scope != NODE:
                    preferences[j] = SPREAD if problem.speeds.spread_is_faster[0, j] else CONSOLIDATED
        return JobProfile(
            size=int(job.num_gpus),
            is_regular=job.num_gpus == int(job.num_gpus) and not (job.split and job.num_gpus > 1),
            types=tuple(j for j in fastest_first if jobs.runnable[0, j]),
            fastest=float(jobs.fastest[0]) if is_eligible else 0.0,
            scope=scope,
            preferences=preferences.tolist(),
            min_nodes=min_nodes.tolist(),
            reason=problem.excluded.get(job.job_id),
        )


class QueuedJob:
    """A job in the queue.

    Attributes:
        row: Its row in the job table.
        job_id: Its id.
        natural: Its id as a natural sort key.
        profile: Its properties that policy and placement read.
        size: GPUs of its gang.
        restart_seconds: Cost of a restart, NaN for the default.
        types: Those on which it can run, fastest first.
        tie: Sort key among jobs that are equal to the policy: arrival, and id as a natural sort key.
        column: The type on which the policy gives it all of its time, -1 for none.
        runs_on: The type on which it holds GPUs, -1 for none.
        gpus: These GPUs, numbered within the type.
        importance: Sort key in the order of `SelectedGangs`; set by `PlacementCache`.
    """

    __slots__ = (
        *("column", "gpus", "importance", "job_id", "natural", "profile"),
        *("restart_seconds", "row", "runs_on", "size", "tie", "types"),
    )

    def __init__(self, row: int, job_id: str, profile: JobProfile, restart_seconds: float, arrival_seconds: float = 0.0) -> None:
        self.row, self.job_id, self.profile, self.size, self.types = row, job_id, profile, profile.size, profile.types
        self.natural, self.restart_seconds = natural_key(job_id), restart_seconds
        self.tie = arrival_seconds, self.natural
        self.importance = 0.0, self.natural
        self.column = self.runs_on = -1
        self.gpus: list[int] = []

    def fits(self, free: Sequence[int]) -> bool:
        """Return whether any of its types has enough free GPUs; free: by type."""
        size = self.size
        for column in self.types:  # noqa: SIM110  `any` with a generator takes twice as long
            if free[column] >= size:
                return True
        return False

    def take_type(self, free: list[int]) -> int:
        """Take GPUs of the fastest type with enough free ones, as `select_types` does; return the type, -1 for none."""
        size = self.size
        for column in self.types:
            if free[column] >= size:
                free[column] -= size
                return column
        return -1


Position = tuple[float, Any]
"""Sort key of the policy, and `QueuedJob.tie`."""


class OrderedJobs:
    """Jobs in the order of their positions.

    Attributes:
        jobs: The jobs.
        keys: Their sort keys; places are found in these numbers first, since few jobs have equal ones.
    """

    def __init__(self) -> None:
        self.jobs: list[QueuedJob] = []
        self.keys: list[float] = []

    def place_of(self, position: Position, start: int = 0) -> int:
        """Return the number of jobs before this position, at least `start`."""
        key, tie = position
        low = bisect_left(self.keys, key, start)
        high = bisect_right(self.keys, key, low)
        return low if low == high else bisect_left(self.jobs, tie, low, high, key=attrgetter("tie"))

    def add(self, each: QueuedJob, key: float) -> None:
        """Add a job with this sort key."""
        place = self.place_of((key, each.tie))
        self.jobs.insert(place, each)
        self.keys.insert(place, key)

    def drop(self, position: Position) -> None:
        """Remove the job at this position."""
        place = self.place_of(position)
        del self.jobs[place], self.keys[place]
