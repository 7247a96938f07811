"""Why a job does not receive the time that it is owed."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["WAITS", "Wait", "waits_of"]

Mask = NDArray[np.bool_]

OWED = 1e-6
"""Rounds; less is the noise of solvers and sums."""


class Wait(StrEnum):
    """Why a job that is owed time on some type did not receive it in a round, in words that follow "because"."""

    NEW = "it had just arrived"
    TURN = "others were owed more"
    GANG = "fewer GPUs were free than its gang needs"
    PLACE = "no nodes within its locality had room, CPUs and memory"
    NODE = "nodes were down"
    OTHER_TYPE = "it ran on another of its types"


WAITS = tuple(Wait)


def waits_of(
    claims: NDArray[np.float64], ran: Mask, open_types: Mask, free: NDArray[np.float64], num_gpus: NDArray[np.float64], new: Mask
) -> NDArray[np.int64]:
    """Return (N,) why each job waited, as its place in `WAITS`; -1 for jobs that ran or are owed nothing.

    claims: (N, K) rounds owed with this one; ran: (N,); open_types: (N, K) where nodes are up that could hold the job; free: (K,)
    GPUs left over; num_gpus: (N,); new: (N,) the jobs for which it was the first round.
    """
    owed = (claims > OWED) & ~ran[:, None]
    here = owed & open_types
    enough = here & (num_gpus[:, None] <= free)
    some = here & (free > 0)
    # The first that holds; where its GPUs were free, only the place can have been wrong.
    reasons = [(new, Wait.NEW), (enough.any(axis=1), Wait.PLACE), (some.any(axis=1), Wait.GANG), (here.any(axis=1), Wait.TURN)]
    codes = np.select([holds for holds, _ in reasons], [WAITS.index(wait) for _, wait in reasons], WAITS.index(Wait.NODE))
    return np.where(owed.any(axis=1), codes, -1)
