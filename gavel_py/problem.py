"""The numbers of one allocation: who asks, how fast each job runs where, and how many GPUs there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.array_checks import ArrayChecker
from gavel_py.cluster import Cluster
from gavel_py.errors import Fault, InputError
from gavel_py.job_arrays import Profile, job_arrays, known_part
from gavel_py.jobs import Job, JobSet
from gavel_py.screening import screen

__all__ = ["AllocationProblem"]

Floats = NDArray[np.float64]
RunningOn = Sequence[int | str | None] | NDArray[np.int64] | None

# Each (N,) array: its default, and the rule that its numbers obey.
JOB_COLUMNS: dict[str, tuple[float, str]] = {
    "num_gpus": (1, "whole"),
    "weights": (1, "greater than 0"),
    "priorities": (0, "finite"),
    "steps_remaining": (np.nan, "at least 0"),
    "total_steps": (np.nan, "greater than 0"),
    "arrival_seconds": (0, "finite"),
    "elapsed_seconds": (0, "at least 0"),
    "waiting_seconds": (0, "at least 0"),
    "isolated_seconds": (0, "at least 0"),
    "attained_gpu_seconds": (0, "at least 0"),
    "deadlines_seconds": (np.nan, "finite or NaN"),
}
# Jobs may leave out how long they are; a caller of from_arrays who hands in NaN has made a mistake.
UNKNOWN_WORK = {"steps_remaining": (np.nan, "at least 0 or NaN"), "total_steps": (np.nan, "at least 0 or NaN")}


@dataclass(frozen=True, eq=False, kw_only=True)
class AllocationProblem:
    """N jobs and K accelerator types as arrays; build one with `from_arrays` or `from_jobs`.

    throughputs: (N, K) T_ij, steps/s of the whole gang, 0 = cannot run; capacities: (K,) c_j, GPUs;
    runnable: (N, K) where a job may be given time; excluded: {job_id: reason} of the jobs that get none.
    All other arrays are (N,) but prices_per_hour (K,) and previous_fractions (N, K). Unknown numbers are NaN.
    """

    job_ids: tuple[str, ...]
    accelerator_types: tuple[str, ...]
    throughputs: Floats
    capacities: Floats
    runnable: NDArray[np.bool_]
    excluded: dict[str, str]
    prices_per_hour: Floats
    tenants: tuple[str, ...]
    num_gpus: NDArray[np.int64]
    weights: Floats
    priorities: Floats
    steps_remaining: Floats
    total_steps: Floats
    arrival_seconds: Floats
    elapsed_seconds: Floats
    waiting_seconds: Floats
    isolated_seconds: Floats
    attained_gpu_seconds: Floats
    deadlines_seconds: Floats
    running_on: NDArray[np.int64]
    previous_fractions: Floats

    @property
    def num_jobs(self) -> int:
        """N, excluded jobs included."""
        return len(self.job_ids)

    @property
    def equal_share(self) -> Floats:
        """(N,) P_i = Σ_j T_ij c_j / C, steps/s of a job that spends its time over the types in proportion to their counts.

        The normaliser of Gavel (OSDI 2020, section 4.1), independent of N, gang sizes and weights.
        """
        total = self.capacities.sum()
        return self.throughputs @ (self.capacities / total) if total else np.zeros(self.num_jobs)

    @property
    def fastest(self) -> Floats:
        """(N,) max_j T_ij over the types where the job can run; 0 for excluded jobs."""
        fastest: Floats = np.where(self.runnable, self.throughputs, 0.0).max(axis=1, initial=0.0)
        return fastest

    def __repr__(self) -> str:
        counts = ", ".join(f"{n}: {c:g}" for n, c in zip(self.accelerator_types, self.capacities, strict=True))
        return f"AllocationProblem({self.num_jobs} jobs, {len(self.excluded)} of them excluded; GPUs {counts})"

    def required(self, field: str, asked_by: str) -> Floats:
        """Return the (N,) array `field`, or raise `InputError` naming the jobs for which it is unknown."""
        values: Floats = getattr(self, field)
        unknown = [self.job_ids[i] for i in np.flatnonzero(np.isnan(values))]
        InputError.raise_any([Fault(f"job {job!r}", field, f"is unknown, and {asked_by} needs it") for job in unknown])
        return values

    def select(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> AllocationProblem:
        """Return the problem of these jobs only, in this order; `rows` may also be an (N,) mask."""
        rows = np.arange(self.num_jobs)[rows]
        picked = {f.name: _picked(getattr(self, f.name), rows) for f in fields(self) if f.name not in _NOT_BY_JOB}
        excluded = {job: self.excluded[job] for job in picked["job_ids"] if job in self.excluded}
        return replace(self, excluded=excluded, **picked)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @classmethod
    def from_arrays(
        cls,
        throughputs: ArrayLike,
        capacities: ArrayLike,
        *,
        accelerator_types: Sequence[str] | None = None,
        prices_per_hour: ArrayLike | None = None,
        job_ids: Sequence[object] | None = None,
        tenants: Sequence[str] | None = None,
        num_gpus: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        steps_remaining: ArrayLike | None = None,
        total_steps: ArrayLike | None = None,
        arrival_seconds: ArrayLike | None = None,
        elapsed_seconds: ArrayLike | None = None,
        waiting_seconds: ArrayLike | None = None,
        isolated_seconds: ArrayLike | None = None,
        attained_gpu_seconds: ArrayLike | None = None,
        deadlines_seconds: ArrayLike | None = None,
        running_on: RunningOn = None,
        previous_fractions: ArrayLike | None = None,
    ) -> AllocationProblem:
        """Build a problem from arrays; each fault in them is reported with its job and field, all together.

        throughputs: (N, K) steps/s of the whole gang, 0 = cannot run; capacities: (K,) GPUs.
        Optional, (N,) unless said: accelerator_types (K,), prices_per_hour (K,) of one GPU, job_ids, tenants,
        num_gpus (1), weights (1), priorities (0), steps_remaining (total_steps if given, else unknown), total_steps
        (unknown), arrival_seconds (0), elapsed_seconds since arrival (0), waiting_seconds (0), isolated_seconds (0),
        attained_gpu_seconds (0), deadlines_seconds from now (NaN = none), running_on (type name or column, None or -1 =
        not running), previous_fractions (N, K) (0).

        Raises `InputError`.
        """
        check = ArrayChecker()
        rows, columns = _shape(throughputs, capacities)
        ids = check.unique_names("job_ids", job_ids, rows, "")
        types = check.unique_names("accelerator_types", accelerator_types, columns, "type-")
        counts = check.numbers("capacities", capacities, 0, "at least 0", [("accelerator type", types)])
        return cls._assembled(
            check,
            ids,
            types,
            throughputs=throughputs,
            capacities=counts,
            prices_per_hour=prices_per_hour,
            tenants=check.texts("tenants", tenants, rows),
            running_on=running_on,
            previous_fractions=previous_fractions,
            allowed=np.ones((rows, columns), dtype=bool),
            largest_gangs=np.broadcast_to(counts, (rows, columns)),
            rules=JOB_COLUMNS,
            by_job={
                "num_gpus": num_gpus,
                "weights": weights,
                "priorities": priorities,
                "steps_remaining": steps_remaining,
                "total_steps": total_steps,
                "arrival_seconds": arrival_seconds,
                "elapsed_seconds": elapsed_seconds,
                "waiting_seconds": waiting_seconds,
                "isolated_seconds": isolated_seconds,
                "attained_gpu_seconds": attained_gpu_seconds,
                "deadlines_seconds": deadlines_seconds,
            },
        )

    @classmethod
    def from_jobs(
        cls,
        jobs: Iterable[Job],
        cluster: Cluster,
        profile: Profile,
        *,
        now_seconds: float = 0.0,
        waiting_seconds: ArrayLike | None = None,
        isolated_seconds: ArrayLike | None = None,
        attained_gpu_seconds: ArrayLike | None = None,
        running_on: RunningOn = None,
        previous_fractions: ArrayLike | None = None,
    ) -> AllocationProblem:
        """Build the problem of these jobs on this cluster, with throughputs of consolidated placement from the profile.

        Accelerator types that the profile does not know are left out, with a `GavelWarning`. A type that the job does not
        allow, or on which no set of nodes within its locality can hold its gang, gets none of its time.
        The optional arrays are those of `from_arrays`, in the order of the jobs.

        Raises `MissingThroughputError` for throughputs that the profile lacks, `InputError` for anything else that is wrong.
        """
        if not (isinstance(now_seconds, Real) and math.isfinite(now_seconds)):
            raise InputError(Fault("", "now_seconds", f"must be a finite number, found {now_seconds!r}"))
        job_set = jobs if isinstance(jobs, JobSet) else JobSet(jobs)
        cluster = known_part(cluster, profile)
        arrays = job_arrays(job_set, cluster, profile, now_seconds)
        return cls._assembled(
            ArrayChecker(),
            tuple(job.job_id for job in job_set),
            cluster.accelerator_names,
            throughputs=arrays.throughputs,
            capacities=cluster.capacities,
            prices_per_hour=cluster.prices_per_hour,
            tenants=tuple(job.tenant for job in job_set),
            running_on=running_on,
            previous_fractions=previous_fractions,
            allowed=arrays.allowed,
            largest_gangs=arrays.largest_gangs,
            rules=JOB_COLUMNS | UNKNOWN_WORK,
            by_job={
                "num_gpus": [job.num_gpus for job in job_set],
                "weights": [job.weight for job in job_set],
                "priorities": [job.priority for job in job_set],
                "steps_remaining": arrays.steps_remaining,
                "total_steps": arrays.total_steps,
                "arrival_seconds": [job.arrival_seconds for job in job_set],
                "elapsed_seconds": [max(0.0, now_seconds - job.arrival_seconds) for job in job_set],
                "waiting_seconds": waiting_seconds,
                "isolated_seconds": isolated_seconds,
                "attained_gpu_seconds": attained_gpu_seconds,
                "deadlines_seconds": arrays.deadlines_seconds,
            },
        )

    @classmethod
    def _assembled(
        cls,
        check: ArrayChecker,
        ids: tuple[str, ...],
        types: tuple[str, ...],
        *,
        throughputs: ArrayLike,
        capacities: Floats,
        prices_per_hour: ArrayLike | None,
        tenants: tuple[str, ...],
        running_on: RunningOn,
        previous_fractions: ArrayLike | None,
        allowed: NDArray[np.bool_],
        largest_gangs: Floats,
        rules: Mapping[str, tuple[float, str]],
        by_job: Mapping[str, ArrayLike | None],
    ) -> AllocationProblem:
        """Check what is left to check, find out who can run where, and freeze it all."""
        jobs, kinds = ("job", ids), ("accelerator type", types)
        table = check.numbers("throughputs", throughputs, 0, "at least 0", [jobs, kinds])
        columns = {name: check.numbers(name, values, *rules[name], [jobs]) for name, values in by_job.items()}
        if by_job["steps_remaining"] is None:
            columns["steps_remaining"] = columns["total_steps"]
        prices = check.numbers("prices_per_hour", prices_per_hour, np.nan, "at least 0 or NaN", [kinds])
        previous = check.numbers("previous_fractions", previous_fractions, 0, "from 0 to 1", [jobs, kinds])
        running = check.columns_of("running_on", running_on, ids, types)
        check.finish()
        gangs = columns.pop("num_gpus").astype(np.int64)
        screening = screen(ids, types, table, allowed, gangs, largest_gangs, columns["steps_remaining"])
        return cls(
            job_ids=ids,
            accelerator_types=types,
            throughputs=table,
            capacities=capacities,
            runnable=screening.runnable,
            excluded=screening.excluded,
            prices_per_hour=prices,
            tenants=tenants,
            num_gpus=gangs,
            running_on=running,
            previous_fractions=previous,
            **columns,
        )


_NOT_BY_JOB = frozenset({"accelerator_types", "capacities", "prices_per_hour", "excluded"})


def _shape(throughputs: ArrayLike, capacities: ArrayLike) -> tuple[int, int]:
    """(N, K) as the throughputs say; an empty job set takes K from the capacities."""
    try:
        shape, columns = np.shape(throughputs), np.shape(capacities)
    except ValueError:
        raise InputError(Fault("", "throughputs", "must be a table: as many numbers in each row as there are capacities")) from None
    if len(columns) != 1:
        raise InputError(Fault("", "capacities", f"must be a list with one number per accelerator type, found shape {columns}"))
    if 0 in shape:
        return shape[0], columns[0]
    if len(shape) != 2 or shape[1] != columns[0]:
        raise InputError(Fault("", "throughputs", f"must have the shape (jobs, {columns[0]}) to fit the capacities, found {shape}"))
    return shape[0], shape[1]


def _picked(value: Any, rows: NDArray[np.int64]) -> Any:
    return value[rows] if isinstance(value, np.ndarray) else tuple(value[i] for i in rows)
