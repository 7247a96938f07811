"""Plan one round: choose who runs, place them, and offer what could not be used to the next in line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.cluster import Node
from gavel_py.errors import InputError
from gavel_py.jobs import Job
from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.free_gpus import Gpu
from gavel_py.rounds.mechanism import HYSTERESIS_ROUNDS, Mechanism, RoundDemand
from gavel_py.rounds.placement import Gang, largest_holes, place

__all__ = ["plan_round"]


def plan_round(
    demand: RoundDemand,
    jobs: Sequence[Job],
    accelerator_types: Sequence[str],
    nodes: Sequence[Node],
    previous: Mapping[str, Assignment],
    mechanism: Mechanism,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    demand: of the whole cluster, rows as `jobs`, columns as `accelerator_types`; previous: the round before.

    The mechanism counts GPUs only. A gang that is chosen, but that its locality keeps from being placed, is dropped, and the GPUs
    left are offered anew to the jobs without a place whose gangs still fit somewhere, until nobody is chosen any more.
    """
    assignments: dict[str, Assignment] = {}
    taken: set[Gpu] = set()
    while True:
        left = _leftovers(demand, jobs, accelerator_types, nodes, assignments, taken)
        columns = _checked(mechanism(left), left)
        gangs = _gangs(columns, demand, jobs, accelerator_types, previous)
        places = place(nodes, gangs, taken)
        if not places:
            return dict(sorted(assignments.items()))
        for gang in gangs:
            if gang.job_id in places:
                assignments[gang.job_id] = Assignment(gang.accelerator, list(places[gang.job_id]))
                taken.update(places[gang.job_id])


def _checked(columns: NDArray[np.int64], demand: RoundDemand) -> NDArray[np.int64]:
    """Return a mechanism's choice, or raise `InputError` when it is none that `RoundDemand` allows."""
    count, types = demand.runnable.shape
    chosen = np.asarray(columns)
    if chosen.shape != (count,) or chosen.dtype.kind != "i" or not ((chosen >= -1) & (chosen < types)).all():
        raise InputError(f"a mechanism must return a column or -1 for each of the {count} jobs, returned {columns!r}")
    rows = np.flatnonzero(chosen >= 0)
    used = np.bincount(chosen[rows], weights=demand.num_gpus[rows], minlength=types)
    if not demand.runnable[rows, chosen[rows]].all() or (used > demand.capacities).any():
        raise InputError("a mechanism chose a job where it cannot run, or more gangs than there are GPUs")
    return chosen


def _leftovers(
    demand: RoundDemand,
    jobs: Sequence[Job],
    accelerator_types: Sequence[str],
    nodes: Sequence[Node],
    assignments: Mapping[str, Assignment],
    taken: set[Gpu],
) -> RoundDemand:
    """The demand for the GPUs that are not taken: of the jobs without a place, where a hole is left that holds their gang."""
    holes = largest_holes(nodes, taken)
    by_type = {scope: [sizes.get(name, 0) for name in accelerator_types] for scope, sizes in holes.items()}
    room = np.array([by_type[job.locality] for job in jobs], dtype=np.int64).reshape(demand.runnable.shape)
    waiting = np.array([[job.job_id not in assignments] for job in jobs], dtype=bool).reshape(-1, 1)
    runnable = demand.runnable & waiting & (demand.num_gpus[:, None] <= room)
    return replace(demand, runnable=runnable, capacities=np.array(by_type["any"], dtype=np.int64))


def _gangs(
    columns: NDArray[np.int64],
    demand: RoundDemand,
    jobs: Sequence[Job],
    accelerator_types: Sequence[str],
    previous: Mapping[str, Assignment],
) -> list[Gang]:
    """The chosen jobs as gangs, those with the largest claims first; who runs goes before who would only take over its place."""
    rows = np.flatnonzero(columns >= 0)
    weights = demand.claims + HYSTERESIS_ROUNDS * demand.running
    order = rows[np.argsort(-weights[rows, columns[rows]], kind="stable")]
    gangs = []
    for row in order.tolist():
        job, accelerator = jobs[row], accelerator_types[columns[row]]
        before = previous.get(job.job_id)
        gangs.append(Gang(job.job_id, job.num_gpus, accelerator, job.locality, () if before is None else tuple(before.gpus)))
    return gangs
