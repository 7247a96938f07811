"""Two simple estimators: effects of gangs and of accelerators that add up, and the specifications of accelerators alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavel_py.errors import Fault, MissingThroughputError
from gavel_py.estimates.estimator import Estimates, FindSpec, draws, speeds_alone
from gavel_py.estimates.features import Structure, compute_rate, given_structures, structure_of
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.units import UnitOf

RIDGE = 0.05
"""Number of observations of 0 that are added to those of each effect."""

SWEEPS = 60
LEAST_FREEDOM = 5

GANG_EXPONENT = 0.8
"""Exponent of the throughput in the number of GPUs, if another gang size of the job type was measured."""

NO_RESIDUALS = np.zeros(0)


@dataclass(frozen=True)
class Additive:
    """The estimator `additive`: log T = μ + effect of job type and gang size + effect of accelerator (two-way effects).

    μ is the mean of the unit of the job type. Ridge regression; intervals are those of a normal distribution with the standard
    deviation of the residuals. Names, gang sizes and specifications are not used.
    """

    def fit(self, measurements: Sequence[Measurement], find_spec: FindSpec) -> FittedAdditive:  # noqa: ARG002
        """Return the fitted effects; arguments as `ThroughputEstimator.fit`."""
        entries, logs = speeds_alone(measurements)
        rows, row_of = _numbered((entry.job_type, entry.num_gpus) for entry in entries)
        columns, column_of = _numbered(entry.accelerator for entry in entries)
        means = _means_of_units(measurements, entries, logs)
        logs = logs - np.array([means[entry.job_type] for entry in entries])
        of_rows, of_columns = np.zeros(len(row_of)), np.zeros(len(column_of))
        row_counts = np.bincount(rows, minlength=len(row_of))
        column_counts = np.bincount(columns, minlength=len(column_of))
        for _ in range(SWEEPS):
            of_rows = np.bincount(rows, logs - of_columns[columns], len(row_of)) / (row_counts + RIDGE)
            of_columns = np.bincount(columns, logs - of_rows[rows], len(column_of)) / (column_counts + RIDGE)
        left = logs - of_rows[rows] - of_columns[columns]
        freedom = max(len(logs) - len(row_of) - len(column_of), LEAST_FREEDOM)
        return FittedAdditive(
            means,
            {key: float(of_rows[row]) for key, row in row_of.items()},
            {key: float(of_columns[column]) for key, column in column_of.items()},
            {key: int(row_counts[row]) for key, row in row_of.items()},
            float(np.sqrt((left**2).sum() / freedom)),
            float(logs.std()) if len(logs) else 1.0,
        )


@dataclass(frozen=True)
class FittedAdditive:
    """Effects by (job type, gang size) and by accelerator.

    means: mean log throughput of the unit of each job type; counts: measurements of each gang; sd, cold_sd: with, without any.
    """

    means: Mapping[str, float]
    rows: Mapping[Hashable, float]
    columns: Mapping[Hashable, float]
    counts: Mapping[Hashable, int]
    sd: float
    cold_sd: float

    def predict(self, entries: Sequence[Entry]) -> Estimates:
        """Return the distributions of n entries; see `FittedEstimator`."""
        gangs = [(entry.job_type, entry.num_gpus) for entry in entries]
        columns = [self.columns.get(entry.accelerator, 0.0) for entry in entries]
        means = [self.means.get(job_type, 0.0) for job_type, _ in gangs]
        log_mean = [mean + self.rows.get(gang, 0.0) + column for mean, gang, column in zip(means, gangs, columns, strict=True)]
        log_sd = [self.sd * np.sqrt(1 + 1 / self.counts[gang]) if gang in self.counts else self.cold_sd for gang in gangs]
        return Estimates(np.array(log_mean, dtype=float), np.array(log_sd, dtype=float), NO_RESIDUALS)

    def sample(self, entries: Sequence[Entry], count: int, seed: int) -> Floats:
        """Return (count, n) draws of n entries."""
        return _independent(self.predict(entries), count, seed)


@dataclass(frozen=True)
class Specifications:
    """The estimator `specs`: T(a) = T(b) · √(FLOPS ratio · bandwidth ratio) from each other accelerator b that was measured.

    FLOPS are those of the precision of the job type. It takes the geometric mean over the measured accelerators of the same gang,
    and otherwise of the same job type at other gang sizes, at 0.8 of the logarithm of the ratio of sizes.
    """

    uses_specifications: ClassVar[bool] = True

    def fit(self, measurements: Sequence[Measurement], find_spec: FindSpec) -> FittedSpecifications:
        """Return the measurements relative to the accelerators' speeds; arguments as `ThroughputEstimator.fit`."""
        entries, logs = speeds_alone(measurements)
        structures = given_structures(measurements)
        levels: dict[str, list[tuple[float, float]]] = {}
        for entry, log in zip(entries, logs.tolist(), strict=True):
            power = log_power(structures[entry.job_type], entry.accelerator, find_spec)
            if not np.isnan(power):
                levels.setdefault(entry.job_type, []).append((entry.num_gpus, log - power))
        gangs: dict[tuple[str, float], list[float]] = {}
        for job_type, known in levels.items():
            for size, level in known:
                gangs.setdefault((job_type, size), []).append(level)
        squares = sum(float(np.var(each)) * len(each) for each in gangs.values())
        freedom = sum(len(each) - 1 for each in gangs.values())
        return FittedSpecifications(levels, structures, find_spec, float(np.sqrt(squares / freedom)) if squares else 1.0)


