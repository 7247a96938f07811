"""Delivery accounts: time that allocations promised and rounds delivered, and why jobs with a deficit wait.

`DeliveryReport` holds a `JobDelivery` per job; `least_shortfall` bounds the shortfall that any choice of whole rounds leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Mask

MIN_DEFICIT_ROUNDS = 1e-6
"""Smaller deficits are rounding errors of solvers and sums."""


class Wait(StrEnum):
    """Why a job with a deficit on some type received no time there in a round, as a clause after "because"."""

    NEW = "it had just arrived"
    TURN = "others were owed more"
    GANG = "fewer GPUs were free than its gang needs"
    PLACE = "no nodes within its locality had room, CPUs and memory"
    NODE = "nodes were down"
    OTHER_TYPE = "it ran on another of its types"


WAITS = tuple(Wait)


def waits_of(
    claims: NDArray[np.float64], ran: Mask, open_types: Mask, free: NDArray[np.float64], num_gpus: NDArray[np.float64], new: Mask
) -> NDArray[np.int64]:
    """Return (N,) why each job waited, as its place in `WAITS`; -1 for jobs that ran or have no deficit.

    Args:
        claims: (N, K) deficits in rounds, this round included.
        ran: (N,) the jobs that ran.
        open_types: (N, K) where nodes are up that could hold the job.
        free: (K,) GPUs left over.
        num_gpus: (N,) gang sizes.
        new: (N,) jobs for which it was the first round.
    """
    has_deficit = (claims > MIN_DEFICIT_ROUNDS) & ~ran[:, None]
    here = has_deficit & open_types
    enough = here & (num_gpus[:, None] <= free)
    some = here & (free > 0)
    # The first condition that holds counts. If enough GPUs were free, only their nodes can have been unsuitable.
    reasons = [(new, Wait.NEW), (enough.any(axis=1), Wait.PLACE), (some.any(axis=1), Wait.GANG), (here.any(axis=1), Wait.TURN)]
    codes = np.select([holds for holds, _ in reasons], [WAITS.index(wait) for _, wait in reasons], WAITS.index(Wait.NODE))
    return np.where(has_deficit.any(axis=1), codes, -1)


MIN_SECONDS = 1e-6
"""Smaller shortfalls are rounding errors."""


@dataclass(frozen=True)
class JobDelivery:
    """Promised and delivered time of one job, in seconds of its whole gang by accelerator type.

    If the gang has changed its size, seconds are those of the present size. Time on a type beyond the promise there (from GPUs that
    would have idled) does not make up for a shortfall on another type.

    Attributes:
        job_id: The job.
        num_gpus: GPUs of its gang.
        promised_by_type: Σ over rounds of X_ij times the length of the round.
        delivered_by_type: Seconds for which it held its GPUs.
        waits: Number of rounds in which it waited with a deficit, by reason.
        misplaced_seconds: Delivered time on more nodes than promised, or on fewer where that is slower.
        shortfall_by_reason: Seconds, which add up to `shortfall_seconds`.
        round_seconds: Length of a round, 0 before the first.
        rounds: Number of rounds in which it was promised time or ran; None if their lengths differ or the gang has changed its
            size.
    """

    job_id: str
    num_gpus: float
    promised_by_type: dict[str, float]
    delivered_by_type: dict[str, float]
    waits: dict[Wait, int] = field(default_factory=dict)
    misplaced_seconds: float = 0.0
    shortfall_by_reason: dict[Wait, float] = field(default_factory=dict)
    round_seconds: float = 0.0
    rounds: int | None = None

    @property
    def why(self) -> Wait | None:
        """The main reason for its shortfall, the first of equals; None without a shortfall."""
        reasons = self.shortfall_by_reason
        return max(reasons, key=lambda reason: reasons[reason]) if reasons and self.shortfall_seconds > MIN_SECONDS else None

    @property
    def rounds_behind(self) -> float:
        """Its shortfall in rounds."""
        return self.shortfall_seconds / self.round_seconds if self.round_seconds else 0.0

    @property
    def promised_seconds(self) -> float:
        """Σ_j promised_ij, the time fractions in force summed over the rounds."""
        return sum(self.promised_by_type.values())

    @property
    def delivered_seconds(self) -> float:
        """Σ_j delivered_ij, the rounds in which it ran."""
        return sum(self.delivered_by_type.values())

    @property
    def shortfall_seconds(self) -> float:
        """Σ_j max(0, promised_ij − delivered_ij)."""
        return sum(max(0.0, promised - self.delivered_by_type[name]) for name, promised in self.promised_by_type.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the account as plain data."""
        return {
            "job_id": self.job_id,
            "num_gpus": self.num_gpus,
            "promised_seconds": self.promised_seconds,
            "delivered_seconds": self.delivered_seconds,
            "shortfall_seconds": self.shortfall_seconds,
            "shortfall_by_reason": {reason.name.lower(): seconds for reason, seconds in self.shortfall_by_reason.items()},
            "rounds_behind": self.rounds_behind,
            "misplaced_seconds": self.misplaced_seconds,
            "waits": {reason.name.lower(): count for reason, count in self.waits.items()},
            "promised_by_type": dict(self.promised_by_type),
            "delivered_by_type": dict(self.delivered_by_type),
        }


