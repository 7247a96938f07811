"""Delivery accounts: time promised by allocations and delivered by rounds, and why jobs with a deficit wait.

`DeliveryReport` holds a `JobDelivery` per job and a `TenantDelivery` per tenant; `least_shortfall` bounds the shortfall that any
choice of whole rounds leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from gavel_py.problem.arrays import Floats, plain_size
from gavel_py.problem.tolerances import SECONDS_ROUNDING


class Wait(StrEnum):
    """Why a job with a deficit on some type received no time there in a round, as a clause after "because"."""

    NEW = "it has just arrived"
    TURN = "others were owed more"
    GANG = "fewer GPUs were free than its gang needs"
    PLACE = "no nodes within its locality had room, CPUs and memory"
    NODE = "nodes were down"
    OTHER_TYPE = "it ran on another of its types"
    BACKOFF = "it had failed, and was not to be tried again yet"
    LIMIT = "a limit that holds in every round left it no room"
    TENANT = "its tenant had its share"


WAITS = tuple(Wait)


@dataclass(frozen=True)
class JobDelivery:
    """Promised and delivered time of one job, in seconds of its whole gang by accelerator type.

    If the gang has changed its size, seconds are converted to the present size. Time on a type beyond the promise there (on GPUs
    that would have been idle) does not make up for a shortfall on another type.

    Attributes:
        job_id: The job.
        num_gpus: GPUs of its gang.
        promised_by_type: The same for each type.
        delivered_by_type: Seconds for which it held its GPUs.
        waits: Number of rounds in which it waited with a deficit, by reason.
        misplaced_seconds: Delivered time on more nodes than promised, or on fewer if that is slower.
        undelivered_by_reason: Seconds, which add up to `undelivered_seconds`.
        round_seconds: Length of a round, 0 before the first.
        rounds: Number of rounds in which it was promised time or ran; None if their lengths differ, the gang has changed its size,
            or it has started within a round.
    """

    job_id: str
    num_gpus: float
    promised_by_type: dict[str, float]
    delivered_by_type: dict[str, float]
    waits: dict[Wait, int] = field(default_factory=dict)
    misplaced_seconds: float = 0.0
    undelivered_by_reason: dict[Wait, float] = field(default_factory=dict)
    round_seconds: float = 0.0
    rounds: int | None = None

    @property
    def why(self) -> Wait | None:
        """The main reason for its shortfall (the first if several are equal); None without a shortfall."""
        reasons = self.undelivered_by_reason
        return max(reasons, key=lambda reason: reasons[reason]) if reasons and self.undelivered_seconds > SECONDS_ROUNDING else None

    @property
    def rounds_behind(self) -> float:
        """Its shortfall in rounds."""
        return self.undelivered_seconds / self.round_seconds if self.round_seconds else 0.0

    @property
    def promised_seconds(self) -> float:
        """Time fractions times the length of the round, summed over types and rounds."""
        return sum(self.promised_by_type.values())

    @property
    def delivered_seconds(self) -> float:
        """Length of the rounds in which it ran, on all types."""
        return sum(self.delivered_by_type.values())

    @property
    def undelivered_seconds(self) -> float:
        """Σ_j max(0, promised_ij − delivered_ij)."""
        return sum(max(0.0, promised - self.delivered_by_type[name]) for name, promised in self.promised_by_type.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "job_id": self.job_id,
            "num_gpus": self.num_gpus,
            "promised_seconds": self.promised_seconds,
            "delivered_seconds": self.delivered_seconds,
            "undelivered_seconds": self.undelivered_seconds,
            "undelivered_by_reason": {reason.name.lower(): seconds for reason, seconds in self.undelivered_by_reason.items()},
            "rounds_behind": self.rounds_behind,
            "misplaced_seconds": self.misplaced_seconds,
            "waits": {reason.name.lower(): count for reason, count in self.waits.items()},
            "promised_by_type": dict(self.promised_by_type),
            "delivered_by_type": dict(self.delivered_by_type),
        }


@dataclass(frozen=True, eq=False)
class DeliveryAccounts(Mapping[str, JobDelivery]):
    """{job_id: JobDelivery} of N jobs as arrays; each `JobDelivery` is created when it is read.

    Attributes:
        ids: (N,) the jobs.
        accelerator_types: K types.
        num_gpus: (N,) gang sizes.
        promised: (N, K) seconds.
        delivered: (N, K) seconds.
        waits: (N, reasons) rounds waited with a deficit.
        short: (N, reasons) shortfall in seconds.
        misplaced: (N,) seconds.
        rounds: (N,) rounds in which a job was promised time or ran, -1 if unknown.
        round_seconds: (N,) lengths of the rounds, or one for all.
    """

    ids: tuple[str, ...]
    accelerator_types: tuple[str, ...]
    num_gpus: Floats
    promised: Floats
    delivered: Floats
    waits: Floats
    short: Floats
    misplaced: Floats
    rounds: Floats
    round_seconds: float | Floats

    @classmethod
    def of(cls, jobs: Mapping[str, JobDelivery]) -> DeliveryAccounts:
        """Return accounts, all with the same accelerator types, as arrays."""
        each = list(jobs.values())
        names = tuple(each[0].promised_by_type) if each else ()

        def table(keys: tuple[Any, ...], rows: list[dict[Any, Any]]) -> Floats:
            return np.array([[row.get(key, 0.0) for key in keys] for row in rows], dtype=float).reshape(len(rows), len(keys))

        return cls(
            tuple(jobs),
            names,
            np.array([job.num_gpus for job in each], dtype=float),
            table(names, [job.promised_by_type for job in each]),
            table(names, [job.delivered_by_type for job in each]),
            table(WAITS, [job.waits for job in each]),
            table(WAITS, [job.undelivered_by_reason for job in each]),
            np.array([job.misplaced_seconds for job in each], dtype=float),
            np.array([-1 if job.rounds is None else job.rounds for job in each], dtype=float),
            np.array([job.round_seconds for job in each], dtype=float),
        )

    @cached_property
    def _index(self) -> dict[str, int]:
        return dict(zip(self.ids, range(len(self.ids)), strict=True))

    def __getitem__(self, job_id: str) -> JobDelivery:
        row, names = self._index[job_id], self.accelerator_types
        rounds, length = int(self.rounds[row]), self.round_seconds
        return JobDelivery(
            job_id,
            plain_size(self.num_gpus.item(row)),
            dict(zip(names, self.promised[row].tolist(), strict=True)),
            dict(zip(names, self.delivered[row].tolist(), strict=True)),
            {reason: int(count) for reason, count in zip(WAITS, self.waits[row].tolist(), strict=True) if count},
            self.misplaced.item(row),
            {reason: seconds for reason, seconds in zip(WAITS, self.short[row].tolist(), strict=True) if seconds > 0},
            float(length if np.ndim(length) == 0 else length[row]),  # type: ignore[index]
            None if rounds < 0 else rounds,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return repr(dict(self))

    @property
    def shortfalls(self) -> Floats:
        """(N,) Σ_j max(0, promised_ij − delivered_ij)."""
        return _sum_by_job(np.maximum(0.0, self.promised - self.delivered))


def _sum_by_job(table: Floats) -> Floats:
    """Return (N,) the sums of the columns, from left to right as `JobDelivery` adds them."""
    total = np.zeros(len(table))
    for column in table.T:
        total = total + column
    return total


def _sum(values: Floats) -> float:
    """Return the sum from left to right; numpy's pairwise sums would differ from those of `JobDelivery` in the last digit."""
    return float(np.cumsum(values)[-1]) if len(values) else 0


