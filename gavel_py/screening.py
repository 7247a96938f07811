"""Who can run where, and who is left out of an allocation and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Screening", "screen"]


@dataclass(frozen=True)
class Screening:
    """runnable: (N, K) bool, may job i be given time on type j; excluded: {job_id: reason} of jobs that get none."""

    runnable: NDArray[np.bool_]
    excluded: dict[str, str]


def screen(
    job_ids: Sequence[str],
    accelerator_types: Sequence[str],
    throughputs: NDArray[np.float64],
    allowed: NDArray[np.bool_],
    num_gpus: NDArray[np.int64],
    largest_gangs: NDArray[np.float64],
    steps_remaining: NDArray[np.float64],
) -> Screening:
    """Apply the masks of a valid allocation, so that no job is promised time where its gang can never be placed.

    A job runs on a type if T_ij > 0, it allows the type, and its gang fits an empty cluster: s_i <= largest_gangs_ij, an
    (N, K) array of the GPUs of a type that one gang may span under its locality. A job without steps left, or without any
    type, is excluded with the reason.
    """
    measured = throughputs > 0
    permitted = measured & allowed
    fitting = num_gpus[:, None] <= largest_gangs
    runnable = permitted & fitting
    finished = steps_remaining == 0
    runnable[finished] = False
    excluded: dict[str, str] = {}
    for i in np.flatnonzero(~runnable.any(axis=1)).tolist():
        if finished[i]:
            reason = "it has finished: no steps remain"
        elif not largest_gangs.any():
            reason = "the cluster has no GPUs"
        elif allowed[i].any() and not (allowed & fitting)[i].any():
            among = permitted[i] if permitted[i].any() else allowed[i]
            reason = _fits_nowhere(num_gpus[i], accelerator_types, largest_gangs[i], among)
        elif not measured[i].any():
            reason = "its throughput is 0 on every accelerator type"
        elif not permitted[i].any():
            names = ", ".join(np.array(accelerator_types)[measured[i]])
            reason = f"it allows none of the accelerator types on which it could run ({names})"
        else:
            reason = _fits_nowhere(num_gpus[i], accelerator_types, largest_gangs[i], permitted[i])
        excluded[job_ids[i]] = reason
    return Screening(runnable, excluded)


def _fits_nowhere(num_gpus: int, types: Sequence[str], largest_gangs: NDArray[np.float64], among: NDArray[np.bool_]) -> str:
    holes = ", ".join(f"{types[j]}: {largest_gangs[j]:g}" for j in np.flatnonzero(among).tolist())
    return f"its gang of {num_gpus} GPUs fits nowhere (GPUs that one gang can get together: {holes})"
