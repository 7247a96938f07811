"""On which GPUs each gang runs: a pure function of the nodes, the gangs and where they ran before.

topology: nodes and GPUs by number; gangs: gangs as arrays; free_gpus: what no job holds, and where a gang fits best; assign: places
gangs on one type; migration: which gangs move to make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.job import Locality
from gavel_py.problem.nodes import Node
from gavel_py.scheduling.placement.assign import PlacementDomains, PlacementPass, kept_gangs, loads_of
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources
from gavel_py.scheduling.placement.gangs import GangBatch, PlacementPreference, Spans
from gavel_py.scheduling.placement.topology import ANYWHERE, NO_LOADS, NOTHING, SCOPES, Gpu, Layout, Resources, TypeLayout

__all__ = ["Gang", "Places", "hardest_first", "largest_free", "place", "place_batch", "place_on_type"]


class Gang(NamedTuple):
    """GPUs of one type to be given to a job, all or none.

    locality: `node`: all on one node; `rack`: all in one rack (a node without a rack is a rack of its own); `any`: anywhere, best
    together; previous: the GPUs it ran on until now, if any; they count only if they can still hold it;
    needs: the CPUs and memory that each of its GPUs needs on its node; kind: on how many nodes they should be;
    even: whether it must have the same number of GPUs on each of its nodes, and then no kind.
    """

    job_id: str
    num_gpus: int
    accelerator: str
    locality: Locality = "any"
    previous: tuple[Gpu, ...] = ()
    needs: Resources = NOTHING
    kind: PlacementPreference = PlacementPreference.ANY
    even: bool = False


class Places(NamedTuple):
    """stays: (M,) bool, gangs that keep the GPUs that they had; found: by gang, the GPUs of the others that have a place."""

    stays: Mask
    found: dict[int, list[int]]

    @property
    def placed(self) -> Mask:
        """(M,) bool, the gangs that have a place."""
        placed = self.stays.copy()
        placed[list(self.found)] = True
        return placed


def place(
    nodes: Sequence[Node], gangs: Sequence[Gang], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Resources] = NO_LOADS
) -> dict[str, tuple[Gpu, ...]]:
    """Return {job_id: GPUs} of the gangs that can be placed; the others are left out. The gang that stands first matters most.

    taken: GPUs that others have, and loads: what these need of the CPUs and memory of each node.
    A running gang stays on its GPUs. The others get the fewest nodes and the tightest holes, gangs with a locality or an even split
    and large ones first. When a gang would be split that a node or a rack could hold, the fewest smaller running gangs move (and
    restart); when it does not fit at all, the fewest that come after it; when that does not help, the type is packed anew.
    Whatever else happens, the gang that stands first is placed if it fits what is left.

    A gang of kind `APART` gets the smallest holes on more nodes than its size needs, if they are free; if not, it is placed as the
    others are. When all have their places, gangs that are not of their kind move to free GPUs, their own included, or change places
    with each other, if they are of their kind then.
    """
    layout = Layout(nodes)
    gangs = sorted(gangs, key=lambda gang: layout.type_number.get(gang.accelerator, -1))
    places = place_batch(FreeResources(layout, taken, loads), _gang_batch(gangs, layout, Spans(Cluster(nodes))))
    named = {gangs[i].job_id: tuple(layout.named(gpus)) for i, gpus in places.found.items()}
    named |= {gangs[i].job_id: gangs[i].previous for i in np.flatnonzero(places.stays).tolist()}
    return named


def place_batch(stock: FreeResources, crowd: GangBatch) -> Places:
    """Place gangs on what is in stock, as `place` says."""
    stays = np.zeros(len(crowd), dtype=bool)
    found: dict[int, list[int]] = {}
    for number, part in enumerate(stock.layout.parts):
        start, here = crowd.on_type(number, part.gpus.start)
        if len(here):
            settled = place_on_type(stock, number, here)
            stays[start : start + len(here)] = settled.stays
            found |= {start + i: [part.gpus.start + gpu for gpu in gpus] for i, gpus in settled.found.items()}
    return Places(stays, found)


def largest_free(
    nodes: Iterable[Node], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Resources] = NO_LOADS, needs: Resources = NOTHING
) -> dict[Locality, dict[str, int]]:
    """Return {locality: {accelerator: GPUs}}, the largest gang with such needs that fits what is not taken."""
    layout = Layout(nodes)
    holes = FreeResources(layout, taken, loads).largest_free(needs).tolist()
    return {scope: dict(zip(layout.types, row, strict=True)) for scope, row in zip(SCOPES, holes, strict=True)}


def _gang_batch(gangs: Sequence[Gang], layout: Layout, spans: Spans) -> GangBatch:
    """The gangs as arrays, in the same order, which must be that of their types."""
    lengths = [len(gang.previous) for gang in gangs]
    return GangBatch(
        sizes=np.array([gang.num_gpus for gang in gangs], dtype=np.int64),
        types=np.array([layout.type_number.get(gang.accelerator, -1) for gang in gangs], dtype=np.int64),
        scopes=np.array([SCOPES.index(gang.locality) for gang in gangs], dtype=np.int64),
        evens=np.array([gang.even for gang in gangs], dtype=bool),
        kinds=np.array([gang.kind for gang in gangs], dtype=np.int8),
        fewest=np.array([spans.fewest(gang.accelerator, gang.num_gpus) for gang in gangs], dtype=np.int64),
        needs=[gang.needs for gang in gangs],
        held=layout.numbers(list(chain.from_iterable(gang.previous for gang in gangs))),
        owners=np.repeat(np.arange(len(gangs)), lengths),
    )


def place_on_type(stock: FreeResources, number: int, crowd: GangBatch) -> PlacementPass:
    """Place gangs on one type: the first of three ways that places all, or else the one that serves those that stand first."""
    ways = _ways(stock, number, crowd.with_preferences_on(len(stock.layout.parts[number].sizes)))
    best = next(ways)
    while not best.placed.all() and (other := next(ways, None)) is not None:
        best = other if other.placed.tolist() > best.placed.tolist() else best
    best.put_right()
    return best


def hardest_first(crowd: GangBatch) -> Indices:
    """Return the gangs of a type in the order in which places are sought: those that may be anywhere last, and large ones first."""
    return np.lexsort((-crowd.sizes, (crowd.scopes == ANYWHERE) & ~crowd.evens))


def _ways(stock: FreeResources, number: int, crowd: GangBatch) -> Iterator[PlacementPass]:
    """Staying where it is possible, hardest gangs first; nobody staying; and staying, those first that matter most."""
    part = stock.layout.parts[number]
    free, cpus, memory_gb = stock.free[part.gpus], stock.cpus[part.nodes], stock.memory_gb[part.nodes]
    reach = PlacementDomains(part, free, cpus, memory_gb)
    by_weight = np.arange(len(crowd))
    hardest = hardest_first(crowd)
    for order, staying in ((hardest, True), (hardest, False), (by_weight, True)):
        stays = kept_gangs(crowd, part, free, cpus, memory_gb, order) if staying else np.zeros(len(crowd), dtype=bool)
        settled = PlacementPass(_beside(crowd, stays, part, free, cpus, memory_gb), crowd, stays, reach)
        settled.settle(order)
        yield settled


def _beside(crowd: GangBatch, stays: Mask, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats) -> FreeGpus:
    """What these gangs leave of the GPUs, CPUs and memory of a type when they stay."""
    free, cpus, memory_gb = free.copy(), cpus.copy(), memory_gb.copy()
    gpus = stays[crowd.owners]
    free[crowd.held[gpus]] = False
    if layout.limited:
        used = loads_of(crowd, gpus, layout)
        cpus, memory_gb = cpus - used[0], memory_gb - used[1]
    return FreeGpus(layout, free, cpus, memory_gb)
