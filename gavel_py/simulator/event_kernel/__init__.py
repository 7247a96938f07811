"""Ordered policies by events, in a kernel: the decisions of `RoundScheduler`, without its tables, accounts and rounds.

`EventKernel` stands in for the scheduler of a simulation. It has the order of service (`OrderedQueue`) and the rules of placement
(`PlacementCache`) of event-driven scheduling, and places gangs by node. Where it cannot go on, `give_to` tells the scheduler all
that it knows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from gavel_py.problem.job import host_requests_of, with_values
from gavel_py.problem.workflows import has_dependencies
from gavel_py.scheduling.event_driven.queue import COLUMNS, OF_WORKFLOW, REMAINING, OrderedQueue
from gavel_py.scheduling.event_driven.queued_jobs import QueuedJob
from gavel_py.scheduling.jobs.history import is_tried_again
from gavel_py.simulator.event_kernel.placement import NodePlacement, parts_held_by

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats, Indices
    from gavel_py.problem.job import Job
    from gavel_py.scheduling import RoundScheduler
    from gavel_py.scheduling.event_driven import EventParts
    from gavel_py.scheduling.jobs.history import ReportedSteps

TIMES = {"attained_gpu_seconds": "", "waiting_since_seconds": "arrival_seconds"}
"""{what passing time changes: the field of a job that it begins with, none for 0}."""

ROWS = 64
"""The number of rows at first; they double when they are full."""


class EventChanges(NamedTuple):
    """What a decision changes: jobs that lose their GPUs and wait, those that start on new ones, and those that failed and wait."""

    lost: Collection[QueuedJob]
    started: Collection[QueuedJob]
    failed: Collection[QueuedJob]


class EventKernel(OrderedQueue):
    """Decides at events for the jobs of a simulation; its methods for jobs are those of `RoundScheduler`.

    Attributes:
        excluded: {job_id: reason} of the jobs that cannot run anywhere.
    """

    @classmethod
    def of(cls, scheduler: RoundScheduler) -> Self | None:
        """Return a kernel that decides like a scheduler without jobs; None if its decisions need the full path."""
        parts = scheduler.event_parts
        return None if parts is None else cls(parts)

    def __init__(self, parts: EventParts) -> None:
        super().__init__(parts.policy, parts.capacities)
        self._profiler, self._layout, self._order = parts.profiler, parts.layout, parts.order
        self._placement = NodePlacement(parts.layout, parts.restart_seconds)
        self._jobs: dict[str, tuple[QueuedJob, Job]] = {}
        self._row_of: dict[str, int] = {}
        self._failures = Counter[str]()
        self._unused: list[int] = []
        self._left: list[int] = []  # rows of jobs that have left since the latest decision
        self._ran, self._decided = np.zeros(0, dtype=np.int64), -math.inf  # rows of the gangs of that decision, and its time
        self._now = -math.inf
        self._failed: list[QueuedJob] = []  # since the latest decision
        self.excluded: dict[str, str] = {}
        fields = {column for name, column in COLUMNS.items() if name in self._reads}
        fields |= {"steps_done", "total_steps"} if REMAINING in self._reads else set()
        fields |= set() if self._order is None else {"num_gpus", *TIMES}
        self._fields: dict[str, Floats] = dict.fromkeys(sorted(fields), np.zeros(0))

    def __len__(self) -> int:
        """Return the number of jobs with GPUs."""
        return len(self._selected.jobs)

    def _column(self, name: str, rows: Indices) -> Floats:
        if name == OF_WORKFLOW:
            return np.zeros(len(rows))  # jobs of workflows are not taken
        if name == REMAINING:
            return np.maximum(0.0, self._fields["total_steps"][rows] - self._fields["steps_done"][rows])
        if name == "waiting_seconds":
            return np.maximum(0.0, self._now - self._fields["waiting_since_seconds"][rows])
        return self._fields[COLUMNS.get(name, name)][rows]

    # Events of jobs

    @staticmethod
    def takes(job: Job) -> bool:
        """Return whether the kernel can decide about a job: a gang that asks for whole GPUs on any nodes only, without workflow."""
        is_gang = job.num_gpus == int(job.num_gpus) and not job.is_elastic and not job.workflow and not has_dependencies([job])
        return is_gang and job.locality == "any" and not job.split and not host_requests_of([job]).any()

    def submit(self, job: Job) -> None:
        """Add a job that the kernel takes, with its total steps. Raises `InputError` as `RoundScheduler.submit`."""
        profile = self._profiler.of(job)
        if not self._unused:
            self._grow()
        restart = math.nan if job.restart_seconds is None else job.restart_seconds
        each = QueuedJob(self._unused.pop(), job.job_id, profile, restart, job.arrival_seconds)
        self._jobs[job.job_id], self._row_of[job.job_id] = (each, job), each.row
        for name, numbers in self._fields.items():
            numbers[each.row] = getattr(job, TIMES.get(name, name), 0.0)
        if profile.reason is not None:
            self.excluded[job.job_id] = profile.reason
            return
        self._enter(each)
        self._wait_anew(each)

    def _wait_anew(self, each: QueuedJob) -> None:
        """Let a job wait, in the place that it has now."""
        self._keys[each.row] = self._keys_of(np.array([each.row])).item()
        self._wait(each)
        self._note_change(self._position(each))

    def _grow(self) -> None:
        count = len(self._keys)
        self._fit(count + max(ROWS, count))
        self._fields = {name: np.append(numbers, np.zeros(len(self._keys) - count)) for name, numbers in self._fields.items()}
        self._unused = [*range(len(self._keys) - 1, count - 1, -1)]

    def complete(self, job_id: str) -> None:
        """Remove a job that has finished."""
        each, _ = self._jobs.pop(job_id)
        self._left.append(self._row_of.pop(job_id))
        del self._failures[job_id]
        self.excluded.pop(job_id, None)
        self._remove(each.row)
        if each.runs_on >= 0:
            self._placement.release(each)

    cancel = complete

    def job_failed(self, job_id: str, *, now_seconds: float) -> bool:  # noqa: ARG002
        """Record that an attempt has failed; return whether the job will be tried again. Otherwise it leaves."""
        each, job = self._jobs[job_id]
        self._failures[job_id] += 1
        if not is_tried_again(job, self._failures[job_id]):
            self.complete(job_id)
            return False
        self._placement.release(each)
        self._failed.append(each)
        if not self._policy.preemptive:
            self._remove_selected(each)
            self._wait_anew(each)
        return True

    def report(self, job_id: str, *, steps_done: float) -> None:
        """Note the progress of a job."""
        self._fields["steps_done"][self._row_of[job_id]] = steps_done

    def report_all(self, reported: ReportedSteps) -> None:
        """Note the progress of all running jobs."""
        rows = np.fromiter(map(self._row_of.__getitem__, reported), dtype=np.int64, count=len(reported))
        self._fields["steps_done"][rows] = reported.steps

    def update(self, job_id: str, /, **fields: Any) -> None:
        """Change the steps that a job is expected to do."""
        each, job = self._jobs[job_id]
        self._jobs[job_id] = each, with_values(job, fields)
        self._fields["total_steps"][each.row] = fields["total_steps"]

    # Decisions

    def decide(self, now: float) -> EventChanges:
        """Return what changes now."""
        self._pass_time(now)
        if self._order is not None:
            self._move(self._is_queued)
        elif REMAINING in self._reads:
            self._move_selected()
        failed, self._failed = [each for each in self._failed if each.job_id in self._jobs], []
        affected = dict.fromkeys([*self.select(), *failed])
        stopped = [each for each in affected if each.column != each.runs_on >= 0]
        for each in stopped:
            self._placement.release(each)
        found = self._placement.place([each for each in affected if each.column >= 0 > each.runs_on])
        assert found is not None  # noqa: S101  gangs that may span all nodes have a place
        if self._order is not None:
            self._ran = np.array([each.row for each in self._selected.jobs], dtype=np.int64)
        return EventChanges([each for each in stopped if each.runs_on < 0], found, [each for each in failed if each.runs_on < 0])

    def _pass_time(self, now: float) -> None:
        """Count the time since the latest decision for the jobs that it let run, some of which may have stopped since."""
        fields, ran, self._now = self._fields, self._ran, now
        if len(ran):
            fields["attained_gpu_seconds"][ran] += (now - self._decided) * fields["num_gpus"][ran]
            fields["waiting_since_seconds"][ran] = now
        self._decided, self._ran = now, ran[:0]
        self._unused += self._left
        self._left = []

    @property
    def next_change_seconds(self) -> float:
        """When time alone changes the order, if gangs with GPUs continue to run, and other jobs to wait; infinite if never."""
        if self._order is None:
            return math.inf
        fields, runs, waits = self._fields, self._ran, self._waits.nonzero()[0]
        attained, since = fields["attained_gpu_seconds"][runs], fields["waiting_since_seconds"][waits]
        ran = self._order.next_change("attained_gpu_seconds", attained, attained, self._decided, fields["num_gpus"][runs])
        return min(ran, self._order.next_change("waiting_seconds", self._decided - since, 0.0, since, 1.0))

    def places(self, changes: EventChanges) -> dict[str, tuple[str, dict[str, int]] | None]:
        """Return {job_id: (type, {node: GPUs})} of the jobs that start, None for those that do not run any more."""
        waiting = dict.fromkeys([each.job_id for each in (*changes.lost, *changes.failed)])
        return waiting | {each.job_id: (self._layout.types[each.runs_on], self._nodes_of(each)) for each in changes.started}

    def _nodes_of(self, each: QueuedJob) -> dict[str, int]:
        """Return {name of a node: GPUs} of a gang."""
        names = self._layout.names[self._layout.parts[each.runs_on].nodes]
        return {names[node]: count for node, count in parts_held_by(each).items()}

    def give_to(self, scheduler: RoundScheduler, now: float) -> None:
        """Tell a scheduler without jobs about all jobs, their progress and times until now, and where they run."""
        self._pass_time(now)
        done = self._fields.get("steps_done")
        scheduler.submit_all([job for _, job in self._jobs.values()])
        for job_id in self._failures.elements():
            scheduler.job_failed(job_id)
        for each, _ in self._jobs.values():
            if self._order is not None:
                scheduler.note_times(each.job_id, **{name: self._fields[name].item(each.row) for name in TIMES})
            if done is not None:
                scheduler.report(each.job_id, steps_done=done.item(each.row))
            if each.runs_on >= 0:
                scheduler.found_running(each.job_id, self._nodes_of(each))
