"""The accounts of jobs: what was promised and delivered, and what is still owed."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.snapshots import decode, encode
from gavel_py.problem.arrays import Floats, Indices, Mask, plain_size
from gavel_py.scheduling.delivery import WAITS, DeliveryReport, JobDelivery, Wait

# A job that idle GPUs served beyond its fraction has taken from nobody; counted in full, that time would be held against it for as
# long as it took to "pay it back" once GPUs are scarce. So nobody waits longer than ten rounds for being ahead, or until the round
# is paid back by which an honest turn can put a job ahead. More must not be forgotten: what others
# are owed sums to it.
LONGEST_PAYBACK_ROUNDS = 10.0
# A fraction that no round can deliver (two gangs of 2 on 3 GPUs) builds up a debt without end, which would crowd out all others
# when the cluster or the job set changes. Ten rounds keep such a job in front; what it lost stays in the report.
MOST_OWED_ROUNDS = 10.0


class DeliveryLedger:
    """The accounts of all jobs over all rounds. K accelerator types, the same throughout; a job gets its row when first seen, and
    a row that nobody has any more is zero.

    A deficit is the running balance in rounds: D_ij += X_ij − received_ij each round, whatever the allocation, kept between
    −max(1, LONGEST_PAYBACK_ROUNDS·X_ij) and MOST_OWED_ROUNDS, and dropped where the job can no longer run. So it is with rounds on
    more nodes than the gang needs, for jobs that are promised such: A_ij += S_ij − received so.

    A shortfall max(0, promised − delivered) is kept by reason as it rises; when it falls, all reasons fall by the same part of it.
    """

    def __init__(self, accelerator_types: Sequence[str]) -> None:
        self.accelerator_types = tuple(accelerator_types)
        self._rows: dict[str, int] = {}
        self._num_gpus: list[float] = []
        names = ("promised", "delivered", "deficits", "received", "apart")
        self._tables = {name: np.zeros((0, len(self.accelerator_types))) for name in names}
        # rounds: in how many of them the job was promised time or ran, -1 where they differ in length.
        self._tables |= {"waits": np.zeros((0, len(WAITS))), "misplaced": np.zeros((0, 1))}
        self._tables |= {"short": np.zeros((0, len(WAITS))), "rounds": np.zeros((0, 1))}
        self._offered: Floats = np.zeros(len(self.accelerator_types))
        self._round_seconds = 0.0

    def deficits(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) D_ij, rounds owed; 0 for jobs not seen yet."""
        return self._looked_up("deficits", job_ids)

    def apart(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) A_ij, rounds owed on more nodes than the gang needs; 0 for jobs not seen yet."""
        return self._looked_up("apart", job_ids)

    def received(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) rounds received since the allocation in force began; 0 for jobs not seen yet."""
        return self._looked_up("received", job_ids)

    def promised(self, job_ids: Sequence[str]) -> Floats:
        """Return (N, K) seconds promised in all rounds so far; 0 for jobs not seen yet."""
        return self._looked_up("promised", job_ids)

    def knows(self, job_ids: Sequence[str]) -> Mask:
        """Return (N,) the jobs that have an account."""
        return np.array([job_id in self._rows for job_id in job_ids], dtype=bool)

    def owes_any_of(self, job_ids: Container[str]) -> bool:
        """Say whether any of these jobs is owed time, or is ahead."""
        deficits = self._tables["deficits"]
        return bool(deficits.any()) and any(deficits[row].any() for job_id, row in self._rows.items() if job_id in job_ids)

    def begin_allocation(self) -> None:
        """Say that the rounds entered from now on follow a new allocation."""
        self._tables["received"][:] = 0.0

    def record(
        self,
        job_ids: Sequence[str],
        num_gpus: Floats,
        runnable: Mask,
        fractions: Floats,
        columns: NDArray[np.int64],
        round_seconds: float,
        waits: NDArray[np.int64] | None = None,
        offered: Floats | None = None,
    ) -> None:
        """Enter one round: the (N, K) fractions in force, and the (N,) columns on which jobs ran, -1 = none.

        waits: (N,) why the others waited (`waits_of`); offered: (K,) the GPUs that could be given, without limit if left out.
        """
        rows = self._rows_of(job_ids, num_gpus)
        self._set_round_seconds(round_seconds)
        tables, received = self._tables, self._received(columns)
        if waits is not None:
            tables["waits"][rows] += waits[:, None] == np.arange(len(WAITS))
        codes = np.full(len(rows), -1) if waits is None else waits
        # Who waits though the balance owes it nothing has a shortfall from debts that were cut.
        codes = np.where(columns >= 0, WAITS.index(Wait.OTHER_TYPE), np.where(codes < 0, WAITS.index(Wait.TURN), codes))
        before = self._shortfalls(rows)
        tables["promised"][rows] += fractions * round_seconds
        tables["delivered"][rows] += received * round_seconds
        self._enter_shortfalls(rows, before, codes)
        tables["received"][rows] += received
        tables["rounds"][rows, 0] += (tables["rounds"][rows, 0] >= 0) & (received.any(axis=1) | (fractions > 0).any(axis=1))
        self._offered += np.inf if offered is None else offered * round_seconds
        most_ahead = -np.maximum(1.0, LONGEST_PAYBACK_ROUNDS * fractions)
        balance = np.clip(tables["deficits"][rows] + fractions - received, most_ahead, MOST_OWED_ROUNDS)
        tables["deficits"][rows] = np.where(runnable, balance, 0.0)

    def record_placement(
        self,
        job_ids: Sequence[str],
        fractions: Floats,
        apart: Floats,
        columns: NDArray[np.int64],
        is_apart: Mask,
        round_seconds: float,
    ) -> None:
        """Enter how gangs stand in a round that has been recorded.

        apart: (N, K) the part S_ij of the fractions that is meant for more nodes than the gang needs, NaN where that is no matter;
        is_apart: (N,) the gangs that are on more nodes than they need.
        """
        rows, matters = np.array([self._rows[job_id] for job_id in job_ids], dtype=np.int64), ~np.isnan(apart)
        received = self._received(columns) * is_apart[:, None]
        balance = np.clip(self._tables["apart"][rows] + apart - received, -MOST_OWED_ROUNDS, MOST_OWED_ROUNDS)
        self._tables["apart"][rows] = np.where(matters & (apart > 0), balance, 0.0)
        other_kind = np.where(is_apart[:, None], apart <= 0, apart >= fractions) & (fractions > 0) & matters
        wrong = (other_kind & (self._received(columns) > 0)).any(axis=1)
        self._tables["misplaced"][rows, 0] += wrong * round_seconds

    def take_back(self, job_id: str, accelerator: str, num_gpus: int, round_seconds: float, *, is_apart: bool = False) -> None:
        """Enter that a job lost its GPUs of this type in the round entered last: it did not receive it after all.

        is_apart: whether it was on more nodes than it needed.
        """
        rows = self._rows_of([job_id], np.array([num_gpus], dtype=np.int64))
        tables, at = self._tables, (rows[0], self.accelerator_types.index(accelerator))
        before = self._shortfalls(rows)
        tables["delivered"][at] = max(0.0, tables["delivered"][at] - round_seconds)
        self._enter_shortfalls(rows, before, np.array([WAITS.index(Wait.NODE)]))
        tables["waits"][at[0], WAITS.index(Wait.NODE)] += 1
        tables["received"][at] = max(0.0, tables["received"][at] - 1.0)
        tables["deficits"][at] = min(tables["deficits"][at] + 1.0, MOST_OWED_ROUNDS)
        if is_apart and tables["apart"][at]:  # 0 where it is promised no such rounds
            tables["apart"][at] = min(tables["apart"][at] + 1.0, MOST_OWED_ROUNDS)
        tables["misplaced"][at[0], 0] = min(tables["misplaced"][at[0], 0], tables["delivered"][at[0]].sum())

    def forget(self, job_ids: Set[str]) -> None:
        """Drop the accounts of jobs."""
        gone = [self._rows.pop(job_id) for job_id in self._rows.keys() & job_ids]
        if not gone:
            return
        for table in self._tables.values():
            table[gone] = 0.0
        if 2 * len(self._rows) < len(self._num_gpus):
            self.close_gaps()

    def close_gaps(self) -> None:
        """Drop the rows that are nobody's; to do so whenever one job is forgotten takes long where there are many."""
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

    def _received(self, columns: NDArray[np.int64]) -> Floats:
        """(N, K) the round that each job has on the type where it runs."""
        received: Floats = (columns[:, None] == np.arange(len(self.accelerator_types))).astype(float)
        return received

    def _looked_up(self, name: str, job_ids: Sequence[str]) -> Floats:
        """The rows of these jobs, 0 for jobs not seen yet."""
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
        """(N, K) max(0, promised − delivered) of these rows, in seconds."""
        short: Floats = np.maximum(0.0, self._tables["promised"][rows] - self._tables["delivered"][rows])
        return short

    def _enter_shortfalls(self, rows: Indices, before: Floats, codes: NDArray[np.int64]) -> None:
        """Bring the shortfalls by reason up to date; before: (N, K) what they were; codes: (N,) the reason for what is new."""
        short, total = self._tables["short"], before.sum(axis=1)
        change = self._shortfalls(rows) - before
        paid = np.maximum(0.0, -change).sum(axis=1)
        short[rows] *= 1.0 - np.divide(paid, total, out=np.zeros(len(rows)), where=total > 0)[:, None]
        short[rows, codes] += np.maximum(0.0, change).sum(axis=1)

    def _set_round_seconds(self, round_seconds: float) -> None:
        """Note how long rounds are; jobs that were there when they had another length have counted rounds of several lengths."""
        if round_seconds != self._round_seconds:
            self._tables["rounds"][self._tables["rounds"] > 0] = -1.0
            self._round_seconds = round_seconds

    def _rows_of(self, job_ids: Sequence[str], num_gpus: Floats) -> Indices:
        """(N,) the row of each job; new jobs get rows of zeros."""
        rows = list(map(self._rows.get, job_ids, repeat(-1)))
        if -1 in rows or [self._num_gpus[row] for row in rows] != num_gpus.tolist():
            self._make_rows(job_ids, num_gpus)
            rows = [self._rows[job_id] for job_id in job_ids]
        return np.array(rows, dtype=np.int64)

    def _make_rows(self, job_ids: Sequence[str], num_gpus: Floats) -> None:
        """Let each job have a row that counts for the gang that it is now."""
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
        """Count what a gang of another size was promised and had in seconds of the gang of now, GPU-seconds being the same."""
        for name in ("promised", "delivered", "misplaced", "short"):
            self._tables[name][row] *= self._num_gpus[row] / gang
        self._tables["rounds"][row] = -1.0
        self._num_gpus[row] = gang


def _of_version_1(tables: dict[str, np.ndarray[Any, Any]], num_gpus: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of the ledger that files of version 1 lack, estimated from those that they have.

    The number and length of the rounds is unknown, and so are the GPU-seconds offered, other than that they cover what was
    promised and what was delivered; the least shortfall is bounded by less then.

    Args:
        tables: the tables of the file; the missing ones are added to a copy.
        num_gpus: (N,) the gang sizes of the rows.
    """
    promised, delivered, waits = tables["promised"], tables["delivered"], tables["waits"]
    waits = np.pad(waits, ((0, 0), (0, len(WAITS) - waits.shape[1])))
    reasons = waits.copy()
    # A job that is owed time and has never waited ran on another of its types.
    reasons[~waits.any(axis=1), WAITS.index(Wait.OTHER_TYPE)] = 1.0
    short = np.maximum(0.0, promised - delivered).sum(axis=1, keepdims=True) * reasons / reasons.sum(axis=1, keepdims=True)
    tables = tables | {"waits": waits, "short": short, "rounds": np.full((len(num_gpus), 1), -1.0)}
    return {"_tables": tables, "_offered": num_gpus @ np.maximum(promised, delivered), "_round_seconds": 0.0}
