"""CPU time of what callers of `RoundScheduler` and `Simulation` call, with an earlier checkout beside this one.

    python benchmarks/public_calls.py                 print the table (ten minutes)
    python benchmarks/public_calls.py --before TREE   and time an earlier checkout in turns with this one (half an hour)
    python benchmarks/public_calls.py --only events   one of: submit, small, large, rounds, events
    python benchmarks/public_calls.py --write         and put the table into benchmarks/RESULTS.md

Each part runs in a process of its own, 3 times for each checkout; the figures are medians of all calls of all processes. Jobs are
those of `round_scenes`: twice as much demand as GPUs, gangs of 1, 2, 4 and 8, under `max_min_fairness`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import tables
from round_scenes import cluster_of, jobs_for, profile

import gavel_py as gp

HERE = Path(__file__).parents[1]
PROCESSES = 3
ROUND_SECONDS = 360.0

WARM_UP = 2
"""Rounds after the first one that are not timed: the first rounds start all gangs."""

TOTAL_STEPS = 1e9
"""More than jobs do during the benchmark; nearly all real jobs have a number of steps."""

SAVED_GPUS = 10_000
"""Size of the largest cluster whose scheduler is saved and loaded."""

Figures = dict[str, list[float]]


@contextmanager
def timed(figures: Figures, name: str) -> Iterator[None]:
    """Add the CPU milliseconds of the block to the figures of a name."""
    started = time.process_time()
    yield
    figures.setdefault(name, []).append(1000 * (time.process_time() - started))


def submitting() -> Figures:
    """Submit jobs to a new scheduler, several times if they are few."""
    figures: Figures = {}
    chance = np.random.default_rng(0)
    rows = [
        gp.Measurement(job_type=f"type-{n}", num_gpus=1, accelerator=name, steps_per_second=float(speed))
        for n, speeds in enumerate(chance.uniform(1.0, 9.0, (5_000, 3)))
        for name, speed in zip(("v100", "p100", "k80"), speeds, strict=True)
    ]
    different = gp.ThroughputProfile("different", rows)
    alike = [gp.Job(f"job-{n}", job_type=f"type-{n}", total_steps=TOTAL_STEPS) for n in range(5_000)]
    cases = {"5,000 jobs of 5,000 job types": (different, alike)}
    many = list(islice(jobs_for(np.random.default_rng(1), 300_000), 100_000))
    for count in (10_000, 100_000):
        few = many[:count]
        cases[f"{count:,} jobs of {len({(job.job_type, job.num_gpus) for job in few})} types and sizes"] = profile(), few
    for name, (speeds_of, jobs) in cases.items():
        for _ in range(1 if len(jobs) > 10_000 else 3):
            scheduler = gp.RoundScheduler(cluster_of(400), speeds_of)
            with timed(figures, f"`submit_all`, {name}"):
                scheduler.submit_all(jobs)
    return figures


def rounds_of(gpus: int, rounds: int) -> Figures:
    """Return the times of first and later rounds, of `delivery`, and on small clusters of `save` and `load`."""
    figures: Figures = {}
    size, chance, steps = f"{gpus:,} GPUs", np.random.default_rng(0), 0.0
    jobs = [job.model_copy(update={"total_steps": TOTAL_STEPS}) for job in jobs_for(chance, 2 * gpus)]
    scheduler = gp.RoundScheduler(cluster_of(gpus // 3), profile())
    scheduler.submit_all(jobs)

    def unchanged() -> None:
        """Change nothing."""

    def replace_some() -> None:
        """Replace one job in a hundred by a similar one."""
        places = chance.choice(len(jobs), len(jobs) // 100, replace=False).tolist()
        for place in places:
            scheduler.cancel(jobs[place].job_id)
            jobs[place] = jobs[place].model_copy(update={"job_id": f"{jobs[place].job_id}-next"})
        scheduler.submit_all([jobs[place] for place in places])

    def report() -> None:
        """Report progress of all jobs."""
        nonlocal steps
        steps += 1.0
        scheduler.report_all({job.job_id: steps for job in jobs})

    with timed(figures, f"the first `next_round`, {size}"):
        scheduler.next_round()
    for _ in range(WARM_UP):
        scheduler.next_round()
    changes: dict[str, Callable[[], None]] = {
        "nothing has changed": unchanged,
        "1 % of the jobs replaced": replace_some,
        "all jobs have reported progress": report,
    }
    for name, change in changes.items():
        for _ in range(rounds):
            change()
            with timed(figures, f"`next_round`, {size}, {name}"):
                scheduler.next_round()
    for _ in range(rounds):
        with timed(figures, f"`delivery`, {size}"):
            scheduler.delivery()
        scheduler.next_round()
    return figures | (saved(scheduler, size, rounds) if gpus <= SAVED_GPUS else {})


def saved(scheduler: gp.RoundScheduler, size: str, repeats: int) -> Figures:
    """Return the times of `save` and `load`."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state"
        for _ in range(repeats):
            with timed(figures, f"`save`, {size}"):
                scheduler.save(file)
            with timed(figures, f"`load`, {size}"):
                gp.RoundScheduler.load(file, profile())
    return figures


