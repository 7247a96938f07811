"""The delivery ledger: promised and delivered time of all jobs, and deficits, from which mechanisms select jobs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from itertools import repeat
from typing import Any

import numpy as np

from gavel_py.io.snapshots import decode, encode
from gavel_py.problem.arrays import Floats, Indices, Mask, plain_size
from gavel_py.scheduling.delivery import WAITS, DeliveryReport, JobDelivery, Wait

MAX_PAYBACK_ROUNDS = 10.0
"""Bound of surpluses, in rounds of waiting: a deficit is at least −max(1, MAX_PAYBACK_ROUNDS·X_ij).

A job that ran on idle GPUs beyond its fraction has taken time from no other job. Without a bound, it would have to wait as long
once GPUs are scarce. A surplus of up to one round must count, since an ordinary turn leads to it, and the deficits of others sum to
it.
"""

MAX_DEFICIT_ROUNDS = 10.0
"""Bound of deficits: a fraction that no round can deliver (two gangs of 2 on 3 GPUs) would build up a deficit without limit, and
displace all other jobs once cluster or jobs change. Ten rounds keep such a job in front; the report counts its full shortfall."""


class DeliveryLedger:
    """Accounts of all jobs over all rounds, for K accelerator types. Saved files contain the attributes by name.

    A deficit is the running balance D_ij += X_ij − received_ij in rounds, whatever the allocation, within the bounds
    MAX_PAYBACK_ROUNDS and MAX_DEFICIT_ROUNDS; it is dropped where the job can no longer run. A second deficit, A_ij += S_ij −
    received, counts rounds promised on spread placements in the same way.

    A shortfall max(0, promised − delivered) is split by reason when it rises; when it falls, all reasons fall in proportion.

    Each table has a row per job, given out when the job is first seen; rows of forgotten jobs are zero until `close_gaps`.
    """

    def __init__(self, accelerator_types: Sequence[str]) -> None:
        self.accelerator_types = tuple(accelerator_types)
        self._rows: dict[str, int] = {}
        self._num_gpus: list[float] = []
        names = ("promised", "delivered", "deficits", "received", "apart")  # apart: deficits of spread placements
        self._tables = {name: np.zeros((0, len(self.accelerator_types))) for name in names}
        # rounds: number of rounds in which the job was promised time or ran, -1 if their lengths differ.
        self._tables |= {"waits": np.zeros((0, len(WAITS))), "misplaced": np.zeros((0, 1))}
        self._tables |= {"short": np.zeros((0, len(WAITS))), "rounds": np.zeros((0, 1))}
        self._offered: Floats = np.zeros(len(self.accelerator_types))
        self._round_seconds = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all accounts as plain data; the names of the attributes are the keys."""
        self.close_gaps()
        return {name: encode(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> DeliveryLedger:
        """Restore a ledger from `to_dict`."""
        values = {name: decode(value) for name, value in document.items()}
        if not values.keys() & {"_offered", "_round_seconds"}:
            values |= _of_version_1(values["_tables"], np.array(values["_num_gpus"], dtype=float))
        ledger = cls(values["accelerator_types"])
        if set(values) != set(vars(ledger)):
            raise KeyError("ledger")
        vars(ledger).update(values)
        return ledger

    def deficits(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) deficits D_ij in rounds; 0 for unknown jobs."""
        return self._look_up("deficits", job_ids)

    def spread_deficits(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) deficits A_ij on spread placements in rounds; 0 for unknown jobs."""
        return self._look_up("apart", job_ids)

    def received(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) rounds received under the current allocation; 0 for unknown jobs."""
        return self._look_up("received", job_ids)

    def promised(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) seconds promised in all rounds; 0 for unknown jobs."""
        return self._look_up("promised", job_ids)

    def knows(self, job_ids: Sequence[str]) -> Mask:
        """Return (N,) the jobs that have an account."""
        return np.array([job_id in self._rows for job_id in job_ids], dtype=bool)

    def has_deficits(self, job_ids: Container[str]) -> bool:
        """Return whether any of these jobs has a deficit or surplus."""
        deficits = self._tables["deficits"]
        return bool(deficits.any()) and any(deficits[row].any() for job_id, row in self._rows.items() if job_id in job_ids)

    def begin_allocation(self) -> None:
        """Count rounds received anew, for a new allocation."""
        self._tables["received"][:] = 0.0

    def record(
        self,
        job_ids: Sequence[str],
        num_gpus: Floats,
        runnable: Mask,
        fractions: Floats,
        columns: Indices,
        round_seconds: float,
        waits: Indices | None = None,
        offered: Floats | None = None,
    ) -> None:
        """Enter one round of N jobs.

        Args:
            job_ids: The jobs.
            num_gpus: (N,) gang sizes.
            runnable: (N, K) where deficits are kept.
            fractions: (N, K) promised time fractions.
            columns: (N,) the type on which each job ran, -1 for none.
            round_seconds: Length of the round.
            waits: (N,) why the other jobs waited (`waits_of`).
            offered: (K,) GPUs that could be given; without limit by default.
        """
        rows = self._rows_of(job_ids, num_gpus)
        self._set_round_seconds(round_seconds)
        tables, received = self._tables, self._received(columns)
        if waits is not None:
            tables["waits"][rows] += waits[:, None] == np.arange(len(WAITS))
        codes = np.full(len(rows), -1) if waits is None else waits
        # Shortfalls count what the bounds cut off deficits, so a job may wait with a shortfall although its deficit is gone.
        codes = np.where(columns >= 0, WAITS.index(Wait.OTHER_TYPE), np.where(codes < 0, WAITS.index(Wait.TURN), codes))
        before = self._shortfalls(rows)
        tables["promised"][rows] += fractions * round_seconds
        tables["delivered"][rows] += received * round_seconds
        self._enter_shortfalls(rows, before, codes)
        tables["received"][rows] += received
        tables["rounds"][rows, 0] += (tables["rounds"][rows, 0] >= 0) & (received.any(axis=1) | (fractions > 0).any(axis=1))
        self._offered += np.inf if offered is None else offered * round_seconds
        max_surplus = np.maximum(1.0, MAX_PAYBACK_ROUNDS * fractions)
        balance = np.clip(tables["deficits"][rows] + fractions - received, -max_surplus, MAX_DEFICIT_ROUNDS)
        tables["deficits"][rows] = np.where(runnable, balance, 0.0)

    def record_placement(
        self,
        job_ids: Sequence[str],
        fractions: Floats,
        spread: Floats,
        columns: Indices,
        is_spread: Mask,
        round_seconds: float,
    ) -> None:
        """Enter the placements of gangs in a round that has been recorded.

        Args:
            job_ids: As for `record`.
            fractions: As for `record`.
            spread: (N, K) the part S_ij of the fractions promised on spread placements, NaN where placement makes no difference.
            columns: As for `record`.
            is_spread: (N,) the gangs that are on more nodes than they need.
            round_seconds: As for `record`.
        """
        rows, matters = np.array([self._rows[job_id] for job_id in job_ids], dtype=np.int64), ~np.isnan(spread)
        on_type = self._received(columns)
        balance = self._tables["apart"][rows] + spread - on_type * is_spread[:, None]
        balance = np.clip(balance, -MAX_DEFICIT_ROUNDS, MAX_DEFICIT_ROUNDS)
        self._tables["apart"][rows] = np.where(matters & (spread > 0), balance, 0.0)
        not_promised = np.where(is_spread[:, None], spread <= 0, spread >= fractions) & (fractions > 0) & matters
        self._tables["misplaced"][rows, 0] += (not_promised & (on_type > 0)).any(axis=1) * round_seconds

    def take_back(self, job_id: str, accelerator: str, num_gpus: int, round_seconds: float, *, is_spread: bool = False) -> None:
        """Revert the round entered last for a job that lost its GPUs of this type; is_spread: its placement."""
        rows = self._rows_of([job_id], np.array([num_gpus], dtype=np.int64))
        tables, at = self._tables, (rows[0], self.accelerator_types.index(accelerator))
        before = self._shortfalls(rows)
        tables["delivered"][at] = max(0.0, tables["delivered"][at] - round_seconds)
        self._enter_shortfalls(rows, before, np.array([WAITS.index(Wait.NODE)]))
        tables["waits"][at[0], WAITS.index(Wait.NODE)] += 1
        tables["received"][at] = max(0.0, tables["received"][at] - 1.0)
        tables["deficits"][at] = min(tables["deficits"][at] + 1.0, MAX_DEFICIT_ROUNDS)
        if is_spread and tables["apart"][at]:  # 0 if no spread placement is promised
            tables["apart"][at] = min(tables["apart"][at] + 1.0, MAX_DEFICIT_ROUNDS)
        tables["misplaced"][at[0], 0] = min(tables["misplaced"][at[0], 0], tables["delivered"][at[0]].sum())

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of these jobs."""
        gone = [self._rows.pop(job_id) for job_id in self._rows.keys() & job_ids]
        if not gone:
            return
        for table in self._tables.values():
            table[gone] = 0.0
        if 2 * len(self._rows) < len(self._num_gpus):
            self.close_gaps()

    def close_gaps(self) -> None:
        """Drop the rows of forgotten jobs. Not done for each job, since it copies all tables."""
        rows = list(self._rows.values())
        self._rows = {job_id: row for row, job_id in enumerate(self._rows)}
        self._num_gpus = [self._num_gpus[row] for row in rows]
        self._tables = {name: table[rows] for name, table in self._tables.items()}

    def report(self) -> DeliveryReport:
        """Return all accounts, sorted by job_id."""
        offered = dict(zip(self.accelerator_types, self._offered.tolist(), strict=True))
        return DeliveryReport({job_id: self._account(job_id, row) for job_id, row in sorted(self._rows.items())}, offered)

    def account(self, job_id: str) -> JobDelivery | None:
        """Return the account of one job, None if it has none."""
        return self._account(job_id, self._rows[job_id]) if job_id in self._rows else None

    def _received(self, columns: Indices) -> Floats:
        """Return (N, K) 1 for each job on the type where it runs, 0 elsewhere."""
        received: Floats = (columns[:, None] == np.arange(len(self.accelerator_types))).astype(float)
        return received

    def _look_up(self, name: str, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) the rows of these jobs in a table, 0 for unknown jobs."""
        table, found = self._tables[name], np.zeros((len(job_ids), len(self.accelerator_types)))
        rows = np.fromiter(map(self._rows.get, job_ids, repeat(-1)), dtype=np.int64, count=len(job_ids))
        known = rows >= 0
        found[known] = table[rows[known]]
        return found

    def _account(self, job_id: str, row: int) -> JobDelivery:
        tables = self._tables
        promised, delivered = (
            dict(zip(self.accelerator_types, tables[name][row].tolist(), strict=True)) for name in ("promised", "delivered")
        )
        waits = {reason: int(count) for reason, count in zip(WAITS, tables["waits"][row].tolist(), strict=True) if count}
        short = {reason: seconds for reason, seconds in zip(WAITS, tables["short"][row].tolist(), strict=True) if seconds > 0}
        misplaced, rounds = float(tables["misplaced"][row, 0]), int(tables["rounds"][row, 0])
        return JobDelivery(
            job_id,
            self._num_gpus[row],
            promised,
            delivered,
            waits,
            misplaced,
            short,
            self._round_seconds,
            None if rounds < 0 else rounds,
        )

    def _shortfalls(self, rows: Indices) -> Floats:
        """Return (N, K) max(0, promised − delivered) of these rows, in seconds."""
        short: Floats = np.maximum(0.0, self._tables["promised"][rows] - self._tables["delivered"][rows])
        return short

    def _enter_shortfalls(self, rows: Indices, before: Floats, codes: Indices) -> None:
        """Update shortfalls by reason; before: (N, K) old shortfalls; codes: (N,) reasons of new ones, as indices into `WAITS`."""
        short, total = self._tables["short"], before.sum(axis=1)
        change = self._shortfalls(rows) - before
        paid = np.maximum(0.0, -change).sum(axis=1)
        short[rows] *= 1.0 - np.divide(paid, total, out=np.zeros(len(rows)), where=total > 0)[:, None]
        short[rows, codes] += np.maximum(0.0, change).sum(axis=1)

    def _set_round_seconds(self, round_seconds: float) -> None:
        """Set the length of rounds. If it changes, the number of rounds of all jobs so far becomes unknown (-1)."""
        if round_seconds != self._round_seconds:
            self._tables["rounds"][self._tables["rounds"] > 0] = -1.0
            self._round_seconds = round_seconds

    def _rows_of(self, job_ids: Sequence[str], num_gpus: Floats) -> Indices:
        """Return (N,) the row of each job; new jobs get rows of zeros."""
        rows = list(map(self._rows.get, job_ids, repeat(-1)))
        if -1 in rows or [self._num_gpus[row] for row in rows] != num_gpus.tolist():
            self._make_rows(job_ids, num_gpus)
            rows = [self._rows[job_id] for job_id in job_ids]
        return np.array(rows, dtype=np.int64)

    def _make_rows(self, job_ids: Sequence[str], num_gpus: Floats) -> None:
        """Add rows of new jobs, and convert the rows of jobs whose gangs have another size."""
        for job_id, gang in zip(job_ids, map(plain_size, num_gpus.tolist()), strict=True):
            if job_id not in self._rows:
                self._rows[job_id] = len(self._num_gpus)
                self._num_gpus.append(gang)
            elif gang != self._num_gpus[self._rows[job_id]]:
                self._resize(self._rows[job_id], gang)
        new = len(self._num_gpus) - len(self._tables["deficits"])
        if new:
            self._tables = {name: np.concatenate([each, np.zeros((new, each.shape[1]))]) for name, each in self._tables.items()}

    def _resize(self, row: int, gang: float) -> None:
        """Convert the seconds of a row to a gang of another size; GPU-seconds stay the same."""
        for name in ("promised", "delivered", "misplaced", "short"):
            self._tables[name][row] *= self._num_gpus[row] / gang
        self._tables["rounds"][row] = -1.0
        self._num_gpus[row] = gang


def _of_version_1(tables: dict[str, np.ndarray[Any, Any]], num_gpus: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of the ledger that files of version 1 lack, estimated from the others.

    Number and length of the rounds are unknown. GPU-seconds offered are at least those promised and those delivered, so that the
    bound of the least shortfall is smaller but holds.

    Args:
        tables: Tables of the file; the missing ones are added to a copy.
        num_gpus: (N,) gang sizes of the rows.
    """
    promised, delivered, waits = tables["promised"], tables["delivered"], tables["waits"]
    waits = np.pad(waits, ((0, 0), (0, len(WAITS) - waits.shape[1])))
    reasons = waits.copy()
    # A job with a shortfall that has never waited ran on another of its types.
    reasons[~waits.any(axis=1), WAITS.index(Wait.OTHER_TYPE)] = 1.0
    short = np.maximum(0.0, promised - delivered).sum(axis=1, keepdims=True) * reasons / reasons.sum(axis=1, keepdims=True)
    tables = tables | {"waits": waits, "short": short, "rounds": np.full((len(num_gpus), 1), -1.0)}
    return {"_tables": tables, "_offered": num_gpus @ np.maximum(promised, delivered), "_round_seconds": 0.0}