@dataclass(frozen=True)
class DeliveryReport:
    """Promised and delivered time of all jobs with an allocation so far, by job_id; sums are weighted by GPUs.

    Attributes:
        jobs: {job_id: JobDelivery}.
        offered_by_type: {type: GPU-seconds} that the rounds could give; a type that is missing has no limit.
    """

    jobs: dict[str, JobDelivery]
    offered_by_type: dict[str, float] = field(default_factory=dict)

    @property
    def promised_gpu_seconds(self) -> float:
        """Σ_i s_i · promised seconds."""
        return sum(job.num_gpus * job.promised_seconds for job in self.jobs.values())

    @property
    def delivered_gpu_seconds(self) -> float:
        """Σ_i s_i · delivered seconds, those beyond the promise included.

        It is the promise less `shortfall_gpu_seconds`, plus `ahead_gpu_seconds` and `backfilled_gpu_seconds`.
        """
        return sum(job.num_gpus * job.delivered_seconds for job in self.jobs.values())

    @property
    def shortfall_gpu_seconds(self) -> float:
        """Σ_i s_i · shortfall seconds."""
        return sum(job.num_gpus * job.shortfall_seconds for job in self.jobs.values())

    @property
    def least_shortfall_gpu_seconds(self) -> float:
        """A lower bound on the shortfall, in GPU-seconds, that any choice of whole rounds leaves.

        A job receives all of a round or nothing of it. `least_shortfall` has the formula and its proof.
        """
        return least_shortfall(self.jobs.values(), self.offered_by_type)

    @property
    def backfilled_gpu_seconds(self) -> float:
        """GPU-seconds beyond the promise that took nothing from other jobs: idle GPUs given to waiting jobs.

        On each type j it is max(Σ_i s_i d_ij − Σ_i s_i p_ij, Σ_{i: p_ij = 0} s_i d_ij), with p_ij seconds promised and d_ij
        delivered: what all jobs received beyond all promises, but at least what jobs without a promise there received.
        """
        beyond = (max(delivered - promised, unpromised) for promised, delivered, unpromised in self._by_type())
        return sum((seconds for seconds in beyond if seconds > MIN_SECONDS), 0.0)

    @property
    def ahead_gpu_seconds(self) -> float:
        """GPU-seconds that jobs ran ahead of their own fractions while others were behind theirs."""
        beyond = self.delivered_gpu_seconds - (self.promised_gpu_seconds - self.shortfall_gpu_seconds)
        return max(0.0, beyond - self.backfilled_gpu_seconds)

    @property
    def most_rounds_behind(self) -> float:
        """The largest shortfall of any job, in rounds."""
        return max((job.rounds_behind for job in self.jobs.values()), default=0.0)

    @property
    def misplaced_gpu_seconds(self) -> float:
        """Σ_i s_i · misplaced seconds."""
        return sum(job.num_gpus * job.misplaced_seconds for job in self.jobs.values())

    @property
    def undelivered_share(self) -> float:
        """Shortfall over promise, in GPU-seconds; 0 when nothing was promised."""
        promised = self.promised_gpu_seconds
        return self.shortfall_gpu_seconds / promised if promised else 0.0

    @property
    def least_undelivered_share(self) -> float:
        """`least_shortfall_gpu_seconds` over the promise; 0 when nothing was promised."""
        promised = self.promised_gpu_seconds
        return self.least_shortfall_gpu_seconds / promised if promised else 0.0

    @property
    def shortfall_by_reason(self) -> dict[Wait, float]:
        """Σ_i s_i · shortfall seconds by reason; they add up to `shortfall_gpu_seconds`."""
        found = dict.fromkeys(WAITS, 0.0)
        for job in self.jobs.values():
            for reason, seconds in job.shortfall_by_reason.items():
                found[reason] += job.num_gpus * seconds
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "promised_gpu_seconds": self.promised_gpu_seconds,
            "delivered_gpu_seconds": self.delivered_gpu_seconds,
            "shortfall_gpu_seconds": self.shortfall_gpu_seconds,
            "least_shortfall_gpu_seconds": self.least_shortfall_gpu_seconds,
            "ahead_gpu_seconds": self.ahead_gpu_seconds,
            "backfilled_gpu_seconds": self.backfilled_gpu_seconds,
            "misplaced_gpu_seconds": self.misplaced_gpu_seconds,
            "undelivered_share": self.undelivered_share,
            "least_undelivered_share": self.least_undelivered_share,
            "most_rounds_behind": self.most_rounds_behind,
            "shortfall_by_reason": {reason.name.lower(): seconds for reason, seconds in self.shortfall_by_reason.items()},
            "jobs": [job.to_dict() for job in self.jobs.values()],
        }

    def _by_type(self) -> list[tuple[float, float, float]]:
        """Return GPU-seconds for each type: promised, delivered, and delivered to jobs without a promise there."""
        sums: dict[str, list[float]] = {}
        for job in self.jobs.values():
            for name, promised in job.promised_by_type.items():
                delivered, of_type = job.delivered_by_type[name], sums.setdefault(name, [0.0, 0.0, 0.0])
                of_type[0] += job.num_gpus * promised
                of_type[1] += job.num_gpus * delivered
                of_type[2] += job.num_gpus * delivered * (promised <= 0)
        return [(promised, delivered, unpromised) for promised, delivered, unpromised in sums.values()]


