"""Which running gangs can keep their GPUs: all of them at once, and one after the other only where they cannot all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.placement.crowd import Crowd
from gavel_py.scheduling.placement.layout import NODE, RACK, TypeLayout
from gavel_py.scheduling.placement.needs import NOTHING, room_for

__all__ = ["loads_of", "who_stays"]

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def who_stays(crowd: Crowd, layout: TypeLayout, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices) -> Mask:
    """Return (M,) bool, the gangs on one type that hold as many GPUs as they need, all there, free, and within their locality.

    free: (GPUs,); cpus, memory_gb: (nodes,) what is left; order: who comes first where two gangs hold one GPU, or a node has not
    enough CPUs or memory for all that hold GPUs there.
    """
    count = len(crowd)
    there = (crowd.held >= 0) & (crowd.held < len(free))
    there[there] = free[crowd.held[there]]
    held = np.bincount(crowd.owners[there], minlength=count)
    stays: Mask = (held == crowd.sizes) & (np.bincount(crowd.owners, minlength=count) == crowd.sizes)
    stays &= _local(crowd, layout, stays)
    gpus = crowd.held[stays[crowd.owners]]
    twice = gpus.size > 0 and int(np.bincount(gpus).max()) > 1
    if twice or (layout.limited and _overloaded(crowd, layout, stays, cpus, memory_gb)):
        return _one_by_one(crowd, layout, stays, free, cpus, memory_gb, order)
    return stays


def loads_of(crowd: Crowd, gpus: Mask, layout: TypeLayout) -> tuple[Floats, Floats]:
    """Return (nodes,) the CPUs and (nodes,) the memory that gangs need for those GPUs that they held; gpus: (H,) bool."""
    nodes, owners = layout.node_of[crowd.held[gpus]], crowd.owners[gpus]
    needs = np.array(crowd.needs, dtype=float).reshape(-1, 2)[owners]
    used = np.zeros((2, len(layout.sizes)))
    for column in range(2):
        used[column] = np.bincount(nodes, weights=needs[:, column], minlength=len(layout.sizes))
    return used[0], used[1]


def _local(crowd: Crowd, layout: TypeLayout, stays: Mask) -> Mask:
    """(M,) bool, those of the gangs that may stay so far which are in one region of their locality."""
    local = np.ones(len(crowd), dtype=bool)
    for scope in (NODE, RACK):
        bound = stays & (crowd.scopes == scope) & (crowd.sizes > 1)
        if bound.any():
            gpus = bound[crowd.owners]
            owners, regions = crowd.owners[gpus], layout.regions[scope][layout.node_of[crowd.held[gpus]]]
            # Each against the first of its gang: owners rise.
            firsts = regions[np.searchsorted(owners, owners)]
            local[owners[regions != firsts]] = False
    return local


def _overloaded(crowd: Crowd, layout: TypeLayout, stays: Mask, cpus: Floats, memory_gb: Floats) -> bool:
    """Say whether these gangs together need more CPUs or memory of any node than it has left."""
    used = loads_of(crowd, stays[crowd.owners], layout)
    return bool((used[0] > cpus).any() or (used[1] > memory_gb).any())


def _one_by_one(crowd: Crowd, layout: TypeLayout, stays: Mask, free: Mask, cpus: Floats, memory_gb: Floats, order: Indices) -> Mask:
    """The same as asking one gang after the other whether it can stay beside those that were asked before."""
    free, cpus, memory_gb, kept = free.copy(), cpus.copy(), memory_gb.copy(), np.zeros(len(crowd), dtype=bool)
    starts = np.searchsorted(crowd.owners, np.arange(len(crowd) + 1))
    for gang in order[stays[order]].tolist():
        gpus, needs = crowd.held[starts[gang] : starts[gang + 1]], crowd.needs[gang]
        nodes, counts = np.unique(layout.node_of[gpus], return_counts=True)
        if len(np.unique(gpus)) < len(gpus) or not free[gpus].all():
            continue
        if layout.limited and needs != NOTHING and (counts > room_for(needs, counts, cpus[nodes], memory_gb[nodes])).any():
            continue
        kept[gang], free[gpus] = True, False
        cpus[nodes] -= counts * needs.cpus
        memory_gb[nodes] -= counts * needs.memory_gb
    return kept
