"""Time of problems in which all jobs differ: no two rows of throughputs are equal, so that classes of equal jobs reduce nothing.

    python benchmarks/all_different.py                 print the table (some minutes)
    python benchmarks/all_different.py --before TREE   and time an earlier checkout beside it, in turns
    python benchmarks/all_different.py --write         and put it into benchmarks/RESULTS.md
    python benchmarks/all_different.py --quick         a tenth of the jobs and one run

Each figure is the CPU time of `gp.Solver.solve`, which `gp.solve` calls: the median of 3 runs in fresh processes that have solved a
small problem before. An earlier checkout is ended where a solve takes more than 120 s of CPU time, and runs once if it takes more
than 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tables
from numpy.typing import NDArray

import gavel_py as gp

Floats = NDArray[np.float64]

HERE, LONGEST, SLOW = Path(__file__).parents[1], 120, 10.0
GANGS, GANG_PARTS = [1, 2, 4, 8], [0.7, 0.1, 0.15, 0.05]
TYPE_SPEEDS = np.array([1.0, 0.6, 0.35, 0.8, 0.5, 0.9, 0.25, 0.7])
TYPE_PARTS = np.array([0.2, 0.3, 0.4, 0.1, 0.15, 0.25, 0.2, 0.3])


@dataclass(frozen=True)
class Case:
    """A public call. target: CPU seconds; again: after a solve of the same problem with 1 % other jobs."""

    policy: str
    jobs: int
    types: int
    target: float | None
    again: bool = False
    deadlines: bool = False

    @property
    def name(self) -> str:
        more = ", a deadline for each, jobs of 83 classes" if self.deadlines else ", again after 1 % of the jobs changed"
        return f"`{self.policy}`, {self.jobs:,} x {self.types}" + more * (self.again or self.deadlines)


CASES = [
    Case("max_total_throughput", 10**5, 4, 0.5),
    Case("max_total_throughput", 10**5, 8, None),
    Case("max_total_throughput", 10**6, 4, 2),
    Case("max_total_throughput", 10**6, 8, 4),
    Case("max_min_fairness", 10**5, 4, 2),
    Case("max_min_fairness", 10**5, 8, 8),
    Case("max_min_fairness", 10**6, 4, 15),
    Case("max_min_fairness", 10**6, 8, 45),
    Case("min_makespan", 10**5, 4, 3),
    Case("finish_time_fairness", 10**5, 4, 5),
    Case("finish_time_fairness", 10**5, 8, 12),
    Case("max_total_throughput", 10**5, 4, 1, deadlines=True),
    Case("max_total_throughput", 10**4, 4, 0.05, again=True),
    Case("max_total_throughput", 10**5, 4, 0.2, again=True),
    Case("max_total_throughput", 10**6, 4, 1, again=True),
    Case("max_min_fairness", 10**4, 4, 0.1, again=True),
    Case("max_min_fairness", 10**5, 4, 0.7, again=True),
]


def problems(case: Case, count: int) -> tuple[gp.AllocationProblem, gp.AllocationProblem]:
    """Return jobs of 26 base rows (83 with deadlines) with noise of 5 %, and the same with 1 % of them replaced by others."""
    chance, types, new = np.random.default_rng(1), case.types, count // 100
    rows, total = 83 if case.deadlines else 26, count + new
    base = chance.lognormal(0, 1, (rows, 1)) * TYPE_SPEEDS[:types] * chance.lognormal(0, 0.4, (rows, types))
    of = chance.integers(0, rows, total)
    throughputs = base[of] * (1.0 if case.deadlines else chance.lognormal(0, 0.05, (total, types)))
    gangs = chance.choice(GANGS, rows if case.deadlines else total, p=GANG_PARTS)
    gangs = gangs[of] if case.deadlines else gangs
    capacities = np.round(0.2 * gangs[:count].sum() * TYPE_PARTS[:types] / TYPE_PARTS[:types].sum())
    elapsed, steps = chance.uniform(0, 1e5, total), chance.lognormal(np.log(1e5), 1, total)
    columns: dict[str, Floats] = {}
    if case.deadlines:
        columns = {
            "steps_remaining": steps,
            "deadlines_seconds": steps / (throughputs.max(axis=1) * chance.uniform(0.01, 0.12, total)),
        }
    elif case.policy in ("min_makespan", "finish_time_fairness"):
        done = elapsed * chance.uniform(0, 1, total)
        columns = {"steps_remaining": steps, "elapsed_seconds": elapsed, "isolated_seconds": done}
    later = np.arange(count)
    later[chance.choice(count, new, replace=False)] = np.arange(count, total)

    def picked(rows: NDArray[np.int64]) -> gp.AllocationProblem:
        by_job: Any = {name: column[rows] for name, column in columns.items()}
        return gp.AllocationProblem.from_arrays(throughputs[rows], capacities, num_gpus=gangs[rows], **by_job)

    return picked(np.arange(count)), picked(later)


def worked(case: Case, part: int, longest: int) -> dict[str, Any]:
    """Solve a case in this process, which is ended when a solve takes longer, and return CPU seconds and proof."""
    options: Any = {"constraints": [gp.Deadline()]} if case.deadlines else {}
    gp.solve(problems(case, 4_000)[0], case.policy, **options)
    first, later = problems(case, case.jobs // part)
    solver = gp.Solver(case.policy, **options)
    if case.again:
        allow(longest)
        solver.solve(later)
        print(flush=True)  # the first solve has ended in time
    allow(longest)
    started = time.process_time()
    answer = solver.solve(first)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    assert answer.route is not None
    found = {"gap": answer.gap, "violation": answer.verify().violation, "algorithm": answer.route.algorithm}
    return found | {"seconds": seconds, "peak": peak}


def allow(seconds: int) -> None:
    """End this process after so many more seconds of CPU time, rounded up."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, resource.RLIM_INFINITY))


