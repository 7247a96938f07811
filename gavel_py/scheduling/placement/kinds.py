"""In which placement each gang should run: on as few nodes as can be, or on more, as its time was promised."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Kind", "kinds_of"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SWITCH_ROUNDS = 1.0
"""A gang that is promised both placements changes to the other one when it is owed so many rounds more of it, and its restart."""


class Kind(IntEnum):
    """A placement of a gang: ANY: as few nodes as can be, but it is not moved for that; TOGETHER: as few; APART: more than that."""

    ANY = 0
    TOGETHER = 1
    APART = 2


def kinds_of(
    fractions: Floats,
    apart: Floats,
    faster_apart: Mask,
    deficits: Floats,
    owed_apart: Floats,
    stands_apart: Floats,
    restart_rounds: Floats,
) -> NDArray[np.int8]:
    """Return (N, K) the `Kind` of placement that each job should have on each type this round.

    fractions: (N, K) X_ij; apart: (N, K) the part S_ij of it that is to be spread, NaN where that is no matter;
    faster_apart: (N, K) whether it is faster so, which decides where nothing is promised; deficits: (N, K) D_ij;
    owed_apart: (N, K) A_ij, what of it is owed spread; stands_apart: (N, K) 1 where it runs spread now, -1 where it runs
    consolidated, 0 where it does not run; restart_rounds: (N,).
    """
    matters, promised = ~np.isnan(apart), np.nan_to_num(apart)
    more_apart = (owed_apart + promised) - (deficits - owed_apart + fractions - promised)
    kept = stands_apart * (SWITCH_ROUNDS + restart_rounds[:, None])
    is_apart = np.select(
        [fractions <= 0, promised <= 0, promised >= fractions],
        [faster_apart, np.zeros_like(matters), np.ones_like(matters)],
        more_apart + kept > 0,
    )
    kinds: NDArray[np.int8] = np.where(matters, np.where(is_apart, Kind.APART, Kind.TOGETHER), Kind.ANY).astype(np.int8)
    return kinds
