"""The levels of filling policies beside those of exact arithmetic: on time fractions, and on mixes of whole gangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import gavel_py as gp
from tests.support.examples import seeds
from tests.support.instances import Floats
from tests.support.leximin import Space, equal_speeds
from tests.support.rising import incremental_leximin

PARTS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
every_policy = pytest.mark.parametrize("policy", ["water_filling", "hierarchical"])


def nearly_equal(seed: int) -> gp.AllocationProblem:
    """3 to 8 jobs with few different speeds, each of which is off by about one of the parts."""
    part, seed = PARTS[seed % len(PARTS)], seed // len(PARTS)
    chance = np.random.default_rng([seed, 9])
    count, types = int(chance.integers(3, 9)), int(chance.integers(1, 4))
    whole, kinds = chance.choice([1.0, 2, 3, 4], (count, types)), chance.lognormal(0, 0.5, (2, types))
    speeds = (whole if seed % 2 else kinds[chance.integers(0, 2, count)]) * (1 + part * chance.standard_normal((count, types)))
    weights = chance.choice([1.0, 1, 2], count)
    tenants = ["ab"[i % 2] for i in range(count)]
    return gp.AllocationProblem.from_arrays(speeds, chance.choice([1.0, 2, 3, 4], types), weights=weights, tenants=tenants)


def single_precision(seed: int) -> gp.AllocationProblem:
    """3 to 8 jobs with speeds of one decimal, of which one column went through single precision."""
    chance = np.random.default_rng([seed, 23])
    count, types = int(chance.integers(3, 9)), int(chance.integers(2, 4))
    speeds = chance.choice([0.3, 0.7, 1.1, 2.3], (count, types))
    speeds[:, -1] = speeds[:, -1].astype(np.float32)
    tenants = chance.choice(["a", "b"], count).tolist()
    return gp.AllocationProblem.from_arrays(speeds, chance.choice([1.0, 2, 3, 4], types), tenants=tenants)


def small_cluster(seed: int, *, whole_gangs: bool = True) -> gp.AllocationProblem:
    """3 to 8 jobs of one or two kinds and whole gangs, with small whole numbers, on two or three types."""
    chance = np.random.default_rng([seed, 17])
    types = ["v100", "p100", "k80"][: int(chance.integers(2, 4))]
    count, kinds = int(chance.integers(3, 9)), int(chance.integers(1, 3))
    speeds = chance.choice([1.0, 2, 3, 4, 6], (kinds, len(types)))[chance.integers(0, kinds, count)]
    nodes = [(int(chance.integers(1, 6)), int(chance.choice([1, 2, 4, 8]))) for _ in types]
    each = zip(
        chance.choice([1, 1, 2, 3, 4], count), chance.choice([0.5, 1, 1, 2], count), chance.choice(["a", "b"], count), strict=True
    )
    jobs = [gp.Job(f"j{i}", num_gpus=int(s), weight=float(w), tenant=str(t)) for i, (s, w, t) in enumerate(each)]
    profile = gp.ThroughputProfile.from_matrix(speeds, job_ids=[job.job_id for job in jobs], accelerators=types)
    cluster = gp.Cluster.from_inline(",".join(f"{t}:{n * size}/{size}" for t, (n, size) in zip(types, nodes, strict=True)))
    return gp.AllocationProblem.from_jobs(jobs, cluster, profile, whole_gangs=whole_gangs)


def small_numbers(seed: int) -> gp.AllocationProblem:
    return small_cluster(seed, whole_gangs=False)


def gangs_on_one_type(seed: int) -> gp.AllocationProblem:
    """2 to 8 gangs that compete for 2 to 9 GPUs."""
    chance = np.random.default_rng([seed, 31])
    count = int(chance.integers(2, 9))
    sizes, weights = chance.choice([1, 1, 2, 2, 3, 4, 5], count), chance.choice([0.5, 1, 1, 2], count)
    each = zip(sizes.tolist(), weights.tolist(), chance.choice(["a", "b"], count).tolist(), strict=True)
    jobs = [gp.Job(f"j{i}", num_gpus=size, weight=weight, tenant=tenant) for i, (size, weight, tenant) in enumerate(each)]
    ids, speeds = [job.job_id for job in jobs], chance.choice([1.0, 2, 3], (count, 1))
    profile = gp.ThroughputProfile.from_matrix(speeds, job_ids=ids, accelerators=["v100"])
    return gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": int(chance.integers(2, 10))}), profile)


def units_of(problem: gp.AllocationProblem, policy: str) -> Floats:
    """(N,) what a job's steps/s are divided by: P_i, for water-filling times w_i / s_i."""
    share = np.where(problem.equal_share > 0, problem.equal_share, 1.0)
    return share * problem.weights / problem.num_gpus if policy == "water_filling" else share