def timed(tree: Path, number: int, part: int, longest: int) -> dict[str, Any] | str:
    """Run a case in a fresh process of a checkout; if it is ended, return how long it takes at least."""
    command = [sys.executable, __file__, "--case", str(number), "--part", str(part), "--longest", str(longest)]
    environment = os.environ | {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        return f"> {longest}" + ", the first solve" * (CASES[number].again and not done.stdout)
    done.check_returncode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(number: int, case: Case, before: Path | None, runs: int, part: int) -> list[object]:
    """Return a line of the table."""
    ours: list[dict[str, Any]] = []
    others: list[float] = []
    earlier: float | str | None = None
    for _ in range(runs):
        if before is not None and not isinstance(earlier, str) and max(others, default=0.0) < SLOW:
            other = timed(before, number, part, LONGEST)
            if not isinstance(other, str):
                others.append(other["seconds"])
            earlier = other if isinstance(other, str) else median(others)
        mine = timed(HERE, number, part, 10 * LONGEST)
        assert not isinstance(mine, str), f"{case.name} does not end"
        ours.append(mine)
    worst, broken = (max(one[key] for one in ours) for key in ("gap", "violation"))
    figures = [earlier, median(one["seconds"] for one in ours), case.target, max(one["peak"] for one in ours)]
    return [case.name, *figures, f"{worst:.0e}", f"{broken:.0e}", ours[0]["algorithm"]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and one run")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--longest", type=int, default=LONGEST, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(worked(CASES[options.case], options.part, options.longest)))
        return
    runs, part = (1, 10) if options.quick else (3, 1)
    rows = []
    for number, case in enumerate(CASES):
        rows.append(row(number, case, options.before, runs, part))
        print(rows[-1], file=sys.stderr, flush=True)
    header = ["jobs x types", "before, CPU s", "now, CPU s", "target, s", "peak, GB", "gap", "violation", "algorithm"]
    text = tables.markdown(header, rows)
    text += f"\nMedians of {runs} runs; {tables.machine()}; `python benchmarks/all_different.py --before TREE --write`.\n"
    print(text)
    if options.write:
        tables.write("all different", text)


if __name__ == "__main__":
    main()
