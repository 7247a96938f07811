"""Elastic jobs: an allocation chooses the number of GPUs, against the program with one row per job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

import gavel_py as gp
from tests.support.commands import runner
from tests.support.examples import examples

Floats = NDArray[np.float64]

SIZES = (1, 2, 4, 8)

PROGRAMS = ("max_min_fairness", "min_makespan", "max_total_throughput", "max_progress_rate", "throughput_per_dollar")

REFUSING = (
    *("finish_time_fairness", "min_cost", "shortest_job_first", "least_attained_service", "priority", "fifo"),
    *("isolated", "proportional", "allox", "gandiva"),
)


def case(seed: int, jobs: int, kinds: int = 5, rigid: int = 3) -> dict[str, Any]:
    """Arrays of elastic jobs of some kinds, after some with fixed gangs."""
    chance = np.random.default_rng(seed)
    speeds = chance.uniform(1, 5, (kinds, 3, 1)) * np.array(SIZES) ** chance.uniform(0.3, 1.05, (kinds, 1, 1))
    speeds[chance.random(speeds.shape) < 0.2] = 0
    speeds[:, 0, 0] = 1.0
    of = chance.integers(0, kinds, jobs)
    of[:rigid] = -1
    return {
        "throughputs": chance.uniform(1, 5, (jobs, 3)),
        "capacities": np.array([8.0, 4.0, 6.0]) * max(1, jobs // 10),
        "num_gpus": np.where(of < 0, chance.choice(SIZES[:3], jobs), 1),
        "weights": chance.choice([1.0, 2.0], jobs),
        "total_steps": chance.choice([10.0, 50.0], jobs),
        "prices_per_hour": [3.0, 2.0, 1.0],
        "count_kinds": of,
        "gpu_counts": SIZES,
        "count_throughputs": speeds,
    }


def choices(given: dict[str, Any]) -> list[tuple[int, int, float, float]]:
    """(job, type, GPUs, steps/s) of all choices, and none that a type cannot hold."""
    found = []
    for i, kind in enumerate(given["count_kinds"]):
        for j in range(len(given["capacities"])):
            if kind < 0:
                found.append((i, j, float(given["num_gpus"][i]), float(given["throughputs"][i][j])))
            else:
                found += [(i, j, float(n), float(t)) for n, t in zip(SIZES, given["count_throughputs"][kind][j], strict=True)]
    return [each for each in found if each[2] <= given["capacities"][each[1]] and each[3] > 0]


def shares(given: dict[str, Any]) -> Floats:
    """P_i as defined: the speed of each GPU at the smallest number offered, on the cluster's mix of GPUs."""
    mix = np.asarray(given["capacities"]) / np.sum(given["capacities"])
    found = []
    for i, kind in enumerate(given["count_kinds"]):
        if kind < 0:
            found.append(float(given["throughputs"][i] @ mix) / given["num_gpus"][i])
            continue
        offered = [[(t / n) for n, t in zip(SIZES, row, strict=True) if t > 0] for row in given["count_throughputs"][kind]]
        found.append(sum(part * (rates[0] if rates else 0.0) for part, rates in zip(mix, offered, strict=True)))
    return np.array(found)


def row_per_job(given: dict[str, Any], level: Floats | None, gains: Floats | None) -> float:
    """The optimum of max θ, thr_i >= θ level_i, or of max Σ gains_e x_e, in one program of all choices without classes."""
    entries = choices(given)
    jobs, types, sizes, speeds = (np.array(each) for each in zip(*entries, strict=True))
    count, wide, e = len(given["count_kinds"]), len(given["capacities"]), np.arange(len(entries))
    rows = [count + jobs, 2 * count + types]
    values, columns = [np.ones(len(e)), sizes], [e, e]
    costs = np.append(np.zeros(len(e)), -1.0) if gains is None else np.append(-gains, 0.0)
    if level is not None:
        rows += [jobs, np.arange(count)]
        values += [-speeds, level]
        columns += [e, np.full(count, len(e))]
    table = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), (2 * count + wide, len(e) + 1))
    limits = np.concatenate([np.zeros(count), np.ones(count), given["capacities"]])
    return -float(linprog(costs, A_ub=table.tocsc(), b_ub=limits, method="highs").fun)


