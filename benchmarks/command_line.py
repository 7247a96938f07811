"""Time of the command line: `gavel --help` and solving 1,000 jobs, against an interpreter that runs an empty program.

    python benchmarks/command_line.py            print the table
    python benchmarks/command_line.py --write    and put it into benchmarks/RESULTS.md

Each figure is the median of 7 runs of a whole process after one warm-up; the commands alternate, so that a drift of the
machine's speed affects all of them equally.
"""

from __future__ import annotations

import csv
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tables

import gavel_py as gp

RUNS = 7
JOBS = 1_000
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
"""Dollars per GPU-hour, which some policies read."""


def write_cluster(path: Path) -> None:
    """Write 200 GPUs of each type, in nodes of 8."""
    types = [f"  {name}: {{price_per_hour: {price}}}" for name, price in PRICES.items()]
    nodes = [f"  - {{name: {name}-{i}, accelerator: {name}, num_gpus: 8}}" for name in PRICES for i in range(25)]
    path.write_text("\n".join(["accelerator_types:", *types, "nodes:", *nodes, ""]))


def write_jobs(path: Path) -> None:
    """Write `JOBS` jobs of the built-in profile, gangs 1/2/4/8 at 70/10/15/5 %, seeded."""
    chance = random.Random(0)  # noqa: S311
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "job_type", "num_gpus", "weight", "total_steps", "deadline_seconds"])
        for number in range(JOBS):
            gang = chance.choices([1, 2, 4, 8], [70, 10, 15, 5])[0]
            types = [name for name in profile.job_types if profile.has(name, gang, "v100")]
            work = [chance.choice([1, 1, 1, 5]), chance.randint(10**4, 10**6), chance.randint(10**5, 10**7)]
            writer.writerow([f"job-{number}", chance.choice(types), gang, *work])


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def commands(jobs: Path, cluster: Path) -> dict[str, list[str]]:
    python = sys.executable
    gavel = [python, "-m", "gavel_py"]
    solve = [*gavel, "solve", str(jobs), "--cluster", str(cluster), "--policy"]
    imports = "import cvxpy, highspy, scipy.sparse, pydantic, gavel_py"
    return {
        "`python -c pass` (baseline)": [python, "-c", "pass"],
        "`gavel --help`": [*gavel, "--help"],
        "importing cvxpy, highspy, scipy.sparse, pydantic": [python, "-c", imports],
        **{
            f"`gavel solve`, {JOBS:,} jobs, `{name}`": [*solve, name] for name in gp.policy_names() if name != "allox"
        },  # which does not support gangs
    }


def table(jobs: Path, cluster: Path) -> str:
    """Measure, and return the figures as a Markdown table."""
    rows = commands(jobs, cluster)
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for run in range(RUNS + 1):
        for name, command in rows.items():
            took = seconds(command)
            if run:
                taken[name].append(took)
    base = statistics.median(next(iter(taken.values())))
    lines = []
    for name, times in taken.items():
        median = statistics.median(times)
        lines.append([name, f"{median:.2f}", f"{min(times):.2f} to {max(times):.2f}", f"{median / base:.1f}"])
    source = "`python benchmarks/command_line.py --write`"
    figures = tables.markdown(["what", "median, s", "least to most, s", "x baseline"], lines)
    return f"{figures}\nMedians of {RUNS} runs; {tables.machine()}; {source}.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs, cluster = Path(folder) / "jobs.csv", Path(folder) / "cluster.yaml"
        write_jobs(jobs)
        write_cluster(cluster)
        text = table(jobs, cluster)
    print(text)
    if "--write" in sys.argv[1:]:
        tables.write("command_line", text)


if __name__ == "__main__":
    main()
