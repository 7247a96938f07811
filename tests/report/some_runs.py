"""Synthetic, reproducible runs for tests and benchmarks, similar to those of simulations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import gavel_py as gp

TYPES = ("v100", "p100", "k80")
GPUS = {"v100": 36, "p100": 36, "k80": 36}
JOB_TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 80)", "Recommendation (batch size 512)", "CycleGAN", "A3C")


def some_runs(
    policies: Sequence[str] = ("fifo", "max_min_fairness", "min_makespan"),
    loads: Sequence[float | None] = (2.0, 4.0, 6.0),
    seeds: int = 3,
    jobs: int = 200,
    **labels: str | float,
) -> list[gp.Run]:
    """Return a run for each policy, load and seed."""
    return [
        some_run(policy, load, seed, jobs, place=place, **labels)
        for load in loads
        for place, policy in enumerate(policies)
        for seed in range(seeds)
    ]


def some_run(policy: str, load: float | None, seed: int, jobs: int = 200, *, place: int = 0, **labels: str | float) -> gp.Run:
    """Return a run that is slower for later policies and higher loads."""
    rng = np.random.default_rng([seed, round(10 * (load or 0.0)), place])
    pressure = 1.0 + (load or 3.0) / 4 + 0.15 * place
    jct = np.sort(rng.lognormal(9.5, 1.2, jobs) * pressure)
    makespan = float(jct[-1] + jobs / (load or 3.0) * 3600)
    return gp.Run(
        labels={"policy": policy, "trace": "generated", "load": load, "cluster": "v100:36,p100:36,k80:36", "seed": seed} | labels,
        metrics={
            "mean_jct_seconds": float(jct.mean()),
            "median_jct_seconds": float(np.median(jct)),
            "p99_jct_seconds": float(np.quantile(jct, 0.99)),
            "makespan_seconds": makespan,
            "finish_time_fairness": pressure / 2,
            "utilization": min(0.98, 0.3 * pressure),
            "undelivered_share": 0.01 * place,
            "cost": 4000.0 * pressure * (1.2 - 0.1 * place),
            "finished": float(jobs),
            "late": None,
            "preemptions": float(rng.integers(50, 500)),
            "solver_seconds": 1.5 * pressure,
        },
        jct_seconds=jct,
        fairness=np.sort(rng.lognormal(0.0, 0.4, jobs) * pressure / 2),
        over_time=_over_time(rng, makespan, pressure),
        shares={name: dict(zip(TYPES, rng.dirichlet([3, 2, 1]).tolist(), strict=True)) for name in JOB_TYPES},
    )


def _over_time(rng: np.random.Generator, makespan: float, pressure: float, stretches: int = 200) -> gp.OverTime:
    middle = np.linspace(0, 1, stretches)
    shape = np.clip(np.minimum(middle * 8, (1 - middle) * 3), 0, 1)
    used = {name: np.clip(shape * 0.5 * pressure + rng.normal(0, 0.05, stretches), 0, 1) for name in TYPES}
    prices = {name: np.where(shape > 0.5, shape * (0.02 + 0.01 * k), np.nan) for k, name in enumerate(TYPES)}
    promised = shape * 90 * makespan / stretches
    return gp.OverTime(
        seconds=np.linspace(0, makespan, stretches + 1),
        used=used,
        prices=prices,
        active_jobs=np.round(shape * 60 * pressure),
        promised_gpu_seconds=promised,
        delivered_gpu_seconds=promised * rng.uniform(0.9, 1.05, stretches),
    )


def some_stays(nodes: int = 6, gpus: int = 4, rounds: int = 40, seed: int = 0) -> list[gp.Stay]:
    """Return stays of gangs of one or two GPUs on nodes of two types, for a few rounds each."""
    rng = np.random.default_rng(seed)
    stays: list[gp.Stay] = []
    for node in range(nodes):
        kind = TYPES[node * 2 // nodes]
        for first in range(0, gpus, 2):
            start, gang = 0, 1 + (node + first) % 2
            while start < rounds:
                end = min(rounds, start + int(rng.integers(1, 12)))
                job = f"job-{node}-{first}-{start}"
                stays.append(gp.Stay(job, JOB_TYPES[start % 5], f"{kind}-{node}", kind, gang, start * 360.0, end * 360.0))
                start = end + int(rng.integers(0, 3))
    return stays
