"""Time of water-filling and hierarchical policies, and the number of levels and programs they need.

    python benchmarks/filling.py            print the table (about a minute)
    python benchmarks/filling.py --write    and put it into benchmarks/RESULTS.md

Each figure is the median of 5 runs after one warm-up, in CPU time, which is that of the clock on a free core; each case alternates
with its baseline, max-min fairness of the same jobs, which is one level instead of several.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import tables

import gavel_py as gp

RUNS = 5
SPEEDS, PARTS = np.array([1.0, 0.6, 0.35, 0.8]), np.array([0.2, 0.3, 0.4, 0.1])
GANGS, GANG_PARTS = [1, 2, 4, 8], [0.7, 0.1, 0.15, 0.05]


@dataclass(frozen=True)
class Work:
    """A case: its name, target in seconds, problem and policy."""

    name: str
    target: float | None
    problem: gp.AllocationProblem
    policy: gp.Policy


def problem(jobs: int, users: int, plenty: float) -> gp.AllocationProblem:
    """Return jobs of 83 classes and 8 weights on 4 types with `plenty` times the GPUs that they request."""
    chance = np.random.default_rng(0)
    table = chance.lognormal(0, 1, (83, 1)) * SPEEDS * chance.lognormal(0, 0.4, (83, 4))
    types = chance.integers(0, 83, jobs)
    gangs = chance.choice(GANGS, 83, p=GANG_PARTS)[types]
    return gp.AllocationProblem.from_types(
        table,
        types,
        np.round(plenty * gangs.sum() * PARTS),
        num_gpus=gangs,
        weights=chance.integers(1, 9, jobs),
        tenants=[f"user-{user}" for user in chance.integers(0, users, jobs)],
        arrival_seconds=chance.uniform(0, 1e4, jobs),
    )


def tree(levels: list[int], *, fifo: bool = False) -> gp.TenantTree:
    """Return a tree of tenants with levels[0] at the top; the last level are users, every fifth of them fifo if requested."""
    chance = np.random.default_rng(1)
    names = [f"level-{depth}-" for depth in range(len(levels) - 1)] + ["user-"]
    return gp.TenantTree(
        gp.Tenant(
            f"{names[depth]}{i}",
            weight=float(chance.integers(1, 5)),
            policy="fifo" if fifo and depth == len(levels) - 1 and i % 5 == 0 else "fairness",
            parent=f"{names[depth - 1]}{i % levels[depth - 1]}" if depth else None,
        )
        for depth, count in enumerate(levels)
        for i in range(count)
    )


def works() -> Iterator[Work]:
    filling = gp.resolve_policy("water_filling")
    for plenty in (0.2, 0.8, 1.5):
        name = f"`water_filling`, 10⁵ jobs, 83 classes, 8 weights, GPUs for {plenty:.0%}"
        yield Work(name, 2.0, problem(100_000, 1, plenty), filling)
    for fifo in (False, True):
        text = ", every fifth tenant fifo" if fifo else ""
        five, three = tree([5], fifo=fifo), tree([10, 100, 1000], fifo=fifo)
        for plenty in (0.2, 0.8):
            few, many = problem(1024, 5, plenty), problem(100_000, 1000, plenty)
            share = f", GPUs for {plenty:.0%}{text}"
            yield Work(f"`hierarchical`, 1,024 jobs, 5 tenants{share}", 0.5, few, gp.resolve_policy("hierarchical", tenants=five))
            name = f"`hierarchical`, 10⁵ jobs, 1,000 users in 3 levels{share}"
            yield Work(name, 5.0, many, gp.resolve_policy("hierarchical", tenants=three))


def timed(solve: Callable[[], gp.Allocation]) -> tuple[float, gp.Allocation]:
    started = time.process_time()
    allocation = solve()
    return time.process_time() - started, allocation


def measured(work: Work) -> list[Any]:
    seconds, baseline = [], []
    for _ in range(RUNS + 1):
        spent, allocation = timed(lambda: gp.solve(work.problem, work.policy))
        seconds.append(spent)
        baseline.append(timed(lambda: gp.solve(work.problem, "max_min_fairness"))[0])
    allocation.verify()
    route = allocation.route
    assert route is not None
    worst = max(stage.gap for stage in allocation.stages)
    ours, first = median(seconds[1:]), median(baseline[1:])
    levels = len(allocation.stages) - 1  # the first stage is within the first level
    return [work.name, ours, work.target, ours / first, levels, route.programs, f"{worst:.0e}", len(route.failed)]


HEADER = ["work", "CPU, s", "target, s", "x max-min fairness", "levels", "programs", "largest gap", "failed routes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    options = parser.parse_args()
    text = tables.markdown(HEADER, (measured(work) for work in works()))
    text += f"\nMedians of {RUNS} runs; {tables.machine()}; `python benchmarks/filling.py --write`.\n"
    print(text)
    if options.write:
        tables.write("filling", text)


if __name__ == "__main__":
    main()
