"""The throughputs that a driver uses: measured as mean speeds of its jobs, or learned by a `ThroughputLearner`."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.client.records import Phase
from gavel_py.integrations.slurm.monitoring.event_log import warn
from gavel_py.scheduling.learning import learner_in
from gavel_py.throughput_profiles import Measurement, ThroughputProfile, ThroughputStore
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.throughput_profiles.files import Entry

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.state import DriverState, Tracked
    from gavel_py.scheduling import RoundScheduler
    from gavel_py.throughput_profiles.learning import ThroughputLearner
    from gavel_py.throughput_profiles.observations import ObservedRate

Gang = tuple[str, float, str]
"""Job type, GPUs and accelerator."""

Sums = dict[tuple[str, int, str], list[float]]
"""{gang: [steps, seconds]} summed over measured stays."""

MAX_PROGRESS_BYTES = 64

MIN_MEASURED_SECONDS = 60.0
"""Shorter measurements are dominated by the start of the job."""

MIN_LEARNED_ROUNDS = 10.0
"""Rounds per start after which the mean speed of a whole run, loading included, is close enough to that of its later rounds."""


@dataclass(frozen=True)
class Progress:
    """A directory in which jobs write their steps done to files named by job id, 37 or 37_1; None for no directory."""

    directory: Path | None = None

    def __post_init__(self) -> None:
        if self.directory is not None and not self.directory.is_dir():
            raise InputError(Fault(str(self.directory), "", "is not a directory of progress files"))

    def steps(self, job_id: str) -> float | None:
        """Return the steps that a job reports, or None without a valid file.

        Users control these files, so only the beginning of a regular file is read, and links are not followed.
        """
        if self.directory is None:
            return None
        try:
            descriptor = os.open(self.directory / job_id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            words = os.read(descriptor, MAX_PROGRESS_BYTES).split()
            steps = float(words[0]) if words else math.nan
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        return steps if math.isfinite(steps) and steps >= 0 else None


class Speeds:
    """The throughputs in use, in steps/s.

    Measurements come first, then the profile of the site, then estimates: those of the profile, or estimates for other gang sizes.
    With a learner, all throughputs come from its profile, which has estimates of all job types and gang sizes.

    base: the profile of the site; measured: {gang: steps/s}; sizes: gang sizes to estimate; learner: None without a learner.
    """

    def __init__(
        self, base: ThroughputProfile | ThroughputLearner, measured: Mapping[Gang, float] | None = None, sizes: Iterable[int] = ()
    ) -> None:
        self.learner = learner_in(base)
        profile = cast("ThroughputProfile", base) if self.learner is None else self.learner.measured
        # Slurm cannot place co-located gangs, nor spread gangs on purpose.
        usable = [row for row in profile.measurements if row.partner_job_type is None and row.placement == "consolidated"]
        self.base, self.measured, self.sizes = ThroughputProfile(profile.name, usable), dict(measured or {}), set(sizes)
        self._refitted: Callable[[ThroughputProfile], ThroughputProfile] | None = getattr(profile, "refitted", None)
        self._profile = self._combined()

    @property
    def profile(self) -> ThroughputProfile:
        """The throughputs as a profile; a new object after they have changed."""
        return self._profile if self.learner is None else self.learner.profile

    @property
    def job_types(self) -> frozenset[str]:
        """The job types with a measured or observed throughput."""
        observed = () if self.learner is None else self.learner.observations
        return frozenset(self.base.job_types).union(entry.job_type for entry in observed)

    def use_in(self, scheduler: RoundScheduler) -> None:
        """Make a scheduler use these throughputs; a scheduler with a learner replaces its profile itself."""
        if self.learner is None:
            if scheduler.profile is not self._profile:
                scheduler.profile = self._profile
        elif scheduler.learner is not self.learner:
            scheduler.profile = self.learner

    def cover(self, sizes: Iterable[int]) -> None:
        """Add estimates for further gang sizes."""
        new = set(sizes) - self.sizes
        if new:
            self.sizes |= new
            self._profile = self._combined()

    def speed(self, job_type: str, num_gpus: int, accelerator: str) -> float:
        """Return the throughput of a gang in steps/s, 0 if unknown."""
        profile = self.profile
        return profile.throughput(job_type, num_gpus, accelerator) if profile.has(job_type, num_gpus, accelerator) else 0.0

    def speed_as_held(self, job: Tracked) -> float:
        """Return the throughput of a job on the GPUs that it holds, in steps/s, 0 if unknown.

        Slurm itself may start a job with a range of nodes on any of them. A number of GPUs that the profile lacks is estimated; if
        the profile has only one number, each GPU counts as there.
        """
        self.cover([job.gpus])
        found = self.speed(job.job_type, job.gpus, job.accelerator)
        return found or self.speed(job.job_type, job.num_gpus, job.accelerator) * job.gpus / job.num_gpus

    def is_measured(self, job_type: str, num_gpus: int, accelerator: str) -> bool:
        """Return whether the throughput of a gang is measured or in the profile of the site, not an estimate for its size."""
        return (job_type, num_gpus, accelerator) in self.measured or self.base.has(job_type, num_gpus, accelerator)

    def fastest(self, job_type: str, num_gpus: int) -> float:
        """Return the largest throughput of a gang on any type, in steps/s, 0 if none is known.

        It is infinite if a learner can only estimate it from specifications, since no bound is known then.
        """
        names = self.profile.accelerators
        if self.learner is not None and not any(self.learner.knows(Entry(job_type, num_gpus, name)) for name in names):
            return float("inf")
        return max((self.speed(job_type, num_gpus, name) for name in names), default=0.0)

    def _combined(self) -> ThroughputProfile:
        if self.learner is not None:
            return self.base
        rows = [row for row in self.base.measurements if (row.job_type, row.num_gpus, row.accelerator) not in self.measured]
        known = ThroughputProfile(self.base.name, [*rows, *map(_measurement, self.measured.items())])
        return extend_profile(known, self.sizes) if self._refitted is None else self._refitted(known)


def _measurement(measured: tuple[Gang, float]) -> Measurement:
    (job_type, gpus, name), speed = measured
    return Measurement(job_type=job_type, num_gpus=gpus, accelerator=name, steps_per_second=speed, source="slurm")


def measurements_of(sums: Sums, entries: set[tuple[str, int, str]]) -> list[Measurement]:
    """Return the mean throughputs of these entries over all measured stays."""
    return [_measurement((entry, sums[entry][0] / sums[entry][1])) for entry in sorted(entries)]


def record_measurements(state: DriverState, tracked: Tracked, outcome: str, user_steps: float | None, trust: float) -> list[str]:
    """Add the measured stays of a departing job to the sums, and return descriptions of omitted ones.

    A job without a progress file counts if it finished, its user specified its steps (`user_steps`), and it always ran on the same
    type and number of GPUs. Speeds that differ from the profile by more than a factor of `trust` are omitted.
    """
    is_whole = outcome == Phase.FINISHED and user_steps and len(tracked.types_used) == 1 and len(tracked.sizes_used) < 2
    measured: Mapping[str, Mapping[int, list[float]]] = tracked.measured
    if not measured and is_whole and user_steps:
        (gpus,) = tracked.sizes_used or [tracked.num_gpus]
        measured = {tracked.types_used[0]: {gpus: [user_steps, tracked.running_seconds]}}
    outliers = list[str]()
    stays = [(name, gpus, sums) for name, by_size in measured.items() for gpus, sums in by_size.items()]
    for accelerator, gpus, (steps, seconds) in stays if tracked.is_known else ():
        if seconds > 0 and steps > 0:
            usual = state.speeds.speed(tracked.job_type, gpus, accelerator)
            if usual and not 1 / trust <= steps / seconds / usual <= trust:
                outliers.append(f"did {steps / seconds:.3g} steps/s on {accelerator}, where {usual:.3g} are usual (--trust)")
                continue
            entry = (tracked.job_type, gpus, accelerator)
            sums = state.sums.setdefault(entry, [0.0, 0.0])
            sums[0] += steps
            sums[1] += seconds
            if sums[1] >= MIN_MEASURED_SECONDS:
                state.pending.add(entry)
    return outliers


def observe_run(learner: ThroughputLearner, tracked: Tracked, steps: float, least_seconds: float, at: float, trust: float) -> None:
    """Observe the mean rate of a finished job without a progress file, from the steps that its user specified.

    A scheduler observes jobs with a progress file itself, round by round. The run time includes loading, so only runs of at least
    `least_seconds` per start count, and only if the job was always on the same type and number of GPUs, and on one node.
    """
    is_alike = tracked.is_known and len(tracked.types_used) == 1 and len(tracked.sizes_used) < 2 and not tracked.is_on_several_nodes
    if is_alike and tracked.running_seconds >= least_seconds * tracked.starts:
        (gpus,) = tracked.sizes_used or [tracked.num_gpus]
        entry = Entry(tracked.job_type, gpus, tracked.types_used[0])
        learner.observe(entry, steps=steps, seconds=tracked.running_seconds, at=at, trust=trust)


def take_in(state: DriverState, tracked: Tracked, outcome: str, user_steps: float | None, ended: float, trust: float) -> list[str]:
    """Record the speed of a job that has left, and return descriptions of omitted measurements.

    user_steps: the steps that its user specified, None if it reported its progress.
    """
    if state.speeds.learner is None:
        return record_measurements(state, tracked, outcome, user_steps, trust)
    if outcome == Phase.FINISHED and user_steps:
        observe_run(state.speeds.learner, tracked, user_steps, MIN_LEARNED_ROUNDS * state.scheduler.round_seconds, ended, trust)
    return []


class SpeedStore:
    """Adds measured or learned throughputs to a profile in a store; if the store cannot be written, it adds them later.

    store: None to store nothing; name: the name of the profile; log: writes an event.
    """

    def __init__(self, store: ThroughputStore | None, name: str, log: Callable[..., None]) -> None:
        self._store, self._name, self._log = store, name, log
        self._unstored: set[tuple[str, int, str]] = set()
        self._stored: dict[Entry, ObservedRate] = {}
        self._logged: dict[Entry, ObservedRate] = {}
        self._contradicted: set[Entry] = set()

    @contextmanager
    def latest_used(self, state: DriverState) -> Iterator[None]:
        """Use the latest measurements for the decision that the block makes, and add them to the store after it.

        New throughputs come into use only with a new allocation, since a saved state must contain the throughputs with which its
        allocation was computed. If no decision is possible, the measurements stay pending.
        """
        speeds, profile = state.speeds, state.scheduler.profile
        measured = measurements_of(state.sums, state.pending)
        if measured:
            new = {(m.job_type, m.num_gpus, m.accelerator): m.steps_per_second for m in measured}
            state.speeds = Speeds(speeds.base, speeds.measured | new, speeds.sizes)
            state.speeds.use_in(state.scheduler)
        try:
            yield
        except BaseException:
            if measured:
                state.speeds, state.scheduler.profile = speeds, profile
            raise
        if measured:
            self.add(state.sums, state.pending)
        if speeds.learner is not None:
            self.keep(speeds.learner)
        state.pending = set()

    def add(self, sums: Sums, pending: set[tuple[str, int, str]]) -> None:
        """Log and store new mean speeds."""
        self._log_speeds([(m.job_type, m.num_gpus, m.accelerator, m.steps_per_second) for m in measurements_of(sums, pending)])
        self._unstored |= pending
        store = self._store
        if store is not None and self._write(lambda: store.add(self._name, measurements_of(sums, self._unstored))):
            self._unstored = set()

    def keep(self, learner: ThroughputLearner) -> None:
        """Log and store what a learner has observed since the last call, and log its contradictions."""
        for each in learner.contradictions:
            if each.entry not in self._contradicted:
                self._contradicted.add(each.entry)
                self._log("contradiction", why=str(each))
        rates = learner.observations
        self._log_speeds([(*e[:3], rate.rate) for e, rate in rates.items() if rate != self._logged.get(e)])
        self._logged = rates
        new, store = {entry: rate for entry, rate in rates.items() if rate != self._stored.get(entry)}, self._store
        half_life = learner.half_life_seconds
        if new and store is not None and self._write(lambda: store.save_observations(self._name, new, half_life)):
            self._stored = rates

    def _log_speeds(self, speeds: list[tuple[str, float, str, float]]) -> None:
        if speeds:
            self._log("measured", speeds=[list(each) for each in speeds])

    def _write(self, write: Callable[[], None]) -> bool:
        """Write to the store; return whether that was possible."""
        try:
            write()
        except InputError as error:
            self._log("not_stored", why=str(error))
            warn(f"measured speeds were not stored: {error}")
            return False
        return True


def saved_learner(
    scheduler: Mapping[str, Any], base: ThroughputProfile, given: ThroughputLearner | None
) -> ThroughputLearner | None:
    """Return the learner for a saved scheduler, or None if it was saved without one.

    This is the given learner, or a new one if the given one lacks GPU types of the saved scheduler. base: the profile with which
    the scheduler began.
    """
    from gavel_py.throughput_profiles.learning import ThroughputLearner as Learner  # imports scipy

    if "learner" not in scheduler:
        return None
    kinds = scheduler["scheduler"]["cluster"]["accelerator_types"]
    types = [kind.get("profile_name") or kind["name"] for kind in kinds]
    if given is not None:
        given.add_accelerators(types)
        if set(types) <= set(given.profile.accelerators):
            return given
        given.resume(scheduler["learner"]["learned"])
    return Learner(base)
