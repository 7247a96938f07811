"""Learning in a scheduler: reported progress becomes observations of its learner, and GPUs are set aside for measuring.

A rate is observed over the rounds of a run after the first one, which includes loading. Only whole gangs that run alone and on as
few nodes as possible are observed, since profiles measure these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from gavel_py.problem.arrays import Floats
from gavel_py.problem.job import Job
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.profile import Profile
from gavel_py.problem.tolerances import DURATION_ROUNDING
from gavel_py.scheduling.current_allocation import CurrentAllocation
from gavel_py.scheduling.mechanism.demand import SizeDemand
from gavel_py.scheduling.state import SchedulerState
from gavel_py.throughput_profiles.files import Entry

MEASURING_ROUNDS = 50.0
"""Deficit of a job on the type where it is to be measured, larger than all other deficits."""


class Learner(Protocol):
    """What a scheduler needs of the learner that it is given instead of a profile, such as a `ThroughputLearner`."""

    @property
    def profile(self) -> Profile:
        """The throughputs learned so far: the same object until one of them has changed enough for another solve."""
        ...

    @property
    def measuring_share(self) -> float:
        """The share of the GPUs that is set aside for measuring."""
        ...

    def add_accelerators(self, names: Iterable[str]) -> None:
        """Learn throughputs on these accelerators of the cluster, too."""
        ...

    def observe(self, observed: Job, accelerator: str, *, steps: float, seconds: float, at: float, trust: float | None) -> None:
        """Take in the rate of a gang that ran alone and consolidated, without its start."""
        ...

    def deviations(self, entries: Sequence[Entry]) -> list[float]:
        """Return the standard deviation of each log throughput, 0 for those that are not worth measuring."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return what has been learned as plain data, for the saved state of the scheduler."""
        ...

    def resume(self, document: Mapping[str, Any]) -> Profile:
        """Continue from the data of `to_dict`, and return the profile of that time."""
        ...


class Mark(NamedTuple):
    """The progress of a run from which the next rate is measured; since: the start of the run."""

    seconds: float
    steps: float
    since: float


