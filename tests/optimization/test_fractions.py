"""Jobs with a fraction of a GPU: from files to proven allocations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import gavel_py as gp
from gavel_py.optimization.formulation.cuts import gang_rows
from gavel_py.optimization.formulation.packings import fraction_rows
from tests.support.commands import Gavel, runner
from tests.support.examples import examples
from tests.support.instances import best_level, best_value
from tests.support.profiles import OSDI

BERT = {"job_type": "bert", "accelerator": "v100", "placement": "consolidated"}


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str]) -> Gavel:
    return runner(capsys)


def profile_of(*speeds: tuple[float, float], **others: Any) -> gp.ThroughputProfile:
    """Speeds of bert on v100 by GPUs."""
    return gp.ThroughputProfile(
        "test", [gp.Measurement(**BERT | others, num_gpus=gpus, steps_per_second=speed) for gpus, speed in speeds]
    )


class TestJobs:
    @pytest.mark.parametrize(
        ("given", "gpus", "whole"), [(0.25, 0.25, 1), ("0.25", 0.25, 1), (" .5 ", 0.5, 1), (1.0, 1, 1), ("8", 8, 8), ("2.0", 2, 2)]
    )
    def test_a_job_asks_for_whole_gpus_or_a_part_of_one(self, given: object, gpus: float, whole: int) -> None:
        job = gp.Job("a", num_gpus=given)
        assert (job.num_gpus, type(job.num_gpus), job.whole_gpus) == (gpus, type(gpus), whole)

    def test_files_keep_them(self, tmp_path: Path) -> None:
        csv, lines = tmp_path / "jobs.csv", tmp_path / "jobs.jsonl"
        csv.write_text("job_id,num_gpus\na,0.25\nb,4\nc,1.0\n")
        lines.write_text('{"job_id": "a", "num_gpus": 0.25}\n{"job_id": "b", "num_gpus": 4}\n{"job_id": "c", "num_gpus": "1"}\n')
        (tmp_path / "jobs.json").write_text(json.dumps([json.loads(line) for line in lines.read_text().splitlines()]))
        for path in (csv, lines, tmp_path / "jobs.json"):
            assert [repr(job.num_gpus) for job in gp.JobSet.from_file(path)] == ["0.25", "4", "1"]

    def test_more_than_one_gpu_is_whole(self) -> None:
        with pytest.raises(gp.InputError, match=r"num_gpus: must be a whole number of GPUs, or a fraction of one, found 1\.5"):
            gp.Job("a", num_gpus=1.5)


class TestThroughputs:
    def test_a_fraction_is_as_fast_as_one_gpu_unless_it_was_measured(self) -> None:
        profile = profile_of((0.25, 0.8), (1, 2.0), (2, 3.5))
        speeds = {gpus: profile.throughput("bert", gpus, "v100") for gpus in (0.25, 0.5, 1, 2)}
        assert speeds == {0.25: 0.8, 0.5: 2.0, 1: 2.0, 2: 3.5}
        jobs = [gp.Job(str(gpus), job_type="bert", num_gpus=gpus) for gpus in speeds]
        assert profile.matrix(jobs, ["v100"])[:, 0].tolist() == list(speeds.values())
        assert [profile.job_throughput(job, "v100") for job in jobs] == list(speeds.values())
        assert profile.has("bert", 0.5, "v100")
        assert profile.gang_sizes == (0.25, 1, 2)

    def test_what_was_not_measured_with_one_gpu_is_missing(self) -> None:
        profile = profile_of((2, 3.5))
        assert not profile.has("bert", 0.5, "v100")
        with pytest.raises(gp.MissingThroughputError, match=r"has no throughput of 'bert' on 0.5 x v100 .*nearest known: 2 x v100"):
            profile.matrix([gp.Job("a", job_type="bert", num_gpus=0.5)], ["v100"])

    def test_measurements_of_fractions_are_kept(self, tmp_path: Path, gavel: Gavel) -> None:
        profile = profile_of((0.25, 0.8), (1, 2.0))
        profile.to_csv(tmp_path / "test.csv")
        store = gp.ThroughputStore(tmp_path / "store.sqlite")
        store.save(profile)
        for again in (gp.ThroughputProfile.from_csv(tmp_path / "test.csv"), store.load("test")):
            assert [repr(row.num_gpus) for row in again.rows] == ["0.25", "1"]
        shown = gavel("profiles", "--store", str(tmp_path / "store.sqlite"), "show", "test").out
        assert [line.split() for line in shown.splitlines() if "bert" in line] == [["bert", "0.25", "0.8"], ["bert", "1", "2"]]

    def test_pairs_are_of_whole_gangs(self) -> None:
        with pytest.raises(gp.InputError, match="a pair shares whole GPUs"):
            profile_of((0.5, 1.0), partner_job_type="bert", partner_steps_per_second=1.0)

    def test_a_fraction_is_in_no_pair(self) -> None:
        sharing = gp.Measurement(**BERT, num_gpus=1, steps_per_second=1.5, partner_job_type="bert", partner_steps_per_second=1.5)
        profile = gp.ThroughputProfile("test", [*profile_of((1, 2.0)).measurements, sharing])
        jobs = [gp.Job(name, job_type="bert", num_gpus=gpus) for name, gpus in (("a", 0.5), ("b", 1), ("c", 1))]
        problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 1}), profile, sharing=True)
        assert problem.pairs is not None
        assert problem.pairs.kinds.tolist() == [-1, 0, 0]
        assert gp.solve(problem, "max_total_throughput").verify().gap is not None
        alone = gp.AllocationProblem.from_jobs(jobs[:1], gp.Cluster.from_counts({"v100": 1}), profile, sharing=True)
        assert alone.pairs is None
        with pytest.raises(gp.InputError, match=r"kind 0 has gangs of 0.5 GPUs, but only equal gangs of whole GPUs can share"):
            gp.AllocationProblem.from_arrays([[1.0]], [1], num_gpus=[0.5], pair_kinds=[0], pair_throughputs=[[[1.0]]])


class TestNodes:
    @pytest.mark.parametrize(("cpus", "fits"), [(4.0, True), (3.9, False), (None, True)])
    def test_a_part_of_a_gpu_needs_its_part_of_the_cpus(self, cpus: float | None, fits: bool) -> None:
        node = gp.Node(name="n", accelerator="v100", num_gpus=1, cpus=cpus)
        job = gp.Job("a", job_type="bert", num_gpus=0.5, cpus_per_gpu=8)
        problem = gp.AllocationProblem.from_jobs([job], gp.Cluster([node]), profile_of((1, 2.0)))
        assert problem.runnable.tolist() == [[fits]]
        if not fits:
            assert problem.excluded["a"].startswith("its 0.5 of a GPU fits nowhere")

    def test_a_whole_gpu_does_not_fit_where_a_part_of_it_does(self) -> None:
        cluster = gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=4, cpus=4)])
        assert cluster.largest_gang("v100", cpus_per_gpu=8) == pytest.approx(0.5)
        assert cluster.largest_gang("v100", "node", cpus_per_gpu=2) == 2
        assert gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=0, cpus=4)]).largest_gang("v100", cpus_per_gpu=8) == 0

    def test_jobs_of_more_than_half_a_gpu_have_one_each(self) -> None:
        """Five jobs of 0.6 need as many GPUs as five jobs of 1, though their parts sum to 3."""
        jobs = [gp.Job(f"j{i}", job_type="bert", num_gpus=0.6) for i in range(5)]
        cluster = gp.Cluster.from_counts({"v100": 3})
        problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile_of((1, 2.0)))
        as_published = gp.AllocationProblem.from_jobs(jobs, cluster, profile_of((1, 2.0)), whole_gangs=False)
        assert gp.solve(problem).time_fractions.sum() == pytest.approx(3)
        assert gp.solve(as_published).time_fractions.sum() == pytest.approx(5)


@st.composite
def mixes(draw: st.DrawFn) -> gp.AllocationProblem:
    """Problems in which most jobs want a part of a GPU."""
    n, k = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    sizes = st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.6, 0.999]) | st.floats(0.001, 0.999) | st.sampled_from([1.0, 2.0, 4.0])
    return gp.AllocationProblem.from_arrays(
        draw(st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), min_size=k, max_size=k), min_size=n, max_size=n)),
        draw(st.lists(st.integers(0, 4), min_size=k, max_size=k)),
        num_gpus=draw(st.lists(sizes, min_size=n, max_size=n)),
        weights=draw(st.lists(st.sampled_from([1.0, 1.0, 2.0, 5.0]), min_size=n, max_size=n)),
        steps_remaining=draw(st.lists(st.sampled_from([10.0, 1000.0]), min_size=n, max_size=n)),
        total_steps=[1000.0] * n,
        deadlines_seconds=draw(st.lists(st.sampled_from([60.0, 3600.0]), min_size=n, max_size=n)),
        prices_per_hour=[1.0] * k,
    )


class TestAllocations:
    @settings(max_examples=examples(60))
    @given(mixes())
    def test_programs_find_what_an_independent_one_finds(self, problem: gp.AllocationProblem) -> None:
        if not problem.runnable.any():
            return
        share = np.where(problem.equal_share > 0, problem.equal_share, 1.0)
        needs = {
            "max_min_fairness": problem.weights * share / problem.num_gpus,
            "min_makespan": problem.steps_remaining,
        }
        for policy, need in needs.items():
            found = gp.solve(problem, policy).objective_value
            assert found is not None
            level = best_level(problem, need)
            assert (1 / found if policy == "min_makespan" else found) == pytest.approx(level, rel=1e-6)
        gains = np.where(problem.runnable, problem.throughputs / share[:, None], 0.0)
        assert gp.solve(problem, "max_total_throughput").objective_value == pytest.approx(best_value(problem, gains), rel=1e-6)

    @settings(max_examples=examples(100))
    @given(mixes(), st.sampled_from(gp.policy_names()))
    def test_no_type_gives_more_than_its_gpus(self, problem: gp.AllocationProblem, policy: str) -> None:
        if policy == "allox" and (problem.num_gpus != 1).any():
            return
        allocation = gp.solve(problem, policy)
        used = problem.num_gpus @ allocation.time_fractions
        assert (used <= problem.capacities + 1e-9 * np.maximum(1, problem.capacities)).all()
        assert (allocation.time_fractions.sum(axis=1) <= 1 + 1e-9).all()
        allocation.verify().check()

    @settings(max_examples=examples(60))
    @given(mixes())
    def test_equal_parts_of_all_sizes_change_nothing(self, problem: gp.AllocationProblem) -> None:
        """Twice the GPUs for twice the parts is the same problem, as far as no gang is concerned: its throughput stays."""
        small = problem.num_gpus < 0.5
        if not small.any():
            return
        jobs = problem.select(small)
        doubled = gp.AllocationProblem.from_arrays(jobs.throughputs, 2 * jobs.capacities, num_gpus=2 * jobs.num_gpus)
        plain = gp.AllocationProblem.from_arrays(jobs.throughputs, jobs.capacities, num_gpus=jobs.num_gpus)
        one, other = (gp.solve(each, "max_total_throughput").objective_value for each in (plain, doubled))
        assert one == pytest.approx(other, rel=1e-6, abs=1e-12)

    def test_four_quarters_run_on_one_gpu(self) -> None:
        problem = gp.AllocationProblem.from_arrays([[2.0]] * 4, [1], num_gpus=[0.25] * 4)
        allocation = gp.solve(problem)
        assert allocation.time_fractions.tolist() == [[1.0]] * 4
        assert allocation.utilization.tolist() == [1.0]

    @pytest.mark.parametrize("policy", ["fifo", "shortest_job_first", "priority"])
    def test_orders_serve_ten_tenths(self, policy: str) -> None:
        """Their sum is below 1 in floating point, and must be taken for it."""
        steps = {"steps_remaining": [100.0] * 11, "total_steps": [100.0] * 11}
        problem = gp.AllocationProblem.from_arrays([[1.0]] * 11, [1], num_gpus=[0.1] * 11, **steps)
        assert gp.solve(problem, policy).time_fractions[:, 0].tolist() == [1.0] * 10 + [0.0]

    def test_jobs_that_differ_in_their_part_are_not_equal(self) -> None:
        problem = gp.AllocationProblem.from_types([[1.0]], [0] * 6, [1], num_gpus=[0.25, 0.5, 0.25, 1, 0.5, 2])
        allocation = gp.solve(problem, "max_min_fairness")
        assert allocation.route is not None
        level = problem.num_gpus * allocation.throughputs
        assert level[problem.capacities[0] >= problem.num_gpus].min() == pytest.approx(allocation.objective_value)


def on_gpus(sizes: Sequence[float], gpus: int) -> gp.AllocationProblem:
    jobs = [gp.Job(f"j{i}", job_type="bert", num_gpus=size) for i, size in enumerate(sizes)]
    speeds = profile_of((1, 2.0), (2, 3.5))
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": gpus}), speeds)
    return replace(problem, steps_remaining=np.ones(len(jobs)))


def fit(sizes: Sequence[float], gpus: Sequence[float]) -> bool:
    """Whether these jobs, the largest first, find a place on GPUs of which so much is free: tried in all ways."""
    if not sizes:
        return True
    if sizes[0] >= 1:
        free = [left for left in gpus if left == 1]
        whole = int(sizes[0])
        return len(free) >= whole and fit(sizes[1:], [left for left in gpus if left != 1] + free[whole:])
    places = {left for left in gpus if left >= sizes[0] - 1e-9}
    return any(fit(sizes[1:], [*gpus[: (at := gpus.index(left))], left - sizes[0], *gpus[at + 1 :]]) for left in places)


def rounds_of(problem: gp.AllocationProblem) -> Any:
    """(P, N) every set of jobs that can run at once on GPUs of one type."""
    sizes, gpus = problem.num_gpus.tolist(), int(problem.capacities[0])
    able = np.flatnonzero(problem.runnable[:, 0]).tolist()
    chosen = [picked for n in range(len(able) + 1) for picked in combinations(able, n)]
    fitting = [picked for picked in chosen if fit(sorted((sizes[i] for i in picked), reverse=True), [1.0] * gpus)]
    return np.array([np.isin(np.arange(len(sizes)), picked) for picked in fitting], dtype=float)


SIZES = st.sampled_from([0.2, 0.25, 0.3, 1 / 3, 0.34, 0.4, 0.45, 0.5, 0.51, 0.6, 0.75, 1, 2])
SCENES = st.builds(on_gpus, st.lists(SIZES, min_size=1, max_size=7), st.integers(1, 3))


class TestRows:
    """What is promised of fractions, against all sets of jobs that fit GPUs at once."""

    @settings(max_examples=examples(100))
    @given(SCENES, st.integers(0, 2**32 - 1))
    def test_no_row_keeps_out_what_packings_deliver(self, problem: gp.AllocationProblem, seed: int) -> None:
        chance = np.random.default_rng(seed)
        rounds = rounds_of(problem)
        delivered = chance.dirichlet(np.full(len(rounds), 0.3), size=20) @ rounds
        for _ in range(5):
            wanted = np.where(problem.runnable, chance.uniform(0.3, 1, problem.runnable.shape), 0.0)
            for row in [*fraction_rows(problem, wanted), *gang_rows(problem, wanted)]:
                assert (delivered @ row.loads[0] <= row.rhs + 1e-7).all()
                assert row.loads[0] @ wanted[:, 0] > row.rhs

    @settings(max_examples=examples(60))
    @given(SCENES, st.sampled_from(["max_min_fairness", "max_total_throughput", "min_makespan"]))
    def test_an_allocation_breaks_no_row_and_loses_nothing(self, problem: gp.AllocationProblem, policy: str) -> None:
        """No mix of packings is better than it, as far as the policy has an objective."""
        if not problem.runnable.any():
            return
        allocation = gp.solve(problem, policy)
        assert fraction_rows(problem, allocation.time_fractions) == []
        rounds = rounds_of(problem)
        able = problem.runnable[:, 0]
        total = policy == "max_total_throughput"
        need = {"max_min_fairness": 1 / problem.num_gpus, "min_makespan": 1 / problem.throughputs[:, 0]}.get(policy, 0 * able)
        best = linprog(
            -np.append(rounds.sum(axis=1) * total, 1.0 - total),
            np.vstack([np.column_stack([-rounds.T, need * able]), np.append(np.ones(len(rounds)), 0.0)]),
            np.append(np.zeros(problem.num_jobs), 1.0),
            bounds=[(0, None)] * (len(rounds) + 1),
            method="highs",
        )
        found = allocation.objective_value
        assert found is not None
        value = 1 / found if policy == "min_makespan" else found
        assert value >= -best.fun * (1 - 1e-6)

    @pytest.mark.parametrize(
        ("sizes", "gpus", "together"),
        [
            ([0.6] * 5, 3, 3.0),  # one to a GPU
            ([0.4] * 6, 2, 4.0),  # two to a GPU
            ([0.3] * 9, 2, 6.0),  # three
            ([0.5] * 5, 2, 4.0),  # these fill GPUs
            ([0.75, 0.75, 0.3, 0.3, 0.3], 2, 4.0),  # 0.3 does not fit beside 0.75
            ([0.75, 0.75, 0.25, 0.25], 2, 4.0),  # a quarter does
            ([0.6, 0.6, 0.6, 2], 3, 3.0),  # at times three of 0.6, at times one beside the gang of two
        ],
    )
    def test_what_fits_is_promised_and_no_more(self, sizes: list[float], gpus: int, together: float) -> None:
        problem = on_gpus(sizes, gpus)
        most = gp.solve(replace(problem, throughputs=np.ones_like(problem.throughputs)), "max_total_throughput")
        assert most.time_fractions.sum() == pytest.approx(together)

    def test_many_sizes_on_many_gpus_take_few_programs(self) -> None:
        chance = np.random.default_rng(5)
        problem = on_gpus(chance.choice([0.05, 0.11, 0.23, 0.32, 0.46, 0.47, 0.55, 0.65, 0.81, 1, 2], 500).tolist(), 64)
        allocation = gp.solve(problem)
        assert allocation.route is not None
        assert allocation.route.programs <= 40
        assert fraction_rows(problem, allocation.time_fractions) == []


class TestTraces:
    def trace(self) -> gp.Trace:
        return gp.generate_trace(200, OSDI, jobs_per_hour=10, gang_mix={0.25: 0.3, 0.5: 0.3, 1: 0.2, 4: 0.2}, seed=3)

    def test_a_mix_may_have_parts_of_gpus(self) -> None:
        trace = self.trace()
        assert {repr(s.job.num_gpus) for s in trace} == {"0.25", "0.5", "1", "4"}
        for submission in trace:
            job = submission.job
            assert job.total_steps is not None
            speed = OSDI.throughput(job.job_type, max(1, job.num_gpus), "v100")
            assert submission.run_seconds == pytest.approx(job.total_steps / speed)

    @pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
    def test_files_and_cuts_keep_them(self, form: str, tmp_path: Path) -> None:
        path = tmp_path / f"trace.{form}"
        path.write_text(gp.trace_text(self.trace(), form))
        again = gp.read_trace(path)
        assert again == self.trace()
        for changed in (again, again.scale(2), again.window(first=0), again.sample(200)):
            assert [repr(s.job.num_gpus) for s in changed] == [repr(s.job.num_gpus) for s in again]

    def test_they_are_described(self, tmp_path: Path, gavel: Gavel) -> None:
        trace = self.trace()
        summary = gp.describe_trace(trace)
        assert [repr(gang.num_gpus) for gang in summary.gangs] == ["0.25", "0.5", "1", "4"]
        hours = sum(s.job.num_gpus * (s.run_seconds or 0) for s in trace) / 3600
        assert summary.gpu_hours == pytest.approx(hours)
        assert sum(gang.gpu_hours or 0 for gang in summary.gangs) == pytest.approx(hours)
        path = tmp_path / "trace.csv"
        path.write_text(gp.trace_text(trace))
        table = gavel("trace", "describe", str(path)).out.split("Gangs and durations\n")[1].split("\n\n")[0]
        assert [row.split()[0] for row in table.splitlines()[-4:]] == ["0.25", "0.5", "1", "4"]

    def test_a_size_that_is_none_is_refused(self, gavel: Gavel) -> None:
        with pytest.raises(
            gp.InputError, match=r"gang_mix: a gang must be a whole number of GPUs, or a fraction of one, found 1\.5"
        ):
            gp.generate_trace(5, OSDI, jobs_per_hour=1, gang_mix={1.5: 1.0})
        outcome = gavel("trace", "generate", "--jobs", "9", "--static", "--gangs", "0.5:1")
        assert outcome.code == 0
        assert {line.split(",")[2] for line in outcome.out.splitlines()[1:]} == {"0.5"}

    def test_types_are_drawn_for_them_as_for_one_gpu(self) -> None:
        plain = gp.Trace([gp.Submission(gp.Job("a", num_gpus=0.3), run_seconds=60.0)])
        typed, profile = gp.assign_job_types(plain, OSDI, seed=1, extrapolate=True)
        whole, _ = gp.assign_job_types(plain.on_whole_gpus(), OSDI, seed=1)
        assert profile is OSDI
        assert (typed[0].job.job_type, typed[0].job.total_steps) == (whole[0].job.job_type, whole[0].job.total_steps)

    def test_no_part_of_a_gpu_is_estimated(self) -> None:
        profile = profile_of((0.25, 0.5), (2, 3.5), (4, 6.0))
        assert gp.extend_profile(profile, [0.5]) is profile
        longer = gp.extend_profile(profile, [0.5, 8])
        assert [row.num_gpus for row in longer.rows] == [0.25, 2, 4, 8]
        assert longer.throughput("bert", 8, "v100") == gp.extend_profile(profile_of((2, 3.5), (4, 6.0)), [8]).throughput(
            "bert", 8, "v100"
        )


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        (tmp_path / "jobs.csv").write_text("job_id,job_type,num_gpus\na,bert,0.25\nb,bert,0.333333333333\nc,bert,2\n")
        profile_of((1, 2.0), (2, 3.5)).to_csv(tmp_path / "speeds.csv")
        return [str(tmp_path / "jobs.csv"), "--profile", str(tmp_path / "speeds.csv"), "--cluster", "v100:2"]

    def test_solve_shows_parts_of_gpus(self, files: list[str], gavel: Gavel) -> None:
        shown = gavel("solve", *files).out
        rows = {line.split()[0]: line.split()[4] for line in shown.splitlines() if " bert " in line}
        assert rows == {"a": "0.25", "b": "0.3333", "c": "2"}

    def test_explain_tells_them_as_they_are(self, files: list[str], gavel: Gavel) -> None:
        assert "a (0.25 of a GPU) under max_min_fairness" in gavel("explain", "a", *files).out
        told = [json.loads(gavel("explain", job, *files, "--json").out)["num_gpus"] for job in "ac"]
        assert [repr(gpus) for gpus in told] == ["0.25", "2"]
