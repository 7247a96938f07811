"""Which jobs in the system hold GPUs, when each of them stops, and its steps at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.simulator.job_progress import AT, ON_ARRAYS, WIDTH, GangStart, JobProgress, advance, start, stop_of, view_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.profile import Profile

FEW = 16
"""Up to this number, gangs are started and stopped one by one, which is faster than with arrays."""

INITIAL_CAPACITY = 64
"""Number of rows of a new table; a full one gets room for twice as many jobs as are in the system."""


class SimulatedGangs:
    """Which jobs in the system hold GPUs, with a row of numbers for each job in the system.

    As long as nothing happens to a gang, its numbers determine when it stops and its steps at any time.

    Attributes:
        gpus: (K,) the GPUs held of each type; shared GPUs count once.
        num_spread: The number of gangs on more nodes than necessary.
        stop_seconds: (rows,) when each gang finishes or fails if nothing else happens; infinite for jobs without GPUs, and never
            empty.
    """

    def __init__(self, num_types: int) -> None:
        self._table: Floats = np.zeros((0, WIDTH + num_types))  # the rows of all jobs
        self._jobs: NDArray[np.object_] = np.zeros(0, dtype=object)
        self._ids: NDArray[np.object_] = np.zeros(0, dtype=object)
        self._holds: Mask = np.zeros(0, dtype=bool)
        self.stop_seconds: Floats = np.full(1, np.inf)
        self._speeds: Floats = np.zeros((0, num_types, 2))  # steps/s in both placements, NaN until they are looked up
        self._row_of: dict[str, int] = {}
        self._next_row = 0
        self._rows: Indices | None = None  # of the gangs that hold GPUs, None if they have changed
        self.gpus = [0.0] * num_types
        self.num_spread = 0
        self._sharing: set[str] = set()  # the jobs with partners

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, job_id: str) -> bool:
        row = self._row_of.get(job_id)
        return row is not None and self._holds.item(row)

    def among(self, job_ids: Iterable[str]) -> list[str]:
        """Return those of these jobs that hold GPUs."""
        row_of, holds = self._row_of, self._holds
        return [job_id for job_id in job_ids if (row := row_of.get(job_id)) is not None and holds.item(row)]

    @property
    def rows(self) -> Indices:
        """(G,) the rows of the gangs that hold GPUs, in the order of their arrival."""
        if self._rows is None:
            self._rows = self._holds.nonzero()[0]
        return self._rows

    @property
    def ids(self) -> list[str]:
        """(G,) the jobs that hold GPUs."""
        found: list[str] = self._ids[self.rows].tolist()
        return found

    @property
    def are_shared(self) -> bool:
        """Whether any job shares its GPUs."""
        return bool(self._sharing)

    # Jobs that arrive and leave

    def enter(self, progress: JobProgress) -> None:
        """Add a job that has arrived, without GPUs."""
        if self._next_row == len(self._holds):
            self._make_room()
        row, self._next_row = self._next_row, self._next_row + 1
        self._row_of[progress.job.job_id] = row
        self._jobs[row], self._ids[row], self._speeds[row] = progress, progress.job.job_id, np.nan
        self._table[row] = progress.row
        progress.row = view_of(self._table[row])

    def leave(self, progress: JobProgress) -> None:
        """Remove a job without GPUs."""
        row = self._row_of.pop(progress.job.job_id)
        self._jobs[row] = self._ids[row] = None
        progress.row = view_of(np.array(progress.row))

    def _make_room(self) -> None:
        """Make room for more jobs: rows stay in the order of arrival, without those of jobs that have left."""
        kept = np.array([*self._row_of.values()], dtype=np.int64)
        more = max(INITIAL_CAPACITY, len(kept))
        self._table, self._jobs, self._ids, self._holds, self._speeds = (
            np.concatenate([each[kept], np.zeros((more, *each.shape[1:]), each.dtype)])
            for each in (self._table, self._jobs, self._ids, self._holds, self._speeds)
        )
        self.stop_seconds = np.append(self.stop_seconds[kept], np.full(more, np.inf))
        self._row_of = dict(zip(self._row_of, range(len(kept)), strict=True))
        self._next_row, self._rows = len(kept), None
        for row in range(len(kept)):
            self.job_at(row).row = view_of(self._table[row])

    def rows_of(self, job_ids: Sequence[str]) -> Indices:
        """Return the rows of jobs in the system."""
        return np.fromiter(map(self._row_of.__getitem__, job_ids), dtype=np.int64, count=len(job_ids))

    def job_at(self, row: int) -> JobProgress:
        """Return the job in a row."""
        progress: JobProgress = self._jobs[row]
        return progress

    # Gangs that get and lose GPUs

    def speeds_on(
        self, profile: Profile, names: Sequence[str], rows: Indices, columns: Indices, *, spread: Mask, gpus: Indices
    ) -> Floats:
        """Return (N,) the steps/s of gangs without partners on these types, as `JobProgress.speed_on`; names: of all types."""
        places = rows, columns, spread.astype(np.int64)
        found: Floats = self._speeds[places]
        for i in np.isnan(found).nonzero()[0].tolist():
            progress = self.job_at(rows.item(i))
            name, number = names[columns.item(i)], gpus.item(i)
            found[i] = progress.speed_on(profile, name, spread=spread.item(i), gpus=number)
            if not progress.job.is_elastic:
                self._speeds[places[0][i], places[1][i], places[2][i]] = found[i]
        return found

    def start(self, rows: Indices, seconds: float, restart_seconds: float, runs: GangStart) -> None:
        """Start jobs that hold no GPUs, as `JobProgress.start`; runs: (N,) arrays."""
        block = self._table[rows]
        numbers, earlier = block.T, block[:, WIDTH:]
        before, own_restart = numbers[AT.type_index].astype(np.int64), numbers[AT.restart_seconds]
        moved = ((before != runs.type_index) & (before >= 0)).nonzero()[0]
        total = numbers[AT.running_seconds] * numbers[AT.num_gpus] - numbers[AT.saved_gpu_seconds]
        earlier[moved, before[moved]] += total[moved] - earlier[moved].sum(axis=1)
        costs = np.where(np.isnan(own_restart), restart_seconds, own_restart)
        own = np.where(numbers[AT.is_elastic] > 0, runs.gpus, numbers[AT.num_gpus])
        start(numbers, seconds, costs, runs._replace(gpus=own), ON_ARRAYS)
        self._table[rows] = block
        self.stop_seconds[rows] = stop_of(numbers, ON_ARRAYS)
        self._holds[rows], self._rows = True, None
        self._count(numbers, 1)

    def add(self, progress: JobProgress) -> None:
        """Record that a job has started, or that a gang from `changing` has its new partners."""
        job_id = progress.job.job_id
        row = self._row_of[job_id]
        self.stop_seconds[row], self._holds[row], self._rows = stop_of(progress.row), True, None
        self._count_one(progress, 1)
        if progress.partners:
            self._sharing.add(job_id)

    def _count(self, numbers: Floats, sign: int) -> None:
        held = np.bincount(numbers[AT.type_index].astype(np.int64), numbers[AT.own_gpus], len(self.gpus))
        self.gpus = [before + sign * more for before, more in zip(self.gpus, held.tolist(), strict=True)]
        self.num_spread += sign * int(np.count_nonzero(numbers[AT.is_spread]))

    def _count_one(self, progress: JobProgress, sign: int) -> None:
        row = progress.row
        self.gpus[int(row[AT.type_index])] += sign * row[AT.own_gpus]
        self.num_spread += sign * int(row[AT.is_spread])

    def changing(self, job_id: str) -> JobProgress:
        """Return a gang whose partners change; the caller passes it to `add` afterwards."""
        progress = self.job_at(self._row_of[job_id])
        self._count_one(progress, -1)
        self._sharing.discard(job_id)
        return progress

    def release(self, job_ids: Sequence[str], until: float) -> None:
        """Take the GPUs from jobs that hold them, after their time until then is accounted."""
        if len(job_ids) <= FEW:
            for job_id in job_ids:
                self.release_one(job_id).advance(until)
            return
        rows = self.rows_of(job_ids)
        block = self._table[rows]
        self._count(block.T, -1)
        advance(block.T, until, ON_ARRAYS)
        self._table[rows] = block
        self.stop_seconds[rows], self._holds[rows], self._rows = np.inf, False, None
        for job_id in self._sharing.intersection(job_ids):
            self._leave_partners(job_id)

    def release_one(self, job_id: str) -> JobProgress:
        """Take the GPUs from a job, and return it; its time is not accounted."""
        row = self._row_of[job_id]
        progress = self.job_at(row)
        self._count_one(progress, -1)
        self.stop_seconds[row], self._holds[row], self._rows = np.inf, False, None
        if self._sharing:
            self._leave_partners(job_id)
        return progress

    def _leave_partners(self, job_id: str) -> None:
        self._sharing.discard(job_id)
        self.job_at(self._row_of[job_id]).partners = ()

    def count_preemptions(self, job_ids: Sequence[str]) -> None:
        """Count a preemption of each of these jobs."""
        if job_ids:
            self._table[self.rows_of(job_ids), AT.preemptions] += 1

    # When gangs stop, and what they have done

    def stop_of(self, job_id: str) -> float:
        """Return when the gang of a job finishes or fails if nothing else happens."""
        return self.stop_seconds.item(self._row_of[job_id])

    def steps_done(self, seconds: float) -> Floats:
        """Return (G,) the steps that each gang has done at this time."""
        columns = AT.accounted_seconds, AT.starting_seconds, AT.total_steps, AT.steps_done, AT.speed
        accounted, starting, total, done, speed = (self._table[self.rows, column] for column in columns)
        steps: Floats = np.minimum(total, done + np.maximum(0.0, seconds - (accounted + starting)) * speed)
        return steps

    @property
    def expected_steps(self) -> Floats:
        """(G,) the steps that policies expect of each gang."""
        found: Floats = self._table[self.rows, AT.expected_steps]
        return found
