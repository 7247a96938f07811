"""The queue of an ordered policy, with the accelerator type given to each job, updated incrementally."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np

from gavel_py.optimization.job_classes import JobClasses, returned_numbers
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.event_driven.queued_jobs import JobProfiler, OrderedJobs, Position, QueuedJob
from gavel_py.scheduling.jobs.history import ScheduledJobs

REMAINING = "steps_remaining"

OF_WORKFLOW = "workflow_seconds"

COLUMNS = {
    "num_gpus": "num_gpus",
    "weights": "weight",
    "priorities": "priority",
    "arrival_seconds": "arrival_seconds",
    "total_steps": "total_steps",
}
"""{field that a policy reads: column of the job table}. `REMAINING` needs two columns, `OF_WORKFLOW` all jobs of a workflow."""

DECIDING_METHODS = ("sort_key", "view", "check", "serve", "decide")


def can_keep_order(policy: OrderedPolicy, further: Collection[str] = ()) -> bool:
    """Return whether a queue can keep a policy's order: the sort key of a job depends on known fields of that job only.

    further: fields that are known, too.

    A subclass does not inherit `by_job` if it overrides a method that decides, and a policy with its own `seats` selects types
    differently from the queue.
    """
    classes = type(policy).__mro__
    declared = next(i for i, each in enumerate(classes) if "by_job" in vars(each))
    is_overridden = any(name in vars(each) for each in classes[:declared] for name in DECIDING_METHODS)
    is_regular = type(policy).seats is OrderedPolicy.seats and not is_overridden
    return policy.by_job and is_regular and set(policy.reads) <= {*COLUMNS, REMAINING, OF_WORKFLOW, *further}


class JobNumbers:
    """The job data that `sort_key` reads: `fastest`, and the fields that the policy reads."""

    def __init__(self, fastest: Floats) -> None:
        self.fastest = fastest

    def __len__(self) -> int:
        return len(self.fastest)


FIRST = (-np.inf, ())
"""Less than any position."""

OF_ROW = attrgetter("row")


class Head(NamedTuple):
    """A waiting job that is the first of its queue."""

    position: Position
    place: int
    queue: list[tuple[Position, QueuedJob]]


class OrderedQueue:
    """Jobs in the order in which an ordered policy serves them, and the types that it gives them.

    Jobs with a type form one list. Waiting jobs form one list for each size and preference of types (without backfilling, one list
    for all): if the first job of such a list does not fit, no other one does. Jobs before the first change keep their types.

    Attributes:
        by_row: {row: job} of the jobs that can run somewhere.
    """

    def __init__(self, policy: OrderedPolicy, capacities: Sequence[float]) -> None:
        self._policy, self._reads = policy, frozenset(policy.reads)
        self._name, self._capacities = f"policy {policy.name}", list(map(int, capacities))
        self.by_row: dict[int, QueuedJob] = {}
        # By row: sort keys, throughputs on the fastest type, the jobs of `by_row`, and those of them that wait.
        self._keys, self._fastest = np.zeros(0), np.zeros(0)
        self._is_queued, self._waits = np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
        self.clear()

    @abstractmethod
    def _column(self, name: str, rows: Indices) -> Floats:
        """Return (N,) a field that the policy reads, of the jobs in these rows."""

    def clear(self) -> None:
        """Clear the types of all jobs; without preemption, running jobs keep theirs."""
        self._selected = OrderedJobs()
        self._waiting: dict[tuple[object, ...], list[tuple[Position, QueuedJob]]] = {}
        self._free = self._capacities.copy()
        self._first_change: Position | None = FIRST
        self._waits[:] = self._is_queued
        for each in self.by_row.values():
            each.column = -1
            self._queue_of(each).append((self._position(each), each))
        for queue in self._waiting.values():
            queue.sort()
        if not self._policy.preemptive:
            for each in self.by_row.values():
                if each.runs_on in each.types:
                    self.keep_running(each)

    def _position(self, each: QueuedJob) -> Position:
        return self._keys.item(each.row), each.tie

    def _queue_of(self, each: QueuedJob) -> list[tuple[Position, QueuedJob]]:
        key = (each.size, each.types) if self._policy.backfill else ()
        return self._waiting.setdefault(key, [])

    # Changes

    def _fit(self, capacity: int) -> None:
        more = capacity - len(self._keys)
        if more > 0:
            columns = self._keys, self._fastest, self._is_queued, self._waits
            self._keys, self._fastest, self._is_queued, self._waits = (
                np.concatenate([each, np.zeros(more, dtype=each.dtype)]) for each in columns
            )

    def keep_running(self, each: QueuedJob) -> None:
        """Give a waiting job the type on which it runs."""
        self._remove_waiting(each)
        self._selected.add(each, self._keys.item(each.row))
        each.column = each.runs_on
        self._free[each.column] -= each.size

    def deselect(self, each: QueuedJob) -> None:
        """Clear the type of a job, which then waits."""
        self._remove_selected(each)
        self._wait(each)

    def _enter(self, each: QueuedJob) -> None:
        """Add a job, which `_wait` lets wait once its fields can be read."""
        self.by_row[each.row] = each
        self._fastest[each.row], self._is_queued[each.row] = each.profile.fastest, True

    def _remove(self, row: int) -> QueuedJob | None:
        """Remove and return a job, None if it is not one that can run somewhere."""
        each = self.by_row.pop(row, None)
        if each is not None:
            self._is_queued[row] = False
            if each.column >= 0:
                self._remove_selected(each)
            else:
                self._remove_waiting(each)
                if not self._policy.backfill:  # others may have waited for it
                    self._note_change(self._position(each))
        return each

    def _remove_selected(self, each: QueuedJob) -> None:
        position = self._position(each)
        self._selected.drop(position)
        self._free[each.column] += each.size
        each.column = -1
        self._note_change(position)

    def _wait(self, each: QueuedJob) -> None:
        self._waits[each.row] = True
        insort(self._queue_of(each), (self._position(each), each))

    def _remove_waiting(self, each: QueuedJob) -> None:
        self._waits[each.row] = False
        queue = self._queue_of(each)
        del queue[bisect_left(queue, (self._position(each),))]

    def _note_change(self, position: Position) -> None:
        """Record that jobs from this position on may get a different type."""
        if self._first_change is None or position < self._first_change:
            self._first_change = position

    def _keys_of(self, rows: Indices) -> Floats:
        """Return (N,) the sort keys of the jobs in these rows."""
        numbers = JobNumbers(self._fastest[rows])
        for name in self._reads:
            setattr(numbers, name, self._column(name, rows))
        keys = self._policy.sort_key(cast("JobClasses", numbers))
        return returned_numbers(keys, len(rows), self._name, "sort_key", "finite", lambda i: self.by_row[rows.item(i)].job_id)

    def _move(self, moved: Mask) -> None:
        """Update the sort keys of these jobs, and of all jobs with a type; moved: (rows,)."""
        waiting = (moved & self._waits).nonzero()[0]
        keys = self._keys_of(waiting) if len(waiting) else self._keys[waiting]
        changed = (keys != self._keys[waiting]).nonzero()[0]
        for row, key in zip(waiting[changed].tolist(), keys[changed].tolist(), strict=True):
            each, before = self.by_row[row], self._position(self.by_row[row])
            self._remove_waiting(each)
            self._keys[row] = key
            self._wait(each)
            self._note_change(min(before, self._position(each)))
        self._move_selected()

    def _move_selected(self) -> None:
        """Update the sort keys of the jobs with a type."""
        jobs = self._selected.jobs
        if not jobs:
            return
        rows = np.fromiter(map(OF_ROW, jobs), dtype=np.int64, count=len(jobs))
        before, keys = self._keys[rows], self._keys_of(rows)
        later = (keys > before).nonzero()[0]
        if len(later):  # jobs that waited for the first of these may come before it now
            self._note_change(self._position(jobs[later[0]]))
        self._keys[rows] = keys
        if not (keys[1:] > keys[:-1]).all():
            order = self._order_of(keys, before)
            moved = np.flatnonzero(order != np.arange(len(rows)))
            if len(moved):
                jobs, keys, before = [jobs[i] for i in order.tolist()], keys[order], before[order]
                self._note_change(self._position(jobs[moved[0]]))
        self._selected.jobs, self._selected.keys = jobs, keys.tolist()
        if self._first_change is not None:
            # Jobs on slower types that have moved from behind a change to before it; the first of them is noted.
            start, key = self._selected.place_of(self._first_change), self._first_change[0]
            for place in (before[:start] >= key).nonzero()[0].tolist():
                if (each := jobs[place]).column != each.types[0]:
                    self._note_change(self._position(each))
                    break

    def _order_of(self, keys: Floats, before: Floats) -> Indices:
        """Return the order of the jobs with a type by new sort keys."""
        order: Indices = np.argsort(keys, kind="stable")
        in_order = keys[order]
        ties = np.flatnonzero(in_order[1:] == in_order[:-1])
        if (before[order[ties]] == before[order[ties + 1]]).all():  # they were in order before
            return order
        for run in np.split(ties, np.flatnonzero(np.diff(ties) > 1) + 1):
            equal = slice(run[0], run[-1] + 2)
            order[equal] = sorted(order[equal].tolist(), key=lambda i: self._selected.jobs[i].tie)
        return order

    # Selection

    def select(self) -> list[QueuedJob]:
        """Give types to the jobs in order, from the first change on, and return the jobs whose type has changed."""
        first, self._first_change = self._first_change, None
        if first is None:
            return []
        heads = list[Head]()
        start = self._selected.place_of(first) if self._policy.preemptive else len(self._selected.jobs)
        free = self._free_before(start)
        for queue in self._waiting.values():
            place = bisect_left(queue, (first,)) if self._policy.preemptive else 0
            # Without backfilling, the first job that waits holds up all others.
            if place < len(queue) and (queue[place][1].fits(free) if self._policy.backfill else not place):
                heads.append(Head(queue[place][0], place, queue))
        moved = self._serve(heads, start, free)
        for each, column in moved:
            if each.column >= 0:
                self._free[each.column] += each.size
            if column >= 0:
                self._free[column] -= each.size
        for each, column in moved:
            if each.column < 0:
                self._remove_waiting(each)
                self._selected.add(each, self._keys.item(each.row))
            elif column < 0:
                self._selected.drop(self._position(each))
                self._wait(each)
            each.column = column
        return [each for each, _ in moved]

    def _free_before(self, start: int) -> list[int]:
        """Return the GPUs of each type that are free before the jobs with a type are served from this place on."""
        selected = self._selected.jobs
        if start < len(selected) - start:
            free, jobs, sign = self._capacities.copy(), selected[:start], -1
        else:
            free, jobs, sign = self._free.copy(), selected[start:], 1
        for each in jobs:
            free[each.column] += sign * each.size
        return free

    def _serve(self, heads: list[Head], start: int, free: list[int]) -> list[tuple[QueuedJob, int]]:
        """Serve jobs in order, and return (job, type or -1) of the jobs whose type changes.

        Args:
            heads: The first jobs of queues of waiting jobs.
            start: The first job with a type that is served.
            free: The free GPUs, which are taken.
        """
        moved, selected, backfill = list[tuple[QueuedJob, int]](), self._selected.jobs, self._policy.backfill
        heapify(heads)
        while True:
            head = heads[0] if heads else None
            end = len(selected) if head is None else self._selected.place_of(head.position, start)
            if not self._serve_selected(selected[start:end], free, moved):
                return moved + [(other, -1) for other in selected[selected.index(moved[-1][0]) + 1 :]]
            if head is None:
                return moved
            start, (_, place, queue) = end, head
            each = queue[place][1]
            column = each.take_type(free)
            if column >= 0:
                moved.append((each, column))
            elif not backfill:
                return moved + [(other, -1) for other in selected[start:]]
            if column >= 0 and place + 1 < len(queue):
                heapreplace(heads, Head(queue[place + 1][0], place + 1, queue))
            else:
                heappop(heads)

    def _serve_selected(self, jobs: Sequence[QueuedJob], free: list[int], moved: list[tuple[QueuedJob, int]]) -> bool:
        """Serve jobs with a type in order, and add those whose type changes; return False if one of them blocks the others."""
        for each in jobs:
            size = each.size
            for column in each.types:  # as `take_type`, written out since most decisions look at all jobs with a type
                if free[column] >= size:
                    free[column] -= size
                    break
            else:
                column = -1
            if column != each.column:
                moved.append((each, column))
                if column < 0 and not self._policy.backfill:
                    return False
        return True


class JobQueue(OrderedQueue):
    """The service order of the jobs of a table, updated from the changes that it records.

    Attributes:
        excluded: {job_id: reason} of the jobs that cannot run anywhere, in natural order.
        removed: Jobs that have left or changed since the latest decision; callers empty it.
    """

    def __init__(
        self,
        policy: OrderedPolicy,
        table: ScheduledJobs,
        profiler: JobProfiler,
        capacities: Sequence[float],
        workflow_seconds: Callable[[], Floats],
    ) -> None:
        super().__init__(policy, capacities)
        self._table, self._profiler = table, profiler
        self._look_up_workflows, self._workflow_seconds = workflow_seconds, np.zeros(0)
        self.excluded: dict[str, str] = {}
        self._excluded: dict[int, QueuedJob] = {}
        self._irregular: set[int] = set()
        self._done: set[int] = set()

    def clear(self) -> None:
        super().clear()
        self.removed: list[QueuedJob] = []

    def update(self) -> bool:
        """Apply the changes recorded by the table; return whether event-driven decisions are possible.

        This is the case if every job has steps left and requests whole GPUs without an even split.
        """
        table = self._table
        self._fit(table.capacity)
        if OF_WORKFLOW in self._reads:
            self._workflow_seconds = self._look_up_workflows()
        changed, table.changed = table.changed, set()
        left, before = table.columns["left"], len(self._excluded)
        for row in changed:
            self._remove(row)
        removed = len(self._excluded) != before
        arrived = [each for row in changed if left.item(row) < 0 if (each := self._entered(row)) is not None]
        if removed or len(self._excluded) != len(self.excluded):
            by_name = sorted(self._excluded.values(), key=attrgetter("natural"))
            self.excluded = {each.job_id: str(each.profile.reason) for each in by_name}
        if arrived:
            rows = np.array([each.row for each in arrived], dtype=np.int64)
            self._note_done(rows)
            self._keys[rows] = self._keys_of(rows)
            for each in arrived:
                self._wait(each)
                self._note_change(self._position(each))
        has_moved, moved = table.has_progress, table.progressed
        if table.has_progress:
            moved = moved & self._is_queued
            table.progressed[:] = table.has_progress = False
            self._note_done(moved.nonzero()[0])
        if OF_WORKFLOW in self._reads and table.workflows:  # other jobs of the workflow have progressed, arrived or left
            has_moved, moved = True, moved | ((table.workflow_of >= 0) & self._is_queued)
        if REMAINING in self._reads and has_moved:
            self._move(moved)
        return not self._done and not self._irregular

    def _entered(self, row: int) -> QueuedJob | None:
        """Return a new entry for a job, None if it cannot run anywhere."""
        table, profile = self._table, self._profiler(row)
        columns = table.columns
        each = QueuedJob(row, table.ids[row], profile, columns["restart_seconds"].item(row), columns["arrival_seconds"].item(row))
        if profile.reason is not None:
            self._excluded[row] = each
            return None
        self._enter(each)
        if not profile.is_regular:
            self._irregular.add(row)
        return each

    def _remove(self, row: int) -> QueuedJob | None:
        self._excluded.pop(row, None)
        self._irregular.discard(row)
        self._done.discard(row)
        each = super()._remove(row)
        self.removed += () if each is None else (each,)
        return each

    def _note_done(self, rows: Indices) -> None:
        """Record which of these jobs have no steps left; unknown total steps are NaN, for which the comparison is false."""
        columns = self._table.columns
        done = columns["steps_done"][rows] >= columns["total_steps"][rows]
        if self._done or done.any():
            self._done = self._done.difference(rows.tolist()).union(rows[done].tolist())

    def _column(self, name: str, rows: Indices) -> Floats:
        columns = self._table.columns
        if name == REMAINING:
            return np.maximum(0.0, columns["total_steps"][rows] - columns["steps_done"][rows])
        if name == OF_WORKFLOW:
            return self._workflow_seconds[rows]
        return columns[COLUMNS[name]][rows]