def least_shortfall(jobs: Iterable[JobDelivery], offered_by_type: Mapping[str, float]) -> float:
    """Return a lower bound on the shortfall that any choice of whole rounds leaves, in GPU-seconds.

    Job i, a gang of s_i GPUs, was promised p_ij rounds on type j, in n_i rounds. What it receives is a whole number of rounds
    r_ij, with Σ_j r_ij <= n_i and Σ_i s_i r_ij <= C_j, the GPU-rounds offered. Let f_ij = p_ij − ⌊p_ij⌋. The shortfall
    Σ_ij s_i max(0, p_ij − r_ij) is Σ_ij s_i p_ij less the gain Σ_ij s_i min(p_ij, r_ij), where each of the first ⌊p_ij⌋ rounds
    gains s_i and the next one s_i f_ij. Each of two relaxations bounds the gain from above, and so the shortfall from below:

    - by type, only C_j counts: the relaxed knapsack problem takes the whole rounds first, which gain most per GPU, and then
      the largest f_ij, the last of them in part;
    - by job, only n_i counts: job i gains from Σ_j ⌊p_ij⌋ <= Σ_j p_ij <= n_i whole rounds and its n_i − Σ_j ⌊p_ij⌋ largest f_ij.

    The larger bound is returned. Jobs with rounds of different lengths are assumed to receive fractions of rounds.

    Args:
        jobs: The accounts.
        offered_by_type: {type: GPU-seconds offered}; a type that is missing has no limit.
    """
    accounts = [job for job in jobs if job.promised_seconds > 0 and job.round_seconds > 0]
    if not accounts:
        return 0.0
    names = list(accounts[0].promised_by_type)
    sizes = np.array([job.num_gpus * job.round_seconds for job in accounts])
    promised = np.array([[job.promised_by_type[name] / job.round_seconds for name in names] for job in accounts])
    counted = np.array([job.rounds is not None for job in accounts])
    whole = np.where(counted[:, None], np.floor(promised), promised)
    parts = promised - whole
    by_type = sum(
        _beyond(sizes, whole[:, column], parts[:, column], offered_by_type.get(name, np.inf)) for column, name in enumerate(names)
    )
    left = np.array([np.inf if job.rounds is None else job.rounds for job in accounts]) - whole.sum(axis=1)
    unserved = np.where(np.arange(len(names)) >= left[:, None], -np.sort(-parts, axis=1), 0.0).sum(axis=1)
    return max(by_type, float(sizes @ unserved))


def _beyond(sizes: Floats, whole: Floats, parts: Floats, offered: float) -> float:
    """Return the least shortfall on one type within the GPU-seconds offered; sizes: GPU-seconds of one round of each gang."""
    order = np.argsort(-parts, kind="stable")
    left = offered - sizes @ whole
    served = np.clip((left - np.cumsum(sizes[order]) + sizes[order]) / sizes[order], 0.0, 1.0)
    return max(0.0, -float(left)) + float(sizes[order] @ (parts[order] * (1.0 - served)))
