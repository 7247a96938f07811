"""The interface of throughput profiles that problems read; `gavel_py.throughput_profiles` has those that are built in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Floats
    from gavel_py.problem.job import Job


class Profile(Protocol):
    """The interface of throughput profiles that a problem reads (`gavel_py.throughput_profiles`).

    Six further methods are optional, and so is `is_by_type`, true if jobs with equal gangs have equal throughputs.
    `job_units(jobs)` returns the unit of the throughputs of each of N jobs, or None if all are the same.
    `count_matrix(jobs, accelerators)` returns `matrix` with NaN for unmeasured throughputs; elastic jobs need it, and `gang_sizes`,
    all measured gang sizes, if they request a range. The others return NaN for unmeasured values, or None if nothing was measured:
    `spread_matrix(jobs, accelerators)`: (N, K) steps/s of each gang on more nodes than it needs;
    `pair_matrix(jobs, accelerators)`: (Q, Q, K) steps/s of each of Q gangs while all its GPUs are shared with each other gang;
    `memory_matrix(jobs, accelerators)`: (N, K) GB of memory that each gang uses on each of its GPUs;
    `uncertainty_matrix(jobs, accelerators, shares)`: (N, K) standard deviation of log(T_ij / Σ_k T_ik share_k), from
    estimates of T.
    """

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the known accelerator types."""
        ...

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats:
        """Return (N, K) steps/s of each whole gang on each type, consolidated.

        Args:
            jobs: N jobs.
            accelerators: Names of K types.

        Raises:
            MissingThroughputError: A throughput is unknown.
        """
        ...

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Return the steps/s of the whole gang on one type.

        Args:
            job: The job.
            accelerator: Name of the type.
            placement: "consolidated" or "spread".

        Raises:
            MissingThroughputError: The throughput is unknown.
        """
        ...
