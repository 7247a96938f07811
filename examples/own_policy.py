"""Write a policy of your own: an objective, proven like the built-in ones, and an order; and check that they keep the contract."""

from __future__ import annotations

from typing import Any

import cvxpy as cp

import gavel_py as gp
from gavel_py.testing import check_policy


class LeastDelay(gp.SumPolicy):
    """Least potential delay: min Σ_i w_i / v_i, between proportional and max-min fairness."""

    direction = "min"
    reads = ("weights",)

    def objective(self, program: gp.Program) -> Any:
        return program.total(cp.multiply(program.weights, cp.inv_pos(program.normalized_throughput)))


class LargestFirst(gp.OrderedPolicy):
    """Large gangs go first, so that small jobs do not keep them from starting."""

    def sort_key(self, jobs: gp.JobClasses) -> Any:
        return -jobs.num_gpus


def main() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[4, 1], [2, 1], [1, 1], [6, 2]],  # steps per second
        [4, 2],  # GPUs of each type
        num_gpus=[1, 2, 1, 4],
        weights=[1, 1, 2, 1],
        job_ids=["bert", "resnet", "lstm", "vit"],
        accelerator_types=["v100", "k80"],
    )
    print("policy              speeds of " + ", ".join(problem.job_ids))
    for policy in (gp.resolve_policy("max_min_fairness"), LeastDelay(), LargestFirst()):
        allocation = gp.solve(problem, policy)
        speeds = "  ".join(f"{speed:.2f}" for speed in allocation.normalized_throughputs)
        value, bound = allocation.objective_value, allocation.objective_bound
        print(f"{allocation.policy:<18}  {speeds}" + (f"  objective {value:.4f}, proven bound {bound:.4f}" if value else ""))
    report = check_policy(LargestFirst(), problems=1)
    print(f"largest_first: {len(report.checks)} checks, {len(report.failures)} failed")


if __name__ == "__main__":
    main()
