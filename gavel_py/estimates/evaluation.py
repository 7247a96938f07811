"""Evaluation of estimates: their errors on a profile's own measurements, contradicting measurements, and what to measure next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gavel_py.errors import refuse
from gavel_py.estimates.estimated_profile import estimator_named
from gavel_py.estimates.estimator import FindSpec, ThroughputEstimator
from gavel_py.estimates.gaussian_process import GaussianProcess
from gavel_py.io.records import Count, ProperPart, check
from gavel_py.problem.accelerators import AcceleratorTable
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.profile import ThroughputProfile

CANDIDATES = 2000
"""Maximum number of entries that a plan chooses from: those with the largest variance times number of jobs."""

SUSPICIOUS = 4.0
"""Number of standard deviations from which a measurement contradicts the others."""


class EstimateCheck(NamedTuple):
    """Errors of a method on measurements that were hidden from it.

    Attributes:
        method: The estimator.
        hidden: Share of the measurements that were hidden.
        estimated: Hidden measurements that were estimated, over all seeds.
        median_error: Median of |estimate / measurement - 1|.
        large_error: 90 % quantile of the same.
        within_80: Share of the measurements in their 80 % interval.
        within_95: Share of the measurements in their 95 % interval.
    """

    method: str
    hidden: float
    estimated: int
    median_error: float
    large_error: float
    within_80: float
    within_95: float


class PlannedMeasurement(NamedTuple):
    """An entry to measure.

    Attributes:
        entry: Job type, gang and accelerator.
        jobs: Jobs that need it.
        error: Expected relative error of its estimate at the time of its turn, exp(σ) - 1.
        remaining: The summed variance of all estimates after this measurement, over that before the first.
    """

    entry: Entry
    jobs: int
    error: float
    remaining: float


def check_estimates(
    profile: ThroughputProfile,
    methods: Sequence[str | ThroughputEstimator] = ("gaussian_process", "additive", "specs"),
    *,
    hidden: float = 0.5,
    seeds: int = 10,
    accelerators: AcceleratorTable | None = None,
) -> list[EstimateCheck]:
    """Return the errors of each method on measurements of a profile that were hidden from it, pooled over seeds.

    A random share of the measured gangs alone is hidden. Those with a job type that still has other measurements are estimated.

    Args:
        profile: The profile.
        methods: Names of estimators, or estimators.
        hidden: Share of the measurements to hide, above 0 and below 1.
        seeds: Number of random choices.
        accelerators: Specifications; the built-in table by default.

    Raises:
        InputError: There are fewer than two measurements of one job type, or an argument is out of range.
    """
    check("check of estimates", hidden=(hidden, ProperPart), seeds=(seeds, Count))
    measured = _gangs(profile)
    find = (AcceleratorTable.builtin() if accelerators is None else accelerators).find
    splits = [_split(measured, hidden, seed) for seed in range(seeds)]
    problem = "has too few measurements to hide some: a check needs job types that were measured at least twice"
    refuse(f"throughput profile {profile.name!r}", (not any(left_out for _, left_out in splits), "", problem))
    return [_checked(method, splits, hidden, find) for method in methods]


def _gangs(profile: ThroughputProfile) -> list[Measurement]:
    """Return the positive measurements of gangs alone, consolidated, in the order of the profile."""
    whole = (m for m in profile.measurements if m.partner_job_type is None and m.placement == "consolidated")
    return [m for m in whole if m.steps_per_second > 0]


def _split(measured: Sequence[Measurement], hidden: float, seed: int) -> tuple[list[Measurement], list[Measurement]]:
    order = np.random.default_rng(seed).permutation(len(measured))
    count = int(hidden * len(measured))
    known = [measured[row] for row in order[count:]]
    types = {each.job_type for each in known}
    return known, [measured[row] for row in order[:count] if measured[row].job_type in types]


def _checked(
    method: str | ThroughputEstimator,
    splits: Iterable[tuple[list[Measurement], list[Measurement]]],
    hidden: float,
    find: FindSpec,
) -> EstimateCheck:
    errors: list[Floats] = []
    within: dict[float, list[Mask]] = {0.8: [], 0.95: []}
    for known, left_out in splits:
        if not left_out:
            continue
        truth = np.array([each.steps_per_second for each in left_out])
        found = estimator_named(method).fit(known, find).predict([each.entry for each in left_out])
        errors.append(np.abs(found.median / truth - 1))
        for level, inside in within.items():
            low, high = found.interval(level)
            inside.append((low <= truth) & (truth <= high))
    pooled = np.concatenate(errors)
    name = method if isinstance(method, str) else type(method).__name__
    shares = (float(np.concatenate(inside).mean()) for inside in within.values())
    return EstimateCheck(name, hidden, len(pooled), float(np.median(pooled)), float(np.quantile(pooled, 0.9)), *shares)


def contradictions(profile: ThroughputProfile, accelerators: AcceleratorTable | None = None) -> list[tuple[Measurement, float]]:
    """Return the measurements that contradict the others by more than 4 standard deviations, each with its expected value.

    Each measurement is compared with its expectation given all others. The most contradictory one is removed, and the others are
    compared again without it, since a wrong figure makes its neighbours look wrong.

    Args:
        profile: The profile; only its gangs alone are compared.
        accelerators: Specifications; the built-in table by default.
    """
    find = (AcceleratorTable.builtin() if accelerators is None else accelerators).find
    measured = {each.entry: each for each in _gangs(profile)}
    fitted = GaussianProcess().fit(list(measured.values()), find)
    return [(measured[entry], expected) for entry, expected in fitted.contradicted(SUSPICIOUS)]


def plan_measurements(
    profile: ThroughputProfile,
    budget: int,
    jobs: Iterable[Job] | None = None,
    cluster_accelerators: Sequence[str] | None = None,
    *,
    per_gpu: bool = False,
    accelerators: AcceleratorTable | None = None,
) -> list[PlannedMeasurement]:
    """Return what to measure next: the entries that together reduce the variance of all estimates most, chosen one after another.

    Each step takes the entry k of the largest Σ_i w_i C_ik² / C_kk, with C the covariance of the log throughputs of all missing
    entries given what is known, and w the number of jobs that need an entry.

    Args:
        profile: What was measured.
        budget: Measurements to plan.
        jobs: The jobs to be scheduled; by default, each measured gang once.
        cluster_accelerators: Where they may run; by default, the measured accelerators.
        per_gpu: Whether to divide the gain by the GPUs that a measurement takes.
        accelerators: Specifications; the built-in table by default.

    Returns:
        At most `budget` entries, the most useful first; fewer if less is missing.

    Raises:
        InputError: The budget is not a whole number above 0, or there are neither jobs nor measurements.
    """
    check("plan of measurements", budget=(budget, Count))
    problem = "has no measurement above 0 of a gang alone; give jobs and a cluster to plan the first ones"
    refuse(f"throughput profile {profile.name!r}", (jobs is None and not _gangs(profile), "", problem))
    names = profile.accelerators if cluster_accelerators is None else tuple(cluster_accelerators)
    needs = profile.missing(_gang_jobs(profile) if jobs is None else jobs, names)
    if not needs:
        return []
    find = (AcceleratorTable.builtin() if accelerators is None else accelerators).find
    fitted = GaussianProcess().fit(profile.measurements, find)
    entries = list(needs)
    if len(entries) > CANDIDATES:
        weight = fitted.predict(entries).log_sd ** 2 * np.array(list(needs.values()))
        entries = [entries[row] for row in np.sort(np.argsort(-weight, kind="stable")[:CANDIDATES])]
    weights = np.array([needs[entry] for entry in entries], dtype=float)
    cost = np.array([entry.num_gpus for entry in entries]) if per_gpu else np.ones(len(entries))
    chosen = _greedy(fitted.covariance(entries), weights, cost, budget)
    return [PlannedMeasurement(entries[row], int(weights[row]), error, remaining) for row, error, remaining in chosen]


def _gang_jobs(profile: ThroughputProfile) -> list[Job]:
    gangs = dict.fromkeys((each.job_type, each.num_gpus) for each in _gangs(profile))
    return [Job(f"gang {number}", job_type=job_type, num_gpus=size) for number, (job_type, size) in enumerate(gangs)]


def _greedy(covariance: Floats, weights: Floats, cost: Floats, budget: int) -> list[tuple[int, float, float]]:
    """Return (row, relative error, remaining variance) of entries, each the best one given those before it."""
    total = float(weights @ np.diag(covariance))
    chosen = []
    for _ in range(min(budget, len(weights))):
        variances = np.maximum(np.diag(covariance), 1e-12)
        row = int(np.argmax(weights @ covariance**2 / variances / cost))
        covariance = covariance - np.outer(covariance[:, row], covariance[row]) / variances[row]
        left = float(weights @ np.maximum(np.diag(covariance), 0.0)) / total
        chosen.append((row, float(np.expm1(np.sqrt(variances[row]))), left))
    return chosen
