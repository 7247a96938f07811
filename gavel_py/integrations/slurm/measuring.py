"""What the driver learns about speeds: measured over the stays of its jobs, or observed by its learner, and kept in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gavel_py.errors import InputError
from gavel_py.integrations.slurm.client.records import Phase
from gavel_py.integrations.slurm.monitoring.event_log import warn
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.integrations.slurm.speeds import Speeds, Sums, measurement
from gavel_py.integrations.slurm.state import DriverState
from gavel_py.throughput_profiles import Measurement, ThroughputStore
from gavel_py.throughput_profiles.files import Entry

if TYPE_CHECKING:
    from gavel_py import ThroughputLearner
    from gavel_py.throughput_profiles.observations import ObservedRate

MIN_MEASURED_SECONDS = 60.0
"""Shorter measurements are dominated by the start of the job."""

MIN_LEARNED_ROUNDS = 10.0
"""Rounds per start after which the mean speed of a whole run, loading included, is close enough to that of its later rounds."""


def measurements_of(sums: Sums, entries: set[tuple[str, int, str]]) -> list[Measurement]:
    """Return the mean throughputs of these entries over all measured stays."""
    return [measurement((entry, sums[entry][0] / sums[entry][1])) for entry in sorted(entries)]


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
