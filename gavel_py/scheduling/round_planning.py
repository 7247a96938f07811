"""Plans one round: a mechanism selects jobs, placement places their gangs, and GPUs left over are offered to further jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavel_py.errors import InputError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement import Places, place_batch
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import GangBatch, HeldGpus, PlacementPreference, ResourceRequests, Spans
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE


def plan_round(
    demand: RoundDemand,
    requests: ResourceRequests,
    pool: FreeResources,
    spans: Spans,
    previous: HeldGpus,
    mechanism: Mechanism,
    *,
    fixed: HeldGpus | None = None,
) -> HeldGpus:
    """Return (N,) the GPUs of the jobs that run.

    The mechanism counts GPUs only. A selected gang that cannot be placed because of its locality, CPUs or memory is dropped, and
    the GPUs left over are offered to the jobs without a place whose gangs still fit, until the mechanism selects none that fits.

    Args:
        demand: Demand of N jobs for the GPUs of all nodes; columns as the types of the layout of `pool`.
        requests: Resource requests of the jobs.
        pool: What is free for these jobs; it is not changed.
        spans: The least number of nodes of gangs.
        previous: (N,) GPUs of the previous round.
        mechanism: Selects the jobs.
        fixed: (N,) GPUs of jobs that must keep them.
    """
    held = HeldGpus.none(len(demand.num_gpus)) if fixed is None else fixed
    pool, waiting = pool.copy(), ~held.runs
    _take(pool, held, np.flatnonzero(held.runs), requests)
    while True:
        left = _remaining_demand(demand, requests, waiting, pool)
        columns = _checked(mechanism(left), left)
        selected = SelectedGangs(columns, demand, requests, spans, pool, previous)
        places = place_batch(pool, selected.batch)
        new, placed = selected.placed(places), selected.rows[places.placed]
        held = held.replaced(placed, new.take(placed))
        # Once all selected gangs are placed, another pass would select no more: the mechanism knew of these free GPUs.
        if len(placed) in {0, len(selected.rows)}:
            return held
        _take(pool, new, placed, requests)
        waiting[placed] = False


class SelectedGangs:
    """The selected jobs as a batch of gangs, sorted by type and then by claim; running gangs gain their hysteresis.

    `rows` are (M,) the rows of the jobs, in the order of the batch.
    """

    def __init__(
        self,
        columns: Indices,
        demand: RoundDemand,
        requests: ResourceRequests,
        spans: Spans,
        pool: FreeResources,
        previous: HeldGpus,
    ) -> None:
        ascending = np.flatnonzero(columns >= 0)
        order = np.lexsort((-_weights(ascending, columns[ascending], demand), columns[ascending]))
        self.rows = rows = ascending[order]
        self._previous = previous
        preferences = demand.preferences[rows, columns[rows]]
        min_nodes = np.ones(len(rows), dtype=np.int64)
        for gang in np.flatnonzero(preferences != PlacementPreference.ANY).tolist():
            min_nodes[gang] = spans.min_nodes(pool.layout.types[columns[rows[gang]]], int(demand.num_gpus[rows[gang]]))
        before = previous.take(rows)
        self.batch = GangBatch(
            sizes=demand.num_gpus[rows],
            types=columns[rows],
            scopes=requests.scopes[rows],
            even_splits=requests.even_splits[rows],
            preferences=preferences,
            min_nodes=min_nodes,
            per_gpu=requests.per_gpu_of(rows),
            held=before.gpus,
            owners=before.owners,
        )

    def placed(self, places: Places) -> HeldGpus:
        """Return (N,) the GPUs of all jobs that have a place."""
        stays = np.zeros(len(self._previous), dtype=bool)
        stays[self.rows[places.stays]] = True
        gangs = np.fromiter(places.found, dtype=np.int64, count=len(places.found))
        found = HeldGpus.of(self.batch.types[gangs], list(places.found.values()))
        return self._previous.where(stays).replaced(self.rows[gangs], found)


def _weights(rows: Indices, columns: Indices, demand: RoundDemand) -> Floats:
    """Return (M,) the claims of these pairs, plus hysteresis where the job runs now."""
    fractions = demand.fractions[rows, columns]
    hysteresis = hysteresis_of(fractions, demand.num_gpus[rows], demand.restart_rounds[rows])
    claims = rounded(demand.deficits[rows, columns] + fractions)
    weights: Floats = claims + hysteresis * (demand.running_on[rows] == columns)
    return weights


def _take(pool: FreeResources, held: HeldGpus, rows: Indices, requests: ResourceRequests) -> None:
    """Take the GPUs of these jobs from the pool, with the CPUs and memory that they request."""
    gangs = held.take(rows)
    pool.free[gangs.gpus] = False
    codes = requests.distinct_of[rows][gangs.owners]
    for code, per_gpu in enumerate(requests.distinct[1:], 1):
        pool.take(gangs.gpus[codes == code], per_gpu)


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


def _remaining_demand(demand: RoundDemand, requests: ResourceRequests, waiting: Mask, pool: FreeResources) -> RoundDemand:
    """Return the demand for the GPUs in the pool, of waiting jobs where their gangs fit within their locality."""
    room = np.stack([pool.largest_free(each) for each in requests.distinct])
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[requests.distinct_of, requests.scopes])
    alike: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(requests.even_splits & (requests.scopes != NODE) & runnable.any(axis=1)).tolist():
        key = int(demand.num_gpus[row]), int(requests.scopes[row]), int(requests.distinct_of[row])
        alike.setdefault(key, []).append(row)
    for (size, scope, code), rows in alike.items():
        runnable[rows] &= pool.splits_evenly(size, scope, requests.distinct[code])
    # The first of the distinct requests is for nothing but GPUs.
    return replace(demand, runnable=runnable, capacities=room[0, ANYWHERE])
