"""Places gangs: on each accelerator type in a given order; running gangs keep their GPUs where possible.

`place` and `place_batch` place gangs on all types. `free_gpus` chooses the nodes of each gang, and `migration` the gangs that move
for others. `event_driven` places single gangs by the same rules.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import ANY_SPLIT
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources, find_preferred
from gavel_py.scheduling.placement.gangs import ANY_PLACEMENT, SPREAD, GangBatch, HeldGpus, PlacementPreference, Spans
from gavel_py.scheduling.placement.migration import (
    MisplacedGang,
    MovableGangs,
    fewest_to_move,
    fewest_to_move_evenly,
    migrate_misplaced,
)
from gavel_py.scheduling.placement.topology import (
    ANYWHERE,
    NO_LOADS,
    NODE,
    NOTHING,
    RACK,
    SCOPES,
    Gpu,
    Layout,
    Resources,
    TypeLayout,
    room_for,
)


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
    starts, held = np.searchsorted(batch.owners, np.arange(len(batch) + 1)).tolist(), batch.held.tolist()
    keep_own_gpus(best.found, lambda gang: held[starts[gang] : starts[gang + 1]], best.free)
    return best


GangKey = TypeVar("GangKey")


def keep_own_gpus(found: dict[GangKey, list[int]], held: Callable[[GangKey], list[int]], free: FreeGpus) -> None:
    """Let gangs that are placed where they were, node by node, keep their GPUs: they would restart for nothing.

    Args:
        found: {gang: GPUs} of gangs that have been placed; changed in place.
        held: Returns the GPUs that a gang held before.
        free: The GPUs that are left.
    """
    parts_of, known = free.layout.parts_of, range(len(free.layout.node_of))
    changed = [(gang, own) for gang in found if (own := held(gang)) and own != found[gang]]
    there = [(gang, own) for gang, own in changed if min(own) in known and max(own) in known]
    back = [(gang, own) for gang, own in there if parts_of(own) == parts_of(found[gang])]
    owners = {gpu: gang for gang, gpus in found.items() for gpu in gpus} if back else {}
    for gang, own in back:
        swaps = list(zip(sorted({*own}.difference(found[gang])), sorted({*found[gang]}.difference(own)), strict=True))  # by node
        if not all(gpu not in held(owners[gpu]) if gpu in owners else free.has(gpu) for gpu, _ in swaps):
            continue
        for gpu, other in swaps:
            owner = owners.get(gpu)
            if owner is None:
                free.exchange(gpu, other)
            else:
                found[owner] = [other if each == gpu else each for each in found[owner]]
                owners[other] = owner
            owners[gpu] = gang
        found[gang] = own


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


class PlacementDomains:
    """Finds the narrowest scope that could hold a gang if no other gang were placed."""

    def __init__(self, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats) -> None:
        self._layout, self._free, self._cpus, self._memory = layout, free, cpus, memory_gb
        self._largest: dict[Resources, list[int]] = {}

    def narrowest(self, size: int, scope: int, per_gpu: Resources = NOTHING) -> int:
        """Return the narrowest scope, at most this one, in which a gang of this size fits; this one if it fits in none."""
        if per_gpu not in self._largest:
            self._largest[per_gpu] = self._room(per_gpu)
        return next((within for within in range(scope + 1) if self._largest[per_gpu][within] >= size), scope)

    def _room(self, per_gpu: Resources) -> list[int]:
        """Return the largest room of any region, by scope."""
        counts = np.bincount(self._layout.node_of[self._free], minlength=len(self._layout.sizes))
        room = room_for(per_gpu, counts, self._cpus, self._memory)
        return [int(np.bincount(self._layout.regions[scope], weights=room).max(initial=0)) for scope in range(len(SCOPES))]


class PlacementPass:
    """One attempt to place the M gangs of a type.

    Attributes:
        free: GPUs for gangs without a place.
        stays: (M,) the gangs that keep their GPUs.
        found: {gang: GPUs} of the other gangs with a place.
    """

    def __init__(self, free: FreeGpus, batch: GangBatch, stays: Mask, domains: PlacementDomains) -> None:
        self.free, self.batch, self.stays = free, batch, stays.copy()
        self.found: dict[int, list[int]] = {}
        self._domains = domains
        self._rank = np.zeros(len(batch), dtype=np.int64)

    def place_all(self, order: Indices) -> None:
        """Place the gangs in this order; a gang that stays may have to move for a gang that comes before it."""
        batch, free = self.batch, self.free
        self._rank[order] = np.arange(len(order))
        waiting: list[int] = order[~self.stays[order]].tolist()
        # Sizes of gangs for which the tightest node is the best place, which are nearly all; 0 for the others.
        on_several = (batch.splits > 0) & (batch.splits < batch.sizes)
        is_other = on_several | (batch.preferences == SPREAD) | free.layout.limited
        sizes: list[int] = np.where(is_other, 0, batch.sizes).tolist()
        step = end = 0
        while step < len(waiting):
            gang, size, count = waiting[step], sizes[waiting[step]], len(waiting)
            if step >= end:  # of a run of equal sizes
                end = next((i for i in range(step + 1, count) if sizes[waiting[i]] != size), count)
            taken = free.take_tightest(size, end - step) if size else []
            if taken:
                equal = waiting[step : step + len(taken) // size]
                self.found.update(zip(equal, map(list, zip(*[iter(taken)] * size, strict=True)), strict=True))  # `size` GPUs each
                step += len(equal)
                continue
            parts = self._find(gang, waiting, step)
            step += 1
            if parts is not None:
                self.found[gang] = free.take_lowest(parts, batch.per_gpu[gang])
            if len(waiting) > count:  # gangs have been moved
                end = step

    @property
    def placed(self) -> Mask:
        """(M,) the gangs that have a place."""
        placed = self.stays.copy()
        placed[list(self.found)] = True
        return placed

    def migrate_misplaced(self) -> None:
        """Move gangs that are not in their preferred placement."""
        batch, misplaced = self.batch, self._misplaced()
        if not misplaced:
            return
        starts, before = np.searchsorted(batch.owners, np.arange(len(batch) + 1)).tolist(), batch.held.tolist()
        held = [self.found[gang] if gang in self.found else before[starts[gang] : starts[gang + 1]] for gang in misplaced]
        preferences, sizes, scopes, min_nodes = (
            each[misplaced].tolist() for each in (batch.preferences, batch.sizes, batch.scopes, batch.min_nodes)
        )
        per_gpu = [batch.per_gpu[gang] for gang in misplaced]
        rows = zip(held, map(self.free.layout.parts_of, held), preferences, sizes, scopes, min_nodes, per_gpu, strict=True)
        moved = migrate_misplaced(self.free, [MisplacedGang(*row) for row in rows])
        for place, gpus in moved.items():
            self.found[misplaced[place]], self.stays[misplaced[place]] = gpus, False

    def _misplaced(self) -> list[int]:
        """Return the gangs that have a place, but not in their preferred placement."""
        batch, layout = self.batch, self.free.layout
        wanted = batch.preferences != ANY_PLACEMENT
        if not wanted.any():
            return []
        stay = (wanted & self.stays)[batch.owners]
        found = [(gang, gpu) for gang, gpus in self.found.items() if wanted[gang] for gpu in gpus]
        owners, gpus = np.concatenate(
            [(batch.owners[stay], batch.held[stay]), np.array(found, dtype=np.int64).reshape(-1, 2).T], axis=1
        )
        pairs = np.unique(owners * len(layout.sizes) + layout.node_of[gpus])
        nodes = np.bincount(pairs // len(layout.sizes), minlength=len(batch))
        is_spread = nodes > batch.min_nodes
        return np.flatnonzero(wanted & (nodes > 0) & (is_spread != (batch.preferences == SPREAD))).tolist()

    def _find(self, gang: int, waiting: list[int], step: int) -> dict[int, int] | None:
        """Return {node: free GPUs} for a gang. Later gangs may move: smaller ones to keep it together, any to place it at all."""
        batch, room, per_gpu = self.batch, self.free.room, self.batch.per_gpu[gang]
        size, scope, preference = batch.sizes.item(gang), batch.scopes.item(gang), batch.preferences.item(gang)
        if preference != ANY_PLACEMENT:
            parts = find_preferred(preference, room, size, scope, batch.min_nodes.item(gang), per_gpu)
            if parts is not None:
                return parts
        split, narrowest_scope = batch.splits.item(gang), self._domains.narrowest(size, scope, per_gpu)
        if 0 < split < size:  # it must be on several nodes, even if one could hold it
            narrowest_scope = max(narrowest_scope, RACK)
        parts = room.fit(size, narrowest_scope, per_gpu, split=split)
        if parts is None:
            movable = self.stays & (self._rank > self._rank[gang])
            parts = self._make_room(gang, narrowest_scope, movable & (batch.sizes < size), waiting, step)
            parts = parts or self._make_room(gang, scope, movable, waiting, step)
        return parts

    def _make_room(self, gang: int, scope: int, movable: Mask, waiting: list[int], step: int) -> dict[int, int] | None:
        """Return {node: free GPUs} in one region of the scope, after moving the fewest gangs if necessary."""
        batch, free = self.batch, self.free
        size, per_gpu, split = batch.sizes.item(gang), batch.per_gpu[gang], batch.splits.item(gang)
        parts = free.room.fit(size, scope, per_gpu, split=split)
        if parts is None:
            held = self._movable(movable)
            evenly = partial(fewest_to_move_evenly, split=split)
            for other in (evenly if split else fewest_to_move)(free, size, scope, per_gpu, held):
                free.give_back(held.of(other), batch.per_gpu[other])
                self.stays[other] = False
                insort(waiting, other, lo=step + 1, key=self._rank.__getitem__)
            parts = free.room.fit(size, scope, per_gpu, split=split)
        return parts

    def _movable(self, movable: Mask) -> MovableGangs:
        """Return the GPUs of movable gangs, in the order in which the gangs are placed."""
        batch = self.batch
        which = np.flatnonzero(movable[batch.owners])
        which = which[np.argsort(self._rank[batch.owners[which]], kind="stable")]
        return MovableGangs(batch.held[which], batch.owners[which], batch.per_gpu)


def kept_gangs(batch: GangBatch, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices) -> Mask:
    """Return (M,) the gangs that can stay: they hold the number of GPUs that they need, all of them free and within their locality.

    Args:
        batch: Gangs of one type.
        layout: The type.
        free: (GPUs,) whether each is free.
        cpus: (nodes,) free CPUs.
        memory_gb: (nodes,) free memory.
        order: Decides which gang stays if two hold one GPU, or a node has too few CPUs or memory for all.
    """
    count = len(batch)
    there = (batch.held >= 0) & (batch.held < len(free))
    there[there] = free[batch.held[there]]
    held = np.bincount(batch.owners[there], minlength=count)
    stays: Mask = (held == batch.sizes) & (np.bincount(batch.owners, minlength=count) == batch.sizes)
    stays &= _local(batch, layout, stays)
    gpus = batch.held[stays[batch.owners]]
    twice = gpus.size > 0 and int(np.bincount(gpus).max()) > 1
    if twice or (layout.limited and _overloaded(batch, layout, stays, cpus, memory_gb)):
        return _one_by_one(batch, layout, stays, free, cpus, memory_gb, order)
    return stays


def loads_of(batch: GangBatch, gpus: Mask, layout: TypeLayout) -> tuple[Floats, Floats]:
    """Return (nodes,) CPUs and (nodes,) memory that gangs need for some of the GPUs that they held; gpus: (H,) which of these."""
    nodes, owners = layout.node_of[batch.held[gpus]], batch.owners[gpus]
    per_gpu = np.array(batch.per_gpu, dtype=float).reshape(-1, 2)[owners]
    used = np.zeros((2, len(layout.sizes)))
    for column in range(2):
        used[column] = np.bincount(nodes, weights=per_gpu[:, column], minlength=len(layout.sizes))
    return used[0], used[1]


def _local(batch: GangBatch, layout: TypeLayout, stays: Mask) -> Mask:
    """Return (M,) those of the gangs in `stays` that are within one region of their locality."""
    local = np.ones(len(batch), dtype=bool)
    for scope in (NODE, RACK):
        bound = stays & (batch.scopes == scope) & (batch.sizes > 1)
        if bound.any():
            gpus = bound[batch.owners]
            owners, regions = batch.owners[gpus], layout.regions[scope][layout.node_of[batch.held[gpus]]]
            # Compare each region with the first of its gang; owners ascend.
            firsts = regions[np.searchsorted(owners, owners)]
            local[owners[regions != firsts]] = False
    return local


def _overloaded(batch: GangBatch, layout: TypeLayout, stays: Mask, cpus: Floats, memory_gb: Floats) -> bool:
    """Return whether these gangs together need more CPUs or memory of any node than it has left."""
    used = loads_of(batch, stays[batch.owners], layout)
    return bool((used[0] > cpus).any() or (used[1] > memory_gb).any())


def _one_by_one(
    batch: GangBatch, layout: TypeLayout, stays: Mask, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices
) -> Mask:
    """Return (M,) the gangs that stay if each is tried in order, next to those that already stay."""
    free, cpus, memory_gb, kept = free.copy(), cpus.copy(), memory_gb.copy(), np.zeros(len(batch), dtype=bool)
    starts = np.searchsorted(batch.owners, np.arange(len(batch) + 1))
    for gang in order[stays[order]].tolist():
        gpus, per_gpu = batch.held[starts[gang] : starts[gang + 1]], batch.per_gpu[gang]
        nodes, counts = np.unique(layout.node_of[gpus], return_counts=True)
        if len(np.unique(gpus)) < len(gpus) or not free[gpus].all():
            continue
        if layout.limited and per_gpu != NOTHING and (counts > room_for(per_gpu, counts, cpus[nodes], memory_gb[nodes])).any():
            continue
        kept[gang], free[gpus] = True, False
        cpus[nodes] -= counts * per_gpu.cpus
        memory_gb[nodes] -= counts * per_gpu.memory_gb
    return kept