def optimum(given: dict[str, Any], policy: str) -> float:
    entries, weights, share = choices(given), given["weights"], shares(given)
    jobs, types, _, speeds = (np.array(each) for each in zip(*entries, strict=True))
    match policy:
        case "max_min_fairness":
            return row_per_job(given, weights * share, None)
        case "min_makespan":
            return 1 / row_per_job(given, given["total_steps"], None)
        case "max_total_throughput":
            gangs = np.where(given["count_kinds"] < 0, given["num_gpus"], 1)  # a fixed gang is normalised by P_i of the gang
            return row_per_job(given, None, speeds / (share * gangs)[jobs])
        case "max_progress_rate":
            return row_per_job(given, None, (weights / given["total_steps"])[jobs] * speeds)
        case _:
            return row_per_job(given, None, speeds / np.array(given["prices_per_hour"])[types])


@pytest.mark.parametrize("policy", PROGRAMS)
@pytest.mark.parametrize(("seed", "jobs"), [(0, 4), (1, 12), (2, 40)])
def test_the_objective_is_that_of_the_program_with_one_row_per_job(policy: str, seed: int, jobs: int) -> None:
    given = case(seed, jobs)
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**given), policy)
    assert allocation.objective_value == pytest.approx(optimum(given, policy), rel=1e-9)
    assert allocation.verify().gap <= 1e-9


def test_a_thousand_jobs_are_as_exact() -> None:
    given = case(3, 1000, kinds=60, rigid=100)
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**given))
    assert allocation.route is not None
    assert allocation.route.classes < 500
    assert allocation.objective_value == pytest.approx(optimum(given, "max_min_fairness"), rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(["max_min_fairness", "max_total_throughput"]))
@settings(max_examples=examples(15))
def test_the_times_are_valid_and_add_up(seed: int, policy: str) -> None:
    arrays = case(seed, 9)
    problem = gp.AllocationProblem.from_arrays(**arrays)
    allocation = gp.solve(problem, policy)
    speed, gpus, time = np.zeros(9), np.zeros((9, 3)), np.zeros(9)
    for job, parts in allocation.gpu_counts.items():
        i = problem.job_ids.index(job)
        for (name, count), part in parts.items():
            j = allocation.accelerator_types.index(name)
            speed[i] += part * arrays["count_throughputs"][arrays["count_kinds"][i], j, SIZES.index(count)]
            gpus[i, j] += part * count
            time[i] += part
    elastic = arrays["count_kinds"] >= 0
    assert np.allclose(speed[elastic], allocation.throughputs[elastic], rtol=1e-9, atol=1e-12)
    assert np.allclose(gpus[elastic], allocation.gpus[elastic], rtol=1e-9, atol=1e-12)
    assert (time <= 1 + 1e-9).all()
    assert (allocation.gpus.sum(axis=0) <= arrays["capacities"] * (1 + 1e-9)).all()


@given(st.integers(0, 10**6))
@settings(max_examples=examples(10))
def test_the_order_of_jobs_and_kinds_does_not_matter(seed: int) -> None:
    arrays = case(seed, 12, kinds=3)
    one = gp.solve(gp.AllocationProblem.from_arrays(**arrays, job_ids=[str(n) for n in range(12)]))
    order = np.random.default_rng(seed).permutation(12)
    moved: dict[str, Any] = {name: arrays[name][order] for name in ("throughputs", "num_gpus", "weights", "total_steps")}
    kinds = np.where(arrays["count_kinds"] < 0, -1, 2 - arrays["count_kinds"])[order]
    moved |= {"count_kinds": kinds, "count_throughputs": arrays["count_throughputs"][::-1], "job_ids": list(map(str, order))}
    other = gp.solve(gp.AllocationProblem.from_arrays(**(arrays | moved)))
    assert np.array_equal(one.throughputs[order], other.throughputs)


