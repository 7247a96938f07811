"""Rounds of jobs that ask for parts of GPUs: packed onto one each, no GPU given away more than once, and no room left unused."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.scheduling.support import Fixed
from tests.support.examples import examples, seeds
from tests.support.profiles import OSDI

TYPES = {"v100": 16.0, "p100": 12.0, "k80": 12.0}
KINDS = ("ResNet-18 (batch size 64)", "LM (batch size 80)", "A3C")
SPEEDS = gp.ThroughputProfile(
    "any", [gp.Measurement(job_type="any", num_gpus=gpus, accelerator="v100", steps_per_second=1.0 * gpus) for gpus in (1, 2, 3)]
)
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


def waiting(sizes: list[float], gpus: int, rounds: int) -> list[set[str]]:
    """The jobs that wait in each round; after each, no waiting job has room, and no GPU gives more than itself."""
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": gpus}), SPEEDS)
    for n, size in enumerate(sizes):
        scheduler.submit(gp.Job(f"j{n:03d}", job_type="any", num_gpus=size))
    return [check_room(scheduler.next_round(), scheduler) for _ in range(rounds)]


def check_room(begun: gp.Round, scheduler: gp.RoundScheduler) -> set[str]:
    """Check that no job waits beside GPUs that could hold it; return those that wait."""
    free = {(node.name, n): 1.0 for node in scheduler.cluster.nodes for n in range(node.num_gpus)}
    jobs = {job.job_id: job.num_gpus for job in scheduler.jobs}
    for job_id, held in begun.assignments.items():
        for gpu in held.gpus:
            free[gpu] -= min(1, jobs[job_id])
    assert min(free.values()) >= -1e-9
    waits = jobs.keys() - begun.assignments.keys()
    idle = sum(left > 1 - 1e-9 for left in free.values())
    assert all(jobs[job] > (idle if jobs[job] >= 1 else max(free.values()) + 1e-9) for job in waits)
    return waits


@pytest.mark.parametrize(
    ("size", "number", "gpus", "at_once"), [(0.5, 3, 1, 2), (0.3, 5, 1, 3), (0.05, 21, 1, 20), (0.18, 26, 5, 25), (0.6, 4, 3, 3)]
)
def test_equal_fractions_take_the_turns_of_whole_gpus(size: float, number: int, gpus: int, at_once: int) -> None:
    """As many wait in each round, and none longer."""
    fractions, whole = waiting([size] * number, gpus, 40), waiting([1] * number, at_once, 40)
    assert [len(waits) for waits in fractions] == [len(waits) for waits in whole]
    assert longest(fractions) <= longest(whole)


def longest(waits: list[set[str]]) -> int:
    """The largest number of rounds in a row in which a job waits."""
    gaps: dict[str, int] = {}
    most = 0
    for each in waits:
        gaps = {job: gaps.get(job, 0) + 1 for job in each}
        most = max(most, *gaps.values(), 0)
    return most


def test_fractions_of_mixed_sizes_receive_what_packings_deliver() -> None:
    """The promise is the largest that packings can deliver, so nearly every round must be one of the best packings."""
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 2}), SPEEDS)
    for n, size in enumerate((0.3, 0.3, 0.5, 0.5, 0.7, 0.2, 0.2, 0.9)):
        scheduler.submit(gp.Job(f"j{n}", job_type="any", num_gpus=size))
    for _ in range(60):
        check_room(scheduler.next_round(), scheduler)
    report = scheduler.delivery()
    assert report.undelivered_share < 0.03
    assert report.most_rounds_behind <= 3


rooms_drawn = st.lists(st.sampled_from([0.05, 0.18, 0.25, 0.3, 1 / 3, 0.5, 0.6, 0.7, 0.9, 1, 2, 3]), min_size=1, max_size=16)


@given(rooms_drawn, st.integers(1, 5), st.data())
@settings(max_examples=examples(40, costly=True), suppress_health_check=[HealthCheck.too_slow])
def test_no_job_waits_beside_room_while_jobs_come_and_go(sizes: list[float], gpus: int, data: st.DataObject) -> None:
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": gpus}), SPEEDS)
    for n, size in enumerate(sizes):
        scheduler.submit(gp.Job(f"j{n:03d}", job_type="any", num_gpus=min(size, gpus)))
    for n in range(8):
        check_room(scheduler.next_round(), scheduler)
        present = sorted(job.job_id for job in scheduler.jobs)
        if len(present) > 1 and data.draw(st.booleans()):
            scheduler.complete(data.draw(st.sampled_from(present)))
            scheduler.submit(gp.Job(f"k{n:03d}", job_type="any", num_gpus=min(data.draw(st.sampled_from([0.3, 0.7, 1])), gpus)))


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.deep
def test_what_is_owed_stays_small_over_long_histories(seed: int) -> None:
    """In 300 rounds with arrivals and departures, jobs of mixed sizes are never more than a few rounds behind."""
    chance, job = np.random.default_rng(seed), count()
    gpus = int(chance.integers(1, 6))
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": gpus}), SPEEDS)

    def submit() -> None:
        size = chance.choice([0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1, min(2, gpus)])
        scheduler.submit(gp.Job(f"j{next(job):03d}", job_type="any", num_gpus=float(size)))

    for _ in range(3 * gpus + 3):
        submit()
    for _ in range(300):
        check_room(scheduler.next_round(), scheduler)
        if chance.random() < 0.1:
            scheduler.complete(str(chance.choice(sorted(job.job_id for job in scheduler.jobs))))
            submit()
    report = scheduler.delivery()
    assert report.undelivered_share < 0.03
    assert report.most_rounds_behind < 8


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
