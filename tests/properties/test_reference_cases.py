"""The published implementation's instances: our optimum is the reference optimum, and our allocation is valid."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.support.shared_data import SHARED, needs_shared_data

pytestmark = needs_shared_data

# Published name -> our policy and options. The other published policies have no counterpart yet.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "max_min_fairness_perf": ("max_min_fairness", {}),
    "max_min_fairness": ("max_min_fairness", {"agnostic": True}),
    "max_sum_throughput_perf": ("max_total_throughput", {"normalized": False}),
    "max_sum_throughput_normalized_by_cost_perf": ("throughput_per_dollar", {}),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": ("throughput_per_dollar", {"constraints": (gp.Deadline(),)}),
    "min_total_duration_perf": ("min_makespan", {}),
    "min_total_duration": ("min_makespan", {"agnostic": True, "reference": "v100"}),
    "finish_time_fairness_perf": ("finish_time_fairness", {}),
    "finish_time_fairness": ("finish_time_fairness", {"agnostic": True, "reference": "v100"}),
    "max_min_fairness_packed": ("max_min_fairness", {}),
    "max_sum_throughput_normalized_by_cost_packed_SLOs": ("throughput_per_dollar", {"constraints": (gp.Deadline(),)}),
    "min_total_duration_packed": ("min_makespan", {}),
}


def fitting_cases() -> list[str]:
    """Names of the cases whose policy is one of ours."""
    folder = SHARED / "reference_cases"
    cases = (json.loads(path.read_text()) for path in sorted(folder.glob("policy_*.json")))
    return [case["case_id"] for case in cases if case["policy"] in OURS]


def load_case(case_id: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((SHARED / "reference_cases" / f"policy_{case_id}.json").read_text())
    return case


def problem_of(case: dict[str, Any]) -> gp.AllocationProblem:
    instance = case["instance"]
    just_arrived = case["variant"] == "t0"
    return gp.AllocationProblem.from_arrays(
        instance["T"],
        [instance["cluster"][name] for name in instance["worker_types"]],
        accelerator_types=instance["worker_types"],
        prices_per_hour=[(case["instance_costs"] or {}).get(name, np.nan) for name in instance["worker_types"]],
        num_gpus=instance["scale_factors"],
        weights=instance["priority_weights"],
        tenants=[f"entity-{entity}" for entity in instance["entities"]["entity_of_job"]],
        steps_remaining=instance["num_steps_remaining"],
        deadlines_seconds=[instance["SLOs"].get(str(i), np.nan) for i in range(len(instance["T"]))],
        elapsed_seconds=None if just_arrived else instance["times_since_start"],
        **(pairs_of(instance) if instance["packed"] else {}),
    )


def pairs_of(instance: dict[str, Any]) -> dict[str, Any]:
    names, tables = sorted(set(instance["job_types"])), instance["pair_throughputs_by_type"]
    speeds = [[[tables[name][a][b][0] for name in instance["worker_types"]] for b in names] for a in names]
    return {"pair_kinds": [names.index(name) for name in instance["job_types"]], "pair_throughputs": speeds}


def test_there_are_twenty_three_fitting_cases() -> None:
    assert len(fitting_cases()) == 23


@pytest.mark.parametrize("case_id", fitting_cases())
def test_optimum_is_the_reference_optimum(case_id: str) -> None:
    case = load_case(case_id)
    name, options = OURS[case["policy"]]
    problem = problem_of(case)
    allocation = gp.solve(problem, gp.policy_class(name)(**options))
    reference = case["reference_optimum_HiGHS"]
    assert allocation.objective_value == pytest.approx(reference, rel=1e-6)
    assert allocation.objective_bound == pytest.approx(reference, rel=1e-6)
    x = allocation.time_fractions
    assert x.min() >= -1e-9
    assert x.sum(axis=1).max() <= 1 + 1e-9
    pairs = np.zeros_like(x) if allocation.pairs is None else allocation.pairs.by_job(*x.shape)
    assert np.all(problem.num_gpus @ (x - pairs / 2) <= problem.capacities + 1e-9)
    assert np.all(x[problem.throughputs == 0] == 0)


@pytest.mark.parametrize("case_id", [c for c in fitting_cases() if c.startswith("max_min_fairness_perf")])
def test_objective_value_is_what_its_formula_says(case_id: str) -> None:
    case = load_case(case_id)
    problem = problem_of(case)
    allocation = gp.solve(problem, "max_min_fairness")
    throughputs = (problem.throughputs * allocation.time_fractions).sum(axis=1)
    share = problem.throughputs @ problem.capacities / problem.capacities.sum()
    assert allocation.objective_value == pytest.approx(
        (problem.num_gpus * throughputs / (problem.weights * share)).min(), rel=1e-12
    )
    assert allocation.throughputs == pytest.approx(throughputs, rel=1e-12)


@pytest.mark.parametrize("case_id", ["isolated_1gpu_n8_s0", "isolated_mgpu_n8_s0"])
def test_the_isolated_share_is_the_published_one(case_id: str) -> None:
    """Compare, except for time where a job cannot run, which we do not give. The file has nine decimal digits."""
    case = load_case(case_id)
    problem = problem_of(case)
    allocation = gp.solve(problem, "isolated")
    assert allocation.time_fractions == pytest.approx(np.where(problem.runnable, case["X"], 0), abs=1e-9)
    assert allocation.throughputs == pytest.approx(np.array(case["objective"]["effective_throughput"]), rel=1e-8)


def test_strategy_proof_throughputs_are_the_reference_ones() -> None:
    """The published policy ignores weights, so all are 1; throughputs are those after the discount."""
    case = load_case("max_min_fairness_strategy_proof_1gpu_n8_s0")
    instance = case["instance"]
    problem = gp.AllocationProblem.from_arrays(instance["T"], [instance["cluster"][name] for name in instance["worker_types"]])
    proof, plain = (gp.solve(problem, "nash_welfare", strategy_proof=flag) for flag in (True, False))
    assert proof.throughputs == pytest.approx(case["objective"]["effective_throughput"], rel=1e-4)
    assert proof.throughputs / plain.throughputs == pytest.approx(case["discount_factors"], rel=1e-4)


@pytest.mark.parametrize("size", ["1gpu", "mgpu"])
@pytest.mark.parametrize("agnostic", [False, True])
def test_water_filling_throughputs_are_the_reference_ones(size: str, agnostic: bool) -> None:
    """Compare the whole vector v, which is unique; for the agnostic twin, v is the total time of each job."""
    case = load_case(f"max_min_fairness_water_filling{'' if agnostic else '_perf'}_{size}_n8_s0")
    allocation = gp.solve(problem_of(case), "water_filling", agnostic=agnostic)
    found = allocation.time_fractions.sum(axis=1) if agnostic else allocation.normalized_throughputs
    assert found == pytest.approx(np.array(case["objective"]["v"]), rel=1e-5, abs=1e-5)


def test_water_filling_throughputs_of_jobs_that_share_are_the_reference_ones() -> None:
    case = load_case("max_min_fairness_water_filling_packed_1gpu_n8_s0")
    found = gp.solve(problem_of(case), "water_filling").normalized_throughputs
    assert found == pytest.approx(np.array(case["objective"]["v"]), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    "case_id", [f"max_min_fairness_water_filling_{kind}_n8_s0" for kind in ("perf_hier_1gpu", "perf_hier_mgpu", "packed_hier_1gpu")]
)
def test_hierarchical_throughputs_are_the_reference_ones(case_id: str) -> None:
    """The values v of the file are within 3e-7; its reference optimum is that of the first stop."""
    case = load_case(case_id)
    entities = zip(*(case["instance"]["entities"][name] for name in ("weights", "policies")), strict=True)
    tree = gp.TenantTree([gp.Tenant(f"entity-{i}", weight=weight, policy=rule) for i, (weight, rule) in enumerate(entities)])
    allocation = gp.solve(problem_of(case), "hierarchical", tenants=tree)
    assert allocation.normalized_throughputs == pytest.approx(np.array(case["objective"]["v"]), rel=1e-5, abs=1e-5)
    first = next(stage for stage in allocation.stages if stage.name == "first stop")
    assert first.value == pytest.approx(case["reference_optimum_HiGHS"], rel=1e-6)
    problem = problem_of(case)
    work = problem.num_gpus * np.array(case["objective"]["v"])
    weights = case["instance"]["entities"]["weights"]
    names = np.array(problem.tenants)
    least = min(work[names == f"entity-{i}"].sum() / weight for i, weight in enumerate(weights) if (names == f"entity-{i}").any())
    assert allocation.objective_value == pytest.approx(least, rel=1e-5)
    assert allocation.objective_bound == pytest.approx(least, rel=1e-5)
