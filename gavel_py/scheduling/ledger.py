"""The delivery ledger: promised and delivered time of all jobs, and deficits, from which mechanisms select jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gavel_py.io.snapshots import decode, decode_array, encode
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.delivery import WAITS, DeliveryAccounts, DeliveryReport, JobDelivery, Wait

MAX_PAYBACK_ROUNDS = 10.0
"""Bound of surpluses, in rounds of waiting: a deficit is at least −max(1 + w_ij, MAX_PAYBACK_ROUNDS·X_ij), with w_ij the surplus
after a turn (`surplus_of_turn`).

A job that ran on idle GPUs beyond its fraction has not taken time from other jobs. Without a bound, it would have to wait for the
same time once GPUs are scarce. The surplus of an ordinary turn must count, since it equals the sum of the deficits of other jobs.
"""

TURN_RESTARTS = 14.0
"""A turn takes about this many restarts at least, so that restarts cost less than a tenth of the time of GPUs: turns are rounded to
whole rounds, and the first turn of a job and its last one are shorter."""

MAX_DEFICIT_ROUNDS = 10.0
"""Bound of deficits. A fraction that no round can deliver (two gangs of 2 on 3 GPUs) would otherwise build up a deficit without
limit, and the job would displace all others once the cluster or jobs change. Ten rounds keep it in front; the report counts its
full shortfall."""


def surplus_of_turn(fractions: Floats, restart_rounds: Floats) -> Floats:
    """Return w_ij = TURN_RESTARTS·r_i·(1 − X_ij), in rounds: while a job runs, its surplus grows by 1 − X_ij a round."""
    return TURN_RESTARTS * restart_rounds * np.clip(1.0 - fractions, 0.0, 1.0)


class DeliveryLedger:
    """Accounts of all jobs over all rounds, for K accelerator types, by the rows of the jobs in the `JobTable`.

    A deficit is the running balance D_ij += X_ij − received_ij in rounds, across allocations, within the bounds
    MAX_PAYBACK_ROUNDS and MAX_DEFICIT_ROUNDS; it is dropped on types where the job can no longer run. For elastic jobs, all times
    are in GPU-rounds and GPU-seconds, with a gang size of 1. A second deficit, A_ij += S_ij − received, counts rounds promised on
    spread placements in the same way.

    A shortfall max(0, promised − delivered) is split by reason when it rises; when it falls, all reasons fall in proportion.

    Attributes:
        num_gpus: (rows,) gang sizes, 0 for jobs without an account.
        promised: (rows, K) seconds promised in all rounds.
        delivered: (rows, K) seconds delivered.
        deficits: (rows, K) D_ij in rounds.
        spread_deficits: (rows, K) A_ij in rounds.
        received: (rows, K) rounds received under the current allocation.
        latest_waits: (rows,) why each job waited in the latest round, as for `record`; not saved.
    """

    TABLES = ("promised", "delivered", "deficits", "received", "spread_deficits", "waits", "short", "misplaced", "rounds")

    def __init__(self, accelerator_types: tuple[str, ...] | list[str]) -> None:
        self.accelerator_types = tuple(accelerator_types)
        count = len(self.accelerator_types)
        self.num_gpus = np.zeros(0)
        self.promised, self.delivered, self.deficits = np.zeros((0, count)), np.zeros((0, count)), np.zeros((0, count))
        self.received, self.spread_deficits = np.zeros((0, count)), np.zeros((0, count))
        self.waits, self.short = np.zeros((0, len(WAITS))), np.zeros((0, len(WAITS)))
        self.misplaced = np.zeros(0)
        self.rounds = np.zeros(0)  # rounds in which the job was promised time or ran, -1 if they are not all whole
        self.latest_waits: Indices = np.full(0, -1)
        self._offered: Floats = np.zeros(count)
        self._round_seconds = 0.0

    def fit(self, capacity: int) -> None:
        """Make room for this number of rows."""
        more = capacity - len(self.num_gpus)
        if more > 0:
            for name in ("num_gpus", *self.TABLES):
                table = getattr(self, name)
                setattr(self, name, np.concatenate([table, np.zeros((more, *table.shape[1:]))]))
            self.latest_waits = np.concatenate([self.latest_waits, np.full(more, -1)])

    def to_dict(self, rows: Indices) -> dict[str, Any]:
        """Return the accounts of these rows as plain data."""
        self.fit(int(rows.max(initial=-1)) + 1)
        tables = {name: encode(getattr(self, name)[rows]) for name in ("num_gpus", *self.TABLES)}
        common = {"offered": encode(self._offered), "round_seconds": self._round_seconds}
        return {"accelerator_types": list(self.accelerator_types), **tables, **common}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> DeliveryLedger:
        """Restore a ledger from `to_dict`, with rows in the order in which they were saved."""
        ledger = cls(document["accelerator_types"])
        count = len(decode(document["num_gpus"]))
        ledger.fit(count)
        for name in ("num_gpus", *cls.TABLES):
            setattr(ledger, name, decode_array(document[name], getattr(ledger, name).shape))
        ledger._offered, ledger._round_seconds = decode(document["offered"]), float(document["round_seconds"])
        return ledger

    def moved(self, accelerator_types: Sequence[str], columns: Indices) -> DeliveryLedger:
        """Return the accounts for new types. columns: (K,) the new column of each old one; merged accounts are added up."""
        made = DeliveryLedger(tuple(accelerator_types))
        made.fit(len(self.num_gpus))
        vars(made).update(
            {
                name: getattr(self, name)
                for name in ("num_gpus", "waits", "short", "misplaced", "rounds", "latest_waits", "_round_seconds")
            }
        )
        for name in ("promised", "delivered", "deficits", "received", "spread_deficits", "_offered"):
            np.add.at(getattr(made, name).T, columns, getattr(self, name).T)
        return made

    def begin_allocation(self) -> None:
        """Reset the count of rounds received, for a new allocation."""
        self.received[:] = 0.0

    def begin_round(self, seconds: float, offered: Floats | None = None) -> None:
        """Begin a round of this length; offered: (K,) GPUs that it could give, without limit by default.

        If the length changes, the number of rounds of all jobs becomes unknown (-1).
        """
        if seconds != self._round_seconds:
            self.rounds[self.rounds > 0] = -1.0
            self._round_seconds = seconds
        self._offered += np.inf if offered is None else offered * seconds
        self.latest_waits[:] = -1

    def record(
        self,
        rows: Indices,
        num_gpus: Floats,
        runnable: Mask,
        fractions: Floats,
        columns: Indices,
        waits: Indices | None = None,
        units: Floats | None = None,
        restart_rounds: Floats | float = 0.0,
    ) -> None:
        """Enter N jobs in the round that has begun.

        Args:
            rows: (N,) the jobs.
            num_gpus: (N,) gang sizes.
            runnable: (N, K) where deficits are kept.
            fractions: (N, K) promised time fractions.
            columns: (N,) the type on which each job ran, -1 for none.
            waits: (N,) why the other jobs waited (`waits_of`).
            units: (N,) what a round counts for a job that ran: the GPUs of an elastic job, 1 for others; None if it is 1 for all.
            restart_rounds: (N, 1) or one for all: what a restart costs, in rounds.
        """
        self._open(rows, num_gpus)
        received = self._received(columns) if units is None else self._received(columns) * units[:, None]
        codes = np.full(len(rows), -1) if waits is None else waits
        self.latest_waits[rows] = codes
        waiting = np.flatnonzero(codes >= 0)
        self.waits[rows[waiting], codes[waiting]] += 1
        # Shortfalls include what the bounds cut off from deficits, so a waiting job may have a shortfall but no deficit.
        codes = np.where(columns >= 0, WAITS.index(Wait.OTHER_TYPE), np.where(codes < 0, WAITS.index(Wait.TURN), codes))
        promised, delivered, deficits = self.promised[rows], self.delivered[rows], self.deficits[rows]
        before = np.maximum(0.0, promised - delivered)
        promised += fractions * self._round_seconds
        delivered += received * self._round_seconds
        self.promised[rows], self.delivered[rows] = promised, delivered
        self._enter_shortfalls(rows, before, np.maximum(0.0, promised - delivered), codes)
        self.received[rows] += received
        self.rounds[rows] += (self.rounds[rows] >= 0) & ((columns >= 0) | (fractions > 0).any(axis=1))
        turns = surplus_of_turn(fractions, np.asarray(restart_rounds))
        max_surplus, one = np.maximum(1.0 + turns, MAX_PAYBACK_ROUNDS * fractions), 1.0
        if units is not None:  # one round on all of its GPUs
            self.rounds[rows[units != 1]] = -1.0
            one = np.maximum(1.0, np.maximum(fractions, received).max(axis=1, keepdims=True, initial=0.0))
            max_surplus = np.maximum(one, max_surplus)
        balance = np.clip(deficits + fractions - received, -max_surplus, MAX_DEFICIT_ROUNDS * one)
        self.deficits[rows] = np.where(runnable, balance, 0.0)

    def record_placement(
        self,
        rows: Indices,
        fractions: Floats,
        spread: Floats,
        columns: Indices,
        is_spread: Mask,
        seconds: float,
        rest: float | None = None,
    ) -> None:
        """Enter the placements of gangs in a round that has been recorded.

        Args:
            rows: As for `record`.
            fractions: As for `record`.
            spread: (N, K) the part S_ij of the fractions promised on spread placements, NaN where placement makes no difference.
            columns: As for `record`.
            is_spread: (N,) the gangs that are on more nodes than they need.
            seconds: How long the gangs hold their GPUs: the length of the round, or of the rest of it.
            rest: For gangs that start within the round, the part of the round that remains; None for a whole round.
        """
        on_type, matters = self._received(columns), ~np.isnan(spread)
        promised, received = (spread, on_type) if rest is None else (0.0, on_type * rest)
        balance = self.spread_deficits[rows] + promised - received * is_spread[:, None]
        balance = np.clip(balance, -MAX_DEFICIT_ROUNDS, MAX_DEFICIT_ROUNDS)
        self.spread_deficits[rows] = np.where(matters & (spread > 0), balance, 0.0)
        not_promised = np.where(is_spread[:, None], spread <= 0, spread >= fractions) & (fractions > 0) & matters
        self.misplaced[rows] += (not_promised & (on_type > 0)).any(axis=1) * seconds

    def receive(
        self, rows: Indices, num_gpus: Floats, fractions: Floats, columns: Indices, seconds: float | Floats, rounds: float | Floats
    ) -> None:
        """Enter the rest of the round in progress for N gangs that start within it; nothing is promised for it.

        Args:
            rows: (N,) the jobs.
            num_gpus: (N,) gang sizes.
            fractions: (N,) time fractions on the types on which the gangs start.
            columns: (N,) these types.
            seconds: The rest of the round, times the GPUs of an elastic job.
            rounds: The same as a part of the round.
        """
        self._open(rows, num_gpus)
        self.latest_waits[rows] = -1
        at = rows, columns
        before = np.maximum(0.0, self.promised[rows] - self.delivered[rows])
        self.delivered[at] += seconds
        after = np.maximum(0.0, self.promised[rows] - self.delivered[rows])
        self._enter_shortfalls(rows, before, after, np.zeros(len(rows), dtype=np.int64))  # shortfalls only fall
        self.received[at] += rounds
        least = np.minimum(self.deficits[at], -np.maximum(1.0, MAX_PAYBACK_ROUNDS * fractions))  # of a turn, it may be less
        self.deficits[at] = np.maximum(self.deficits[at] - rounds, least)
        # For these jobs, `least_shortfall` must not assume whole rounds, nor fewer GPU-seconds than they received.
        self.rounds[rows] = -1.0
        np.add.at(self._offered, columns, num_gpus * seconds)

    def take_back(
        self,
        row: int,
        column: int,
        num_gpus: float,
        seconds: float,
        *,
        rounds: float = 1.0,
        is_spread: bool = False,
        reason: Wait = Wait.NODE,
    ) -> None:
        """Revert what was entered for a job for the rest of the round in progress, from some time on.

        Args:
            row: The job.
            column: The type of the GPUs that it lost.
            num_gpus: The size of its gang there.
            seconds: The time from then to the end of the round.
            rounds: The same as a part of the round.
            is_spread: Whether the gang was on more nodes than it needs.
            reason: Why it did not receive the time; with `Wait.NODE`, the round counts as one in which it waited.
        """
        rows, at = np.array([row]), (row, column)
        self._open(rows, np.array([num_gpus]))
        before = np.maximum(0.0, self.promised[rows] - self.delivered[rows])
        self.delivered[at] = max(0.0, self.delivered[at] - seconds)
        after = np.maximum(0.0, self.promised[rows] - self.delivered[rows])
        self._enter_shortfalls(rows, before, after, np.array([WAITS.index(reason)]))
        if reason is Wait.NODE:
            self.waits[row, WAITS.index(reason)] += 1
            self.latest_waits[row] = WAITS.index(reason)
        self.received[at] = max(0.0, self.received[at] - rounds)
        self.deficits[at] = min(self.deficits[at] + rounds, MAX_DEFICIT_ROUNDS)
        if is_spread and self.spread_deficits[at]:  # 0 if no spread placement is promised
            self.spread_deficits[at] = min(self.spread_deficits[at] + rounds, MAX_DEFICIT_ROUNDS)
        self.misplaced[row] = min(self.misplaced[row], self.delivered[row].sum())

    def forget(self, rows: Sequence[int]) -> None:
        """Drop the accounts of these jobs."""
        known = [row for row in rows if row < len(self.num_gpus) and self.num_gpus.item(row)]
        for name in ("num_gpus", *self.TABLES):
            getattr(self, name)[known] = 0.0
        self.latest_waits[known] = -1

    def report(self, rows: Mapping[str, int]) -> DeliveryReport:
        """Return the accounts of these jobs, {job_id: row}, sorted by job_id."""
        known = sorted(job_id for job_id, row in rows.items() if row < len(self.num_gpus) and self.num_gpus[row])
        at = np.array([rows[job_id] for job_id in known], dtype=np.int64)
        offered = dict(zip(self.accelerator_types, self._offered.tolist(), strict=True))
        return DeliveryReport(self._accounts(tuple(known), at), offered)

    def account(self, job_id: str, row: int) -> JobDelivery | None:
        """Return the account of one job, None if it has none."""
        is_known = row < len(self.num_gpus) and self.num_gpus[row]
        return self._accounts((job_id,), slice(row, row + 1))[job_id] if is_known else None

    def _accounts(self, ids: tuple[str, ...], at: Indices | slice) -> DeliveryAccounts:
        tables = self.num_gpus, self.promised, self.delivered, self.waits, self.short, self.misplaced, self.rounds
        return DeliveryAccounts(ids, self.accelerator_types, *(table[at] for table in tables), self._round_seconds)  # type: ignore[call-arg]

    def wait_of(self, row: int) -> Wait | None:
        """Return why a job waited in the latest round, None if it ran or had no deficit."""
        code = self.latest_waits.item(row) if row < len(self.latest_waits) else -1
        return WAITS[code] if code >= 0 else None

    def knows(self, rows: Indices) -> Mask:
        """Return (N,) the jobs that have an account."""
        self.fit(int(rows.max(initial=-1)) + 1)
        return self.num_gpus[rows] > 0

    def _received(self, columns: Indices) -> Floats:
        """Return (N, K) 1 for each job on the type where it runs, 0 elsewhere."""
        received: Floats = (columns[:, None] == np.arange(len(self.accelerator_types))).astype(float)
        return received

    def _enter_shortfalls(self, rows: Indices, before: Floats, after: Floats, codes: Indices) -> None:
        """Update shortfalls by reason; before, after: (N, K); codes: (N,) reasons for new shortfalls, as indices into `WAITS`."""
        total, change = before.sum(axis=1), after - before
        paid = np.maximum(0.0, -change).sum(axis=1)
        self.short[rows] *= 1.0 - np.divide(paid, total, out=np.zeros(len(rows)), where=total > 0)[:, None]
        self.short[rows, codes] += np.maximum(0.0, change).sum(axis=1)

    def _open(self, rows: Indices, num_gpus: Floats) -> None:
        """Open accounts for new jobs, and convert the seconds of gangs whose size has changed; GPU-seconds stay the same."""
        self.fit(int(rows.max(initial=-1)) + 1)
        before = self.num_gpus[rows]
        changed = (before > 0) & (before != num_gpus)
        if changed.any():
            resized = rows[changed]
            factors = before[changed] / num_gpus[changed]
            self.promised[resized] *= factors[:, None]
            self.delivered[resized] *= factors[:, None]
            self.short[resized] *= factors[:, None]
            self.misplaced[resized] *= factors
            self.rounds[resized] = -1.0
        self.num_gpus[rows] = num_gpus
