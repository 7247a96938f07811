"""Co-location: rounds in which jobs share GPUs, whole (`matching`) or in parts (`fractional`).

Each co-location group (`groups`) is planned as one gang. GPUs that groups leave idle are then offered to the jobs of groups that
have no place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.colocation.groups import ColocationGroups, Held
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.placement.gangs import PlacementContext
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.round import Assignment

__all__ = ["plan_groups", "with_partners"]


def plan_groups(
    plan: Callable[..., dict[str, Assignment]],
    pack: Callable[[ColocationGroups], ColocationGroups],
    pairs: ColocationGroups,
    demand: RoundDemand,
    context: PlacementContext,
    parts: Floats,
    previous: Held,
    fixed: Held,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    Args:
        plan: `plan_round` for given nodes and mechanism.
        pack: Adds groups of fractional jobs (`pack_fractional`).
        pairs: Groups of jobs that share whole GPUs.
        demand: The demand of all jobs, without regard to groups.
        context: Topology and requests of the jobs.
        parts: (N,) the part of each of its GPUs that a job requests, 1 for whole gangs.
        previous: Assignments of the previous round.
        fixed: Assignments that must stay.
    """

    def assign(groups: ColocationGroups, fixed: Held) -> dict[str, Assignment]:
        joint = context
        if groups.groups:
            joint = context.with_requests(context.requests.joined([group.rows for group in groups.groups], parts))
        return groups.expanded(plan(groups.demand, previous=groups.reduced(previous, ids), fixed=fixed, context=joint), ids)

    ids = context.requests.ids
    groups = pack(pairs)
    found = assign(groups, fixed)
    waits = groups.without_place(found, ids)
    if demand.backfill and waits.any():
        zeros = np.zeros_like(demand.fractions)
        idle = replace(demand, deficits=zeros, fractions=zeros, received=zeros, runnable=demand.runnable & waits[:, None])
        found = assign(pack(ColocationGroups((), idle)), found)
    return with_partners(found, dict(zip(ids, parts.tolist(), strict=True)))


def with_partners(assignments: Held, parts: Mapping[str, float]) -> dict[str, Assignment]:
    """Return the assignments sorted by job_id, with the part of its GPUs and the partners of each job."""
    on: dict[Gpu, list[str]] = {}
    for job_id in sorted(assignments):
        on.setdefault(assignments[job_id].gpus[0], []).append(job_id)
    found = {}
    for job_id, held in sorted(assignments.items()):
        partners = tuple(other for other in on[held.gpus[0]] if other != job_id)
        is_same = held.shared_with == partners and held.gpu_part == parts[job_id]
        found[job_id] = held if is_same else replace(held, shared_with=partners, gpu_part=parts[job_id])
    return found
