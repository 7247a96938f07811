"""Tenants get their GPUs in every round, not only on average."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.scheduling.mechanism.tenants import TenantLedger

Spec = Mapping[str, tuple[int, int]]
"""{tenant: (number of jobs, GPUs of each)}."""


def jobs_of(spec: Spec) -> list[gp.Job]:
    return [gp.Job(f"{name}-{i:03d}", tenant=name, num_gpus=size) for name, (count, size) in spec.items() for i in range(count)]


def scheduler(cluster: str, jobs: list[gp.Job], policy: str | gp.Policy = "hierarchical", **options: Any) -> gp.RoundScheduler:
    """A scheduler for these jobs, each as fast as it has GPUs, which still have to be submitted."""
    speeds = [[float(job.num_gpus)] for job in jobs]
    profile = gp.ThroughputProfile.from_matrix(speeds, job_ids=[job.job_id for job in jobs], accelerators=["g"])
    return gp.RoundScheduler(gp.Cluster.from_inline(cluster), profile, policy=policy, **options)


def played(
    made: gp.RoundScheduler,
    jobs: list[gp.Job],
    rounds: int,
    arrives: Mapping[str, int] | None = None,
    top: Callable[[str], str] = lambda name: name,
) -> list[tuple[int, ...]]:
    """The GPUs of each tenant in each round, tenants sorted; arrives: {tenant: the round in which its jobs arrive}."""
    names, tenant_of, found = sorted({top(job.tenant) for job in jobs}), {job.job_id: job.tenant for job in jobs}, []
    for number in range(rounds):
        made.submit_all([job for job in jobs if (arrives or {}).get(job.tenant, 0) == number])
        held: Counter[str] = Counter()
        for job_id, gang in made.next_round().assignments.items():
            held[top(tenant_of[job_id])] += len(gang.gpus)
        found.append(tuple(held[name] for name in names))
    return found


@pytest.mark.parametrize("count", [30, 100])
def test_equal_tenants_have_equal_numbers_of_gpus_in_every_round(count: int) -> None:
    jobs = jobs_of(dict.fromkeys("abc", (count, 1)))
    assert set(played(scheduler("g:15/3", jobs), jobs, 20)) == {(5, 5, 5)}


def test_weights_hold_in_every_round_but_for_one_gpu() -> None:
    jobs = jobs_of(dict.fromkeys("abc", (30, 1)))
    policy = gp.resolve_policy("hierarchical", tenants={"a": {"weight": 2}, "b": {}, "c": {}})
    rounds = np.array(played(scheduler("g:16/8", jobs, policy), jobs, 60))
    assert np.abs(rounds - [8, 4, 4]).max() <= 1
    assert np.maximum(0, np.array([8, 4, 4]) - rounds).sum() <= 0.01 * rounds.sum()


def test_tenants_above_others_have_their_shares_too() -> None:
    tree = {"x": {"tenants": {f"x{i}": {} for i in range(4)}}, "y": {"tenants": {"y0": {}, "y1": {}}}, "z": {}}
    jobs = jobs_of({**{f"x{i}": (10, 1) for i in range(4)}, "y0": (20, 1), "y1": (20, 1), "z": (40, 1)})
    made = scheduler("g:15/3", jobs, gp.resolve_policy("hierarchical", tenants=tree))
    assert set(played(made, jobs, 20, top=lambda name: name[0])) == {(5, 5, 5)}


def test_a_tenant_that_arrives_has_gpus_in_the_same_round() -> None:
    jobs = jobs_of({"a": (60, 1), "b": (30, 2), "c": (15, 4)})
    rounds = played(scheduler("g:16/8", jobs), jobs, 20, {"a": 0, "b": 3, "c": 6})
    assert [next(i for i, held in enumerate(rounds) if held[k]) for k in range(3)] == [0, 3, 6]
    assert all(all(held) for held in rounds[6:])


def test_whole_gangs_leave_no_tenant_more_than_a_round_behind() -> None:
    """Gangs of 4 cannot have 5⅓ of 16 GPUs in a round; of all choices, 6/6/4 and 4/4/8 come nearest."""
    jobs = jobs_of({"a": (60, 1), "b": (30, 2), "c": (15, 4)})
    rounds = np.array(played(scheduler("g:16/8", jobs), jobs, 40))
    behind = np.cumsum(16 / 3 - rounds, axis=0) / (16 / 3)
    assert rounds.min() > 0
    assert behind.max() <= 1.0
    assert np.maximum(0, 16 / 3 - rounds).sum() <= 0.12 * 16 * 40


@pytest.mark.filterwarnings("ignore:.*has no jobs")
def test_a_guaranteed_quota_is_there_in_every_round_from_arrival_on() -> None:
    jobs = jobs_of({"guaranteed": (20, 1), "others": (40, 1)})
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.Quota("guaranteed", gpus=10)])
    rounds = played(scheduler("g:30/3", jobs, policy), jobs, 20, {"guaranteed": 3})
    assert {held[0] for held in rounds[3:]} == {10}


def test_tenants_with_fractions_of_gpus_share_each_round() -> None:
    jobs = [gp.Job(f"{name}{i:03d}", tenant=name, num_gpus=0.5) for name in "abc" for i in range(20)]
    made = scheduler("g:6/3", jobs)
    made.submit_all(jobs)
    rounds = [Counter(job_id[0] for job_id in made.next_round().assignments) for _ in range(8)]
    assert rounds == [Counter(a=4, b=4, c=4)] * 8


@pytest.mark.parametrize("size", [0.5, 0.25, 0.2])
def test_a_tenant_of_fractions_shares_with_one_of_whole_gpus(size: float) -> None:
    jobs = [gp.Job(f"a{i:02d}", tenant="a", num_gpus=size) for i in range(round(10 / size))] + jobs_of({"b": (10, 1)})
    made = scheduler("g:6/3", jobs)
    made.submit_all(jobs)
    rounds = [Counter(job_id[0] for job_id in made.next_round().assignments) for _ in range(12)]
    assert rounds == [Counter(a=round(3 / size), b=3)] * 12


@pytest.mark.parametrize("size", [1, 0.5, 0.25])
def test_parts_of_gpus_that_gangs_keep_count_for_their_tenant(size: float) -> None:
    """The gangs of `a` may not stop for ten rounds; then those of `b`, which arrived two rounds later."""
    jobs = [gp.Job(f"{name}{i:02d}", tenant=name, num_gpus=size) for name in "ab" for i in range(20)]
    half = round(2 / size)  # of 4 GPUs
    made = scheduler("g:4/4", jobs, "max_min_fairness", min_run_seconds=3600.0)
    made.submit_all(jobs[:half])
    rounds = [made.next_round() for _ in range(2)]
    made.submit_all(jobs[half:])
    rounds += [made.next_round() for _ in range(12)]
    assert [Counter(job_id[0] for job_id in each.assignments) for each in rounds[2:]] == [Counter(a=half, b=half)] * 12


def test_what_a_tenant_is_owed_beyond_a_round_counts_in_full() -> None:
    ledger, of = TenantLedger(), ({"a": 0, "b": 1}, np.array([0, 1]), np.array([2.0, 0.5]))
    ledger.arrange(gp.resolve_policy("hierarchical", tenants={"a": {}, "b": {}}).tenants)
    found = []
    for index in range(4):
        claims = ledger.claims(*of, gpus=np.ones(2))
        assert claims is not None
        found.append(claims.levels[0].claims.tolist())
        ledger.record(*of, received=np.zeros(2), sizes=np.ones(2), index=index, round_seconds=360.0)
    assert found == [[2, 0.5], [2.5, 0.625], [4.5, 0.75], [6.5, 1.25]]


def test_labels_count_under_every_policy() -> None:
    jobs = jobs_of({"a": (10, 1), "b": (20, 1)})
    assert set(played(scheduler("g:15/3", jobs, "max_min_fairness"), jobs, 10)) == {(5, 10)}


def test_one_tenant_is_served_like_none() -> None:
    jobs = jobs_of({"a": (20, 1), "b": (10, 2)})
    alike = [[job.model_copy(update={"tenant": name}) for job in jobs] for name in ("", "a")]
    made = [scheduler("g:15/3", each, "max_min_fairness") for each in alike]
    for each, labelled in zip(made, alike, strict=True):
        each.submit_all(labelled)
    for _ in range(10):
        assert made[0].next_round() == made[1].next_round()


@pytest.mark.parametrize("tree", [{}, {"x": {"tenants": {"a": {}, "b": {}}}, "c": {}}])
def test_accounts_of_tenants_are_saved(tmp_path: Path, tree: dict[str, Any]) -> None:
    jobs = jobs_of({"a": (60, 1), "b": (30, 2), "c": (15, 4)})
    made = scheduler("g:16/8", jobs, gp.resolve_policy("hierarchical", tenants=tree))
    played(made, jobs, 5)
    made.save(tmp_path / "state.json")
    again = gp.RoundScheduler.load(tmp_path / "state.json", made.profile)
    for _ in range(8):
        assert again.next_round() == made.next_round()
    assert again.delivery() == made.delivery()


def test_what_a_failed_node_takes_is_owed_to_the_tenant() -> None:
    """Both of its single GPUs are lost within the round: the next round has no other claim than before, and one account is open."""
    jobs = jobs_of({"a": (8, 1), "b": (8, 1)})
    made = scheduler("g:4/2", jobs)
    played(made, jobs, 1)
    before = made._state.tenant_ledger.received.copy()
    lost = made.node_down("g-0")
    after = made._state.tenant_ledger.received
    assert len(lost) == 2
    assert (before - after).sum() == pytest.approx(2 * made.round_seconds)
