"""A round in which jobs share GPUs: co-location groups are planned as single gangs, and idle GPUs are offered to the other jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.colocation.groups import ColocationGroups, Held
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.placement.gangs import PlacementContext
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.round import Assignment

__all__ = ["Plan", "plan_groups", "with_partners"]


class Plan(Protocol):
    """`plan_round` for given nodes and a given mechanism."""

    def __call__(self, demand: RoundDemand, ground: PlacementContext, previous: Held, fixed: Held) -> dict[str, Assignment]:
        """Return who runs where."""
        ...


def plan_groups(
    plan: Plan,
    demand: RoundDemand,
    crews: ColocationGroups,
    idle: Callable[[RoundDemand], ColocationGroups],
    ground: PlacementContext,
    parts: Floats,
    previous: Held,
    fixed: Held,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    demand: of all jobs, whatever their company; crews: who goes with whom; idle: from a demand for GPUs that idle to the crews that
    may have them; parts: (N,) of each GPU that jobs ask for, 1 of whole gangs.
    """
    ids = ground.asks.ids
    found = _planned(plan, crews, ground, parts, previous, fixed)
    waits = crews.without_place(found, ids)
    if demand.backfill and waits.any():
        found = _planned(plan, idle(_idle_gpus_for(demand, waits)), ground, parts, previous, found)
    return with_partners(found, dict(zip(ids, parts.tolist(), strict=True)))


def with_partners(assignments: Held, parts: Mapping[str, float]) -> dict[str, Assignment]:
    """Return them sorted by job_id, each with its part of its GPUs, and the names of those that have the same ones."""
    on: dict[Gpu, list[str]] = {}
    for job_id in sorted(assignments):
        on.setdefault(assignments[job_id].gpus[0], []).append(job_id)
    return {job_id: _beside(held, job_id, on[held.gpus[0]], parts[job_id]) for job_id, held in sorted(assignments.items())}


def _planned(
    plan: Plan, crews: ColocationGroups, ground: PlacementContext, parts: Floats, previous: Held, fixed: Held
) -> dict[str, Assignment]:
    ids = ground.asks.ids
    asking = ground.asking(ground.asks.joined([crew.rows for crew in crews.crews], parts)) if crews.crews else ground
    return crews.together(plan(crews.demand, asking, crews.before(previous, ids), fixed), ids)


def _beside(held: Assignment, job_id: str, there: list[str], part: float) -> Assignment:
    others = tuple(other for other in there if other != job_id)
    same = held.shared_with == others and held.gpu_part == part
    return held if same else replace(held, shared_with=others, gpu_part=part)


def _idle_gpus_for(demand: RoundDemand, waits: NDArray[np.bool_]) -> RoundDemand:
    """A demand in which nobody is owed anything, and these jobs can use what idles."""
    none = np.zeros_like(demand.fractions)
    return replace(demand, deficits=none, fractions=none, received=none, runnable=demand.runnable & waits[:, None])
