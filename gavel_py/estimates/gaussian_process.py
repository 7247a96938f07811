"""The default estimator: a Gaussian process of throughputs, a sum of random effects in log space.

log T = level of the unit + 0.85 log n + (log FLOPS + log bandwidth) / 2 + effects of the job type, its family, tags and numbers, of
the accelerator, of how far the job type is bound by compute or memory, of the gang, and of their combinations. Each effect has a
variance, fitted by `variance_components`; so a type that was measured once is estimated from its family, and a new accelerator from
its specifications.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from gavel_py.estimates.estimator import Estimates, FindSpec, checksum, draws, speeds_alone
from gavel_py.estimates.features import Features, Vocabulary, given_structures
from gavel_py.estimates.variance_components import JITTER, Effects, Posterior
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.units import UnitOf

GANG_EXPONENT = 0.85
"""Prior exponent of the throughput in the number of GPUs of a gang."""

NUMBER_RANGE = 1.5
"""Length scale of numbers such as batch sizes, in doublings."""

FIT_LIMIT = 600
"""Maximum number of measurements to which variances are fitted: whole families, chosen by the checksums of their names."""

JOINT_LIMIT = 2000
"""Maximum number of measurements on which an estimate is conditioned: of the job type, then of its family, then others."""

UNKNOWN = np.array([[1.4, 0.0], [0.9, 0.4]])
"""Cholesky factor of the covariance of log FLOPS and log bandwidth over the built-in accelerators, for unknown specifications."""

LEVEL_VARIANCE = 4.0
"""Variance of the level of a unit in which nothing was measured, and the prior variance of that of others."""

SIMPLE = {
    "level": ("unit", LEVEL_VARIANCE),
    "type": ("type", 1.0),
    "accelerator": ("accelerator", 0.3),
    "unknown specifications": ("unknown", 1.0),
    "type, accelerator": ("type accelerator", 0.02),
    "family": ("unit family", 3.0),
    "family, accelerator": ("family accelerator", 0.05),
}
NUMBERED = {
    "family, number": ("unit family number", 0.1),
    "family, near number": ("unit family near", 0.1),
    "family, near number, accelerator": ("family near accelerator", 0.03),
    "family, number, accelerator": ("family number accelerator", 0.005),
}
TAGGED = {
    "tags": ("unit tags", 0.3),
    "tags, accelerator": ("tags accelerator", 0.05),
    "family, tags, accelerator": ("family tags accelerator", 0.03),
}
SPECIFIED = {
    "specifications": ("power", 0.05),
    "bound": ("bound", 0.05),
    "type, bound": ("type bound", 0.02),
    "family, bound": ("family bound", 0.03),
}
GANGS = {
    "gang": ("size", 0.02),
    "type, size": ("type size", 0.01),
    "accelerator, size": ("accelerator size", 0.01),
    "accelerator, gang": ("accelerator gang", 0.01),
    "type, gang": ("type gang", 0.01),
    "family, accelerator, size": ("family accelerator size", 0.01),
    "family, accelerator, gang": ("family accelerator gang", 0.02),
}


def _similarities(a: Features, b: Features) -> dict[str, Floats | Mask]:
    """Return the (n, m) similarities of entries by one property each; effects are products of them."""
    accelerator = equal(a.accelerators, b.accelerators)
    # An unknown specification is one number for all entries on an accelerator.
    power = accelerator * (a.unknown @ UNKNOWN @ UNKNOWN.T @ b.unknown.T) / 4
    bound = accelerator * ((a.unknown * (1, -1)) @ UNKNOWN @ UNKNOWN.T @ (b.unknown * (1, -1)).T)
    found = {
        "unit": equal(a.units, b.units),
        "type": equal(a.job_types, b.job_types),
        "accelerator": accelerator,
        "unknown": power,
        "family": equal(a.families, b.families),
        "tags": a.tags @ b.tags.T,
        "size": np.multiply.outer(a.gang_log2, b.gang_log2),
        "gang": equal(a.gangs, b.gangs),
        "power": np.multiply.outer(_power(a), _power(b)) + power,
        "bound": np.multiply.outer(a.compute - a.bandwidth, b.compute - b.bandwidth) + bound,
    }
    found["number"] = np.nan_to_num(a.numbers) @ np.nan_to_num(b.numbers).T
    found["near"] = numbers_near(a.numbers, b.numbers)
    return found


def _power(features: Features) -> Floats:
    return (features.compute + features.bandwidth) / 2


def equal(a: Indices, b: Indices) -> Mask:
    """Return the (n, m) similarities of values without an order; as booleans, since these matrices are large."""
    return np.asarray(np.equal.outer(a, b))


def numbers_near(a: Floats, b: Floats) -> Floats:
    """Return the (n, m) similarities of numbers, 1 for equal ones; 0 if a job type has a number that the other lacks, or none."""
    has_a, has_b = ~np.isnan(a), ~np.isnan(b)
    shape = len(a), len(b)
    distance, unlike = np.zeros(shape), np.zeros(shape, dtype=bool)
    for column in range(a.shape[1]):
        both = np.logical_and.outer(has_a[:, column], has_b[:, column])
        difference = np.subtract.outer(np.nan_to_num(a[:, column]), np.nan_to_num(b[:, column])) / NUMBER_RANGE
        distance += np.where(both, difference**2, 0.0)
        unlike |= np.logical_xor.outer(has_a[:, column], has_b[:, column])
    some = np.logical_and.outer(has_a.any(axis=1), has_b.any(axis=1))
    return np.where(some & ~unlike, np.exp(-0.5 * distance), 0.0)


def effects_for(features: Features, specified: bool) -> Effects[Features]:
    """Return the effects that these features can distinguish."""
    used = dict(SIMPLE)
    used |= NUMBERED if features.has_numbers else {}
    used |= TAGGED if features.tags.any() else {}
    used |= SPECIFIED if specified else {}
    # If only one gang size was measured, other sizes are less certain by the usual difference between sizes.
    has_sizes = len(set(features.gangs.tolist())) != 1
    used |= {name: effect for name, effect in GANGS.items() if has_sizes or "size" in effect[0].split()}
    return Effects(used, _similarities)


@dataclass(frozen=True)
class GaussianProcess:
    """The estimator `gaussian_process`: random effects in log space, their variances fitted to the measurements."""

    uses_specifications: ClassVar[bool] = True
    uses_families: ClassVar[bool] = True

    def fit(self, measurements: Sequence[Measurement], find_spec: FindSpec) -> FittedEffects:
        """Return the fitted effects; arguments as `ThroughputEstimator.fit`."""
        entries, logs = speeds_alone(measurements)
        units = {each.job_type: UnitOf(each.unit, each.condition) for each in measurements}
        return _fitted(Vocabulary(entries, given_structures(measurements), find_spec, units), entries, logs)


REFERENCE_NAME = "type (batch size 32, sequence length 1024)"
"""Name with the numbers to which others are compared before any measurement."""


def before_measurements(accelerators: Sequence[str], find_spec: FindSpec) -> FittedEffects:
    """Return the effects with their prior variances and without observations; accelerators: those with specifications."""
    entries = [Entry(REFERENCE_NAME, num_gpus, name) for name in accelerators or ("",) for num_gpus in (1, 8)]
    vocabulary = Vocabulary(entries, {}, find_spec, {})
    features = vocabulary.features(entries)
    effects = effects_for(features, vocabulary.has_specifications)
    nothing, variances = np.zeros(0), np.array([*effects.priors, effects.noise])
    none = features.take(np.zeros(0, dtype=np.intp))
    return FittedEffects(vocabulary, {}, effects, variances, nothing, [], none, nothing, nothing)


def _fitted(vocabulary: Vocabulary, entries: list[Entry], logs: Floats) -> FittedEffects:
    features = vocabulary.features(entries)
    above = logs - _expected(features, {})
    levels = {int(unit): float(above[features.units == unit].mean()) for unit in np.unique(features.units)}
    # Rounded, so that the fit is the same, bit for bit, with another unit of time or another order of sums.
    residuals = np.round(logs - _expected(features, levels), 9)
    effects = effects_for(features, vocabulary.has_specifications)
    chosen = _chosen(vocabulary, entries)
    variances = effects.fitted_variances(features.take(chosen), residuals[chosen])
    # The levels of the measured units were subtracted, so they say nothing about the levels of other units.
    place = list(effects.terms).index("level")
    variances[place] = max(variances[place], LEVEL_VARIANCE)
    differences, deviations = Posterior(effects, variances, features.take(chosen), residuals[chosen]).left_out()
    return FittedEffects(
        vocabulary, levels, effects, variances, differences / deviations, entries, features, residuals, np.zeros(len(entries))
    )


def _expected(features: Features, levels: Mapping[int, float]) -> Floats:
    """Return (n,) the expected log throughputs before any measurement; levels: {unit: level}, 0 for other units."""
    level = np.array([levels.get(unit, 0.0) for unit in features.units.tolist()], dtype=float)
    return np.asarray(level + GANG_EXPONENT * np.log(2) * features.gang_log2 + _power(features))


def _chosen(vocabulary: Vocabulary, entries: Sequence[Entry]) -> Indices:
    """Return the rows to which variances are fitted."""
    if len(entries) <= FIT_LIMIT:
        return np.arange(len(entries))
    families = [vocabulary.structure(entry.job_type).family for entry in entries]
    order = sorted(range(len(entries)), key=lambda row: (checksum(families[row]), families[row], row))
    return np.sort(np.array(order[:FIT_LIMIT]))


@dataclass(frozen=True, eq=False)
class FittedEffects:
    """Effects with fitted variances, and the observations on which estimates are conditioned.

    Attributes:
        levels: {unit: mean log throughput less its expectation}, since only ratios within a unit can be compared.
        left_out: Leave-one-out residuals over their standard deviations.
        entries: The n observed entries, sorted.
        residuals: (n,) log throughputs less their prior expectations.
        noise: (n,) variances of the observations in addition to the fitted noise.
    """

    vocabulary: Vocabulary
    levels: dict[int, float]
    effects: Effects[Features]
    variances: Floats
    left_out: Floats
    entries: list[Entry]
    features: Features
    residuals: Floats
    noise: Floats
    _kept: dict[bytes, Posterior[Features]] = field(default_factory=dict)

    def observed(self, entries: Sequence[Entry], logs: Floats, noise: Floats) -> FittedEffects:
        """Return the same effects given further observations.

        Args:
            entries: Entries that have not been observed.
            logs: Their log throughputs.
            noise: Their variances.
        """
        features = self.vocabulary.features(entries)
        residuals = logs - _expected(features, self.levels)
        everything = [*self.entries, *entries]
        order = np.array(sorted(range(len(everything)), key=everything.__getitem__), dtype=np.intp)
        return FittedEffects(
            self.vocabulary,
            self.levels,
            self.effects,
            self.variances,
            self.left_out,
            [everything[row] for row in order],
            self.features.joined(features).take(order),
            np.concatenate([self.residuals, residuals])[order],
            np.concatenate([self.noise, noise])[order],
        )

    def smoothed(self, entries: Sequence[Entry], logs: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Return (n,) means and (n,) standard deviations of the log throughputs of n observed entries themselves.

        An observation is y = f + ε + e: the effects, the deviation of the entry, and the error of the observation. The
        throughput is f + ε. From the distribution of f given all observations follows that of f + ε: E = y − w (y − E f) and
        Var = e² (1 − w) + w² Var f, where w = e² / (ε² + e²) and ε², e² stand for the variances.

        Args:
            entries: As in `observed`.
            logs: Their observed log throughputs.
            noise: The variances of the errors.
        """
        found, own = self.predict(entries), float(self.variances[-1]) + JITTER
        weight = noise / (own + noise)
        of_effects = np.maximum(found.log_sd**2 - self.variances[-1], 0.0)
        return logs - weight * (logs - found.log_mean), np.sqrt(noise * (1 - weight) + weight**2 * of_effects)

    def predict(self, entries: Sequence[Entry]) -> Estimates:
        """Return the distributions of n entries; see `FittedEstimator`."""
        log_mean, log_sd = np.zeros(len(entries)), np.zeros(len(entries))
        for rows, posterior, features, expected in self._blocks(entries):
            residual, log_sd[rows] = posterior.predict(features)
            log_mean[rows] = expected + residual
        return Estimates(log_mean, log_sd, self.left_out)

    def sample(self, entries: Sequence[Entry], count: int, seed: int) -> Floats:
        """Return (count, n) draws; entries of one family are drawn jointly."""
        found = np.zeros((count, len(entries)))
        for number, (rows, posterior, features, expected) in enumerate(self._blocks(entries)):
            residual, covariance = posterior.joint(features)
            found[:, rows] = draws(expected + residual, covariance, self.left_out, count, seed + number)
        return found

    def covariance(self, entries: Sequence[Entry]) -> Floats:
        """Return the (n, n) covariance of the log throughputs of n entries, as they would be measured.

        With more than `JOINT_LIMIT` measurements, it is 0 between entries whose estimates are conditioned on different ones.
        """
        total = np.zeros((len(entries), len(entries)))
        for rows, posterior, features, _ in self._blocks(entries):
            total[np.ix_(rows, rows)] = posterior.joint(features)[1]
        return total

    def contradicted(self, limit: float) -> list[tuple[Entry, float]]:
        """Return the observed entries that the others contradict by more than `limit` deviations, with their expected values."""
        observed = _expected(self.features, self.levels) + self.residuals
        found = []
        for group, block in self._grouped(self.entries):
            near = self._near(group, self.features.take(block))
            rows = ((int(near[row]), difference) for row, difference in self._posterior(near).contradicted(limit))
            found += [(row, observed[row] - difference) for row, difference in rows if row in block]
        return [(self.entries[row], float(np.exp(expected))) for row, expected in sorted(found)]

    def _blocks(self, entries: Sequence[Entry]) -> Iterator[tuple[Indices, Posterior[Features], Features, Floats]]:
        """Yield entries in blocks of whole families: their rows, posterior, features and expected logs."""
        features = self.vocabulary.features(entries)
        expected = _expected(features, self.levels)
        for group, rows in self._grouped(entries):
            block = features.take(rows)
            yield rows, self._posterior(self._near(group, block)), block, expected[rows]

    @cached_property
    def _groups(self) -> list[tuple[str, list[int]]]:
        """Groups of families in alphabetical order, with the rows of at most half of `JOINT_LIMIT` measurements, or of one family.

        Each has the name of its first family. Estimates in a group are conditioned on the same measurements, independent of
        other entries in the same call.
        """
        rows: dict[str, list[int]] = {}
        for row, entry in enumerate(self.entries):
            rows.setdefault(self._family(entry), []).append(row)
        found: list[tuple[str, list[int]]] = []
        for family in sorted(rows):
            if not found or len(found[-1][1]) + len(rows[family]) > JOINT_LIMIT // 2:
                found.append((family, []))
            found[-1][1].extend(rows[family])
        return found

    def _family(self, entry: Entry) -> str:
        return self.vocabulary.structure(entry.job_type).family

    def _grouped(self, entries: Sequence[Entry]) -> Iterator[tuple[int, Indices]]:
        """Yield numbers of groups of families, and the rows of the entries in each."""
        if len(self.entries) <= JOINT_LIMIT:
            yield 0, np.arange(len(entries))
            return
        firsts = [first for first, _ in self._groups]
        numbers = np.array([max(0, bisect(firsts, self._family(entry)) - 1) for entry in entries], dtype=np.intp)
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)

    def _near(self, group: int, wanted: Features) -> Indices:
        """Return the rows on which the estimates of these entries of a group are conditioned."""
        if len(self.entries) <= JOINT_LIMIT:
            return np.arange(len(self.entries))
        near = np.zeros(len(self.entries), dtype=np.intp)
        near[self._groups[group][1]] = 1
        if near.sum() > JOINT_LIMIT:
            near += np.isin(self.features.job_types, wanted.job_types)
        # The nearest observations; ties are resolved by checksums.
        return np.sort(self._mixed[np.argsort(-near[self._mixed], kind="stable")][:JOINT_LIMIT])

    @cached_property
    def _mixed(self) -> Indices:
        """All rows in the order of the checksums of their entries."""
        return np.array(sorted(range(len(self.entries)), key=lambda row: checksum(str(self.entries[row]))), dtype=np.intp)

    def _posterior(self, rows: Indices) -> Posterior[Features]:
        key = rows.tobytes()
        if key not in self._kept:
            self._kept.clear()
            given = self.features.take(rows), self.residuals[rows], self.noise[rows]
            self._kept[key] = Posterior(self.effects, self.variances, *given)
        return self._kept[key]
