"""Who can run where, and who is left out of an allocation and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["screen"]

Mask = NDArray[np.bool_]


def screen(
    job_ids: Sequence[str],
    accelerator_types: Sequence[str],
    throughputs: NDArray[np.float64],
    allowed: Mask,
    num_gpus: NDArray[np.int64],
    largest_gangs: NDArray[np.float64],
    finished: Mask,
    index: NDArray[np.int64] | None = None,
) -> tuple[Mask, dict[str, str]]:
    """Apply the masks of a valid allocation, so that no job is promised time where its gang can never be placed.

    A job runs on a type if T_ij > 0, it allows the type, and its gang fits an empty cluster: s_i <= largest_gangs_ij, an
    (N, K) array of the GPUs of a type that one gang may span under its locality. Returns (N, K) where each job may run, and
    {job_id: reason} of the jobs that may run nowhere, those without steps left included.
    With `index`, row index[i] of the arrays tells of job i.
    """
    measured = throughputs > 0
    permitted = measured & allowed
    fitting = num_gpus[:, None] <= largest_gangs
    runnable = permitted & fitting
    runnable[finished] = False
    idle = np.flatnonzero(~runnable.any(axis=1))
    reasons: dict[int, str] = {}
    for i in idle.tolist():
        if finished[i]:
            reasons[i] = "it has finished: no steps remain"
        elif not largest_gangs[i].any() and not largest_gangs.any():
            reasons[i] = "the cluster has no GPUs"
        elif allowed[i].any() and not (allowed[i] & fitting[i]).any():
            among = permitted[i] if permitted[i].any() else allowed[i]
            reasons[i] = _fits_nowhere(num_gpus[i], accelerator_types, largest_gangs[i], among)
        elif not measured[i].any():
            reasons[i] = "its throughput is 0 on every accelerator type"
        elif not permitted[i].any():
            names = ", ".join(np.array(accelerator_types)[measured[i]])
            reasons[i] = f"it allows none of the accelerator types on which it could run ({names})"
        else:
            reasons[i] = _fits_nowhere(num_gpus[i], accelerator_types, largest_gangs[i], permitted[i])
    if index is None:
        return runnable, {job_ids[i]: reason for i, reason in reasons.items()}
    left_out = np.flatnonzero(np.isin(index, idle)).tolist() if reasons else []
    return runnable[index], {job_ids[i]: reasons[int(index[i])] for i in left_out}


def _fits_nowhere(num_gpus: int, types: Sequence[str], largest_gangs: NDArray[np.float64], among: Mask) -> str:
    holes = ", ".join(f"{types[j]}: {largest_gangs[j]:g}" for j in np.flatnonzero(among).tolist())
    return f"its gang of {num_gpus} GPUs fits nowhere (GPUs that one gang can get together: {holes})"
