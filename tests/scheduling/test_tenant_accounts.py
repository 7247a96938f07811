"""What tenants were promised and have received: the accounts in the report, their bound, and their sums."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.mechanism.tenants import least_tenant_shortfall
from tests.scheduling.test_elastic_rounds import PROFILE
from tests.scheduling.test_tenants import jobs_of, played, scheduler
from tests.support.examples import examples

ROUND = 360.0
TREE = {"x": {"tenants": {"x0": {}, "x1": {"weight": 2}}}, "y": {}}


def test_a_tenant_that_arrives_later_has_its_first_round_then_and_is_promised_nothing_before() -> None:
    jobs = jobs_of({"a": (60, 1), "b": (30, 2), "c": (15, 4)})
    made = scheduler("g:16/8", jobs)
    rounds = np.array(played(made, jobs, 20, {"a": 0, "b": 3, "c": 6}))
    report = made.delivery()
    assert [each.first_round for each in report.tenants.values()] == [0, 3, 6]
    promised = {"a": 3 * 16 + 3 * 8 + 14 * 16 / 3, "b": 3 * 8 + 14 * 16 / 3, "c": 14 * 16 / 3}
    for (name, each), got in zip(report.tenants.items(), rounds.sum(axis=0), strict=True):
        assert each.promised_gpu_seconds == pytest.approx(promised[name] * ROUND)
        assert each.delivered_gpu_seconds == got * ROUND
        assert each.undelivered_gpu_seconds == pytest.approx(max(0.0, promised[name] - got) * ROUND, abs=1e-6)
        assert each.rounds_behind == pytest.approx(each.undelivered_gpu_seconds / ROUND / (16 / 3))
    assert 0 < report.least_tenant_undelivered_gpu_seconds <= report.tenant_undelivered_gpu_seconds


def test_tenants_above_others_have_the_sums_of_those_below() -> None:
    jobs = jobs_of({"x0": (10, 1), "x1": (10, 1), "y": (20, 1)})
    made = scheduler("g:6/3", jobs, gp.resolve_policy("hierarchical", tenants=TREE))
    played(made, jobs, 7)
    found = made.delivery().tenants
    assert {name: each.parent for name, each in found.items()} == {"x": None, "x0": "x", "x1": "x", "y": None}
    for field in ("promised_gpu_seconds", "delivered_gpu_seconds"):
        x, x0, x1, y = (getattr(found[name], field) for name in ("x", "x0", "x1", "y"))
        assert x == pytest.approx(x0 + x1)
        assert x + y == pytest.approx(7 * 6 * ROUND)


def test_a_report_without_tenants_says_nothing_of_them() -> None:
    jobs = [job.model_copy(update={"tenant": ""}) for job in jobs_of({"a": (3, 1)})]
    made = scheduler("g:2", jobs)
    made.submit_all(jobs)
    made.next_round()
    assert made.delivery().tenants == {}
    assert not [key for key in made.delivery().to_dict() if "tenant" in key]


def test_accounts_outlive_the_jobs_and_the_process(tmp_path: Path) -> None:
    jobs = jobs_of({"a": (4, 1), "b": (2, 2)})
    made = scheduler("g:3", jobs)
    played(made, jobs, 3)
    before = made.delivery().tenants
    made.save(tmp_path / "state.json")
    assert gp.RoundScheduler.load(tmp_path / "state.json", made.profile).delivery() == made.delivery()
    for job in jobs:
        made.cancel(job.job_id)
    made.next_round()
    made.forget(*(job.job_id for job in jobs))
    assert made.delivery().tenants == before
    assert made.delivery().least_tenant_undelivered_gpu_seconds == 0.0


def gangs(chance: np.random.Generator, kind: Mapping[str, Any]) -> list[gp.Job]:
    """Gangs, a third of them of this kind; some without a tenant."""
    kinds: list[Any] = [{}, {"num_gpus": 2}, {"num_gpus": 4}, kind, kind]
    tenants = ["x0", "x1", "y", ""]
    return [
        gp.Job(f"j{i}", job_type="resnet", tenant=tenants[chance.integers(4)], total_steps=1e9, **kinds[chance.integers(5)])
        for i in range(16)
    ]


class History:
    """A random course of rounds, and the GPU-seconds that jobs held in them, counted from the GPUs that calls return."""

    def __init__(self, jobs: list[gp.Job], policy: gp.Policy, chance: np.random.Generator) -> None:
        self.made = gp.RoundScheduler(gp.Cluster.from_inline("v100:8/4,k80:6/2"), PROFILE, policy=policy)
        self.jobs, self.chance, self.held = jobs, chance, defaultdict[str, float](float)

    def play(self, number: int) -> None:
        """Begin a round; jobs arrive before it, some of them and nodes are lost within it, others start."""
        self.made.submit_all([job for job in self.jobs if int(job.job_id[1:]) % 8 == number])
        start, end = number * ROUND, (number + 1) * ROUND
        now = {job_id: gang.gpu_share * ROUND for job_id, gang in self.made.next_round(start).assignments.items()}
        for _ in range(self.chance.integers(4)):
            changes = [self.fail_node, self.repair_nodes, self.interrupt, self.finish, self.plan]
            now.update(dict.fromkeys(changes[self.chance.integers(5)](), 0.0))
        time = start + ROUND * float(self.chance.choice([0.25, 0.5]))
        for job_id, gang in self.made.start_waiting(time).items():
            now[job_id] = now.get(job_id, 0.0) + gang.gpu_share * (end - time)
        for job_id, seconds in now.items():
            self.held[job_id] += seconds

    def fail_node(self) -> tuple[str, ...]:
        return self.made.node_down(str(self.chance.choice(sorted(self.made.nodes))))

    def repair_nodes(self) -> tuple[str, ...]:
        for node in self.made.nodes:
            self.made.node_up(node)
        return ()

    def interrupt(self) -> tuple[str, ...]:
        lost = self.some_job()
        for job_id in lost:
            self.made.interrupted(job_id)
        return lost

    def finish(self) -> tuple[str, ...]:
        for job_id in self.some_job():
            self.made.complete(job_id)
        return ()

    def plan(self) -> tuple[str, ...]:
        self.made.plan_next()
        return ()

    def some_job(self) -> tuple[str, ...]:
        running = sorted(self.made.running)
        return (str(self.chance.choice(running)),) if running else ()


@pytest.mark.deep
@pytest.mark.parametrize("kind", [{"num_gpus": 0.5}, {"gpu_counts": (1, 2, 4)}], ids=["fractions", "elastic"])
@pytest.mark.parametrize("seed", range(3))
def test_tenants_receive_what_their_jobs_hold_in_the_rounds(kind: Mapping[str, Any], seed: int) -> None:
    """With losses of nodes and jobs, starts between rounds, and rounds that were planned."""
    chance, has_tree = np.random.default_rng(seed), seed == 0
    policy = gp.resolve_policy("hierarchical", tenants=TREE) if has_tree else gp.resolve_policy("max_min_fairness")
    jobs = [job for job in gangs(chance, kind) if job.tenant or not has_tree]
    history = History(jobs, policy, chance)
    for number in range(15):
        history.play(number)
    report = history.made.delivery()
    of_rounds, of_jobs = defaultdict[str, float](float), defaultdict[str, float](float)
    for job in jobs:
        delivered = report.jobs[job.job_id].num_gpus * report.jobs[job.job_id].delivered_seconds
        for name in {job.tenant, job.tenant[:1] if has_tree else job.tenant}:
            of_rounds[name] += history.held[job.job_id]
            of_jobs[name] += delivered
    received = {name: each.delivered_gpu_seconds for name, each in report.tenants.items()}
    assert received == pytest.approx({name: of_rounds[name] for name in received})
    assert received == pytest.approx({name: of_jobs[name] for name in received})
    assert report.least_tenant_undelivered_gpu_seconds <= report.tenant_undelivered_gpu_seconds + 1e-6


Promises = tuple[list[float], list[int], int]


@st.composite
def promises(draw: st.DrawFn) -> Promises:
    """GPU-rounds promised to tenants, the sizes of their gangs, and the GPU-rounds offered."""
    count, offered = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    parts = [draw(st.integers(0, 30)) for _ in range(count)]
    whole = max(1.0, sum(parts) / 10 / max(1, offered))
    return [part / 10 / whole for part in parts], draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)), offered


@settings(max_examples=examples(200))
@given(promises())
def test_no_choice_of_whole_gangs_leaves_tenants_less_than_the_least(case: Promises) -> None:
    """Against all choices of multiples within the GPUs offered."""
    promised, sizes, offered = case
    choices = itertools.product(*(range(0, offered + 1, size) for size in sizes))
    exact = min(np.maximum(0.0, np.array(promised) - got).sum() for got in choices if sum(got) <= offered)
    found = least_tenant_shortfall(7.0 * np.array(promised), 7.0 * np.array(sizes), 7.0 * offered) / 7.0
    assert found <= exact + 1e-9
    if set(sizes) == {1}:
        assert found == pytest.approx(exact, abs=1e-9)


def test_the_least_shortfall_of_tenants() -> None:
    """16 GPUs in three equal parts, for gangs of 1, 2 and 4: 6, 6 and 4 in one round; after three, none need be short."""
    third = np.full(3, 16 / 3)
    assert least_tenant_shortfall(third, np.array([1.0, 2.0, 4.0]), 16.0) == pytest.approx(4 / 3)
    assert least_tenant_shortfall(third, np.array([1.0, 2.0, 0.0]), 16.0) == pytest.approx(5 / 9)
    assert least_tenant_shortfall(3 * third, np.array([1.0, 2.0, 4.0]), 48.0) == pytest.approx(0.0, abs=1e-9)


def test_starts_within_a_round_may_give_tenants_any_time() -> None:
    jobs = jobs_of({"a": (4, 1), "b": (4, 1)})
    made = scheduler("g:3", jobs)
    played(made, jobs, 1)
    assert made.delivery().least_tenant_undelivered_gpu_seconds == pytest.approx(ROUND / 2)
    made.complete(sorted(made.running)[0])
    assert made.start_waiting(ROUND / 2)
    assert made.delivery().least_tenant_undelivered_gpu_seconds < ROUND / 2


def test_the_promise_of_its_tenant_is_why_a_job_waits() -> None:
    jobs = jobs_of({"a": (10, 1), "b": (10, 1)})
    made = scheduler("g:6/3", jobs)
    played(made, jobs, 2)
    waits = {made.wait_of(job.job_id) for job in jobs if job.job_id not in made.running}
    assert waits - {None} == {gp.Wait.TENANT}
    alone = [job.model_copy(update={"tenant": "a"}) for job in jobs]
    made = scheduler("g:6/3", alone)
    played(made, alone, 2)
    assert {made.wait_of(job.job_id) for job in alone if job.job_id not in made.running} - {None} == {gp.Wait.TURN}


def test_a_tenant_without_gpus_of_its_promise_is_not_why_a_job_waits() -> None:
    """Two tenants of two GPUs each; while the gang of 4 runs, the other tenant has none, and its jobs wait for their turn."""
    jobs = jobs_of({"a": (4, 1), "b": (1, 4)})
    made = scheduler("g:4", jobs)
    assert played(made, jobs, 3) == [(4, 0), (0, 4), (0, 4)]
    assert {made.wait_of(job.job_id) for job in jobs[:4]} == {gp.Wait.TURN}
