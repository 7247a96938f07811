"""Time of choosing the numbers of GPUs of elastic jobs, against the program with one row per job, and of choosing a round.

    python benchmarks/elastic.py            print the tables (some minutes)
    python benchmarks/elastic.py --write    and put them into benchmarks/RESULTS.md

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
from gavel_py.scheduling.current_allocation import speeds_of
from gavel_py.scheduling.mechanism.demand import SizeDemand
from gavel_py.scheduling.mechanism.elastic import best_options, goodput_options

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


def round_of(problem: gp.AllocationProblem, options: np.ndarray | None) -> SizeDemand:
    """Return the demand of a round in which no job has run, or all have just been given these options."""
    count, speeds, chance = problem.num_jobs, speeds_of(problem), np.random.default_rng(0)
    chosen = np.full(count, -1) if options is None else options
    return SizeDemand(
        speeds=speeds,
        is_elastic=np.ones(count, dtype=bool),
        running_on=np.where(chosen >= 0, speeds.types[chosen], -1),
        held=np.where(chosen >= 0, speeds.gpus[chosen], 0),
        promised=np.zeros((0, 0), dtype=bool),
        weights=np.ones(count),
        age_seconds=chance.uniform(0, 1e5, count),
        restarts=chance.integers(0, 3, count).astype(float),
        restart_seconds=np.full(count, 30.0),
    )


def rounds() -> Iterator[list[object]]:
    """Yield the time of choosing types and numbers of GPUs by goodput, in a first round and in one in which jobs run."""
    for count in JOBS:
        problem, options = gp.AllocationProblem.from_types(**arrays_of(count)), None
        for what in ("none", "most"):
            demand, gpus = round_of(problem, options), problem.capacities.astype(np.int64)

            def choose(demand: SizeDemand = demand, gpus: np.ndarray = gpus) -> tuple[int, Any]:
                found = goodput_options(demand, problem.runnable)  # noqa: B023
                return len(found.sizes), best_options(found, gpus)

            seconds, (classes, found) = timed(choose, 3)
            options = found.options
            yield [count, what, classes, seconds, found.gap]


def whole_rounds() -> Iterator[list[object]]:
    """Yield the time of whole rounds with placement, of 5,120 jobs of 60 types on 2,048 GPUs."""
    chance, names = np.random.default_rng(0), ("t4", "a100", "rtx")
    speeds = [
        gp.Measurement(job_type=f"m{k}", num_gpus=n, accelerator=name, steps_per_second=float(rate * n**power))
        for k in range(60)
        for power in [chance.uniform(0.4, 1)]
        for name, rate in zip(names, chance.uniform(1, 5, 3), strict=True)
        for n in (1, 2, 4, 8, 16, 32)
    ]
    profile, cluster = gp.ThroughputProfile("random", speeds), gp.Cluster.from_inline("t4:1024/8,a100:512/8,rtx:512/8")
    counts = (1, 2, 4, 8, 16, 32)
    jobs = [gp.Job(f"j{i}", job_type=f"m{chance.integers(60)}", gpu_counts=counts, total_steps=1e9) for i in range(5120)]
    for mechanism in ("direct", "deficit"):
        scheduler = gp.RoundScheduler(cluster, profile, mechanism=mechanism, restart_seconds=30, round_seconds=60)
        scheduler.submit_all(jobs)
        first, _ = timed(scheduler.next_round, 1)
        later, _ = timed(scheduler.next_round)
        yield [mechanism, len(jobs), cluster.num_gpus, first, later]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    header = ["jobs", "classes", "`from_types`, s", "`solve`, s", "`verify`, s", "proven gap", "to one row per job"]
    text = tables.markdown(header, rows())
    text += "\n### Choosing a round (`direct`)\n\n"
    text += tables.markdown(["jobs", "jobs that run before", "classes", "s", "gap"], rounds())
    text += "\n### Whole rounds, with placement\n\n"
    text += tables.markdown(["mechanism", "jobs", "GPUs", "first round, s", "later rounds, s"], whole_rounds())
    text += f"\nMedians of {RUNS} runs; {tables.machine()}; `python benchmarks/elastic.py --write`.\n"
    print(text)
    if parser.parse_args().write:
        tables.write("elastic", text)


if __name__ == "__main__":
    main()
