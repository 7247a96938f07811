"""Throughputs learned from running jobs: estimates that follow the observed rates, which schedulers update between rounds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri  # scipy.stats.norm.ppf, whose import takes 0.4 s

from gavel_py.errors import GavelWarning, refuse, shown
from gavel_py.estimates.estimated_profile import Estimate, EstimatedProfile, Learned
from gavel_py.estimates.estimator import LEVEL, speeds_alone
from gavel_py.estimates.gaussian_process import FittedEffects, before_measurements
from gavel_py.io.locking import Synchronized, one_blas_thread, synchronized
from gavel_py.problem.accelerators import AcceleratorTable, same_accelerator
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import Entry
from gavel_py.throughput_profiles.observations import HALF_LIFE_SECONDS, ObservedContradiction, ObservedRate, entry_of, rate_of
from gavel_py.throughput_profiles.profile import ThroughputProfile

Explore = Literal["optimistic", "median"] | float
"""The value of throughputs that were not observed, or the share of GPUs that is set aside for measuring."""

NOISE_SD = 0.05
"""Prior standard deviation of the logarithm of one observed rate."""

NOISE_COUNT = 5
"""Number of observations that `NOISE_SD` counts as."""

MIN_NOISE_SD = 0.01
"""Standard deviation that remains in the mean of any number of observations, since neighbours, inputs and nodes differ."""

MEASURED_SD = 0.05
"""Standard deviation of the logarithm of a measurement of the profile, which may come from another cluster."""

CONTRADICTION_SDS = 4.0
"""An observation with a larger deviation contradicts its entry."""

CREDIBLE_FACTOR = 10.0
"""Rates that differ from the profile by a larger factor are not counted, since jobs report their own progress."""

MOVED = 0.02
"""Relative change of a throughput that causes a new snapshot."""

SETTLED_SD = 0.15
"""A throughput with a smaller standard deviation is not worth measuring."""

Distributions = dict[Entry, tuple[float, float]]
"""{entry: mean of the log rates and its standard deviation}."""


class ThroughputLearner(Synchronized):
    """Learns throughputs from running jobs, and offers them as immutable profiles (`profile`).

    A scheduler or simulation that gets a learner instead of a profile passes it the observed rates, and updates the profile between
    rounds. Measured throughputs do not change. An observed entry has its posterior: the mean of its observations, shrunk towards
    the value that the estimator expects. Other entries are estimated by the same random effects, given all observations. An unknown
    job type is estimated from its name and from the specifications of the accelerators.

    Several threads may use one learner.

    Args:
        profile: The throughputs known at the start; None for none.
        explore: The value of entries that were neither measured nor observed. "optimistic": one standard deviation above the
            median, so that they are tried where this may be worthwhile; "median": the median. A number: medians, and the share of
            the GPUs that a scheduler sets aside to measure, once each, the entries with the largest standard deviation times the
            root of the number of jobs.
        accelerators: Specifications; the built-in table by default.
        observations: Earlier observations, such as those of `ThroughputStore.observations`.
        half_life_seconds: Time after which an observation has half of its weight.

    Raises:
        InputError: `explore` or the half-life is invalid.

    >>> learner = ThroughputLearner()
    >>> learner.observe(("llama (batch size 8)", 1, "a100"), steps=720, seconds=360)
    >>> round(learner.profile.throughput("llama (batch size 8)", 1, "a100"), 1)
    2.0
    """

    def __init__(
        self,
        profile: ThroughputProfile | None = None,
        explore: Explore = "optimistic",
        *,
        accelerators: AcceleratorTable | None = None,
        observations: Mapping[Entry, ObservedRate] | None = None,
        half_life_seconds: float = HALF_LIFE_SECONDS,
    ) -> None:
        is_share = isinstance(explore, int | float) and 0 < explore < 1
        problem = f"must be 'optimistic', 'median', or a share of the GPUs above 0 and below 1, found {shown(explore)}"
        is_time = isinstance(half_life_seconds, int | float) and half_life_seconds > 0
        refuse(
            "learner",
            (explore not in ("optimistic", "median") and not is_share, "explore", problem),
            (not is_time, "half_life_seconds", f"must be greater than 0, found {shown(half_life_seconds)}"),
        )
        given = ThroughputProfile("learned", ()) if profile is None else profile
        self.explore, self.half_life_seconds = explore, half_life_seconds
        self.measured = given.measured if isinstance(given, EstimatedProfile) else given
        self._given_table = AcceleratorTable.builtin() if accelerators is None else accelerators
        self._added: list[list[str]] = []
        self._begin(self._given_table)
        self._speeds = {each.entry: each.steps_per_second for each in self.measured.measurements}
        self._rates: dict[Entry, ObservedRate] = dict(observations or {})
        self._rivals: dict[Entry, ObservedRate] = {}
        self._contradictions: dict[Entry, ObservedContradiction] = {}
        self._now = max((each.last_seconds for each in self._rates.values()), default=0.0)
        self._used: Distributions = {}
        self._is_new, self._has_observed = True, False
        self._snapshot: EstimatedProfile | None = None
        self._basis: Distributions = {}

    def __repr__(self) -> str:
        return f"ThroughputLearner({self.measured.name!r}: {len(self._speeds)} measured, {len(self._rates)} observed)"

    @property
    def measuring_share(self) -> float:
        """The share of the GPUs that is set aside for measuring."""
        return 0.0 if isinstance(self.explore, str) else float(self.explore)

    @property
    @synchronized
    def observations(self) -> dict[Entry, ObservedRate]:
        """{entry: its observed rate}, including measured entries, in the order of their first observation."""
        return dict(self._rates)

    @property
    @synchronized
    def contradictions(self) -> tuple[ObservedContradiction, ...]:
        """The contradicted entries, the latest first. The first contradiction of each entry also causes a `GavelWarning`."""
        return tuple(sorted(self._contradictions.values(), key=lambda each: -each.at_seconds))

    @property
    @synchronized
    def profile(self) -> EstimatedProfile:
        """The profile given the observations so far: the same object until a throughput in use has changed by more than 2 %."""
        if self._is_new or self._snapshot is None:
            self._is_new = False
            with one_blas_thread():
                self._snapshot = self._updated(self._snapshot)
        return self._snapshot

    @synchronized
    def add_accelerators(self, names: Iterable[str]) -> None:
        """Learn throughputs on these accelerators, under exactly these names, if they have specifications and are not measured.

        A scheduler calls this with the types of its cluster. A measured accelerator keeps its name in the profile.
        """
        known = self._start.accelerators
        unmeasured = [name for name in names if same_accelerator(name, self.measured.accelerators) is None]
        new = [name for name in unmeasured if name not in known and self._table.find(name) is not None]
        if new:
            self._begin(self._table.with_names(new))
            self._added.append(new)
            self._snapshot, self._used, self._basis = None, {}, {}

    def _begin(self, table: AcceleratorTable) -> None:
        """Set the specifications and the estimates before any observation."""
        confidence: Literal["optimistic"] | None = "optimistic" if self.explore == "optimistic" else None
        self._table = table
        self._start = EstimatedProfile(self.measured, confidence=confidence, accelerators=table)
        vars(self).pop("_effects", None)

    @synchronized
    def observe(
        self,
        observed: Entry | Sequence[Any] | Job,
        accelerator: str | None = None,
        *,
        steps: float,
        seconds: float,
        at: float | None = None,
        trust: float | None = None,
    ) -> None:
        """Add the observed rate of a job that ran alone and consolidated. Other jobs, and 0 steps, have no effect.

        Rates must not include start-up time: leave out the first round after a start or a move. A rate that differs from the value
        of the initial profile by more than a factor of `trust` is reported (`contradictions`) and not counted. A rate that differs
        from the present value of its entry by more than 4 standard deviations is reported and counted separately. If such rates
        outnumber the others, they replace them, except for measured entries.

        Args:
            observed: (job_type, num_gpus, accelerator), or a job.
            accelerator: Where the job ran.
            steps: Number of steps done, or of the items in the unit of the job type.
            seconds: The time that this took.
            at: Time of the observation, in seconds on any one clock, for its age; by default that of the latest observation.
            trust: Largest credible factor between the rate and the initial profile, at least 1; 10 by default.

        Raises:
            InputError: A number is not finite or out of range, or the entry is incomplete.
        """
        entry, rate = self._key(entry_of(observed, accelerator)), rate_of(steps, seconds, at)
        refuse("observation", (trust is not None and not trust >= 1, "trust", f"must be at least 1, found {trust!r}"))
        if rate == 0 or entry.partner is not None or entry.placement != "consolidated":
            return
        self._has_observed = True
        now = self._now if at is None else float(at)
        self._now = max(self._now, now)
        first, factor = self._first_known(entry), CREDIBLE_FACTOR if trust is None else trust
        if first is not None and not first / factor <= rate <= first * factor:
            self._report(entry, rate, first, abs(math.log(rate / first)) / NOISE_SD if first else math.inf, now)
            return
        known, before = self._known(entry), self._rates.get(entry, ObservedRate())
        if known is not None and (off := abs(math.log(rate) - known[0]) / known[1]) > CONTRADICTION_SDS:
            self._report(entry, rate, math.exp(known[0]), off, now)
            self._count_rival(entry, rate, now)
        else:
            self._rates[entry] = before.including(rate, now, self.half_life_seconds)
        self._is_new = True

    @synchronized
    def knows(self, entry: Entry) -> bool:
        """Return whether a throughput of the job type was measured or observed, or one of its family was measured."""
        return self._first_known(entry) is not None or any(each.job_type == entry.job_type for each in self._rates)

    @synchronized
    def deviations(self, entries: Sequence[Entry]) -> list[float]:
        """Return the standard deviation of each log throughput, 0 for entries that are known well enough or cannot run."""
        found = []
        for entry, estimate in zip(entries, self.profile.estimates(entries), strict=True):
            known = estimate is None or self._key(entry) in self._rates or not estimate.low
            deviation = 0.0 if known or estimate is None else _deviation(estimate.low, estimate.high)
            found.append(deviation if deviation > SETTLED_SD else 0.0)
        return found

    def _key(self, entry: Entry) -> Entry:
        """Return the entry that gives the throughput: that of a whole GPU for an unmeasured fraction, else the entry itself."""
        return entry._replace(num_gpus=1) if entry.num_gpus < 1 and entry not in self._speeds else entry

    def _first_known(self, entry: Entry) -> float | None:
        """Return the initial throughput of an entry, measured or estimated without observations; None if there is none."""
        if entry in self._speeds:
            return self._speeds[entry]
        with one_blas_thread():
            estimate = self._start.estimate(entry)
        return None if estimate is None or not estimate.median else estimate.median

    def _known(self, entry: Entry) -> tuple[float, float] | None:
        """Return the mean and the standard deviation of the logarithm of the next rate; None if nothing is known."""
        if entry in self._speeds:
            return math.log(self._speeds[entry]), math.hypot(MEASURED_SD, NOISE_SD)
        if entry in self._rates:
            rate = self._rates[entry].aged(self._now, self.half_life_seconds)
            return rate.log_mean, math.sqrt(_variance_of_one(rate) * (1 + 1 / rate.count))
        if not self._rates and not self._speeds:
            return None
        # The latest profile suffices: a new one after each rate would make the first rates of many entries slow.
        snapshot = self._snapshot if self._basis or self._speeds else None
        with one_blas_thread():
            estimate = (self.profile if snapshot is None else snapshot).estimate(entry)
        if estimate is None or not estimate.median:
            return None
        return math.log(estimate.median), math.hypot(_deviation(estimate.low, estimate.high), NOISE_SD)

    def _count_rival(self, entry: Entry, rate: float, now: float) -> None:
        """Count a rate that contradicts the others of its entry; exchange the two groups of rates if it has more support."""
        rival, before = self._rivals.get(entry, ObservedRate()), self._rates.get(entry, ObservedRate())
        if rival.count and abs(math.log(rate) - rival.log_mean) > CONTRADICTION_SDS * math.sqrt(_variance_of_one(rival)):
            rival = ObservedRate()
        rival = rival.including(rate, now, self.half_life_seconds)
        if entry not in self._speeds and rival.count > before.aged(now, self.half_life_seconds).count:
            self._rates[entry], rival = rival, before
        self._rivals[entry] = rival

    def _report(self, entry: Entry, rate: float, expected: float, deviations: float, now: float) -> None:
        before = self._contradictions.get(entry)
        found = ObservedContradiction(entry, rate, expected, deviations, now, 1 if before is None else before.count + 1)
        self._contradictions[entry] = found
        if before is None:
            warnings.warn(
                f"{found}; it was not averaged, and further ones are counted without a message", GavelWarning, stacklevel=4
            )

    def _updated(self, before: EstimatedProfile | None) -> EstimatedProfile:
        """Return a new snapshot if observations have changed a throughput in use, otherwise the one before."""
        rates = {entry: self._rates[entry] for entry in sorted(self._rates) if entry not in self._speeds}
        aged = {entry: rate.aged(self._now, self.half_life_seconds) for entry, rate in rates.items()}
        found = {entry: (rate.log_mean, _noise_sd(rate)) for entry, rate in aged.items()}
        if before is not None and not any(_differ(each, self._used.get(entry)) for entry, each in found.items()):
            return before
        self._used, candidate = found, self._given(found)
        if before is not None and not _has_moved(before, candidate):
            return before
        self._basis = found
        return candidate

    def _given(self, found: Distributions) -> EstimatedProfile:
        """Return the profile given the mean log rates of entries."""
        entries, logs = list(found), np.array([mean for mean, _ in found.values()])
        noise = np.array([deviation**2 for _, deviation in found.values()])
        fitted = self._effects.observed(entries, logs, noise)
        means, deviations = fitted.smoothed(entries, logs, noise)
        learned = dict(zip(entries, map(Learned, means.tolist(), deviations.tolist()), strict=True))
        return self._start.observed(fitted, learned)

    # Saving

    @synchronized
    def to_dict(self) -> dict[str, Any]:
        """Return the observations and estimates as plain data, which a scheduler saves. The initial profile is not included."""
        snapshot = self._snapshot
        return {
            "start": self._start_checksum,
            "accelerators": list(self._added),
            "rates": [[entry, *astuple(rate)] for entry, rate in self._rates.items()],
            "rivals": [[entry, *astuple(rate)] for entry, rate in self._rivals.items()],
            "contradictions": [each.to_list() for each in self._contradictions.values()],
            "now": self._now,
            "used": [[entry, *found] for entry, found in self._used.items()],
            "is_new": self._is_new,
            "basis": None if snapshot is None else [[entry, *found] for entry, found in self._basis.items()],
            "looked_up": [] if snapshot is None else [list(each) for each in snapshot.found.values()],
        }

    @synchronized
    def resume(self, document: Mapping[str, Any]) -> EstimatedProfile:
        """Continue from the data of `to_dict`, and return the profile of that time.

        If the data come from a learner with another initial profile or another `explore`, only the observations are used. A learner
        that already has its own observations does not change.
        """
        if self._has_observed:
            return self.profile
        self._rates = {Entry(*entry): ObservedRate(*rate) for entry, *rate in document["rates"]}
        self._rivals = {Entry(*entry): ObservedRate(*rate) for entry, *rate in document["rivals"]}
        self._contradictions = {each.entry: each for each in map(ObservedContradiction.from_list, document["contradictions"])}
        self._now, self._is_new, self._snapshot = document["now"], True, None
        if document["start"] == self._start_checksum and document["basis"] is not None:
            also, self._added = [name for names in self._added for name in names], []
            self._begin(self._given_table)
            for names in document["accelerators"]:
                self.add_accelerators(names)
            self._used, self._basis = (_distributions(document[name]) for name in ("used", "basis"))
            self._snapshot, self._is_new = self._given(self._basis), document["is_new"]
            looked_up = (Estimate(Entry(*entry), *figures) for entry, *figures in document["looked_up"])
            self._snapshot.found.update((each.entry, each) for each in looked_up)
            self.add_accelerators(also)
        return self.profile if self._snapshot is None else self._snapshot

    @cached_property
    def _start_checksum(self) -> str:
        """A checksum of all data on which estimates depend before any observation."""
        table = [spec.model_dump() for spec in self._given_table]
        return sha256(repr((self.measured.rows, table, self.explore, self.half_life_seconds)).encode()).hexdigest()

    @cached_property
    def _effects(self) -> FittedEffects:
        """The effects given the measurements."""
        if not speeds_alone(self.measured.measurements)[0]:
            return before_measurements([spec.name for spec in self._table], self._table.find)
        fitted = self._start.fitted
        assert isinstance(fitted, FittedEffects)  # noqa: S101
        return fitted


def _distributions(rows: Iterable[Sequence[Any]]) -> Distributions:
    return {Entry(*entry): (mean, deviation) for entry, mean, deviation in rows}


def _variance_of_one(rate: ObservedRate) -> float:
    """Return the variance of one log rate, from the observed rates and `NOISE_COUNT` typical ones."""
    return (NOISE_COUNT * NOISE_SD**2 + rate.count * rate.log_variance) / (NOISE_COUNT + max(rate.count - 1, 0.0))


def _noise_sd(rate: ObservedRate) -> float:
    """Return the standard deviation of the mean of the observations."""
    return max(math.sqrt(_variance_of_one(rate) / rate.count), MIN_NOISE_SD)


def _differ(found: tuple[float, float], used: tuple[float, float] | None) -> bool:
    """Return whether a mean or its standard deviation has changed enough to move estimates by `MOVED`."""
    return used is None or abs(found[0] - used[0]) > MOVED / 2 or abs(found[1] - used[1]) > MOVED


def _has_moved(before: EstimatedProfile, after: EstimatedProfile) -> bool:
    """Return whether a throughput that was looked up differs by more than `MOVED`."""
    entries = list(before.found)
    pairs = zip(before.estimates(entries), after.estimates(entries), strict=True)
    speeds = [(a.steps_per_second, b.steps_per_second) for a, b in pairs if a is not None and b is not None]
    return not speeds or any(abs(a - b) > MOVED * min(a, b) for a, b in speeds)


def _deviation(low: float, high: float) -> float:
    """Return the standard deviation of a log throughput with this interval of `LEVEL`."""
    return math.log(high / low) / (2 * float(ndtri(0.5 + LEVEL / 2)))
