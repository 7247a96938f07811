"""Time of quotas, limits and guarantees of tenants under max-min fairness, beside an earlier version and a program reduced by hand.

    python benchmarks/quotas.py --before DIR            print the table (about 10 minutes); DIR: a checkout of the earlier version
    python benchmarks/quotas.py --before DIR --write    and put it into benchmarks/RESULTS.md

Each figure is the median CPU time of `Solver.solve`, the first or one after 1 % of the jobs have changed, in processes that take
turns: one of each version, and one of cvxpy with Clarabel on the program with a row for each class and tenant, which includes
neither the search for the classes nor a proof. Objectives of the three must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tables

import gavel_py as gp

JOBS, CLASSES, RUNS = 32_768, 83, 3
SPEEDS, PARTS = np.array([3.0, 1.6, 1.0, 0.55]), np.array([0.15, 0.25, 0.35, 0.25])
CASES = {
    f"{count} {kind}, {part:g} of an equal share": (count, kind, part)
    for kind, part, counts in (
        ("limits", 1.5, (64, 256)),
        ("limits", 0.8, (64, 256)),
        ("guarantees", 0.8, (64,)),
        ("guaranteed limits", 0.9, (64,)),
    )
    for count in counts
}


class Scene:
    """Jobs of 83 classes on 4 types with GPUs for a quarter of them, and the quotas of their tenants."""

    def __init__(self, count: int, kind: str, part: float) -> None:
        chance = np.random.default_rng(20261128)
        table = chance.gamma(2, 1.5, (CLASSES, 1)) * SPEEDS * np.exp(chance.normal(0, 0.45, (CLASSES, 4)))
        gangs = chance.choice([1, 2, 4, 8], CLASSES, p=[0.7, 0.1, 0.15, 0.05])
        types = chance.integers(0, CLASSES, JOBS)
        self.chance, self.count = chance, count
        self.speeds, self.gangs, self.tenants = table[types], gangs[types].astype(float), chance.integers(0, count, JOBS)
        self.gpus = np.round(0.25 * self.gangs.sum() * PARTS / PARTS.sum())
        self.quota = float(self.gpus.sum()) * part / count
        guaranteed, borrowable = kind != "limits", kind == "guarantees"
        self.constraints = [
            gp.Quota(tenant=f"u{each}", gpus=self.quota, guaranteed=guaranteed, borrowable=borrowable) for each in range(count)
        ]

    def problem(self, jobs: np.ndarray[Any, Any]) -> gp.AllocationProblem:
        """Return the problem of the jobs in these rows."""
        names = [f"u{each}" for each in self.tenants[jobs].tolist()]
        return gp.AllocationProblem.from_arrays(self.speeds[jobs], self.gpus, num_gpus=self.gangs[jobs], tenants=names)

    def changed(self) -> np.ndarray[Any, Any]:
        """Return rows of which 1 % are others."""
        rows = np.arange(JOBS)
        rows[self.chance.choice(JOBS, JOBS // 100, replace=False)] = self.chance.choice(JOBS, JOBS // 100)
        return rows

    def by_hand(self) -> float:
        """Return the optimum of the program with a row for each class and tenant, by cvxpy and Clarabel."""
        import cvxpy as cp
        import scipy.sparse as sp

        rows, counts = np.unique(np.c_[self.speeds, self.gangs, self.tenants], axis=0, return_counts=True)
        speeds, gangs, tenants = rows[:, :4], rows[:, 4], rows[:, 5].astype(int)
        share, gpus = speeds @ (self.gpus / self.gpus.sum()), counts * gangs
        times = cp.Variable(speeds.shape, nonneg=True)
        level = cp.min(cp.sum(cp.multiply((gangs / share)[:, None] * speeds, times), axis=1))
        own = sp.csr_array((gpus, (tenants, np.arange(len(gpus)))), shape=(self.count, len(gpus))) @ cp.sum(times, axis=1)
        kept = [own <= self.quota] if not self.constraints[0].guaranteed else [own >= self.quota]
        if self.constraints[0].guaranteed and not self.constraints[0].borrowable:
            kept = [own == self.quota]
        program = cp.Problem(cp.Maximize(level), [cp.sum(times, axis=1) <= 1, gpus @ times <= self.gpus, *kept])
        return float(program.solve(solver="CLARABEL"))


def spent(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU time of a call and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def measure(case: str, by_hand: bool) -> dict[str, Any]:
    """Return the seconds of one process."""
    scene = Scene(*CASES[case])
    if by_hand:
        import cvxpy  # noqa: F401

        seconds, objective = spent(scene.by_hand)
        return {"solve": seconds, "objective": objective}
    gp.solve(gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0]], [1, 1]))
    solver, first = gp.Solver("max_min_fairness", constraints=scene.constraints), scene.problem(np.arange(JOBS))
    seconds, allocation = spent(partial(solver.solve, first))
    later = [scene.problem(scene.changed()) for _ in range(2)]
    again = [spent(partial(solver.solve, problem))[0] for problem in later]
    route = allocation.route
    assert route is not None
    return {"solve": seconds, "again": median(again), "objective": allocation.objective_value, "classes": route.classes}


def in_process(case: str, tree: Path, *, by_hand: bool = False) -> dict[str, Any]:
    """Measure a case in a new process that imports the version in this folder."""
    command = [sys.executable, __file__, "--case", case, *(["--by-hand"] if by_hand else [])]
    variables = os.environ | {"PYTHONPATH": str(tree.resolve()), "OPENBLAS_NUM_THREADS": "1"}
    found: dict[str, Any] = json.loads(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)
    return found


def row(case: str, before: Path, runs: int) -> list[Any]:
    """Return the row of a case: both versions and the program by hand, in turns."""
    now, old, hand = [], [], []
    for _ in range(runs):
        now.append(in_process(case, Path(__file__).parents[1]))
        old.append(in_process(case, before))
        hand.append(in_process(case, before, by_hand=True))
    best = now[0]["objective"]
    assert abs(best - old[0]["objective"]) <= 1e-9 * best, "the versions disagree"
    assert abs(best - hand[0]["objective"]) <= 1e-5 * best, "the program by hand has another optimum"
    solve, again, earlier, then, manual = (
        median(each[name] for each in found)
        for found, name in ((now, "solve"), (now, "again"), (old, "solve"), (old, "again"), (hand, "solve"))
    )
    print(case, solve, again, earlier, then, manual, file=sys.stderr, flush=True)
    return [case, now[0]["classes"], solve, earlier, earlier / solve, manual, manual / solve, again, then, then / again]


HEADER = ["quotas", "classes", "solve, s", "before", "ratio", "Clarabel", "ratio", "1 % changed, s", "before", "ratio"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the earlier version")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each case [{RUNS}]")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--by-hand", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(options.case, options.by_hand)))
        return
    if options.before is None:
        parser.error("--before is required")
    text = tables.markdown(HEADER, [row(case, options.before, options.runs) for case in CASES])
    text += f"\nCPU time, runs of each case: {options.runs}; {tables.machine()}; `benchmarks/quotas.py --before DIR --write`.\n"
    print(text)
    if options.write:
        tables.write("quotas", text)


if __name__ == "__main__":
    main()
