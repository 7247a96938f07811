"""On which GPUs each gang runs: a pure function of the nodes, the gangs and where they ran before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gavel_py.cluster import Node
from gavel_py.jobs import Locality
from gavel_py.rounds.free_gpus import SCOPES, FreeGpus, Gpu

__all__ = ["Gang", "largest_holes", "place"]

Places = dict[str, tuple[Gpu, ...]]


@dataclass(frozen=True)
class Gang:
    """GPUs of one type to be given to a job, all or none.

    locality: `node`: all on one node; `rack`: all in one rack (a node without a rack is a rack of its own); `any`: anywhere, best
    together; previous: the GPUs it ran on until now, if any; they count only if they can still hold it.
    """

    job_id: str
    num_gpus: int
    accelerator: str
    locality: Locality = "any"
    previous: tuple[Gpu, ...] = ()


def place(nodes: Iterable[Node], gangs: Sequence[Gang], taken: Set[Gpu] = frozenset()) -> Places:
    """Return {job_id: GPUs} of the gangs that can be placed; the others are left out. The gang that stands first matters most.

    A running gang stays on its GPUs. The others get the fewest nodes and the tightest holes, gangs with a locality and large ones
    first. When a gang would be split that a node or a rack could hold, the fewest smaller running gangs move (and restart); when it
    does not fit at all, the fewest that come after it; when that does not help, the type is packed anew.
    Whatever else happens, the gang that stands first is placed if it fits the GPUs that are not `taken`.
    """
    places: Places = {}
    by_type = _by_type(nodes)
    for accelerator, group in groupby(sorted(gangs, key=_accelerator), key=_accelerator):
        places |= _place_on_type(by_type.get(accelerator, []), list(group), taken)
    return places


def largest_holes(nodes: Iterable[Node], taken: Set[Gpu] = frozenset()) -> dict[Locality, dict[str, int]]:
    """Return {locality: {accelerator: GPUs}}, the largest gang that fits the GPUs that are not `taken`."""
    free = {accelerator: FreeGpus(group, taken) for accelerator, group in _by_type(nodes).items()}
    return {scope: {name: int(gpus.free_in_regions(scope).max()) for name, gpus in free.items()} for scope in SCOPES}


def _by_type(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.accelerator, []).append(node)
    return groups


def _accelerator(gang: Gang) -> str:
    return gang.accelerator


def _place_on_type(nodes: Sequence[Node], gangs: Sequence[Gang], taken: Set[Gpu]) -> Places:
    """The first of three ways that places all gangs, or else the one that serves those that stand first."""
    hardest_first = sorted(gangs, key=lambda gang: (gang.locality == "any", -gang.num_gpus))
    ways = ((hardest_first, True), (hardest_first, False), (gangs, True))
    best: Places = {}
    for order, staying in ways:
        places = _settle(FreeGpus(nodes, taken), order, staying)
        if len(places) == len(gangs):
            return places
        best = max(best, places, key=lambda option: [gang.job_id in option for gang in gangs])
    return best


def _settle(free: FreeGpus, order: Sequence[Gang], staying: bool) -> Places:
    """Place gangs in this order; with `staying`, running gangs hold their GPUs until one that comes before needs them."""
    places: Places = {}
    for gang in order if staying else ():
        if len(gang.previous) == gang.num_gpus and free.holds(gang.previous, gang.locality):
            free.take(gang.previous)
            places[gang.job_id] = gang.previous
    for position, gang in enumerate(order):
        if gang.job_id not in places:
            gpus = _found(free, gang, order[position + 1 :], places)
            if gpus is not None:
                free.take(gpus)
                places[gang.job_id] = gpus
    return places


def _found(free: FreeGpus, gang: Gang, later: Sequence[Gang], places: Places) -> tuple[Gpu, ...] | None:
    """GPUs for one gang, moving gangs that come later: smaller ones to keep it together, any at all to place it."""
    together = free.narrowest_scope(gang.num_gpus, gang.locality)
    gpus = _cleared(free, gang.num_gpus, together, (g for g in later if g.num_gpus < gang.num_gpus), places)
    return gpus or _cleared(free, gang.num_gpus, gang.locality, later, places)


def _cleared(free: FreeGpus, size: int, scope: Locality, movable: Iterable[Gang], places: Places) -> tuple[Gpu, ...] | None:
    """Free GPUs in one region of the scope, if need be after the fewest movable gangs have given up theirs."""
    gpus = free.find(size, scope)
    if gpus is None:
        held = {gang.job_id: places[gang.job_id] for gang in movable if gang.job_id in places}
        for job_id in _fewest_to_move(free, size, scope, held):
            free.give_back(places.pop(job_id))
        gpus = free.find(size, scope)
    return gpus


def _fewest_to_move(free: FreeGpus, size: int, scope: Locality, held: Mapping[str, tuple[Gpu, ...]]) -> list[str]:
    """The fewest gangs (of equals, those with the fewest GPUs) whose GPUs make room for `size` in one region of the scope."""
    gains: dict[int, Counter[str]] = {}
    for job_id, gpus in held.items():
        for gpu in gpus:
            gains.setdefault(free.region_of(gpu, scope), Counter())[job_id] += 1
    room = free.free_in_regions(scope)
    options = []
    for region, gain in sorted(gains.items()):
        # The largest gains first reach the goal with the fewest gangs.
        order = sorted(gain, key=lambda job_id: (-gain[job_id], len(held[job_id])))
        reached = np.cumsum([gain[job_id] for job_id in order]) + room[region]
        if reached[-1] >= size:
            moved = order[: int(np.searchsorted(reached, size)) + 1]
            options.append((len(moved), sum(len(held[job_id]) for job_id in moved), region, moved))
    return min(options)[-1] if options else []
