"""Gangs on as few nodes as possible and spread over more: two columns of one capacity where that matters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.formulation.cuts import gang_rows, placement_rows
from tests.support.examples import examples
from tests.support.instances import Floats


def measured(*speeds: tuple[str, int, float, float | None]) -> gp.ThroughputProfile:
    """A profile of (job type, gang, steps/s consolidated, steps/s spread or None)."""
    rows = []
    for job_type, size, consolidated, spread in speeds:
        for placement, speed in (("consolidated", consolidated), ("spread", spread)):
            if speed is not None:
                kind = {"job_type": job_type, "num_gpus": size, "accelerator": "v100", "placement": placement}
                rows.append(gp.Measurement(**kind, steps_per_second=speed))
    return gp.ThroughputProfile("measured", rows)


def nodes_of(*sizes: int, racks: Sequence[str | None] | None = None) -> gp.Cluster:
    names = racks or [None] * len(sizes)
    return gp.Cluster(
        [
            gp.Node(name=f"n{i}", accelerator="v100", num_gpus=n, rack=rack)
            for i, (n, rack) in enumerate(zip(sizes, names, strict=True))
        ]
    )


def gangs(*sizes: int, **fields: object) -> list[gp.Job]:
    return [gp.Job(f"j{i}", job_type="t", num_gpus=size, total_steps=100, **fields) for i, size in enumerate(sizes)]


class TestByHand:
    def test_a_gang_is_spread_where_that_is_faster(self) -> None:
        problem = gp.AllocationProblem.from_jobs(gangs(2), nodes_of(2, 2), measured(("t", 2, 1.0, 1.25)))
        allocation = gp.solve(problem)
        assert allocation.throughputs.tolist() == pytest.approx([1.25])
        assert allocation.spread_fractions is not None
        assert allocation.spread_fractions.tolist() == [[1.0]]
        assert allocation.to_dict()["jobs"][0]["spread_fractions"] == {"v100": 1.0}

    def test_a_gang_is_together_where_that_is_faster(self) -> None:
        problem = gp.AllocationProblem.from_jobs(gangs(2), nodes_of(2, 2), measured(("t", 2, 1.0, 0.5)))
        allocation = gp.solve(problem)
        assert allocation.throughputs.tolist() == pytest.approx([1.0])
        assert allocation.spread_fractions is not None
        assert allocation.spread_fractions.tolist() == [[0.0]]

    @pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan", "water_filling"])
    def test_gangs_take_turns_where_nodes_have_no_room_for_all(self, policy: str) -> None:
        """Two nodes of 3 hold a gang of 2 each, and one more in what both have left: each of three is spread a third of it."""
        problem = gp.AllocationProblem.from_jobs(gangs(2, 2, 2), nodes_of(3, 3), measured(("t", 2, 1.0, 0.5)))
        allocation = gp.solve(problem, policy)
        assert allocation.accelerator_types == ("v100",)
        assert allocation.time_fractions[:, 0].tolist() == pytest.approx([1.0] * 3)
        assert allocation.spread_fractions is not None
        assert allocation.spread_fractions[:, 0].tolist() == pytest.approx([1 / 3] * 3)
        assert allocation.throughputs.tolist() == pytest.approx([5 / 6] * 3)
        assert allocation.utilization.tolist() == pytest.approx([1.0])
        assert allocation.verify().violation <= 1e-9
        read = gp.Allocation.from_json(allocation.to_json())
        assert read.spread_fractions is not None
        assert read.spread_fractions.tolist() == allocation.spread_fractions.tolist()

    @pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan", "nash_welfare"])
    def test_types_on_which_placement_is_no_matter_keep_one_column(self, policy: str) -> None:
        """Beside the two nodes of 3 there is a type without measurements of spread gangs."""
        both = [
            *measured(("t", 2, 1.0, 0.5)).measurements,
            *(gp.Measurement(job_type="t", num_gpus=2, accelerator="k80", steps_per_second=0.25),),
        ]
        cluster = gp.Cluster([*nodes_of(3, 3).nodes, gp.Node(name="slow", accelerator="k80", num_gpus=2)])
        allocation = gp.solve(gp.AllocationProblem.from_jobs(gangs(2, 2, 2), cluster, gp.ThroughputProfile("both", both)), policy)
        assert allocation.throughputs.sum() == pytest.approx(2.5)
        assert allocation.time_fractions.shape == (3, 2)
        assert allocation.by_column.accelerator_types == ("v100", "k80", "v100 (slower placement)")
        assert allocation.verify().violation <= 1e-9

    def test_the_job_that_loses_less_is_the_one_that_is_spread(self) -> None:
        speeds = measured(("a", 2, 1.0, 0.9), ("b", 2, 1.0, 0.1))
        jobs = [gp.Job(f"{t}{i}", job_type=t, num_gpus=2) for i, t in enumerate("abb")]
        allocation = gp.solve(gp.AllocationProblem.from_jobs(jobs, nodes_of(3, 3), speeds), "max_total_throughput")
        assert allocation.throughputs.tolist() == pytest.approx([0.9, 1.0, 1.0])

    def test_constraints_hold_for_both_placements_together(self) -> None:
        jobs = [*gangs(2, 2), gp.Job("j2", job_type="t", num_gpus=2, tenant="other")]
        problem = gp.AllocationProblem.from_jobs(jobs, nodes_of(3, 3), measured(("t", 2, 1.0, 0.5)))
        quota = gp.MaxGpus(1, tenant="other")
        allocation = gp.solve(problem, "max_total_throughput", constraints=[quota])
        assert allocation.time_fractions[2, 0] == pytest.approx(0.5)
        assert allocation.constraints[0].kept

    @pytest.mark.parametrize(
        ("cluster", "jobs"),
        [(nodes_of(4), gangs(2)), (nodes_of(2, 2), gangs(2, locality="node")), (nodes_of(2, 2), gangs(2, locality="rack"))],
        ids=["one node", "must stay on a node", "racks of one node"],
    )
    def test_a_gang_that_cannot_be_spread_is_not(self, cluster: gp.Cluster, jobs: list[gp.Job]) -> None:
        problem = gp.AllocationProblem.from_jobs(jobs, cluster, measured(("t", 2, 1.0, 1.5)))
        assert gp.solve(problem).throughputs.tolist() == pytest.approx([1.0])

    def test_a_rack_with_more_nodes_lets_a_gang_be_spread(self) -> None:
        problem = gp.AllocationProblem.from_jobs(
            gangs(2, locality="rack"), nodes_of(2, 2, racks=["r", "r"]), measured(("t", 2, 1.0, 1.5))
        )
        assert gp.solve(problem).throughputs.tolist() == pytest.approx([1.5])

    def test_the_published_formulation_knows_consolidated_gangs_only(self) -> None:
        problem = gp.AllocationProblem.from_jobs(gangs(2), nodes_of(2, 2), measured(("t", 2, 1.0, 1.25)), whole_gangs=False)
        allocation = gp.solve(problem)
        assert allocation.throughputs.tolist() == pytest.approx([1.0])
        assert allocation.spread_fractions is None
        assert "spread_fractions" not in allocation.to_dict()["jobs"][0]

    def test_an_explanation_tells_of_both_placements(self) -> None:
        problem = gp.AllocationProblem.from_jobs(gangs(2, 2, 2), nodes_of(3, 3), measured(("t", 2, 1.0, 0.5)))
        told = gp.explain(problem, "j0")
        assert told.throughput == pytest.approx(5 / 6)
        assert any("what whole gangs can use of v100" in binding.text for binding in told.bindings)


Scene = tuple[gp.AllocationProblem, Sequence[str | None]]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Up to four gangs on up to three nodes, and the racks of these."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=1, max_size=4))
    locality = st.sampled_from(["any", "any", "rack", "node"])
    jobs = [
        gp.Job(f"j{i}", job_type=f"t{i}", num_gpus=size, locality=draw(locality), total_steps=100) for i, size in enumerate(sizes)
    ]
    speed = st.sampled_from([0.5, 1.0, 1.5, 3.0])
    speeds = [(f"t{i}", size, draw(speed), draw(st.none() | speed) if size > 1 else None) for i, size in enumerate(sizes)]
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    racks = draw(st.lists(st.sampled_from([None, "r"]), min_size=len(counts), max_size=len(counts)))
    return gp.AllocationProblem.from_jobs(jobs, nodes_of(*counts, racks=racks), measured(*speeds)), racks


def rounds_of(scene: Scene) -> Floats:
    """(P, N) the speeds of all jobs in every packing of the nodes."""
    problem, _ = scene
    assert problem.hosts is not None
    nodes = problem.hosts.gpus["node"][0]
    ways = [list(ways_of(scene, i, nodes)) for i in range(problem.num_jobs)]
    found = set()
    for chosen in itertools.product(*ways):
        if all(sum(counts[v] for counts, _ in chosen) <= held for v, held in enumerate(nodes)):
            found.add(tuple(speed for _, speed in chosen))
    return np.array(sorted(found))


def ways_of(scene: Scene, i: int, nodes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """The GPUs of a gang on each node, and its speed there; the first is none at all."""
    problem, racks = scene
    assert problem.hosts is not None
    yield (0,) * len(nodes), 0.0
    size, locality, speeds = int(problem.num_gpus[i]), problem.hosts.localities[i], problem.speeds
    least = next((count for count in range(1, len(nodes) + 1) if sum(sorted(nodes)[-count:]) >= size), 0)
    for counts in itertools.product(*(range(min(size, held) + 1) for held in nodes)) if problem.runnable[i, 0] else ():
        used = [v for v, count in enumerate(counts) if count]
        in_rack = len({racks[v] or v for v in used}) == 1
        if sum(counts) == size and (len(used) == 1 or locality == "any" or (locality == "rack" and in_rack)):
            spread = len(used) > least and speeds is not None and not np.isnan(speeds.spread[i, 0])
            table = problem.throughputs if speeds is None else speeds.spread if spread else speeds.consolidated
            yield counts, float(table[i, 0])


@settings(max_examples=examples(100))
@given(scene=scenes())
def test_no_schedule_is_better_than_what_is_promised(scene: Scene) -> None:
    """The best mix of all packings of the nodes, found by enumeration, does not exceed the promise."""
    problem, _ = scene
    if problem.num_jobs == len(problem.excluded):
        return
    speeds = rounds_of(scene)
    share = np.where(problem.runnable.any(axis=1), problem.equal_share, np.inf)
    best = linprog(-(speeds / share).sum(axis=1), A_ub=np.ones((1, len(speeds))), b_ub=[1.0], bounds=(0, None), method="highs")
    promised = gp.solve(problem, "max_total_throughput")
    assert promised.objective_value is not None
    assert promised.objective_value >= -best.fun * (1 - 1e-7)


@pytest.mark.deep
@settings(max_examples=examples(100))
@given(scene=scenes(), policy=st.sampled_from(["max_min_fairness", "max_total_throughput", "min_makespan", "nash_welfare"]))
def test_answers_break_no_row(scene: Scene, policy: str) -> None:
    """The answer is proven, and keeps all rows in the columns that it was found in."""
    found = gp.solve(scene[0], policy)
    assert found.verify().violation <= 1e-9
    assert found.spread_fractions is None or (found.spread_fractions <= found.time_fractions + 1e-12).all()
    allocation = found.by_column
    assert allocation.evidence is not None
    columns, problem = allocation.evidence.columns, allocation.evidence.problem
    assert gang_rows(problem, allocation.time_fractions, columns.columns_of) == []
    assert placement_rows(problem, allocation.time_fractions, getattr(columns, "second", {})) == []
