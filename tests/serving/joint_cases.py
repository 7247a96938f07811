"""Small drawn clusters with services and training jobs, and their best answers by enumerating all whole replicas.

Each set of replicas is packed on the nodes by trying all places, and the training objective is a linear program written down here
(`objective_of`), or with whole gangs the answer of `gp.solve` on what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import linprog

import gavel_py as gp

ONE_PROGRAM = ("max_min_fairness", "max_total_throughput", "min_makespan", "min_cost", "finish_time_fairness")
IN_LEVELS = ("water_filling", "hierarchical")
LESS_IS_BETTER = ("min_makespan", "min_cost", "finish_time_fairness")


@dataclass
class Case:
    """Services, training jobs and nodes; speeds: (N, K) steps/s."""

    services: list[gp.Service]
    jobs: list[gp.Job]
    cluster: gp.Cluster
    rates: gp.ServingProfile
    speeds: np.ndarray

    @property
    def profile(self) -> gp.ThroughputProfile:
        ids = [job.job_id for job in self.jobs]
        return gp.ThroughputProfile.from_matrix(self.speeds, job_ids=ids, accelerators=self.cluster.accelerator_names)

    def problem(self, cluster: gp.Cluster, *, whole_gangs: bool) -> gp.AllocationProblem:
        return gp.AllocationProblem.from_jobs(self.jobs, cluster, self.profile, whole_gangs=whole_gangs)


def drawn(seed: int) -> Case:
    """A cluster of up to 3 types and 5 nodes, up to 8 jobs of 1 or 2 GPUs, and up to 3 services; their floors may not fit."""
    random = np.random.default_rng(seed)
    types = [f"t{k}" for k in range(random.integers(1, 4))]
    kinds = [gp.AcceleratorType(name=name, price_per_hour=float(random.integers(1, 6))) for name in types]
    nodes = [
        gp.Node(name=f"{name}-{n}", accelerator=name, num_gpus=int(random.choice([1, 2, 3, 4])))
        for name in types
        for n in range(random.integers(1, 3))
    ]
    cluster = gp.Cluster(nodes, kinds)
    services, rows = [], []
    for s in range(random.integers(1, 4)):
        services.append(
            gp.Service(f"s{s}", model=f"m{s}", rate=float(random.uniform(0.5, 3)), tenant=str(random.choice(["a", "b"])))
        )
        sizes = [1, 2] if random.random() < 0.5 else [int(random.choice([1, 2]))]
        for name, size in itertools.product(types, sizes):
            rate = float(random.uniform(0.5, 2) * size ** random.uniform(0.8, 1.3))
            rows.append(
                gp.ServingRate(model=f"m{s}", accelerator=name, num_gpus=size, requests_per_second=rate, condition="offline")
            )
    count = int(random.integers(1, 9))
    jobs = [
        gp.Job(
            f"j{n}",
            job_type="any",
            num_gpus=int(random.choice([1, 1, 2])),
            total_steps=float(random.uniform(100, 1000)),
            weight=float(random.choice([1.0, 2.0])),
            tenant=str(random.choice(["a", "b"])),
        )
        for n in range(count)
    ]
    return Case(services, jobs, cluster, gp.ServingProfile("drawn", rows), random.uniform(1, 5, (count, len(types))))


def all_rests(case: Case) -> Iterator[gp.Cluster]:
    """What each set of whole replicas leaves of the cluster that serves all services, all of them needed, and fits on the nodes."""
    options: list[list[tuple[tuple[str, int, int], ...]]] = []
    for service in case.services:
        rows = [row for row in case.rates.rows if row.model == service.model]
        speeds, least = np.array([row.requests_per_second for row in rows]), float(service.rate) * (1 - 1e-9)
        most = [int(np.ceil(service.rate / speed - 1e-9)) for speed in speeds.tolist()]
        served = [
            numbers
            for numbers in itertools.product(*(range(n + 1) for n in most))
            if (total := float(speeds @ numbers)) >= least and all(total - speeds[k] < least for k, n in enumerate(numbers) if n)
        ]
        options.append(
            [tuple((row.accelerator, row.num_gpus, n) for row, n in zip(rows, numbers, strict=True)) for numbers in served]
        )
    seen = set()
    for chosen in itertools.product(*options):
        parts = tuple(sorted(((size, name) for each in chosen for name, size, n in each for _ in range(n)), reverse=True))
        if parts in seen or sum(size for size, _ in parts) > case.cluster.num_gpus:
            continue
        seen.add(parts)
        free = packed(parts, tuple((node.accelerator, node.num_gpus) for node in case.cluster.nodes))
        if free is not None:
            nodes = zip(case.cluster.nodes, free, strict=True)
            yield gp.Cluster([node.model_copy(update={"num_gpus": n}) for node, n in nodes], case.cluster.accelerator_types)


@lru_cache(maxsize=100_000)
def packed(parts: tuple[tuple[int, str], ...], nodes: tuple[tuple[str, int], ...]) -> tuple[int, ...] | None:
    """What is free on each node beside parts of replicas, by trying every node for every part; None if there is no way."""
    if not parts:
        return tuple(free for _, free in nodes)
    (size, name), *others = parts
    for n, (kind, free) in enumerate(nodes):
        if kind == name and free >= size:
            found = packed(tuple(others), (*nodes[:n], (kind, free - size), *nodes[n + 1 :]))
            if found is not None:
                return found
    return None


def largest_rests(case: Case) -> list[gp.Cluster]:
    """One of `all_rests` for each numbers of GPUs by type beside which no others have as many of each type or more."""
    rests = {tuple(rest.capacities.tolist()): rest for rest in all_rests(case)}
    return [rests[key] for key in rests if not any(key != other and np.all(np.array(other) >= key) for other in rests)]


def best(case: Case, rests: list[gp.Cluster], policy: str, *, whole_gangs: bool) -> tuple[float, ...] | None:
    """The best objective on any of these clusters, with that of an earlier stage first; None if there are none."""
    whole = case.problem(case.cluster, whole_gangs=whole_gangs)
    found = [solved(case, each, whole, policy) if whole_gangs else objective_of(each, whole, policy) for each in rests]
    sign = 1 if policy in LESS_IS_BETTER else -1
    return min(found, key=lambda each: tuple(round(sign * value, 9) for value in each), default=None)


def solved(case: Case, rest: gp.Cluster, whole: gp.AllocationProblem, policy: str) -> tuple[float, ...]:
    problem = replace(case.problem(rest, whole_gangs=True), share_capacities=whole.share_capacities)
    missing = len(problem.excluded.keys() - whole.excluded.keys())
    if missing and policy in ("min_makespan", "finish_time_fairness", "min_cost"):
        return np.inf, np.inf
    if missing and policy in ("max_min_fairness", *IN_LEVELS):
        return (0.0,)
    if policy == "hierarchical":
        runs = whole.weights * ~np.isin(whole.job_ids, list(whole.excluded))
        theirs = [sum(w for w, t in zip(runs, whole.tenants, strict=True) if t == tenant) or 1.0 for tenant in whole.tenants]
        problem = replace(problem, weights=whole.weights / theirs)
    if policy == "min_cost":  # what a job needs is what it can have on the whole cluster, so part of it may be out of reach
        part = np.minimum(problem.fastest / np.minimum(whole.isolated_throughput, whole.fastest), 1.0)
        allocation = gp.solve(replace(problem, weights=whole.weights * part), policy)
        return allocation.stages[0].value + float(whole.weights @ (1 - part)), allocation.objective_value
    allocation = gp.solve(problem, "max_min_fairness" if policy in IN_LEVELS else policy)
    return (allocation.objective_value or 0.0,)


def objective_of(rest: gp.Cluster, whole: gp.AllocationProblem, policy: str) -> tuple[float, ...]:
    """The best objective of a policy on what is left, as a linear program over X and one more value."""
    speeds, gpus, left = whole.throughputs, whole.num_gpus, rest.capacities
    fits = whole.runnable & (gpus[:, None] <= left)
    count, types = speeds.shape
    rows, limits = [], []
    for j in range(types):
        rows.append(np.append(np.where(np.arange(types)[None, :] == j, gpus[:, None], 0.0).ravel(), 0.0))
        limits.append(left[j])
    for i in range(count):
        rows.append(np.append(np.where(np.arange(count)[:, None] == i, 1.0, 0.0).repeat(types, axis=1).ravel(), 0.0))
        limits.append(1.0)
    bounds = [(0.0, 1.0 if fit else 0.0) for fit in fits.ravel()]

    def throughput(i: int) -> np.ndarray:
        return np.append(np.where(np.arange(count)[:, None] == i, speeds, 0.0).ravel(), 0.0)

    def least(needs: np.ndarray) -> float:
        """The largest z with throughputs of at least z times these needs."""
        more = [z * need - throughput(i) for i, need in enumerate(needs) for z in [np.append(np.zeros(count * types), 1.0)]]
        found = linprog(
            -np.append(np.zeros(count * types), 1.0), [*rows, *more], [*limits, *np.zeros(count)], bounds=[*bounds, (0, None)]
        )
        return float(-found.fun)

    normal = whole.equal_share
    if policy in ("max_min_fairness", "water_filling"):
        return (least(whole.weights * normal / gpus),)
    if policy == "hierarchical":  # tenants of equal weight, and their jobs by weight
        runs = whole.weights * ~np.isin(whole.job_ids, list(whole.excluded))
        theirs = [sum(w for w, t in zip(runs, whole.tenants, strict=True) if t == tenant) or 1.0 for tenant in whole.tenants]
        return (least(whole.weights / theirs * normal / gpus),)
    if policy == "max_total_throughput":
        gains = np.append((speeds / normal[:, None]).ravel(), 0.0)
        return (float(-linprog(-gains, rows, limits, bounds=[*bounds, (0, 0)]).fun),)
    if policy in ("min_makespan", "finish_time_fairness"):
        level = least(whole.steps_remaining if policy == "min_makespan" else whole.isolated_throughput)
        return (1 / level if level > 1e-12 else np.inf,)
    assert policy == "min_cost"
    if not fits.any(axis=1).all():
        return np.inf, np.inf
    needs = np.minimum(whole.isolated_throughput, whole.fastest)
    size = count * types
    short = [np.append(-throughput(i)[:-1] / needs[i], -(np.arange(count) == i).astype(float)) for i in range(count)]
    wide = [np.append(row[:-1], np.zeros(count)) for row in rows]
    some = [*bounds, *[(0.0, None)] * count]
    lack = np.append(np.zeros(size), whole.weights)
    first = linprog(lack, [*wide, *short], [*limits, *(-np.ones(count))], bounds=some).fun
    price = np.append((gpus[:, None] * rest.prices_per_hour).ravel(), np.zeros(count))
    second = linprog(price, [*wide, *short, lack], [*limits, *(-np.ones(count)), first + 1e-9], bounds=some)
    return float(first), float(second.fun)