class ProgressObserver:
    """Passes the progress of one scheduler's jobs to a learner."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        # {job: trust}, ordered, so that the same reports lead to the same observations
        self._reported: dict[str, float | None] = {}
        self._marks: dict[str, Mark] = {}
        self._measuring: dict[str, Entry] = {}

    def __deepcopy__(self, _: object) -> ProgressObserver:
        """Return an observer for a copied scheduler, with the same learner."""
        made = copy(self)
        made._reported, made._marks, made._measuring = dict(self._reported), dict(self._marks), dict(self._measuring)
        return made

    def note(self, job_ids: Iterable[str], trust: float | None) -> None:
        """Record that the progress of jobs was reported; trust: as in `RoundScheduler.report`."""
        for job_id in job_ids:
            if trust == 0:
                self._reported.pop(job_id, None)
            else:
                self._reported[job_id] = trust

    def to_dict(self) -> dict[str, Any]:
        """Return the learner and the pending observations and measurements as plain data."""
        return {
            "learned": self.learner.to_dict(),
            "reported": dict(self._reported),
            "marks": dict(self._marks),
            "measuring": dict(self._measuring),
        }

    def resume(self, document: Mapping[str, Any]) -> Profile:
        """Continue from the data of `to_dict`, and return the profile at that time; see `Learner.resume`."""
        self._reported = dict(document["reported"])
        self._marks = {job_id: Mark(*mark) for job_id, mark in document["marks"].items()}
        self._measuring = {job_id: Entry(*entry) for job_id, entry in document["measuring"].items()}
        return self.learner.resume(document["learned"])

    def observe(self, state: SchedulerState, now: float, least_seconds: float, restart_seconds: float) -> None:
        """Observe the rates of the jobs that reported progress since they were last observed.

        Args:
            state: The scheduler's state.
            now: When the next round starts.
            least_seconds: The length of a round, which is left out after each start.
            restart_seconds: As in `RoundScheduler`; if a restart takes longer than a round, it is left out too.
        """
        table, gangs, kept = state.table, state.gangs, dict[str, Mark]()
        names = state.nodes.cluster.profile_names
        since_seconds, steps_done = table.columns["running_since_seconds"], table.columns["steps_done"]
        for job_id, row in [(job_id, table.by_id[job_id]) for job_id in [*self._marks, *self._reported] if job_id in table.by_id]:
            if job_id in kept or gangs.types[row] < 0 or gangs.is_spread[row] or gangs.partners_of(row):
                continue
            since, mark = float(since_seconds[row]), self._marks.get(job_id)
            if mark is not None and (mark.since != since or job_id not in self._reported):
                kept |= {job_id: mark} if mark.since == since else {}
                continue
            job, steps = table.jobs[row], float(steps_done[row])
            starting = restart_seconds if job.restart_seconds is None else job.restart_seconds
            if mark is None and not now - since >= max(least_seconds, starting) * (1 - DURATION_ROUNDING):
                continue
            kept[job_id] = Mark(now, steps, since)
            if mark is not None and steps > mark.steps and now > mark.seconds and job.num_gpus >= 1:
                name, seconds = names[gangs.types[row]], now - mark.seconds
                gang = job.with_gpus(len(gangs.gpus_of(row))) if job.is_elastic else job
                self.learner.observe(gang, name, steps=steps - mark.steps, seconds=seconds, at=now, trust=self._reported[job_id])
        self._marks, self._reported = kept, {}

    def choose(self, state: SchedulerState, current: CurrentAllocation) -> bool:
        """Choose the jobs that are to be measured in the next round, and where; return whether there are any.

        The entries with the largest standard deviation times the square root of their number of jobs are measured, each by one job,
        on at most the share of the GPUs that is set aside, but on at least one GPU.
        """
        if not self.learner.measuring_share:
            return False
        problem, jobs, types = current.problem, state.table.jobs[current.rows].tolist(), state.nodes.cluster.profile_names
        can_run = problem.runnable & current.present(state.table)[:, None] & (problem.num_gpus >= 1)[:, None]
        rows: dict[Entry, list[int]] = {}
        for row, column in np.argwhere(can_run).tolist():
            for num_gpus in _sizes_on(problem, row, column, jobs[row]):
                rows.setdefault(Entry(jobs[row].job_type, num_gpus, types[column]), []).append(row)
        worth = self._worth(rows)
        ids, waits = problem.job_ids, state.continuing_types[current.rows] < 0
        chosen = {job_id: entry for job_id, entry in self._measuring.items() if entry in worth and job_id in state.table.by_id}
        left = max(1.0, self.learner.measuring_share * float(problem.capacities.sum()))
        left -= sum(entry.num_gpus for entry in chosen.values())
        free = {name: max(c for c, t in zip(problem.capacities.tolist(), types, strict=True) if t == name) for name in types}
        for entry in sorted(worth, key=lambda each: -worth[each]):
            if entry not in chosen.values() and entry.num_gpus <= min(left, free[entry.accelerator]):
                others = [row for row in rows[entry] if ids[row] not in chosen]
                if others:
                    chosen[ids[min(others, key=lambda row: not waits[row])]] = entry
                    left -= entry.num_gpus
        self._measuring = chosen
        return bool(chosen)

    def _worth(self, rows: dict[Entry, list[int]]) -> dict[Entry, float]:
        """Return {entry: value of measuring it} of the entries that are worth measuring; rows: the jobs of each entry."""
        deviations = zip(rows, self.learner.deviations(list(rows)), strict=True)
        return {entry: deviation * len(rows[entry]) ** 0.5 for entry, deviation in deviations if deviation}

    def raise_deficits(self, deficits: Floats, job_ids: Sequence[str], types: Sequence[str], sizes: SizeDemand | None) -> None:
        """Raise the (N, K) deficits of the jobs to be measured, on the types to be measured; types: names in the profile.

        On such a type, an elastic job is planned on the number of GPUs that is to be measured, and on no other.
        """
        for row, job_id in enumerate(job_ids) if self._measuring else ():
            if (entry := self._measuring.get(job_id)) is None:
                continue
            there = np.array([name == entry.accelerator for name in types])
            deficits[row, there] = MEASURING_ROUNDS
            if sizes is not None and sizes.is_elastic[row]:
                deficits[row, there] *= entry.num_gpus
                options = there[sizes.speeds.types]
                sizes.promised[row, options] = (sizes.speeds.gpus == entry.num_gpus)[options]


def _sizes_on(problem: AllocationProblem, row: int, column: int, job: Job) -> Sequence[float]:
    """Return the numbers of GPUs on which a job can run on a type."""
    counts = problem.counts
    if counts is None or not counts.is_elastic[row]:
        return (job.num_gpus,)
    found: list[int] = counts.counts[counts.able[counts.kinds[row], column]].tolist()
    return found


def observed(profile: Profile | Learner, accelerators: Iterable[str]) -> tuple[Profile, ProgressObserver | None]:
    """Return (profile, None), or for a learner its present profile and its observer; accelerators: those of the cluster."""
    if not hasattr(profile, "observe"):
        return profile, None
    learner = cast("Learner", profile)
    learner.add_accelerators(accelerators)
    return learner.profile, ProgressObserver(learner)
