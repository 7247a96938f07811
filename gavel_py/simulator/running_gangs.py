"""The gangs that hold GPUs, all at once: when each would stop, and what time does to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.simulator.job_progress import NUMBERS, Work

__all__ = ["Holds"]

Floats = NDArray[np.float64]

FIRST_PLACES = 64

PER_GANG = ("total_steps", "fails_at", "speed", "gpus", "saved_gpus", "price_per_hour", "since_seconds", "expected_steps")

ROWS = {name: row for row, name in enumerate((*NUMBERS, *PER_GANG))}


class Holds:
    """One column of numbers for each gang on its GPUs, so that an hour of a thousand gangs is a few sums of arrays.

    While a gang holds GPUs, the numbers that change with time (`NUMBERS`) are kept here; `release` and `write_back` bring them to
    its `Work`.
    """

    def __init__(self, num_types: int) -> None:
        self._table: Floats = np.zeros((len(ROWS), FIRST_PLACES))
        self._works: list[Work] = []
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._gpus: list[float] = [0] * num_types
        self._sharing = 0
        self.spread = 0

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[str]:
        """The jobs that hold GPUs."""
        return iter(self._places)

    @property
    def gpus(self) -> tuple[float, ...]:
        """(K,) the GPUs held of each type, those of several gangs once."""
        return tuple(self._gpus)

    def take(self, work: Work) -> None:
        """Let a gang hold the GPUs on which it has started."""
        place = len(self._works)
        if place == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        numbers = [getattr(work, name) for name in NUMBERS]
        gpus, saved = work.gpus_there, work.job.num_gpus - work.gpus_there
        there = [work.total_steps, work.fails_at, work.speed_there, gpus, saved, work.price_there, work.since_seconds]
        self._table[:, place] = [*numbers, *there, work.expected_steps]
        self._works.append(work)
        self._ids.append(work.job.job_id)
        self._places[work.job.job_id] = place
        self._gpus[work.column_there] += gpus
        self._sharing += bool(work.with_there)
        self.spread += work.spread_there

    @property
    def are_shared(self) -> bool:
        """Whether any job has GPUs that others have too."""
        return self._sharing > 0

    def release(self, job_id: str) -> Work:
        """Let a gang give up its GPUs; return the job, which knows all that has happened to it."""
        place, last = self._places.pop(job_id), len(self._works) - 1
        work = self._works[place]
        self._write_back(place)
        self._gpus[work.column_there] -= work.gpus_there
        self._sharing -= bool(work.with_there)
        self.spread -= work.spread_there
        if place < last:  # the last one takes its place
            self._table[:, place] = self._table[:, last]
            self._works[place], self._ids[place] = self._works[last], self._ids[last]
            self._places[self._ids[place]] = place
        self._works.pop()
        self._ids.pop()
        return work

    def write_back(self) -> None:
        """Bring all numbers to the jobs."""
        for place in range(len(self._works)):
            self._write_back(place)

    def steps_done(self) -> dict[str, float]:
        """Return the steps that each job has done."""
        return dict(zip(self._ids, self._row("steps_done").tolist(), strict=True))

    @property
    def beyond(self) -> list[str]:
        """The jobs that have done all that was expected of them."""
        at = np.flatnonzero(self._row("steps_done") >= self._row("expected_steps")).tolist()
        return [self._works[place].job.job_id for place in at]

    def expect(self, work: Work) -> None:
        """Take note that other steps are expected of a job that holds GPUs."""
        self._table[ROWS["expected_steps"], self._places[work.job.job_id]] = work.expected_steps

    def stops(self, start: float) -> Floats:
        """Return (G,) when each gang would be done or fail, if nothing else happened from `start` on; in the order of `at`."""
        target = np.minimum(self._row("total_steps"), self._row("fails_at"))
        needed: Floats = np.maximum(0.0, (target - self._row("steps_done")) / self._row("speed"))
        return np.maximum(start, self._row("since_seconds")) + self._row("starting_seconds") + needed

    def at(self, place: int) -> Work:
        """Return the job in this place."""
        return self._works[place]

    def advance(self, start: float, until: float) -> None:
        """Credit all gangs with their work from `start` to `until`; what is left of a start goes on."""
        # The rows in the order of `ROWS`; each is a view, so that what is added to it is added to the table.
        steps, running, all_lost, cost, starting, all_worked, saved, saved_lost, *per_gang = self._table[:, : len(self._works)]
        total_steps, _, speed, gpus, saved_gpus, price, since, _ = per_gang
        starts = np.maximum(start, since)
        held = until - starts
        begin = starts + starting
        worked, lost = np.maximum(0.0, until - begin), np.minimum(begin, until) - starts
        running += held
        all_lost += lost
        if self._sharing:
            saved += held * saved_gpus
            saved_lost += lost * saved_gpus
        np.minimum(total_steps, steps + worked * speed, out=steps)
        cost += held / 3600 * gpus * price
        all_worked += worked
        np.maximum(0.0, begin - until, out=starting)

    def _row(self, name: str) -> Floats:
        row: Floats = self._table[ROWS[name], : len(self._works)]
        return row

    def _write_back(self, place: int) -> None:
        work = self._works[place]
        for name, value in zip(NUMBERS, self._table[: len(NUMBERS), place].tolist(), strict=True):
            setattr(work, name, value)
