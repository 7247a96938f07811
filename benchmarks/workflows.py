"""Workflows: what it is worth that the workflow is the unit, how good schedules are, and what dependencies cost a simulation.

    python benchmarks/workflows.py               print the tables (about 15 minutes)
    python benchmarks/workflows.py --write       and put them into benchmarks/RESULTS.md
    python benchmarks/workflows.py --only units  one of them: units, schedules, simulator
    python benchmarks/workflows.py --quick       one seed and few jobs, to see that all of it works

Workflows have 2 + geometric(.12) jobs in layers; a job waits for one or more of the layer before it. Jobs are of four types on
accelerators of three types; what a job has to do takes exp(normal(5.5, 1.2)) seconds on its fastest type.

- units: 50 workflows arrive at a load of about .8 of 4 + 6 + 8 GPUs.
- schedules: jobs at time 0 on as many times 4 + 6 + 8 GPUs as there are 200 jobs.
- simulator: as units, with more jobs and GPUs, beside the same jobs without dependencies, which arrive when their namesakes were
  ready. So as many jobs are ready at any time. An event is that a job is ready, or that one ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tables

import gavel_py as gp

TYPES, GPUS = ("a", "b", "c"), np.array([4, 6, 8])
SPEEDS = np.array([[1.0, 0.3, 0.1], [1.0, 0.5, 0.35], [1.0, 0.8, 0.7], [1.0, 0.25, 0.2]])
LOAD, COUNT, SEEDS = 0.8, 50, 10

ROUND_SECONDS = 60.0
POLICIES: dict[str, dict[str, Any]] = {
    "shortest_job_first": {"round_seconds": None},
    "max_progress_rate": {"round_seconds": ROUND_SECONDS},
    "max_min_fairness": {"round_seconds": ROUND_SECONDS},
    "fifo": {"round_seconds": None},
}


def profile() -> gp.ThroughputProfile:
    rows = [(f"type {n}", name, float(speed)) for n, speeds in enumerate(SPEEDS) for name, speed in zip(TYPES, speeds, strict=True)]
    return gp.ThroughputProfile(
        "benchmark", [gp.Measurement(job_type=t, num_gpus=1, accelerator=a, steps_per_second=s) for t, a, s in rows]
    )


def cluster(times: int = 1) -> gp.Cluster:
    return gp.Cluster.from_counts(dict(zip(TYPES, (GPUS * times).tolist(), strict=True)))


def parents_of(chance: np.random.Generator, size: int) -> list[list[int]]:
    """Return the jobs for which each job of one workflow waits."""
    layer = np.sort(chance.integers(0, max(2, int(np.sqrt(size) * 1.5)), size))
    found: list[list[int]] = []
    for job in range(size):
        before = np.flatnonzero(layer < layer[job])
        last = before[layer[before] == layer[before].max(initial=-1)]
        count = min(len(last), 1 + int(chance.poisson(0.6)))
        found.append(sorted(chance.choice(last, count, replace=False).tolist()) if count else [])
    return found


def workflow(chance: np.random.Generator, name: str, now: float) -> list[gp.Job]:
    size = 2 + int(chance.geometric(0.12))
    types, work = chance.integers(0, len(SPEEDS), size), np.exp(chance.normal(5.5, 1.2, size))
    return [
        gp.Job(
            f"{name}-{n}",
            job_type=f"type {types[n]}",
            total_steps=float(work[n]),
            arrival_seconds=now,
            workflow=name,
            depends_on=[f"{name}-{parent}" for parent in parents],
        )
        for n, parents in enumerate(parents_of(chance, size))
    ]


def arriving(seed: int, workflows: int = sys.maxsize, jobs: int = sys.maxsize, times: int = 1) -> list[gp.Job]:
    """Return the first jobs of workflows that arrive one after another; times: how many times the GPUs there are."""
    chance, found, now, number = np.random.default_rng(seed), list[gp.Job](), 0.0, 0
    speed = float((GPUS * times) @ SPEEDS.mean(axis=0))
    while number < workflows and len(found) < jobs:
        new = workflow(chance, f"w{number}", now)
        found += new
        now += float(chance.exponential()) * sum(job.total_steps or 0.0 for job in new) / LOAD / speed
        number += 1
    return found[:jobs]


def workflow_hours(policy: str, seed: int, count: int = COUNT, *, by_workflow: bool) -> float:
    """Return the mean time of workflows in hours."""
    jobs = arriving(seed, workflows=count)
    result = gp.simulate(jobs, cluster(), profile(), policy, by_workflow=by_workflow, **POLICIES[policy])
    return float(np.mean([seconds for seconds in result.workflows.values() if seconds is not None])) / 3600


def gains(policy: str, seeds: Sequence[int], count: int = COUNT) -> tuple[float, float, list[float]]:
    """Return the mean hours of workflows by job and by workflow, and the gain of each seed as a part of the former."""
    hours = np.array([[workflow_hours(policy, seed, count, by_workflow=each) for each in (False, True)] for seed in seeds])
    by_job, by_workflow = hours.mean(axis=0).tolist()
    return by_job, by_workflow, (1 - hours[:, 1] / hours[:, 0]).tolist()


def units(seeds: int) -> Iterator[list[object]]:
    for policy in POLICIES:
        by_job, by_workflow, each = gains(policy, range(seeds))
        spread = "" if by_job == by_workflow else f"{min(each):.0%} … {max(each):.0%}"
        yield [policy, f"{by_job:.3f}", f"{by_workflow:.3f}", f"{1 - by_workflow / by_job:.1%}", spread]


def schedules(largest: int) -> Iterator[list[object]]:
    for tasks in (50, 200, 1_000, 5_000):
        ratios, seconds = list[float](), list[float]()
        for seed in range(5 if tasks < 5_000 else 1) if tasks <= largest else ():
            jobs = [job.model_copy(update={"arrival_seconds": 0.0}) for job in arriving(seed, jobs=tasks)]
            began = time.process_time()
            ratios.append(1 + gp.schedule_workflows(jobs, cluster(max(1, tasks // 200)), profile()).gap)
            seconds.append(time.process_time() - began)
        if ratios:
            yield [f"{tasks:,}", len(ratios), f"{np.mean(ratios):.3f}", f"{max(ratios):.3f}", float(np.median(seconds))]


def without_dependencies(jobs: Sequence[gp.Job], result: gp.SimulationResult) -> list[gp.Job]:
    """Return the same jobs without workflows, which arrive when they were ready."""
    ends = {name: record.end_seconds or 0.0 for name, record in result.jobs.items()}
    ready = {job.job_id: max([job.arrival_seconds, *(ends[parent] for parent in job.depends_on)]) for job in jobs}
    changed = [job.model_copy(update={"depends_on": (), "workflow": "", "arrival_seconds": ready[job.job_id]}) for job in jobs]
    return sorted(changed, key=lambda job: job.arrival_seconds)


def simulated(jobs: Sequence[gp.Job], times: int, policy: str) -> tuple[gp.SimulationResult, float]:
    """Return the result and its milliseconds of processor time per event."""
    began = time.process_time()
    result = gp.simulate(jobs, cluster(times), profile(), policy, **POLICIES[policy])
    return result, (time.process_time() - began) / (2 * len(jobs)) * 1e3


def simulator(tasks: int, times: int = 20) -> Iterator[list[object]]:
    jobs = arriving(0, jobs=tasks, times=times)
    at_once = [job.model_copy(update={"arrival_seconds": 0.0}) for job in jobs]
    for policy, arrival, each in (
        ("fifo", "one after another", jobs),
        ("shortest_job_first", "one after another", jobs),
        ("fifo", "all at time 0", at_once),
    ):
        simulated(each[: tasks // 50], times, policy)  # what is imported and cached is not counted
        result, with_them = simulated(each, times, policy)
        blocked = sum(record.blocked_seconds > 0 for record in result.jobs.values())
        _, without = simulated(without_dependencies(each, result), times, policy)
        yield [policy, arrival, f"{blocked:,}", f"{with_them:.3f}", f"{without:.3f}", f"{with_them / without:.2f}"]


HEADERS = {
    "units": ("policy", "by job, hours", "by workflow, hours", "shorter", "least … most of a seed"),
    "schedules": ("jobs", "seeds", "schedule over bound, mean", "maximum", "CPU seconds"),
    "simulator": ("policy", "workflows arrive", "jobs that wait for others", "ms per event", "without dependencies", "ratio"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=HEADERS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seeds, tasks, largest = (1, 2_000, 200) if given.quick else (SEEDS, 100_000, 5_000)
    makers: dict[str, Callable[[], Iterator[list[object]]]] = {
        "units": lambda: units(seeds),
        "schedules": lambda: schedules(largest),
        "simulator": lambda: simulator(tasks),
    }
    notes = {"units": f"{seeds} seeds, ", "schedules": "", "simulator": f"{tasks:,} jobs, "}
    for name in [given.only] if given.only else HEADERS:
        table = tables.markdown(HEADERS[name], makers[name]())
        text = f"{table}\n{notes[name]}{tables.machine()}; `python benchmarks/workflows.py --only {name} --write`.\n"
        print(text, flush=True)
        if given.write:
            tables.write(f"workflow-{name}", text)


if __name__ == "__main__":
    main()
