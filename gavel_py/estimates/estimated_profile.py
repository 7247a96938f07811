"""A profile that has measured throughputs where available, and estimates elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri  # scipy.stats.norm.ppf, whose import takes 0.4 s

from gavel_py.errors import Fault, InputError, check_known, refuse, shown
from gavel_py.estimates.estimator import (
    LEVEL,
    Estimates,
    FittedEstimator,
    ThroughputEstimator,
    speeds_alone,
)
from gavel_py.estimates.features import FamilyUnits, Structure, Vocabulary, given_structures, structure_of
from gavel_py.estimates.gaussian_process import GaussianProcess
from gavel_py.estimates.pairs import FittedPairs
from gavel_py.estimates.simple import Additive, Specifications
from gavel_py.problem.accelerators import AcceleratorTable
from gavel_py.problem.arrays import Floats
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import Entry
from gavel_py.throughput_profiles.profile import Confidence, Lookup, ThroughputProfile, Unknown
from gavel_py.throughput_profiles.units import UnitOf

ESTIMATORS: dict[str, ThroughputEstimator] = {
    "gaussian_process": GaussianProcess(),
    "additive": Additive(),
    "specs": Specifications(),
}
"""The built-in estimators by name."""

DRAWS = 400
"""Number of draws from which standard deviations are computed."""


def estimator_named(method: str | ThroughputEstimator) -> ThroughputEstimator:
    """Return the estimator of this name, or the estimator itself.

    Raises:
        UnknownNameError: There is no estimator of this name.
        InputError: The argument is neither a name nor an estimator.
    """
    if not isinstance(method, str):
        if isinstance(method, type) or not callable(getattr(method, "fit", None)):
            problem = f"must be {', '.join(map(repr, ESTIMATORS))} or an object with a method fit, found {method!r}"
            raise InputError(Fault("", "method", problem))
        return method
    check_known("", "method", [method], ESTIMATORS, "is not an estimator")
    return ESTIMATORS[method]


class Estimate(NamedTuple):
    """A throughput that was not measured.

    Attributes:
        entry: Job type, gang, accelerator and partner.
        steps_per_second: The value in use, by default the median; see `ThroughputProfile.with_estimates`.
        median: Median.
        low: Lower end of the 80 % interval.
        high: Upper end of the 80 % interval.
        source: The origin of the estimate, in a few words.
        unit: Unit of the figures.
    """

    entry: Entry
    steps_per_second: float
    median: float
    low: float
    high: float
    source: str
    unit: str = "steps/s"


class Learned(NamedTuple):
    """The distribution of a log throughput that was observed on running jobs."""

    log_mean: float
    log_sd: float


@dataclass(eq=False)
class _Model:
    """What measurements say about gangs that were not measured.

    Fitted on first use, and shared by all profiles that are derived from one another.

    Attributes:
        measured: The profile without estimates.
        speeds: {entry: steps/s} of its measurements, with both sides of pairs.
        name: The name of the estimator.
        table: The specifications of accelerators.
        learned: The throughputs observed on running jobs.
        base: The model before any observation. With a base, unknown job types are estimated too.
        deviations: The rows of `uncertainty_matrix` computed so far.
    """

    measured: ThroughputProfile
    speeds: Mapping[Entry, float]
    estimator: ThroughputEstimator
    name: str
    table: AcceleratorTable
    learned: Mapping[Entry, Learned] = field(default_factory=dict)
    base: _Model | None = None
    deviations: dict[object, Floats] = field(default_factory=dict)

    @cached_property
    def structures(self) -> dict[str, Structure]:
        """{job type: its family, tags and numbers}."""
        return given_structures(self.measured.measurements) if self.base is None else self.base.structures

    @cached_property
    def types(self) -> frozenset[str]:
        """Job types with a known throughput."""
        return frozenset(entry.job_type for entry in speeds_alone(self.measured.measurements)[0])

    @cached_property
    def family_units(self) -> FamilyUnits:
        """The units of unmeasured job types."""
        if self.base is not None:
            return self.base.family_units
        alone = (each for each in self.measured.measurements if each.job_type in self.types)
        return FamilyUnits((self.structures[each.job_type], UnitOf(each.unit, each.condition)) for each in alone)

    @cached_property
    def fitted(self) -> FittedEstimator:
        """The estimator, fitted to the measurements."""
        return self.estimator.fit(self.measured.measurements, self.table.find)

    @cached_property
    def pairs(self) -> FittedPairs:
        """The effects of sharing, fitted to the measured pairs that run."""
        if self.base is not None:
            return self.base.pairs
        shares = {}
        for entry, speed in self.speeds.items():
            own = self.speeds.get(entry._replace(partner=None))
            if entry.partner is not None and entry.placement == "consolidated" and own and speed:
                shares[entry] = speed / own
        return FittedPairs(Vocabulary(sorted(shares, key=str), self.structures, self.table.find, {}), shares)

    def observed(self, fitted: FittedEstimator, learned: Mapping[Entry, Learned]) -> _Model:
        """Return the model after observations."""
        base = self if self.base is None else self.base
        made = replace(base, learned=learned, base=base, deviations={})
        made.__dict__["fitted"] = fitted
        return made

    def knows(self, job_type: str) -> bool:
        """Return whether enough is known about a job type to estimate it."""
        same_family = self.uses_families and len(self.family_units.candidates(self.structure(job_type))) == 1
        return job_type in self.types or same_family or self.base is not None

    def can_estimate(self, entry: Entry) -> bool:
        """Return whether enough is known about the job type and the accelerator of an entry."""
        has_spec = self.uses_specifications and self.table.find(entry.accelerator) is not None
        return self.knows(entry.job_type) and (entry.accelerator in self.measured.accelerators or has_spec)

    @property
    def uses_families(self) -> bool:
        """Whether the estimator estimates job types of which only their family was measured."""
        return bool(getattr(self.estimator, "uses_families", False))

    @property
    def uses_specifications(self) -> bool:
        """Whether the estimator estimates accelerators of which only the specifications are known."""
        return bool(getattr(self.estimator, "uses_specifications", False))

    def structure(self, job_type: str) -> Structure:
        """Return the family, tags and numbers of a job type, measured or not."""
        return self.structures.get(job_type) or structure_of(job_type)

    def family_of(self, job_type: str) -> str:
        """Return the family of a job type, measured or not."""
        return self.structure(job_type).family

    def gangs(self, entries: Sequence[Entry], confidence: Confidence) -> Iterator[tuple[Entry, Estimate]]:
        """Yield the estimates of gangs alone."""
        learned = {entry: self.learned[entry] for entry in entries if entry in self.learned}
        yield from ((entry, _learned(entry, known)) for entry, known in learned.items())
        zeros = {entry: reason for entry in entries if entry not in learned and (reason := self.cannot_run(entry))}
        yield from ((entry, Estimate(entry, 0.0, 0.0, 0.0, 0.0, reason)) for entry, reason in zeros.items())
        others = [entry for entry in entries if entry not in zeros and entry not in learned]
        if others:
            yield from self.estimates(others, self.fitted.predict(others), confidence)

    def estimates(self, entries: Sequence[Entry], found: Estimates, confidence: Confidence) -> Iterator[tuple[Entry, Estimate]]:
        """Yield the distributions with the value that the confidence selects."""
        match confidence:
            case None:
                values = found.median
            case "optimistic":
                values = np.exp(found.log_mean + found.log_sd)
            case probability:
                values = found.quantile(1 - float(probability))
        lows, highs = found.interval(LEVEL)
        columns = (each.tolist() for each in (values, found.median, lows, highs))
        for entry, value, median, low, high in zip(entries, *columns, strict=True):
            yield entry, Estimate(entry, value, median, low, high, _source(self.name, low, high))

    def cannot_run(self, entry: Entry) -> str:
        """Return why an entry cannot run for lack of memory, "" if it can: it needs too much, or failed with the same memory."""
        memory = self.memory_of(entry.accelerator)
        needed = self.measured.gpu_memory_gb(entry.job_type, entry.num_gpus, entry.accelerator)
        if memory is None:
            return ""
        if needed is not None and needed > memory:
            return f"cannot run: needs {needed:g} GB on each GPU, {entry.accelerator} has {memory:g}"
        for other in self.measured.accelerators:
            seen = self.speeds.get(entry._replace(accelerator=other))
            if seen == 0 and memory <= (self.memory_of(other) or 0.0):
                return f"cannot run: {other} has as much memory, and it does not run there"
        return ""

    def too_large(self, entry: Entry) -> bool:
        """Return whether the memory of a pair is known to exceed that of the accelerator."""
        memory = self.memory_of(entry.accelerator)
        both = (entry.job_type, str(entry.partner))
        needed = [self.measured.gpu_memory_gb(each, entry.num_gpus, entry.accelerator) for each in both]
        return memory is not None and None not in needed and sum(each or 0.0 for each in needed) > memory

    def memory_of(self, accelerator: str) -> float | None:
        """Return the GB of one GPU by the specifications, None if unknown."""
        spec = self.table.find(accelerator)
        return None if spec is None else spec.memory_gb

    def needed(self, unknown: Unknown) -> str:
        """Return what an estimate of an unknown needs, empty for an unknown placement."""
        match unknown:
            case ("placement", _):
                return ""
            case ("accelerator", _):
                specifications = "its specifications or " if self.uses_specifications else ""
                return f"an estimate needs {specifications}a measurement on it"
            case (_, Entry(placement="spread")):
                return "spread placements are not estimated"
            case (_, Entry(partner=None) as entry) if self.knows(entry.job_type):
                return f"the method {self.name!r} needs a measurement on {entry.accelerator!r}"
            case (_, Entry() as entry):
                return self.needed_of_type(entry.job_type)
            case (_, name):
                return self.needed_of_type(str(name))

    def needed_of_type(self, job_type: str) -> str:
        """Return what an estimate of an unknown job type needs."""
        units = sorted(map(str, self.family_units.candidates(self.structure(job_type))))
        if units and not self.uses_families:
            return f"the method {self.name!r} needs a measurement of the job type itself"
        if len(units) > 1:
            return f"its unit may be {' or '.join(units)}, so an estimate needs a measurement of the job type itself"
        if any(each.job_type == job_type for each in self.measured.measurements):
            return "an estimate needs a throughput above 0 of the job type alone, consolidated"
        return "an estimate needs a measurement of the job type" + (", or of its family" if self.uses_families else "")


@dataclass(frozen=True, init=False, repr=False)
class EstimatedProfile(ThroughputProfile, by_type=True):
    """A throughput profile with estimates for unmeasured throughputs, from `ThroughputProfile.with_estimates`; immutable.

    Measured entries do not change. A gang alone is estimated if its job type, or another one of its family, was measured at all,
    and its accelerator was measured or has specifications. The estimate is 0 if the gang needs more memory than the accelerator
    has, or could not run on an accelerator with the same memory. Pairs are estimated if the profile has pairs; spread placements
    are not.

    Attributes:
        measured: The profile without estimates.
        method: The estimator, or the name of a built-in one.
        confidence: The value of an estimate in use, see `ThroughputProfile.with_estimates`.
        values: Entries with values that were set by `with_values`.
        found: The estimates made so far. A loaded learner puts back those it had: made again in another order, they could differ.
    """

    measured: ThroughputProfile
    method: str | ThroughputEstimator
    confidence: Confidence
    values: Mapping[Entry, float]
    found: dict[Entry, Estimate] = field(compare=False)
    _model: _Model = field(compare=False)

    def __init__(
        self,
        measured: ThroughputProfile,
        method: str | ThroughputEstimator = "gaussian_process",
        *,
        confidence: Confidence = None,
        accelerators: AcceleratorTable | None = None,
    ) -> None:
        _check_confidence(confidence)
        table = AcceleratorTable.builtin() if accelerators is None else accelerators
        estimator = estimator_named(method)
        about = {name: getattr(measured, name) for name in ("name", "rows", "description", "licence", "notice", "url")}
        # The class is frozen.
        self.__dict__.update(about, measured=measured, method=method, confidence=confidence, values={}, found={})
        self.__dict__["_model"] = _Model(
            measured, self._speeds, estimator, method if isinstance(method, str) else type(method).__name__, table
        )

    def __repr__(self) -> str:
        return f"EstimatedProfile({self.name!r}: {len(self)} measurements, others by {self._model.name})"

    @property
    def fitted(self) -> FittedEstimator:
        """The estimator, fitted to the measurements on first use."""
        return self._model.fitted

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """The measured accelerators, then those with known specifications."""
        table, measured = self._model.table, self.measured.accelerators
        specified = {spec.name for spec in map(table.find, measured) if spec is not None}
        return tuple(dict.fromkeys([*measured, *(spec.name for spec in table if spec.name not in specified)]))

    def unit_of(self, job_type: str) -> UnitOf:
        """Return the (unit, condition) of a job type; that of its family if it was not measured, steps/s if that is unclear."""
        return self._units.get(job_type) or self._model.family_units.unit_of(self._model.structure(job_type))

    def with_values(self, values: Mapping[Entry, float]) -> EstimatedProfile:
        """Return the profile with some estimates replaced by given steps/s; measured entries cannot be replaced."""
        where, measured = f"throughput profile {self.name!r}", [entry for entry in values if entry in self._speeds]
        InputError.raise_any([Fault(where, "", f"{entry} is measured, not estimated") for entry in measured])
        return self._derived(values={**self.values, **values})

    def with_confidence(self, confidence: Confidence) -> EstimatedProfile:
        """Return the profile with other values of the same estimates; raises `InputError` as `with_estimates`."""
        _check_confidence(confidence)
        return self._derived(confidence=confidence)

    def observed(self, fitted: FittedEstimator, learned: Mapping[Entry, Learned]) -> EstimatedProfile:
        """Return the profile with the estimates of another fit and with learned entries; for `ThroughputLearner`.

        Learned entries have their median, independent of the confidence. Every job type is estimated.
        """
        return self._derived(_model=self._model.observed(fitted, learned))

    def estimates(self, entries: Sequence[Entry]) -> list[Estimate | None]:
        """Return what `estimate` returns for each of these entries, much faster than separate calls."""
        self._find(entries)
        return [self.estimate(entry) for entry in entries]

    def refitted(self, measured: ThroughputProfile) -> EstimatedProfile:
        """Return estimates by the same method from other measurements."""
        return EstimatedProfile(measured, self.method, confidence=self.confidence, accelerators=self._model.table)

    def _derived(self, **changes: object) -> EstimatedProfile:
        """Return the profile with other fields and without the estimates made so far."""
        made = copy(self)
        made.__dict__.update(changes, found={})
        return made

    def estimate(self, entry: Entry) -> Estimate | None:
        """Return the estimate of an entry, or None if it is measured or cannot be estimated."""
        self._find([entry])
        return self.found.get(_whole(entry)) if super()._speed(entry) is None else None

    def estimates_of(self, jobs: Iterable[Job], accelerators: Sequence[str]) -> list[Estimate]:
        """Return the estimates that jobs look up on the accelerators that they may use, each once, at all sizes of elastic jobs."""
        entries = self._entries(jobs, accelerators)
        self._find(entries)
        found = dict.fromkeys(self.estimate(entry) for entry in entries)
        return [each for each in found if each is not None]

    def pair_estimates_of(self, pairs: Iterable[tuple[Job, Job, str]]) -> list[Estimate]:
        """Return the estimates of both sides of pairs that share GPUs of an accelerator (job, job, accelerator), each once."""
        sides = ((first, second, name) for a, b, name in pairs for first, second in ((a, b), (b, a)))
        entries = list(dict.fromkeys(Entry(a.job_type, a.num_gpus, name, partner=b.job_type) for a, b, name in sides))
        return [each for each in self.estimates(entries) if each is not None]

    def larger_memory_measured(self, entry: Entry, memory_gb: float | None = None) -> tuple[float, float] | None:
        """Return the GB of a GPU that may be too small for an entry, and of the largest GPU on which its job type was measured.

        Returns None if the job type's GPU memory is known, if no larger GPU was measured, or if the job type was measured with at
        most as many GPUs, none of them larger.

        Args:
            entry: What would run; its accelerator is the GPU in question.
            memory_gb: Memory of this GPU, by default from the specifications.
        """
        memory = self._model.memory_of(entry.accelerator) if memory_gb is None else memory_gb
        if memory is None or self.measured.gpu_memory_gb(entry.job_type, entry.num_gpus, entry.accelerator) is not None:
            return None
        ran = [row for row in self.measured.rows if row.job_type == entry.job_type and row.steps_per_second > 0]
        sizes = [(row.num_gpus, there) for row in ran if (there := self._model.memory_of(row.accelerator)) is not None]
        largest = max((there for _, there in sizes), default=0.0)
        fits = any(gpus <= entry.num_gpus and there <= memory for gpus, there in sizes)
        return (memory, largest) if largest > memory and not fits else None

    def sample(self, entries: Sequence[Entry], count: int, seed: int = 0) -> Floats:
        """Return (count, n) joint draws of the throughputs of n gangs; measured and given values are the same in each draw."""
        self._find(entries)
        values = np.array([self._speed(entry) or 0.0 for entry in entries], dtype=float)
        drawn = np.tile(values, (count, 1))
        uncertain = [n for n, entry in enumerate(entries) if values[n] > 0 and self.estimate(entry) is not None]
        uncertain = [n for n in uncertain if _whole(entries[n]) not in self.values]
        known = [n for n in uncertain if _whole(entries[n]) in self._model.learned]
        uncertain = [n for n in uncertain if n not in known]
        if known:
            sds = np.array([self._model.learned[_whole(entries[n])].log_sd for n in known])
            drawn[:, known] *= np.exp(sds * np.random.default_rng([seed, 1]).standard_normal((count, len(known))))
        if uncertain:
            drawn[:, uncertain] = self._model.fitted.sample([_whole(entries[n]) for n in uncertain], count, seed)
        return drawn

    def uncertainty_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str], shares: Floats) -> Floats | None:
        """Return (N, K) standard deviations of log(T_ij / Σ_k T_ik share_k) under joint draws, None if nothing is estimated.

        They follow from the model, independent of `confidence`. A measured throughput has one as well if others of its job are
        estimated.

        Args:
            jobs: N jobs.
            accelerators: Names of K types.
            shares: (K,) parts of the cluster.
        """
        keys = list(map(Lookup.of, jobs))
        # In the order of families, so that a large model computes each of its parts only once.
        gangs = sorted(dict.fromkeys(keys), key=lambda gang: self._model.family_of(gang.job_type))
        rows = {gang: self._deviations(gang, tuple(accelerators), shares) for gang in gangs}
        if not any(row.any() for row in rows.values()):
            return None
        return np.array([rows[key] for key in keys])

    def _deviations(self, gang: Lookup, accelerators: tuple[str, ...], shares: Floats) -> Floats:
        """Return (K,) a row of `uncertainty_matrix`, computed once for all profiles with the same values of its entries."""
        entries = list(gang.entries(accelerators))
        columns = [accelerators.index(entry.accelerator) for entry in entries]
        given = tuple(self.values.get(_whole(entry)) for entry in entries)
        key = gang, accelerators, shares.tobytes(), given
        if key not in self._model.deviations:
            drawn, row = self.sample(entries, DRAWS), np.zeros(len(accelerators))
            mixed = drawn @ shares[columns]
            if (drawn != drawn[0]).any():
                runs = (drawn > 0).all(axis=0) & bool((mixed > 0).all())
                row[np.array(columns)[runs]] = np.log(drawn[:, runs] / mixed[:, None]).std(axis=0)
            self._model.deviations[key] = row
        return self._model.deviations[key]

    def pair_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> Floats | None:
        """Return (Q, Q, K) steps/s as `ThroughputProfile.pair_matrix`, with estimates for unmeasured throughputs."""
        measured = super().pair_matrix(jobs, accelerators)
        if measured is None:
            return None
        missing = {}
        for first, second, column in np.argwhere(np.isnan(measured)).tolist():
            job, partner = jobs[first], jobs[second]
            if job.num_gpus == partner.num_gpus and job.num_gpus >= 1:
                entry = Entry(job.job_type, job.num_gpus, accelerators[column], partner=partner.job_type)
                missing[first, second, column] = entry
        self._find(list(missing.values()))
        for place, entry in missing.items():
            measured[place] = self._speed(entry) or (np.nan if entry not in self.found else 0.0)
        return measured

    def _prepare(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> None:
        self._find(self._entries(jobs, accelerators))

    def _speed(self, entry: Entry) -> float | None:
        known = super()._speed(entry)
        if known is not None:
            return known
        whole = _whole(entry)
        if whole in self.values:
            return self.values[whole]
        self._find([entry])
        found = self.found.get(whole)
        return None if found is None else found.steps_per_second

    def _entries(self, jobs: Iterable[Job], accelerators: Sequence[str]) -> list[Entry]:
        """Return the entries that jobs look up, each once."""
        gangs = dict.fromkeys(Lookup.of(job, size) for job in jobs for size in self.sizes_of(job))
        return list(dict.fromkeys(entry for gang in gangs for entry in gang.entries(accelerators)))

    def _find(self, entries: Iterable[Entry]) -> None:
        """Estimate those of these entries that are not measured and can be estimated."""
        new = dict.fromkeys(_whole(entry) for entry in entries if super(EstimatedProfile, self)._speed(entry) is None)
        wanted = [entry for entry in new if entry not in self.found and entry.placement == "consolidated"]
        gangs = [entry for entry in wanted if entry.partner is None and self._model.can_estimate(entry)]
        for found in (
            self._model.gangs(gangs, self.confidence),
            self._pairs([entry for entry in wanted if entry.partner is not None]),
        ):
            self.found.update((entry, each._replace(unit=self.unit_of(entry.job_type).unit)) for entry, each in found)

    def _pairs(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Estimate]]:
        """Yield the estimates of gangs next to a partner: their throughput alone times the part that remains when sharing."""
        alone = {entry: self._speed(entry._replace(partner=None)) for entry in entries} if self._knows_pairs else {}
        known = [
            entry
            for entry in entries
            if alone.get(entry) and self._speed(entry._replace(job_type=str(entry.partner), partner=None))
        ]
        fits = [entry for entry in known if not self._model.too_large(entry)]
        yield from ((e, Estimate(e, 0.0, 0.0, 0.0, 0.0, "estimated from GPU memory")) for e in known if self._model.too_large(e))
        if not fits:
            return
        for entry, share in self._model.estimates(fits, self._model.pairs.predict(fits), self.confidence):
            own = self.estimate(entry._replace(partner=None))
            speed = alone[entry] or 0.0
            median = speed if own is None else own.median
            down, up = (1.0, 1.0) if own is None or not own.low else (own.median / own.low, own.high / own.median)
            low = median * share.median * float(np.exp(-np.hypot(np.log(share.median / share.low), np.log(down))))
            high = median * share.median * float(np.exp(np.hypot(np.log(share.high / share.median), np.log(up))))
            value = speed * share.steps_per_second
            yield entry, Estimate(entry, value, median * share.median, low, high, _source(self._model.name, low, high))

    def _fault(self, unknown: Unknown, concerning: str = "", hint: bool = True) -> Fault:
        fault = super()._fault(unknown, concerning, hint)
        needed = self._model.needed(unknown)
        return replace(fault, problem=f"{fault.problem}; {needed}") if needed else fault


def _check_confidence(confidence: object) -> None:
    is_probability = isinstance(confidence, int | float) and 0 < confidence < 1
    problem = f"must be None, 'optimistic', or a probability above 0 and below 1, found {shown(confidence)}"
    refuse("", (confidence not in (None, "optimistic") and not is_probability, "confidence", problem))


def _whole(entry: Entry) -> Entry:
    """Return the entry that gives the throughput: that of a whole GPU for a fraction of one, or else the entry itself."""
    return entry._replace(num_gpus=1) if entry.num_gpus < 1 else entry


def _learned(entry: Entry, known: Learned) -> Estimate:
    """Return a learned entry as an estimate."""
    half = float(ndtri(0.5 + LEVEL / 2)) * known.log_sd
    median, low, high = (float(np.exp(known.log_mean + off)) for off in (0.0, -half, half))
    return Estimate(entry, median, median, low, high, f"observed on running jobs, {LEVEL:.0%}: {low:.4g} to {high:.4g}")


def _source(method: str, low: float, high: float) -> str:
    return f"estimated ({method}), {LEVEL:.0%}: {low:.4g} to {high:.4g}"
