"""Compare clusters: for about 5 more per hour, which GPUs should be added for the jobs at hand?"""

from __future__ import annotations

import gavel_py as gp

PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # of one GPU, per hour
TODAY = {"v100": 32, "p100": 40, "k80": 40}
OFFERS = {"2 v100": {"v100": 2}, "3 p100": {"p100": 3}, "11 k80": {"k80": 11}, "6 v100 for 22 k80": {"v100": 6, "k80": -22}}


def main() -> None:
    jobs = gp.JobSet.from_file("examples/jobs.csv")
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    now = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts(TODAY), profile, whole_gangs=False)
    fair = gp.solve(now, "max_min_fairness")
    worst = fair.vs_fair_share.min()
    print(f"today: the worst-off job gets {worst:.1%} of its fair share")
    if fair.shadow_prices is not None and fair.objective_value:
        for kind, value in zip(now.accelerator_types, fair.shadow_prices / fair.objective_value, strict=True):
            print(f"  one more {kind}: at most {value:+.2%}, or {value / PRICES[kind]:+.2%} for each 1.00 per hour")

    print("offer              per hour   gain  for each 1.00 per hour")
    for name, change in OFFERS.items():
        gpus = {kind: count + change.get(kind, 0) for kind, count in TODAY.items()}
        # The same problem with other GPUs: a fair share stays that of today's cluster, so that the figures compare.
        then = gp.solve(now.with_capacities(list(gpus.values())), "max_min_fairness")
        cost = sum(PRICES[kind] * count for kind, count in change.items())
        gain = then.vs_fair_share.min() / worst - 1
        print(f"{name:<18} {cost:>8.2f}  {gain:>+5.1%}  {gain / cost:+.2%}")


if __name__ == "__main__":
    main()
