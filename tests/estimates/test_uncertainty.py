"""How uncertain normalised throughputs are: against many draws, where nothing is estimated, and as problems take it."""

from __future__ import annotations

import numpy as np
import pytest

import gavel_py as gp

TYPES = ("k80", "p100", "v100")
SHARES = np.array([0.5, 0.25, 0.25])
CLUSTER = gp.Cluster.from_counts({"k80": (8, 4), "p100": (4, 4), "v100": (4, 4)})


def half_known() -> gp.EstimatedProfile:
    builtin, chance = gp.ThroughputProfile.builtin("gavel-osdi20"), np.random.default_rng(0)
    alone = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated" and m.steps_per_second]
    lm = [m for m in alone if m.job_type.startswith("LM") and m.accelerator != "v100"]
    return gp.ThroughputProfile("half", [m for m in alone if m not in lm and chance.random() < 0.7]).with_estimates()


def job(job_type: str, num_gpus: int = 1, **more: object) -> gp.Job:
    return gp.Job(f"{job_type}-{num_gpus}", job_type=job_type, num_gpus=num_gpus, total_steps=1000, **more)  # type: ignore[arg-type]


def test_deviations_are_those_of_many_draws() -> None:
    profile, jobs = half_known(), [job("LM (batch size 20)"), job("ResNet-50 (batch size 64)", 2), job("LM (batch size 80)", 4)]
    found = profile.uncertainty_matrix(jobs, TYPES, SHARES)
    assert found is not None
    for each, row in zip(jobs, found, strict=True):
        drawn = profile.sample([gp.throughput_profiles.Entry(each.job_type, each.num_gpus, name) for name in TYPES], 20_000, seed=7)
        expected = np.log(drawn / (drawn @ SHARES)[:, None]).std(axis=0)
        assert row == pytest.approx(expected, rel=0.15, abs=1e-6)
        assert (row > 0).any() == (drawn != drawn[0]).any()


def test_types_that_a_job_may_not_use_are_not_part_of_its_share() -> None:
    profile, free = half_known(), job("LM (batch size 20)")
    bound = job("LM (batch size 20)", allowed_accelerators=("v100",))
    found = profile.uncertainty_matrix([free, bound], TYPES, SHARES)
    assert found is not None
    assert found[1, 2] == pytest.approx(0.0, abs=1e-12)  # T / (share · T), whatever T is
    assert found[0].min() > 0


def test_nothing_is_uncertain_that_was_measured_or_given() -> None:
    builtin = gp.ThroughputProfile.builtin("gavel-osdi20")
    jobs = [job("LM (batch size 20)"), job("ResNet-50 (batch size 64)", 2)]
    assert builtin.with_estimates().uncertainty_matrix(jobs, TYPES, SHARES) is None
    profile = half_known()
    given = {each.entry: each.median for each in profile.estimates_of(jobs, TYPES)}
    assert given
    assert profile.with_values(given).uncertainty_matrix(jobs, TYPES, SHARES) is None
    assert profile.uncertainty_matrix(jobs, TYPES, SHARES) is not None


def test_problems_and_schedulers_take_it_from_the_profile() -> None:
    profile, jobs = half_known(), [job("LM (batch size 20)"), job("ResNet-50 (batch size 64)", 2), job("LM (batch size 80)", 4)]
    problem = gp.AllocationProblem.from_jobs(jobs, CLUSTER, profile)
    assert np.array_equal(problem.uncertainty, profile.uncertainty_matrix(jobs, TYPES, SHARES))  # type: ignore[arg-type]
    scheduler = gp.RoundScheduler(CLUSTER, profile, policy=gp.resolve_policy("max_min_fairness", caution=1.64))
    for each in jobs:
        scheduler.submit(each)
    scheduler.next_round()
    expected = gp.solve(problem, "max_min_fairness", caution=1.64)
    assert scheduler.allocation is not None
    assert scheduler.allocation.objective_value == pytest.approx(expected.objective_value, rel=1e-6)
    assert expected.objective_value < (gp.solve(problem).objective_value or 0)  # type: ignore[operator]


def test_a_makespan_by_quantiles_ends_earlier() -> None:
    """One plan, half of the job types new: by the 20 % and 5 % quantiles of its estimates it ends earlier than by their medians."""
    builtin = gp.ThroughputProfile.builtin("gavel-osdi20")
    alone = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated" and m.steps_per_second]
    ends: dict[float | None, list[float]] = {None: [], 0.8: [], 0.95: []}
    for seed in range(4):
        chance = np.random.default_rng(seed)
        new = set(chance.choice(sorted({m.job_type for m in alone}), 13, replace=False).tolist())
        kept = [m for m in alone if m.job_type not in new or m.accelerator == TYPES[chance.integers(3)]]
        profile = gp.ThroughputProfile("half new", kept).with_estimates()
        gangs = sorted({(m.job_type, int(m.num_gpus)) for m in kept})
        picked = [gangs[row] for row in chance.integers(0, len(gangs), 60)]
        jobs = [
            gp.Job(f"{n}", job_type=name, num_gpus=size, total_steps=1e5 * chance.uniform(0.2, 1))
            for n, (name, size) in enumerate(picked)
        ]
        able = [each for each in jobs if builtin.matrix([each], TYPES).min() > 0]
        true = gp.AllocationProblem.from_jobs(able, CLUSTER, builtin, whole_gangs=False)
        best = gp.solve(true, "min_makespan").objective_value or np.nan
        for confidence, found in ends.items():
            guess = gp.AllocationProblem.from_jobs(able, CLUSTER, profile.with_confidence(confidence), whole_gangs=False)
            times = gp.solve(guess, "min_makespan").time_fractions
            found.append(float((true.steps_remaining / (true.throughputs * times).sum(axis=1)).max() / best))
    mean = {confidence: np.mean(found) for confidence, found in ends.items()}
    assert mean[0.95] < mean[0.8] < mean[None]
