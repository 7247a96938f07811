"""Delay of solves beyond their time limit, for jobs that all differ, and the gap of their answers.

    python benchmarks/time_limit.py                     print the table (about a minute)
    python benchmarks/time_limit.py --write             and put it into benchmarks/RESULTS.md
    python benchmarks/time_limit.py --jobs 1_000_000    with other jobs (three minutes)
    python benchmarks/time_limit.py --quick             a tenth of the jobs, to see that all of it works

Each solve runs in a separate process that has solved a small problem before, so that imports do not count. A policy that is
done before its limit has the status optimal.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from multiprocessing import get_context
from statistics import median

import numpy as np
import tables

import gavel_py as gp

JOBS, TYPES, RUNS = 100_000, 4, 3
LIMITS = (0.001, 1.0, 5.0, 20.0)
POLICIES = ("max_min_fairness", "min_makespan", "max_total_throughput")
NAME = "time limit"


def problem(jobs: int) -> gp.AllocationProblem:
    """Return distinct jobs, with GPUs for about a sixteenth of their requests."""
    chance = np.random.default_rng(0)
    speeds = chance.uniform(0.2, 1, (jobs, 1)) * np.sort(chance.uniform(1, 8, (jobs, TYPES)), axis=1)
    return gp.AllocationProblem.from_arrays(
        speeds,
        [jobs / 16] * TYPES,
        num_gpus=chance.choice([1, 2, 4, 8], jobs),
        steps_remaining=chance.uniform(1e3, 1e6, jobs),
        weights=chance.uniform(0.5, 2, jobs),
    )


def timed(jobs: int, policy: str, limit: float) -> tuple[float, str, float, float]:
    """Wall seconds of a solve, its status, its gap, and its CPU seconds, which are fewer if other processes used the cores."""
    gp.solve(problem(50), policy)
    asked = problem(jobs)
    started, began = time.perf_counter(), time.process_time()
    found = gp.solve(asked, policy, time_limit_seconds=limit)
    seconds, busy = time.perf_counter() - started, time.process_time() - began
    found.verify()
    assert found.gap is not None
    return seconds, str(found.status), found.gap, busy


def rows(jobs: int) -> Iterator[list[object]]:
    for policy in POLICIES:
        for limit in LIMITS:
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                runs = [pool.apply(timed, (jobs, policy, limit)) for _ in range(RUNS)]
            seconds = [run[0] for run in runs]
            worst = max(seconds) - limit
            allowed = 3.0 - limit if limit < 1 else max(0.5, 0.2 * limit)
            status = " or ".join(sorted({run[1] for run in runs}))
            gaps = median(run[2] for run in runs)
            took, busy = f"{median(seconds):.2f}", f"{median(run[3] for run in runs):.2f}"
            yield [f"`{policy}`", f"{limit:g}", took, busy, f"{worst:+.2f}", f"{allowed:.2g}", status, f"{gaps:.2g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    jobs = options.jobs // 10 if options.quick else options.jobs
    header = ["policy", "limit, s", "took, s", "CPU, s", "latest of 3, s", "allowed, s", "status", "gap"]
    text = tables.markdown(header, rows(jobs))
    text += (
        f"\nMedians of {RUNS} runs, {jobs:,} jobs x {TYPES} types; {tables.machine()}; `python benchmarks/time_limit.py --write`.\n"
    )
    print(text)
    if options.write:
        tables.write(NAME, text)


if __name__ == "__main__":
    main()