@pytest.mark.parametrize("policy", [*PROGRAMS, "nash_welfare", "water_filling"])
def test_a_single_number_of_gpus_is_a_fixed_gang(policy: str) -> None:
    """With one number each, v_i / w_i is today's s_i v_i / w_i, and all answers are those of fixed gangs."""
    chance = np.random.default_rng(7)
    sizes, speeds = np.array([1, 2, 4, 2, 1, 4]), chance.uniform(1, 5, (6, 2))
    capacities, common = [6.0, 5.0], {"total_steps": chance.uniform(10, 50, 6), "prices_per_hour": [2.0, 1.0]}
    fixed = gp.AllocationProblem.from_arrays(speeds, capacities, num_gpus=sizes, **common)
    table = np.zeros((6, 2, 3))
    table[np.arange(6), :, [0, 1, 2, 1, 0, 2]] = speeds
    elastic = gp.AllocationProblem.from_arrays(
        speeds, capacities, **common, count_kinds=np.arange(6), gpu_counts=[1, 2, 4], count_throughputs=table
    )
    assert np.allclose(elastic.equal_share, fixed.equal_share / sizes)
    assert np.allclose(elastic.fair_share, fixed.fair_share * sizes)
    options = {"normalized": False} if policy == "max_total_throughput" else {}
    one, other = gp.solve(fixed, policy, **options), gp.solve(elastic, policy, **options)
    if policy == "nash_welfare":  # Σ log(thr_i / P_i) differs by the constant Σ log s_i
        assert other.objective_value == pytest.approx(one.objective_value + np.log(sizes).sum(), rel=1e-6)
    else:
        assert other.objective_value == pytest.approx(one.objective_value, rel=1e-9)
    assert np.allclose(one.vs_fair_share.min(), other.vs_fair_share.min(), rtol=1e-4)


def test_stages_of_several_objectives_are_proven_with_elastic_jobs() -> None:
    given = case(6, 10)
    problem = gp.AllocationProblem.from_arrays(**given, tenants=["a", "b"] * 5)
    best = optimum(given, "max_min_fairness")
    fair = gp.resolve_policy("max_min_fairness", efficiency=False)
    for policy in ("water_filling", gp.Then(fair, gp.resolve_policy("max_total_throughput"))):
        allocation = gp.solve(problem, policy)
        assert allocation.objective_value == pytest.approx(best, rel=1e-6)
        assert all(stage.gap <= stage.accepted_gap for stage in allocation.verify().stages)
    tree = gp.solve(problem, "hierarchical", tenants={"a": {"weight": 1}, "b": {"weight": 3}})
    assert tree.verify().gap <= 1e-6
    work = problem.num_gpus * tree.normalized_throughputs
    assert min(work[::2].sum(), work[1::2].sum() / 3) >= tree.objective_value * (1 - 1e-6)


def test_an_elastic_job_is_never_worse_off_than_the_best_fixed_size() -> None:
    given = case(11, 10, rigid=0)
    free = gp.solve(gp.AllocationProblem.from_arrays(**given)).objective_value
    for place, size in enumerate(SIZES):
        table = np.where(np.arange(4) == place, given["count_throughputs"], 0.0)
        problem = gp.AllocationProblem.from_arrays(**(given | {"count_throughputs": table}))
        if not problem.excluded:
            level = min(gp.solve(problem).throughputs / (given["weights"] * shares(given)))
            assert level <= free * (1 + 1e-9), size


def test_a_price_bounds_what_one_more_gpu_is_worth() -> None:
    problem = gp.AllocationProblem.from_arrays(**case(5, 8))
    now = gp.solve(problem, "max_total_throughput")
    for j in range(3):
        more = gp.solve(problem.with_capacities(problem.capacities + (np.arange(3) == j)), "max_total_throughput")
        assert now.objective_value <= more.objective_value <= now.objective_value + now.shadow_prices[j] + 1e-9


@pytest.mark.parametrize("policy", REFUSING)
def test_other_policies_refuse_elastic_jobs_by_name(policy: str) -> None:
    with pytest.raises(gp.InputError, match=f"policy {policy}"):
        gp.solve(gp.AllocationProblem.from_arrays(**case(0, 6)), policy)


def test_agnostic_twins_and_sharing_refuse_elastic_jobs() -> None:
    problem = gp.AllocationProblem.from_arrays(**case(0, 6))
    with pytest.raises(gp.InputError, match="ignores throughputs, so it cannot choose the number of GPUs"):
        gp.solve(problem, "max_min_fairness", agnostic=True)
    pairs = {"pair_kinds": np.zeros(6, dtype=int) - 1, "pair_throughputs": np.zeros((1, 1, 3))}
    with pytest.raises(gp.InputError, match="disable sharing"):
        gp.solve(gp.AllocationProblem.from_arrays(**case(0, 6), **pairs))


def test_min_cost_takes_elastic_jobs_with_a_share() -> None:
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**case(0, 6)), "min_cost", min_share=0.5)
    assert (allocation.throughputs >= 0.5 * allocation.evidence.base.equal_share * (1 - 1e-6)).all()  # type: ignore[union-attr]
    assert allocation.gap <= 1e-6


