"""Services and training jobs in one answer: beside the best of all whole replicas, shares of tenants, and what users read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.serving.joint_cases import IN_LEVELS, ONE_PROGRAM, Case, best, drawn, largest_rests


def found(case: Case, policy: str | gp.Policy, *, whole_gangs: bool) -> gp.JointPlan | None:
    """The answer, None if the floors do not fit."""
    here = case.services, case.jobs, case.cluster, case.rates, case.profile, policy
    try:
        plan = gp.plan_jointly(*here, problem_options={"whole_gangs": whole_gangs})
    except gp.ConflictError:
        return None
    except gp.InputError as error:
        if "cannot be served here" in str(error):
            return None
        raise
    plan.verify()
    return plan


def check(seed: int, policies: Sequence[str], *, whole_gangs: bool) -> int:
    """Compare the answers of some policies with the best ones; return the number of those that count all jobs."""
    case = drawn(seed)
    rests, compared = largest_rests(case), 0
    for policy in policies:
        plan, right = found(case, policy, whole_gangs=whole_gangs), best(case, rests, policy, whole_gangs=whole_gangs)
        assert (plan is None) == (right is None)
        if plan is None or right is None or not math.isfinite(right[-1]) or (right[-1] == 0 and policy != "min_cost"):
            continue  # no replicas leave room for all jobs: the others count
        assert plan.value == pytest.approx(right[-1], rel=2e-6, abs=1e-6), (seed, policy)
        assert plan.status == "optimal"
        compared += 1
    return compared


@pytest.mark.parametrize(("seed", "whole_gangs"), [(7, False), (3, True)])
def test_no_other_replicas_leave_more(seed: int, whole_gangs: bool) -> None:
    assert check(seed, (*ONE_PROGRAM, *IN_LEVELS), whole_gangs=whole_gangs) == 7


@pytest.mark.deep
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_no_other_replicas_leave_more_in_300_clusters(first: int) -> None:
    assert sum(check(seed, ONE_PROGRAM, whole_gangs=bool(seed % 2)) for seed in range(first, first + 50)) >= 150


@pytest.mark.deep
def test_the_first_level_is_the_best_in_100_clusters() -> None:
    assert sum(check(seed, IN_LEVELS, whole_gangs=bool(seed % 2)) for seed in range(100)) >= 120


# -------------------------------------------------------------------------------------------------------------- shares and limits


def two_teams(gpus: int = 8, jobs: int = 4) -> tuple[list[gp.Service], list[gp.Job], gp.Cluster, Any, Any]:
    """Teams a and b with jobs of one GPU, and a service of a that needs two replicas of one GPU."""
    services = [gp.Service("chat", model="m", rate=2, tenant="a")]
    rates = gp.ServingProfile("rates", [gp.ServingRate(model="m", accelerator="t", requests_per_second=1.0, condition="offline")])
    training = [gp.Job(f"{team}{n}", job_type="j", tenant=team, total_steps=100) for team in "ab" for n in range(jobs)]
    cluster = gp.Cluster([gp.Node(name="n0", accelerator="t", num_gpus=gpus)], [gp.AcceleratorType(name="t", price_per_hour=2.0)])
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * len(training), job_ids=[job.job_id for job in training], accelerators=["t"])
    return services, training, cluster, rates, speeds


def gpus_of_teams(plan: gp.JointPlan) -> dict[str, float]:
    return {each.tenant: sum(each.gpus.values()) for each in plan.training.tenants()}


@pytest.mark.parametrize(
    ("weights", "jobs", "gpus"), [((1, 1), 4, 8), ((1, 3), 8, 8), ((3, 1), 2, 5), ((1, 1), 8, 4), ((1, 9), 9, 10)]
)
def test_replicas_are_part_of_the_share_of_their_team(weights: tuple[int, int], jobs: int, gpus: int) -> None:
    tenants = dict(zip("ab", ({"weight": weight} for weight in weights), strict=True))
    plan = gp.plan_jointly(*two_teams(gpus, jobs), gp.resolve_policy("hierarchical", tenants=tenants))
    plan.verify()
    held, low, high = np.array([2.0, 0.0]), 0.0, 100.0
    for _ in range(100):  # each team has weight x level, no less than it holds and no more than it can use
        level = (low + high) / 2
        have = np.clip(level * np.array(weights), held, held + jobs)
        low, high = (low, level) if have.sum() > gpus else (level, high)
    assert list(gpus_of_teams(plan).values()) == pytest.approx((have - held).tolist(), abs=1e-6)
    assert plan.gpus_of_services == {"a": 2}


def limited(*constraints: Any, policy: str = "max_total_throughput", **changes: Any) -> gp.JointPlan:
    plan = gp.plan_jointly(*two_teams(), gp.resolve_policy(policy, constraints=constraints), **changes)
    plan.verify()
    return plan


def test_replicas_count_for_limits_and_guarantees_of_their_team() -> None:
    assert gpus_of_teams(limited(gp.MaxGpus(gpus=3, tenant="a")))["a"] == pytest.approx(1)
    assert sum(gpus_of_teams(limited(gp.MaxGpus(gpus=5))).values()) == pytest.approx(3)
    assert sum(gpus_of_teams(limited(gp.CostBudget(per_hour=10))).values()) == pytest.approx(3)
    assert gpus_of_teams(limited(gp.Quota(tenant="a", share=0.5, borrowable=False)))["a"] == pytest.approx(2)
    assert gpus_of_teams(limited(gp.Quota(tenant="b", gpus=4)))["b"] == pytest.approx(4)
    assert gpus_of_teams(limited(gp.Quota(tenant="a", gpus=1)))["a"] >= 0
    assert gpus_of_teams(limited(gp.Reserve(accelerator="t", gpus=6, reserved_for=["a"])))["b"] == pytest.approx(2)
    assert gpus_of_teams(limited(gp.Reserve(accelerator="t", gpus=5, reserved_for=["b"])))["a"] == pytest.approx(1)


@pytest.mark.parametrize(
    "limit", [gp.MaxGpus(gpus=1, tenant="a"), gp.CostBudget(per_hour=3), gp.Quota(tenant="a", gpus=1, borrowable=False)]
)
def test_a_limit_that_replicas_exceed_is_named(limit: Any) -> None:
    with pytest.raises(gp.ConflictError, match="service 'chat': at least 100% of its demand"):
        limited(limit)


def on_two_types(*constraints: Any, policy: str = "max_total_throughput") -> gp.JointPlan:
    """The same teams, with two more GPUs of a type of their own, on which no replica can be."""
    services, jobs, cluster, rates, _ = two_teams()
    cluster = gp.Cluster([*cluster.nodes, gp.Node(name="n1", accelerator="u", num_gpus=2)])
    speeds = gp.ThroughputProfile.from_matrix(np.ones((8, 2)), job_ids=[job.job_id for job in jobs], accelerators=["t", "u"])
    plan = gp.plan_jointly(services, jobs, cluster, rates, speeds, gp.resolve_policy(policy, constraints=constraints))
    plan.verify()
    return plan


def test_shares_are_those_of_all_types_even_without_replicas() -> None:
    assert gpus_of_teams(on_two_types(gp.Quota(tenant="a", share=0.3, borrowable=False)))["a"] == pytest.approx(1)
    on_the_type_of_jobs = on_two_types(gp.Reserve(accelerator="u", gpus=2, reserved_for=["a"])).training
    assert on_the_type_of_jobs.time_fractions[4:, 1].sum() == pytest.approx(0)


def test_all_limits_that_keep_services_out_are_named() -> None:
    """Either reserve alone leaves a type for the replicas."""
    services, jobs, _, _, _ = two_teams()
    cluster = gp.Cluster([gp.Node(name=name, accelerator=name, num_gpus=4) for name in "tu"])
    rows = [gp.ServingRate(model="m", accelerator=name, requests_per_second=1.0, condition="offline") for name in "tu"]
    speeds = gp.ThroughputProfile.from_matrix(np.ones((8, 2)), job_ids=[job.job_id for job in jobs], accelerators=["t", "u"])
    reserves = [gp.Reserve(accelerator=name, gpus=4, reserved_for=["b"]) for name in "tu"]
    here = services, jobs, cluster, gp.ServingProfile("rates", rows), speeds
    with pytest.raises(gp.ConflictError) as error:
        gp.plan_jointly(*here, gp.resolve_policy("max_total_throughput", constraints=reserves))
    assert len(error.value.constraints) == 3
    assert [each.text in error.value.constraints for each in reserves] == [True, True]
    for kept in reserves:
        plan = gp.plan_jointly(*here, gp.resolve_policy("max_total_throughput", constraints=[kept]))
        assert kept.accelerator not in {row["accelerator"] for row in plan.places}


def test_replicas_may_exceed_a_soft_limit() -> None:
    limits = gp.MaxGpus(gpus=1, tenant="a", penalty=0.1), gp.CostBudget(per_hour=3, penalty=0.01)
    plan = limited(*limits)
    assert plan.gpus_of_services == {"a": 2}
    assert gpus_of_teams(plan)["b"] == pytest.approx(4)


def test_limits_of_services_alone_are_named_with_the_services() -> None:
    with pytest.raises(gp.ConflictError) as error:
        limited(quotas={"a": 1})
    assert "the quota of tenant a: 1 GPUs" in str(error.value)
    assert "service 'chat': at least 100% of its demand" in str(error.value)
    assert limited(quotas={"a": 1}, floors={"chat": 0.5}).serving.served == {"chat": pytest.approx(0.5)}


def test_policies_without_one_program_are_refused() -> None:
    for policy in ("fifo", gp.resolve_policy("max_min_fairness", agnostic=True)):
        with pytest.raises(gp.InputError, match="cannot decide beside services; these can"):
            gp.plan_jointly(*two_teams(), policy)


def test_jobs_that_fit_nowhere_beside_the_services_do_not_count() -> None:
    services, jobs, cluster, rates, _ = two_teams()
    jobs = [*jobs, gp.Job("large", job_type="j", num_gpus=8, total_steps=100)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * len(jobs), job_ids=[job.job_id for job in jobs], accelerators=["t"])
    for policy in ("max_min_fairness", "min_makespan"):
        plan = gp.plan_jointly(services, jobs, cluster, rates, speeds, policy)
        assert list(plan.training.excluded) == ["large"]
        assert plan.status == "optimal"
        assert plan.value == pytest.approx(0.75 if policy == "max_min_fairness" else 100 / 0.75)


def test_a_plan_that_does_not_hold_is_found() -> None:
    plan = gp.plan_jointly(*two_teams())
    on_too_few = replace(plan, cluster=gp.Cluster([gp.Node(name="n0", accelerator="t", num_gpus=7)]))
    for wrong in (replace(plan, places=type(plan.places)(list(plan.places)[:1])), on_too_few):
        with pytest.raises(gp.ProofError):
            wrong.verify()


def test_what_a_replica_costs_is_what_training_has_without_it() -> None:
    services, jobs, cluster, rates, speeds = two_teams()
    plan = gp.plan_jointly(services, jobs, cluster, rates, speeds, "max_total_throughput")
    (row,) = plan.costs
    assert row["objective"] == pytest.approx(6)
    assert row["objective_without_replica"] == pytest.approx(7)
    alone = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"t": 7}), speeds)
    work = gp.solve(alone, "max_total_throughput").time_fractions[:, 0]
    before = plan.training.time_fractions[:, 0]
    assert row["work_gained"] == pytest.approx(
        {"a": work[:4].sum() / before[:4].sum() - 1, "b": work[4:].sum() / before[4:].sum() - 1}
    )


@pytest.mark.parametrize("prices", [(1, 5), (5, 1)])
def test_where_jobs_lack_as_much_the_cheaper_replicas_are_left_out(prices: tuple[int, int]) -> None:
    """Four jobs need four GPUs and get three: whichever GPU the replica takes, the cheaper three are to be left for them."""
    kinds = [gp.AcceleratorType(name=name, price_per_hour=price) for name, price in zip("tu", prices, strict=True)]
    nodes = [gp.Node(name=name, accelerator=name, num_gpus=2) for name in "tu"]
    rates = [gp.ServingRate(model="m", accelerator=name, requests_per_second=1.0, condition="offline") for name in "tu"]
    jobs = [gp.Job(f"j{n}", job_type="j", total_steps=100) for n in range(4)]
    speeds = gp.ThroughputProfile.from_matrix(np.ones((4, 2)), job_ids=[job.job_id for job in jobs], accelerators=["t", "u"])
    here = [gp.Service("chat", model="m", rate=1)], jobs, gp.Cluster(nodes, kinds), gp.ServingProfile("rates", rates), speeds
    plan = gp.plan_jointly(*here, "min_cost")
    assert plan.value == pytest.approx(2 * min(prices) + max(prices))
    assert plan.status == "optimal"


def test_a_shortfall_of_almost_0_is_no_unit() -> None:
    """The whole cluster is just enough for such jobs, up to rounding; one of two GPUs fits nowhere beside the replica."""
    speeds = [3.96528669, 3.90898574, 4.14579469, 1.04663563, 4.07630284, 4.75890812, 3.8827078, 1.77698925]
    nodes, kinds = [gp.Node(name="n0", accelerator="t", num_gpus=3)], [gp.AcceleratorType(name="t", price_per_hour=2.0)]
    rates = [gp.ServingRate(model="m", accelerator="t", num_gpus=2, requests_per_second=4.0, condition="offline")]
    jobs = [gp.Job(f"j{n}", job_type="j", num_gpus=1 + (n == 1), total_steps=100) for n in range(8)]
    profile = gp.ThroughputProfile.from_matrix(np.array(speeds)[:, None], job_ids=[job.job_id for job in jobs], accelerators=["t"])
    here = [gp.Service("chat", model="m", rate=0.5)], jobs, gp.Cluster(nodes, kinds), gp.ServingProfile("rates", rates), profile
    plan = gp.plan_jointly(*here, "min_cost", problem_options={"whole_gangs": True})
    assert list(plan.training.excluded) == ["j1"]
    assert plan.value == pytest.approx(2)


@pytest.mark.parametrize(("jobs", "served"), [(2, 1.0), (3, 0.5), (4, 0.5)])
def test_services_get_what_training_never_needs_if_they_ask(jobs: int, served: float) -> None:
    here = two_teams(gpus=6, jobs=jobs)
    low = gp.plan_jointly(*here, "max_total_throughput", floors={"chat": 0.5})
    high = gp.plan_jointly(*here, "max_total_throughput", floors={"chat": 0.5}, above_floors=True)
    high.verify()
    assert low.serving.served == {"chat": pytest.approx(0.5)}
    assert high.serving.served == {"chat": pytest.approx(served)}
    assert high.training.objective_value == pytest.approx(min(2 * jobs, 5))
    assert gpus_of_teams(high) == pytest.approx(gpus_of_teams(low))
