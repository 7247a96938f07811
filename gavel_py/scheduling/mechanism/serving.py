"""Seat jobs in an order, skipping gangs that do not fit: greedy, but without a step per job."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.mechanism.seats import Seats

__all__ = ["serve"]

Indices = NDArray[np.int64]


def serve(seats: Seats, eligible: NDArray[np.bool_], *keys: NDArray[Any]) -> None:
    """Seat waiting jobs on eligible pairs, smallest keys first (the first key counts most), then by row.

    eligible, keys: (N, K). The same as trying one pair after the other: what comes before the first gang that does not fit is
    seated at once, and that type is closed to gangs of this size and above, so that few rounds of the loop are enough.
    """
    fitting = seats.num_gpus[:, None] <= np.array(seats.free)
    pairs = np.flatnonzero(eligible & fitting & (seats.columns < 0)[:, None])
    order = np.lexsort([key.take(pairs) for key in reversed(keys)])
    rows, columns = np.divmod(pairs[order], eligible.shape[1])
    while rows.size:
        seated = _until_one_does_not_fit(seats, rows, columns)
        seats.seat(rows[seated], columns[seated])
        left = (seats.columns[rows] < 0) & (seats.num_gpus[rows] <= np.array(seats.free)[columns])
        rows, columns = rows[left], columns[left]


def _until_one_does_not_fit(seats: Seats, rows: Indices, columns: Indices) -> Indices:
    """The positions, in a list of pairs, of those that one would seat before the first misfit."""
    first = np.flatnonzero(_first_of_job(rows, len(seats.columns)))
    sizes, types = seats.num_gpus[rows[first]], columns[first]
    fits = np.ones(len(first), dtype=bool)
    for column, free in enumerate(seats.free):
        of_type = types == column
        fits[of_type] = np.cumsum(sizes[of_type]) <= free
    return first if fits.all() else first[: int(fits.argmin())]


def _first_of_job(rows: Indices, count: int) -> NDArray[np.bool_]:
    """Where each job stands for the first time."""
    positions = np.arange(len(rows))
    earliest = np.empty(count, dtype=np.int64)
    earliest[rows[::-1]] = positions[::-1]  # of several, the last one written stays
    result: NDArray[np.bool_] = earliest[rows] == positions
    return result
