"""Plans one round: a mechanism selects jobs, placement places their gangs, and the remaining GPUs are offered to further jobs.

`forced_gangs` finds the rounds in which there is no choice, `locked_gangs` the gangs that must keep their GPUs; `place_elsewhere`
keeps jobs away from nodes on which they have failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gavel_py.errors import InputError
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.eligibility import ANY_SPLIT, even_nodes
from gavel_py.problem.tolerances import DEFICIT_ROUNDING, DURATION_ROUNDING
from gavel_py.scheduling.current_allocation import CurrentAllocation
from gavel_py.scheduling.mechanism.demand import (
    GangSelection,
    RoundDemand,
    SizingMechanism,
    hysteresis_of,
    raised_scores_of,
    rounded,
)
from gavel_py.scheduling.mechanism.elastic import reduced_to_limits
from gavel_py.scheduling.mechanism.limits import RoundLimit, first_within, within_limits, worths_of
from gavel_py.scheduling.placement import Places, place_batch
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources
from gavel_py.scheduling.placement.gangs import ANY_PLACEMENT, GangBatch, HeldGpus, ResourceRequests, Spans
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE
from gavel_py.scheduling.state import SchedulerState


def plan_round(
    demand: RoundDemand,
    requests: ResourceRequests,
    pool: FreeResources,
    spans: Spans,
    previous: HeldGpus,
    mechanism: SizingMechanism,
    *,
    fixed: HeldGpus | None = None,
) -> HeldGpus:
    """Return (N,) the GPUs of the jobs that run.

    The mechanism only counts GPUs. A selected gang that cannot be placed because of its locality, CPUs or memory is dropped. The
    remaining GPUs are offered to the jobs without a place whose gangs still fit, until the mechanism selects none that fits. The
    jobs that are added to those of `fixed` keep the limits of the demand.

    Args:
        demand: Demand of N jobs for the GPUs of all nodes; columns in the order of `pool.layout.types`.
        requests: Resource requests of the jobs.
        pool: The free resources for these jobs; not changed.
        spans: The minimum number of nodes of gangs.
        previous: (N,) GPUs of the previous round.
        mechanism: Selects the jobs.
        fixed: (N,) GPUs of jobs that must keep them.
    """
    held = HeldGpus.none(len(demand.num_gpus)) if fixed is None else fixed
    pool, waiting = pool.copy(), ~held.runs
    if not waiting.all():
        _take(pool, held, np.flatnonzero(held.runs), requests)
        demand = _less(demand, [float(limit.used(held).sum()) for limit in demand.limits])
    while True:
        left = _within_limits(_remaining_demand(demand, requests, waiting, pool, held))
        selection, before = _keeping_limits(mechanism(left), left), previous
        if isinstance(selection, GangSelection):
            left = replace(left, num_gpus=selection.num_gpus)
            before = resized(previous, selection, pool, requests.splits)
        columns = _checked(selection.columns if isinstance(selection, GangSelection) else selection, left)
        selected = SelectedGangs(columns, left, requests, spans, pool, before)
        places = place_batch(pool, selected.batch)
        new = selected.placed(places)
        placed = selected.rows[new.runs[selected.rows]]
        held = held.replaced(placed, new.take(placed)) if held.runs.any() else new
        # Once all selected gangs are placed, another pass would select no more: the mechanism knew of these free GPUs, but not of
        # the jobs that limits left out.
        if not len(placed) or (len(placed) == len(selected.rows) and not demand.limits):
            return held
        _take(pool, new, placed, requests)
        waiting[placed] = False
        demand = _less(demand, [limit.costs(placed, columns[placed], left.num_gpus[placed]).sum() for limit in demand.limits])


class SelectedGangs:
    """The selected jobs as a batch of gangs, sorted by type and then by claim; running gangs gain their hysteresis.

    `rows` has (M,) the rows of the jobs, in the order of the batch.
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
        types, sizes = columns[rows], demand.num_gpus[rows]
        min_nodes, gangs = np.ones(len(rows), dtype=np.int64), np.flatnonzero(preferences != ANY_PLACEMENT)
        codes, which = np.unique(sizes[gangs] * len(pool.layout.types) + types[gangs], return_inverse=True)
        pairs = (divmod(code, len(pool.layout.types)) for code in codes.tolist())
        fewest = [spans.min_nodes(pool.layout.types[number], size) for size, number in pairs]
        min_nodes[gangs] = np.array(fewest, dtype=np.int64)[which]
        before = previous.take(rows)
        self.batch = GangBatch(
            sizes=sizes,
            types=types,
            scopes=requests.scopes[rows],
            splits=requests.splits[rows],
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
        return self._previous.replaced(self.rows[places.gangs], places.held, stays)


def resized(previous: HeldGpus, selection: GangSelection, pool: FreeResources, splits: Indices) -> HeldGpus:
    """Return the previous GPUs, adapted for gangs that change their number of GPUs on the same type.

    A gang that shrinks keeps GPUs on the nodes where it has most. A gang that grows gets free GPUs of its own nodes, if there are
    enough. A gang with a required split over nodes keeps its GPUs where possible. splits: (N,) as `Job.split`.
    """
    there = previous.runs & (previous.types == selection.columns)
    changed = np.flatnonzero(there & (previous.sizes != selection.num_gpus))
    if not len(changed):
        return previous
    free, kept = pool.free.copy(), previous.where(there)
    free[kept.gpus] = False
    found: dict[int, list[int]] = {}
    for row in changed[np.argsort((selection.num_gpus - previous.sizes)[changed], kind="stable")].tolist():
        own, size = previous.list_of(row), int(selection.num_gpus[row])
        nodes = Counter(pool.layout.node_of[own].tolist())
        if splits[row] != ANY_SPLIT:
            near = np.flatnonzero(free & np.isin(pool.layout.node_of, list(nodes))).tolist() if size > len(own) else []
            found |= _evenly(row, [*own, *near], size, int(splits[row]), pool)
            free[own] = pool.free[own]
            free[found.get(row, [])] = False
            continue
        if size < len(own):
            ranked = sorted(own, key=lambda gpu: (-nodes[int(pool.layout.node_of[gpu])], int(pool.layout.node_of[gpu])))
            found[row] = sorted(ranked[:size])
            free[ranked[size:]] = pool.free[ranked[size:]]
            continue
        more = np.flatnonzero(free & np.isin(pool.layout.node_of, list(nodes)))[: size - len(own)].tolist()
        if len(own) + len(more) == size:
            found[row] = sorted([*own, *more])
            free[more] = False
    rows = np.array(list(found), dtype=np.int64)
    return previous.replaced(rows, HeldGpus.of(selection.columns[rows], list(found.values()))) if found else previous


def _evenly(row: int, gpus: list[int], size: int, split: int, pool: FreeResources) -> dict[int, list[int]]:
    """Return {row: GPUs} of a gang for an even split that uses the first of these GPUs on each node; {} if there is none."""
    nodes = pool.layout.node_of[gpus]
    room = np.bincount(nodes, minlength=len(pool.layout.names))
    chosen = even_nodes(size, room, np.zeros(len(room), dtype=np.int64), split)
    if chosen is None:
        return {}
    return {row: sorted(gpu for node in chosen[0] for gpu in np.array(gpus)[nodes == node][: chosen[1]].tolist())}


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


def _remaining_demand(
    demand: RoundDemand, requests: ResourceRequests, waiting: Mask, pool: FreeResources, held: HeldGpus
) -> RoundDemand:
    """Return the demand for the GPUs in the pool, of waiting jobs where their gangs fit within their locality."""
    room = np.stack([pool.largest_free(each) for each in requests.distinct])
    runnable = demand.runnable & waiting[:, None] & (demand.num_gpus[:, None] <= room[requests.distinct_of, requests.scopes])
    alike: dict[tuple[int, int, int, int], list[int]] = {}
    splits = requests.splits
    for row in np.flatnonzero((splits != ANY_SPLIT) & (requests.scopes != NODE) & runnable.any(axis=1)).tolist():
        key = int(demand.num_gpus[row]), int(requests.scopes[row]), int(splits[row]), int(requests.distinct_of[row])
        alike.setdefault(key, []).append(row)
    for (size, scope, split, code), rows in alike.items():
        runnable[rows] &= pool.splits_evenly(size, scope, split, requests.distinct[code])
    # The first of the distinct requests is for GPUs only.
    tenants = None if demand.tenants is None else demand.tenants.without(held.runs, held.shares[held.runs])
    return replace(demand, runnable=runnable, capacities=room[0, ANYWHERE], tenants=tenants)


def _less(demand: RoundDemand, used: Sequence[float]) -> RoundDemand:
    """Return the demand with less left of each limit."""
    if not demand.limits:
        return demand
    return replace(demand, limits=tuple(limit.less(each) for limit, each in zip(demand.limits, used, strict=True)))


def _within_limits(demand: RoundDemand) -> RoundDemand:
    """Return the demand in which only those jobs are runnable that keep all limits together."""
    if not demand.limits:
        return demand
    worths = worths_of(raised_scores_of(demand), demand.num_gpus)
    left = within_limits(demand.possible, worths, demand.claims, demand.num_gpus, demand.limits)
    return replace(demand, runnable=left)


def _keeping_limits(selection: Indices | GangSelection, demand: RoundDemand) -> Indices | GangSelection:
    """Return a selection with fewer GPUs for elastic jobs where limits require it."""
    if not isinstance(selection, GangSelection) or not demand.limits:
        return selection  # gangs of fixed sizes that are runnable keep all limits
    return GangSelection(*reduced_to_limits(*selection, raised_scores_of(demand), demand.limits, demand.sizes))


NOISE_ROUNDS = DEFICIT_ROUNDING / 2
"""Deficits below this are zero: mechanisms round deficits to 6 digits."""


def forced_gangs(
    state: SchedulerState, current: CurrentAllocation, running: HeldGpus, limits: Sequence[RoundLimit], *, backfill: bool
) -> HeldGpus | None:
    """Return (N,) the GPUs in a round in which no mechanism has a choice, None if there is a choice, or if they exceed a limit.

    running: (N,) GPUs of the jobs that may stay where they are (`SchedulerState.continuing_gangs`).

    There is no choice if every running job has all of its time on the type where it runs, in its promised placement; at most one
    other job has time, all of it on one type, and fits on one node; no job has a deficit; and, with `backfill`, no waiting gang
    fits the remaining GPUs.
    """
    fractions, problem = current.fractions, current.problem
    if (
        (problem.num_gpus < 1).any()  # fractional jobs are packed onto GPUs in each round
        or problem.counts is not None  # elastic ones may change their number of GPUs
        or current.colocation_promises is not None
        or running.partners
        or not ((fractions == 0) | (fractions == 1)).all()
    ):
        return None
    columns = running.types
    given = np.where(fractions.any(axis=1), fractions.argmax(axis=1), -1) if fractions.size else columns
    other = np.flatnonzero(given != columns)
    if (
        len(other) > 1
        or (columns[other] >= 0).any()
        or np.count_nonzero(running.runs) < np.count_nonzero(state.continuing_types >= 0)
    ):
        return None
    # An allocation that is kept may include jobs that have left, changed or finished since.
    if current is state.allocation and not current.present(state.table).all():
        return None
    has_deficits = (np.abs(state.ledger.deficits[current.rows]) > NOISE_ROUNDS).any()
    if has_deficits or not _placed_as_promised(state, current, running) or (backfill and _fits_waiting_gang(current, given)):
        return None
    held = _with_new_gang(state, current, running, int(other[0]), int(given[other[0]])) if len(other) else running
    return None if limits and held is not None and not first_within(limits, held)[held.runs].all() else held


def locked_gangs(
    state: SchedulerState, current: CurrentAllocation, held: HeldGpus, start: float, least: Floats, limits: tuple[RoundLimit, ...]
) -> HeldGpus:
    """Return (N,) the GPUs of running gangs that must keep them in the round that begins at `start` seconds.

    Args:
        state: The scheduler's state.
        current: The allocation, of N jobs.
        held: (N,) GPUs that they may keep.
        start: The start of the round.
        least: (N,) or a number, the seconds for which gangs run at least.
        limits: The limits that hold in every round, which come first.
    """
    columns = state.table.columns
    since, kept_until = (columns[name][current.rows] for name in ("running_since_seconds", "kept_until_seconds"))
    new = held.runs & ((start - since < least * (1 - DURATION_ROUNDING)) | (start < kept_until))
    if not new.any():
        return HeldGpus.none(len(held))
    index = {job_id: i for i, job_id in enumerate(current.problem.job_ids)} if held.partners else {}
    for i in np.flatnonzero(new).tolist():  # co-located jobs stay or go together
        new[[index[other] for other in held.partners.get(i, ()) if other in index]] = True
    locked = held.where(new & current.problem.runnable[np.arange(len(held)), held.types])
    return locked.where(first_within(limits, locked)) if limits else locked


def _placed_as_promised(state: SchedulerState, current: CurrentAllocation, running: HeldGpus) -> bool:
    """Return whether every running gang is spread or consolidated as the allocation promises."""
    if current.spread_fractions is None:
        return True
    rows = np.flatnonzero(running.sizes > 1)
    promised = current.spread_fractions[rows, running.types[rows]]  # NaN if the placement makes no difference
    return bool((np.isnan(promised) | (promised == state.gangs.is_spread[current.rows[rows]])).all())


def _fits_waiting_gang(current: CurrentAllocation, given: Indices) -> bool:
    """Return whether a gang without time would fit the remaining GPUs; given: (N,) columns of the jobs with time."""
    problem = current.problem
    used = np.bincount(given[given >= 0], weights=problem.num_gpus[given >= 0], minlength=len(problem.capacities))
    waits = (given < 0)[:, None] & problem.runnable
    return bool((waits & (problem.num_gpus[:, None] <= problem.capacities - used)).any())


def _with_new_gang(state: SchedulerState, current: CurrentAllocation, running: HeldGpus, row: int, column: int) -> HeldGpus | None:
    """Return the running gangs and one gang that starts, None if it does not fit on one node or should be spread."""
    size, spread = int(current.problem.num_gpus[row]), current.spread_fractions
    part = state.layout.parts[column]
    is_split = 0 < state.table.jobs[current.rows[row]].split < size
    if is_split or (spread is not None and size > 1 and spread[row, column] > 0) or not state.nodes.all_up or part.limited:
        return None
    pool = state.free_resources()
    pool.free[running.gpus] = False
    gpus = FreeGpus(part, pool.free[part.gpus], pool.cpus[part.nodes], pool.memory_gb[part.nodes]).take_tightest(size)
    if not gpus:
        return None
    return running.replaced(np.array([row]), HeldGpus.of([column], [[part.gpus.start + gpu for gpu in gpus]]))


def place_elsewhere(
    place: Callable[..., HeldGpus], demand: RoundDemand, fixed: HeldGpus, previous: HeldGpus, avoided: Mapping[int, Mask]
) -> HeldGpus:
    """Return (N,) the GPUs of the jobs that run, where no job is on GPUs that it avoids if other GPUs could hold it.

    A gang that is placed on GPUs that it avoids is placed again on the remaining ones, or else waits; its GPUs are offered to
    others.

    Args:
        place: Returns the GPUs for a demand, with `fixed` and `previous`, without using `closed` GPUs.
        demand: Demand of N jobs.
        fixed: (N,) GPUs that jobs must keep.
        previous: (N,) GPUs that jobs get if possible.
        avoided: {job: (GPUs,) the GPUs that it avoids} of jobs that do not run.
    """
    held, jobs, none = place(demand, fixed, previous), np.arange(len(demand.num_gpus)), HeldGpus.none(len(demand.num_gpus))
    waits = np.zeros(len(jobs), dtype=bool)
    for job, gpus in avoided.items():
        if not gpus[held.list_of(job)].any():
            continue
        alone = replace(demand, runnable=demand.runnable & (jobs == job)[:, None])
        if place(replace(alone, locked=none.runs), none, none, closed=gpus).runs[job]:
            others = held.where(jobs != job)
            if demand.limits:  # its partner counts in full without it
                others = others.where(first_within(demand.limits, others, fixed.runs))
            held = place(replace(alone, locked=others.runs), others, none, closed=gpus)
            waits[job] = not held.runs[job]
    if not waits.any():
        return held
    return place(replace(demand, runnable=demand.runnable & ~waits[:, None], locked=held.runs), held, previous)
