"""Eligibility: on which accelerator types each job can run, and why a job is excluded from the allocation.

`screen` applies throughputs, allowed types, gang sizes and GPU memory. `GpuMemory` determines which jobs, and which pairs of jobs,
fit the memory of GPUs. `even_parts` and `even_nodes` are for gangs that require the same number of GPUs on each of their nodes,
since some launchers start the same number of processes per node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.tolerances import INPUT_ROUNDING

ANY_SPLIT, EVEN_SPLIT = 0, -1
"""How the GPUs of a gang divide over nodes: in any way, or equally. A number above 0 is that on each of its nodes."""


def even_parts(size: int, split: int = EVEN_SPLIT) -> Iterator[tuple[int, int]]:
    """Yield the even splits of a gang as (nodes, GPUs on each), the fewest nodes first; `split` may fix the number on each.

    >>> list(even_parts(6)), list(even_parts(6, 2)), list(even_parts(6, 4))
    ([(1, 6), (2, 3), (3, 2), (6, 1)], [(3, 2)], [])
    """
    if split > 0:
        return iter([(size // split, split)] if size % split == 0 else [])
    return ((nodes, size // nodes) for nodes in range(1, size + 1) if size % nodes == 0)


def even_nodes(size: int, room: Indices, regions: Indices, split: int = EVEN_SPLIT) -> tuple[Indices, int] | None:
    """Return nodes of one region for an even split of a gang, and its GPUs on each; None if there are none.

    Chooses the fewest nodes, then the region with the least room on nodes that are large enough, then the nodes with the least
    room. room: (nodes,) GPUs available for the gang; regions: (nodes,) the number of the region of each node.
    """
    for count, part in even_parts(size, split):
        fitting = np.flatnonzero(room >= part)
        region_of = regions[fitting]
        candidates = np.flatnonzero(np.bincount(region_of) >= count)
        if len(candidates):
            region = candidates[np.bincount(region_of, weights=room[fitting])[candidates].argmin()]
            nodes = fitting[region_of == region]
            return nodes[np.argsort(room[nodes], kind="stable")][:count], part
    return None


FINISHED = "it has finished: no steps remain"
"""Why a finished job is excluded."""

NO_RACKS = "; its locality is rack, but no node names its rack (field rack), so that each node counts as one"


@dataclass(frozen=True, eq=False)
class GpuMemory:
    """GPU memory: needed (N, K) GB that each job uses on each of its GPUs; capacity: (K,) GB of one GPU of a type.

    NaN if unknown. Unknown memory limits nothing: a job with unknown use counts as 0.
    """

    needed: Floats
    capacity: Floats

    @property
    def fits(self) -> Mask:
        """(N, K) whether a job fits the GPUs of a type."""
        return np.nan_to_num(self.needed) <= self._limit

    @property
    def num_compatible(self) -> Indices:
        """(N, K) how many of the N jobs, itself included, fit a GPU together with each job.

        Jobs with equal numbers are compatible with the same jobs, since a job is compatible with all jobs up to some size.
        """
        needed = np.nan_to_num(self.needed)
        columns = [
            np.searchsorted(np.sort(used), limit - used, side="right") for used, limit in zip(needed.T, self._limit, strict=True)
        ]
        return np.array(columns, dtype=np.int64).reshape(needed.shape[::-1]).T

    def together(self, jobs: Indices) -> Mask:
        """Return (Q, Q, K) whether each two of Q jobs fit a GPU of a type together."""
        needed = np.nan_to_num(self.needed[jobs])
        return needed[:, None] + needed <= self._limit

    @property
    def _limit(self) -> Floats:
        """(K,) the capacity with its tolerance, infinite if unknown."""
        return np.where(np.isnan(self.capacity), np.inf, self.capacity * (1 + INPUT_ROUNDING))


def screen(
    accelerator_types: Sequence[str],
    throughputs: Floats,
    allowed: Mask,
    num_gpus: Floats,
    largest_gangs: Floats,
    index: Indices | None = None,
    memory: GpuMemory | None = None,
) -> tuple[Mask, dict[int, str]]:
    """Return (N, K) whether each job can run on each type, and {row: reason} of the jobs that can run nowhere.

    A job can run on a type if T_ij > 0, the job allows the type, its gang fits an empty cluster, s_i <= largest_gangs_ij (the GPUs
    that one gang may span under its locality), and it fits the GPU memory if known. With `index`, row index[i] of the arrays
    describes job i.
    """
    measured = throughputs > 0
    fitting = num_gpus[:, None] <= largest_gangs
    fits = np.broadcast_to(np.True_, fitting.shape) if memory is None else memory.fits
    runnable = measured & allowed & fitting & fits
    idle = np.flatnonzero(~runnable.any(axis=1))
    reasons: dict[int, str] = {}
    for i in idle.tolist():
        if not largest_gangs[i].any() and not largest_gangs.any():
            reasons[i] = "the cluster has no GPUs"
        elif memory is not None and (lacking := _lacks_memory(measured[i], allowed[i] & fitting[i], fits[i])).any():
            reasons[i] = _too_large(memory.needed[i], accelerator_types, memory.capacity, lacking)
        else:
            reasons[i] = _cannot_run(measured[i], allowed[i], fits[i], num_gpus[i], accelerator_types, largest_gangs[i])
    if index is None:
        return runnable, reasons
    excluded = np.flatnonzero(np.isin(index, idle)).tolist() if reasons else []
    return runnable[index], {i: reasons[int(index[i])] for i in excluded}


def _lacks_memory(measured: Mask, placed: Mask, fits: Mask) -> Mask:
    """Return (K,) the types on which only a lack of memory keeps a job from running; none if there is another reason.

    Types whose memory is too small need no measured throughput.
    """
    runs: Mask = measured & placed
    return runs if runs.any() else placed & ~(placed & fits).any()


def _too_large(needed: Floats, types: Sequence[str], capacity: Floats, among: Mask) -> str:
    columns = np.flatnonzero(among).tolist()
    if len(set(needed[columns].tolist())) == 1:
        sizes = ", ".join(f"{types[j]}: {capacity[j]:g} GB" for j in columns)
        return f"its {needed[columns[0]]:g} GB per GPU exceed the memory of every type on which it could run ({sizes})"
    sizes = ", ".join(f"{types[j]}: {needed[j]:g} of {capacity[j]:g} GB" for j in columns)
    return f"its memory per GPU exceeds that of every type on which it could run ({sizes})"


def _cannot_run(measured: Mask, allowed: Mask, fits: Mask, num_gpus: float, types: Sequence[str], largest_gangs: Floats) -> str:
    among = measured & allowed
    if not allowed.any() or (allowed & (num_gpus <= largest_gangs)).any():
        if not measured.any():
            return "its throughput is 0 on every accelerator type" + ("" if fits.all() else " with enough memory for it")
        if not among.any():
            names = ", ".join(np.array(types)[measured])
            return f"it allows none of the accelerator types on which it could run ({names})"
    spans = np.floor(largest_gangs) if num_gpus >= 1 else largest_gangs
    largest = ", ".join(f"{types[j]}: {spans[j]:g}" for j in np.flatnonzero(among if among.any() else allowed).tolist())
    gang = f"gang of {num_gpus:.0f} GPUs" if num_gpus >= 1 else f"{num_gpus:g} of a GPU"
    return f"its {gang} fits nowhere (largest gang that fits: {largest})"
