"""What starts between rounds change: the same traces with and without them, in rounds of 360 s.

python benchmarks/between_rounds.py                      generated jobs, long and short ones
python benchmarks/between_rounds.py --philly FILE        and the first jobs of the Philly trace
python benchmarks/between_rounds.py --write ...          and put the table into benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import tables

import gavel_py as gp

POLICIES = ("max_min_fairness", "shortest_job_first")
JOBS, PHILLY_JOBS, SEEDS = 200, 500, (0, 1, 2)
RESTART_SECONDS, HOUR = 30.0, 3600.0
CLUSTER = gp.Cluster.from_counts({"v100": (36, 4), "p100": (36, 4), "k80": (36, 4)})


class Case(NamedTuple):
    """Traces with the profile of their jobs."""

    name: str
    traces: Sequence[gp.Trace]
    profile: gp.ThroughputProfile


def generated() -> Iterator[Case]:
    """Yield jobs of the published mix, with the published durations and with short ones."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    short = gp.LogUniform(((1.0, 300.0, 7200.0),))
    for name, jobs_per_hour, durations in (("published durations", 4.0, None), ("5 minutes to 2 hours", 45.0, short)):
        traces = [gp.generate_trace(JOBS, profile, jobs_per_hour=jobs_per_hour, durations=durations, seed=seed) for seed in SEEDS]
        yield Case(f"{JOBS} jobs, {name}, {jobs_per_hour:g} an hour", traces, profile)


def philly(path: Path) -> Case:
    """Return the first jobs of the Philly trace, with types and steps assigned."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace, profile = gp.assign_job_types(gp.read_trace(path)[:PHILLY_JOBS], profile, seed=0, extrapolate=True)
    return Case(f"Philly, the first {PHILLY_JOBS} jobs", [trace], profile)


def rows_of(case: Case) -> Iterator[list[object]]:
    """Yield a row for each policy, without starts between rounds and with them."""
    for policy in POLICIES:
        for between in (False, True):
            summaries = [
                gp.simulate(
                    trace, CLUSTER, case.profile, policy, restart_seconds=RESTART_SECONDS, starts_between_rounds=between
                ).summary
                for trace in case.traces
            ]
            yield [case.name, f"`{policy}`", "yes" if between else "no", *figures_of(summaries)]


def figures_of(summaries: Sequence[gp.Summary]) -> list[object]:
    """Return means over the traces; texts keep more digits than a table does."""
    used = [sum(each["used"] for each in summary.usage.values()) for summary in summaries]
    total = [sum(each["gpu_seconds"] for each in summary.usage.values()) for summary in summaries]
    return [
        f"{mean(summary.jct.mean or 0.0 for summary in summaries) / HOUR:.2f}",
        f"{mean(summary.queueing.mean or 0.0 for summary in summaries) / 60:.1f}",
        f"{mean(summary.preemptions for summary in summaries):,.0f}",
        f"{mean(summary.starts for summary in summaries):,.0f}",
        f"{100 * mean(part / whole for part, whole in zip(used, total, strict=True)):.1f}",
        f"{mean(summary.makespan_seconds for summary in summaries) / HOUR:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--philly", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    options = parser.parse_args()
    cases = [*generated(), *([] if options.philly is None else [philly(options.philly)])]
    header = ["trace", "policy", "starts between rounds", "mean JCT, h", "mean queueing, min"]
    header += ["preemptions", "starts", "utilisation, %", "makespan, h"]
    figures = tables.markdown(header, [row for case in cases for row in rows_of(case)])
    text = f"{figures}\n108 GPUs, {RESTART_SECONDS:g} s a start; generated traces: means of {len(SEEDS)} seeds; "
    text += "`python benchmarks/between_rounds.py --philly FILE --write`.\n"
    print(text)
    if options.write:
        tables.write("between-rounds", text)


if __name__ == "__main__":
    main()