@pytest.mark.parametrize("limit", [2.0, 5.0])
def test_limits_count_every_gpu(limit: float) -> None:
    tenants = ["a", "b"] * 4
    problem = gp.AllocationProblem.from_arrays(**case(2, 8, rigid=2), tenants=tenants)
    rules = [gp.MaxGpus(limit, tenant="a"), gp.CostBudget(20.0), gp.Forbid("1", ["type-1"])]
    allocation = gp.solve(problem, "max_total_throughput", constraints=rules)
    allocation.verify()
    held = allocation.gpus
    assert held[::2].sum() == pytest.approx(limit, rel=1e-6)
    assert (held * problem.prices_per_hour).sum() <= 20 * (1 + 1e-9)
    assert not held[1, 1].any()


def test_a_throughput_is_guaranteed_up_to_that_of_the_best_number() -> None:
    given = case(4, 6, rigid=0)
    problem = gp.AllocationProblem.from_arrays(**given)
    best = float(problem.fastest[2])
    kept = gp.solve(problem, constraints=[gp.MinThroughput("2", 0.9 * best)])
    assert kept.throughputs[2] >= 0.9 * best * (1 - 1e-9)
    with pytest.raises(gp.ConflictError, match="all of the time on the fastest type gives only"):
        gp.solve(problem, constraints=[gp.MinThroughput("2", 1.1 * best)])


PROFILE = """\
job_type,num_gpus,accelerator,steps_per_second
resnet,1,v100,1.0
resnet,2,v100,1.9
resnet,4,v100,3.4
resnet,8,v100,5.5
resnet,1,k80,0.2
resnet,2,k80,0.39
resnet,4,k80,0.7
bert,2,v100,2.0
bert,4,v100,3.8
bert,8,v100,7.0
"""

JOBS = """\
job_id,job_type,gpu_counts,min_gpus,max_gpus,num_gpus,total_steps
a,resnet,1|2|4|8,,,,1e5
b,bert,2|4|8,,,,1e5
c,resnet,,,,2,1e5
d,resnet,,2,4,,2e5
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "profile.csv").write_text(PROFILE)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def loaded(files: Path) -> tuple[gp.JobSet, gp.ThroughputProfile]:
    return gp.JobSet.from_file(files / "jobs.csv"), gp.ThroughputProfile.from_file(files / "profile.csv")


def test_a_profile_gives_the_throughputs_by_gang_size(files: Path) -> None:
    jobs, profile = loaded(files)
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline("v100:8,k80:4"), profile)
    assert problem.counts is not None
    assert problem.counts.offered(0, 1) == {1: 0.2, 2: 0.39, 4: 0.7}
    assert problem.counts.offered(1, 1) == {}
    assert problem.counts.offered(3, 0) == {2: 1.9, 4: 3.4}
    assert problem.num_gpus.tolist() == [1, 1, 2, 1]
    assert problem.equal_share[0] == pytest.approx((8 * 1.0 + 4 * 0.2) / 12)
    assert problem.equal_share[1] == pytest.approx(8 * 1.0 / 12)
    assert problem.fastest.tolist() == [5.5, 7.0, 1.9, 3.4]


def test_whole_gangs_of_each_number_are_delivered(files: Path) -> None:
    """One node of 8: when 8 GPUs are one job's, the fixed gang of 2 waits, so 8 GPUs need its absence."""
    jobs, profile = loaded(files)
    cluster = gp.Cluster.from_inline("v100:8")
    two = gp.JobSet([jobs[1].model_copy(update={"gpu_counts": (8,)}), jobs[2]])
    problem = gp.AllocationProblem.from_jobs(two, cluster, profile)
    whole = gp.solve(problem)
    apart = gp.solve(gp.AllocationProblem.from_jobs(two, cluster, profile, whole_gangs=False))
    assert whole.objective_value == pytest.approx(1.6)
    assert apart.objective_value == pytest.approx(2)
    assert whole.time_fractions.sum() == pytest.approx(1)
    assert apart.time_fractions.sum() == pytest.approx(1.75)
    whole.verify()


