"""GPUs of elastic jobs and of jobs that share them, in objectives, quotas and reserves, against one program over single jobs."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

import gavel_py as gp
from tests.support.instances import TIGHT, Floats

RAW = gp.resolve_policy("max_total_throughput", normalized=False)


class Cost(gp.SumPolicy):
    """What the GPUs in use cost per hour."""

    direction = "min"

    def objective(self, program: gp.Program) -> cp.Expression:
        return program.jobs.prices_per_hour @ program.gpus


class Column(NamedTuple):
    """Time of one job, or of two that share, with a number of GPUs of a type; speed: steps/s of all of them together."""

    jobs: tuple[int, ...]
    column: int
    gpus: float
    speed: float


def arrays(seed: int, mode: str) -> dict[str, Any]:
    """Arrays of gangs alone, of gangs and elastic jobs, or of jobs that share GPUs."""
    chance = np.random.default_rng(seed)
    jobs, types, kinds = chance.integers(1, 9), chance.integers(1, 4), chance.integers(1, 4)
    of, speeds, gangs = chance.integers(-1, kinds, jobs), chance.lognormal(size=(jobs, types)), chance.choice([1, 2, 4], jobs)
    given: dict[str, Any] = {
        "capacities": chance.integers(1, 9, types),
        "prices_per_hour": chance.choice([0.1, 0.5, 1.0, 2.0], types),
        "tenants": chance.choice(["a", "b"], jobs).tolist(),
    }
    if mode == "elastic":
        sizes = np.array([1, 2, 4, 8])
        table = chance.lognormal(size=(kinds, types, 1)) * sizes ** chance.uniform(0.4, 1.05, (kinds, 1, 1))
        table[chance.random(table.shape) < 0.2] = 0
        given |= {"count_kinds": of, "gpu_counts": sizes, "count_throughputs": table}
        gangs[of >= 0] = 1
    elif mode == "pairs":
        alone, shared = chance.lognormal(size=(kinds, types)), chance.uniform(0, 1, (kinds, kinds, types))
        shared[shared < 0.2] = 0
        gangs, speeds = np.where(of < 0, gangs, 1 + of % 2), np.where((of < 0)[:, None], speeds, alone[of])
        given |= {"pair_kinds": of, "pair_throughputs": shared * alone[:, None]}
    return given | {"throughputs": speeds, "num_gpus": gangs}


def columns_of(given: dict[str, Any]) -> list[Column]:
    """Return all that jobs can have time in."""
    found, room = list[Column](), given["capacities"]
    for i, (gang, speeds) in enumerate(zip(given["num_gpus"], given["throughputs"], strict=True)):
        if "count_kinds" in given and (kind := given["count_kinds"][i]) >= 0:
            table = given["count_throughputs"][kind]
            options = [(j, n, table[j, m]) for j in range(len(room)) for m, n in enumerate(given["gpu_counts"]) if table[j, m] > 0]
        else:
            options = [(j, gang, speed) for j, speed in enumerate(speeds)]
        found += [Column((i,), j, n, speed) for j, n, speed in options if n <= room[j]]
    kinds, table = given.get("pair_kinds", []), given.get("pair_throughputs")
    for a, b in combinations(range(len(kinds)), 2):
        gang = given["num_gpus"][a]
        for j in range(len(room)) if min(kinds[a], kinds[b]) >= 0 and gang == given["num_gpus"][b] else ():
            both = table[kinds[a], kinds[b], j], table[kinds[b], kinds[a], j]
            found += [Column((a, b), j, gang, sum(both))] if gang <= room[j] and min(both) > 0 else []
    return found


def best(given: dict[str, Any], columns: list[Column], gains: Floats, *rows: tuple[Floats, float]) -> float:
    """Return the maximum of gains · x over all valid times x in the columns; rows: further ones, a · x <= b."""
    times = [[float(i in each.jobs) for each in columns] for i in range(len(given["num_gpus"]))]
    gpus = [[each.gpus * (each.column == j) for each in columns] for j in range(len(given["capacities"]))]
    limits = [*np.ones(len(times)), *given["capacities"], *(limit for _, limit in rows)]
    found = linprog(-gains, [*times, *gpus, *(row for row, _ in rows)], limits, method="highs", options=TIGHT)
    return -float(found.fun)


def priced(given: dict[str, Any], columns: list[Column]) -> tuple[Floats, Floats]:
    """Return the steps/s of each column, and the cost of its GPUs."""
    speeds = np.array([each.speed for each in columns])
    return speeds, np.array([each.gpus * given["prices_per_hour"][each.column] for each in columns])


def check_cost(given: dict[str, Any]) -> None:
    columns = columns_of(given)
    if not columns:
        return
    allocation = gp.solve(gp.AllocationProblem.from_arrays(**given), RAW + Cost())
    speeds, costs = priced(given, columns)
    value = best(given, columns, speeds - costs)
    assert allocation.objective_value == pytest.approx(value, rel=1e-6, abs=1e-7), given
    assert allocation.objective_value == pytest.approx(
        allocation.throughputs.sum() - allocation.gpus.sum(axis=0) @ given["prices_per_hour"], rel=1e-6, abs=1e-7
    )


@pytest.mark.parametrize("mode", ["gangs", "elastic", "pairs"])
@pytest.mark.parametrize("seed", range(3))
def test_the_gpus_of_a_program_are_those_in_use(seed: int, mode: str) -> None:
    check_cost(arrays(seed, mode))


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["gangs", "elastic", "pairs"])
def test_the_gpus_of_thousands_of_programs_are_those_in_use(mode: str) -> None:
    for seed in range(1700):
        check_cost(arrays(seed, mode))


def test_a_pair_is_charged_for_the_gpu_that_it_shares() -> None:
    problem = gp.AllocationProblem.from_arrays(
        [[2.0], [2.0]], [2], pair_kinds=[0, 0], pair_throughputs=[[[1.6]]], prices_per_hour=[1.5]
    )
    allocation = gp.solve(problem, RAW + Cost())
    assert allocation.objective_value == pytest.approx(2 * 1.6 - 1.5)  # one GPU for both; two would be 2 * 2 - 3
    program = gp.formulation(problem, RAW + Cost())
    assert program.solve(solver=cp.CLARABEL) == pytest.approx(1.7)
    assert "GPUs: parts" in str(program)


def check_shares(given: dict[str, Any], seed: int) -> None:
    columns, chance = columns_of(given), np.random.default_rng(seed)
    if not columns:
        return
    problem = gp.AllocationProblem.from_arrays(**given)
    theirs = np.array([each.gpus * (given["tenants"][each.jobs[0]] == "a") for each in columns])
    everything = gp.solve(problem, RAW, constraints=[gp.Quota("a", share=1.0)])
    held = everything.gpus[np.array(given["tenants"]) == "a"].sum()
    assert held == pytest.approx(best(given, columns, theirs), rel=1e-6, abs=1e-7), given
    least, gang, kept = float(chance.uniform(0.5, 6)), int(chance.choice([2, 4, 8])), float(chance.choice([0.5, 1.0]))
    reserved = kept * float(given["capacities"][0])
    small = np.array([each.gpus * (each.column == 0 and each.gpus < gang) for each in columns])
    speeds, _ = priced(given, columns)
    least = min(least, best(given, columns, theirs, (small, given["capacities"][0] - reserved)), given["capacities"].sum())
    rules = [gp.Reserve("type-0", reserved, min_gang=gang)]
    rules += [gp.Quota("a", gpus=least * 0.999)] if least > 0 else []
    allocation = gp.solve(problem, RAW, constraints=rules)
    value = best(given, columns, speeds, (-theirs, -least * 0.999), (small, given["capacities"][0] - reserved))
    assert allocation.objective_value == pytest.approx(value, rel=1e-6, abs=1e-7), given


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")  # of tenants without jobs
@pytest.mark.parametrize("seed", range(6))
def test_quotas_and_reserves_count_the_gpus_of_elastic_jobs(seed: int) -> None:
    check_shares(arrays(seed, "elastic"), seed)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_thousands_of_quotas_and_reserves_count_the_gpus_of_elastic_jobs() -> None:
    for seed in range(5000):
        check_shares(arrays(seed, "elastic"), seed)


def elastic(*sizes: int, tenant: str = "a", job_type: str = "slow") -> gp.Job:
    return gp.Job(f"{tenant}-{job_type}", job_type=job_type, tenant=tenant, gpu_counts=sizes)


def problem_of(*jobs: gp.Job, gpus: str = "v100:8") -> gp.AllocationProblem:
    measured = [
        gp.Measurement(job_type=name, num_gpus=n, accelerator=kind, steps_per_second=speed * n**0.9)
        for name, speed in (("slow", 1.0), ("fast", 5.0))
        for kind, sizes in (("v100", (1, 2, 4, 8)), ("k80", (1, 2)))
        for n in sizes
    ]
    return gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline(gpus), gp.ThroughputProfile("p", measured))


def test_a_guarantee_gives_an_elastic_job_the_gpus_that_it_can_use() -> None:
    problem = problem_of(elastic(1, 2, 4, 8), elastic(1, 2, 4, 8, tenant="b", job_type="fast"))
    for quota, expected in ((gp.Quota("a", share=0.5), 4), (gp.Quota("a", gpus=3), 3), (gp.Quota("a", gpus=8), 8)):
        assert gp.solve(problem, RAW, constraints=[quota]).gpus[0].sum() == pytest.approx(expected)
    few = problem_of(elastic(1, 2), elastic(1, 2, 4, 8, tenant="b", job_type="fast"))
    assert gp.solve(few, RAW, constraints=[gp.Quota("a", share=0.5)]).gpus[0].sum() == pytest.approx(2)  # all that it can use


def test_a_reserve_for_large_gangs_counts_the_smaller_numbers_of_an_elastic_job() -> None:
    always, half = gp.Reserve("v100", 8, min_gang=4), gp.Reserve("v100", 6, min_gang=4)
    assert not gp.solve(problem_of(elastic(4, 8)), constraints=[always]).excluded
    assert gp.solve(problem_of(elastic(1, 2)), constraints=[always]).excluded
    mixed = gp.solve(problem_of(elastic(1, 2, 8), elastic(1, 2, tenant="b")), constraints=[always])
    assert {n for _, n in mixed.gpu_counts["a-slow"]} == {8}
    assert list(mixed.excluded) == ["b-slow"]
    small = gp.solve(problem_of(elastic(1, 2), elastic(1, 2, tenant="b")), constraints=[half])
    assert small.gpus.sum() == pytest.approx(2)
