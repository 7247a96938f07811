"""AlloX: minimise the total completion time by matching jobs with places in GPU queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io.names import natural_key
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.policies.formulas import FormulaPolicy
from gavel_py.problem.arrays import Floats, Indices

MAX_COSTS = 50_000_000
"""Largest size of the cost matrix, 400 MB."""


@dataclass(frozen=True, kw_only=True)
class Allox(FormulaPolicy):
    """Queue jobs on GPUs for the least mean completion time.

    AlloX: min Σ_i (position_i · n_i / T_ij + t_i) over all ways to queue whole jobs on GPUs; the first in each queue run now.

    position_i: 1 for the last job on its GPU, 2 for the one before it, ..., so the sum is that of all completion times;
    n_i: steps remaining; t_i: seconds since arrival, which changes nothing. Jobs of one whole GPU only.
    Source: AlloX (EuroSys 2020), without its restriction to the worst-off users.
    """

    agnostic_view = "reference"
    reduces = False
    reads = ("steps_remaining", "arrival_seconds", "job_ids")

    def view(self, jobs: JobClasses) -> JobClasses:
        others = np.flatnonzero(jobs.num_gpus != 1).tolist()
        text = "serves only jobs of one whole GPU"
        InputError.raise_any(
            [Fault(f"job {jobs.example(i)!r}", "num_gpus", f"is {jobs.num_gpus[i]:g}, but {self.name} {text}") for i in others]
        )
        return super().view(jobs)

    def fractions(self, jobs: JobClasses) -> Floats:
        ids, arrivals = jobs.job_ids, jobs.arrival_seconds.tolist()
        order = np.array(sorted(range(len(jobs)), key=lambda i: (arrivals[i], natural_key(ids[i]))))
        speeds, steps = jobs.throughputs[order], jobs.steps_remaining[order]
        seconds = np.divide(steps[:, None], speeds, out=np.full(speeds.shape, np.inf), where=jobs.runnable[order])
        gpus = jobs.capacities.astype(np.int64)
        types = best_types(seconds, gpus)
        fractions = np.zeros(speeds.shape)
        for j in range(len(gpus)):
            queued = np.flatnonzero(types == j)
            first = queued[np.argsort(seconds[queued, j], kind="stable")][: gpus[j]]
            fractions[order[first], j] = 1.0
        return fractions


def best_types(seconds: Floats, gpus: Indices) -> Indices:
    """Return (N,) the type in whose queue each job waits if the sum of all completion times is minimal.

    seconds: (N, K) the time that a job takes on each type, infinite where it cannot run; gpus: (K,) whole GPUs of each type. On
    each type, the shortest jobs run first. If M_j jobs can run on type j, M_j places are enough, c_j of each position: a smaller
    position costs each job less, so a job beyond these places could move to the one of them that it leaves free.

    Raises `InputError` if the cost matrix is too large.
    """
    from scipy.optimize import linear_sum_assignment

    places = np.isfinite(seconds).sum(axis=0)
    if len(seconds) * places.sum() > MAX_COSTS:
        text = f"{len(seconds)} jobs and {places.sum()} queue positions need a cost matrix of more than {MAX_COSTS:,} numbers"
        raise InputError(Fault("policy allox", "", f"{text}; solve fewer jobs at a time, or order them by shortest_job_first"))
    types = np.repeat(np.arange(len(gpus)), places)
    positions = np.concatenate([np.arange(count) // max(1, own) + 1 for count, own in zip(places, gpus, strict=True)])
    costs = seconds[:, types]
    costs *= positions
    chosen: Indices = linear_sum_assignment(costs)[1]
    return types[chosen]
