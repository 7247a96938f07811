"""Tidy data from runs, one observation in each row: for pandas, polars, R or a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import gavel_py as gp

Row = dict[str, str | float | None]


def tidy(run: gp.Run) -> Iterator[Row]:
    """Return rows of labels, hour, variable and value: the metrics of a run, and its use of GPUs over time."""
    for name in ("mean_jct_seconds", "makespan_seconds", "utilization", "preemptions"):
        yield {**run.labels, "hour": None, "variable": name, "value": run.metrics[name]}
    if run.over_time is not None:
        for kind, used in run.over_time.used.items():
            for hour, part in zip(run.over_time.seconds / 3600, used, strict=False):
                yield {**run.labels, "hour": round(hour, 3), "variable": f"used {kind}", "value": round(part, 4)}


def main() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_inline("v100:2,k80:4")
    rows: list[Row] = []
    for seed in (0, 1):
        durations = gp.LogUniform(((1, 1_800, 18_000),))
        trace = gp.generate_trace(12, profile, jobs_per_hour=4, gang_mix={1: 0.8, 2: 0.2}, durations=durations, seed=seed)
        for policy in ("fifo", "shortest_job_first"):
            rows += tidy(gp.record_run(trace, cluster, profile, policy, labels={"seed": seed}, round_seconds=1_800))

    with open("runs.csv", "w", newline="") as file:  # pd.read_csv("runs.csv").pivot_table("value", "variable", "policy")
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"{len(rows)} rows in runs.csv: {', '.join(rows[0])}")
    for policy in ("fifo", "shortest_job_first"):
        means = [float(row["value"] or 0) for row in rows if row["variable"] == "mean_jct_seconds" and row["policy"] == policy]
        print(f"{policy}: mean completion time {sum(means) / len(means) / 3600:.2f} h over {len(means)} seeds")


if __name__ == "__main__":
    main()
