"""Speed of the simulator: the published small traces, 1,000 active jobs, and optionally the Philly trace.

python benchmarks/simulator.py                      the small ones
python benchmarks/simulator.py --philly FILE        and Philly, 82,247 jobs: minutes
python benchmarks/simulator.py --philly FILE --events --decisions 5000    only its first decisions, in event mode
python benchmarks/simulator.py --generated 1000000  and so many generated jobs on 2,000 GPUs in event mode: a quarter of an hour
python benchmarks/simulator.py --write ...          and put the table into benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import tables

import gavel_py as gp

RUNS = 5
ACTIVE, CHANGED = 1_000, 10


def generated(jobs: int) -> tuple[gp.Trace, gp.ThroughputProfile]:
    """Return jobs of the published mix, all submitted at time 0."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    return gp.generate_trace(jobs, profile, jobs_per_hour=None, seed=0), profile


def of_small_traces(folder: Path) -> Iterator[list[object]]:
    """The published small traces, of 15 and 20 jobs, on 12 GPUs; the published simulator takes 3 to 28 s for each."""
    cluster = gp.Cluster.from_counts({"v100": 4, "p100": 4, "k80": 4})
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    for path in sorted(folder.glob("*.trace")):
        jobs = gp.JobSet.from_file(path)
        for policy in ("max_min_fairness", "finish_time_fairness", "min_makespan", "fifo"):
            took = []
            for _ in range(RUNS):
                started = time.perf_counter()
                result = gp.simulate(jobs, cluster, profile, policy)
                took.append(time.perf_counter() - started)
            rounds = result.summary.rounds
            yield [f"{path.stem}, {len(jobs)} jobs, 12 GPUs, `{policy}`", median(took), 1, rounds, rounds / median(took)]


def of_active_jobs() -> Iterator[list[object]]:
    """Simulate 1,000 jobs of a day and more on 500 GPUs: rounds per second, and how often the allocation changes."""
    trace, profile = generated(3 * ACTIVE)
    long = [each.job.model_copy(update={"total_steps": (each.job.total_steps or 1.0) * 100}) for each in trace]
    jobs = [job.model_copy(update={"arrival_seconds": 360.0 * max(0, i - ACTIVE) * CHANGED}) for i, job in enumerate(long)]
    cluster = gp.Cluster.from_counts({"v100": (168, 8), "p100": (168, 4), "k80": (164, 4)})
    simulation = gp.Simulation(jobs, cluster, profile, "max_min_fairness")
    for _ in range(20):
        simulation.step()
    rates = []
    for _ in range(RUNS):
        started = time.perf_counter()
        for _ in range(100):
            simulation.step()
        rates.append(100 / (time.perf_counter() - started))
    label = f"{simulation.active:,} active jobs, 500 GPUs, `max_min_fairness`, an arrival every {CHANGED} rounds"
    yield [label, None, "200 rounds/s", 100, median(rates)]


def of_philly_by_events(path: Path, decisions: int | None) -> Iterator[list[object]]:
    """Simulate in event mode: a decision for each arrival and end of a job, or only the first ones."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace, profile = gp.assign_job_types(gp.read_trace(path), profile, seed=0, extrapolate=True)
    cluster = gp.Cluster.from_counts({"v100": (400, 8), "p100": (400, 4), "k80": (400, 4)})
    for policy, target in {"fifo": 8, "shortest_job_first": 10, "least_attained_service": 12}.items():
        simulation = gp.Simulation(trace, cluster, profile, policy, round_seconds=None, on_record=lambda _: None)
        played = 0
        while (decisions is None or played < decisions) and simulation.step():
            played += 1
        summary = simulation.result().summary
        part = f"{len(trace):,} jobs" if decisions is None else f"the first {decisions:,} decisions"
        label = f"Philly, {part}, 1,200 GPUs, `{policy}` by events"
        yield [label, summary.wall_seconds, target, summary.rounds, summary.rounds / summary.wall_seconds]


def of_philly(path: Path) -> Iterator[list[object]]:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace, profile = gp.assign_job_types(gp.read_trace(path), profile, seed=0, extrapolate=True)
    cluster = gp.Cluster.from_counts({"v100": (400, 8), "p100": (400, 4), "k80": (400, 4)})
    simulation = gp.Simulation(trace, cluster, profile, "max_min_fairness", on_record=lambda _: None)
    summary = simulation.run().summary
    share = summary.solver_seconds / summary.wall_seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    label = f"Philly, {len(trace):,} jobs, 1,200 GPUs, `max_min_fairness`: {share:.0%} of it solving, {memory:.2f} GB"
    yield [label, summary.wall_seconds, 120, summary.rounds, summary.rounds / summary.wall_seconds]


def of_generated(count: int) -> Iterator[list[object]]:
    """Simulate generated jobs of the published mix at a load of 0.8 in event mode."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    cluster = gp.Cluster.from_counts({"v100": (672, 8), "p100": (664, 4), "k80": (664, 4)})
    sample = [each.job for each in gp.generate_trace(3_000, profile, jobs_per_hour=1_000, seed=2)]
    speeds = [np.nanmean([profile.job_throughput(job, name) for name in cluster.accelerator_names]) for job in sample]
    gpu_seconds = np.mean([job.num_gpus * (job.total_steps or 0.0) / speed for job, speed in zip(sample, speeds, strict=True)])
    rate = float(0.8 * cluster.capacities.sum() / gpu_seconds * 3600)
    trace = gp.generate_trace(count, profile, jobs_per_hour=rate, seed=1)
    simulation = gp.Simulation(trace, cluster, profile, "fifo", round_seconds=None, on_record=lambda _: None)
    began = time.process_time()
    summary = simulation.run().summary
    seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    label = f"{count:,} generated jobs, 2,000 GPUs, load 0.8, `fifo` by events, CPU: {memory:.2f} GB"
    yield [label, seconds, None, summary.rounds, summary.rounds / seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    parser.add_argument("--philly", type=Path, metavar="FILE")
    parser.add_argument("--events", action="store_true", help="with --philly: also without rounds, under two policies")
    parser.add_argument("--decisions", type=int, metavar="N", help="with --events: end after so many decisions")
    parser.add_argument("--generated", type=int, metavar="N", help="also so many generated jobs in event mode")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    options = parser.parse_args()
    rows = [*(of_small_traces(options.traces) if options.traces is not None else ()), *of_active_jobs()]
    if options.philly is not None and options.decisions is None:
        rows += of_philly(options.philly)
    if options.philly is not None and options.events:
        rows += of_philly_by_events(options.philly, options.decisions)
    if options.generated is not None:
        rows += of_generated(options.generated)
    figures = tables.markdown(["simulation", "seconds", "target", "rounds", "rounds/s"], rows)
    text = f"{figures}\nMedians of {RUNS} runs, Philly of one; {tables.machine()}; `python benchmarks/simulator.py --write`.\n"
    print(text)
    if options.write:
        tables.write("simulator", text)


if __name__ == "__main__":
    main()
