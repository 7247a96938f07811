"""Who can run where, and who is left out of an allocation and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.gpu_memory import GpuMemory

__all__ = ["screen"]

Mask = NDArray[np.bool_]


def screen(
    job_ids: Sequence[str],
    accelerator_types: Sequence[str],
    throughputs: NDArray[np.float64],
    allowed: Mask,
    num_gpus: NDArray[np.float64],
    largest_gangs: NDArray[np.float64],
    finished: Mask,
    index: NDArray[np.int64] | None = None,
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


def _too_large(needed: NDArray[np.float64], types: Sequence[str], there: NDArray[np.float64], among: Mask) -> str:
    columns = np.flatnonzero(among).tolist()
    if len(set(needed[columns].tolist())) == 1:
        sizes = ", ".join(f"{types[j]}: {there[j]:g} GB" for j in columns)
        return f"its {needed[columns[0]]:g} GB per GPU exceed the memory of every type it could run on ({sizes})"
    sizes = ", ".join(f"{types[j]}: {needed[j]:g} of {there[j]:g} GB" for j in columns)
    return f"what it takes of each GPU exceeds the memory of every type it could run on ({sizes})"


def _cannot_run(
    measured: Mask, allowed: Mask, fits: Mask, num_gpus: float, types: Sequence[str], largest_gangs: NDArray[np.float64]
) -> str:
    among = measured & allowed
    if allowed.any() and not (allowed & (num_gpus <= largest_gangs)).any():
        return _fits_nowhere(num_gpus, types, largest_gangs, among if among.any() else allowed)
    if not measured.any():
        return "its throughput is 0 on every accelerator type" + ("" if fits.all() else " with the memory that it takes")
    if not among.any():
        names = ", ".join(np.array(types)[measured])
        return f"it allows none of the accelerator types on which it could run ({names})"
    return _fits_nowhere(num_gpus, types, largest_gangs, among)


def _fits_nowhere(num_gpus: float, types: Sequence[str], largest_gangs: NDArray[np.float64], among: Mask) -> str:
    spans = np.floor(largest_gangs) if num_gpus >= 1 else largest_gangs
    holes = ", ".join(f"{types[j]}: {spans[j]:g}" for j in np.flatnonzero(among).tolist())
    asked = f"gang of {num_gpus:.0f} GPUs" if num_gpus >= 1 else f"{num_gpus:g} of a GPU"
    return f"its {asked} fits nowhere (GPUs that one gang can get together: {holes})"
