"""Time and size of reports: many runs, several settings, and one run on a large cluster.

    python benchmarks/reports.py            print the table (a minute or two)
    python benchmarks/reports.py --write    and put it into benchmarks/RESULTS.md

Synthetic runs with fixed seeds, in a file as `gavel simulate --run-out` writes it; `gavel report` reads it in a separate process.
Times are CPU times, so other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import tables

import gavel_py as gp

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.report.some_runs import some_run, some_runs, some_stays

SECONDS, MEGABYTES = 20, 5
LOADS = (1.0, 2.0, 4.0, 8.0)


def scenes() -> Iterator[tuple[str, list[gp.Run]]]:
    policies = [f"policy_{number}" for number in range(5)]
    yield "200 runs of 1,000 jobs: 5 policies, 4 loads, 10 seeds", some_runs(policies, LOADS, seeds=10, jobs=1000)
    yield (
        "200 runs of 1,000 jobs: 10 clusters, 5 policies, 4 loads",
        [run for cluster in range(10) for run in some_runs(policies, LOADS, seeds=1, jobs=1000, cluster=f"cluster {cluster}")],
    )
    large = replace(some_run("policy", 4.0, 0, jobs=1000), stays=some_stays(nodes=200, gpus=8, rounds=400))
    gpus = sum(stay.gpus for stay in large.stays if stay.start_seconds == 0)
    yield f"one run on {gpus:,} GPUs in use, {len(large.stays):,} stays in 400 rounds", [large]


def measured(folder: Path, runs: list[gp.Run]) -> tuple[float, float, float, float]:
    """CPU and wall seconds, megabytes of the page, and gigabytes of memory."""
    gp.write_runs(folder / "runs.json", runs)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "gavel_py", "report", str(folder / "runs.json"), "-o", str(folder / "report.html")]
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, wall, (folder / "report.html").stat().st_size / 1e6, after.ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in scenes():
            spent, wall, size, memory = measured(Path(folder), runs)
            rows.append([name, spent, SECONDS, size, MEGABYTES, memory])
            print(f"{name}: {spent:.1f} s of processor time, {wall:.1f} s in all, {size:.2f} MB, {memory:.2f} GB", flush=True)
    header = ["report", "s", "target, s", "MB", "target, MB", "memory so far, GB"]
    text = tables.markdown(header, rows) + f"\nProcessor time; {tables.machine()}; `python benchmarks/reports.py --write`.\n"
    if write:
        tables.write("reports", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
