"""Plan one round: choose who runs, place them, and offer what could not be used to the next in line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gavel_py.cluster import Node
from gavel_py.errors import InputError
from gavel_py.jobs import Job
from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.demand import Mechanism, RoundDemand
from gavel_py.rounds.free_gpus import SCOPES, Gpu
from gavel_py.rounds.needs import NOTHING, Needs
from gavel_py.rounds.placement import Gang, largest_holes, place
from gavel_py.rounds.scores import hysteresis
from gavel_py.rounds.taken import Taken, needs_of

__all__ = ["plan_round"]

NOBODY: Mapping[str, Assignment] = MappingProxyType({})


def plan_round(
    demand: RoundDemand,
    jobs: Sequence[Job],
    accelerator_types: Sequence[str],
    nodes: Sequence[Node],
    previous: Mapping[str, Assignment],
    mechanism: Mechanism,
    *,
    fixed: Mapping[str, Assignment] = NOBODY,
    lost: Set[Gpu] = frozenset(),
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    demand: of the whole cluster, rows as `jobs`, columns as `accelerator_types`; previous: the round before; fixed: what is settled
    already; lost: GPUs of `nodes` that nobody may have.

    The mechanism counts GPUs only. A gang that is chosen, but that its locality, CPUs or memory keep from being placed, is dropped,
    and the GPUs left are offered anew to the jobs without a place whose gangs still fit somewhere, until nobody is chosen any more.
    """
    assignments: dict[str, Assignment] = dict(fixed)
    needs, taken = needs_of(jobs, nodes), Taken(lost)
    for job, each in zip(jobs, needs, strict=True) if fixed else ():
        if job.job_id in fixed:
            taken.add(fixed[job.job_id].gpus, each)
    taken.gpus.update(gpu for held in fixed.values() for gpu in held.gpus)
    scopes = np.array([SCOPES.index(job.locality) for job in jobs], dtype=np.int64)
    waiting = np.array([job.job_id not in fixed for job in jobs], dtype=bool)
    while True:
        left = _leftovers(demand, scopes, needs, waiting, accelerator_types, nodes, taken)
        columns = _checked(mechanism(left), left)
        rows = _by_claim(columns, demand)
        places = place(nodes, _gangs(rows, columns, jobs, needs, accelerator_types, previous), taken.gpus, taken.loads)
        placed = [row for row in sorted(rows) if jobs[row].job_id in places]
        types = columns.tolist()
        for row in placed:
            job_id = jobs[row].job_id
            assignments[job_id] = _assigned(accelerator_types[types[row]], places[job_id], previous.get(job_id))
        # With everybody placed who was chosen, nobody is left to whom the mechanism did not prefer idle GPUs.
        if len(placed) in (0, len(rows)):
            return {job_id: assignments[job_id] for job_id in sorted(assignments)}
        for row in placed:
            taken.add(places[jobs[row].job_id], needs[row])
        waiting[placed] = False


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
    scopes: NDArray[np.int64],
    needs: Sequence[Needs],
    waiting: NDArray[np.bool_],
    accelerator_types: Sequence[str],
    nodes: Sequence[Node],
    taken: Taken,
) -> RoundDemand:
    """The demand for the GPUs that are not taken: of the jobs without a place, where a hole is left that holds their gang."""
    kinds = {each: number for number, each in enumerate(dict.fromkeys([NOTHING, *needs]))}
    found = [largest_holes(nodes, taken.gpus, taken.loads, each) for each in kinds]
    sizes = [[[holes[scope].get(name, 0) for name in accelerator_types] for scope in SCOPES] for holes in found]
    room = np.array(sizes, dtype=np.int64).reshape(len(kinds), len(SCOPES), -1)
    kind = np.array([kinds[each] for each in needs], dtype=np.int64)
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[kind, scopes])
    return replace(demand, runnable=runnable, capacities=room[kinds[NOTHING], SCOPES.index("any")])


def _by_claim(columns: NDArray[np.int64], demand: RoundDemand) -> list[int]:
    """The rows of the chosen jobs, the largest claims first; who runs goes before who would only take over its place."""
    rows = np.flatnonzero(columns >= 0)
    weights = demand.claims + hysteresis(demand) * demand.running
    ordered: list[int] = rows[np.argsort(-weights[rows, columns[rows]], kind="stable")].tolist()
    return ordered


def _gangs(
    rows: Sequence[int],
    columns: NDArray[np.int64],
    jobs: Sequence[Job],
    needs: Sequence[Needs],
    accelerator_types: Sequence[str],
    previous: Mapping[str, Assignment],
) -> list[Gang]:
    """The chosen jobs as gangs, in the order of `rows`."""
    chosen = [jobs[row] for row in rows]
    held = [previous.get(job.job_id) for job in chosen]
    gpus = [() if before is None else tuple(before.gpus) for before in held]
    names = [accelerator_types[column] for column in columns[rows].tolist()]
    return [
        Gang(job.job_id, job.num_gpus, name, job.locality, had, needs[row])
        for row, job, name, had in zip(rows, chosen, names, gpus, strict=True)
    ]


def _assigned(accelerator: str, gpus: Sequence[Gpu], before: Assignment | None) -> Assignment:
    """The assignment to these GPUs; the same object as before for a gang that stays, which makes long lists of them cheap."""
    held = list(gpus)
    stays = before is not None and before.gpus == held and before.accelerator == accelerator
    return before if before is not None and stays else Assignment(accelerator, held)
