"""The published implementation's instances: our optimum is the reference optimum, and our allocation is valid."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.shared_data import SHARED, needs_shared_data

pytestmark = needs_shared_data

# Published name -> our policy and options. Other published policies belong to policies that we do not have yet.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "max_min_fairness_perf": ("max_min_fairness", {}),
    "max_min_fairness": ("max_min_fairness", {"agnostic": True}),
    "max_sum_throughput_perf": ("max_total_throughput", {"normalized": False}),
    "min_total_duration_perf": ("min_makespan", {}),
    "min_total_duration": ("min_makespan", {"agnostic": True, "reference": "v100"}),
    "finish_time_fairness_perf": ("finish_time_fairness", {}),
    "finish_time_fairness": ("finish_time_fairness", {"agnostic": True, "reference": "v100"}),
}


def fitting_cases() -> list[str]:
    """Names of the cases whose policy is one of ours."""
    folder = SHARED / "reference_cases"
    cases = (json.loads(path.read_text()) for path in sorted(folder.glob("policy_*.json")))
    return [case["case_id"] for case in cases if case["policy"] in OURS and not case["instance"]["packed"]]


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
        num_gpus=instance["scale_factors"],
        weights=instance["priority_weights"],
        steps_remaining=instance["num_steps_remaining"],
        elapsed_seconds=None if just_arrived else instance["times_since_start"],
    )


def test_there_are_sixteen_fitting_cases() -> None:
    assert len(fitting_cases()) == 16


@pytest.mark.parametrize("case_id", fitting_cases())
def test_optimum_is_the_reference_optimum(case_id: str) -> None:
    case = load_case(case_id)
    policy, options = OURS[case["policy"]]
    problem = problem_of(case)
    allocation = gp.solve(problem, policy, **options)
    reference = case["reference_optimum_HiGHS"]
    assert allocation.objective_value == pytest.approx(reference, rel=1e-6)
    assert allocation.objective_bound == pytest.approx(reference, rel=1e-6)
    x = allocation.time_fractions
    assert x.min() >= -1e-9
    assert x.sum(axis=1).max() <= 1 + 1e-9
    assert np.all(problem.num_gpus @ x <= problem.capacities + 1e-9)
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
