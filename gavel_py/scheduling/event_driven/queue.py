"""The job queue of an ordered policy and the types that it gives, kept from one decision to the next.

`JobQueue` has the jobs in the order in which the policy serves them. `KeptSelection` says which jobs have a seat, all of their time
on one type: few jobs can get another than they had. `JobProfile` are what the policy and the placement need to know of a job, the
same for all jobs like it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import compress, count, islice, repeat
from operator import attrgetter, is_not, ne, not_
from typing import cast

import numpy as np

from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.array_validation import returned_numbers
from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job, with_steps
from gavel_py.scheduling.current_allocation import new_only
from gavel_py.scheduling.jobs import JobRegistry
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.placement.gangs import PlacementPreference, Spans
from gavel_py.scheduling.placement.topology import NODE, SCOPES, Layout
from gavel_py.scheduling.problem_cache import LIKE, JobRows
from gavel_py.throughput_profiles import ThroughputProfile

Place = tuple[float, float, tuple[tuple[str | int, ...], str]]


@dataclass(frozen=True, slots=True)
class JobProfile:
    """size: GPUs of the gang, 0 of a part of one; is_plain: whether they are whole, and may be split in any way; wishes: the types
    on which it can run, as columns, the fastest first; fastest: steps/s there; scope: its locality, as its place in `SCOPES`;
    kinds, fewest: by column, the placement that it is to have, and the nodes on which it must be at least; reason: why it can run
    nowhere, None if it can.
    """

    size: int
    is_plain: bool
    wishes: list[int]
    fastest: float
    scope: int
    kinds: list[int]
    fewest: list[int]
    reason: str | None


class JobProfiler:
    """Finds out about jobs on a cluster whose nodes are all up, under one policy."""

    def __init__(self, policy: OrderedPolicy, nodes: NodeStates, profile: Profile, whole_gangs: bool, rows: JobRows) -> None:
        self._policy, self._profile, self._whole_gangs, self._rows = policy, profile, whole_gangs, rows
        self._nodes = NodeStates(nodes.cluster)
        self._types = nodes.cluster.accelerator_names
        self._layout, self._spans = Layout(nodes.cluster.nodes), Spans(nodes.cluster)
        # A profile by job type knows nothing else of a job.
        self._by_type = type(profile) is ThroughputProfile
        self._like: dict[tuple[object, ...], JobProfile] = {}

    def knows(self, job: Job) -> bool:
        """Say whether a job like this one has been looked at, whose steps are known as those of this one are."""
        return self._by_type and job.total_steps is not None and LIKE(job) in self._like

    def __call__(self, job: Job) -> tuple[float, JobProfile]:
        """Return the total steps of a job, NaN where nobody knows, and its traits. Raises `InputError` as `Policy.check`."""
        if self.knows(job):
            assert job.total_steps is not None  # noqa: S101
            return job.total_steps, self._like[LIKE(job)]
        problem = new_only([with_steps(job, 0.0)], self._whole_gangs).problem(self._nodes, self._profile, self._rows)
        jobs = self._policy.view(separate_jobs(problem, self._policy.name, self._policy.reads))
        able = len(jobs) > 0
        preference = np.argsort(-jobs.throughputs[0], kind="stable").tolist() if able else []
        kinds, fewest = np.zeros(len(self._types), dtype=np.int64), np.ones(len(self._types), dtype=np.int64)
        scope = SCOPES.index(job.locality)
        if problem.speeds is not None:
            for j in np.flatnonzero(problem.speeds.differ[0]).tolist():
                fewest[j] = self._spans.fewest(self._types[j], int(job.num_gpus))
                # The same as in `GangBatch.with_preferences_on`.
                if job.num_gpus > fewest[j] and fewest[j] < self._nodes_of(j) and scope != NODE:
                    kinds[j] = PlacementPreference.APART if problem.speeds.spread_is_faster[0, j] else PlacementPreference.TOGETHER
        traits = JobProfile(
            size=int(job.num_gpus),
            is_plain=job.num_gpus == int(job.num_gpus) and not (job.even_split and job.num_gpus > 1),
            wishes=[j for j in preference if jobs.runnable[0, j]],
            fastest=float(jobs.fastest[0]) if able else 0.0,
            scope=scope,
            kinds=kinds.tolist(),
            fewest=fewest.tolist(),
            reason=problem.excluded.get(job.job_id),
        )
        if self._by_type and job.total_steps is not None:
            self._like[LIKE(job)] = traits
        return float(problem.total_steps[0]), traits

    def _nodes_of(self, column: int) -> int:
        number = self._layout.type_number.get(self._types[column])
        return 0 if number is None else len(self._layout.parts[number].sizes)


REMAINING = "steps_remaining"

FIXED: dict[str, Callable[[Job], float]] = {
    "num_gpus": attrgetter("num_gpus"),
    "weights": attrgetter("weight"),
    "priorities": attrgetter("priority"),
    "arrival_seconds": attrgetter("arrival_seconds"),
}
"""What is known of a job that stays as it is unless the job changes, beside its total steps."""

DECIDING = ("sort_key", "view", "check", "serve", "seats", "decide")

BY_PLACE, JOB_ID = attrgetter("place"), attrgetter("job_id")


def can_keep_order(policy: OrderedPolicy) -> bool:
    """Say whether the order of jobs under a policy can be kept: it looks at each job by itself, and at what is known here.

    What a class says of itself (`by_job`) holds for a class made of it only if that one decides nothing in a way of its own.
    """
    classes = type(policy).__mro__
    says = next(i for i, each in enumerate(classes) if "by_job" in vars(each))
    own = any(name in vars(each) for each in classes[:says] for name in DECIDING)
    return policy.by_job and not own and set(policy.reads) <= {*FIXED, "total_steps", REMAINING}


class QueuedJob:
    """One job in line. total_steps: NaN where nobody knows; numbers: by attribute that is read; traits, with size and wishes: see
    `JobProfile`; restart_seconds: None where the job does not say.
    """

    __slots__ = ("job_id", "natural", "numbers", "place", "restart_seconds", "size", "total_steps", "traits", "wishes")

    def __init__(self, job: Job, total_steps: float, traits: JobProfile, reads: Iterable[str]) -> None:
        self.job_id, self.natural, self.total_steps, self.traits = job.job_id, natural_key(job.job_id), total_steps, traits
        self.size, self.wishes = traits.size, traits.wishes
        self.numbers = [total_steps if name == "total_steps" else float(FIXED[name](job)) for name in reads]
        self.restart_seconds = job.restart_seconds
        self.place: Place = (0.0, job.arrival_seconds, self.natural)


class _Numbers:
    """What `sort_key` reads of jobs where it looks at each by itself: the attributes that the policy declares, and `fastest`."""

    def __init__(self, fastest: Sequence[float], columns: dict[str, Floats]) -> None:
        self.fastest = np.array(fastest)
        self.__dict__.update(columns)

    def __len__(self) -> int:
        return len(self.fastest)


class JobQueue:
    """asked: all that must be known of a job, its total steps and `JobProfile`; excluded: jobs that can run nowhere, in order."""

    def __init__(self, policy: OrderedPolicy, asked: Callable[[Job], tuple[float, JobProfile]]) -> None:
        self._policy, self._asked = policy, asked
        self._fixed = [name for name in policy.reads if name != REMAINING]
        self._moves = REMAINING in policy.reads
        self._order: list[QueuedJob] = []
        self._odd: set[str] = set()
        self._done: set[str] = set()
        self.of: dict[str, QueuedJob] = {}
        self.excluded: dict[str, str] = {}

    def follow(self, book: JobRegistry) -> bool:
        """Take note of who has come, changed or left; say whether each has steps left and asks for whole GPUs, split anyhow."""
        touched, book.touched = book.touched, set()
        told, book.told = book.told - touched, set()
        for job_id in self.of.keys() & touched:
            self._drop(job_id)
        come = [self._entry(book.known(job_id)) for job_id in touched if job_id in book]
        self._follow_excluded(touched, come)
        come = [entry for entry in come if entry.traits.reason is None]
        self._odd = (self._odd - touched) | {entry.job_id for entry in come if not entry.traits.is_plain}
        self._done -= touched
        self.of |= {entry.job_id: entry for entry in come}
        asked = [*come, *map(self.of.__getitem__, told & self.of.keys())]
        left = self._left(book, asked)
        if self._moves:
            self._set_keys(asked, {REMAINING: np.array(left)})
            self._order += come
            self._order.sort(key=BY_PLACE)
        else:
            self._set_keys(come, {})
            for entry in come:
                insort(self._order, entry, key=BY_PLACE)
        return not self._done and not self._odd

    def _left(self, book: JobRegistry, asked: Sequence[QueuedJob]) -> list[float]:
        """Return the steps that jobs have left, and take note of those that have none."""
        ids = list(map(JOB_ID, asked))
        # Where nobody knows how many there are (NaN), none are left.
        left = [max(0.0, entry.total_steps - done) for entry, done in zip(asked, book.steps_of(ids), strict=True)]
        if self._done or not all(left):
            self._done = self._done.difference(ids).union(compress(ids, map(not_, left)))
        return left

    @property
    def order(self) -> list[QueuedJob]:
        """The jobs that can run somewhere, in the order in which they are served."""
        return self._order

    def _entry(self, job: Job) -> QueuedJob:
        return QueuedJob(job, *self._asked(job), self._fixed)

    def _drop(self, job_id: str) -> None:
        entry = self.of.pop(job_id)
        at = bisect_left(self._order, entry.place, key=BY_PLACE)
        del self._order[at]

    def _follow_excluded(self, touched: set[str], come: Sequence[QueuedJob]) -> None:
        new = {entry.job_id: entry.traits.reason for entry in come if entry.traits.reason is not None}
        if new or (self.excluded and touched.intersection(self.excluded)):
            left = {job_id: reason for job_id, reason in self.excluded.items() if job_id not in touched} | new
            self.excluded = {job_id: left[job_id] for job_id in sorted(left, key=natural_key)}

    def _set_keys(self, entries: Sequence[QueuedJob], columns: dict[str, Floats]) -> None:
        if not entries:
            return
        columns |= {name: np.array([entry.numbers[i] for entry in entries]) for i, name in enumerate(self._fixed)}
        numbers = _Numbers([entry.traits.fastest for entry in entries], columns)
        told = self._policy.sort_key(cast("JobClasses", numbers))
        name = f"policy {self._policy.name}"
        keys = returned_numbers(told, len(entries), name, "sort_key", "finite", lambda i: entries[i].job_id)
        for entry, key in zip(entries, keys.tolist(), strict=True):
            entry.place = (key, entry.place[1], entry.natural)


AT_ONCE = 16
"""So many jobs without a seat are asked about at once where the first that does not fit makes all later ones wait."""

SIZE, WISHES = attrgetter("size"), attrgetter("wishes")

Runs = Callable[[Sequence[QueuedJob]], list[int]]


class KeptSelection:
    """The seats that an ordered policy gives; capacities: the GPUs of each type, by column."""

    def __init__(self, policy: OrderedPolicy, capacities: Sequence[float]) -> None:
        self._policy, self._capacities = policy, list(capacities)
        # In a way of its own, a policy may take a seat from a job whose wishes nobody before it has come to share.
        self._is_plain = policy.preemptive and type(policy).seats is OrderedPolicy.seats
        self._all_wait = self._is_plain and not policy.backfill
        self.clear()

    def clear(self) -> None:
        """Forget all seats."""
        self._order: list[QueuedJob] = []
        self._free = self._capacities.copy()
        self._columns: dict[QueuedJob, int] = {}
        self._seated: dict[str, QueuedJob] = {}
        self._content: set[QueuedJob] = set()
        self._first_without: int | None = None

    def column_of(self, each: QueuedJob | None) -> int:
        """The column of the type on which a job has all of its time, -1 for none."""
        return -1 if each is None else self._columns.get(each, -1)

    def follow(self, order: Sequence[QueuedJob], changed: Set[str], runs: Runs) -> set[str]:
        """Give seats to the jobs in this order, and return those that have got another than they had, or none any more.

        changed: those that have come, changed or left; runs: the column on which each of some jobs runs, -1 for none.
        Raises `ProofError` where time is given to a job that cannot run there, or more of it than there are GPUs.
        """
        gone = [self._seated[job_id] for job_id in self._seated.keys() & changed]
        for each in gone:
            self._get_up(each)
        before, self._order = self._order, list(order)
        same = next(compress(count(), map(is_not, order, before)), min(len(order), len(before)))
        first = self._first_unsure(same)
        moved = {} if first is None else self._other_types(first, runs)
        for each in moved.keys() & self._columns.keys():
            self._get_up(each)
        for each, column in moved.items():
            if column >= 0:
                self._sit_down(each, column)
        if min(self._free, default=0) < 0:
            raise ProofError("more GPUs were given than there are")
        return {each.job_id for each in (*gone, *moved)}

    def _first_unsure(self, same: int) -> int | None:
        """The place of the first job whose seat may be another, None if there is none; same: so many first ones are as before."""
        if not self._policy.preemptive:
            return 0
        if not self._policy.backfill and self._first_without is not None and self._first_without < same:
            return None  # all later ones wait as they did
        if not self._is_plain:
            return same
        # Who has the first of its wishes keeps it while all before it have seats that they had together with it, in whatever order.
        unsure = map(not_, map(self._content.__contains__, islice(self._order, same, None)))
        return next(compress(count(same), unsure), len(self._order))

    def _other_types(self, first: int, runs: Runs) -> dict[QueuedJob, int]:
        """Ask the policy about the jobs from this place on; return the columns of those whose seats are others, -1 for none."""
        self._first_without = None
        moved: dict[QueuedJob, int] = {}
        if first == len(self._order):
            return moved
        free, end = self._free_before(first)
        start, end = first, end + AT_ONCE
        while start < len(self._order) and not (self._all_wait and self._first_without is not None):
            part = self._order[start:end]
            where = [] if self._is_plain else runs(part)  # nobody stays because of where it runs
            seats, _ = self._policy.seats(list(map(WISHES, part)), list(map(SIZE, part)), where, free)
            had = list(map(self._columns.get, part, repeat(-1)))
            moved |= {part[i]: seats[i] for i in compress(count(), map(ne, seats, had))}
            if self._first_without is None and -1 in seats:
                self._first_without = start + seats.index(-1)
            start, end = end, end + AT_ONCE
        return moved

    def _free_before(self, first: int) -> tuple[list[float], int]:
        """The GPUs of each type that are left by those before this place, and the place after which nobody has a seat."""
        free, end = self._free.copy(), first
        # Where nobody passes others, all before have a seat.
        left = len(self._columns) - first if self._all_wait else len(self._order)
        while left > 0 and end < len(self._order):
            part = self._order[end : end + left]
            had = list(map(self._columns.get, part, repeat(-1)))
            for column, size in zip(had, map(SIZE, part), strict=True):
                if column >= 0:
                    free[column] += size
            end += len(part)
            left -= len(part) - had.count(-1)
        return free, end

    def _sit_down(self, each: QueuedJob, column: int) -> None:
        if column not in each.wishes:
            raise ProofError(f"job {each.job_id!r} was given time where it cannot run")
        self._free[column] -= each.size
        self._columns[each] = column
        self._seated[each.job_id] = each
        if column == each.wishes[0]:
            self._content.add(each)

    def _get_up(self, each: QueuedJob) -> None:
        self._free[self._columns.pop(each)] += each.size
        del self._seated[each.job_id]
        self._content.discard(each)
