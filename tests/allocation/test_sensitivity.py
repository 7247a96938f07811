"""Which estimate an allocation depends on: by hand, against solves of every case, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.throughput_profiles.estimation import EstimatedProfile

Value = Callable[[gp.AllocationProblem, Any], float]


def half_known(seed: int = 0) -> tuple[gp.JobSet, gp.Cluster, EstimatedProfile]:
    """Jobs of a few types, of whose throughputs in a built-in profile half are known."""
    builtin, chance = gp.ThroughputProfile.builtin("gavel-osdi20"), np.random.default_rng(seed)
    batches = [name for name in builtin.job_types if "batch size" in name]
    types = [str(name) for name in chance.choice(batches, 6, replace=False)]
    alone = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated"]
    known = [m for m in alone if m.steps_per_second > 0 and (m.job_type not in types or chance.random() < 0.5)]
    jobs = [
        gp.Job(f"job-{i}", job_type=str(chance.choice(types)), num_gpus=int(chance.choice([1, 1, 2, 4])), total_steps=1e4 * (1 + i))
        for i in range(20)
    ]
    profile = gp.ThroughputProfile("half", known).with_estimates()
    cluster = gp.Cluster.from_counts({"k80": (8, 4), "p100": (8, 4), "v100": (8, 4)})
    usable = [job for job in jobs if min(profile.matrix([job], cluster.accelerator_names)[0]) > 0]
    return gp.JobSet(usable), cluster, profile


def worst_off(problem: gp.AllocationProblem, times: Any) -> float:
    speeds = (problem.throughputs * times).sum(axis=1)
    return float((problem.num_gpus * speeds / (problem.throughputs @ problem.capacities / problem.capacities.sum())).min())


def last_end(problem: gp.AllocationProblem, times: Any) -> float:
    return float((problem.steps_remaining / (problem.throughputs * times).sum(axis=1)).max())


@pytest.mark.parametrize(("policy", "value", "sign"), [("max_min_fairness", worst_off, 1), ("min_makespan", last_end, -1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_regrets_are_those_of_solving_each_case(policy: str, value: Value, sign: int, seed: int) -> None:
    """Every estimate at both ends, by `solve` and the formula of the objective; those that are not shown have no larger regret."""
    jobs, cluster, profile = half_known(seed)
    found = gp.sensitivity(jobs, cluster, profile, policy, count=4)
    present = gp.solve(gp.AllocationProblem.from_jobs(jobs, cluster, profile), policy)
    regrets = {}
    for estimate in profile.estimates_of(jobs, cluster.accelerator_names):
        regrets[estimate.entry] = []
        for end in (estimate.low, estimate.high):
            problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile.with_values({estimate.entry: end}))
            best, kept = gp.solve(problem, policy).objective_value, value(problem, present.time_fractions)
            assert best is not None
            regrets[estimate.entry].append(1 - (kept / best) ** sign)
    assert found.num_estimates == len(regrets) > 8
    assert len(found.effects) == 4
    for effect in found.effects:
        assert [effect.regret_low, effect.regret_high] == pytest.approx(regrets.pop(effect.estimate.entry), abs=1e-6)
    assert found.largest_other is not None
    assert max(max(each) for each in regrets.values()) <= found.largest_other + 1e-6
    shown = [effect.regret for effect in found.effects]
    assert shown == sorted(shown, reverse=True)
    assert 0 < shown[0] <= 1


def two_types() -> tuple[list[gp.Job], gp.Cluster, EstimatedProfile]:
    """Two job types on two accelerators; the throughput of the second type on the second accelerator is an estimate."""
    speeds = {("a", "h100"): 4.0, ("a", "l40s"): 1.0, ("b", "h100"): 4.0}
    rows = [gp.Measurement(job_type=job, num_gpus=1, accelerator=name, steps_per_second=v) for (job, name), v in speeds.items()]
    cluster = gp.Cluster.from_counts({"h100": 1, "l40s": 1})
    jobs = [gp.Job(name, job_type=name, total_steps=1e6) for name in "ab"]
    return jobs, cluster, gp.ThroughputProfile("mine", rows).with_estimates("additive")


def test_one_estimate_by_hand() -> None:
    """b is taken to be slow on the L40S, so that it has the H100; at both ends of the interval a should have it."""
    jobs, cluster, profile = two_types()
    (estimate,) = profile.estimates_of(jobs, cluster.accelerator_names)
    assert 1 < estimate.low < estimate.steps_per_second < estimate.high
    (effect,) = gp.sensitivity(jobs, cluster, profile.with_values({estimate.entry: 0.9}), "max_total_throughput").effects
    assert (effect.estimate, effect.jobs, effect.gpus) == (estimate, 1, 0.0)
    expected = []
    for speed in (estimate.low, estimate.high):
        of_a, of_b = 2.5, (4 + speed) / 2
        expected.append(1 - (1 / of_a + 4 / of_b) / (4 / of_a + speed / of_b))
    assert [effect.regret_low, effect.regret_high] == pytest.approx(expected, abs=1e-9)
    assert min(expected) > 0.005


def test_a_policy_that_does_not_look_at_throughputs_has_no_regret() -> None:
    found = gp.sensitivity(*half_known(), "max_min_fairness", agnostic=True)
    assert found.effects == ()
    assert found.largest_other == 0.0


def test_as_plain_data_and_as_a_table() -> None:
    found = gp.sensitivity(*half_known(), count=3)
    document = found.to_dict()
    assert document["estimates"] == found.num_estimates
    assert list(document["effects"][0]) == [
        *("job_type", "num_gpus", "accelerator", "placement", "partner", "steps_per_second", "low", "high", "jobs", "gpus"),
        *("regret", "regret_low", "regret_high"),
    ]
    assert found.to_columns()["regret"].tolist() == [effect.regret for effect in found.effects]
    assert "3 of" in repr(found)


def test_a_constraint_that_cannot_hold_at_one_end_has_the_regret_of_all() -> None:
    jobs, cluster, profile = two_types()
    (estimate,) = profile.estimates_of(jobs, cluster.accelerator_names)
    rules = [gp.MinThroughput("b", (estimate.steps_per_second + estimate.low) / 2), gp.Forbid("b", ["h100"])]
    (effect,) = gp.sensitivity(jobs, cluster, profile, constraints=rules).effects
    assert effect.regret_low is None
    assert effect.regret == 1.0


@pytest.mark.parametrize("policy", ["fifo", "gandiva"])
def test_a_policy_without_objective_is_refused(policy: str) -> None:
    with pytest.raises(gp.InputError, match="has no objective that could be lost, so estimates have no regret under it"):
        gp.sensitivity(*half_known(), policy)


def test_a_profile_without_estimates_is_refused() -> None:
    jobs, cluster, profile = half_known()
    with pytest.raises(gp.InputError, match="must be a profile with estimates"):
        gp.sensitivity(jobs, cluster, profile.measured)  # type: ignore[arg-type]
