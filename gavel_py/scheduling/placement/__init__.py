"""Placement: the GPUs of each gang, as a pure function of nodes, gangs and the GPUs that they held before.

`topology` numbers nodes and GPUs, `gangs` holds gangs as arrays, `free_gpus` finds the best fit, `assign` places the gangs of one
type, and `migration` moves gangs to make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import ANY_SPLIT
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.placement.assign import PlacementDomains, PlacementPass, kept_gangs, loads_of
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources
from gavel_py.scheduling.placement.gangs import GangBatch, HeldGpus, PlacementPreference, Spans
from gavel_py.scheduling.placement.topology import ANYWHERE, NO_LOADS, NOTHING, SCOPES, Gpu, Layout, Resources, TypeLayout

__all__ = ["Gang", "Places", "hardest_first", "largest_free", "place", "place_batch", "place_on_type"]


class Gang(NamedTuple):
    """A request for GPUs of one type, all or none, as input of `place`.

    Attributes:
        job_id: The job.
        num_gpus: GPUs.
        accelerator: The type.
        locality: `node`: on one node; `rack`: in one rack (a node without a rack is a rack of its own); `any`: anywhere.
        previous: GPUs that it holds; ignored if it can no longer run there.
        per_gpu: CPUs and memory that each of its GPUs needs on its node.
        preference: Preferred placement.
        split: How it divides over nodes, as `Job.split`; a gang with a preference may divide in any way.
    """

    job_id: str
    num_gpus: int
    accelerator: str
    locality: Locality = "any"
    previous: tuple[Gpu, ...] = ()
    per_gpu: Resources = NOTHING
    preference: PlacementPreference = PlacementPreference.ANY
    split: int = ANY_SPLIT


class Places(NamedTuple):
    """Places of M gangs. stays: (M,) the gangs that keep their GPUs; gangs, held: (G,) others with a place, and their GPUs."""

    stays: Mask
    gangs: Indices
    held: HeldGpus


def place(
    nodes: Sequence[Node], gangs: Sequence[Gang], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Resources] = NO_LOADS
) -> dict[str, tuple[Gpu, ...]]:
    """Return {job_id: GPUs} of the gangs that can be placed.

    Running gangs stay on their GPUs. Other gangs get the fewest nodes and, among these, the tightest; gangs with a locality or an
    even split come first, and large gangs before small ones. If a gang would be split although a node or a rack could hold it, the
    fewest smaller running gangs move (and restart). If it does not fit at all, the fewest gangs that come after it move. If that
    does not help, all gangs of the type are packed again. The first gang is always placed if the free GPUs can hold it.

    A gang that prefers SPREAD gets the nodes with the least room, more nodes than it needs; if they are not free, it is placed like
    other gangs. When all gangs have places, gangs outside their preferred placement move to free GPUs (or their own) or exchange
    GPUs.

    Args:
        nodes: The nodes.
        gangs: The gangs, most important first.
        taken: GPUs that are not free.
        loads: {node: CPUs and memory that are not free}.
    """
    layout = Layout(nodes)
    gangs = sorted(gangs, key=lambda gang: layout.type_number.get(gang.accelerator, -1))
    places = place_batch(FreeResources(layout, taken, loads), _batch_of(gangs, layout, Spans(Cluster(nodes))))
    named = {gangs[i].job_id: tuple(layout.named(places.held.list_of(n))) for n, i in enumerate(places.gangs.tolist())}
    named |= {gangs[i].job_id: gangs[i].previous for i in np.flatnonzero(places.stays).tolist()}
    return named


def place_batch(pool: FreeResources, batch: GangBatch) -> Places:
    """Place gangs on the free resources as `place` does; the pool is not changed."""
    stays, gangs, held = np.zeros(len(batch), dtype=bool), [np.zeros(0, dtype=np.int64)], HeldGpus.none(0)
    for number, part in enumerate(pool.layout.parts):
        start, here = batch.on_type(number, part.gpus.start)
        if len(here):
            attempt = place_on_type(pool, number, here)
            stays[start : start + len(here)] = attempt.stays
            new = np.fromiter(attempt.found, dtype=np.int64, count=len(attempt.found))
            gangs.append(start + new)
            found = HeldGpus.of(np.full(len(new), number), attempt.found.values())
            held = held.joined(replace(found, gpus=part.gpus.start + found.gpus))
    return Places(stays, np.concatenate(gangs), held)


def largest_free(
    nodes: Iterable[Node], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Resources] = NO_LOADS, per_gpu: Resources = NOTHING
) -> dict[Locality, dict[str, int]]:
    """Return {locality: {type: GPUs}}, the size of the largest gang with this request per GPU that fits the free GPUs."""
    layout = Layout(nodes)
    index = FreeResources(layout, taken, loads).largest_free(per_gpu).tolist()
    return {scope: dict(zip(layout.types, row, strict=True)) for scope, row in zip(SCOPES, index, strict=True)}


def _batch_of(gangs: Sequence[Gang], layout: Layout, spans: Spans) -> GangBatch:
    """Return the gangs, which must be sorted by type, as a batch."""
    lengths = [len(gang.previous) for gang in gangs]
    return GangBatch(
        sizes=np.array([gang.num_gpus for gang in gangs], dtype=np.int64),
        types=np.array([layout.type_number.get(gang.accelerator, -1) for gang in gangs], dtype=np.int64),
        scopes=np.array([SCOPES.index(gang.locality) for gang in gangs], dtype=np.int64),
        splits=np.array([gang.split for gang in gangs], dtype=np.int64),
        preferences=np.array([gang.preference for gang in gangs], dtype=np.int8),
        min_nodes=np.array([spans.min_nodes(gang.accelerator, gang.num_gpus) for gang in gangs], dtype=np.int64),
        per_gpu=[gang.per_gpu for gang in gangs],
        held=layout.numbers(list(chain.from_iterable(gang.previous for gang in gangs))),
        owners=np.repeat(np.arange(len(gangs)), lengths),
    )


def place_on_type(pool: FreeResources, number: int, batch: GangBatch) -> PlacementPass:
    """Place gangs on one type, and migrate misplaced ones.

    Of three attempts, the first that places all gangs is used, or else the one that places the more important gangs.
    """
    attempts = _attempts(pool, number, batch.with_preferences_on(pool.num_open[number]))
    best = next(attempts)
    while not best.placed.all() and (other := next(attempts, None)) is not None:
        best = other if other.placed.tolist() > best.placed.tolist() else best
    best.migrate_misplaced()
    return best


def hardest_first(batch: GangBatch) -> Indices:
    """Return the gangs of a type in the order of placement: with a locality or an even split first, then large before small."""
    return np.lexsort((-batch.sizes, (batch.scopes == ANYWHERE) & (batch.splits == ANY_SPLIT)))


def _attempts(pool: FreeResources, number: int, batch: GangBatch) -> Iterator[PlacementPass]:
    """Yield placements: running gangs stay, hardest gangs first; none stays; running gangs stay, most important gangs first."""
    part = pool.layout.parts[number]
    free, cpus, memory_gb = pool.free[part.gpus], pool.cpus[part.nodes], pool.memory_gb[part.nodes]
    domains = PlacementDomains(part, free, cpus, memory_gb)
    by_importance = np.arange(len(batch))
    hardest = hardest_first(batch)
    for order, staying in ((hardest, True), (hardest, False), (by_importance, True)):
        stays = kept_gangs(batch, part, free, cpus, memory_gb, order) if staying else np.zeros(len(batch), dtype=bool)
        attempt = PlacementPass(_free_beside(batch, stays, part, free, cpus, memory_gb), batch, stays, domains)
        attempt.place_all(order)
        yield attempt


def _free_beside(batch: GangBatch, stays: Mask, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats) -> FreeGpus:
    """Return the GPUs, CPUs and memory of a type that the gangs that stay leave free."""
    free, cpus, memory_gb = free.copy(), cpus.copy(), memory_gb.copy()
    gpus = stays[batch.owners]
    free[batch.held[gpus]] = False
    if layout.limited:
        used = loads_of(batch, gpus, layout)
        cpus, memory_gb = cpus - used[0], memory_gb - used[1]
    return FreeGpus(layout, free, cpus, memory_gb)
