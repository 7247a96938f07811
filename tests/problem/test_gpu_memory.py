"""GPU memory: no job is given GPUs that hold less than it takes, alone or together with another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.problem.tolerances import INPUT_ROUNDING
from tests.support.examples import examples
from tests.support.fakes import refusal

NAN = float("nan")


def measured(job_type: str, speed: float = 1.0, accelerator: str = "v100", **fields: Any) -> gp.Measurement:
    return gp.Measurement(**{"job_type": job_type, "num_gpus": 1, "accelerator": accelerator, "steps_per_second": speed} | fields)


def cluster(gpus: int = 2, **memory_gb: float | None) -> gp.Cluster:
    """One node of each type."""
    kinds = [gp.AcceleratorType(name=name, memory_gb=size) for name, size in memory_gb.items()]
    return gp.Cluster([gp.Node(name=f"{name}-0", accelerator=name, num_gpus=gpus) for name in memory_gb], kinds)


def runs_on(problem: gp.AllocationProblem) -> dict[str, list[str]]:
    names = np.array(problem.accelerator_types)
    return {job_id: names[row].tolist() for job_id, row in zip(problem.job_ids, problem.runnable, strict=True)}


PROFILE = gp.ThroughputProfile(
    "lab",
    [
        measured("small", 1, "v100", gpu_memory_gb=4),
        measured("small", 1, "a100"),
        measured("large", 1, "a100", gpu_memory_gb=30),
        measured("any", 1, "v100"),
        measured("any", 1, "a100"),
    ],
)
BOTH = {"v100": 16.0, "a100": 40.0}


class TestAlone:
    def test_jobs_run_where_they_fit_by_profile_or_own_field(self) -> None:
        jobs = [
            gp.Job("small", job_type="small"),
            gp.Job("large", job_type="large"),  # needs no measurement on v100, where it does not fit
            gp.Job("any", job_type="any"),
            gp.Job("said", job_type="any", gpu_memory_gb=17),
            gp.Job("full", job_type="any", gpu_memory_gb=16),
            gp.Job("other", job_type="small", gpu_memory_gb=20),
        ]
        problem = gp.AllocationProblem.from_jobs(jobs, cluster(**BOTH), PROFILE)
        both, one = ["v100", "a100"], ["a100"]
        assert runs_on(problem) == {"small": both, "large": one, "any": both, "said": one, "full": both, "other": one}
        fractions = gp.solve(problem).time_fractions
        assert not fractions[[1, 3, 5], 0].any()

    def test_unknown_memory_limits_nothing(self) -> None:
        job = gp.Job("a", job_type="any", gpu_memory_gb=1000)
        assert runs_on(gp.AllocationProblem.from_jobs([job], cluster(v100=None, a100=40), PROFILE)) == {"a": ["v100"]}

    def test_the_figure_of_another_accelerator_stands_for_one_that_was_not_measured(self) -> None:
        assert [PROFILE.gpu_memory_gb("small", 1, name) for name in ("v100", "a100", "t4")] == [4, 4, 4]
        assert PROFILE.gpu_memory_gb("small", 2, "v100") is None
        rows = [measured("a", gpu_memory_gb=5), measured("a", placement="spread", gpu_memory_gb=6), measured("a", 1, "t4")]
        more = gp.ThroughputProfile("more", [*rows, measured("a", 1, "k80", gpu_memory_gb=3)])
        known = more.memory_matrix([gp.Job("x", job_type="a"), gp.Job("y", job_type="b")], ["v100", "t4", "k80"])
        np.testing.assert_array_equal(known, [[6, 6, 3], [NAN, NAN, NAN]])
        assert gp.ThroughputProfile.builtin("gavel-osdi20").memory_matrix([gp.Job("x", job_type="A3C")], ["v100"]) is None

    @pytest.mark.parametrize(
        ("job", "reason"),
        [
            (
                {"job_type": "any", "gpu_memory_gb": 80},
                "its 80 GB per GPU exceed the memory of every type on which it could run (v100: 16 GB, a100: 40 GB)",
            ),
            (
                {"job_type": "large", "gpu_memory_gb": 80},  # was not measured on v100
                "its 80 GB per GPU exceed the memory of every type on which it could run (a100: 40 GB)",
            ),
            (
                {"job_type": "any", "gpu_memory_gb": 20, "allowed_accelerators": ("v100",)},
                "its 20 GB per GPU exceed the memory of every type on which it could run (v100: 16 GB)",
            ),
            (
                {"job_type": "apart"},
                "its memory per GPU exceeds that of every type on which it could run (v100: 17 of 16 GB, a100: 41 of 40 GB)",
            ),
            ({"job_type": "zero"}, "its throughput is 0 on every accelerator type with enough memory for it"),
            (
                {"job_type": "any", "num_gpus": 4, "gpu_memory_gb": 80},
                "its gang of 4 GPUs fits nowhere (largest gang that fits: v100: 2, a100: 2)",
            ),
        ],
    )
    def test_jobs_that_fit_nowhere_are_excluded_with_the_reason(self, job: dict[str, Any], reason: str) -> None:
        more = [measured("apart", 1, "v100", gpu_memory_gb=17), measured("apart", 1, "a100", gpu_memory_gb=41)]
        more += [measured("zero", 0, "a100", gpu_memory_gb=20)]
        profile = gp.ThroughputProfile("more", [*PROFILE.measurements, *more])
        problem = gp.AllocationProblem.from_jobs([gp.Job("a", **job), gp.Job("b", job_type="any")], cluster(**BOTH), profile)
        assert problem.excluded == {"a": reason}

    def test_more_gpus_of_a_type_are_no_larger(self) -> None:
        problem = gp.AllocationProblem.from_jobs([gp.Job("a", job_type="any", gpu_memory_gb=20)], cluster(**BOTH), PROFILE)
        assert runs_on(problem.with_capacities([8, 8])) == {"a": ["a100"]}

    def test_types_that_become_one_have_the_memory_of_the_smallest(self) -> None:
        made = cluster(v32=32, v16=16, unknown=None, other=8).renamed({"v32": "v100", "v16": "v100", "unknown": "v100"})
        assert made.gpu_memory_gb.tolist() == [16, 8]

    def test_a_matrix_of_throughputs_leaves_it_to_the_jobs(self) -> None:
        speeds = gp.ThroughputProfile.from_matrix([[1, 1], [1, 1]], job_ids=["a", "b"], accelerators=["v100", "a100"])
        jobs = [gp.Job("a", gpu_memory_gb=17), gp.Job("b")]
        assert runs_on(gp.AllocationProblem.from_jobs(jobs, cluster(**BOTH), speeds)) == {"a": ["a100"], "b": ["v100", "a100"]}

    @pytest.mark.parametrize("size", [0, -1, "much", NAN])
    def test_a_size_is_above_0(self, size: object) -> None:
        assert refusal(gp.Job, "a", gpu_memory_gb=size).startswith("job 'a', field gpu_memory_gb: must be ")

    def test_a_pair_takes_what_its_jobs_take(self) -> None:
        fields = {"partner_job_type": "b", "partner_steps_per_second": 1.0, "gpu_memory_gb": 3}
        assert "give it where the gang runs alone, not for a pair" in refusal(measured, "a", **fields)


def pair(one: str, other: str, accelerator: str = "v100") -> gp.Measurement:
    return measured(one, 0.9, accelerator, partner_job_type=other, partner_steps_per_second=0.9)


def sharing(memory_gb: Mapping[str, float | None], there: float | None, **own: float) -> set[tuple[str, str]]:
    """Return the pairs that may share, of two jobs of each of these types; own: gpu_memory_gb of single jobs."""
    names = sorted(memory_gb)
    alone = [measured(name, gpu_memory_gb=size) for name, size in memory_gb.items()]
    pairs = [pair(a, b) for a in names for b in names if a <= b]
    profile = gp.ThroughputProfile("lab", [*alone, *pairs])
    jobs = [gp.Job(f"{name}{i}", job_type=name, gpu_memory_gb=own.get(f"{name}{i}")) for name in names for i in (1, 2)]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster(1, v100=there), profile, sharing=True)
    assert problem.pairs is not None
    ids, kinds, useful = problem.job_ids, problem.pairs.kinds, problem.pairs.useful
    return {(ids[i], ids[k]) for i in range(len(ids)) for k in range(i) if useful[kinds[i], kinds[k], 0]}


class TestTogether:
    def test_pairs_share_gpus_that_fit_both_or_have_unknown_memory(self) -> None:
        inside = {("a2", "a1"), ("b1", "a1"), ("b1", "a2"), ("b2", "a1"), ("b2", "a2")}
        assert sharing({"a": 6.0, "b": 10.0}, 16) == inside
        assert sharing({"a": 6.0, "b": 10.0}, 15.9) == {("a2", "a1")}
        assert sharing({"a": 6.0, "b": 10.0}, None) == {*inside, ("b2", "b1")}
        assert sharing({"a": 6.0, "b": None}, 16) == {*inside, ("b2", "b1")}
        assert sharing({"a": 5.3, "b": 10.7}, 16) == inside  # whatever the sum of two floats is

    def test_jobs_of_one_type_may_take_different_amounts(self) -> None:
        assert sharing({"a": 10.0}, 16) == set()
        assert sharing({"a": 10.0}, 16, a2=6) == {("a2", "a1")}

    def test_what_was_measured_together_does_not_share_where_it_does_not_fit(self) -> None:
        profile = gp.ThroughputProfile("lab", [measured("a", gpu_memory_gb=9), pair("a", "a")])
        jobs = [gp.Job("1", job_type="a"), gp.Job("2", job_type="a")]
        small, large = (gp.AllocationProblem.from_jobs(jobs, cluster(1, v100=s), profile, sharing=True) for s in (16, 18))
        assert gp.solve(small).throughputs == pytest.approx([0.5, 0.5])
        assert gp.solve(large).throughputs == pytest.approx([0.9, 0.9])

    def test_sizes_that_change_nothing_make_no_further_kinds(self) -> None:
        profile = gp.ThroughputProfile("lab", [measured("a"), pair("a", "a")])
        jobs = [gp.Job(str(i), job_type="a", gpu_memory_gb=1 + i / 10) for i in range(20)]
        problem = gp.AllocationProblem.from_jobs(jobs, cluster(1, v100=16), profile, sharing=True)
        assert problem.pairs is not None
        assert set(problem.pairs.kinds.tolist()) == {0}


SIZES = st.sampled_from([NAN, 1.0, 3.0, 5.3, 8.0, 10.7, 16.0, 30.0])


@settings(max_examples=examples(200))
@given(data=st.data(), jobs=st.integers(1, 7), types=st.integers(1, 3))
def test_equal_company_is_company_of_the_same_jobs(data: st.DataObject, jobs: int, types: int) -> None:
    needed = np.array(data.draw(st.lists(st.lists(SIZES, min_size=types, max_size=types), min_size=jobs, max_size=jobs)))
    there = np.array(data.draw(st.lists(st.sampled_from([NAN, 8.0, 16.0, 40.0]), min_size=types, max_size=types)))
    memory = GpuMemory(needed, there)
    together = memory.together(np.arange(jobs))
    for i in range(jobs):
        for j in range(types):
            assert memory.fits[i, j] == (not needed[i, j] > there[j])
            for k in range(jobs):
                both = np.nansum([needed[i, j], needed[k, j]])
                assert together[i, k, j] == (not both > there[j] + 1e-6)
                if memory.num_compatible[i, j] == memory.num_compatible[k, j]:
                    assert (together[i, :, j] == together[k, :, j]).all()


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.sampled_from([None, 4.0, 8.0, 12.0, 20.0]), min_size=2, max_size=6),
    kinds=st.lists(st.sampled_from("abc"), min_size=6, max_size=6),
    gpus=st.integers(1, 3),
    policy=st.sampled_from(["max_min_fairness", "max_total_throughput", "min_makespan"]),
)
def test_no_pair_of_an_allocation_takes_more_than_there_is(
    sizes: list[float | None], kinds: list[str], gpus: int, policy: str
) -> None:
    types = {"v100": 16.0, "k80": 12.0, "big": None}
    pairs = [pair(a, b, name) for a in "abc" for b in "abc" if a <= b for name in types]
    alone = [measured(kind, 1, name, gpu_memory_gb=7 if kind == "c" else None) for kind in "abc" for name in types]
    profile = gp.ThroughputProfile("lab", [*alone, *pairs])
    jobs = [
        gp.Job(str(i), job_type=kinds[i], gpu_memory_gb=size, total_steps=10.0 + i, allowed_accelerators=("v100", "k80"))
        for i, size in enumerate(sizes)
    ]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster(gpus, **types), profile, sharing=True)
    if len(problem.excluded) == len(jobs):
        return
    allocation = gp.solve(problem, policy)
    takes = [size or (7.0 if kinds[i] == "c" else 0.0) for i, size in enumerate(sizes)]
    there = [types[name] or np.inf for name in allocation.accelerator_types]
    for i, j in np.argwhere(allocation.time_fractions > 0).tolist():
        assert takes[i] <= there[j]
    if allocation.pairs is not None:
        for one, other, j in zip(allocation.pairs.first, allocation.pairs.second, allocation.pairs.types, strict=True):
            assert takes[one] + takes[other] <= there[j]


TAKES = {"any": None, "small": 4.0, "large": 15.0}
"""GPU memory, GB, of job types in the profile."""


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Job]:
    """Jobs of these types, some with their own gpu_memory_gb."""
    return [
        gp.Job(
            str(i),
            job_type=draw(st.sampled_from(list(TAKES))),
            num_gpus=draw(st.sampled_from([1, 1, 2])),
            gpu_memory_gb=draw(st.sampled_from([None, 2.0, 8.0, 14.0, 30.0])),
            total_steps=draw(st.sampled_from([50.0, 400.0])),
            arrival_seconds=10.0 * i,
        )
        for i in range(draw(st.integers(1, 7)))
    ]


@settings(max_examples=examples(25))
@given(
    jobs=traces(),
    policy=st.sampled_from(["max_min_fairness", "max_total_throughput", "gandiva", "fifo", "isolated"]),
    mechanism=st.sampled_from(["deficit", "priority"]),
    shared=st.booleans(),
)
def test_in_a_simulation_no_gpu_has_less_than_its_jobs_take(jobs: list[gp.Job], policy: str, mechanism: Any, shared: bool) -> None:
    there, speeds = {"v100": 16.0, "k80": 12.0, "a100": 40.0}, {"v100": 2.0, "k80": 1.0, "a100": 4.0}
    alone = [
        measured(kind, speed, name, num_gpus=gang, gpu_memory_gb=size)
        for kind, size in TAKES.items()
        for name, speed in speeds.items()
        for gang in (1, 2)
    ]
    pairs = [
        measured(a, 0.8 * speed, name, num_gpus=gang, partner_job_type=b, partner_steps_per_second=0.8 * speed)
        for a in TAKES
        for b in TAKES
        for name, speed in speeds.items()
        for gang in (1, 2)
        if a <= b
    ]
    takes = {job.job_id: job.gpu_memory_gb or TAKES[job.job_type] or 0.0 for job in jobs}
    shares = shared and policy not in ("fifo", "isolated")
    options: dict[str, Any] = {"round_seconds": 60, "mechanism": mechanism, "sharing": shares}
    rounds: list[gp.Round] = []
    profile = gp.ThroughputProfile("lab", alone + pairs)
    result = gp.simulate(jobs, cluster(2, **there), profile, policy, **options, on_round=rounds.append)
    assert all(job.outcome is gp.Outcome.FINISHED for job in result.jobs.values())
    for each in rounds:
        used: Counter[tuple[str, int]] = Counter()
        for job_id, held in each.assignments.items():
            used.update(dict.fromkeys(held.gpus, takes[job_id]))  # type: ignore[arg-type]
        assert all(used[gpu] <= there[held.accelerator] for held in each.assignments.values() for gpu in held.gpus)


def test_a_scheduler_is_not_loaded_with_a_profile_by_which_its_jobs_do_not_fit(tmp_path: Path) -> None:
    speeds = [measured("a", 4.0, "v100"), measured("a", 1.0, "a100")]
    before = gp.ThroughputProfile("lab", speeds)
    made = gp.RoundScheduler(cluster(**BOTH), before, "max_total_throughput")
    made.submit(gp.Job("1", job_type="a"))
    assert made.next_round().assignments["1"].accelerator == "v100"
    path = tmp_path / "state.json"
    made.save(path)
    fits, exceeds = (
        gp.ThroughputProfile("lab", [each.model_copy(update={"gpu_memory_gb": size}) for each in speeds]) for size in (16.0, 20.0)
    )
    assert gp.RoundScheduler.load(path, fits).next_round().assignments["1"].accelerator == "v100"
    assert refusal(gp.RoundScheduler.load, path, exceeds) == (
        f"{path}: was written when job '1' could run on 'v100', where it does not fit according to profile 'lab'; "
        "pass the profile that the scheduler used"
    )


def test_company_that_fits_exactly_counts() -> None:
    """Sums of up to the capacity with its tolerance, to the last bit: what counts the company agrees with what finds it."""
    limit = 16.0 * (1 + INPUT_ROUNDING)
    memory = GpuMemory(np.array([[8.0], [limit - 8.0], [9.0]]), np.array([16.0]))
    assert memory.num_compatible[:, 0].tolist() == [2, 1, 0]
    assert memory.together(np.arange(3))[:, :, 0].sum(axis=1).tolist() == [2, 1, 0]
