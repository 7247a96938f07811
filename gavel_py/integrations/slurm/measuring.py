"""Throughputs from jobs that have left: what the store learns from a real cluster."""

from __future__ import annotations

from collections.abc import Mapping

from gavel_py.integrations.slurm.driver_state import DriverState, Sums
from gavel_py.integrations.slurm.records import Phase
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.throughput_profiles import Measurement

__all__ = ["SHORTEST", "learn_from", "measurements_of"]

SHORTEST = 60.0
"""Seconds; of less work, what a start takes would be the most part."""


def learn_from(state: DriverState, tracked: Tracked, outcome: str, told_steps: float | None) -> set[tuple[str, int, str]]:
    """Add what a job that leaves has shown to the sums, and return what there is news of.

    Stays whose steps the job itself told count. One that told none counts if it finished, its user gave its steps, and it ran on
    one type only: then all its steps took all its time.
    """
    if not tracked.is_known:
        return set()
    worked: Mapping[str, list[float]] = tracked.worked
    if not worked and outcome == Phase.FINISHED and told_steps and len(tracked.ran_on) == 1:
        worked = {tracked.ran_on[0]: [told_steps, tracked.running_seconds]}
    news = set()
    for accelerator, (steps, seconds) in worked.items():
        if seconds > 0 and steps > 0:
            entry = (tracked.job_type, tracked.num_gpus, accelerator)
            sums = state.sums.setdefault(entry, [0.0, 0.0])
            sums[0] += steps
            sums[1] += seconds
            news.add(entry)
    return {entry for entry in news if state.sums[entry][1] >= SHORTEST}


def measurements_of(sums: Sums, entries: set[tuple[str, int, str]]) -> list[Measurement]:
    """Return the mean speeds of these entries, all that was measured so far together."""
    return [
        Measurement(
            job_type=job_type,
            num_gpus=gpus,
            accelerator=accelerator,
            steps_per_second=sums[job_type, gpus, accelerator][0] / sums[job_type, gpus, accelerator][1],
            source="slurm",
        )
        for job_type, gpus, accelerator in sorted(entries)
    ]
