"""Gaussian processes whose covariance is a sum of effects with fitted variances, for any features.

    y = m + Σ_e f_e + ε,    f_e ~ N(0, v_e K_e),    ε ~ N(0, v_0 + noise)

The variances v maximise the posterior density (log-normal priors, L-BFGS with the exact gradient); predictions are the conditional
normal distribution at these variances. Closed-form leave-one-out residuals widen or narrow its intervals (Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Generic, Protocol, TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import ndtri  # scipy.stats.norm.ppf, whose import takes 0.4 s

from gavel_py.io.locking import one_blas_thread
from gavel_py.problem.arrays import Floats, Indices, Mask


class FeatureRows(Protocol):
    """Features of observations, one row each."""

    def __len__(self) -> int: ...

    def take(self: X, rows: Indices) -> X:
        """Return the features of some observations."""
        ...


X = TypeVar("X", bound=FeatureRows)

PRIOR_SD = 1.0
"""Standard deviation of the logarithm of each variance around that of its prior."""

BOUNDS, NOISE_BOUNDS = (-12.0, 4.0), (-9.2, 0.0)
"""Bounds of the logarithms of the variances of effects, and of the variance of the noise."""

JITTER = 1e-6
MAX_ITERATIONS = 60
CHUNK = 256
"""Number of predictions at a time, since their covariances are computed as one matrix."""

PSEUDO_RESIDUALS = 20
"""Number of normal residuals that are added, so that a few residuals cannot make intervals arbitrarily narrow or wide."""


@dataclass(frozen=True)
class Effects(Generic[X]):
    """The effects of a model.

    Attributes:
        terms: {effect: names of the similarities whose product is its covariance at variance 1, separated by blanks; its prior
            variance}.
        similarities: Returns {name: (n, m) array} for two sets of features, n and m.
        noise: Prior variance of the noise.
    """

    terms: Mapping[str, tuple[str, float]]
    similarities: Callable[[X, X], Mapping[str, Floats | Mask]]
    noise: float = 0.001

    @property
    def priors(self) -> list[float]:
        """The E prior variances of the effects."""
        return [prior for _, prior in self.terms.values()]

    def covariances(self, first: X, second: X) -> Iterator[Floats | Mask]:
        """Yield the (n, m) covariances of each effect at variance 1."""
        found = self.similarities(first, second)
        for names, _ in self.terms.values():
            yield reduce(np.multiply, (found[name] for name in names.split()))

    def fitted_variances(self, features: X, residuals: Floats) -> Floats:
        """Return the (E + 1,) variances of greatest posterior density given observed residuals; the last is that of the noise."""
        count, prior = len(residuals), np.log([*self.priors, self.noise])
        stacked = np.empty((len(self.terms), count * count))
        for row, each in zip(stacked, self.covariances(features, features), strict=True):
            row[:] = each.ravel()
        eye = np.eye(count)

        def minus_log_density(logs: Floats) -> tuple[float, Floats]:
            variances, off = np.exp(logs), (logs - prior) / PRIOR_SD
            total = (variances[:-1] @ stacked).reshape(count, count) + (variances[-1] + JITTER) * eye
            try:
                factor = cho_factor(total, lower=True, overwrite_a=True)
            except LinAlgError:
                return 1e10, np.zeros_like(logs)
            inverse = cho_solve(factor, eye)
            weights = inverse @ residuals
            value = 0.5 * residuals @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * off @ off
            gradient = inverse - np.outer(weights, weights)
            slopes = 0.5 * variances * np.append(stacked @ gradient.ravel(), np.trace(gradient))
            return float(value), slopes + off / PRIOR_SD

        if not count:
            return np.exp(prior)
        bounds = [BOUNDS] * len(self.priors) + [NOISE_BOUNDS]
        # On busy cores, the threads of many small factorisations would spend most of the time waiting for each other.
        with one_blas_thread():
            found = minimize(
                minus_log_density, prior, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_ITERATIONS}
            )
        return np.asarray(np.exp(found.x))

    def covariance(self, variances: Floats, first: X, second: X) -> Floats:
        """Return the (n, m) covariance of two sets of features, without noise."""
        total = np.zeros((len(first), len(second)))
        for variance, covariance in zip(variances[:-1], self.covariances(first, second), strict=True):
            total += variance * covariance
        return total


class Posterior(Generic[X]):
    """The process at fixed variances, given observations.

    Args:
        effects: The effects.
        variances: (E + 1,) their variances, and that of the noise.
        features: Features of n observations.
        residuals: (n,) observations less their prior means.
        noise: (n,) further noise variance of each observation, or a number for all.
    """

    def __init__(self, effects: Effects[X], variances: Floats, features: X, residuals: Floats, noise: Floats | float = 0.0) -> None:
        self.effects, self.variances, self.features = effects, variances, features
        total = effects.covariance(variances, features, features)
        total[np.diag_indices_from(total)] += variances[-1] + JITTER + noise
        self._factor = cho_factor(total, lower=True, overwrite_a=True, check_finite=False)
        self._weights = cho_solve(self._factor, residuals)

    def left_out(self) -> tuple[Floats, Floats]:
        """Return (n,) the difference of each observation from the prediction of all others, and (n,) its standard deviation."""
        precisions = np.diag(cho_solve(self._factor, np.eye(len(self._weights)), overwrite_b=True))
        return np.asarray(self._weights / precisions), np.asarray(1 / np.sqrt(precisions))

    def contradicted(self, limit: float) -> list[tuple[int, float]]:
        """Return (row, difference from the prediction of the others) of observations beyond `limit` standard deviations.

        The worst one is removed, and the others are compared again without it, until none is left.
        """
        inverse, weights = cho_solve(self._factor, np.eye(len(self._weights)), overwrite_b=True), self._weights
        left, found = np.ones(len(weights), dtype=bool), []
        while left.sum() > 1:
            precisions = np.where(left, np.diag(inverse), 1.0)
            residuals = np.where(left, np.abs(weights) / np.sqrt(precisions), 0.0)
            worst = int(np.argmax(residuals))
            if residuals[worst] <= limit:
                break
            found.append((worst, float(weights[worst] / precisions[worst])))
            column = inverse[:, worst] / precisions[worst]
            weights = weights - column * weights[worst]
            inverse = inverse - np.outer(column, inverse[worst])
            left[worst] = False
        return found

    def predict(self, features: X) -> tuple[Floats, Floats]:
        """Return (m,) means less the prior means, and (m,) standard deviations of a new observation."""
        means, deviations = np.zeros(len(features)), np.zeros(len(features))
        for start in range(0, len(features), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(features)))
            means[rows], covariance = self.joint(features.take(rows))
            deviations[rows] = np.sqrt(np.maximum(np.diag(covariance), 1e-8))
        return means, deviations

    def joint(self, features: X) -> tuple[Floats, Floats]:
        """Return (m,) means less the prior means, and the (m, m) covariance of new observations."""
        cross = self.effects.covariance(self.variances, features, self.features)
        total = self.effects.covariance(self.variances, features, features)
        total[np.diag_indices_from(total)] += self.variances[-1]
        return cross @ self._weights, total - cross @ cho_solve(self._factor, cross.T, check_finite=False)


def width(level: float, left_out: Floats) -> float:
    """Return the number of standard deviations by which an interval of this level extends to either side.

    It is the quantile of the absolute leave-one-out residuals (standardised), shrunk to that of the normal distribution by
    `PSEUDO_RESIDUALS`; without residuals, that of the normal distribution.
    """
    normal, count = float(ndtri(0.5 + level / 2)), len(left_out)
    if not count:
        return normal
    found = float(np.quantile(np.abs(left_out), min(1.0, level * (count + 1) / count)))
    return (count * found + PSEUDO_RESIDUALS * normal) / (count + PSEUDO_RESIDUALS)
