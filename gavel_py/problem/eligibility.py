"""Eligibility: on which accelerator types each job can run, and why a job is left out of the allocation.

`screen` applies throughputs, allowed types, the sizes of gangs and GPU memory. `GpuMemory` is what jobs take of the memory of GPUs
and what GPUs have: which jobs fit where, alone and two by two. `even_parts`, `even_nodes` and `largest_even_gang` are for gangs
that must have the same number of GPUs on each of their nodes, as launchers ask that start as many processes on each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster


def even_parts(size: int) -> Iterator[tuple[int, int]]:
    """The ways to split a gang evenly, as (nodes, GPUs on each), on the fewest nodes first.

    >>> list(even_parts(6))
    [(1, 6), (2, 3), (3, 2), (6, 1)]
    """
    return ((nodes, size // nodes) for nodes in range(1, size + 1) if size % nodes == 0)


def even_nodes(size: int, room: Indices, regions: Indices) -> tuple[Indices, int] | None:
    """Return the nodes of one region on which a gang can be split evenly, and its GPUs on each; None where there are none.

    room: (nodes,) the GPUs that each has for the gang; regions: (nodes,) the number of the region of each. The fewest nodes, of
    the region with the least room on such nodes, and there the tightest.
    """
    for count, part in even_parts(size):
        holes = np.flatnonzero(room >= part)
        here = regions[holes]
        enough = np.flatnonzero(np.bincount(here) >= count)
        if len(enough):
            region = enough[np.bincount(here, weights=room[holes])[enough].argmin()]
            nodes = holes[here == region]
            return nodes[np.argsort(room[nodes], kind="stable")][:count], part
    return None


def largest_even_gang(
    cluster: Cluster, accelerator: str, size: int, locality: str, *, cpus_per_gpu: float = 0.0, memory_gb_per_gpu: float = 0.0
) -> float:
    """Return the largest gang of at most this size that an empty cluster can hold on this type, split evenly; as `largest_gang`."""
    needs = {"cpus_per_gpu": cpus_per_gpu, "memory_gb_per_gpu": memory_gb_per_gpu}
    if size <= cluster.largest_gang(accelerator, "node", **needs):
        return float(size)
    nodes = cluster.nodes_of(accelerator)
    regions: dict[str, int] = {}
    numbers = np.array([regions.setdefault(cluster.region_of(node, locality), len(regions)) for node in nodes], dtype=np.int64)
    room = np.array([cluster.usable_gpus(node, **needs) for node in nodes], dtype=np.int64)
    for smaller in range(size, 0, -1):
        if even_nodes(smaller, room, numbers) is not None:
            return float(smaller)
    return cluster.largest_gang(accelerator, locality, **needs)


ROUNDING = 1e-9
"""A part of a GPU's memory that is told from none: sums such as 5.3 + 10.7 GB are not exact."""


@dataclass(frozen=True, eq=False)
class GpuMemory:
    """needed: (N, K) GB that each job takes of each of its GPUs of a type; there: (K,) GB of one GPU; NaN where nobody knows.

    What nobody knows limits nothing: a job that does not say what it takes counts as nothing beside another one.
    """

    needed: Floats
    there: Floats

    @property
    def fits(self) -> Mask:
        """(N, K) whether a job fits the GPUs of a type."""
        fits: Mask = np.nan_to_num(self.needed) <= self._room
        return fits

    @property
    def company(self) -> Indices:
        """(N, K) beside how many of the N jobs each one fits on a type, itself counted as another one.

        Who takes less fits beside all whom one fits beside who takes more. So two jobs of equal numbers fit beside the same ones.
        """
        needed = np.nan_to_num(self.needed)
        columns = [
            np.searchsorted(np.sort(taken), room - taken, side="right") for taken, room in zip(needed.T, self._room, strict=True)
        ]
        return np.array(columns, dtype=np.int64).reshape(needed.shape[::-1]).T

    def together(self, jobs: Indices) -> Mask:
        """Return (Q, Q, K) whether each two of Q jobs fit the GPUs of a type together."""
        needed = np.nan_to_num(self.needed[jobs])
        together: Mask = needed[:, None] + needed <= self._room
        return together

    @property
    def _room(self) -> Floats:
        """(K,) what is there, infinite where nobody knows."""
        return np.where(np.isnan(self.there), np.inf, self.there * (1 + ROUNDING))


