"""Improve a choice of jobs for one round, step by step, until no step gains."""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.displacement import displace, displacements
from gavel_py.scheduling.mechanism.exchange import LEAST_GAIN, exchange
from gavel_py.scheduling.mechanism.replacement import replace_one, replacements
from gavel_py.scheduling.mechanism.seats import Seats

__all__ = ["improve"]

Floats = NDArray[np.float64]

# A place for one gang more changes little where there are many, and looking for it takes the longer: so many steps at most, and
# after the second so many jobs looked at in all of them.
MOST_STEPS = 20
MOST_LOOKED_AT = 40_000

# On so few GPUs a gang in the wrong place counts, and trying takes little.
FEW_GPUS = 128


def improve(seats: Seats, scores: Floats) -> None:
    """Let jobs change places, displace each other and replace larger ones while Σ s_i·score_i over the seated rises.

    On few GPUs, steps are tried that gain only after others have changed places too.
    """
    few = sum(seats.free) + int(seats.num_gpus[seats.columns >= 0].sum()) <= FEW_GPUS
    exchange(seats, scores)
    for _ in range(max(2, min(MOST_STEPS, MOST_LOOKED_AT // max(1, len(scores))))):
        if displace(seats, scores) or replace_one(seats, scores):
            exchange(seats, scores)
        elif not (few and _changed_and_exchanged(seats, scores)):
            return


def _changed_and_exchanged(seats: Seats, scores: Floats) -> bool:
    """Take the best displacement or replacement that gains when jobs change places afterwards; False when none does."""
    best, most = seats, _value(seats, scores) + LEAST_GAIN
    for moves in chain(displacements(seats, scores), replacements(seats, scores)):
        trial = seats.copy()
        for move in moves:
            trial.move(move.row, move.column)
        exchange(trial, scores)
        if _value(trial, scores) > most:
            best, most = trial, _value(trial, scores)
    if best is seats:
        return False
    seats.take(best)
    return True


def _value(seats: Seats, scores: Floats) -> float:
    rows = np.flatnonzero((seats.columns >= 0) & np.isfinite(scores).any(axis=1))
    return float((seats.num_gpus[rows] * scores[rows, seats.columns[rows]]).sum())
