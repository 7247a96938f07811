"""What happens over time, kept in few stretches of time however long it goes on.

Which gang held which GPUs, from when to when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from gavel_py.report.runs.run import OverTime, Stay

__all__ = ["MOST_STRETCHES", "Curves", "Held"]

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


class Held:
    """Collects the shares of a `Run`, and its stays where they are asked for.

    A job is told to `hold` GPUs, and to be done with them by `release`; with `leave` it is forgotten, and counts for its type.
    """

    def __init__(self, accelerators: Sequence[str], *, stays: bool) -> None:
        self._accelerators, self._with_stays = tuple(accelerators), stays
        self._now: dict[str, tuple[str, Mapping[str, int], float]] = {}
        self._past: dict[str, list[tuple[str, Mapping[str, int], float, float]]] = {}
        self._seconds: dict[str, float] = {}
        self._by_type: dict[str, dict[str, float]] = {}
        self._stays: list[Stay] = []

    @property
    def now(self) -> Set[str]:
        """The jobs that hold GPUs."""
        return self._now.keys()

    def hold(self, job_id: str, accelerator: str, gpus: Mapping[str, int], seconds: float) -> None:
        """Let a job hold GPUs of one type from this time on, instead of those that it has; gpus: {node: number of GPUs}."""
        self.release(job_id, seconds)
        self._now[job_id] = accelerator, gpus, seconds

    def release(self, job_id: str, seconds: float) -> None:
        """Let a job hold nothing from this time on."""
        if job_id in self._now:
            accelerator, gpus, start = self._now.pop(job_id)
            self._past.setdefault(job_id, []).append((accelerator, gpus, start, seconds))

    def leave(self, job_id: str, job_type: str, seconds_in_system: float, seconds: float, *, measured: bool = True) -> None:
        """Let a job leave at this time, or count as if it did; measured: whether it counts for the shares of its type."""
        self.release(job_id, seconds)
        if measured:
            sums = self._by_type.setdefault(job_type, dict.fromkeys(self._accelerators, 0.0))
            self._seconds[job_type] = self._seconds.get(job_type, 0.0) + seconds_in_system
        for accelerator, gpus, start, end in self._past.pop(job_id, ()):
            if measured:
                sums[accelerator] += end - start
            if self._with_stays and end > start:
                self._stays += [Stay(job_id, job_type, node, accelerator, count, start, end) for node, count in gpus.items()]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return {job type: {accelerator: part of the time in the system}} over the jobs that have left."""
        return {
            job_type: {name: held / self._seconds[job_type] if self._seconds[job_type] > 0 else 0.0 for name, held in sums.items()}
            for job_type, sums in sorted(self._by_type.items())
        }

    def stays(self) -> Iterable[Stay]:
        """Return the stays of the jobs that have left, by their beginning."""
        return sorted(self._stays, key=lambda stay: (stay.start_seconds, stay.node, stay.job_id))
