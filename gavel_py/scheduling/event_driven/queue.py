"""The queue of an ordered policy, and the accelerator type that each of its jobs is given, updated by what has changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import compress, count
from operator import attrgetter, is_not
from typing import NamedTuple, cast

import numpy as np

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.arrays import returned_numbers
from gavel_py.scheduling.event_driven.queued_jobs import JobProfiler, Position, QueuedJob
from gavel_py.scheduling.jobs import JobTable

REMAINING = "steps_remaining"

COLUMNS = {
    "num_gpus": "num_gpus",
    "weights": "weight",
    "priorities": "priority",
    "arrival_seconds": "arrival_seconds",
    "total_steps": "total_steps",
}
"""{what a policy reads: column of the job table}; `REMAINING` follows from two of them."""

DECIDING_METHODS = ("sort_key", "view", "check", "serve", "decide")


def can_keep_order(policy: OrderedPolicy) -> bool:
    """Return whether jobs can be kept in the order of a policy: its sort key reads each job by itself, and only what a queue knows.

    A subclass does not inherit `by_job` if it overrides a method that decides, and a policy with its own `seats` selects types in
    another way than the queue does.
    """
    classes = type(policy).__mro__
    declared = next(i for i, each in enumerate(classes) if "by_job" in vars(each))
    is_overridden = any(name in vars(each) for each in classes[:declared] for name in DECIDING_METHODS)
    is_regular = type(policy).seats is OrderedPolicy.seats and not is_overridden
    return policy.by_job and is_regular and set(policy.reads) <= {*COLUMNS, REMAINING}


class _JobNumbers:
    """What `sort_key` reads of jobs: `fastest`, and the fields that the policy reads."""

    def __init__(self, fastest: Sequence[float]) -> None:
        self.fastest = np.array(fastest)

    def __len__(self) -> int:
        return len(self.fastest)


class Head(NamedTuple):
    """A job that waits, the first of its queue to be served."""

    position: Position
    place: int
    queue: list[tuple[Position, QueuedJob]]


BY_POSITION = attrgetter("position")

FIRST = (-np.inf,)
"""Less than any position."""


class JobQueue:
    """Jobs in the order in which an ordered policy serves them, and the types that it gives them.

    Jobs with a type are one list, and jobs that wait one for each size and preference of types (without backfilling, one for all):
    once the first of such a list does not fit, no other does. Jobs before the first change keep what they have.

    Attributes:
        by_row: {row: job} of the jobs that can run somewhere.
        excluded: {job_id: reason} of the others, in natural order.
        removed: Jobs that have left or changed since the latest decision; callers empty it.
    """

    def __init__(self, policy: OrderedPolicy, table: JobTable, profiler: JobProfiler, capacities: Sequence[float]) -> None:
        self._policy, self._table, self._profiler = policy, table, profiler
        self._name, self._capacities = f"policy {policy.name}", list(map(int, capacities))
        self.by_row: dict[int, QueuedJob] = {}
        self.excluded: dict[str, str] = {}
        self.removed: list[QueuedJob] = []
        self._excluded: dict[int, QueuedJob] = {}
        self._irregular: set[int] = set()
        self._done: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """Take their types from all jobs; without preemption, jobs that run on a type keep it."""
        self._selected: list[QueuedJob] = []
        self._waiting: dict[tuple[object, ...], list[tuple[Position, QueuedJob]]] = {}
        self._free, self.removed = self._capacities.copy(), []
        self._first_change: tuple[object, ...] | None = FIRST
        for each in self.by_row.values():
            each.column = -1
            self._queue_of(each).append((each.position, each))
        for queue in self._waiting.values():
            queue.sort()
        if not self._policy.preemptive:
            for each in self.by_row.values():
                if each.runs_on in each.profile.types:
                    self.keep_running(each)

    def _queue_of(self, each: QueuedJob) -> list[tuple[Position, QueuedJob]]:
        key = (each.size, each.profile.types) if self._policy.backfill else ()
        return self._waiting.setdefault(key, [])

    # Changes

    def update(self) -> bool:
        """Apply the changes recorded by the table; return whether event-driven decisions are possible.

        They are if every job has steps left and requests whole GPUs without an even split.
        """
        table = self._table
        changed, table.changed = table.changed, set()
        progressed, table.progressed = table.progressed - changed, set()
        left, before = table.columns["left"], len(self._excluded)
        for row in changed:
            self._remove(row)
        removed = len(self._excluded) != before
        arrived = [each for row in changed if left.item(row) < 0 if (each := self._entered(row)) is not None]
        if removed or len(self._excluded) != len(self.excluded):
            by_name = sorted(self._excluded.values(), key=attrgetter("natural"))
            self.excluded = {each.job_id: str(each.profile.reason) for each in by_name}
        progressing = list(map(self.by_row.__getitem__, progressed & self.by_row.keys())) if progressed else []
        self._note_done([*arrived, *progressing])
        moving = progressing if REMAINING in self._policy.reads else []
        keys = self._keys([*arrived, *moving])
        for each, key in zip(arrived, keys, strict=False):
            each.position = (key, table.columns["arrival_seconds"].item(each.row), each.natural)
            insort(self._queue_of(each), (each.position, each))
            self._note_change(each.position)
        self._move(moving, keys[len(arrived) :])
        return not self._done and not self._irregular

    def keep_running(self, each: QueuedJob) -> None:
        """Give a waiting job the type on which it runs."""
        self._remove_waiting(each)
        insort(self._selected, each, key=BY_POSITION)
        each.column = each.runs_on
        self._free[each.column] -= each.size

    def deselect(self, each: QueuedJob) -> None:
        """Take its type from a job, which then waits."""
        self._remove_selected(each)
        insort(self._queue_of(each), (each.position, each))

    def _entered(self, row: int) -> QueuedJob | None:
        """Return a new entry for a job, None if it can run nowhere."""
        table, profile = self._table, self._profiler(row)
        each = QueuedJob(row, table.ids[row], profile, table.columns["restart_seconds"].item(row))
        if profile.reason is not None:
            self._excluded[row] = each
            return None
        self.by_row[row] = each
        if not profile.is_regular:
            self._irregular.add(row)
        return each

    def _remove(self, row: int) -> None:
        self._excluded.pop(row, None)
        self._irregular.discard(row)
        self._done.discard(row)
        each = self.by_row.pop(row, None)
        if each is not None:
            self.removed.append(each)
            if each.column >= 0:
                self._remove_selected(each)
            else:
                self._remove_waiting(each)
                if not self._policy.backfill:  # others may have waited for it
                    self._note_change(each.position)

    def _remove_selected(self, each: QueuedJob) -> None:
        del self._selected[bisect_left(self._selected, each.position, key=BY_POSITION)]
        self._free[each.column] += each.size
        each.column = -1
        self._note_change(each.position)

    def _remove_waiting(self, each: QueuedJob) -> None:
        queue = self._queue_of(each)
        del queue[bisect_left(queue, (each.position,))]

    def _note_change(self, position: Position) -> None:
        """Record that jobs from this position on may get another type."""
        if self._first_change is None or position < self._first_change:
            self._first_change = position

    def _note_done(self, entries: Sequence[QueuedJob]) -> None:
        """Record which of these jobs have no steps left; unknown total steps are NaN, for which the comparison is false."""
        if entries:
            rows, columns = [each.row for each in entries], self._table.columns
            done = columns["steps_done"][rows] >= columns["total_steps"][rows]
            if self._done or done.any():
                self._done = self._done.difference(rows).union(compress(rows, done.tolist()))

    def _keys(self, entries: Sequence[QueuedJob]) -> list[float]:
        """Return the sort keys of jobs."""
        if not entries:
            return []
        rows, columns, reads = [each.row for each in entries], self._table.columns, self._policy.reads
        numbers = _JobNumbers([each.profile.fastest for each in entries])
        for name in reads:
            if name == REMAINING:
                column = np.maximum(0.0, columns["total_steps"][rows] - columns["steps_done"][rows])
            else:
                column = columns[COLUMNS[name]][rows]
            setattr(numbers, name, column)
        returned = self._policy.sort_key(cast("JobClasses", numbers))
        keys: list[float] = returned_numbers(
            returned, len(entries), self._name, "sort_key", "finite", lambda i: entries[i].job_id
        ).tolist()
        return keys

    def _move(self, entries: Sequence[QueuedJob], keys: Sequence[float]) -> None:
        """Give other sort keys to jobs."""
        moves: list[tuple[QueuedJob, Position]] = []  # of jobs with a type: where they were
        for each, key in zip(entries, keys, strict=True):
            before = each.position
            if key == before[0]:
                continue
            after = (key, before[1], each.natural)
            if each.column < 0:
                self._remove_waiting(each)
                insort(self._queue_of(each), (after, each))
                self._note_change(min(before, after))
            else:
                moves.append((each, before))
                if after > before:  # jobs that waited for it may come first now
                    self._note_change(before)
            each.position = after
        if moves:
            order = self._selected.copy()
            self._selected.sort(key=BY_POSITION)
            first = next(compress(count(), map(is_not, order, self._selected)), None)
            if first is not None:
                self._note_change(self._selected[first].position)
            if (changed := self._first_change) is not None:
                # Jobs on slower types that have come from behind a change to before it.
                for each, before in moves:
                    if before >= changed and each.column != each.profile.types[0]:
                        self._note_change(each.position)

    # Selection

    def select(self) -> list[QueuedJob]:
        """Give types to the jobs in turn, from the first change on, and return the jobs that have another type now, or none."""
        first, self._first_change = self._first_change, None
        if first is None:
            return []
        selected, heads = self._selected, list[Head]()
        start = bisect_left(selected, first, key=BY_POSITION) if self._policy.preemptive else len(selected)
        for each in selected[start:]:
            self._free[each.column] += each.size
        for queue in self._waiting.values():
            place = bisect_left(queue, (first,)) if self._policy.preemptive else 0
            # Without backfilling, the first job that waits holds up all others.
            if place < len(queue) and (self._fits(queue[place][1]) if self._policy.backfill else not place):
                heads.append(Head(queue[place][0], place, queue))
        start += self._settle(selected[start:], min(heads, default=None))
        kept, moved = self._serve(heads, selected[start:])
        selected[start:] = kept
        if not self._policy.preemptive:
            selected.sort(key=BY_POSITION)
        for each, column in moved:
            if each.column < 0:
                self._remove_waiting(each)
            elif column < 0:
                insort(self._queue_of(each), (each.position, each))
            each.column = column
        return [each for each, _ in moved]

    def _settle(self, selected: Sequence[QueuedJob], head: Head | None) -> int:
        """Return how many of these jobs, before the first one that may get another type, keep theirs; take their GPUs.

        A job on its fastest type keeps it as long as all jobs before it keep the types that they had beside it, in any order.
        """
        end = len(selected) if head is None else bisect_left(selected, head.position, key=BY_POSITION)
        for place in range(end):
            each = selected[place]
            if each.column != each.profile.types[0]:
                return place
            self._free[each.column] -= each.size
        return end

    def _serve(self, heads: list[Head], selected: list[QueuedJob]) -> tuple[list[QueuedJob], list[tuple[QueuedJob, int]]]:
        """Serve jobs in order; return those with a type, and (job, type or -1) of those that have another one than before.

        Args:
            heads: The first jobs of queues of waiting jobs.
            selected: The jobs that had a type, in order; emptied.
        """
        kept, moved = list[QueuedJob](), list[tuple[QueuedJob, int]]()
        heapify(heads)
        selected.reverse()
        while heads or selected:
            head = heads[0] if heads and not (selected and selected[-1].position < heads[0].position) else None
            each = selected.pop() if head is None else head.queue[head.place][1]
            column = self._taken_type(each)
            if column >= 0:
                kept.append(each)
            if column != each.column:
                moved.append((each, column))
            if column < 0 and not self._policy.backfill:
                return kept, moved + [(other, -1) for other in selected]
            if head is not None:
                place, queue = head.place + 1, head.queue
                if column >= 0 and place < len(queue):
                    heapreplace(heads, Head(queue[place][0], place, queue))
                else:
                    heappop(heads)
        return kept, moved

    def _fits(self, each: QueuedJob) -> bool:
        return any(self._free[column] >= each.size for column in each.profile.types)

    def _taken_type(self, each: QueuedJob) -> int:
        """Take GPUs of the fastest type with enough free ones for a job, as `select_types` does; return the type, -1 for none."""
        free, size = self._free, each.size
        for column in each.profile.types:
            if free[column] >= size:
                free[column] -= size
                return column
        return -1
