"""Random workflows: layered graphs of jobs of four kinds on three accelerator types."""

import numpy as np

SPEEDS = np.array([[1.0, 0.3, 0.1], [1.0, 0.5, 0.35], [1.0, 0.8, 0.7], [1.0, 0.25, 0.2]])


def layered_workflow(rng: np.random.Generator, size: int) -> list[set[int]]:
    """Parents of each job of one workflow: chains, fans and joins, as in batch traces."""
    layer = np.sort(rng.integers(0, max(2, int(np.sqrt(size) * 1.5)), size))
    parents: list[set[int]] = [set() for _ in range(size)]
    for job in range(size):
        before = np.flatnonzero(layer < layer[job])
        if len(before):
            last = before[layer[before] == layer[before].max()]
            parents[job] = set(rng.choice(last, min(len(last), 1 + rng.poisson(0.6)), replace=False).tolist())
    return parents


def layered_workflows(rng: np.random.Generator, tasks: int) -> tuple[np.ndarray, np.ndarray, list[set[int]]]:
    """(N, 3) throughputs, (N,) seconds on the fastest type, and the parents of each job, of N jobs in workflows of about 10."""
    throughputs = SPEEDS[rng.integers(0, 4, tasks)]
    work = np.exp(rng.normal(5.5, 1.2, tasks))
    parents: list[set[int]] = []
    while len(parents) < tasks:
        at = len(parents)
        parents += [{u + at for u in each} for each in layered_workflow(rng, min(tasks - at, 2 + rng.geometric(0.12)))]
    return throughputs, work, parents
