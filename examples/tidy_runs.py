"""Tidy data from simulations, one row for each job, compared with pandas."""

from __future__ import annotations

import pandas as pd

import gavel_py as gp

POLICIES = ("fifo", "max_min_fairness", "shortest_job_first")


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_inline("v100:2,k80:4")
    durations = gp.LogUniform(((1, 1_800, 18_000),))
    frames = []
    for seed in (0, 1):
        trace = gp.generate_trace(12, profile, jobs_per_hour=4, gang_mix={1: 0.8, 2: 0.2}, durations=durations, seed=seed)
        for policy in POLICIES:
            result = gp.simulate(trace, cluster, profile, policy, round_seconds=1_800)
            frames.append(result.to_pandas().assign(policy=policy, seed=seed))  # to_columns() for polars and others
    jobs = pd.concat(frames, ignore_index=True)
    jobs.to_csv("jobs-of-all-runs.csv", index=False)

    jobs["hours"] = jobs.jct_seconds / 3600
    print(f"{len(jobs)} rows of {len(jobs.columns)} columns")
    print(jobs.pivot_table(index="policy", columns="num_gpus", values="hours", aggfunc="mean", margins=True).round(2))


if __name__ == "__main__":
    main()
