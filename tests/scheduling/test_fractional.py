"""Rounds of jobs that ask for parts of GPUs: packed onto one each, and no GPU given away more than once."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.scheduling.support import Fixed
from tests.support.examples import examples
from tests.support.profiles import OSDI

TYPES = {"v100": 16.0, "p100": 12.0, "k80": 12.0}
KINDS = ("ResNet-18 (batch size 64)", "LM (batch size 80)", "A3C")
PARTS = (0.1, 0.25, 1 / 3, 0.5, 0.6, 0.9, 1, 2)


def cluster_of(nodes: list[str], gpus: int = 2) -> gp.Cluster:
    kinds = [gp.AcceleratorType(name=name, memory_gb=memory) for name, memory in TYPES.items() if name in nodes]
    return gp.Cluster([gp.Node(name=f"{t}-{n}", accelerator=t, num_gpus=gpus, cpus=8) for n, t in enumerate(nodes)], kinds)


def check_gpus(begun: gp.Round, jobs: dict[str, gp.Job]) -> None:
    """No GPU gives more than itself and its memory, no node more than its CPUs; a part is on one GPU."""
    used, memory, cpus = defaultdict(float), defaultdict(float), defaultdict(float)
    for job_id, held in begun.assignments.items():
        job = jobs[job_id]
        assert len(held.gpus) == max(1, job.num_gpus)
        assert held.gpu_part == min(1, job.num_gpus)
        for gpu in held.gpus:
            used[gpu] += held.gpu_share / len(held.gpus)
            memory[held.accelerator, gpu] += job.gpu_memory_gb or 0.0
            cpus[gpu[0]] += job.cpus_per_gpu * held.gpu_part
        assert all(begun.assignments[other].gpus == held.gpus for other in held.shared_with)
    assert all(part <= 1 + 1e-9 for part in used.values())
    assert all(taken <= TYPES[name] + 1e-9 for (name, _), taken in memory.items())
    assert all(taken <= 8 + 1e-9 for taken in cpus.values())


jobs_drawn = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(PARTS), st.sampled_from([None, 2.0, 7.0]), st.sampled_from([0.0, 3.0])),
    min_size=1,
    max_size=14,
)


def job_list(drawn: list[tuple[str, float, float | None, float]]) -> list[gp.Job]:
    return [
        gp.Job(f"j{n}", job_type=kind, num_gpus=part, gpu_memory_gb=memory, cpus_per_gpu=cpus)
        for n, (kind, part, memory, cpus) in enumerate(drawn)
        if part < 2 or OSDI.has(kind, 2, "v100")
    ]


@given(jobs_drawn, st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3), st.booleans(), st.data())
@settings(max_examples=examples(25, costly=True), suppress_health_check=[HealthCheck.too_slow])
def test_no_gpu_gives_more_than_it_has(
    drawn: list[tuple[str, float, float | None, float]], nodes: list[str], sharing: bool, data: st.DataObject
) -> None:
    jobs = {job.job_id: job for job in job_list(drawn)}
    policy = data.draw(st.sampled_from(["max_min_fairness", "max_total_throughput"] + ["fifo"] * (not sharing)))
    scheduler = gp.RoundScheduler(cluster_of(nodes), OSDI, policy, sharing=sharing)
    for job in jobs.values():
        scheduler.submit(job)
    for _ in range(4):
        check_gpus(scheduler.next_round(), jobs)
        left = sorted(job.job_id for job in scheduler.jobs)
        if len(left) > 1 and data.draw(st.booleans()):
            scheduler.complete(data.draw(st.sampled_from(left)))


def played(jobs: list[gp.Job], rounds: int = 4, **options: object) -> list[gp.Round]:
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), OSDI, **options)
    for job in jobs:
        scheduler.submit(job)
    return [scheduler.next_round() for _ in range(rounds)]


def test_parts_that_fit_one_gpu_have_it_together_and_stay() -> None:
    jobs = [gp.Job(job_id, job_type="A3C", num_gpus=part) for job_id, part in (("a", 0.5), ("b", 0.25), ("c", 0.25))]
    first, *later = played(jobs)
    assert {job_id: held.shared_with for job_id, held in first.assignments.items()} == {
        "a": ("b", "c"),
        "b": ("a", "c"),
        "c": ("a", "b"),
    }
    assert [held.gpu_share for held in first.assignments.values()] == [0.5, 0.25, 0.25]
    assert all(begun.kept == ("a", "b", "c") for begun in later)


def test_ten_tenths_are_a_gpu() -> None:
    (begun,) = played([gp.Job(f"j{n}", job_type="A3C", num_gpus=0.1) for n in range(10)], 1)
    assert len(begun.assignments) == 10


def test_parts_that_do_not_fit_one_gpu_take_turns() -> None:
    rounds = played([gp.Job(job_id, job_type="A3C", num_gpus=0.6) for job_id in "ab"], 12)
    assert all(len(begun.assignments) == 1 for begun in rounds)
    assert {job_id for begun in rounds for job_id in begun.assignments} == {"a", "b"}


def test_jobs_without_a_claim_fill_idle_parts() -> None:
    """FIFO without backfill gives the GPU to the first; with idle parts of it, later jobs come along only where it backfills."""
    jobs = [gp.Job("a", job_type="A3C", num_gpus=0.5), gp.Job("b", job_type="A3C"), gp.Job("c", job_type="A3C", num_gpus=0.5)]
    (strict,) = played(jobs, 1, policy="fifo")
    assert sorted(strict.assignments) == ["a"]
    (filled,) = played(jobs, 1, policy="max_total_throughput")
    assert sum(held.gpu_share for held in filled.assignments.values()) == 1.0


def test_a_job_that_changes_its_type_does_not_separate_those_that_run_there() -> None:
    """It has the largest claim, and half of their GPU would suffice for it: they stay together on theirs, and it gets another."""
    shares = {"a": {"k80": 0.25}, "b": {"k80": 0.25}, "c": {"v100": 1.0}}
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1, "k80": 2}), OSDI, Fixed(shares=shares))
    for job_id in "abc":
        scheduler.submit(gp.Job(job_id, job_type="A3C", num_gpus=0.5))
    for _ in range(12):  # a and b get more than promised: their claims fall
        before = scheduler.next_round()
    assert before.kept == ("a", "b", "c")
    assert before.assignments["a"].shared_with == ("b",)
    shares["c"] = {"k80": 1.0}
    scheduler.submit(gp.Job("d", job_type="A3C"))  # an event, which makes the policy decide again
    after = scheduler.next_round()
    assert after.assignments["c"].accelerator == "k80"
    assert after.kept == ("a", "b")
    assert after.assignments["a"].shared_with == ("b",)


def test_a_saved_scheduler_packs_the_same(tmp_path: object) -> None:
    jobs = [gp.Job(f"j{n}", job_type=KINDS[n % 3], num_gpus=PARTS[n % 7]) for n in range(14)]
    scheduler = gp.RoundScheduler(cluster_of(["v100", "k80"]), OSDI)
    for job in jobs:
        scheduler.submit(job)
    for _ in range(3):
        scheduler.next_round()
    path = f"{tmp_path}/state"
    scheduler.save(path)
    again = gp.RoundScheduler.load(path, OSDI)
    for _ in range(3):
        assert again.next_round().to_dict() == scheduler.next_round().to_dict()


@pytest.mark.parametrize(("interference", "seconds"), [(0.0, 100.0), (0.2, 125.0)])
def test_each_other_job_on_a_gpu_costs_its_part_of_the_speed(interference: float, seconds: float) -> None:
    profile = gp.ThroughputProfile("p", [gp.Measurement(job_type="A", num_gpus=1, accelerator="v100", steps_per_second=10.0)])
    trace = [gp.Job(job_id, job_type="A", num_gpus=0.5, total_steps=1000) for job_id in "ab"]
    result = gp.simulate(trace, gp.Cluster.from_counts({"v100": 1}), profile, interference=interference)
    assert [job.jct_seconds for job in result.jobs.values()] == pytest.approx([seconds] * 2)
    assert result.summary.usage["v100"]["used"] == pytest.approx(seconds)
    assert [job.gpu_seconds for job in result.jobs.values()] == pytest.approx([seconds / 2] * 2)
