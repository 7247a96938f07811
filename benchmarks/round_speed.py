"""CPU time of one round of `RoundScheduler`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from round_scenes import cluster_of, jobs_for, profile

import gavel_py as gp

# The first rounds start all gangs, so they are not typical.
WARM_UP = 3
REPLACED = 0.01

# More than jobs do during the benchmark; nearly all real jobs have a number of steps.
TOTAL_STEPS = 1e9


@dataclass
class Times:
    """CPU seconds of calls of `next_round`, and the wall seconds of solving within them; jobs: in the system."""

    jobs: int
    in_all: list[float] = field(default_factory=list)
    solving: list[float] = field(default_factory=list)


def round_seconds(per_type: int, mechanism: str, rounds: int) -> dict[str, Times]:
    """Return the times of this number of rounds after each kind of change.

    Jobs request twice the GPUs of the cluster, under `max_min_fairness`, with throughputs for consolidated and spread gangs.
    """
    cluster, chance = cluster_of(per_type), np.random.default_rng(0)
    scheduler = gp.RoundScheduler(cluster, profile(), mechanism=mechanism)
    jobs = [job.model_copy(update={"total_steps": TOTAL_STEPS}) for job in jobs_for(chance, 2 * cluster.num_gpus)]
    scheduler.submit_all(jobs)
    for _ in range(WARM_UP):
        scheduler.next_round()
    steps = 0.0

    def nothing() -> None:
        """Change nothing."""

    def replaced() -> None:
        """Replace one job in a hundred by a similar one."""
        places = chance.choice(len(jobs), max(1, int(REPLACED * len(jobs))), replace=False).tolist()
        for place in places:
            scheduler.cancel(jobs[place].job_id)
            jobs[place] = jobs[place].model_copy(update={"job_id": f"{jobs[place].job_id}-next"})
        scheduler.submit_all([jobs[place] for place in places])

    def reported() -> None:
        """Report progress of all jobs."""
        nonlocal steps
        steps += 1.0
        scheduler.report_all({job.job_id: steps for job in jobs})

    changes: dict[str, Callable[[], None]] = {
        "nothing has changed": nothing,
        "1 % of the jobs replaced": replaced,
        "all jobs have reported progress": reported,
    }
    found = {}
    for name, change in changes.items():
        found[name] = Times(len(jobs))
        for _ in range(rounds):
            change()
            solved, started = scheduler.solver_seconds, time.process_time()
            scheduler.next_round()
            found[name].in_all.append(time.process_time() - started)
            found[name].solving.append(scheduler.solver_seconds - solved)
    return found
