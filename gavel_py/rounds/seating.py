"""Who has a seat, all of its time on one type, kept from one decision to the next: few jobs can get another than they had."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import compress, count, islice
from operator import is_not, not_

from gavel_py.errors import ProofError
from gavel_py.policies import OrderedPolicy
from gavel_py.rounds.line import InLine

__all__ = ["Seating"]

AT_ONCE = 16
"""So many jobs are asked about at once where the first that does not fit makes all later ones wait."""

Runs = Callable[[Sequence[InLine]], list[int]]


class Seating:
    """The seats that an ordered policy gives; capacities: the GPUs of each type, by column."""

    def __init__(self, policy: OrderedPolicy, capacities: Sequence[float]) -> None:
        self._policy, self._capacities = policy, list(capacities)
        # In a way of its own, a policy may take a seat from a job whose wishes nobody before it has come to share.
        self._is_plain = policy.preemptive and type(policy).seats is OrderedPolicy.seats
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
        """
        gone = [self._seated[job_id] for job_id in changed & self._seated.keys()]
        for each in gone:
            self._free[self._columns[each]] += each.traits.size
            self._get_up(each)
        before, self._order = self._order, list(order)
        same = next(compress(count(), map(is_not, order, before)), min(len(order), len(before)))
        return {each.job_id for each in gone} | {each.job_id for each in self._asked(same, runs)}

    def _asked(self, same: int, runs: Runs) -> Set[InLine]:
        """Ask about those whose seats may be others, and return those whose seats are; same: so many first ones are as before."""
        if not self._policy.preemptive:
            return self._asked_from(0, runs)
        if not self._policy.backfill and self._first_without is not None and self._first_without < same:
            return set()  # all later ones wait as they did
        if not self._is_plain:
            return self._asked_from(same, runs)
        # Who has the first of its wishes keeps it while all before it have seats that they had together with it, in whatever order.
        unsure = map(not_, map(self._content.__contains__, islice(self._order, same, None)))
        return self._asked_from(next(compress(count(same), unsure), len(self._order)), runs)

    def _asked_from(self, first: int, runs: Runs) -> Set[InLine]:
        had, free = self._had_from(first), self._free
        for each, column in had.items():
            free[column] += each.traits.size
        has = self._given(first, runs, free.copy())
        for each, column in has.items():
            free[column] -= each.traits.size
            if column not in each.traits.wishes:
                raise ProofError(f"job {each.job_id!r} was given time where it cannot run")
        if min(free, default=0) < 0:
            raise ProofError("more GPUs were given than there are")
        moved = {each for each, _ in had.items() ^ has.items()}
        for each in moved & had.keys():
            self._get_up(each)
        for each in moved & has.keys():
            self._sit_down(each, has[each])
        return moved

    def _had_from(self, first: int) -> dict[InLine, int]:
        """The seats that these jobs have, from this place on."""
        # Where nobody passes others, all before have one.
        had, left = {}, len(self._columns) - (0 if self._policy.backfill else first)
        for each in islice(self._order, first, None):
            if not left:
                break
            column = self._columns.get(each, -1)
            if column >= 0:
                had[each] = column
                left -= 1
        return had

    def _given(self, first: int, runs: Runs, free: list[float]) -> dict[InLine, int]:
        """The seats that the policy gives these jobs, from this place on. Raises `ProofError`."""
        all_wait = self._is_plain and not self._policy.backfill
        given: dict[InLine, int] = {}
        step = AT_ONCE if all_wait else max(1, len(self._order))
        self._first_without = None
        for start in range(first, len(self._order), step):
            part = self._order[start : start + step]
            wishes, sizes = [each.traits.wishes for each in part], [each.traits.size for each in part]
            seats, _ = self._policy.seats(wishes, sizes, runs(part), free)
            given |= {each: seat for each, seat in zip(part, seats, strict=True) if seat >= 0}
            if -1 in seats and self._first_without is None:
                self._first_without = start + seats.index(-1)
                if all_wait:
                    break
        return given

    def _sit_down(self, each: InLine, column: int) -> None:
        self._columns[each] = column
        self._seated[each.job_id] = each
        if column == each.traits.wishes[0]:
            self._content.add(each)

    def _get_up(self, each: InLine) -> None:
        del self._columns[each], self._seated[each.job_id]
        self._content.discard(each)
