"""Which estimate an allocation depends on: by hand, against solves of every case, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gavel_py as gp

Value = Callable[[gp.AllocationProblem, Any], float]


def half_known(seed: int = 0) -> tuple[gp.JobSet, gp.Cluster, gp.EstimatedProfile]:
    """Jobs of four types, of whose throughputs in a built-in profile half are known."""
    builtin, chance = gp.ThroughputProfile.builtin("gavel-osdi20"), np.random.default_rng(seed)
    batches = [name for name in builtin.job_types if "batch size" in name]
    types = [str(name) for name in chance.choice(batches, 4, replace=False)]
    alone = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated"]
    known = [m for m in alone if m.steps_per_second > 0 and (m.job_type not in types or chance.random() < 0.5)]
    jobs = [
        gp.Job(f"job-{i}", job_type=str(chance.choice(types)), num_gpus=int(chance.choice([1, 1, 2, 4])), total_steps=1e4 * (1 + i))
        for i in range(12)
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


@pytest.mark.guard
@pytest.mark.parametrize(("policy", "value", "sign"), [("max_min_fairness", worst_off, 1), ("min_makespan", last_end, -1)])
@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.deep)])
def test_regrets_are_those_of_solving_each_case(policy: str, value: Value, sign: int, seed: int) -> None:
    """Every estimate at both ends, by `solve` and the formula of the objective; those that are not shown have no larger regret."""
    jobs, cluster, profile = half_known(seed)
    found = gp.sensitivity(jobs, cluster, profile, policy, count=2)
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
    assert len(found.effects) == 2
    for effect in found.effects:
        assert [effect.regret_low, effect.regret_high] == pytest.approx(regrets.pop(effect.estimate.entry), abs=1e-6)
    assert found.largest_other is not None
    assert max(max(each) for each in regrets.values()) <= found.largest_other + 1e-6
    shown = [effect.regret for effect in found.effects]
    assert shown == sorted(shown, reverse=True)
    assert 0 < shown[0] <= 1


def with_tenants(jobs: gp.JobSet) -> gp.JobSet:
    return gp.JobSet([job.model_copy(update={"tenant": "ab"[n % 2], "weight": 1.0 + n % 3}) for n, job in enumerate(jobs)])


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["water_filling", "hierarchical"])
def test_regrets_of_filling_are_those_of_the_levels_of_all_jobs(policy: str) -> None:
    """Every estimate at both ends: the k-th worst-off job, under hierarchical of its tenant, against that of another solve."""
    jobs, cluster, profile = half_known(1)
    jobs = with_tenants(jobs)
    found = gp.sensitivity(jobs, cluster, profile, policy, count=1000, whole_gangs=False)
    present = found.allocation
    assert (found.largest_other, len(found.effects)) == (0.0, found.num_estimates)
    groups = [range(len(jobs))] if policy == "water_filling" else [range(start, len(jobs), 2) for start in (0, 1)]
    weights, first_level = np.array([job.weight for job in jobs]), 0.0
    for effect in found.effects:
        for end, regret in (("low", effect.regret_low), ("high", effect.regret_high)):
            value = getattr(effect.estimate, end)
            changed = profile.with_values({effect.estimate.entry: value})
            problem = gp.AllocationProblem.from_jobs(jobs, cluster, changed, whole_gangs=False)
            shares = problem.throughputs @ problem.capacities / problem.capacities.sum()
            levels = [
                problem.num_gpus * (problem.throughputs * x).sum(axis=1) / shares / weights
                for x in (present.time_fractions, gp.solve(problem, policy).time_fractions)
            ]
            lost = [1 - np.sort(levels[0][list(group)]) / np.sort(levels[1][list(group)]) for group in groups]
            assert regret == pytest.approx(max(0.0, *(part.max() for part in lost)), abs=2e-6)
            first_level = max(first_level, float(1 - levels[0].min() / levels[1].min()))
    assert found.effects[0].regret > first_level + 0.02  # so that the first level alone would not do
    some = gp.sensitivity(jobs, cluster, profile, policy, count=4, whole_gangs=False)
    assert some.largest_other is None  # nothing is known of the estimates that were not solved for
    assert some.effects[0] == found.effects[0]


def test_limits_of_whole_gangs_leave_the_bound_tight() -> None:
    """Gangs of 3 on nodes of 4: their limit has a price, which the bound on the regret of a sum takes into account."""
    rows = [("a", 3, "v100", 5.0), ("a", 3, "k80", 2.0), ("b", 3, "v100", 4.0), ("c", 1, "v100", 1.0), ("c", 1, "k80", 0.9)]
    known = [gp.Measurement(job_type=t, num_gpus=n, accelerator=on, steps_per_second=speed) for t, n, on, speed in rows]
    jobs = [gp.Job(f"{t}-{i}", job_type=t, num_gpus=n, total_steps=1e6) for t, n in (("a", 3), ("b", 3), ("c", 1)) for i in (0, 1)]
    cluster = gp.Cluster.from_counts({"v100": (4, 4), "k80": (4, 4)})
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile := gp.ThroughputProfile("mine", known).with_estimates())
    evidence = gp.solve(problem, "max_total_throughput").evidence
    assert evidence is not None
    assert evidence.certificate is not None
    assert evidence.certificate.scarcity.limits.max() > 0.01
    assert gp.sensitivity(jobs, cluster, profile, "max_total_throughput", count=1).largest_other is not None


def two_types() -> tuple[list[gp.Job], gp.Cluster, gp.EstimatedProfile]:
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


def half_known_elastic(seed: int) -> tuple[gp.JobSet, gp.Cluster, gp.EstimatedProfile]:
    """Elastic jobs and gangs of four types on nodes of 4 GPUs, where gangs of 3 leave one idle; half of the speeds are known."""
    chance, types, names = np.random.default_rng(seed), [f"model{i // 2} (batch size {8 + i})" for i in range(4)], ("v100", "k80")
    known = [
        gp.Measurement(job_type=each, num_gpus=size, accelerator=name, steps_per_second=base * size**0.8 * factor)
        for i, each in enumerate(types)
        for base in [float(chance.lognormal())]
        for size in (1, 2, 3)
        for name, factor in zip(names, (4.0, 1.0 + i % 2), strict=True)
        if chance.random() < 0.5 or (size, name) == (1 + i % 2, "v100")
    ]
    offers: list[dict[str, Any]] = [{"gpu_counts": (1, 3)}, {"min_gpus": 2, "max_gpus": 4}, {"num_gpus": 2}, {"num_gpus": 1}]
    jobs = [
        gp.Job(f"job-{i}", job_type=types[i % 4], total_steps=1e4 * (1 + i % 3), weight=1.0 + i % 2, **offers[int(kind)])
        for i, kind in enumerate(chance.permutation([0, 0, 0, 1, 1, 2, 3, 3]))
    ]
    cluster = gp.Cluster.from_counts({"v100": (4, 4), "k80": (8, 4)})
    return gp.JobSet(jobs), cluster, gp.ThroughputProfile("half", known).with_estimates()


def speeds_of(jobs: gp.JobSet, profile: gp.ThroughputProfile, allocation: gp.Allocation) -> Any:
    """(N,) steps/s, by looking up each number of GPUs on which a job has time."""
    found = []
    for job, times in zip(jobs, allocation.time_fractions, strict=True):
        fixed = {(name, job.num_gpus): time for name, time in zip(allocation.accelerator_types, times, strict=True) if time}
        held = allocation.gpu_counts.get(job.job_id, {}) if job.is_elastic else fixed
        found.append(sum(time * profile.throughput(job.job_type, size, name) for (name, size), time in held.items()))
    return np.array(found)


def levels_of(jobs: gp.JobSet, profile: gp.ThroughputProfile, cluster: gp.Cluster, allocation: gp.Allocation) -> Any:
    """(N,) v_i / w_i, with the speed of one GPU of the smallest gang of an elastic job as its unit (docs/elastic.md)."""
    shares = []
    for job in jobs:
        least = min(profile.sizes_of(job)) if job.is_elastic else 1
        size = least if job.is_elastic else job.num_gpus
        rates = [profile.throughput(job.job_type, size, name) / least for name in cluster.accelerator_names]
        shares.append(np.array(rates) @ cluster.capacities / cluster.capacities.sum())
    sizes = np.array([1 if job.is_elastic else job.num_gpus for job in jobs])
    return sizes * speeds_of(jobs, profile, allocation) / shares / np.array([job.weight for job in jobs])


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "water_filling"])
@pytest.mark.parametrize("seed", [2, 4])
def test_regrets_with_elastic_jobs_are_those_of_solving_each_case(policy: str, seed: int) -> None:
    """Every estimate at both ends, by another solve and the formulas of the objectives over numbers of GPUs."""
    jobs, cluster, profile = half_known_elastic(seed)
    whole = policy != "water_filling"
    found = gp.sensitivity(jobs, cluster, profile, policy, count=2, whole_gangs=whole)
    shown, others = {effect.estimate.entry: effect for effect in found.effects}, [0.0]
    estimates = profile.estimates_of(jobs, cluster.accelerator_names)
    assert found.num_estimates == len(estimates) > 2
    for estimate in estimates:
        regrets = []
        for end in (estimate.low, estimate.high):
            changed = profile.with_values({estimate.entry: end})
            best = gp.solve(gp.AllocationProblem.from_jobs(jobs, cluster, changed, whole_gangs=whole), policy)
            if policy == "min_makespan":
                steps = np.array([job.total_steps for job in jobs], dtype=float)
                ends = [(steps / speeds_of(jobs, changed, each)).max() for each in (found.allocation, best)]
                regrets.append(1 - ends[1] / ends[0])
                continue
            now, then = (np.sort(levels_of(jobs, changed, cluster, each)) for each in (found.allocation, best))
            lost = (1 - now / then)[: None if policy == "water_filling" else 1]
            regrets.append(max(0.0, float(lost.max())))
        if (effect := shown.get(estimate.entry)) is None:
            others += regrets
        else:
            assert [effect.regret_low, effect.regret_high] == pytest.approx(regrets, abs=2e-6)
    assert max(effect.regret for effect in found.effects) > 0.01
    assert policy == "water_filling" or found.largest_other is not None
    assert found.largest_other is None or max(others) <= found.largest_other + 2e-6


def test_an_effect_counts_the_jobs_and_gpus_of_its_number_of_gpus() -> None:
    """Two jobs of one type, one elastic: what they hold on 1 and 2 GPUs is that of the allocation, and adds up."""
    rows = [("b", 1, "h100", 4.0), ("b", 2, "h100", 7.0), ("c", 1, "l40s", 1.0), ("c", 1, "h100", 3.0)]
    known = [gp.Measurement(job_type=t, num_gpus=n, accelerator=on, steps_per_second=speed) for t, n, on, speed in rows]
    jobs = [
        gp.Job("elastic", job_type="b", gpu_counts=(1, 2), total_steps=1e6),
        gp.Job("fixed", job_type="b", num_gpus=1, total_steps=1e6),
        gp.Job("elsewhere", job_type="b", num_gpus=1, total_steps=1e6, allowed_accelerators=("h100",)),
    ]
    found = gp.sensitivity(
        jobs, gp.Cluster.from_counts({"h100": 1, "l40s": 2}), gp.ThroughputProfile("mine", known).with_estimates("additive")
    )
    effect = next(each for each in found.effects if each.estimate.entry[:3] == ("b", 1, "l40s"))
    elastic = found.allocation.gpu_counts["elastic"].get(("l40s", 1), 0.0)
    assert effect.jobs == 2
    assert effect.gpus == pytest.approx(elastic + found.allocation.time_fractions[1, 1])
    assert sum(found.allocation.gpus_in_gangs(size) for size in (1, 2)) == pytest.approx(found.allocation.gpus)


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
