"""Constraints on any policy: a budget, a quota and a deadline, what each costs, and which of them cannot all hold."""

from __future__ import annotations

import gavel_py as gp


def main() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[4, 1], [4, 1], [2, 1], [2, 1], [1, 1]],  # steps per second
        [4, 4],  # GPUs of each type
        num_gpus=[2, 2, 4, 1, 4],
        job_ids=["vit", "bert", "resnet", "gan", "lstm"],
        accelerator_types=["v100", "k80"],
        prices_per_hour=[2.5, 0.5],
        tenants=["research", "research", "product", "product", "product"],
        steps_remaining=[40_000, 40_000, 20_000, 8_000, 5_000],
        deadlines_seconds=[float("nan")] * 2 + [40_000] + [float("nan")] * 2,
    )
    budget, quota, deadline = (
        gp.CostBudget(per_hour=8),
        gp.Quota(tenant="research", share=0.45, guaranteed=True),
        gp.Deadline(job="resnet"),
    )
    rules = {"none": [], "budget": [budget], "quota": [quota], "deadline": [deadline], "all three": [budget, quota, deadline]}

    print("total speed of all jobs   cost/h  research GPUs  speeds of " + ", ".join(problem.job_ids))
    for name, constraints in rules.items():
        allocation = gp.solve(problem, "max_total_throughput", constraints=constraints)
        cost = allocation.utilization @ (problem.capacities * problem.prices_per_hour)
        research = problem.num_gpus[:2] @ allocation.time_fractions[:2].sum(axis=1)
        speeds = "  ".join(f"{speed:.2f}" for speed in allocation.normalized_throughputs)
        print(f"  {name:<10} {allocation.objective_value:>10.3f}  {cost:>7.2f}  {research:>13.2f}  {speeds}")

    vit = gp.MinThroughput(job="vit", rate=3.5)
    try:
        gp.solve(problem, constraints=[gp.CostBudget(per_hour=6), quota, deadline, vit])
    except gp.ConflictError as error:
        print(error)
    soft = gp.solve(problem, constraints=[gp.CostBudget(per_hour=6).soft(0.1), quota, deadline, vit])
    print("with a soft budget:")
    for outcome in soft.constraints:
        print(f"  {outcome.constraint}: " + ("kept" if outcome.kept else f"missed by {outcome.missed_by:.0%}"))


if __name__ == "__main__":
    main()
