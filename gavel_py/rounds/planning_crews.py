"""A round in which jobs share GPUs: crews are planned as single gangs, and what idles is offered to who finds no place so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.crews import Crews
from gavel_py.rounds.demand import RoundDemand
from gavel_py.rounds.free_gpus import Gpu
from gavel_py.rounds.ground import Ground

__all__ = ["Held", "Plan", "plan_in_crews", "with_company"]

Held = Mapping[str, Assignment]


class Plan(Protocol):
    """`plan_round` for given nodes and a given mechanism."""

    def __call__(self, demand: RoundDemand, ground: Ground, previous: Held, fixed: Held) -> dict[str, Assignment]:
        """Return who runs where."""
        ...


def plan_in_crews(
    plan: Plan, demand: RoundDemand, crews: Crews, ground: Ground, previous: Held, fixed: Held
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id; demand: of all jobs, whatever their company."""
    ids = ground.asks.ids
    asking = ground.asking(ground.asks.joined(crews.leaders, crews.followers)) if len(crews.leaders) else ground
    found = crews.together(plan(crews.demand, asking, crews.before(previous, ids), fixed), ids)
    waits = crews.without_place(found, ids)
    if demand.backfill and waits.any():
        found = plan(_idle_gpus_for(demand, waits), ground, previous, found)
    return with_company(found)


def with_company(assignments: Held) -> dict[str, Assignment]:
    """Return them sorted by job_id, each with the names of those that have the same GPUs."""
    on: dict[Gpu, list[str]] = {}
    for job_id in sorted(assignments):
        on.setdefault(assignments[job_id].gpus[0], []).append(job_id)
    return {job_id: _beside(held, job_id, on[held.gpus[0]]) for job_id, held in sorted(assignments.items())}


def _beside(held: Assignment, job_id: str, there: list[str]) -> Assignment:
    others = tuple(other for other in there if other != job_id)
    return held if held.shared_with == others else replace(held, shared_with=others)


def _idle_gpus_for(demand: RoundDemand, waits: NDArray[np.bool_]) -> RoundDemand:
    """A demand in which nobody is owed anything, and these jobs can use what idles."""
    none = np.zeros_like(demand.fractions)
    return replace(demand, deficits=none, fractions=none, received=none, runnable=demand.runnable & waits[:, None])
