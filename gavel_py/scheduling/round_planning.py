"""Plans one round: a mechanism selects jobs, placement places their gangs, and GPUs left over are offered to further jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

import numpy as np

from gavel_py.errors import InputError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement import Places, place_batch
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementContext, PlacementPreference, ResourceRequests
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE, NOTHING, Gpu
from gavel_py.scheduling.round import Assignment

NO_ASSIGNMENTS: Mapping[str, Assignment] = MappingProxyType({})


def plan_round(
    demand: RoundDemand,
    jobs: Sequence[Job],
    accelerator_types: Sequence[str],
    nodes: Sequence[Node],
    previous: Mapping[str, Assignment],
    mechanism: Mechanism,
    *,
    fixed: Mapping[str, Assignment] = NO_ASSIGNMENTS,
    lost: Set[Gpu] = frozenset(),
    context: PlacementContext | None = None,
) -> dict[str, Assignment]:
    """Return {job_id: Assignment} of the jobs that run, sorted by job_id.

    The mechanism counts GPUs only. A selected gang that cannot be placed because of its locality, CPUs or memory is dropped, and
    the GPUs left over are offered to the jobs without a place whose gangs still fit, until the mechanism selects none that fits.

    Args:
        demand: Demand for the GPUs of all nodes; rows as `jobs`, columns as `accelerator_types`.
        jobs: The jobs.
        accelerator_types: The types.
        nodes: Nodes on which gangs may start.
        previous: Assignments of the previous round.
        mechanism: Selects the jobs.
        fixed: Assignments that must stay.
        lost: GPUs of `nodes` that cannot be used.
        context: `PlacementContext(jobs, nodes)`, to be reused between rounds.
    """
    context = PlacementContext(jobs, nodes) if context is None else context
    requests, pool = context.requests, FreeResources(context.layout, lost)
    _take_fixed(pool, fixed, requests)
    waiting = np.array([job_id not in fixed for job_id in requests.ids], dtype=bool) if fixed else np.ones(len(jobs), dtype=bool)
    assignments: dict[str, Assignment] = dict(fixed)
    while True:
        left = _remaining_demand(demand, requests, waiting, accelerator_types, pool)
        columns = _checked(mechanism(left), left)
        selected = SelectedGangs(columns, demand, context, accelerator_types, previous)
        places = place_batch(pool, selected.batch)
        assignments |= selected.assigned(places)
        placed = places.placed
        # Once all selected gangs are placed, another pass would select no more: the mechanism knew of these free GPUs.
        if placed.all() or not placed.any():
            return {job_id: assignments[job_id] for job_id in sorted(assignments)}
        _take_placed(pool, selected.batch, places)
        waiting[selected.rows[placed]] = False


class SelectedGangs:
    """The selected jobs as a batch of gangs, sorted by type and then by claim; running gangs gain their hysteresis.

    `rows` are (M,) the rows of the jobs, in the order of the batch.
    """

    def __init__(
        self,
        columns: Indices,
        demand: RoundDemand,
        context: PlacementContext,
        accelerator_types: Sequence[str],
        previous: Mapping[str, Assignment],
    ) -> None:
        layout, requests = context.layout, context.requests
        types = np.array([layout.type_number.get(name, -1) for name in accelerator_types], dtype=np.int64)
        ascending = np.flatnonzero(columns >= 0)
        self._order = np.lexsort((-_weights(ascending, columns[ascending], demand), types[columns[ascending]]))
        self.rows = rows = ascending[self._order]
        self._layout, self._accelerators, self._columns = layout, accelerator_types, columns[rows]
        # Python objects are read in ascending order, as they lie in memory; random access takes several times as long.
        self._job_ids = [requests.ids[row] for row in ascending.tolist()]
        self._before = list(map(previous.get, self._job_ids))
        held, owners = self._held()
        preferences = demand.preferences[rows, self._columns]
        min_nodes = np.ones(len(rows), dtype=np.int64)
        for gang in np.flatnonzero(preferences != PlacementPreference.ANY).tolist():
            accelerator, size = accelerator_types[self._columns[gang]], int(demand.num_gpus[rows[gang]])
            min_nodes[gang] = context.spans.min_nodes(accelerator, size)
        self.batch = GangBatch(
            sizes=demand.num_gpus[rows],
            types=types[self._columns],
            scopes=requests.scopes[rows],
            even_splits=requests.even_splits[rows],
            preferences=preferences,
            min_nodes=min_nodes,
            per_gpu=requests.per_gpu_of(rows),
            held=held,
            owners=owners,
        )

    def assigned(self, places: Places) -> dict[str, Assignment]:
        """Return {job_id: Assignment} of the gangs with a place, in the order of the jobs.

        A gang that stays keeps its assignment object, which saves the comparison of GPUs.
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

    def _held(self) -> tuple[Indices, Indices]:
        """Return (H,) the GPUs that the gangs held so far, by number, and (H,) their gangs in the batch, ascending."""
        gpus = [() if before is None else before.gpus for before in self._before]
        lengths = np.array(list(map(len, gpus)), dtype=np.int64)
        numbers = self._layout.numbers(list(chain.from_iterable(gpus)))
        starts, lengths = (np.cumsum(lengths) - lengths)[self._order], lengths[self._order]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        return numbers[starts[owners] + within], owners