def test_cpus_and_memory_count_for_every_gpu(files: Path) -> None:
    jobs, profile = loaded(files)
    node = gp.Node(name="n", accelerator="v100", num_gpus=8, cpus=8)
    hungry = gp.JobSet([jobs[0].model_copy(update={"cpus_per_gpu": 2.0})])
    problem = gp.AllocationProblem.from_jobs(hungry, gp.Cluster([node]), profile)
    assert problem.counts is not None
    assert problem.counts.offered(0, 0) == {1: 1.0, 2: 1.9, 4: 3.4}
    many = gp.JobSet([job.model_copy(update={"job_id": str(n)}) for n in range(6) for job in hungry])
    allocation = gp.solve(gp.AllocationProblem.from_jobs(many, gp.Cluster([node]), profile), "max_total_throughput")
    assert 2 * allocation.gpus.sum() <= 8 * (1 + 1e-9)
    assert allocation.gpus.sum() == pytest.approx(4)


def test_jobs_without_a_number_that_fits_are_excluded_with_the_reason(files: Path) -> None:
    jobs, profile = loaded(files)
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline("v100:1,k80:1"), profile)
    assert problem.excluded["b"] == "no number of GPUs that it can run on fits (v100: 2, 4, 8)"
    assert set(gp.solve(problem).gpu_counts) == {"a"}


def test_a_missing_number_is_estimated_if_asked_for(files: Path) -> None:
    jobs, profile = loaded(files)
    estimated = profile.with_estimates("additive")
    problem = gp.AllocationProblem.from_jobs(jobs[1:2], gp.Cluster.from_inline("v100:8,k80:4"), estimated)
    assert problem.counts is not None
    assert problem.counts.offered(0, 1).keys() == {2, 4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpu_counts": (0, 1)}, "gpu_counts must be whole numbers of GPUs from 1"),
        ({"gpu_counts": (2, 2)}, "gpu_counts has 2 twice"),
        ({"gpu_counts": ()}, "must name at least one number"),
        ({"gpu_counts": (1, 2), "num_gpus": 4}, "num_gpus and gpu_counts are both given"),
        ({"max_gpus": 4, "num_gpus": 2}, "num_gpus and max_gpus are both given"),
        ({"min_gpus": 4, "max_gpus": 2}, "min_gpus must not exceed max_gpus, found 4 and 2"),
        ({"min_gpus": 4}, "min_gpus needs max_gpus"),
        ({"gpu_counts": (1, 2), "max_gpus": 4}, "give only one"),
        ({"gpu_counts": "1|two"}, "must be a whole number, found 'two'"),
    ],
)
def test_wrong_numbers_of_gpus_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        gp.Job("a", **fields)


def test_numbers_that_the_profile_lacks_are_named(files: Path) -> None:
    _, profile = loaded(files)
    cluster = gp.Cluster.from_inline("v100:8")
    with pytest.raises(gp.MissingThroughputError, match="no throughput of 'bert' on any of 1, 16 GPUs"):
        gp.AllocationProblem.from_jobs([gp.Job("x", job_type="bert", gpu_counts=(1, 16))], cluster, profile)
    with pytest.raises(gp.MissingThroughputError, match="no gang of 16 to 32 GPUs"):
        gp.AllocationProblem.from_jobs([gp.Job("x", job_type="bert", min_gpus=16, max_gpus=32)], cluster, profile)
    by_job = gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["x"], accelerators=["v100"])
    with pytest.raises(gp.InputError, match="needs throughputs by number of GPUs"):
        gp.AllocationProblem.from_jobs([gp.Job("x", gpu_counts=(1, 2))], cluster, by_job)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count_kinds", None, "is required with count_kinds, gpu_counts, count_throughputs"),
        ("gpu_counts", [2, 1, 4, 8], "ascending order"),
        ("gpu_counts", [0, 1, 2, 4], "ascending order"),
        ("count_kinds", np.full(6, 9), "whole numbers from 0 to 4, or -1"),
        ("count_throughputs", np.full((5, 3, 4), -1.0), "must be finite numbers of at least 0"),
        ("count_throughputs", np.ones((5, 4)), "must have the shape"),
    ],
)
def test_wrong_arrays_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        gp.AllocationProblem.from_arrays(**(case(0, 6) | {name: value}))


