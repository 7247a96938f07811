"""Who has a seat, all of its time on one type, kept from one decision to the next: few jobs can get another than they had."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import compress, count, islice, repeat
from operator import attrgetter, is_not, ne, not_

from gavel_py.errors import ProofError
from gavel_py.policies import OrderedPolicy
from gavel_py.scheduling.event_driven.line import InLine

__all__ = ["Seating"]

AT_ONCE = 16
"""So many jobs without a seat are asked about at once where the first that does not fit makes all later ones wait."""

SIZE, WISHES = attrgetter("size"), attrgetter("wishes")

Runs = Callable[[Sequence[InLine]], list[int]]


class Seating:
    """The seats that an ordered policy gives; capacities: the GPUs of each type, by column."""

    def __init__(self, policy: OrderedPolicy, capacities: Sequence[float]) -> None:
        self._policy, self._capacities = policy, list(capacities)
        # In a way of its own, a policy may take a seat from a job whose wishes nobody before it has come to share.
        self._is_plain = policy.preemptive and type(policy).seats is OrderedPolicy.seats
        self._all_wait = self._is_plain and not policy.backfill
        self.clear()

    def clear(self) -> None:
        """Forget all seats."""
        self._order: list[InLine] = []
        self._free = self._capacities.copy()
        self._columns: dict[InLine, int] = {}
        self._seated: dict[str, InLine] = {}
        self._content: set[InLine] = set()
        self._first_without: int | None = None

    def column_of(self, each: InLine | None) -> int:
        """The column of the type on which a job has all of its time, -1 for none."""
        return -1 if each is None else self._columns.get(each, -1)

    def follow(self, order: Sequence[InLine], changed: Set[str], runs: Runs) -> set[str]:
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
        moved = {} if first is None else self._other_seats(first, runs)
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

    def _other_seats(self, first: int, runs: Runs) -> dict[InLine, int]:
        """Ask the policy about the jobs from this place on; return the columns of those whose seats are others, -1 for none."""
        self._first_without = None
        moved: dict[InLine, int] = {}
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

    def _sit_down(self, each: InLine, column: int) -> None:
        if column not in each.wishes:
            raise ProofError(f"job {each.job_id!r} was given time where it cannot run")
        self._free[column] -= each.size
        self._columns[each] = column
        self._seated[each.job_id] = each
        if column == each.wishes[0]:
            self._content.add(each)

    def _get_up(self, each: InLine) -> None:
        self._free[self._columns.pop(each)] += each.size
        del self._seated[each.job_id]
        self._content.discard(each)
