"""The interface of throughput estimators, and their results: log-normal distributions with calibrated intervals."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtri  # scipy.stats.norm.ppf, whose import takes 0.4 s

from gavel_py.estimates.variance_components import width
from gavel_py.io.records import ProperPart, check
from gavel_py.problem.accelerators import AcceleratorSpec
from gavel_py.problem.arrays import Floats
from gavel_py.throughput_profiles.files import Entry, Measurement

FindSpec = Callable[[str], AcceleratorSpec | None]
"""Returns the specifications of an accelerator by name, None if they are unknown."""

LEVEL = 0.8
"""Level of the intervals in output."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Distributions of n throughputs. The logarithm of each is normal, except for the width of its intervals.

    Attributes:
        log_mean: (n,) means of log throughput.
        log_sd: (n,) standard deviations of log throughput.
        left_out: Leave-one-out residuals of the fit over their standard deviations, which determine the width of intervals; see
            `gavel_py.estimates.variance_components.width`. Empty: the width of a normal distribution.
    """

    log_mean: Floats
    log_sd: Floats
    left_out: Floats

    def __len__(self) -> int:
        return len(self.log_mean)

    @property
    def median(self) -> Floats:
        """(n,) medians."""
        return np.asarray(np.exp(self.log_mean))

    def mean(self) -> Floats:
        """Return (n,) means, exp(μ + σ²/2)."""
        return np.asarray(np.exp(self.log_mean + self.log_sd**2 / 2))

    def quantile(self, q: float) -> Floats:
        """Return (n,) quantiles; q: above 0, below 1."""
        check("estimates", q=(q, ProperPart))
        return np.asarray(np.exp(self.log_mean + np.sign(q - 0.5) * width(abs(2 * q - 1), self.left_out) * self.log_sd))

    def interval(self, level: float = LEVEL) -> tuple[Floats, Floats]:
        """Return (n,) lower and (n,) upper ends of the two-sided intervals of a level."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


class FittedEstimator(Protocol):
    """The result of `ThroughputEstimator.fit`."""

    def predict(self, entries: Sequence[Entry]) -> Estimates:
        """Return the distributions of the throughputs of n entries."""
        ...

    def sample(self, entries: Sequence[Entry], count: int, seed: int) -> Floats:
        """Return (count, n) joint draws of the throughputs of n entries."""
        ...


class ThroughputEstimator(Protocol):
    """A method that estimates throughputs from measured ones.

    Estimates must not depend on the order of the measurements, and scale with their unit. An entry is estimated only if its job
    type and its accelerator were measured, but a method may have the class attributes `uses_families = True` (another job type of
    the same family is enough) and `uses_specifications = True` (specifications of the accelerator are enough).
    """

    def fit(self, measurements: Sequence[Measurement], find_spec: FindSpec) -> FittedEstimator:
        """Return the estimator fitted to measurements.

        Args:
            measurements: Throughputs. A throughput of 0 means only that a gang cannot run; it is not used for speeds.
            find_spec: Returns the specifications of an accelerator by name.
        """
        ...


def speeds_alone(measurements: Sequence[Measurement]) -> tuple[list[Entry], Floats]:
    """Return the entries with positive speeds, consolidated and without partner, in sorted order, and their log throughputs."""
    alone = (each for each in measurements if each.partner_job_type is None and each.placement == "consolidated")
    measured = sorted(((each.entry, each.steps_per_second) for each in alone if each.steps_per_second > 0), key=_order)
    return [entry for entry, _ in measured], np.log(np.array([speed for _, speed in measured], dtype=float))


def checksum(text: str) -> int:
    """Return a number that orders texts pseudo-randomly, the same on every machine."""
    return zlib.crc32(text.encode())


def draws(log_mean: Floats, covariance: Floats, left_out: Floats, count: int, seed: int) -> Floats:
    """Return (count, n) draws of exp of a joint normal distribution, as wide as its calibrated intervals of `LEVEL`."""
    scale = width(LEVEL, left_out) / float(ndtri(0.5 + LEVEL / 2))
    deviations = np.random.default_rng(seed).multivariate_normal(np.zeros(len(log_mean)), covariance, count, method="eigh")
    return np.asarray(np.exp(log_mean + scale * deviations))


def _order(measured: tuple[Entry, float]) -> tuple[object, ...]:
    entry, speed = measured
    return *entry[:4], entry.partner or "", speed
