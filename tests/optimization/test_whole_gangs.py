"""Gang rows: all schedules satisfy them, and on a single type they exclude all time fractions that cannot be delivered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.formulation.cuts import gang_rows
from tests.support.examples import examples
from tests.support.instances import TIGHT, Floats


def one_speed(jobs: Sequence[gp.Job], types: Sequence[str] = ("v100",)) -> gp.Profile:
    ids = [job.job_id for job in jobs]
    return gp.ThroughputProfile.from_matrix([[1.0] * len(types)] * len(ids), job_ids=ids, accelerators=list(types))


def on(nodes: Sequence[int], jobs: Sequence[gp.Job], *, rack: str | None = None, whole_gangs: bool = True) -> gp.AllocationProblem:
    """These jobs, with one step per second each, on nodes of V100s."""
    cluster = gp.Cluster([gp.Node(name=f"n{i}", accelerator="v100", num_gpus=n, rack=rack) for i, n in enumerate(nodes)])
    return gp.AllocationProblem.from_jobs(jobs, cluster, one_speed(jobs), whole_gangs=whole_gangs)


def gangs(*sizes: int, **fields: object) -> list[gp.Job]:
    return [gp.Job(f"j{i}", num_gpus=size, **fields) for i, size in enumerate(sizes)]


def time_of(problem: gp.AllocationProblem, policy: str = "max_min_fairness", **options: object) -> list[float]:
    return gp.solve(problem, policy, **options).time_fractions[:, 0].tolist()  # type: ignore[arg-type]


class TestByHand:
    def test_three_gpus_are_worth_one_gang_of_two(self) -> None:
        assert time_of(on([3], gangs(2, 2))) == pytest.approx([1 / 2, 1 / 2])
        assert time_of(on([3], gangs(2, 2), whole_gangs=False)) == pytest.approx([3 / 4, 3 / 4])

    def test_a_single_fills_what_the_gang_leaves(self) -> None:
        assert time_of(on([3], gangs(2, 2, 1))) == pytest.approx([1 / 2, 1 / 2, 1])

    def test_a_job_has_one_place_at_a_time(self) -> None:
        """4 GPUs hold two gangs of 2 or one of 3. Both small ones fit for half of the time, but one of them never twice."""
        problem = on([4], gangs(3, 2, 2))
        fractions = np.array([[0.5], [0.75], [0.25]])
        (row,) = gang_rows(problem, fractions)
        assert row.loads[0] @ fractions[:, 0] > row.rhs + 1e-3
        assert gang_rows(problem, np.array([[0.5], [0.5], [0.5]])) == []

    def test_gangs_on_one_node_count_by_nodes(self) -> None:
        assert time_of(on([4, 4, 4], gangs(3, 3, 3, 3))) == pytest.approx([1] * 4)
        assert time_of(on([4, 4, 4], gangs(3, 3, 3, 3, locality="node"))) == pytest.approx([3 / 4] * 4)

    def test_gangs_in_one_rack_count_by_racks(self) -> None:
        jobs = gangs(3, 3, 3, locality="rack")
        assert time_of(on([2, 2, 2, 2, 1], jobs, rack="r")) == pytest.approx([1] * 3)
        assert time_of(on([4, 4, 1], jobs)) == pytest.approx([2 / 3] * 3)  # each node is a rack of its own

    def test_a_gang_that_is_promised_what_it_cannot_get_is_named_with_the_reason(self) -> None:
        jobs = gangs(2, 2)
        promise = [gp.MinThroughput("j0", 0.75), gp.MinThroughput("j1", 0.75)]
        with pytest.raises(gp.ConflictError, match="what whole gangs can use of v100"):
            gp.solve(on([3], jobs), "max_min_fairness", constraints=promise)

    def test_nodes_count_however_large_a_type_is(self) -> None:
        """100 nodes of 4 GPUs hold 100 gangs of 3 each, not 133."""
        assert sum(time_of(on([4] * 100, gangs(*[3] * 130, locality="node")))) == pytest.approx(100)

    def test_arrays_know_no_nodes(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [3], num_gpus=[2, 2])
        assert gang_rows(problem, np.array([[0.75], [0.75]])) == []

    def test_gangs_that_are_small_against_a_type_need_no_rows(self) -> None:
        problem = on([8] * 64, gangs(*[2, 4, 8, 16] * 60))
        allocation = gp.solve(problem)
        assert allocation.evidence is not None
        assert not allocation.evidence.rules


@st.composite
def scenes(draw: st.DrawFn) -> gp.AllocationProblem:
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4, 5]), min_size=1, max_size=7))
    locality = st.sampled_from(["any", "any", "rack", "node"])
    jobs = [gp.Job(f"j{i}", num_gpus=size, locality=draw(locality)) for i, size in enumerate(sizes)]
    nodes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    return on(nodes, jobs)


def rounds_of(problem: gp.AllocationProblem) -> Floats:
    """(P, N) every set of jobs that can run at once, whole and each on GPUs within its locality."""
    assert problem.hosts is not None
    nodes, able = problem.hosts.gpus["node"][0], problem.runnable[:, 0]
    chosen = []
    for subset in itertools.product([0, 1], repeat=problem.num_jobs):
        picked = [i for i, there in enumerate(subset) if there]
        if all(able[picked]) and _fit(
            [int(problem.num_gpus[i]) for i in picked if problem.hosts.localities[i] != "any"],
            list(nodes),
            int(problem.capacities[0]) - int(problem.num_gpus[picked].sum()),
        ):
            chosen.append(subset)
    return np.array(chosen, dtype=float)


def _fit(local: list[int], nodes: list[int], left: int) -> bool:
    """Whether gangs that must stay on one node (which is a rack here) fit on the nodes, and all others on the rest."""
    if left < 0:
        return False
    if not local:
        return True
    places = (n for n in range(len(nodes)) if nodes[n] >= local[0])
    return any(_fit(local[1:], [*nodes[:n], nodes[n] - local[0], *nodes[n + 1 :]], left) for n in places)


@settings(max_examples=examples(150))
@given(problem=scenes(), seed=st.integers(0, 2**32 - 1), small=st.sampled_from([0, 16]))
def test_no_row_keeps_out_what_rounds_deliver(problem: gp.AllocationProblem, seed: int, small: int) -> None:
    """Whether patterns of a type are enumerated, which they are not for large types."""
    chance = np.random.default_rng(seed)
    rounds = rounds_of(problem)
    delivered = chance.dirichlet(np.full(len(rounds), 0.3), size=20) @ rounds
    for _ in range(5):
        wanted = np.where(problem.runnable, chance.uniform(0, 1, problem.runnable.shape), 0.0)
        wanted *= min(1.0, problem.capacities[0] / max(1e-9, problem.num_gpus @ wanted[:, 0]))
        with patch("gavel_py.optimization.formulation.cuts.SMALL", small):
            rows = gang_rows(problem, wanted)
        for row in rows:
            assert (delivered @ row.loads[0] <= row.rhs + 1e-9).all()
            assert row.loads[0] @ wanted[:, 0] > row.rhs


@settings(max_examples=examples(100, costly=True))
@given(problem=scenes(), policy=st.sampled_from(["max_min_fairness", "max_total_throughput", "min_makespan"]))
def test_what_is_promised_on_one_type_can_be_delivered(problem: gp.AllocationProblem, policy: str) -> None:
    """With gangs that may run anywhere: the time fractions are a mix of rounds."""
    assert problem.hosts is not None
    hosts = replace(problem.hosts, localities=np.array(["any"] * problem.num_jobs))
    problem = replace(problem, hosts=hosts, steps_remaining=np.ones(problem.num_jobs))
    allocation = gp.solve(problem, policy)
    rounds = rounds_of(problem)
    mix = linprog(
        np.append(np.zeros(len(rounds)), 1.0),
        np.vstack([np.column_stack([-rounds.T, -np.ones(problem.num_jobs)]), np.append(np.ones(len(rounds)), 0.0)]),
        np.append(-allocation.time_fractions[:, 0], 1.0),
        method="highs",
        options=TIGHT,
    )
    assert mix.fun <= 1e-6
    if allocation.status == "optimal":
        total = policy == "max_total_throughput"
        needs = {"max_min_fairness": 1 / problem.num_gpus, "min_makespan": np.ones(problem.num_jobs)}
        best = linprog(  # and no mix of rounds is better
            -np.append(rounds.sum(axis=1) * total, 1.0 - total),
            np.vstack(
                [
                    np.column_stack([-rounds.T, needs.get(policy, np.zeros(problem.num_jobs)) * problem.runnable[:, 0]]),
                    np.append(np.ones(len(rounds)), 0.0),
                ]
            ),
            np.append(np.zeros(problem.num_jobs), 1.0),
            bounds=[*([(0, None)] * len(rounds)), (0, 1e9 * (1 - total))],
            method="highs",
            options=TIGHT,
        )
        value = allocation.objective_value or 0.0
        assert (1 / value if policy == "min_makespan" else value) == pytest.approx(-best.fun, rel=1e-6)