def exactly(problem: gp.AllocationProblem, policy: str, space: Callable[..., Space] = Space.of_times) -> Floats:
    """(N,) the levels of jobs, for hierarchical v_i, where nearly equal speeds are equal."""
    problem = replace(problem, throughputs=equal_speeds(problem.throughputs, problem.runnable))
    if policy == "hierarchical":
        return incremental_leximin(problem, gp.TenantTree(), space)
    return space(problem, problem.throughputs / units_of(problem, policy)[:, None]).leximin()


def error_on_times(problem: gp.AllocationProblem, policy: str) -> float:
    """The largest relative error of a level."""
    levels, exact = gp.solve(problem, policy).throughputs / units_of(problem, policy), exactly(problem, policy)
    return float(np.max(np.abs(levels - exact) / np.where(exact > 0, exact, 1.0)))


def assert_no_less(levels: Floats, least: Floats) -> None:
    """The first of the sorted levels that differ is larger."""
    ours, theirs = np.sort(levels), np.sort(least)
    apart = np.flatnonzero(np.abs(ours - theirs) > 1e-6 * theirs)
    assert not len(apart) or ours[apart[0]] > theirs[apart[0]]


DRAWS = [nearly_equal, single_precision, small_numbers]


@every_policy
@pytest.mark.parametrize("draw", DRAWS)
def test_levels_are_those_of_exact_arithmetic(policy: str, draw: Callable[[int], gp.AllocationProblem]) -> None:
    assert max(error_on_times(draw(seed), policy) for seed in range(9)) < 1e-6


@pytest.mark.deep
@every_policy
@pytest.mark.parametrize("draw", DRAWS)
def test_levels_of_many_problems_are_those_of_exact_arithmetic(policy: str, draw: Callable[[int], gp.AllocationProblem]) -> None:
    assert max(error_on_times(draw(seed), policy) for seed in seeds(500)) <= 1e-6


@pytest.mark.parametrize("seed", [2980, 2982, 1993, 2567])
def test_others_get_little_of_what_stopped_jobs_give_up(seed: int) -> None:
    """Types of nearly equal speed magnify it by up to 3e6."""
    assert error_on_times(nearly_equal(seed), "water_filling") <= 1e-6


@every_policy
@pytest.mark.parametrize("seed", [0, 10, 19, 30])
def test_a_second_policy_keeps_levels_where_speeds_are_nearly_equal(policy: str, seed: int) -> None:
    """It sees the same speeds: a job at its top must not count as below it for a last digit."""
    parts = (gp.resolve_policy(name) for name in (policy, "max_total_throughput"))
    assert gp.solve(single_precision(seed), gp.Then(*parts)).status == "optimal"


def check_on_whole_gangs(problem: gp.AllocationProblem, policy: str, kept: gp.Solver) -> None:
    """On one type the levels are those that gangs can get. On several they are never less, and a kept solver finds the same."""
    if not problem.runnable.any():
        return
    levels = gp.solve(problem, policy).throughputs / units_of(problem, policy)
    assert kept.solve(problem).throughputs / units_of(problem, policy) == pytest.approx(levels, rel=1e-6)
    most = exactly(problem, policy, Space.of_whole_gangs)
    if len(problem.capacities) == 1:
        assert levels == pytest.approx(most, rel=1e-6)
    else:
        assert_no_less(levels, most)


GANGS = [("water_filling", gangs_on_one_type), ("hierarchical", gangs_on_one_type), ("water_filling", small_cluster)]


@pytest.mark.parametrize("some", [range(6), pytest.param(seeds(500), marks=pytest.mark.deep)], ids=["few", "many"])
@pytest.mark.parametrize(("policy", "draw"), GANGS)
def test_levels_of_whole_gangs_are_those_of_all_their_mixes(
    policy: str, draw: Callable[[int], gp.AllocationProblem], some: range
) -> None:
    kept = gp.Solver(policy)
    for seed in some:
        check_on_whole_gangs(draw(seed), policy, kept)


@pytest.mark.deep
def test_tenants_of_no_small_cluster_are_refused() -> None:
    for seed in seeds(500):
        assert gp.solve(small_cluster(seed), "hierarchical").status in ("optimal", "empty")
