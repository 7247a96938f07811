"""Which gang held which GPUs, from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from gavel_py.report.runs.run import Stay

__all__ = ["Held"]


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