@dataclass(frozen=True)
class TenantDelivery:
    """Promised and delivered time of a tenant in all rounds, with all tenants below it.

    Attributes:
        tenant: The name.
        parent: Name of the tenant above, None at the top.
        promised_gpu_seconds: Σ_i s_i · promised seconds of its jobs.
        delivered_gpu_seconds: GPU-seconds that its jobs held, on idle GPUs too; jobs that share GPUs have an equal part of them.
        undelivered_gpu_seconds: max(0, promised − delivered): time of one of its jobs makes up for another.
        rounds_behind: Its shortfall in rounds, on as many GPUs as the latest promise gives it, at least one.
        first_round: Index of the first round in which it held GPUs. None before.
    """

    tenant: str
    parent: str | None
    promised_gpu_seconds: float
    delivered_gpu_seconds: float
    undelivered_gpu_seconds: float
    rounds_behind: float
    first_round: int | None


@dataclass(frozen=True)
class DeliveryReport:
    """Promised and delivered time of all jobs with an allocation so far, by job_id; sums are weighted by GPUs.

    Attributes:
        jobs: The same of each job, in seconds of its whole gang; in GPU-seconds of an elastic job, whose `num_gpus` is 1.
        offered_by_type: {type: GPU-seconds} that the rounds could give; a type that is missing has no limit.
        tenants: The same of each tenant of jobs and the tenants above, also of jobs that were forgotten; empty without tenants.
        least_tenant_undelivered_gpu_seconds: A lower bound on `tenant_undelivered_gpu_seconds` in any choice of whole gangs.
    """

    jobs: Mapping[str, JobDelivery]
    offered_by_type: dict[str, float] = field(default_factory=dict)
    tenants: Mapping[str, TenantDelivery] = field(default_factory=dict)
    least_tenant_undelivered_gpu_seconds: float = 0.0

    @cached_property
    def _accounts(self) -> DeliveryAccounts:
        return self.jobs if isinstance(self.jobs, DeliveryAccounts) else DeliveryAccounts.of(self.jobs)

    @property
    def promised_gpu_seconds(self) -> float:
        """Σ_i s_i · promised seconds: gang size · time fraction · length of the round, over all jobs and rounds."""
        return _sum(self._accounts.num_gpus * _sum_by_job(self._accounts.promised))

    @property
    def delivered_gpu_seconds(self) -> float:
        """Σ_i s_i · delivered seconds, including time beyond the promise.

        It equals the promise minus `undelivered_gpu_seconds`, plus `ahead_gpu_seconds` and `backfilled_gpu_seconds`.
        """
        return _sum(self._accounts.num_gpus * _sum_by_job(self._accounts.delivered))

    @property
    def undelivered_gpu_seconds(self) -> float:
        """Σ_i s_i · shortfall seconds: promised and not delivered; time on one type does not make up for another."""
        return _sum(self._accounts.num_gpus * self._accounts.shortfalls)

    @property
    def least_undelivered_gpu_seconds(self) -> float:
        """A lower bound on the shortfall of any choice of whole rounds (docs/rounds.md#why-time-is-still-owed).

        A job receives either a whole round or nothing. `least_shortfall` has the formula and its proof.
        """
        return least_shortfall(self._accounts, self.offered_by_type)

    @property
    def backfilled_gpu_seconds(self) -> float:
        """GPU-seconds beyond the promise that took nothing from other jobs: idle GPUs given to waiting jobs.

        On each type j it is max(Σ_i s_i d_ij − Σ_i s_i p_ij, Σ_{i: p_ij = 0} s_i d_ij), with p_ij seconds promised and d_ij
        delivered: the time that all jobs received beyond all promises, but at least the time of jobs without a promise there.
        """
        accounts = self._accounts
        beyond = []
        for promised, delivered in zip(accounts.promised.T, accounts.delivered.T, strict=True):
            in_all = _sum(accounts.num_gpus * delivered) - _sum(accounts.num_gpus * promised)
            beyond.append(max(in_all, _sum(accounts.num_gpus * delivered * (promised <= 0))))
        return sum((seconds for seconds in beyond if seconds > SECONDS_ROUNDING), 0.0)

    @property
    def ahead_gpu_seconds(self) -> float:
        """GPU-seconds that jobs ran ahead of their own fractions while others were behind theirs."""
        beyond = self.delivered_gpu_seconds - (self.promised_gpu_seconds - self.undelivered_gpu_seconds)
        return max(0.0, beyond - self.backfilled_gpu_seconds)

    @property
    def most_rounds_behind(self) -> float:
        """The largest shortfall of any job, in rounds."""
        short, length = self._accounts.shortfalls, self._accounts.round_seconds
        return float(np.divide(short, length, out=np.zeros(len(short)), where=np.asarray(length) > 0).max(initial=0.0))

    @property
    def tenant_undelivered_gpu_seconds(self) -> float:
        """Sum of the shortfalls of the tenants at the top. Of one tenant alone, whole gangs need not leave any."""
        return sum((each.undelivered_gpu_seconds for each in self.tenants.values() if each.parent is None), 0.0)

    @property
    def misplaced_gpu_seconds(self) -> float:
        """Σ_i s_i · misplaced seconds, the part of the delivered time in a slower placement than promised."""
        return _sum(self._accounts.num_gpus * self._accounts.misplaced)

    @property
    def undelivered_share(self) -> float:
        """Shortfall over promise; 0 when nothing was promised."""
        promised = self.promised_gpu_seconds
        return self.undelivered_gpu_seconds / promised if promised else 0.0

    @property
    def least_undelivered_share(self) -> float:
        """`least_undelivered_gpu_seconds` over the promise; 0 when nothing was promised."""
        promised = self.promised_gpu_seconds
        return self.least_undelivered_gpu_seconds / promised if promised else 0.0

    @property
    def undelivered_by_reason(self) -> dict[Wait, float]:
        """GPU-seconds of the shortfall by reason (`Wait`), which add up to it. A reason `backoff` is present only if not 0."""
        by_reason = np.where(self._accounts.short > 0, self._accounts.short, 0.0).T
        found = {reason: float(_sum(self._accounts.num_gpus * short)) for reason, short in zip(WAITS, by_reason, strict=True)}
        return {reason: seconds for reason, seconds in found.items() if reason is not Wait.BACKOFF or seconds}

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "promised_gpu_seconds": self.promised_gpu_seconds,
            "delivered_gpu_seconds": self.delivered_gpu_seconds,
            "undelivered_gpu_seconds": self.undelivered_gpu_seconds,
            "least_undelivered_gpu_seconds": self.least_undelivered_gpu_seconds,
            "ahead_gpu_seconds": self.ahead_gpu_seconds,
            "backfilled_gpu_seconds": self.backfilled_gpu_seconds,
            "misplaced_gpu_seconds": self.misplaced_gpu_seconds,
            "undelivered_share": self.undelivered_share,
            "least_undelivered_share": self.least_undelivered_share,
            "most_rounds_behind": self.most_rounds_behind,
            "undelivered_by_reason": {reason.name.lower(): seconds for reason, seconds in self.undelivered_by_reason.items()},
            **(
                {
                    "tenant_undelivered_gpu_seconds": self.tenant_undelivered_gpu_seconds,
                    "least_tenant_undelivered_gpu_seconds": self.least_tenant_undelivered_gpu_seconds,
                    "tenants": [asdict(tenant) for tenant in self.tenants.values()],
                }
                if self.tenants
                else {}
            ),
            "jobs": [job.to_dict() for job in self.jobs.values()],
        }