def _weights(rows: Indices, columns: Indices, demand: RoundDemand) -> Floats:
    """Return (M,) the claims of these pairs, plus hysteresis where the job runs now."""
    fractions = demand.fractions[rows, columns]
    hysteresis = hysteresis_of(fractions, demand.num_gpus[rows], demand.restart_rounds[rows])
    claims = rounded(demand.deficits[rows, columns] + fractions)
    weights: Floats = claims + hysteresis * (demand.running_on[rows] == columns)
    return weights


def _take_fixed(pool: FreeResources, fixed: Mapping[str, Assignment], requests: ResourceRequests) -> None:
    """Take the GPUs of fixed assignments from the pool, with the CPUs and memory that their jobs request."""
    rows = {job_id: row for row, job_id in enumerate(requests.ids)} if fixed else {}
    for job_id, held in fixed.items():
        per_gpu = requests.distinct[requests.distinct_of[rows[job_id]]] if job_id in rows else NOTHING
        pool.take(pool.layout.numbers(held.gpus), per_gpu)


def _take_placed(pool: FreeResources, batch: GangBatch, places: Places) -> None:
    """Take the GPUs of placed gangs from the pool."""
    for gang, gpus in places.found.items():
        pool.take(np.array(gpus, dtype=np.int64), batch.per_gpu[gang])
    starts = np.searchsorted(batch.owners, np.arange(len(batch) + 1)).tolist()
    for gang in np.flatnonzero(places.stays).tolist():
        pool.take(batch.held[starts[gang] : starts[gang + 1]], batch.per_gpu[gang])


def _checked(columns: Indices, demand: RoundDemand) -> Indices:
    """Return a mechanism's selection; raise `InputError` if the demand does not allow it."""
    count, types = demand.runnable.shape
    selected = np.asarray(columns)
    if selected.shape != (count,) or selected.dtype.kind != "i" or not ((selected >= -1) & (selected < types)).all():
        raise InputError(f"a mechanism must return a column or -1 for each of the {count} jobs, returned {columns!r}")
    rows = np.flatnonzero(selected >= 0)
    used = np.bincount(selected[rows], weights=demand.num_gpus[rows], minlength=types)
    if not demand.runnable[rows, selected[rows]].all() or (used > demand.capacities).any():
        raise InputError("a mechanism chose a job where it cannot run, or more gangs than there are GPUs")
    return selected


def _remaining_demand(
    demand: RoundDemand, requests: ResourceRequests, waiting: Mask, accelerator_types: Sequence[str], pool: FreeResources
) -> RoundDemand:
    """Return the demand for the GPUs in the pool, of waiting jobs where their gangs fit within their locality."""
    numbers = pool.layout.type_number
    # A type without nodes has no room: it reads the column after the last.
    types = [numbers.get(name, len(numbers)) for name in accelerator_types]
    room = np.stack([np.pad(pool.largest_free(each), ((0, 0), (0, 1)))[:, types] for each in requests.distinct])
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[requests.distinct_of, requests.scopes])
    alike: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(requests.even_splits & (requests.scopes != NODE) & runnable.any(axis=1)).tolist():
        key = int(demand.num_gpus[row]), int(requests.scopes[row]), int(requests.distinct_of[row])
        alike.setdefault(key, []).append(row)
    for (size, scope, code), rows in alike.items():
        runnable[rows] &= np.append(pool.splits_evenly(size, scope, requests.distinct[code]), False)[types]
    # The first of the distinct requests is for nothing but GPUs.
    return replace(demand, runnable=runnable, capacities=room[0, ANYWHERE])
