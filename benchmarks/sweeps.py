"""Overhead of a sweep: cells of 5 ms, and the example of 120 simulations.

python benchmarks/sweeps.py                   1,000 cells of 5 ms, against the same cells without a sweep
python benchmarks/sweeps.py --write           and put the table into benchmarks/RESULTS.md
python benchmarks/sweeps.py --example DIR     run examples/sweep.yaml, or continue it, in this folder
python benchmarks/sweeps.py --quick           a few cells: seconds, and no result
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import tables

import gavel_py as gp
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.sweeps.cell import Task, run_cell

EXAMPLE = Path(__file__).parents[1] / "examples" / "sweep.yaml"
CELL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Busy(gp.FormulaPolicy):
    """A policy that uses a fixed CPU time, and gives each job its share of the cluster."""

    def fractions(self, jobs: JobClasses) -> np.ndarray:
        spin()
        total = jobs.capacities.sum()
        return np.outer(1.0 / jobs.num_gpus, jobs.capacities / total / len(jobs))


def spin() -> None:
    """Use this CPU time, however busy the machine is."""
    until = time.process_time() + CELL_SECONDS
    while time.process_time() < until:
        pass


def spec(cells: int, results: Path) -> dict[str, object]:
    return {
        "mode": "solve",
        "policies": [Busy()],
        "traces": [{"generate": {"jobs": 1, "gangs": {1: 1}}}],
        "clusters": ["v100:8"],
        "seeds": range(cells),
        "results": str(results),
    }


def alone(tasks: Sequence[Task]) -> None:
    """Run cells in a process, and drop their results."""
    for task in tasks:
        run_cell(task)


def ideal(tasks: Sequence[Task], workers: int) -> None:
    """Run the same cells without a sweep: each process gets all of its cells at once."""
    with get_context("spawn").Pool(workers) as pool:
        pool.map(alone, [tasks[n::workers] for n in range(workers)], chunksize=1)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds, including those of processes that have ended."""
    began, cpu = time.perf_counter(), _cpu()
    call()
    return time.perf_counter() - began, _cpu() - cpu


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def engine_rows(cells: int, workers: int, repeats: int) -> list[list[object]]:
    """Time the ideal and the sweep alternately, several times; the minimum of each counts."""
    found: dict[str, list[tuple[float, float]]] = {
        "processes that receive their cells once": [],
        "gavel sweep, each cell stored": [],
    }
    first, second = found
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            plan = gp.plan_sweep(spec(cells, Path(folder) / f"{number}.sqlite"))
            tasks = [cell.task_with(None) for cell in plan._cells]
            found[first].append(timed(partial(ideal, tasks, workers)))
            found[second].append(timed(partial(plan.play, workers=workers)))
    least = {name: [min(values) for values in zip(*each, strict=True)] for name, each in found.items()}
    wall, cpu = least[first]
    return [[name, f"{w:.2f}", f"{w / wall:.2f}", f"{c:.2f}", f"{c / cpu:.2f}"] for name, (w, c) in least.items()]


def example(folder: Path, workers: int) -> None:
    """Run the example, and print its times."""
    results = folder / "example.sqlite"
    wall, _ = timed(lambda: gp.sweep(EXAMPLE, results=str(results), workers=workers, on_progress=_told()))
    connection = sqlite3.connect(results)
    rows = [
        (seconds, json.loads(metrics)["cpu_seconds"])
        for seconds, metrics in connection.execute("SELECT seconds, metrics FROM cells")
    ]
    connection.close()
    seconds, cpu = (sum(each) for each in zip(*rows, strict=True))
    print(f"{len(rows)} cells: {cpu / 60:.1f} minutes of processors, {cpu / workers / 60:.1f} on {workers} that are free")
    print(f"here: {seconds / workers / 60:.1f} minutes in cells on {workers} processes; this call took {wall / 60:.1f} minutes")
    print(f"the store: {results.stat().st_size / 2**20:.1f} MiB")


def _told() -> Callable[[gp.Progress], None]:
    last = [-60.0]

    def show(progress: gp.Progress) -> None:
        if time.monotonic() - last[0] >= 60.0:
            last[0] = time.monotonic()
            print(progress, flush=True)

    return show


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    parser.add_argument("--example", type=Path, metavar="DIR", help="play examples/sweep.yaml there")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if options.example is not None:
        example(options.example, options.workers)
        return
    cells, repeats = (20, 1) if options.quick else (1000, 3)
    header = [f"{cells:,} cells of 5 ms, {options.workers} processes", "s", "to the first", "s of processors", "to the first"]
    text = tables.markdown(header, engine_rows(cells, options.workers, repeats))
    text += f"\nLeast of {repeats}; {tables.machine()}; `python benchmarks/sweeps.py --write`.\n"
    print(text)
    if options.write and not options.quick:
        tables.write("sweeps", text)


if __name__ == "__main__":
    main()
