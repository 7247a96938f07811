"""CPUs and host memory: allocations do not promise more than nodes have, and placement respects them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.placement import Gang, largest_free, place
from gavel_py.scheduling.placement.topology import Resources
from tests.support.examples import examples


def problem(jobs: list[gp.Job], *nodes: gp.Node) -> gp.AllocationProblem:
    ids = [job.job_id for job in jobs]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * len(ids), job_ids=ids, accelerators=["v100"])
    return gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), speeds)


def node(name: str, num_gpus: int, **fields: float) -> gp.Node:
    return gp.Node(name=name, accelerator="v100", num_gpus=num_gpus, **fields)  # type: ignore[arg-type]


class TestPromises:
    """Two jobs that need 12 of the 16 cores, and one that needs none."""

    JOBS = (gp.Job("a", cpus_per_gpu=12), gp.Job("b", cpus_per_gpu=12), gp.Job("c"))

    def test_no_more_cpus_are_promised_than_there_are(self) -> None:
        """Only one of the two runs at a time, whatever is left of the cores meanwhile."""
        allocation = gp.solve(problem(list(self.JOBS), node("n", 3, cpus=16)))
        assert allocation.time_fractions[:, 0] == pytest.approx([1 / 2, 1 / 2, 1])

    def test_of_many_jobs_the_totals_count(self) -> None:
        """There are too many sets of jobs to look at each."""
        jobs = [gp.Job(f"j{i}", cpus_per_gpu=12) for i in range(24)]
        allocation = gp.solve(problem(jobs, node("n", 24, cpus=16)))
        assert allocation.time_fractions[:, 0] == pytest.approx(16 / 12 / 24)

    def test_a_gang_needs_them_for_each_of_its_gpus(self) -> None:
        jobs = [gp.Job(f"j{i}", job_type="t", num_gpus=2, cpus_per_gpu=6) for i in range(24)]
        measured = gp.Measurement(job_type="t", num_gpus=2, accelerator="v100", steps_per_second=1)
        large = gp.AllocationProblem.from_jobs(jobs, gp.Cluster([node("n", 48, cpus=16)]), gp.ThroughputProfile("p", [measured]))
        assert gp.solve(large).time_fractions[:, 0] == pytest.approx(16 / 12 / 24)

    def test_nodes_that_do_not_say_have_enough(self) -> None:
        allocation = gp.solve(problem(list(self.JOBS), node("n", 1, cpus=16), node("m", 2)))
        assert allocation.time_fractions[:, 0] == pytest.approx([1, 1, 1])

    def test_memory_counts_as_cpus_do(self) -> None:
        jobs = [gp.Job("a", memory_gb_per_gpu=12), gp.Job("b", memory_gb_per_gpu=12)]
        assert gp.solve(problem(jobs, node("n", 2, memory_gb=16))).time_fractions[:, 0] == pytest.approx([1 / 2, 1 / 2])

    @pytest.mark.parametrize("name", ["cpus", "memory_gb"])
    def test_a_job_for_which_no_node_has_enough_is_left_out(self, name: str) -> None:
        """Nodes that state only their CPUs, or only their memory."""
        jobs = [gp.Job("a", **{f"{name}_per_gpu": 20}), gp.Job("c")]
        excluded = problem(jobs, gp.Node(name="n", accelerator="v100", num_gpus=2, **{name: 16})).excluded
        assert excluded == {"a": "its gang of 1 GPUs fits nowhere (largest gang that fits: v100: 0)"}

    def test_ordered_policies_keep_to_them(self) -> None:
        allocation = gp.solve(problem(list(self.JOBS), node("n", 3, cpus=16)), "fifo", backfill=True)
        assert allocation.time_fractions[:, 0].tolist() == [1, 0, 1]

    @pytest.mark.parametrize(
        ("policy", "expected"), [("isolated", [2 / 3, 2 / 3, 1]), ("gandiva", [2 / 3, 2 / 3, 1]), ("allox", [2 / 3, 2 / 3, 1])]
    )
    def test_formulas_keep_to_them(self, policy: str, expected: list[float]) -> None:
        """Jobs that need cores have their time reduced by the same factor; the others keep what the formula gives them."""
        jobs = [job.model_copy(update={"total_steps": 10.0}) for job in self.JOBS]
        allocation = gp.solve(problem(jobs, node("n", 3, cpus=16)), policy)
        assert allocation.time_fractions[:, 0] == pytest.approx(expected)
        allocation.verify()

    @settings(max_examples=examples(25, costly=True))
    @given(cores=st.lists(st.sampled_from([0.0, 3.0, 6.0]), min_size=2, max_size=12), data=st.data())
    def test_jobs_that_share_gpus_keep_to_them_under_gandiva(self, cores: list[float], data: st.DataObject) -> None:
        profile = gp.ThroughputProfile.builtin("gavel-osdi20")
        kinds = st.sampled_from(["ResNet-18 (batch size 16)", "LM (batch size 5)", "A3C", "Recommendation (batch size 512)"])
        jobs = [gp.Job(f"j{i}", job_type=data.draw(kinds), cpus_per_gpu=each) for i, each in enumerate(cores)]
        nodes = [gp.Node(name=name, accelerator=name, num_gpus=4, cpus=8) for name in ("v100", "k80")]
        gp.solve(gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), profile, sharing=True), "gandiva").verify()

    def test_the_row_is_named_where_it_binds(self) -> None:
        """Two of the three run at a time, which uses all cores."""
        told = gp.explain(problem([gp.Job(name, cpus_per_gpu=8) for name in "abc"], node("n", 3, cpus=16)), "a")
        assert any(binding.name == "the CPUs of the nodes with v100" for binding in told.bindings)


class TestRounds:
    def test_nobody_runs_without_cpus_and_gpus_left_go_to_others(self) -> None:
        """4 GPUs and 16 cores: one of the two hungry jobs runs in each round, and the light ones beside it."""
        jobs = [gp.Job("a", cpus_per_gpu=12), gp.Job("b", cpus_per_gpu=12), *(gp.Job(f"c{i}", cpus_per_gpu=1) for i in range(3))]
        ids = [job.job_id for job in jobs]
        speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 5, job_ids=ids, accelerators=["v100"])
        scheduler = gp.RoundScheduler(gp.Cluster([node("n", 4, cpus=16)]), speeds)
        for job in jobs:
            scheduler.submit(job)
        for _ in range(20):
            running = set(scheduler.next_round().assignments)
            assert len(running & {"a", "b"}) == 1
            assert running >= {"c0", "c1", "c2"}
        served = scheduler.delivery().jobs
        assert abs(served["a"].delivered_seconds - served["b"].delivered_seconds) <= 2 * 360

    @pytest.mark.parametrize("policy", ["isolated", "gandiva"])
    def test_formulas_are_played_where_cpus_are_scarce(self, policy: str) -> None:
        jobs = [gp.Job(name, cpus_per_gpu=12) for name in "abc"]
        speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=list("abc"), accelerators=["v100"])
        scheduler = gp.RoundScheduler(gp.Cluster([node("n", 4, cpus=16)]), speeds, policy)
        scheduler.submit_all(jobs)
        assert [len(scheduler.next_round().assignments) for _ in range(9)] == [1] * 9
        assert {job.delivered_seconds for job in scheduler.delivery().jobs.values()} == {3 * 360.0}


class TestPlaces:
    def test_a_gang_goes_where_its_cpus_are(self) -> None:
        nodes = [node("small", 4, cpus=4), node("large", 4, cpus=64)]
        assert place(nodes, [Gang("a", 2, "v100", per_gpu=Resources(cpus=8))]) == {"a": (("large", 0), ("large", 1))}
        assert place(nodes, [Gang("a", 5, "v100", per_gpu=Resources(cpus=8))]) == {}
        four = place(nodes, [Gang("a", 5, "v100", per_gpu=Resources(cpus=4))])["a"]
        assert sorted(name for name, _ in four) == ["large"] * 4 + ["small"]

    def test_what_others_need_is_gone(self) -> None:
        nodes, needs = [node("n", 4, cpus=16, memory_gb=64)], Resources(cpus=4)
        assert place(nodes, [Gang("a", 2, "v100", per_gpu=needs)], loads={"n": Resources(cpus=9)}) == {}
        assert largest_free(nodes, loads={"n": Resources(cpus=9)}, per_gpu=needs)["any"] == {"v100": 1}

    def test_so_is_the_memory_that_others_need(self) -> None:
        nodes, needs = [node("n", 4, cpus=16, memory_gb=64)], Resources(memory_gb=16)
        assert place(nodes, [Gang("a", 2, "v100", per_gpu=needs)], loads={"n": Resources(memory_gb=33)}) == {}
        assert largest_free(nodes, loads={"n": Resources(memory_gb=33)}, per_gpu=needs)["any"] == {"v100": 1}

    def test_a_gang_takes_memory_for_each_of_its_gpus(self) -> None:
        pair = [Gang(name, 2, "v100", per_gpu=Resources(memory_gb=16)) for name in "ab"]
        assert len(place([node("n", 4, memory_gb=48)], pair)) == 1
        assert len(place([node("n", 4, memory_gb=64)], pair)) == 2

    def test_smaller_gangs_move_where_cpus_are_short(self) -> None:
        """One core-hungry job on each node: one of them makes room, though GPUs are free on both."""
        nodes = [node("n", 4, cpus=16), node("m", 4, cpus=16)]
        hungry = [Gang(name, 1, "v100", previous=((name, 0),), per_gpu=Resources(cpus=8)) for name in ("n", "m")]
        places = place(nodes, [Gang("wide", 3, "v100", "node", per_gpu=Resources(cpus=5)), *hungry])
        assert len({name for name, _ in places["wide"]}) == 1
        assert len(places) == 3

    @settings(max_examples=examples(100))
    @given(
        nodes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 32), st.integers(0, 64)), min_size=1, max_size=5),
        asked=st.lists(
            st.tuples(st.integers(1, 5), st.sampled_from(["any", "node"]), st.integers(0, 8), st.sampled_from([0.0, 3.5, 16.0])),
            max_size=10,
        ),
    )
    def test_no_node_gives_more_than_it_has(self, nodes: list[tuple[int, ...]], asked: list[tuple[int, str, int, float]]) -> None:
        there = [node(f"n{i}", n, cpus=c, memory_gb=m) for i, (n, c, m) in enumerate(nodes)]
        gangs = [Gang(f"g{i}", s, "v100", where, per_gpu=Resources(c, m)) for i, (s, where, c, m) in enumerate(asked)]  # type: ignore[arg-type]
        for _ in range(2):  # the second time from where they run
            places = place(there, gangs)
            used = {each.name: np.zeros(3) for each in there}
            for gang in gangs:
                for name, _ in places.get(gang.job_id, ()):
                    used[name] += [1, gang.per_gpu.cpus, gang.per_gpu.memory_gb]
            assert all((used[each.name] <= [each.num_gpus, each.cpus, each.memory_gb]).all() for each in there)
            assert all(len(set(places[g.job_id])) == g.num_gpus for g in gangs if g.job_id in places)
            if gangs and (first := gangs[0]):
                holes = largest_free(there, per_gpu=first.per_gpu)[first.locality]["v100"]
                assert (first.job_id in places) == (holes >= first.num_gpus)
            gangs = [Gang(g.job_id, g.num_gpus, "v100", g.locality, places.get(g.job_id, ()), g.per_gpu) for g in gangs]
