"""How long the command line takes: `gavel --help`, and solving 1,000 jobs, against an interpreter that does nothing.

    python benchmarks/command_line.py            print the table
    python benchmarks/command_line.py --write    and put it into docs/performance.md

Each figure is the median of 7 runs of a whole process after one warm-up; the commands take turns, so that a machine whose
speed drifts slows all of them alike.
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
CLUSTER = "v100:200,p100:200,k80:200"


def write_jobs(path: Path) -> None:
    """Write `JOBS` jobs of the built-in profile, gangs 1/2/4/8 at 70/10/15/5 %, seeded."""
    chance = random.Random(0)  # noqa: S311
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "job_type", "num_gpus", "weight", "total_steps"])
        for number in range(JOBS):
            gang = chance.choices([1, 2, 4, 8], [70, 10, 15, 5])[0]
            types = [name for name in profile.job_types if profile.has(name, gang, "v100")]
            writer.writerow(
                [f"job-{number}", chance.choice(types), gang, chance.choice([1, 1, 1, 5]), chance.randint(10**4, 10**6)]
            )


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def commands(jobs: Path) -> dict[str, list[str]]:
    python = sys.executable
    gavel = [python, "-m", "gavel_py"]
    solve = [*gavel, "solve", str(jobs), "--cluster", CLUSTER, "--policy"]
    imports = "import cvxpy, highspy, scipy.sparse, pydantic, gavel_py"
    return {
        "`python -c pass` (baseline)": [python, "-c", "pass"],
        "`gavel --help`": [*gavel, "--help"],
        "importing cvxpy, highspy, scipy.sparse, pydantic": [python, "-c", imports],
        **{f"`gavel solve`, {JOBS:,} jobs, `{name}`": [*solve, name] for name in gp.policy_names()},
    }


def table(jobs: Path) -> str:
    """Measure, and return the figures as a Markdown table."""
    rows = commands(jobs)
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
        jobs = Path(folder) / "jobs.csv"
        write_jobs(jobs)
        text = table(jobs)
    print(text)
    if "--write" in sys.argv[1:]:
        tables.write("command_line", text)


if __name__ == "__main__":
    main()
