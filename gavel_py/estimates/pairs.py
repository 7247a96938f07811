"""Throughputs of jobs that share GPUs: the part of a job's speed that remains, as a sum of random effects in log space.

log(T(a | b) / T(a)) is a sum of effects of the job type a, its partner b, their families and numbers, the accelerator, and their
combinations. Whether two jobs fit into memory together is not estimated from speeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gavel_py.estimates.estimator import Estimates, checksum
from gavel_py.estimates.features import Features, Vocabulary
from gavel_py.estimates.gaussian_process import equal, numbers_near
from gavel_py.estimates.variance_components import Effects, Posterior
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.throughput_profiles.files import Entry

FIT_LIMIT = 500
"""Maximum number of pairs to which variances are fitted."""

OTHERS_LIMIT = 700
"""Maximum number of pairs of other job types on which an estimate is conditioned, besides all pairs of its own job type."""

KEPT = 32
"""Maximum number of posteriors that are kept."""

NOISE = 0.01

EFFECTS = {
    "level": ("one", 0.5),
    "accelerator": ("accelerator", 0.05),
    "gang": ("gang", 0.02),
    "type": ("type", 0.03),
    "partner": ("partner", 0.03),
    "type, accelerator": ("type accelerator", 0.02),
    "partner, accelerator": ("partner accelerator", 0.02),
    "family": ("family", 0.03),
    "partner's family": ("partner_family", 0.03),
    "family, near number": ("family near", 0.03),
    "partner's family, near number": ("partner_family partner_near", 0.03),
    "family, accelerator": ("family accelerator", 0.02),
    "partner's family, accelerator": ("partner_family accelerator", 0.02),
    "families": ("family partner_family", 0.02),
    "families, accelerator": ("family partner_family accelerator", 0.02),
    "families, near numbers": ("family near partner_family partner_near", 0.02),
    "type, partner's family": ("type partner_family", 0.01),
    "family, partner": ("family partner", 0.01),
}


@dataclass(frozen=True)
class PairFeatures:
    """Features of n job types and their partners."""

    own: Features
    partner: Features

    def __len__(self) -> int:
        return len(self.own)

    def take(self, rows: Indices) -> PairFeatures:
        """Return the features of some pairs."""
        return PairFeatures(self.own.take(rows), self.partner.take(rows))


def _similarities(a: PairFeatures, b: PairFeatures) -> dict[str, Floats | Mask]:
    """Return the (n, m) similarities of pairs by one property each."""
    return {
        "one": np.ones((len(a), len(b)), dtype=bool),
        "accelerator": equal(a.own.accelerators, b.own.accelerators),
        "gang": equal(a.own.gangs, b.own.gangs),
        "type": equal(a.own.job_types, b.own.job_types),
        "partner": equal(a.partner.job_types, b.partner.job_types),
        "family": equal(a.own.families, b.own.families),
        "partner_family": equal(a.partner.families, b.partner.families),
        "near": _near(a.own.numbers, b.own.numbers),
        "partner_near": _near(a.partner.numbers, b.partner.numbers),
    }


def _near(a: Floats, b: Floats) -> Floats:
    """Return the similarity of numbers, 1 where neither job type has one."""
    without = np.logical_and.outer(np.isnan(a).all(axis=1), np.isnan(b).all(axis=1))
    return np.where(without, 1.0, numbers_near(a, b))


MODEL: Effects[PairFeatures] = Effects(EFFECTS, _similarities, NOISE)


class FittedPairs:
    """Effects of pairs, their variances fitted to the measured ones.

    Args:
        vocabulary: The vocabulary of the job types and accelerators.
        shares: {entry with a partner: T(a | b) / T(a)}, all positive.
    """

    def __init__(self, vocabulary: Vocabulary, shares: Mapping[Entry, float]) -> None:
        self._vocabulary = vocabulary
        self._entries = sorted(shares)
        logs = np.log(np.array([shares[entry] for entry in self._entries], dtype=float))
        self._level = float(logs.mean()) if len(logs) else 0.0
        self._residuals = logs - self._level
        self._features = self._of(self._entries)
        self._order = np.array([checksum(str(entry)) for entry in self._entries], dtype=np.int64)
        chosen = np.sort(np.argsort(self._order, kind="stable")[:FIT_LIMIT])
        features, residuals = self._features.take(chosen), self._residuals[chosen]
        self._variances = MODEL.fitted_variances(features, residuals)
        differences, deviations = Posterior(MODEL, self._variances, features, residuals).left_out()
        self._left_out = differences / deviations
        self._posteriors: dict[int, Posterior[PairFeatures]] = {}

    def predict(self, entries: Sequence[Entry]) -> Estimates:
        """Return the distributions of T(a | b) / T(a) of n entries with partners."""
        wanted = self._of(entries)
        log_mean, log_sd = np.zeros(len(entries)), np.zeros(len(entries))
        for job_type in np.unique(wanted.own.job_types):
            rows = np.flatnonzero(wanted.own.job_types == job_type)
            residual, log_sd[rows] = self._given(int(job_type)).predict(wanted.take(rows))
            log_mean[rows] = self._level + residual
        return Estimates(log_mean, log_sd, self._left_out)

    def _given(self, job_type: int) -> Posterior[PairFeatures]:
        """Return the posterior for a job type; the latest ones are kept, since pairs are often estimated one by one."""
        if job_type not in self._posteriors:
            if len(self._posteriors) >= KEPT:
                self._posteriors.clear()
            near = self._near(job_type)
            self._posteriors[job_type] = Posterior(MODEL, self._variances, self._features.take(near), self._residuals[near])
        return self._posteriors[job_type]

    def _near(self, job_type: int) -> Indices:
        """Return all rows with a job type on either side, and others up to `OTHERS_LIMIT`."""
        involved = (self._features.own.job_types == job_type) | (self._features.partner.job_types == job_type)
        others = np.flatnonzero(~involved)
        others = others[np.argsort(self._order[others], kind="stable")[:OTHERS_LIMIT]]
        return np.sort(np.concatenate([np.flatnonzero(involved), others]))

    def _of(self, entries: Sequence[Entry]) -> PairFeatures:
        features: Callable[[Sequence[Entry]], Features] = self._vocabulary.features
        swapped = [entry._replace(job_type=str(entry.partner), partner=entry.job_type) for entry in entries]
        return PairFeatures(features(entries), features(swapped))
