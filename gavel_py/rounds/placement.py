"""On which GPUs each gang runs: a pure function of the nodes, the gangs and where they ran before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import groupby, islice
from typing import NamedTuple

from gavel_py.cluster import Node
from gavel_py.jobs import Locality
from gavel_py.rounds.free_gpus import SCOPES, FreeGpus, Gpu
from gavel_py.rounds.moving import Held, fewest_to_move
from gavel_py.rounds.needs import NO_LOADS, NOTHING, Needs

__all__ = ["Gang", "largest_holes", "place"]

Places = dict[str, tuple[Gpu, ...]]


class Gang(NamedTuple):
    """GPUs of one type to be given to a job, all or none.

    locality: `node`: all on one node; `rack`: all in one rack (a node without a rack is a rack of its own); `any`: anywhere, best
    together; previous: the GPUs it ran on until now, if any; they count only if they can still hold it;
    needs: the CPUs and memory that each of its GPUs needs on its node.
    """

    job_id: str
    num_gpus: int
    accelerator: str
    locality: Locality = "any"
    previous: tuple[Gpu, ...] = ()
    needs: Needs = NOTHING


def place(
    nodes: Iterable[Node], gangs: Sequence[Gang], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Needs] = NO_LOADS
) -> Places:
    """Return {job_id: GPUs} of the gangs that can be placed; the others are left out. The gang that stands first matters most.

    taken: GPUs that others have, and loads: what these need of the CPUs and memory of each node.
    A running gang stays on its GPUs. The others get the fewest nodes and the tightest holes, gangs with a locality and large ones
    first. When a gang would be split that a node or a rack could hold, the fewest smaller running gangs move (and restart); when it
    does not fit at all, the fewest that come after it; when that does not help, the type is packed anew.
    Whatever else happens, the gang that stands first is placed if it fits what is left.
    """
    places: Places = {}
    by_type = _by_type(nodes)
    for accelerator, group in groupby(sorted(gangs, key=_accelerator), key=_accelerator):
        here = by_type.get(accelerator, [])
        places |= _place_on_type(lambda here=here: FreeGpus(here, taken, loads), list(group))  # type: ignore[misc]
    return places


def largest_holes(
    nodes: Iterable[Node], taken: Set[Gpu] = frozenset(), loads: Mapping[str, Needs] = NO_LOADS, needs: Needs = NOTHING
) -> dict[Locality, dict[str, int]]:
    """Return {locality: {accelerator: GPUs}}, the largest gang with such needs that fits what is not taken."""
    free = {accelerator: FreeGpus(group, taken, loads) for accelerator, group in _by_type(nodes).items()}
    return {scope: {name: int(gpus.room_in_regions(scope, needs).max()) for name, gpus in free.items()} for scope in SCOPES}


def _by_type(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.accelerator, []).append(node)
    return groups


def _accelerator(gang: Gang) -> str:
    return gang.accelerator


def _place_on_type(untouched: Callable[[], FreeGpus], gangs: Sequence[Gang]) -> Places:
    """The first of three ways that places all gangs, or else the one that serves those that stand first."""
    hardest_first = sorted(gangs, key=lambda gang: (gang.locality == "any", -gang.num_gpus))
    ways = ((hardest_first, True), (hardest_first, False), (gangs, True))
    best: Places = {}
    for order, staying in ways:
        places = _settle(untouched(), order, staying)
        if len(places) == len(gangs):
            return places
        best = max(best, places, key=lambda option: [gang.job_id in option for gang in gangs])
    return best


def _settle(free: FreeGpus, order: Sequence[Gang], staying: bool) -> Places:
    """Place gangs in this order; with `staying`, running gangs hold their GPUs until one that comes before needs them."""
    places: Places = {}
    for gang in order if staying else ():
        if len(gang.previous) == gang.num_gpus and free.keep(gang.previous, gang.locality, gang.needs):
            places[gang.job_id] = gang.previous
    for position, gang in enumerate(order):
        if gang.job_id not in places:
            gpus = _found(free, gang, islice(order, position + 1, None), places)
            if gpus is not None:
                free.take(gpus, gang.needs)
                places[gang.job_id] = gpus
    return places


def _found(free: FreeGpus, gang: Gang, later: Iterable[Gang], places: Places) -> tuple[Gpu, ...] | None:
    """GPUs for one gang, moving gangs that come later: smaller ones to keep it together, any at all to place it."""
    together = free.narrowest_scope(gang.num_gpus, gang.locality, gang.needs)
    gpus = free.find(gang.num_gpus, together, gang.needs)
    if gpus is None:
        held = [other for other in later if other.job_id in places]
        gpus = _cleared(free, gang, together, (other for other in held if other.num_gpus < gang.num_gpus), places)
        gpus = gpus or _cleared(free, gang, gang.locality, held, places)
    return gpus


def _cleared(free: FreeGpus, gang: Gang, scope: Locality, movable: Iterable[Gang], places: Places) -> tuple[Gpu, ...] | None:
    """Free GPUs in one region of the scope, if need be after the fewest movable gangs have given up theirs."""
    gpus = free.find(gang.num_gpus, scope, gang.needs)
    if gpus is None:
        held = {other.job_id: Held(places[other.job_id], other.needs) for other in movable if other.job_id in places}
        for job_id in fewest_to_move(free, gang.num_gpus, scope, gang.needs, held):
            free.give_back(*held[job_id])
            del places[job_id]
        gpus = free.find(gang.num_gpus, scope, gang.needs)
    return gpus
