"""Time of an allocation with space sharing, against the program over all pairs of jobs.

    python benchmarks/sharing.py            print the table (some minutes)
    python benchmarks/sharing.py --write    and put it into benchmarks/RESULTS.md

Random single-GPU jobs of the 26 models of the built-in profile, with a fixed seed, on half as many GPUs as jobs, of three types.
Medians of the CPU time of 5 runs. The program over all pairs is built with NumPy, so that its time is that of HiGHS alone,
and runs once. The million jobs are of the 83 models and gang sizes that were measured on all three types, with different numbers
of steps, which `min_makespan` reads; each policy has a separate process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import tables
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

import gavel_py as gp

Found = TypeVar("Found")

TYPES = ("v100", "p100", "k80")
RUNS = 5
MANY = 1_000_000
COMPARED = (64, 128, 256)
TARGETS = {("max_min_fairness", 2048): 0.3, ("min_makespan", 1000): 5, ("finish_time_fairness", 1000): 5}


def problem_of(count: int) -> gp.AllocationProblem:
    chance, profile = np.random.default_rng(count), gp.ThroughputProfile.builtin("gavel-osdi20")
    names = [name for name in profile.job_types if profile.has(name, 1, "v100")]
    jobs = [
        gp.Job(f"j{i}", job_type=names[chance.integers(len(names))], total_steps=float(chance.integers(10**3, 10**6)))
        for i in range(count)
    ]
    cluster = gp.Cluster.from_counts(dict.fromkeys(TYPES, count // 6))
    return gp.AllocationProblem.from_jobs(jobs, cluster, profile, sharing=True)


def all_pairs(problem: gp.AllocationProblem) -> float:
    """Return the level of max-min fairness by the program over all pairs of jobs."""
    pairs, (count, types) = problem.pairs, problem.throughputs.shape
    assert pairs is not None
    first, second = np.triu_indices(count, 1)
    alone = [(np.arange(count), np.full(count, -1), np.full(count, j)) for j in range(types)]
    both = [(first, second, np.full(len(first), j)) for j in range(types)]
    one, other, kind = (np.concatenate(each) for each in zip(*alone, *both, strict=True))
    single = other < 0
    fast = np.where(single, problem.throughputs[one, kind], pairs.speeds[pairs.kinds[one], pairs.kinds[other], kind])
    slow = np.where(single, 0.0, pairs.speeds[pairs.kinds[other], pairs.kinds[one], kind])
    there = (fast > 0) & (single | (slow > 0))
    one, other, kind, fast, slow, single = (each[there] for each in (one, other, kind, fast, slow, single))
    columns, shares = np.arange(len(one)), np.flatnonzero(~single)

    def table(rows: int, *parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> csr_array:
        values, at, of = (np.concatenate(each) for each in zip(*parts, strict=True))
        return csr_array((values, (at, of)), shape=(rows, len(columns)))

    throughput = table(count, (fast, one, columns), (slow[shares], other[shares], shares))
    times = table(count, (np.ones(len(one)), one, columns), (np.ones(len(shares)), other[shares], shares))
    gpus = table(types, (np.ones(len(one)), kind, columns))
    need = csr_array(problem.equal_share[:, None])
    rows = vstack([hstack([-throughput, need]), hstack([vstack([times, gpus]), csr_array((count + types, 1))])])
    ends = np.concatenate([np.zeros(count), np.ones(count), problem.capacities])
    found = linprog(np.append(np.zeros(len(columns)), -1.0), rows, ends, bounds=(0, None), method="highs-ipm")
    return float(-found.fun)


def timed(work: Callable[[], Found], runs: int = RUNS) -> tuple[float, Found]:
    seconds = []
    for _ in range(runs):
        started = time.process_time()
        found = work()
        seconds.append(time.process_time() - started)
    return median(seconds), found


def rows() -> Iterator[list[object]]:
    sizes = [*((("max_min_fairness", count), count in COMPARED) for count in (*COMPARED, 2048, 20_000))]
    sizes += [((policy, count), False) for policy, count in (("max_total_throughput", 2048), *list(TARGETS)[1:])]
    for (policy, count), compared in sizes:
        problem = problem_of(count)
        gp.solve(problem, policy)  # imports
        seconds, found = timed(partial(gp.solve, problem, policy))
        other: list[float | None] = [None] * 3
        if compared:
            direct, level = timed(partial(all_pairs, problem), 1)
            assert found.objective_value is not None
            other = [direct, direct / seconds, abs(found.objective_value - level) / level]
        yield [policy, count, TARGETS.get((policy, count)), seconds, *other, found.gap]


def of_classes(count: int) -> dict[str, Any]:
    """Return the arguments of `from_types` for jobs of all models and gang sizes that were measured on all types."""
    chance, profile = np.random.default_rng(0), gp.ThroughputProfile.builtin("gavel-osdi20")
    there = [(n, s) for s in (1, 2, 4, 8) for n in profile.job_types if all(profile.has(n, s, t) for t in TYPES)]
    one_each = [gp.Job(f"{name} {size}", job_type=name, num_gpus=size, total_steps=1.0) for name, size in there]
    kinds, pairs = chance.integers(len(there), size=count), profile.pair_matrix(one_each, TYPES)
    assert pairs is not None
    return {
        "type_throughputs": profile.matrix(one_each, TYPES),
        "type_index": kinds,
        "capacities": np.full(len(TYPES), count // 6),
        "num_gpus": np.array([size for _, size in there])[kinds],
        "total_steps": chance.integers(10**3, 10**6, size=count).astype(float),
        "pair_kinds": kinds,
        "pair_throughputs": np.nan_to_num(pairs),
    }


def at_scale(policy: str, count: int) -> list[object]:
    """Return CPU times of building, solving and verifying, and the peak memory of this process."""
    few, arrays = gp.AllocationProblem.from_types(**of_classes(1000)), of_classes(count)
    gp.solve(few, policy)  # imports
    seconds = []
    for _ in range(RUNS):
        marks = [time.process_time()]
        problem = gp.AllocationProblem.from_types(**arrays)
        marks.append(time.process_time())
        allocation = gp.solve(problem, policy)
        marks.append(time.process_time())
        allocation.verify()
        marks.append(time.process_time())
        seconds.append(np.diff(marks))
    built, solved, verified = np.median(seconds, axis=0).tolist()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    assert allocation.pairs is not None
    assert allocation.route is not None
    peak = int(found[1]) * 1024 / 1e6
    target, classes = (1.0 if count == MANY else None), allocation.route.classes
    return [policy, count, target, built, solved, verified, classes, len(allocation.pairs), peak, allocation.gap]


def many() -> Iterator[list[object]]:
    works = [(policy, MANY) for policy in ("max_min_fairness", "max_total_throughput", "water_filling")]
    for work in (*works, ("min_makespan", MANY // 10)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            yield pool.apply(at_scale, work)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    options = parser.parse_args()
    header = ["policy", "jobs", "target, s", "CPU, s", "all pairs of jobs, CPU, s", "times as long", "difference", "proven gap"]
    text = tables.markdown(header, rows()) + "\n### Jobs of 83 models and gang sizes, CPU time\n\n"
    works = ["`from_types`, s", "`solve`, s", "`verify`, s"]
    header = ["policy", "jobs", "target, s", *works, "classes", "pairs of jobs", "peak, MB", "gap"]
    text += tables.markdown(header, many()) + f"\n{tables.machine()}; `python benchmarks/sharing.py --write`.\n"
    print(text)
    if options.write:
        tables.write("sharing", text)


if __name__ == "__main__":
    main()
