"""What happens over time, kept in few stretches of time however long it goes on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.runs.run import OverTime

__all__ = ["MOST_STRETCHES", "Curves"]

Floats = NDArray[np.float64]

MOST_STRETCHES = 200


class Curves:
    """Collects an `OverTime` from one span of time after the other; each stretch is a power of two of spans, the last one fewer.

    start_seconds: where the first span begins; gpus: (K,) of each type. With more than 2 · `MOST_STRETCHES` stretches, they are put
    together two by two, so that memory does not grow with time; at the end there are at most `MOST_STRETCHES`.
    """

    def __init__(self, start_seconds: float, types: Sequence[str], gpus: Floats) -> None:
        self._types, self._gpus = tuple(types), gpus
        self._limits = [start_seconds]
        self._sums: list[Floats] = []
        self._in_last = 0
        self._per_stretch = 1

    @property
    def end_seconds(self) -> float:
        """Where the last span ends."""
        return self._limits[-1]

    def add(self, end_seconds: float, used: Floats, prices: Floats, active: float, promised: float, delivered: float) -> None:
        """Add the span from the end of the last one to this time.

        used: (K,) GPU-seconds of each type in which a gang held them; prices: (K,) NaN where unknown; active: jobs in the system;
        promised, delivered: GPUs.
        """
        seconds = end_seconds - self._limits[-1]
        if seconds <= 0:
            return
        known = ~np.isnan(prices)
        of_all = [seconds, active * seconds, promised * seconds, delivered * seconds]
        sums = np.concatenate([of_all, used, np.where(known, prices, 0.0) * seconds, known * seconds])
        if self._in_last in (0, self._per_stretch):
            self._begin(end_seconds, sums)
        else:
            self._sums[-1] += sums
            self._limits[-1] = end_seconds
            self._in_last += 1

    def over_time(self) -> OverTime:
        """Return what has been added so far."""
        limits, sums = self._limits, self._sums
        while len(sums) > MOST_STRETCHES:
            limits, sums = _halved(limits, sums)
        k = len(self._types)
        table = np.array(sums).reshape(len(sums), 4 + 3 * k)
        seconds, active, promised, delivered = table[:, :4].T
        used, prices, known = (table[:, 4 + k * part : 4 + k * (part + 1)] for part in range(3))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self._gpus > 0, used / (self._gpus * seconds[:, None]), 0.0)
            means = np.where(known > 0, prices / known, np.nan)
        return OverTime(
            seconds=np.array(limits),
            used=dict(zip(self._types, np.clip(shares, 0.0, 1.0).T, strict=True)),
            prices=dict(zip(self._types, means.T, strict=True)),
            active_jobs=active / seconds,
            promised_gpu_seconds=promised,
            delivered_gpu_seconds=delivered,
        )

    def _begin(self, end_seconds: float, sums: Floats) -> None:
        """Begin a stretch."""
        if len(self._sums) == 2 * MOST_STRETCHES:
            self._limits, self._sums = _halved(self._limits, self._sums)
            self._per_stretch *= 2
        self._sums.append(sums)
        self._limits.append(end_seconds)
        self._in_last = 1


def _halved(limits: list[float], sums: list[Floats]) -> tuple[list[float], list[Floats]]:
    """Put stretches together two by two; an odd one stays alone."""
    pairs = [sum(sums[at + 1 : at + 2], sums[at].copy()) for at in range(0, len(sums), 2)]
    ends = [limits[min(at + 2, len(sums))] for at in range(0, len(sums), 2)]
    return [limits[0], *ends], pairs
