"""Scenes of the benchmark of teams: schedulers with the stays of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from round_scenes import Scene
from round_watch import Stay

import gavel_py as gp

ROUND_SECONDS = 360.0
ROUNDS = 60
Spec = Mapping[str, tuple[int, int]]
"""{team: (number of jobs, GPUs of each)}."""
Speed = Callable[[gp.Job], Sequence[float]]
"""The speeds of a job on the types of a cluster."""


def team_jobs(spec: Spec) -> list[gp.Job]:
    return [gp.Job(f"{name}-{i:03d}", tenant=name, num_gpus=size) for name, (count, size) in spec.items() for i in range(count)]


def as_gpus(job: gp.Job) -> list[float]:
    return [1.0 * job.num_gpus]


def gang_jobs(*sizes: int) -> list[gp.Job]:
    return [gp.Job(f"{i}", num_gpus=size, tenant="v") for i, size in enumerate(sizes)]


def scheduler_of(
    jobs: Sequence[gp.Job],
    cluster: str | gp.Cluster,
    policy: str | gp.Policy = "max_min_fairness",
    speed: Speed = as_gpus,
    restart_seconds: float = 0.0,
) -> gp.RoundScheduler:
    """Return a scheduler that knows these jobs' speeds on the types of a cluster."""
    made = gp.Cluster.from_inline(cluster) if isinstance(cluster, str) else cluster
    ids, speeds = [job.job_id for job in jobs], [speed(job) for job in jobs]
    known = gp.ThroughputProfile.from_matrix(speeds, job_ids=ids, accelerators=list(made.accelerator_names))
    return gp.RoundScheduler(made, known, policy, round_seconds=ROUND_SECONDS, restart_seconds=restart_seconds)


def staying(jobs: Sequence[gp.Job], arrives: Mapping[str, int] | None = None) -> list[Stay]:
    """Return stays to the end; arrives: {tenant: the round in which its jobs arrive}, by default the first one."""
    return [Stay(job, (arrives or {}).get(job.tenant, 0)) for job in jobs]


def nested() -> tuple[dict[str, object], list[gp.Job]]:
    """Return a tree of three tenants with 20, 2 and no tenants below them, and 300 jobs for each of the three."""
    below: dict[str, list[str]] = {"x": [f"x{i}" for i in range(20)], "y": ["y0", "y1"], "z": []}
    tree: dict[str, object] = {name: {"tenants": {leaf: {} for leaf in leaves}} if leaves else {} for name, leaves in below.items()}
    return tree, team_jobs({leaf: (300 // (len(leaves) or 1), 1) for name, leaves in below.items() for leaf in leaves or [name]})


def two_speeds(job: gp.Job) -> list[float]:
    return [{"a": 4.0, "b": 2.0, "c": 1.0}[job.tenant] * job.num_gpus, 1.0 * job.num_gpus]


def labelled(scene: Scene, seed: int, teams: int) -> Scene:
    """Return a scene whose jobs belong to teams of unequal sizes, drawn at random; unchanged for 0 teams."""
    if not teams:
        return scene
    chance = np.random.default_rng(seed + 99)
    parts = chance.dirichlet(np.full(teams, 2.0))
    return replace(scene, jobs=[job.model_copy(update={"tenant": f"t{chance.choice(teams, p=parts):02d}"}) for job in scene.jobs])


def stays_of(scene: Scene) -> list[Stay]:
    ends = np.cumsum([0, *(phase.rounds for phase in scene.phases)]).tolist()
    found: dict[int, Stay] = {}
    for phase, (begin, end) in zip(scene.phases, pairwise(ends), strict=True):
        for row in phase.rows.tolist():
            found[row] = Stay(scene.jobs[row], found[row].first if row in found else begin, end)
    return list(found.values())


def changing(seed: int, teams: int, gpus: int = 24) -> tuple[gp.RoundScheduler, list[Stay]]:
    """Return jobs of other speeds on three types that come as often as they leave, after 40 rounds on average."""
    chance = np.random.default_rng(seed)
    parts, stays, speeds = chance.dirichlet(np.full(teams, 2.0)), list[Stay](), dict[str, list[float]]()
    for first in (number for number in range(ROUNDS) for _ in range(chance.poisson(gpus / 41) if number else gpus)):
        team, size = int(chance.choice(teams, p=parts)), int(chance.choice((1, 2, 4, 8), p=(0.7, 0.1, 0.15, 0.05)))
        job = gp.Job(f"j{chance.integers(10**9):09d}-{len(stays)}", tenant=f"t{team:02d}", num_gpus=size)
        stays.append(Stay(job, first, first + 1 + int(chance.geometric(1 / 40))))
        base = float(chance.lognormal(0, 0.5)) * size
        speeds[job.job_id] = [base * float(chance.uniform(1, 4)), base * float(chance.uniform(1, 2)), base]
    cluster = ",".join(f"{name}:{gpus // 3}/8" for name in "vpk")
    return scheduler_of([stay.job for stay in stays], cluster, "hierarchical", lambda job: speeds[job.job_id]), stays


def equal_types(
    count: int, sizes: Sequence[int], policy: str = "max_min_fairness", replaced_every: int = 0
) -> tuple[gp.RoundScheduler, list[Stay]]:
    """Return single-GPU jobs on groups of one type; every few rounds the oldest leaves and another arrives, unless 0."""
    names = [f"a100-p{i}" for i in range(len(sizes))]
    nodes = [gp.Node(name=name, accelerator=name, num_gpus=size) for name, size in zip(names, sizes, strict=True)]
    cluster = gp.Cluster(nodes, [gp.AcceleratorType(name=name, profile_name="a100") for name in names])
    known = gp.Measurement(job_type="lm", num_gpus=1, accelerator="a100", steps_per_second=10.0)
    changes = range(replaced_every, ROUNDS, replaced_every) if replaced_every else ()
    firsts, ends = [0] * count + [*changes], [*changes] + [None] * count
    stays = [Stay(gp.Job(f"j{i:03d}", job_type="lm"), *when) for i, when in enumerate(zip(firsts, ends, strict=True))]
    made = gp.RoundScheduler(cluster, gp.ThroughputProfile("equal", [known]), policy, round_seconds=ROUND_SECONDS)
    return made, stays


def one_or_two(count: int, b300: int, h200: int) -> tuple[gp.RoundScheduler, list[Stay]]:
    """Return jobs that are as fast on one B300 as on two H200."""
    speeds = {"b300": 1, "h200": 2}
    known = [gp.Measurement(job_type="lm", num_gpus=n, accelerator=name, steps_per_second=10.0) for name, n in speeds.items()]
    cluster = gp.Cluster.from_counts({"b300": b300, "h200": h200})
    made = gp.RoundScheduler(cluster, gp.ThroughputProfile("either", known), round_seconds=ROUND_SECONDS)
    return made, [Stay(gp.Job(f"j{i:03d}", job_type="lm", gpu_counts=(1, 2))) for i in range(count)]
