"""Planning one round: choose the jobs that run, place them, and offer what could not be used to the next jobs.

`Selection` turns the jobs that were chosen into gangs to be placed, and their places into assignments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError
from gavel_py.problem.arrays import Indices
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement import Places, place_batch
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementContext, PlacementPreference, ResourceRequests
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE, NOTHING, Gpu
from gavel_py.scheduling.round import Assignment


class Selection:
    """rows: (M,) the jobs that were chosen, in the order of their gangs in the crowd: by type, the largest claims first.

    Who runs goes before who would only take over its place. columns: (N,) the types that were chosen.
    """

    def __init__(
        self,
        columns: Indices,
        demand: RoundDemand,
        ground: PlacementContext,
        accelerator_types: Sequence[str],
        previous: Mapping[str, Assignment],
    ) -> None:
        layout, asks = ground.layout, ground.asks
        types = np.array([layout.type_number.get(name, -1) for name in accelerator_types], dtype=np.int64)
        rising = np.flatnonzero(columns >= 0)
        self._order = np.lexsort((-_weights(rising, columns[rising], demand), types[columns[rising]]))
        self.rows = rows = rising[self._order]
        self._layout, self._accelerators, self._columns = layout, accelerator_types, columns[rows]
        # Jobs in their own order lie in a row in memory; jumping to and fro between many takes several times as long.
        self._job_ids = [asks.ids[row] for row in rising.tolist()]
        self._before = list(map(previous.get, self._job_ids))
        held, owners = self._held()
        kinds = demand.kinds[rows, self._columns]
        self.crowd = GangBatch(
            sizes=demand.num_gpus[rows],
            types=types[self._columns],
            scopes=asks.scopes[rows],
            evens=asks.evens[rows],
            kinds=kinds,
            fewest=self._fewest(kinds, demand.num_gpus[rows], ground),
            needs=asks.needs_of(rows),
            held=held,
            owners=owners,
        )

    def assigned(self, places: Places) -> dict[str, Assignment]:
        """Return {job_id: Assignment} of those that have a place, in the order of the jobs.

        It is the same object as before for a gang that stays, which makes long lists of them cheap.
        """
        now = self._before.copy()
        for i in self._order[~places.stays].tolist():
            now[i] = None
        named = iter(self._layout.named(list(chain.from_iterable(places.found.values()))))
        order, columns = self._order.tolist(), self._columns.tolist()
        for gang, numbers in places.found.items():
            before = self._before[order[gang]]
            found = Assignment(self._accelerators[columns[gang]], list(islice(named, len(numbers))))
            now[order[gang]] = before if before is not None and before == found else found
        return {job_id: held for job_id, held in zip(self._job_ids, now, strict=True) if held is not None}

    def _fewest(self, kinds: NDArray[np.int8], sizes: Indices, ground: PlacementContext) -> Indices:
        """(M,) the fewest nodes of the gangs whose kind matters."""
        fewest = np.ones(len(kinds), dtype=np.int64)
        for gang in np.flatnonzero(kinds != PlacementPreference.ANY).tolist():
            fewest[gang] = ground.spans.fewest(self._accelerators[self._columns[gang]], int(sizes[gang]))
        return fewest

    def _held(self) -> tuple[Indices, Indices]:
        """(H,) the GPUs that they had until now, by number, and (H,) whose they were, gangs as in the crowd."""
        gpus = [() if before is None else before.gpus for before in self._before]
        lengths = np.array(list(map(len, gpus)), dtype=np.int64)
        numbers = self._layout.numbers(list(chain.from_iterable(gpus)))
        starts, lengths = (np.cumsum(lengths) - lengths)[self._order], lengths[self._order]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        return numbers[starts[owners] + within], owners


def _weights(rows: Indices, columns: Indices, demand: RoundDemand) -> NDArray[np.float64]:
    """(M,) the claims of these pairs, with the hysteresis of those that run."""
    at = rows, columns
    fractions = demand.fractions[at]
    kept_for = hysteresis_of(fractions, demand.num_gpus[rows], demand.restart_rounds[rows])
    weights: NDArray[np.float64] = rounded(demand.deficits[at] + fractions) + kept_for * (demand.running_on[rows] == columns)
    return weights


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
    ground: PlacementContext | None = None,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    demand: of the whole cluster, rows as `jobs`, columns as `accelerator_types`; previous: the round before; fixed: what is settled
    already; lost: GPUs of `nodes` that nobody may have; ground: `PlacementContext(jobs, nodes)`, which a caller may keep for
    further rounds.

    The mechanism counts GPUs only. A gang that is chosen, but that its locality, CPUs or memory keep from being placed, is dropped,
    and the GPUs left are offered anew to the jobs without a place whose gangs still fit somewhere, until nobody is chosen any more.
    """
    ground = PlacementContext(jobs, nodes) if ground is None else ground
    asks = ground.asks
    stock = _without(fixed, FreeResources(ground.layout, lost), asks)
    waiting = np.array([job_id not in fixed for job_id in asks.ids], dtype=bool) if fixed else np.ones(len(jobs), dtype=bool)
    assignments: dict[str, Assignment] = dict(fixed)
    while True:
        left = _leftovers(demand, asks, waiting, accelerator_types, stock)
        columns = _checked(mechanism(left), left)
        chosen = Selection(columns, demand, ground, accelerator_types, previous)
        places = place_batch(stock, chosen.crowd)
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


def _without(fixed: Mapping[str, Assignment], stock: FreeResources, asks: ResourceRequests) -> FreeResources:
    """Take from the stock what is settled already, and what those who have it need."""
    rows = {job_id: row for row, job_id in enumerate(asks.ids)} if fixed else {}
    for job_id, held in fixed.items():
        needs = asks.needs[asks.need_of[rows[job_id]]] if job_id in rows else NOTHING
        stock.take(stock.layout.numbers(held.gpus), needs)
    return stock


def _take(stock: FreeResources, crowd: GangBatch, places: Places) -> None:
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
    demand: RoundDemand, asks: ResourceRequests, waiting: NDArray[np.bool_], accelerator_types: Sequence[str], stock: FreeResources
) -> RoundDemand:
    """The demand for the GPUs that are not taken: of the jobs without a place, where a hole is left that holds their gang."""
    numbers = stock.layout.type_number
    # A type that has no nodes has no room: the column after the last.
    types = [numbers.get(name, len(numbers)) for name in accelerator_types]
    room = np.stack([np.pad(stock.largest_free(each), ((0, 0), (0, 1)))[:, types] for each in asks.needs])
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[asks.need_of, asks.scopes])
    asking: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(asks.evens & (asks.scopes != NODE) & runnable.any(axis=1)).tolist():
        asking.setdefault((int(demand.num_gpus[row]), int(asks.scopes[row]), int(asks.need_of[row])), []).append(row)
    for (size, scope, need), rows in asking.items():
        runnable[rows] &= np.append(stock.splits_evenly(size, scope, asks.needs[need]), False)[types]
    # Nothing stands first among the needs.
    return replace(demand, runnable=runnable, capacities=room[0, ANYWHERE])
