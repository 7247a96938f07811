"""Time of choosing the numbers of GPUs of elastic jobs, against the program with one row per job.

    python benchmarks/elastic.py            print the table (a minute)
    python benchmarks/elastic.py --write    and put it into docs/performance.md

Random jobs of 322 kinds, with a fixed seed, on 1.6 GPUs per job of three types with 8, 5 and 6 numbers of GPUs: 19 columns. The
speed of a kind grows with a power of the number of GPUs, between 0.4 and 1. Medians of the time of 5 runs, on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import tables
from scipy.optimize import linprog
from scipy.sparse import coo_array

import gavel_py as gp

Found = TypeVar("Found")

OFFERED = ((1, 2, 4, 8, 12, 16, 20, 24), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 24))
GPUS = np.array([24.0, 16.0, 24.0])
KINDS, RUNS, MOST_SEPARATE = 322, 5, 1000
JOBS = (100, 1000, 10_000, 100_000, 1_000_000)


def arrays_of(count: int) -> dict[str, Any]:
    chance, sizes = np.random.default_rng(0), np.array(sorted({size for offered in OFFERED for size in offered}))
    speeds = chance.uniform(1, 5, (KINDS, len(GPUS), 1)) * sizes ** chance.uniform(0.4, 1, (KINDS, 1, 1))
    for j, offered in enumerate(OFFERED):
        speeds[:, j, ~np.isin(sizes, offered)] = 0
    return {
        "type_throughputs": np.zeros((1, len(GPUS))),
        "type_index": np.zeros(count, dtype=int),
        "capacities": GPUS * max(1.0, count / 40),
        "count_kinds": chance.integers(0, KINDS, count),
        "gpu_counts": sizes,
        "count_throughputs": speeds,
    }


def row_per_job(arrays: dict[str, Any]) -> float:
    """Return the level of max-min fairness, max θ: Σ T x >= θ P, with a variable for each job, type and number of GPUs."""
    speeds, sizes, capacities = arrays["count_throughputs"], arrays["gpu_counts"], arrays["capacities"]
    count, types = len(arrays["count_kinds"]), len(capacities)
    kinds, where, places = np.nonzero((speeds > 0) & (sizes <= capacities[:, None]))
    share = speeds[:, :, 0] @ (capacities / capacities.sum())  # all types offer one GPU
    jobs, choices = np.nonzero(arrays["count_kinds"][:, None] == kinds)
    columns, where, places = np.arange(len(jobs)), where[choices], places[choices]
    own = arrays["count_kinds"][jobs]
    values = [-speeds[own, where, places] / share[own], np.ones(len(jobs)), sizes[places], np.ones(count)]
    rows = [jobs, count + jobs, 2 * count + where, np.arange(count)]
    shape = 2 * count + types, len(jobs) + 1
    at = np.concatenate([columns, columns, columns, np.full(count, len(jobs))])
    table = coo_array((np.concatenate(values), (np.concatenate(rows), at)), shape)
    ends = np.concatenate([np.zeros(count), np.ones(count), capacities])
    return -float(linprog(np.append(np.zeros(len(jobs)), -1.0), table.tocsc(), ends, method="highs").fun)


def timed(work: Callable[[], Found], runs: int = RUNS) -> tuple[float, Found]:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - started)
    return median(seconds), found


def rows() -> Iterator[list[object]]:
    gp.solve(gp.AllocationProblem.from_types(**arrays_of(10)))  # imports
    for count in JOBS:
        arrays = arrays_of(count)
        building, problem = timed(partial(gp.AllocationProblem.from_types, **arrays))
        solving, found = timed(partial(gp.solve, problem))
        checking, _ = timed(found.verify)
        assert found.route is not None
        assert found.objective_value is not None
        difference = None
        if count <= MOST_SEPARATE:
            difference = abs(found.objective_value - row_per_job(arrays)) / found.objective_value
        yield [count, found.route.classes, building, solving, checking, found.gap, difference]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    header = ["jobs", "classes", "`from_types`, s", "`solve`, s", "`verify`, s", "proven gap", "to one row per job"]
    text = tables.markdown(header, rows())
    text += f"\nMedians of {RUNS} runs; {tables.machine()}; `python benchmarks/elastic.py --write`.\n"
    print(text)
    if parser.parse_args().write:
        tables.write("elastic", text)


if __name__ == "__main__":
    main()