@pytest.mark.parametrize("job_ids", [None, list("012345")])
def test_files_keep_the_times_by_number(job_ids: list[str] | None) -> None:
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**case(0, 6), job_ids=job_ids))
    for again in (gp.Allocation.from_json(allocation.to_json()), gp.Allocation.from_dict(allocation.to_dict(by_column=True))):
        assert again.gpu_counts == allocation.gpu_counts
    assert all(str(count) in json.dumps(allocation["3"]["gpu_counts"]) for _, count in allocation.gpu_counts["3"])


def test_a_false_number_does_not_verify() -> None:
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**case(0, 6)))
    assert allocation.counts is not None
    with pytest.raises(gp.ProofError, match="the counts of elastic jobs"):
        replace(allocation, counts=replace(allocation.counts, counts=allocation.counts.counts + 1)).verify()


def test_the_published_program_has_the_same_optimum(tmp_path: Path) -> None:
    problem = gp.AllocationProblem.from_arrays(**case(1, 6))
    value = gp.solve(problem, "max_total_throughput").objective_value
    assert gp.formulation(problem, "max_total_throughput").solve() == pytest.approx(value, rel=1e-6)
    gp.write_program(problem, tmp_path / "p.lp", "max_total_throughput")
    assert "type_0_x4" in (tmp_path / "p.lp").read_text()


def test_a_time_limit_still_gives_a_valid_allocation() -> None:
    given = case(3, 400, kinds=100)
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**given), time_limit_seconds=1e-9)
    assert allocation.status == "time_limit"
    assert (allocation.gpus.sum(axis=0) <= given["capacities"] * (1 + 1e-9)).all()


def test_explain_says_why_this_number(files: Path) -> None:
    jobs, profile = loaded(files)
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline("v100:8,k80:4"), profile, whole_gangs=False)

    def texts(job: str, policy: str) -> list[str]:
        return [each.text for each in gp.explain(problem, job, policy).bindings if each.kind == "count"]

    some = "which others need for a part of the time"
    assert texts("b", "max_total_throughput") == [
        f"on 4 or 8 v100: 8 GPUs add 84.2 % to its speed there for twice the GPUs, {some}"
    ]
    assert texts("a", "max_total_throughput") == ["on 4 k80: no larger number of GPUs is offered on k80"]
    assert texts("a", "max_min_fairness")[0] == "on 4 v100: 8 GPUs would add 61.8 % to its speed there for twice the GPUs"


def test_the_commands_show_the_numbers(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run, options = runner(capsys), ["--cluster", "v100:8,k80:4", "--profile", str(files / "profile.csv")]
    shown = run("solve", str(files / "jobs.csv"), *options).out
    assert "2 v100" in shown
    assert "1-8" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "would add" in run("explain", "a", str(files / "jobs.csv"), *options).out


@pytest.mark.parametrize(
    ("policy", "options", "is_noted"),
    [
        ("max_total_throughput", {}, True),
        ("min_cost", {"min_share": 0.5}, True),
        (gp.Then(gp.resolve_policy("max_min_fairness"), gp.resolve_policy("max_total_throughput")), {}, True),
        (0.5 * gp.resolve_policy("max_total_throughput"), {}, True),  # type: ignore[operator]
        ("max_total_throughput", {"normalized": False}, False),
        ("min_cost", {"min_share": 0}, False),
        ("max_min_fairness", {}, False),
        ("nash_welfare", {}, False),
    ],
)
def test_gangs_and_elastic_jobs_in_different_units_are_noted(policy: Any, options: dict[str, Any], is_noted: bool) -> None:
    """A gang of 4 counts a quarter of an elastic job on 4 GPUs, but as an elastic job itself as much."""
    arrays = {"capacities": [4], "count_kinds": [-1, 0], "gpu_counts": [4], "count_throughputs": [[[3.5]]], "prices_per_hour": [1]}
    arrays |= {"total_steps": [1e4, 1e4]}
    gang = gp.AllocationProblem.from_arrays([[3.5], [3.5]], num_gpus=[4, 1], **arrays)
    notes = gp.solve(gang, policy, **options).to_dict()["notes"]
    assert len(notes) == is_noted
    assert all("each GPU of an elastic job counts as one" in note for note in notes)
    single = gp.AllocationProblem.from_arrays([[3.5], [3.5]], **arrays | {"count_kinds": [0, 0]})
    assert gp.solve(single, policy, **options).notes == ()
    one = gp.AllocationProblem.from_arrays([[1.0], [3.5]], num_gpus=[1, 1], **arrays)  # of one GPU both units are the same
    assert gp.solve(one, policy, **options).notes == ()
