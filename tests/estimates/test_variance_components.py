"""The Gaussian process against the formulas written out: conditional normals, leaving out for real, slopes by differences."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from gavel_py.estimates.variance_components import JITTER, PRIOR_SD, Effects, Posterior, width


@dataclass(frozen=True)
class Points:
    """Points with a coordinate and a group."""

    x: np.ndarray
    group: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: np.ndarray) -> "Points":
        return Points(self.x[rows], self.group[rows])


def similarities(a: Points, b: Points) -> dict[str, np.ndarray]:
    return {
        "one": np.ones((len(a), len(b))),
        "group": (a.group[:, None] == b.group[None, :]).astype(float),
        "near": np.exp(-0.5 * np.subtract.outer(a.x, b.x) ** 2),
    }


EFFECTS = Effects({"level": ("one", 1.0), "group": ("group", 0.5), "group, near": ("group near", 0.3)}, similarities, noise=0.05)


def points(count: int, seed: int) -> Points:
    rng = np.random.default_rng(seed)
    return Points(rng.normal(size=count), rng.integers(3, size=count))


def covariance(variances: np.ndarray, a: Points, b: Points) -> np.ndarray:
    found = similarities(a, b)
    return variances[0] * found["one"] + variances[1] * found["group"] + variances[2] * found["group"] * found["near"]


@pytest.fixture
def known() -> tuple[Points, np.ndarray, np.ndarray]:
    known = points(12, 0)
    return known, np.random.default_rng(1).normal(size=12), np.array([0.8, 0.4, 0.6, 0.02])


def test_predictions_are_the_conditional_normal_distribution(known: tuple[Points, np.ndarray, np.ndarray]) -> None:
    observed, y, variances = known
    wanted, noise = points(5, 2), np.linspace(0, 0.1, 12)
    inverse = np.linalg.inv(covariance(variances, observed, observed) + np.diag(noise + variances[-1] + JITTER))
    cross = covariance(variances, wanted, observed)
    joint = covariance(variances, wanted, wanted) + variances[-1] * np.eye(5) - cross @ inverse @ cross.T
    posterior = Posterior(EFFECTS, variances, observed, y, noise)
    mean, sd = posterior.predict(wanted)
    assert mean == pytest.approx(cross @ inverse @ y)
    assert sd == pytest.approx(np.sqrt(np.diag(joint)))
    assert posterior.joint(wanted)[1] == pytest.approx(joint)


def test_predictions_in_parts_are_those_of_the_whole(known: tuple[Points, np.ndarray, np.ndarray]) -> None:
    observed, y, variances = known
    posterior, wanted = Posterior(EFFECTS, variances, observed, y), points(600, 3)
    mean, sd = posterior.predict(wanted)
    whole, joint = posterior.joint(wanted)
    assert mean == pytest.approx(whole)
    assert sd == pytest.approx(np.sqrt(np.diag(joint)))


def test_residuals_are_those_of_leaving_each_observation_out(known: tuple[Points, np.ndarray, np.ndarray]) -> None:
    observed, y, variances = known
    differences, deviations = Posterior(EFFECTS, variances, observed, y).left_out()
    for row in range(12):
        others = np.delete(np.arange(12), row)
        mean, sd = Posterior(EFFECTS, variances, observed.take(others), y[others]).predict(observed.take(np.array([row])))
        assert differences[row] == pytest.approx(y[row] - mean[0], rel=1e-3)
        assert deviations[row] == pytest.approx(sd[0], rel=1e-3)


def test_variances_have_the_greatest_posterior_density(known: tuple[Points, np.ndarray, np.ndarray]) -> None:
    observed, y, _ = known
    prior = np.log([1.0, 0.5, 0.3, 0.05])

    def minus_log_density(logs: np.ndarray) -> float:
        variances = np.exp(logs)
        total = covariance(variances, observed, observed) + (variances[-1] + JITTER) * np.eye(12)
        fit = y @ np.linalg.solve(total, y) + np.linalg.slogdet(total)[1]
        return float(0.5 * fit + 0.5 * (((logs - prior) / PRIOR_SD) ** 2).sum())

    found = np.log(EFFECTS.fitted_variances(observed, y))
    assert np.abs(approx_fprime(found, minus_log_density, 1e-6)).max() < 1e-2
    steps = 0.1 * np.vstack([np.eye(4), -np.eye(4)])
    assert all(minus_log_density(found) < minus_log_density(found + step) for step in steps)


def test_without_observations_the_variances_are_the_priors() -> None:
    assert EFFECTS.fitted_variances(points(0, 0), np.zeros(0)) == pytest.approx([1.0, 0.5, 0.3, 0.05])


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_follow_the_residuals_and_lean_on_the_normal_distribution(level: float) -> None:
    normal = norm.ppf(0.5 + level / 2)
    assert width(level, np.zeros(0)) == pytest.approx(normal)
    assert width(level, np.zeros(20)) == pytest.approx(normal / 2)
    residuals = np.random.default_rng(0).normal(size=20_000)
    assert width(level, residuals) == pytest.approx(normal, rel=0.03)
    assert width(level, 3 * residuals) == pytest.approx(3 * normal, rel=0.03)
