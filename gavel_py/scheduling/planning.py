"""Plan one round: choose who runs, place them, and offer what could not be used to the next in line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError
from gavel_py.problem.cluster import Node
from gavel_py.problem.job import Job
from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.chosen import Chosen
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand
from gavel_py.scheduling.placement.asks import Asks
from gavel_py.scheduling.placement.crowd import Crowd
from gavel_py.scheduling.placement.ground import Ground
from gavel_py.scheduling.placement.layout import ANYWHERE, NODE, Gpu
from gavel_py.scheduling.placement.needs import NOTHING
from gavel_py.scheduling.placement.placement import Places, place_crowd
from gavel_py.scheduling.placement.stock import Stock

__all__ = ["plan_round"]

Indices = NDArray[np.int64]

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
    ground: Ground | None = None,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    demand: of the whole cluster, rows as `jobs`, columns as `accelerator_types`; previous: the round before; fixed: what is settled
    already; lost: GPUs of `nodes` that nobody may have; ground: `Ground(jobs, nodes)`, which a caller may keep for further rounds.

    The mechanism counts GPUs only. A gang that is chosen, but that its locality, CPUs or memory keep from being placed, is dropped,
    and the GPUs left are offered anew to the jobs without a place whose gangs still fit somewhere, until nobody is chosen any more.
    """
    ground = Ground(jobs, nodes) if ground is None else ground
    asks = ground.asks
    stock = _without(fixed, Stock(ground.layout, lost), asks)
    waiting = np.array([job_id not in fixed for job_id in asks.ids], dtype=bool) if fixed else np.ones(len(jobs), dtype=bool)
    assignments: dict[str, Assignment] = dict(fixed)
    while True:
        left = _leftovers(demand, asks, waiting, accelerator_types, stock)
        columns = _checked(mechanism(left), left)
        chosen = Chosen(columns, demand, ground, accelerator_types, previous)
        places = place_crowd(stock, chosen.crowd)
        assigned = chosen.assigned(places)
        assignments = assignments | assigned if assignments else assigned
        placed = places.placed
        # With everybody placed who was chosen, nobody is left to whom the mechanism did not prefer idle GPUs.
        if placed.all() or not placed.any():
            return _sorted(assignments)
        _take(stock, chosen.crowd, places)
        waiting[chosen.rows[placed]] = False


def _sorted(assignments: dict[str, Assignment]) -> dict[str, Assignment]:
    ids = sorted(assignments)
    return assignments if ids == list(assignments) else {job_id: assignments[job_id] for job_id in ids}


def _without(fixed: Mapping[str, Assignment], stock: Stock, asks: Asks) -> Stock:
    """Take from the stock what is settled already, and what those who have it need."""
    rows = {job_id: row for row, job_id in enumerate(asks.ids)} if fixed else {}
    for job_id, held in fixed.items():
        needs = asks.needs[asks.need_of[rows[job_id]]] if job_id in rows else NOTHING
        stock.take(stock.layout.numbers(held.gpus), needs)
    return stock


def _take(stock: Stock, crowd: Crowd, places: Places) -> None:
    """Take from the stock what gangs have been given."""
    for gang, gpus in places.found.items():
        stock.take(np.array(gpus, dtype=np.int64), crowd.needs[gang])
    starts = np.searchsorted(crowd.owners, np.arange(len(crowd) + 1)).tolist()
    for gang in np.flatnonzero(places.stays).tolist():
        stock.take(crowd.held[starts[gang] : starts[gang + 1]], crowd.needs[gang])


def _checked(columns: Indices, demand: RoundDemand) -> Indices:
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
    demand: RoundDemand, asks: Asks, waiting: NDArray[np.bool_], accelerator_types: Sequence[str], stock: Stock
) -> RoundDemand:
    """The demand for the GPUs that are not taken: of the jobs without a place, where a hole is left that holds their gang."""
    numbers = stock.layout.type_number
    # A type that has no nodes has no room: the column after the last.
    types = [numbers.get(name, len(numbers)) for name in accelerator_types]
    room = np.stack([np.pad(stock.largest_holes(each), ((0, 0), (0, 1)))[:, types] for each in asks.needs])
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[asks.need_of, asks.scopes])
    asking: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(asks.evens & (asks.scopes != NODE) & runnable.any(axis=1)).tolist():
        asking.setdefault((int(demand.num_gpus[row]), int(asks.scopes[row]), int(asks.need_of[row])), []).append(row)
    for (size, scope, need), rows in asking.items():
        runnable[rows] &= np.append(stock.splits_evenly(size, scope, asks.needs[need]), False)[types]
    # Nothing stands first among the needs.
    return replace(demand, runnable=runnable, capacities=room[0, ANYWHERE])
