"""Reproduce a figure of Gavel's paper in small: mean completion time over the load, with and without knowing the GPUs.

The paper (Narayanan et al., OSDI 2020, figure 8) has 108 GPUs and thousands of jobs; docs/published-comparison.md plays it at that
size. Here it is 12 GPUs and 40 jobs.
"""

from __future__ import annotations

import gavel_py as gp

DURATIONS = gp.LogUniform(((0.8, 1_900, 20_000), (0.2, 20_000, 60_000)))  # (probability, from, to), seconds on a V100
POLICIES = {"aware": gp.resolve_policy("max_min_fairness"), "agnostic": gp.resolve_policy("max_min_fairness", agnostic=True)}


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_inline("v100:4,p100:4,k80:4")
    print("jobs/h  mean completion time, hours")
    for load in (1, 2, 4):
        trace = gp.generate_trace(40, profile, jobs_per_hour=load, gang_mix={1: 1.0}, durations=DURATIONS, seed=1)
        hours = {}
        for name, policy in POLICIES.items():
            result = gp.simulate(trace, cluster, profile, policy, round_seconds=3_600)
            hours[name] = (result.summary.jct.mean or 0.0) / 3_600
            print(f"{load:>6}  {name:<8} {hours[name]:5.2f}  {'#' * round(4 * hours[name])}")
        print(f"        knowing the GPUs saves {1 - hours['aware'] / hours['agnostic']:.0%}")


if __name__ == "__main__":
    main()
