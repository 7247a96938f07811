"""Allocate GPU time from arrays every five minutes, with a warm start, a time limit and nodes that fail.

This is the way in for a scheduler that has its own jobs and nodes: it passes arrays and gets arrays back.
"""

from __future__ import annotations

import numpy as np

import gavel_py as gp

TYPES = ["h100", "a100", "l40s"]
GPUS = np.array([64, 128, 96])
GPUS_PER_NODE = 8


def main() -> None:
    rng = np.random.default_rng(0)
    # Steps per second of 300 jobs: on an H100 each is 1.8 to 3 times as fast as on an A100, on an L40S 0.3 to 1.4 times.
    a100 = rng.lognormal(size=300)
    speeds = np.column_stack([a100 * rng.uniform(1.8, 3.0, 300), a100, a100 * rng.uniform(0.3, 1.4, 300)])
    gangs = rng.choice([1, 2, 4, 8], size=300, p=[0.7, 0.1, 0.15, 0.05])
    jobs = np.arange(250)

    solver = gp.Solver("max_min_fairness", time_limit_seconds=10)  # keeps its last basis, from which the next solve starts
    for minute, nodes_down in [(0, [0, 0, 0]), (5, [1, 0, 0]), (10, [1, 0, 2]), (15, [0, 0, 0])]:
        names = [f"job-{job}" for job in jobs]
        whole = gp.AllocationProblem.from_arrays(speeds[jobs], GPUS, num_gpus=gangs[jobs], accelerator_types=TYPES, job_ids=names)
        # Fewer GPUs, while a fair share stays that of the whole cluster.
        problem = whole.with_capacities(GPUS - GPUS_PER_NODE * np.array(nodes_down))
        allocation = solver.solve(problem)
        status, worst, used = allocation.status.value, allocation.vs_fair_share.min(), allocation.utilization.mean()
        print(f"minute {minute:>2}, nodes down: {sum(nodes_down)}; {status}; {len(jobs)} jobs on {used:.0%} of the GPUs")
        print(f"  the worst-off job gets {worst:.2f} of its fair share")
        jobs = np.append(jobs[5:], jobs[-1] + 1 + np.arange(5))  # five jobs leave, five arrive

    first = dict(zip(TYPES, allocation.time_fractions[0].round(3).tolist(), strict=True))
    print(f"{allocation.job_ids[0]} runs this part of the time on each type: {first}")


if __name__ == "__main__":
    main()
