"""Jobs that have never run: no restart can hurt them, so that the first rounds deliver what they can and newcomers start soon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import csr_array

import gavel_py as gp
from tests.scheduling.support import demand
from tests.support.examples import examples
from tests.support.profiles import OSDI

choose_jobs = gp.scheduling.choose_jobs

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES, PARTS = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)


def scheduler(cluster: gp.Cluster, jobs: Sequence[gp.Job], mechanism: str = "deficit") -> gp.RoundScheduler:
    made = gp.RoundScheduler(cluster, OSDI, mechanism=mechanism)  # type: ignore[arg-type]
    made.submit_all(list(jobs))
    return made


def cluster_of(per_type: int) -> gp.Cluster:
    """GPUs of three types, in as many nodes of 8 as of 4."""
    sizes = [8, 4] * (per_type // 12)
    return gp.Cluster(
        [gp.Node(name=f"{name}-{i}", accelerator=name, num_gpus=n) for name in ("v100", "p100", "k80") for i, n in enumerate(sizes)]
    )


def drawn(chance: np.random.Generator, name: str) -> gp.Job:
    size = int(chance.choice(SIZES, p=PARTS))
    kinds = [kind for kind in OSDI.job_types if OSDI.has(kind, size, "v100")]
    return gp.Job(name, job_type=str(chance.choice(kinds)), num_gpus=size)


def demanding(seed: int, cluster: gp.Cluster) -> list[gp.Job]:
    """Jobs that ask for twice the GPUs there are."""
    chance, jobs = np.random.default_rng(seed), list[gp.Job]()
    while sum(job.num_gpus for job in jobs) < 2 * cluster.num_gpus:
        jobs.append(drawn(chance, f"job-{len(jobs):03d}"))
    return jobs


def best_first_round(cluster: gp.Cluster, jobs: Sequence[gp.Job], gpus_of: Mapping[str, int] | None = None) -> float:
    """The least share that any first round leaves undelivered: max Σ s_i X_ij y_ij, y in {0, 1}, by an exact program.

    gpus_of: {tenant: GPUs of its jobs}; any by default.
    """
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, OSDI)
    fractions, sizes = gp.solve(problem, "max_min_fairness").time_fractions, problem.num_gpus
    rows, columns = np.nonzero(fractions > 1e-9)
    pairs, worth = np.arange(len(rows)), (sizes[:, None] * fractions)[rows, columns]
    once = csr_array((np.ones(len(rows)), (rows, pairs)), shape=(len(sizes), len(rows)))
    gpus = csr_array((sizes[rows], (columns, pairs)), shape=(len(problem.capacities), len(rows)))
    limits = [LinearConstraint(once, ub=1), LinearConstraint(gpus, ub=problem.capacities)]
    for tenant, number in (gpus_of or {}).items():
        limits.append(LinearConstraint(sizes[rows] * (np.array(problem.tenants) == tenant)[rows], number, number))
    found = milp(-worth, integrality=np.ones(len(rows)), bounds=Bounds(0, 1), constraints=limits, options={"mip_rel_gap": 1e-9})
    return float(1.0 + found.fun / (sizes @ fractions).sum())


def test_the_first_rounds_of_the_example() -> None:
    """With shares of tenants; the first round is near the best of those in which each tenant has as many GPUs."""
    cluster, jobs = gp.Cluster.from_file(EXAMPLES / "cluster.yaml"), list(gp.JobSet.from_file(EXAMPLES / "jobs.csv"))
    made, tenant_of = scheduler(cluster, jobs), {job.job_id: job.tenant for job in jobs}
    gpus_of: Counter[str] = Counter()
    for job_id, held in made.next_round().assignments.items():
        gpus_of[tenant_of[job_id]] += len(held.gpus)
    first = made.delivery().undelivered_share
    assert best_first_round(cluster, jobs, gpus_of) <= first <= best_first_round(cluster, jobs, gpus_of) + 0.03
    for _ in range(2):
        made.next_round()
    report = made.delivery()
    assert report.undelivered_share <= 0.135
    assert report.least_undelivered_share == pytest.approx(0.08, abs=0.001)


@pytest.mark.parametrize("seed", range(3))
def test_the_first_round_is_the_best_possible_one(seed: int) -> None:
    cluster = cluster_of(36)
    jobs = demanding(seed, cluster)
    made = scheduler(cluster, jobs)
    made.next_round()
    assert made.delivery().undelivered_share == pytest.approx(best_first_round(cluster, jobs), abs=1e-6)


@dataclass
class Stays:
    """What came of jobs that arrived: rounds to the first start of each, and GPU-seconds promised and lacking of short ones."""

    waits: list[int] = attribute(default_factory=list)
    promised: float = 0.0
    lacking: float = 0.0


def come_and_gone(seed: int, mechanism: str, rounds: int = 72) -> Stays:
    """Every six rounds jobs leave and others come, half of which leave within 12 rounds."""
    chance, cluster, found = np.random.default_rng(seed), cluster_of(12), Stays()
    made, came, leaves = scheduler(cluster, [], mechanism), dict[str, int](), dict[str, int]()
    started: set[str] = set()
    for now in range(rounds):
        if now % 6 == 0:
            for job_id in [job.job_id for job in made.jobs if leaves[job.job_id] <= now]:
                made.cancel(job_id)
            while sum(job.num_gpus for job in made.jobs) < 2 * cluster.num_gpus:
                job = drawn(chance, f"job-{len(came):03d}")
                came[job.job_id], leaves[job.job_id] = now, now + int(chance.choice([6, 12, 30, 60]))
                made.submit(job)
        begun = set(made.next_round().started)
        found.waits += [now - came[job_id] for job_id in begun - started if came[job_id]]
        started |= begun
    for job_id, account in made.delivery().jobs.items():
        if came[job_id] and leaves[job_id] <= min(rounds, came[job_id] + 12):
            found.promised += account.num_gpus * account.promised_seconds
            found.lacking += account.num_gpus * account.undelivered_seconds
    return found


@pytest.mark.deep
def test_jobs_that_arrive_start_soon_and_short_ones_lack_no_more_than_under_the_published_rule() -> None:
    ours, published = ([come_and_gone(seed, mechanism) for seed in range(3)] for mechanism in ("deficit", "priority"))
    assert np.mean([wait for stays in ours for wait in stays.waits]) <= 1.0
    lacking = [sum(stays.lacking for stays in each) / sum(stays.promised for stays in each) for each in (ours, published)]
    assert lacking[0] <= lacking[1]


def test_a_job_that_has_never_run_pays_no_hysteresis() -> None:
    """h = 2.6 rounds: the running job scores claim − 1 + h/2, the waiting one claim − 1 − h/2, or its claim if it never ran."""
    fractions, running = [[0.5], [0.5]], [0, -1]
    for owed, new, runs in ((0.3, True, 0), (0.5, True, 1), (0.5, False, 0), (2.5, False, 0), (2.7, False, 1)):
        asked = demand(fractions, [1], deficits=[[-0.5], [owed - 0.5]], running_on=running, new=[False, new])
        assert np.flatnonzero(choose_jobs(asked) >= 0).tolist() == [runs], (owed, new)


def test_turns_are_short_at_first_and_grow_longer() -> None:
    """After P promised rounds each, a running job keeps its place until the other is owed 2.6·(P + 1)/(P + 3) rounds more."""
    fractions, running = [[0.5], [0.5]], [0, -1]
    for promised, hysteresis in ((0.0, 2.6 / 3), (1.0, 1.3), (17.0, 2.34)):
        for owed in (hysteresis - 0.01, hysteresis + 0.01):
            asked = demand(fractions, [1], deficits=[[-0.5], [owed - 0.5]], running_on=running, promised=[promised, promised])
            assert np.flatnonzero(choose_jobs(asked) >= 0).tolist() == [int(owed > hysteresis)], (promised, owed)


def test_a_dear_restart_counts_in_full_from_the_first_round_on() -> None:
    """Two rounds of a restart: turns of 28 rounds, in which a job that gets half of the time gains 14 rounds on another."""
    fractions, running = [[0.5], [0.5]], [0, -1]
    for owed, runs in ((13.9, 0), (14.1, 1)):
        asked = demand(
            fractions, [1], deficits=[[-0.5], [owed - 0.5]], running_on=running, promised=[0.0, 0.0], restart_rounds=[2.0, 2.0]
        )
        assert np.flatnonzero(choose_jobs(asked) >= 0).tolist() == [runs]


def test_of_equal_deficits_the_job_with_the_smaller_promise_goes_first() -> None:
    fractions, deficits = [[0.5], [0.5]], [[0.3], [0.3]]
    assert choose_jobs(demand(fractions, [1], deficits=deficits, promised=[40.0, 2.0])).tolist() == [-1, 0]
    assert choose_jobs(demand(fractions, [1], deficits=deficits, promised=[2.0, 40.0])).tolist() == [0, -1]


@settings(max_examples=examples(100))
@given(seed=st.integers(0, 2**32 - 1))
def test_among_single_gpu_jobs_that_never_ran_the_largest_claims_are_served(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacities = int(rng.integers(1, 15)), rng.integers(0, 5, size=rng.integers(1, 5))
    fractions = np.where(rng.random((n, len(capacities))) < 0.7, rng.integers(1, 30, size=(n, len(capacities))) / 100, 0.0)
    asked = demand(fractions, capacities.tolist(), new=True)
    chosen = choose_jobs(asked)
    served = sum(fractions[i, j] for i, j in enumerate(chosen.tolist()) if j >= 0)
    assert served == pytest.approx(best_assignment(fractions, capacities))


def best_assignment(worth: NDArray[np.float64], capacities: NDArray[np.int64]) -> float:
    by_gpu = np.repeat(worth, capacities, axis=1)
    rows, columns = linear_sum_assignment(by_gpu, maximize=True)
    return float(by_gpu[rows, columns].sum())
