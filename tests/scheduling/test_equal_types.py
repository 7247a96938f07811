"""Jobs on several accelerator types of equal speed: nobody moves for nothing, and everything that was promised stays the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.current_allocation import whole_jobs
from tests.scheduling.support import Fixed
from tests.support.examples import examples

POLICIES = ("max_min_fairness", "max_total_throughput", "hierarchical", "fifo")

PROFILE = gp.ThroughputProfile(
    "equal groups",
    [
        gp.Measurement(job_type=name, num_gpus=gpus, accelerator=accelerator, steps_per_second=speed * gpus)
        for name, speed in (("lm", 10.0), ("resnet", 7.0))
        for gpus in (0.5, 1, 2, 4)
        for accelerator in ("a100", "k80")
    ],
)


def groups(*sizes: int) -> gp.Cluster:
    """Return a cluster of one GPU type in groups of these sizes."""
    names = [f"a100-p{i}" for i in range(len(sizes))]
    nodes = [gp.Node(name=name, accelerator=name, num_gpus=size) for name, size in zip(names, sizes, strict=True)]
    return gp.Cluster(nodes, [gp.AcceleratorType(name=name, profile_name="a100") for name in names])


def scheduler(cluster: gp.Cluster, jobs: int, policy: str | gp.Policy = "max_min_fairness", **options: Any) -> gp.RoundScheduler:
    made = gp.RoundScheduler(cluster, PROFILE, policy, round_seconds=360, **options)
    for i in range(jobs):
        made.submit(gp.Job(f"j{i}", job_type="lm"))
    return made


def restarts(rounds: gp.RoundScheduler, count: int = 40) -> int:
    """Return the number of starts of jobs that had run before."""
    starts = Counter[str]()
    for _ in range(count):
        starts.update(rounds.next_round().started)
    return starts.total() - len(starts)


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_moves_where_all_jobs_fit(policy: str) -> None:
    assert restarts(scheduler(groups(2, 2), 4, policy)) == 0


def test_jobs_that_take_turns_move_no_more_than_in_one_group() -> None:
    assert restarts(scheduler(groups(2, 2), 6)) == restarts(scheduler(groups(4), 6))


def test_nobody_moves_when_others_come_and_go() -> None:
    rounds, moved = scheduler(groups(4, 2, 2), 7), 0
    for i in range(12):
        moved += restarts(rounds, 3)
        rounds.cancel(f"j{i}")
        rounds.submit(gp.Job(f"j{i + 7}", job_type="lm"))
    assert moved == 0


def test_nobody_moves_where_types_differ_in_the_number_of_gpus() -> None:
    speeds = [("b300", 1), ("h200", 2)]
    profile = gp.ThroughputProfile(
        "elastic", [gp.Measurement(job_type="lm", num_gpus=n, accelerator=name, steps_per_second=10.0) for name, n in speeds]
    )
    rounds = gp.RoundScheduler(gp.Cluster.from_counts({"b300": 2, "h200": 4}), profile)
    for i in range(4):
        rounds.submit(gp.Job(f"j{i}", job_type="lm", gpu_counts=(1, 2)))
    assert restarts(rounds) == 0
    held = Counter((each.accelerator, len(each.gpus)) for each in rounds.running.values())
    assert held == {("b300", 1): 2, ("h200", 2): 2}


def test_the_allocation_is_that_of_the_policy_and_deliveries_are_what_rounds_follow() -> None:
    rounds = scheduler(groups(2, 2), 4)
    rounds.next_round()
    allocation = rounds.allocation
    assert allocation is not None
    allocation.verify()
    assert np.allclose(allocation.time_fractions, 0.5)
    for account in rounds.delivery().jobs.values():
        assert sorted(account.promised_by_type.values()) == [0, 360]
        assert account.undelivered_seconds == 0


def test_a_saved_scheduler_continues_with_the_same_rounds(tmp_path: Path) -> None:
    rounds = scheduler(groups(3, 2), 7, solve_seconds=3600)
    rounds.next_round()
    rounds.cancel("j3")
    rounds.next_round()
    rounds.save(tmp_path / "scheduler.json")
    again = gp.RoundScheduler.load(tmp_path / "scheduler.json", PROFILE)
    assert [again.next_round() for _ in range(12)] == [rounds.next_round() for _ in range(12)]


def test_jobs_keep_their_types_while_an_allocation_is_reused() -> None:
    rounds = scheduler(groups(4, 4), 8, solve_seconds=1e6)
    rounds.next_round()
    rounds.cancel("j0")
    rounds.submit(gp.Job("late", job_type="lm"))
    started = Counter(job_id for _ in range(20) for job_id in rounds.next_round().started)
    assert started == {"late": 1}


def problem(jobs: Sequence[gp.Job], cluster: gp.Cluster, profile: gp.ThroughputProfile = PROFILE) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_jobs(jobs, cluster, profile)


def laid(allocation: gp.Allocation, running_on: Sequence[int] | None = None) -> Any:
    count = len(allocation.job_ids)
    found = whole_jobs(allocation, np.arange(count), np.array([-1] * count if running_on is None else running_on))
    assert found is not None
    return found


def test_jobs_that_run_stay_and_others_fill_what_is_left() -> None:
    jobs = [gp.Job(f"j{i}", job_type="lm") for i in range(5)]
    allocation = gp.solve(problem(jobs, groups(2, 2, 1)))
    found = laid(allocation, [1, 0, -1, 1, 1]).time_fractions
    np.testing.assert_allclose(found, np.eye(3)[[1, 0, 2, 1, 0]], atol=1e-6)  # the second group has room for two of the three


def test_a_limit_on_one_group_holds_for_the_tenant_that_it_names() -> None:
    jobs = [gp.Job(f"j{i}", job_type="lm", tenant="ab"[i % 2]) for i in range(8)]
    cluster = groups(4, 4)
    limit = gp.MaxGpus(gpus=1, tenant="a", accelerator="a100-p0")
    allocation = gp.solve(problem(jobs, cluster), constraints=[limit])
    found = laid(allocation).time_fractions
    for tenant in (0, 1):
        np.testing.assert_allclose(found[tenant::2].sum(axis=0), allocation.time_fractions[tenant::2].sum(axis=0), atol=1e-6)
    assert found[0::2, 0].sum() <= 1 + 1e-6


def test_a_limit_on_all_groups_does_not_keep_jobs_apart() -> None:
    jobs = [gp.Job(f"j{i}", job_type="lm", tenant="ab"[i % 2]) for i in range(5)]
    limit = gp.MaxGpus(gpus=3, tenant="a")
    found = laid(gp.solve(problem(jobs, groups(3, 2)), "isolated", constraints=[limit])).time_fractions
    assert ((found > 0).sum(axis=1) == 1).all()


def test_whole_gangs_are_laid_only_where_they_have_room_all_of_the_time() -> None:
    jobs = [gp.Job("large", job_type="lm", num_gpus=4, allowed_accelerators=("a100-p0",))]
    jobs += [gp.Job(f"j{i}", job_type="lm", num_gpus=2) for i in range(4)]
    shares = {"large": {"a100-p0": 0.5}} | {f"j{i}": {"a100-p0": 0.25, "a100-p1": 0.25} for i in range(4)}
    allocation = gp.solve(problem(jobs, groups(4, 4)), Fixed(shares=shares))
    assert whole_jobs(allocation, np.arange(5), np.full(5, -1)) is not None
    shares |= {f"j{i}": {"a100-p0": 0.25, "a100-p1": 0.5} for i in range(4)}
    allocation = gp.solve(problem(jobs, groups(4, 4)), Fixed(shares=shares))
    assert whole_jobs(allocation, np.arange(5), np.full(5, -1)) is None  # a gang with .75 there would have half of the time


def test_spread_and_consolidated_time_stay_what_they_were_on_each_type() -> None:
    """In each group, three gangs of 2 on two nodes of 3 take turns at being spread."""
    speeds = [("consolidated", 2.0), ("spread", 1.0)]
    kind = {"job_type": "lm", "num_gpus": 2, "accelerator": "a100"}
    profile = gp.ThroughputProfile("spread", [gp.Measurement(**kind, placement=p, steps_per_second=v) for p, v in speeds])
    names = ("p0", "p1")
    nodes = [gp.Node(name=f"{name}-{i}", accelerator=name, num_gpus=3) for name in names for i in (0, 1)]
    cluster = gp.Cluster(nodes, [gp.AcceleratorType(name=name, profile_name="a100") for name in names])
    allocation = gp.solve(problem([gp.Job(f"j{i}", job_type="lm", num_gpus=2) for i in range(6)], cluster, profile))
    found, spread = laid(allocation), allocation.spread_fractions
    assert spread is not None
    assert spread.sum() == pytest.approx(2)
    np.testing.assert_allclose(found.spread_fractions.sum(axis=0), spread.sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.spread_fractions.sum(axis=1), spread.sum(axis=1), atol=1e-6)
    assert ((found.time_fractions > 0).sum(axis=1) == 1).all()


def test_jobs_with_partners_keep_their_times() -> None:
    speeds = {"steps_per_second": 8.0, "partner_job_type": "lm", "partner_steps_per_second": 8.0}
    shared = gp.Measurement(job_type="lm", num_gpus=1, accelerator="a100", **speeds)
    alone = [gp.Measurement(job_type=n, num_gpus=1, accelerator="a100", steps_per_second=10.0) for n in ("lm", "resnet")]
    profile = gp.ThroughputProfile("pairs", [*alone, shared])
    jobs = [gp.Job(f"j{i}", job_type="lm") for i in range(5)] + [gp.Job(f"r{i}", job_type="resnet") for i in range(3)]
    allocation = gp.solve(gp.AllocationProblem.from_jobs(jobs, groups(2, 2), profile, sharing=True))
    assert allocation.pairs is not None
    shares = allocation.pairs.by_job(*allocation.time_fractions.shape).any(axis=1)
    assert shares.any()
    found = whole_jobs(allocation, np.arange(8), np.full(8, -1))
    times = allocation.time_fractions if found is None else found.time_fractions
    assert np.array_equal(times[shares], allocation.time_fractions[shares])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[gp.Job], gp.Cluster, str, list[Any]]:
    """Return jobs on one to three groups of a100 and k80, a policy and limits of tenants."""
    cluster = groups(*draw(st.lists(st.integers(1, 6), min_size=2, max_size=3)))
    more = draw(st.integers(0, 4))
    if more:
        nodes = [*cluster.nodes, gp.Node(name="k", accelerator="k80", num_gpus=more)]
        kinds = dict.fromkeys(cluster.accelerator_names, "a100") | {"k80": "k80"}
        cluster = gp.Cluster(nodes, [gp.AcceleratorType(name=name, profile_name=kind) for name, kind in kinds.items()])
    allowed = st.sampled_from([None, None, ("a100-p0",), ("a100-p0", "a100-p1")])
    jobs = [
        gp.Job(
            f"j{i}",
            job_type=draw(st.sampled_from(["lm", "lm", "resnet"])),
            num_gpus=draw(st.sampled_from([0.5, 1, 1, 2, 4])),
            weight=draw(st.sampled_from([1.0, 1.0, 2.5])),
            tenant=draw(st.sampled_from("ab")) if i else "a",
            allowed_accelerators=draw(allowed),
        )
        for i in range(draw(st.integers(2, 14)))
    ]
    limits = [gp.MaxGpus(gpus=draw(st.sampled_from([0.5, 1, 2])), tenant="a", accelerator="a100-p0")] if draw(st.booleans()) else []
    policy = draw(st.sampled_from(["max_min_fairness", "max_total_throughput", "hierarchical", "isolated", "fifo", "proportional"]))
    return jobs, cluster, policy, limits


@pytest.mark.deep
@settings(deadline=None, max_examples=examples(300))
@given(cases(), st.integers(0, 10**6))
def test_all_that_was_promised_stays_the_same(case: tuple[list[gp.Job], gp.Cluster, str, list[Any]], seed: int) -> None:
    jobs, cluster, policy, limits = case
    of = problem(jobs, cluster)
    try:
        allocation, chance = gp.solve(of, policy, constraints=limits), np.random.default_rng(seed)
    except gp.InputError:  # policies without an objective do not keep limits
        return
    running = np.where(of.runnable.any(axis=1), chance.integers(-1, len(of.capacities), len(jobs)), -1)
    found = whole_jobs(allocation, np.arange(len(jobs)), running, lambda: chance.random(of.throughputs.shape))
    if found is None:
        return
    before, after = allocation.time_fractions, found.time_fractions
    assert (after >= 0).all()
    assert (after[before == 0] == 0).all()
    np.testing.assert_allclose(after.sum(axis=1), before.sum(axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((after * of.throughputs).sum(axis=1), allocation.throughputs, rtol=1e-6, atol=1e-9)
    kinds = [(job.num_gpus, job.tenant if limits else "") for job in jobs]
    for kind in set(kinds):
        rows = [each == kind for each in kinds]
        np.testing.assert_allclose(after[rows].sum(axis=0), before[rows].sum(axis=0), atol=1e-5)
    assert (of.num_gpus @ after <= of.capacities + 1e-5).all()
    for limit in limits:
        members = np.array([job.tenant == "a" for job in jobs])
        assert of.num_gpus[members] @ after[members, 0] <= limit.gpus + 1e-5


ELASTIC = gp.ThroughputProfile(
    "elastic",
    [
        gp.Measurement(job_type=job_type, num_gpus=gpus, accelerator=name, steps_per_second=speed)
        for job_type, name, speeds in (
            ("one", "b300", {1: 10.0}),
            ("one", "h200", {2: 10.0, 4: 15.0}),
            ("two", "b300", {1: 7.0, 2: 11.0}),
            ("two", "h200", {1: 3.0, 2: 7.0, 4: 11.0}),
            ("fixed", "b300", {2: 5.0}),
            ("fixed", "h200", {2: 5.0}),
        )
        for gpus, speed in speeds.items()
    ],
)


@pytest.mark.deep
@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.sampled_from(["one", "two", "fixed"]), min_size=1, max_size=11), st.integers(1, 6), st.integers(2, 12))
def test_elastic_jobs_keep_their_time_on_each_number_of_gpus(others: list[str], b300: int, h200: int) -> None:
    names, options = ["one", *others], {"fixed": {"num_gpus": 2}}
    jobs = [gp.Job(f"j{i}", job_type=name, **options.get(name, {"gpu_counts": (1, 2, 4)})) for i, name in enumerate(names)]
    of = problem(jobs, gp.Cluster.from_counts({"b300": b300, "h200": h200}), ELASTIC)
    allocation = gp.solve(of)
    found = whole_jobs(allocation, np.arange(len(jobs)), np.full(len(jobs), -1))
    if found is None:
        return
    before, after = Counter[Any](), Counter[Any]()
    for total, counts in ((before, allocation.counts), (after, found.counts)):
        assert counts is not None
        for i, j, n, time in zip(*(each.tolist() for each in vars(counts).values()), strict=True):
            total["time", j, n] += time
            total["steps", i] += time * ELASTIC.throughput(names[i], n, of.accelerator_types[j])
            total["all", i] += time
    assert before.keys() == after.keys()
    assert all(after[key] == pytest.approx(before[key], abs=1e-5) for key in before)
    fixed = np.array([name == "fixed" for name in names])
    np.testing.assert_allclose(found.time_fractions[fixed].sum(axis=0), allocation.time_fractions[fixed].sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.time_fractions.sum(axis=1), allocation.time_fractions.sum(axis=1), atol=1e-9)
