"""Co-location: rounds in which jobs share GPUs, whole (`groups`) or in parts (`fractional`).

Each co-location group (`groups`) is planned as one gang. GPUs that remain idle are then offered to the jobs of groups without a
place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationGroups
from gavel_py.scheduling.mechanism.demand import RoundDemand, raised_scores_of
from gavel_py.scheduling.mechanism.limits import within_limits, worths_of
from gavel_py.scheduling.placement.gangs import HeldGpus, ResourceRequests

__all__ = ["plan_groups"]

MOST_PASSES = 4
"""Maximum number of times that fractional jobs are packed, each time onto fewer GPUs."""


def plan_groups(
    plan: Callable[..., HeldGpus],
    pack: Callable[..., ColocationGroups],
    pairs: ColocationGroups,
    demand: RoundDemand,
    requests: ResourceRequests,
    problem: AllocationProblem,
    previous: HeldGpus,
    fixed: HeldGpus,
) -> HeldGpus:
    """Return (N,) the GPUs of the jobs that run.

    Args:
        plan: `plan_round` for given nodes and mechanism.
        pack: Adds groups of fractional jobs, for at most `most` GPUs of each type (`pack_fractional`).
        pairs: Groups of jobs that share whole GPUs.
        demand: The demand of all jobs, without regard to groups.
        requests: Resource requests of the jobs.
        problem: The problem of the N jobs.
        previous: (N,) GPUs of the previous round.
        fixed: (N,) GPUs of jobs that must keep them.
    """

    def assign(groups: ColocationGroups, fixed: HeldGpus) -> HeldGpus:
        rows = [group.rows for group in groups.groups]
        joint = requests.joined(rows, parts) if rows else requests
        joined = replace(
            groups.demand,
            limits=tuple(limit.joined(rows, parts) for limit in demand.limits),
            tenants=None if demand.tenants is None else demand.tenants.joined(rows, parts),
        )
        return groups.expanded(plan(joined, joint, previous=groups.reduced(previous), fixed=fixed))

    parts = np.minimum(1.0, problem.num_gpus)  # of each of its GPUs that a job requests, 1 for whole gangs
    fractional, idle = parts < 1, _idle_gpus(demand, fixed)
    # Of the claims of tenants, what gangs keep counts first, and only waiting jobs have a part in the rest.
    rest = None if demand.tenants is None else demand.tenants.without(fixed.runs, fixed.shares[fixed.runs])
    waiting = replace(pairs.demand, runnable=pairs.demand.runnable & ~fixed.runs[:, None], tenants=rest)
    pairs = replace(pairs, demand=_within_limits(waiting, parts, fixed))
    for _ in range(MOST_PASSES):
        groups, most = pack(pairs, most=idle), idle
        found = assign(groups, fixed)
        waits, idle = groups.without_place(found), _idle_gpus(demand, found.where(fixed.runs | ~fractional))
        # Whole gangs may have taken GPUs of fractional jobs: pack these onto the GPUs that are left.
        if not (fractional & waits).any() or (idle >= most).all():
            break
    waits |= fractional & ~found.runs
    if demand.backfill and waits.any() and _idle_gpus(demand, found).any():
        zeros, most = np.zeros_like(demand.fractions), np.full(len(most), len(parts))
        left = replace(demand, deficits=zeros, fractions=zeros, received=zeros, runnable=demand.runnable & waits[:, None])
        found = assign(pack(ColocationGroups((), _within_limits(left, parts, found)), most=most), found)
    return _with_partners(found, problem.job_ids, parts)


def _within_limits(demand: RoundDemand, parts: Floats, held: HeldGpus) -> RoundDemand:
    """Return the demand in which fractional jobs keep all limits together, before they are packed without regard to limits.

    parts: (N,) as in `plan_groups`; held: (N,) GPUs that jobs have already.
    """
    if not demand.limits or (parts == 1).all():
        return demand
    limits = [limit.less(float(limit.used(held).sum())) for limit in demand.limits]
    waits, worths = ~held.runs[:, None], worths_of(raised_scores_of(demand), demand.num_gpus * parts)
    left = within_limits(demand.possible & waits, worths, demand.claims, demand.num_gpus, limits)
    return replace(demand, runnable=demand.runnable & (left | (parts == 1)[:, None]))


def _idle_gpus(demand: RoundDemand, held: HeldGpus) -> Indices:
    """Return (K,) the number of GPUs of each type that no gang holds."""
    _, first = np.unique(held.gpus, return_index=True)
    idle: Indices = np.maximum(0, demand.capacities - np.bincount(held.types[held.owners[first]], minlength=len(demand.capacities)))
    return idle


def _with_partners(held: HeldGpus, ids: Sequence[str], parts: Floats) -> HeldGpus:
    """Return the GPUs with the requested part and the partners of each job, sorted by their ids."""
    on: dict[int, list[int]] = {}
    for job in sorted(np.flatnonzero(held.runs).tolist(), key=ids.__getitem__):
        on.setdefault(int(held.gpus[held.starts[job]]), []).append(job)
    partners = {job: tuple(ids[other] for other in jobs if other != job) for jobs in on.values() if len(jobs) > 1 for job in jobs}
    return replace(held, parts=parts, partners=partners)