@dataclass(frozen=True)
class FittedSpecifications:
    """Levels of job types, {job type: (gang size, log throughput less log power of the accelerator)}; sd: within one gang."""

    levels: Mapping[str, Sequence[tuple[float, float]]]
    structures: Mapping[str, Structure]
    find_spec: FindSpec
    sd: float

    def predict(self, entries: Sequence[Entry]) -> Estimates:
        """Return the distributions of n entries; see `FittedEstimator`.

        Raises:
            MissingThroughputError: An accelerator has no specifications, or a job type has no measurement to start from.
        """
        found = [self._predicted(entry) for entry in entries]
        log_mean, counts = np.array([mean for mean, _ in found], dtype=float), np.array([n for _, n in found], dtype=float)
        return Estimates(log_mean, self.sd * np.sqrt(1 + 1 / counts), NO_RESIDUALS)

    def _predicted(self, entry: Entry) -> tuple[float, int]:
        known = self.levels.get(entry.job_type, ())
        if not known:
            raise MissingThroughputError(f"the method 'specs' needs a measurement of {entry.job_type!r} to start from")
        structure = self.structures.get(entry.job_type) or structure_of(entry.job_type)
        power = log_power(structure, entry.accelerator, self.find_spec)
        if np.isnan(power):
            problem = f"has no specifications, which the method 'specs' needs for {entry.job_type!r}"
            raise MissingThroughputError(Fault("", "accelerator", f"{entry.accelerator!r} {problem}"))
        same = [level for size, level in known if size == entry.num_gpus]
        scaled = [level + GANG_EXPONENT * float(np.log(entry.num_gpus / size)) for size, level in known]
        return power + float(np.mean(same or scaled)), len(same or scaled)

    def sample(self, entries: Sequence[Entry], count: int, seed: int) -> Floats:
        """Return (count, n) draws of n entries."""
        return _independent(self.predict(entries), count, seed)


def log_power(structure: Structure, accelerator: str, find_spec: FindSpec) -> float:
    """Return the mean of log TFLOPS and log GB/s of an accelerator, NaN if one of them is unknown."""
    spec = find_spec(accelerator)
    if spec is None or spec.memory_bandwidth_gbs is None:
        return np.nan
    return (compute_rate(structure.tags, spec) + float(np.log(spec.memory_bandwidth_gbs))) / 2


def _independent(estimates: Estimates, count: int, seed: int) -> Floats:
    return draws(estimates.log_mean, np.diag(estimates.log_sd**2), estimates.left_out, count, seed)


def _means_of_units(measurements: Sequence[Measurement], entries: Sequence[Entry], logs: Floats) -> dict[str, float]:
    """Return {job type: mean log throughput of the entries in its unit}, since throughputs in other units are not comparable."""
    units = {each.job_type: UnitOf(each.unit, each.condition) for each in measurements}
    codes, code_of = _numbered(units[entry.job_type] for entry in entries)
    means = {unit: float(logs[codes == code].mean()) for unit, code in code_of.items()}
    return {entry.job_type: means[units[entry.job_type]] for entry in entries}


def _numbered(keys: Iterable[Hashable]) -> tuple[Indices, dict[Hashable, int]]:
    """Return the number of each key, and {key: number} in order of first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp), numbers
