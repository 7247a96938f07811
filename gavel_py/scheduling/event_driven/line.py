"""The jobs in the order in which an ordered policy serves them, kept from one decision to the next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.names import natural_key
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.array_validation import returned_numbers
from gavel_py.problem.job import Job
from gavel_py.scheduling.event_driven.traits import Traits
from gavel_py.scheduling.job_book import JobBook

__all__ = ["BY_PLACE", "InLine", "Line", "can_keep_order"]

Floats = NDArray[np.float64]
Place = tuple[float, float, tuple[tuple[str | int, ...], str]]

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


class InLine:
    """One job in line. total_steps: NaN where nobody knows; numbers: by attribute that is read; traits, with size and wishes: see
    `Traits`; restart_seconds: None where the job does not say.
    """

    __slots__ = ("job_id", "natural", "numbers", "place", "restart_seconds", "size", "total_steps", "traits", "wishes")

    def __init__(self, job: Job, total_steps: float, traits: Traits, reads: Iterable[str]) -> None:
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


class Line:
    """asked: what there is to know of a job, its total steps and `Traits`; excluded: the jobs that can run nowhere, in order."""

    def __init__(self, policy: OrderedPolicy, asked: Callable[[Job], tuple[float, Traits]]) -> None:
        self._policy, self._asked = policy, asked
        self._fixed = [name for name in policy.reads if name != REMAINING]
        self._moves = REMAINING in policy.reads
        self._order: list[InLine] = []
        self._odd: set[str] = set()
        self._done: set[str] = set()
        self.of: dict[str, InLine] = {}
        self.excluded: dict[str, str] = {}

    def follow(self, book: JobBook) -> bool:
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

    def _left(self, book: JobBook, asked: Sequence[InLine]) -> list[float]:
        """Return the steps that jobs have left, and take note of those that have none."""
        ids = list(map(JOB_ID, asked))
        # Where nobody knows how many there are (NaN), none are left.
        left = [max(0.0, entry.total_steps - done) for entry, done in zip(asked, book.steps_of(ids), strict=True)]
        if self._done or not all(left):
            self._done = self._done.difference(ids).union(compress(ids, map(not_, left)))
        return left

    @property
    def order(self) -> list[InLine]:
        """The jobs that can run somewhere, in the order in which they are served."""
        return self._order

    def _entry(self, job: Job) -> InLine:
        return InLine(job, *self._asked(job), self._fixed)

    def _drop(self, job_id: str) -> None:
        entry = self.of.pop(job_id)
        at = bisect_left(self._order, entry.place, key=BY_PLACE)
        del self._order[at]

    def _follow_excluded(self, touched: set[str], come: Sequence[InLine]) -> None:
        new = {entry.job_id: entry.traits.reason for entry in come if entry.traits.reason is not None}
        if new or (self.excluded and touched.intersection(self.excluded)):
            left = {job_id: reason for job_id, reason in self.excluded.items() if job_id not in touched} | new
            self.excluded = {job_id: left[job_id] for job_id in sorted(left, key=natural_key)}

    def _set_keys(self, entries: Sequence[InLine], columns: dict[str, Floats]) -> None:
        if not entries:
            return
        columns |= {name: np.array([entry.numbers[i] for entry in entries]) for i, name in enumerate(self._fixed)}
        numbers = _Numbers([entry.traits.fastest for entry in entries], columns)
        told = self._policy.sort_key(cast("JobClasses", numbers))
        name = f"policy {self._policy.name}"
        keys = returned_numbers(told, len(entries), name, "sort_key", "finite", lambda i: entries[i].job_id)
        for entry, key in zip(entries, keys.tolist(), strict=True):
            entry.place = (key, entry.place[1], entry.natural)
