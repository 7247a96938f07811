"""Scenes of the benchmark of rounds: jobs of the measured profile on clusters of three types, and their time fractions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp

if TYPE_CHECKING:
    from gavel_py.problem.profile import Profile

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

TYPES = ("v100", "p100", "k80")
SIZES, PARTS = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
OPENB = Path(__file__).resolve().parents[2] / "shared" / "data" / "openb" / "openb_node_list_gpu_node.csv"

# Rounds from one allocation to the next in scenes with arrivals and departures.
PHASE = 6
# A round of 360 s in minutes: the published job generator draws durations in minutes.
ROUND_MINUTES = 6.0


@cache
def profile() -> gp.ThroughputProfile:
    return gp.ThroughputProfile.builtin("gavel-osdi20")


@dataclass(frozen=True)
class Phase:
    """Rounds under one allocation; rows: the jobs of the scene in the system; fractions: (len(rows), K) X."""

    rows: Indices
    problem: gp.AllocationProblem
    fractions: Floats
    rounds: int


@dataclass(frozen=True)
class Scene:
    """A scene; jobs: all jobs of all phases, sorted by id; profile: their throughputs."""

    cluster: gp.Cluster
    jobs: list[gp.Job]
    phases: list[Phase]
    profile: Profile = field(default_factory=profile)


@cache
def kinds(size: int) -> list[str]:
    return [name for name in profile().job_types if profile().has(name, size, "v100")]


def cluster_of(per_type: int) -> gp.Cluster:
    """Return the GPUs of each type in as many nodes of 8 as of 4, and one node with the rest."""
    nodes = []
    for name in TYPES:
        sizes = [8, 4] * (per_type // 12) + [per_type % 12] * (per_type % 12 > 0)
        nodes += [gp.Node(name=f"{name}-{i}", accelerator=name, num_gpus=size) for i, size in enumerate(sizes)]
    return gp.Cluster(nodes)


def jobs_for(chance: np.random.Generator, gpus: int, sizes: tuple[int, ...] = SIZES) -> Iterator[gp.Job]:
    """Yield random jobs until they request this number of GPUs; the sizes have the proportions of `PARTS`."""
    parts = np.array([PARTS[SIZES.index(size)] for size in sizes])
    number = 0
    while gpus > 0:
        size = int(chance.choice(sizes, p=parts / parts.sum()))
        yield gp.Job(f"job-{number:06d}", job_type=str(chance.choice(kinds(size))), num_gpus=size)
        gpus, number = gpus - size, number + 1


def fixed(seed: int, per_type: int, rounds: int, sizes: tuple[int, ...] = SIZES) -> Scene:
    """Twice as much demand as GPUs, and one allocation for all rounds."""
    cluster = cluster_of(per_type)
    return scene_of(list(jobs_for(np.random.default_rng(seed), 2 * cluster.num_gpus, sizes)), cluster, rounds)


def scene_of(jobs: list[gp.Job], cluster: gp.Cluster, rounds: int) -> Scene:
    """Return a scene with one allocation for these jobs in all rounds."""
    return Scene(cluster, jobs, [_phase(jobs, np.arange(len(jobs)), cluster, rounds)])


def few_large(seed: int, whole_gangs: bool = True) -> Scene:
    """36 GPUs, one node of 8 and one of 4 of each type; 72 GPUs are requested, also by five gangs of 8: rounds cannot deliver all.

    whole_gangs: whether the allocation respects which gangs fit on a type together.
    """
    cluster = cluster_of(12)
    small = list(jobs_for(np.random.default_rng(seed), 32, (1, 2, 4)))
    jobs = [*small, *(gp.Job(f"large-{i}", job_type=kinds(8)[i], num_gpus=8) for i in range(5))]
    return Scene(cluster, jobs, [_phase(jobs, np.arange(len(jobs)), cluster, 200, whole_gangs)])


def coming_and_going(seed: int, per_type: int, rounds: int, times: float = 2.0) -> Scene:
    """Jobs leave after `times` the duration of the published generator and are replaced; 2, since half of the jobs wait."""
    chance, cluster = np.random.default_rng(seed), cluster_of(per_type)
    drawn = jobs_for(chance, 2 * cluster.num_gpus + 1_000_000)
    # The first jobs are in their steady state: drawn in proportion to their duration, at a random time of it.
    jobs: list[gp.Job] = []
    starts: list[int] = []
    ends: list[float] = []
    candidates = times * _stays(chance, 100_000)
    for now in range(0, rounds, PHASE):
        asked = sum(job.num_gpus for job, begun, end in zip(jobs, starts, ends, strict=True) if begun <= now < end)
        while asked < 2 * cluster.num_gpus:
            job = next(drawn)
            stay = float(chance.choice(candidates, p=candidates / candidates.sum()) if now == 0 else times * _stays(chance, 1)[0])
            jobs.append(job)
            starts.append(now)
            ends.append(now + (stay * chance.uniform() if now == 0 else stay))
            asked += job.num_gpus
    there = [np.flatnonzero((np.array(starts) <= now) & (np.array(ends) > now)) for now in range(0, rounds, PHASE)]
    lengths = [after - now for now, after in pairwise([*range(0, rounds, PHASE), rounds])]
    return Scene(cluster, jobs, [_phase(jobs, rows, cluster, length) for rows, length in zip(there, lengths, strict=True)])


def _stays(chance: np.random.Generator, count: int) -> Floats:
    """Return the durations of jobs in rounds: 60·10^U(1.5, 3) s with probability 0.8, else 60·10^U(3, 4) s."""
    exponents = np.where(chance.random(count) < 0.8, chance.uniform(1.5, 3, count), chance.uniform(3, 4, count))
    stays: Floats = 10**exponents / ROUND_MINUTES
    return stays


def _phase(jobs: list[gp.Job], rows: Indices, cluster: gp.Cluster, rounds: int, whole_gangs: bool = True) -> Phase:
    problem = gp.AllocationProblem.from_jobs([jobs[row] for row in rows], cluster, profile(), whole_gangs=whole_gangs)
    return Phase(rows, problem, gp.solve(problem, "max_min_fairness").time_fractions, rounds)


def openb(seed: int, rounds: int = 30) -> Scene:
    """Every eighth GPU node of the openb cluster, on whose types nodes differ in size.

    Each job draws its speeds at random. A gang runs only on types with a node that can hold it.
    """
    nodes = [node for node in gp.Cluster.from_file(OPENB).nodes if node.num_gpus][::8]
    cluster, chance = gp.Cluster(nodes), np.random.default_rng(seed)
    jobs = list(jobs_for(chance, 2 * cluster.num_gpus))
    gangs = np.array([job.num_gpus for job in jobs])
    largest = np.array([max(node.num_gpus for node in cluster.nodes_of(name)) for name in cluster.accelerator_names])
    speeds = chance.lognormal(0, 0.5, (len(jobs), len(largest))) * (gangs[:, None] <= largest)
    ids, names = [job.job_id for job in jobs], list(cluster.accelerator_names)
    measured = gp.ThroughputProfile.from_matrix(speeds, job_ids=ids, accelerators=names)
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, measured)
    fractions = gp.solve(problem, "max_min_fairness").time_fractions
    return Scene(cluster, jobs, [Phase(np.arange(len(jobs)), problem, fractions, rounds)], measured)