def screen(
    job_ids: Sequence[str],
    accelerator_types: Sequence[str],
    throughputs: Floats,
    allowed: Mask,
    num_gpus: Floats,
    largest_gangs: Floats,
    finished: Mask,
    index: Indices | None = None,
    memory: GpuMemory | None = None,
) -> tuple[Mask, dict[str, str]]:
    """Apply the masks of a valid allocation, so that no job is promised time where its gang can never be placed.

    A job runs on a type if T_ij > 0, it allows the type, its gang fits an empty cluster: s_i <= largest_gangs_ij, an (N, K)
    array of the GPUs of a type that one gang may span under its locality, and it fits their memory, where both are known.
    Returns (N, K) where each job may run, and {job_id: reason} of the jobs that may run nowhere, those without steps left
    included. With `index`, row index[i] of the arrays tells of job i.
    """
    measured = throughputs > 0
    fitting = num_gpus[:, None] <= largest_gangs
    fits = np.broadcast_to(np.True_, fitting.shape) if memory is None else memory.fits
    runnable = measured & allowed & fitting & fits
    runnable[finished] = False
    idle = np.flatnonzero(~runnable.any(axis=1))
    reasons: dict[int, str] = {}
    for i in idle.tolist():
        if finished[i]:
            reasons[i] = "it has finished: no steps remain"
        elif not largest_gangs[i].any() and not largest_gangs.any():
            reasons[i] = "the cluster has no GPUs"
        elif memory is not None and (lacking := _lacks_memory(measured[i], allowed[i] & fitting[i], fits[i])).any():
            reasons[i] = _too_large(memory.needed[i], accelerator_types, memory.there, lacking)
        else:
            reasons[i] = _cannot_run(measured[i], allowed[i], fits[i], num_gpus[i], accelerator_types, largest_gangs[i])
    if index is None:
        return runnable, {job_ids[i]: reason for i, reason in reasons.items()}
    left_out = np.flatnonzero(np.isin(index, idle)).tolist() if reasons else []
    return runnable[index], {job_ids[i]: reasons[int(index[i])] for i in left_out}


def _lacks_memory(measured: Mask, placed: Mask, fits: Mask) -> Mask:
    """(K,) the types that a job could run on but for their memory; none where that is not what keeps it from running.

    Where a job has no room, nobody needs to have measured it.
    """
    runs: Mask = measured & placed
    return runs if runs.any() else placed & ~(placed & fits).any()


def _too_large(needed: Floats, types: Sequence[str], there: Floats, among: Mask) -> str:
    columns = np.flatnonzero(among).tolist()
    if len(set(needed[columns].tolist())) == 1:
        sizes = ", ".join(f"{types[j]}: {there[j]:g} GB" for j in columns)
        return f"its {needed[columns[0]]:g} GB per GPU exceed the memory of every type it could run on ({sizes})"
    sizes = ", ".join(f"{types[j]}: {needed[j]:g} of {there[j]:g} GB" for j in columns)
    return f"what it takes of each GPU exceeds the memory of every type it could run on ({sizes})"


def _cannot_run(measured: Mask, allowed: Mask, fits: Mask, num_gpus: float, types: Sequence[str], largest_gangs: Floats) -> str:
    among = measured & allowed
    if allowed.any() and not (allowed & (num_gpus <= largest_gangs)).any():
        return _fits_nowhere(num_gpus, types, largest_gangs, among if among.any() else allowed)
    if not measured.any():
        return "its throughput is 0 on every accelerator type" + ("" if fits.all() else " with the memory that it takes")
    if not among.any():
        names = ", ".join(np.array(types)[measured])
        return f"it allows none of the accelerator types on which it could run ({names})"
    return _fits_nowhere(num_gpus, types, largest_gangs, among)


def _fits_nowhere(num_gpus: float, types: Sequence[str], largest_gangs: Floats, among: Mask) -> str:
    spans = np.floor(largest_gangs) if num_gpus >= 1 else largest_gangs
    holes = ", ".join(f"{types[j]}: {spans[j]:g}" for j in np.flatnonzero(among).tolist())
    asked = f"gang of {num_gpus:.0f} GPUs" if num_gpus >= 1 else f"{num_gpus:g} of a GPU"
    return f"its {asked} fits nowhere (GPUs that one gang can get together: {holes})"
