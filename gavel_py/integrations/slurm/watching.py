"""What becomes of managed jobs between two readings: how far they are, where they run, and whether they have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gavel_py.integrations.slurm.driver_state import DriverState
from gavel_py.integrations.slurm.measuring import learn_from
from gavel_py.integrations.slurm.progress import Progress
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.integrations.slurm.tracked import Tracked

__all__ = ["Log", "Watcher"]

Log = Callable[..., None]
"""Takes the name of an event and what is to be told of it."""


class Watcher:
    """Follows jobs from reading to reading. types: {node: accelerator}; log: is told when a job starts, stops and leaves."""

    def __init__(self, state: DriverState, progress: Progress, types: Mapping[str, str], log: Log) -> None:
        self._state, self._progress, self._types, self._log = state, progress, types, log

    def watch(self, jobs: Mapping[str, SlurmJob], now_seconds: float) -> None:
        """Take in what a reading says of the jobs that are tracked; those that have left leave the scheduler."""
        for tracked in [*self._state.tracked.values()]:
            self.watch_one(tracked, jobs.get(tracked.job_id), now_seconds)

    def watch_one(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        """The same for one job; None: Slurm does not know it any more."""
        runs = job is not None and job.phase is Phase.RUNNING and bool(job.held)
        if tracked.runs:
            began = tracked.stay_seconds
            goes_on = runs and job is not None and dict(job.held) == tracked.held and (job.start_seconds or began) <= began + 1.0
            over = job is None or job.phase.is_over
            until = min(now, job.end_seconds or now) if over and job is not None else now
            self._advance(tracked, until)
            if not goes_on:
                # One that ends by itself is seen on its way out, too, and a node may have failed.
                self._stop(tracked, until, preempted=not over and tracked.job_id in self._state.stopping)
        if runs and job is not None and not tracked.runs:
            self._start(tracked, job, now)
            self._advance(tracked, now)
        if job is None or job.phase.is_over:
            self._leave(tracked, job, now)

    def _start(self, tracked: Tracked, job: SlurmJob, now: float) -> None:
        began = min(now, job.start_seconds or now)
        tracked.held, tracked.accelerator = dict(job.held), self._types.get(next(iter(job.held)), "")
        tracked.stay_seconds = tracked.seen_seconds = began
        told = self._progress.steps(tracked.job_id)
        # A job makes its file when it starts for the first time.
        tracked.stay_steps = 0.0 if told is None and not tracked.starts else told
        tracked.starts += 1
        tracked.ran_on += [tracked.accelerator] if tracked.accelerator not in tracked.ran_on else []
        tracked.failed_starts = 0
        tracked.first_start_seconds = began if tracked.first_start_seconds is None else tracked.first_start_seconds
        self._log("started", seconds=began, job=tracked.job_id, accelerator=tracked.accelerator, nodes=tracked.held)

    def _advance(self, tracked: Tracked, until: float) -> None:
        """Count time and steps up to a moment."""
        passed = max(0.0, until - tracked.seen_seconds)
        tracked.seen_seconds = max(until, tracked.seen_seconds)
        tracked.running_seconds += passed
        told = self._progress.steps(tracked.job_id)
        if told is not None:
            tracked.steps_done = told
        else:
            speed = self._state.speeds.speed(tracked.job_type, tracked.num_gpus, tracked.accelerator)
            tracked.steps_done += passed * speed

    def _stop(self, tracked: Tracked, until: float, *, preempted: bool) -> None:
        told = self._progress.steps(tracked.job_id)
        if told is not None and tracked.stay_steps is not None and told > tracked.stay_steps:
            worked = tracked.worked.setdefault(tracked.accelerator, [0.0, 0.0])
            worked[0] += told - tracked.stay_steps
            worked[1] += until - tracked.stay_seconds
        tracked.preemptions += preempted
        self._log("stopped", seconds=until, job=tracked.job_id, steps=tracked.steps_done, preempted=preempted)
        tracked.held, tracked.stay_steps = {}, None

    def _leave(self, tracked: Tracked, job: SlurmJob | None, now: float) -> None:
        state = self._state
        outcome = "unknown" if job is None else str(job.phase)
        ended = now if job is None else min(now, job.end_seconds or now)
        told = self._progress.steps(tracked.job_id)
        state.news |= learn_from(state, tracked, outcome, tracked.total_steps if told is None else None)
        del state.tracked[tracked.job_id]
        if outcome == Phase.FINISHED:
            state.scheduler.complete(tracked.job_id)
        else:
            state.scheduler.cancel(tracked.job_id)
        state.gone.append(tracked.job_id)
        self._log("left", seconds=ended, job=tracked.job_id, outcome=outcome, **self._account(tracked, ended))

    def _account(self, tracked: Tracked, ended: float) -> dict[str, Any]:
        return {
            "arrival_seconds": tracked.arrival_seconds,
            "running_seconds": tracked.running_seconds,
            "starts": tracked.starts,
            "preemptions": tracked.preemptions,
            "jct_seconds": ended - tracked.arrival_seconds,
        }