def least_shortfall(accounts: DeliveryAccounts, offered_by_type: Mapping[str, float]) -> float:
    """Return a lower bound on the shortfall that any choice of whole rounds leaves, in GPU-seconds.

    Job i, a gang of s_i GPUs, was promised p_ij rounds on type j, in n_i rounds. What it receives is a whole number of rounds
    r_ij, with Σ_j r_ij <= n_i and Σ_i s_i r_ij <= C_j, the GPU-rounds offered. Let f_ij = p_ij − ⌊p_ij⌋. The shortfall
    Σ_ij s_i max(0, p_ij − r_ij) is Σ_ij s_i p_ij less the gain Σ_ij s_i min(p_ij, r_ij), where each of the first ⌊p_ij⌋ rounds
    gains s_i and the next one s_i f_ij. Each of two relaxations bounds the gain from above, and so the shortfall from below:

    - by type, only C_j counts: the relaxed knapsack problem takes the whole rounds first, which gain most per GPU, and then
      the largest f_ij, the last one in part;
    - by job, only n_i counts: job i gains from Σ_j ⌊p_ij⌋ <= Σ_j p_ij <= n_i whole rounds and its n_i − Σ_j ⌊p_ij⌋ largest f_ij.

    The larger bound is returned. Jobs with rounds of different lengths are assumed to receive fractions of rounds.

    Args:
        accounts: The accounts.
        offered_by_type: {type: GPU-seconds offered}; a type that is missing has no limit.
    """
    lengths = np.broadcast_to(accounts.round_seconds, len(accounts))
    rows = np.flatnonzero((_sum_by_job(accounts.promised) > 0) & (lengths > 0))
    if not len(rows):
        return 0.0
    names, lengths, rounds = accounts.accelerator_types, lengths[rows], accounts.rounds[rows]
    sizes, promised = accounts.num_gpus[rows] * lengths, accounts.promised[rows] / lengths[:, None]
    whole = np.where((rounds >= 0)[:, None], np.floor(promised), promised)
    parts = promised - whole
    by_type = sum(
        shortage(sizes, whole[:, column], parts[:, column], offered_by_type.get(name, np.inf)) for column, name in enumerate(names)
    )
    left = np.where(rounds < 0, np.inf, rounds) - whole.sum(axis=1)
    unserved = np.where(np.arange(len(names)) >= left[:, None], -np.sort(-parts, axis=1), 0.0).sum(axis=1)
    return max(by_type, float(sizes @ unserved))


def shortage(sizes: Floats, whole: Floats, parts: Floats, offered: float) -> float:
    """Return the least shortfall on one type within the GPU-seconds offered; sizes: GPU-seconds of one round of each gang."""
    order = np.argsort(-parts, kind="stable")
    left = offered - sizes @ whole
    served = np.clip((left - np.cumsum(sizes[order]) + sizes[order]) / sizes[order], 0.0, 1.0)
    return max(0.0, -float(left)) + float(sizes[order] @ (parts[order] * (1.0 - served)))