def rate(simulation: gp.Simulation, steps: int) -> float:
    """Return the steps of a simulation per CPU second."""
    started = time.process_time()
    for _ in range(steps):
        simulation.step()
    return steps / (time.process_time() - started)


def simulated_rounds() -> Figures:
    """Return the rounds per second with half as many GPUs as active jobs, and an arrival every 10 rounds."""
    figures: Figures = {}
    for active, steps in ((1_000, 100), (10_000, 20)):
        trace = gp.generate_trace(active + 200, profile(), jobs_per_hour=None, seed=0)
        late = [ROUND_SECONDS * 10 * max(0, n - active) for n in range(len(trace))]
        jobs = [
            each.job.model_copy(update={"total_steps": TOTAL_STEPS, "arrival_seconds": seconds})
            for each, seconds in zip(trace, late, strict=True)
        ]
        cluster = gp.Cluster.from_counts({"v100": (active // 6, 8), "p100": (active // 6, 4), "k80": (active // 6, 4)})
        simulation = gp.Simulation(jobs, cluster, profile(), "max_min_fairness", round_seconds=ROUND_SECONDS)
        for _ in range(20):
            simulation.step()
        figures[f"rounds/s, `max_min_fairness`, {active:,} active jobs"] = [rate(simulation, steps) for _ in range(3)]
    return figures


def simulated_events() -> Figures:
    """Return the events per second with 1,000 jobs in the system at first, half of which wait, while as many arrive as end."""
    figures: Figures = {}
    cluster = gp.Cluster.from_counts({"v100": (160, 8), "p100": (160, 4), "k80": (160, 4)})
    hours = gp.LogUniform(((1, 3_600, 7_200),))
    trace = gp.generate_trace(14_000, profile(), jobs_per_hour=None, durations=hours, seed=1)
    speeds = profile().matrix([each.job for each in trace], cluster.accelerator_names)
    steps, gpus = (np.array([getattr(each.job, name) for each in trace], dtype=float) for name in ("total_steps", "num_gpus"))
    gpu_seconds = np.nanmean(np.where(speeds > 0, (gpus * steps)[:, None] / speeds.clip(1e-9), np.nan), axis=0)
    late = np.maximum(0.0, np.arange(len(trace)) - 1_000) / (cluster.capacities / gpu_seconds).sum()
    jobs = [each.job.model_copy(update={"arrival_seconds": when}) for each, when in zip(trace, late.tolist(), strict=True)]
    classes = np.random.default_rng(1).integers(5, size=len(jobs)).tolist()
    ranked = [job.model_copy(update={"priority": each}) for job, each in zip(jobs, classes, strict=True)]
    for policy, count in {"fifo": 2_000, "shortest_job_first": 2_000, "priority": 2_000, "least_attained_service": 300}.items():
        simulation = gp.Simulation(ranked, cluster, profile(), policy, round_seconds=None)
        for _ in range(count // 2):
            simulation.step()
        figures[f"events/s, `{policy}`, 1,000 active jobs, 480 GPUs"] = [rate(simulation, count) for _ in range(3)]
    return figures


PARTS: dict[str, Callable[[], Figures]] = {
    "submit": submitting,
    "small": lambda: rounds_of(10_000, 9),
    "large": lambda: rounds_of(100_000, 3),
    "rounds": simulated_rounds,
    "events": simulated_events,
}

TARGETS: dict[str, tuple[float | None, float]] = {
    "`submit_all`, 5,000 jobs of 5,000 job types": (2_500, 150),
    "`submit_all`, 10,000 jobs of 83 types and sizes": (185, 80),
    "`submit_all`, 100,000 jobs of 83 types and sizes": (None, 800),
    "`next_round`, 10,000 GPUs, nothing has changed": (138, 30),
    "`next_round`, 10,000 GPUs, 1 % of the jobs replaced": (233, 60),
    "`next_round`, 10,000 GPUs, all jobs have reported progress": (295, 75),
    "`save`, 10,000 GPUs": (1_000, 150),
    "`load`, 10,000 GPUs": (2_000, 300),
    "the first `next_round`, 100,000 GPUs": (3_300, 1_200),
    "`next_round`, 100,000 GPUs, nothing has changed": (1_960, 350),
    "`next_round`, 100,000 GPUs, 1 % of the jobs replaced": (3_520, 700),
    "`next_round`, 100,000 GPUs, all jobs have reported progress": (3_950, 900),
    "`delivery`, 100,000 GPUs": (1_400, 100),
    "rounds/s, `max_min_fairness`, 1,000 active jobs": (94, 200),
    "rounds/s, `max_min_fairness`, 10,000 active jobs": (9.3, 30),
    "events/s, `fifo`, 1,000 active jobs, 480 GPUs": (1_573, 4_000),
    "events/s, `shortest_job_first`, 1,000 active jobs, 480 GPUs": (535, 2_000),
}
"""{call: (figure of the earlier version when the target was set, target)}. Their ratio depends less on the machine."""


def measured(tree: Path, part: str) -> Figures:
    """Return the figures of a part in a fresh process of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--part", part]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: Figures = json.loads(printed.splitlines()[-1])  # in earlier versions, HiGHS 1.16 prints its version first
    return found


def row_of(what: str, now: list[float], before: list[float] | None) -> Iterator[object]:
    """Yield the cells of a row of the table."""
    then, target = TARGETS.get(what, (None, None))
    yield from (what, median(now), f"{min(now):,.3g} to {max(now):,.3g}", target)
    if before is not None:
        gain = median(now) / median(before) if "/s" in what else median(before) / median(now)
        yield from (median(before), gain, then and target and max(target / then, then / target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part only; may be repeated")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part]()))
        return
    trees = {"before": asked.before.resolve(), "now": HERE} if asked.before else {"now": HERE}
    figures: dict[str, Figures] = {name: {} for name in trees}
    for part in asked.only or PARTS:
        for _ in range(PROCESSES):
            for name, tree in trees.items():
                for what, values in measured(tree, part).items():
                    figures[name].setdefault(what, []).extend(values)
    rows = [
        list(row_of(what, values, figures["before"][what] if asked.before else None)) for what, values in figures["now"].items()
    ]
    compared = ["before", "times less, or more per second", "should be"] if asked.before else []
    text = tables.markdown(["public call, CPU ms, or per CPU second", "now", "least to most", "target", *compared], rows)
    command = "`python benchmarks/public_calls.py --before TREE --write`"
    text += f"\nMedians of {PROCESSES} processes for each checkout, in turns; {tables.machine()}; {command}.\n"
    print(text)
    if asked.write:
        tables.write("public calls", text)


if __name__ == "__main__":
    main()
