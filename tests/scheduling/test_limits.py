"""Limits that hold in every round: no round exceeds them, whatever selects, keeps, places or starts gangs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.scheduling.mechanism.demand import GangSelection, sizing
from gavel_py.scheduling.mechanism.limits import RoundLimit, within_limits, worths_of
from tests.scheduling.support import Fixed

PRICES = {"v100": 2.5, "k80": 0.9}
SIZES = (1, 2, 3, 4, 8)
PROFILE = gp.ThroughputProfile(
    "powers",
    [
        gp.Measurement(job_type=name, num_gpus=n, accelerator=accelerator, steps_per_second=speed * n**power)
        for name, power in (("resnet", 0.9), ("bert", 0.6))
        for accelerator, speed in (("v100", 1.0), ("k80", 0.3))
        for n in SIZES
    ],
)
SHARED = gp.ThroughputProfile.builtin("gavel-osdi20")
GAINING = ("LM (batch size 80)", "ResNet-18 (batch size 64)")


def job(job_id: str, num_gpus: float | None = None, tenant: str = "a", job_type: str = "resnet", **fields: Any) -> gp.Job:
    size = {} if num_gpus is None else {"num_gpus": num_gpus}
    return gp.Job(job_id, job_type=job_type, tenant=tenant, total_steps=1e9, **size, **fields)


def gangs(*sizes: int, tenant: str = "a") -> list[gp.Job]:
    return [job(f"{tenant}{n}", size, tenant) for n, size in enumerate(sizes)]


def scheduler(
    jobs: Sequence[gp.Job],
    *constraints: gp.Constraint,
    cluster: str | gp.Cluster = "v100:8/8",
    policy: str = "max_min_fairness",
    profile: gp.ThroughputProfile = PROFILE,
    **options: Any,
) -> gp.RoundScheduler:
    cluster = gp.Cluster.from_inline(cluster) if isinstance(cluster, str) else cluster
    made = gp.RoundScheduler(
        cluster, profile, policy=gp.resolve_policy(policy, constraints=constraints), round_seconds=360, **options
    )
    for each in jobs:
        made.submit(each)
    return made


def gpus(held: Mapping[str, gp.Assignment], jobs: Sequence[gp.Job], tenant: str | None = None) -> float:
    """The GPUs of a tenant's jobs, or of all jobs: fractions as requested, and of two jobs that share GPUs half of them each."""
    by_id = {each.job_id: each for each in jobs}
    return sum(
        by_id[job_id].num_gpus if by_id[job_id].num_gpus < 1 else len(each.gpus) / (1 + len(each.shared_with))
        for job_id, each in held.items()
        if tenant in (None, by_id[job_id].tenant)
    )


def played(made: gp.RoundScheduler, jobs: Sequence[gp.Job], rounds: int = 8, tenant: str | None = None) -> list[float]:
    return [gpus(made.next_round().assignments, jobs, tenant) for _ in range(rounds)]


LIMIT = gp.MaxGpus(4, every_round=True)


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "max_total_throughput"])
def test_two_gangs_of_3_take_turns_under_a_limit_of_4_as_on_3_gpus(policy: str) -> None:
    limited, small = scheduler(gangs(3, 3), LIMIT, policy=policy), scheduler(gangs(3, 3), policy=policy, cluster="v100:3/3")
    rounds = [[tuple(made.next_round().assignments) for _ in range(12)] for made in (limited, small)]
    assert rounds[0] == rounds[1]
    assert {len(each) for each in rounds[0]} == {1}


@pytest.mark.parametrize("others", [(), (gp.MaxGpus(8),)])
def test_idle_gpus_go_to_waiting_jobs_if_no_other_constraint_may_keep_them_free(others: tuple[gp.Constraint, ...]) -> None:
    quarters = Fixed(shares={f"a{n}": {"v100": 0.25} for n in range(4)}, constraints=(LIMIT, *others))
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:8/8"), PROFILE, policy=quarters)
    made.submit_all(jobs := gangs(1, 2, 2, 1))
    used = played(made, jobs, 12)
    assert max(used) == 4
    assert (min(used) >= 3) == (not others)


def test_a_gang_of_8_has_no_part_in_rounds_under_a_limit_of_4() -> None:
    made = scheduler(jobs := gangs(8, 1, 1), LIMIT)
    assert played(made, jobs) == [2] * 8
    assert made.next_round().excluded == {"a0": "a constraint forbids it: the limit of 4 GPUs in every round"}


@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo"])
def test_a_tenant_never_uses_more_than_a_quota_that_is_not_borrowable(policy: str) -> None:
    jobs = [job("a", 2, "default"), job("b", 4, "vc"), job("c", 1, "vc")]
    made = scheduler(jobs, gp.Quota("vc", gpus=4, borrowable=False, every_round=True), policy=policy)
    assert set(played(made, jobs, tenant="vc")) <= {1, 4}


def test_what_is_reserved_stays_free_in_every_round() -> None:
    jobs = [*gangs(3, 3, 2), job("b0", 4, "b")]
    made = scheduler(jobs, gp.Reserve("v100", 3, reserved_for="b", every_round=True))
    assert max(played(made, jobs, tenant="a")) == 5


def priced(**gpus: int) -> gp.Cluster:
    nodes = [gp.Node(name=name, accelerator=name, num_gpus=count) for name, count in gpus.items()]
    return gp.Cluster(nodes, [gp.AcceleratorType(name=name, price_per_hour=PRICES[name]) for name in gpus])


def test_no_round_costs_more_than_the_budget() -> None:
    made = scheduler(gangs(1, 2, 2, 4), gp.CostBudget(7, every_round=True), cluster=priced(v100=4, k80=8))
    costs = [sum(PRICES[held.accelerator] * len(held.gpus) for held in made.next_round().assignments.values()) for _ in range(20)]
    assert 6 < max(costs) <= 7


def greedy(demand: gp.RoundDemand) -> np.ndarray[Any, Any]:
    """A mechanism that knows nothing of limits: the first jobs take all that they can."""
    free, columns = demand.capacities.copy(), np.full(len(demand.num_gpus), -1)
    for i, j in zip(*np.nonzero(demand.runnable), strict=True):
        if columns[i] < 0 and demand.num_gpus[i] <= free[j]:
            columns[i] = j
            free[j] -= demand.num_gpus[i]
    return columns


@sizing
def greedy_sizes(demand: gp.RoundDemand) -> np.ndarray[Any, Any] | GangSelection:
    """A mechanism that gives the first jobs the largest number of GPUs that is left."""
    if (sizes := demand.sizes) is None:
        return greedy(demand)
    free, columns, taken = demand.capacities.copy(), np.full(len(demand.num_gpus), -1), np.zeros(len(demand.num_gpus), dtype=int)
    offered = sizes.speeds.table[sizes.speeds.kinds] > 0
    for i in range(len(columns)):
        for j, n in sorted(zip(sizes.speeds.types[offered[i]], sizes.speeds.gpus[offered[i]], strict=True), key=lambda o: -o[1]):
            if columns[i] < 0 and demand.runnable[i, j] and n <= free[j]:
                columns[i], taken[i] = j, n
                free[j] -= n
    return GangSelection(columns, taken)


@pytest.mark.parametrize("mechanism", ["deficit", "priority", greedy])
def test_no_mechanism_exceeds_a_limit(mechanism: Any) -> None:
    made = scheduler(jobs := gangs(1, 1, 2, 2, 3, 4), gp.MaxGpus(5, every_round=True), mechanism=mechanism)
    assert max(played(made, jobs)) == 5


@pytest.mark.parametrize("mechanism", ["deficit", greedy_sizes])
def test_elastic_jobs_have_fewer_gpus_where_a_limit_requires_it(mechanism: Any) -> None:
    jobs = [job(f"e{n}", job_type=("resnet", "bert")[n % 2], gpu_counts=(1, 2, 3, 4)) for n in range(5)]
    made = scheduler(jobs, gp.MaxGpus(7, every_round=True), mechanism=mechanism, cluster="v100:16/8")
    assert max(played(made, jobs, rounds=20)) == 7
    assert mechanism != "deficit" or made.delivery().undelivered_share < 0.05


def test_an_elastic_job_is_promised_no_number_of_gpus_above_a_limit() -> None:
    made = scheduler([job("e", gpu_counts=SIZES)], gp.MaxGpus(3.5, every_round=True))
    assert [len(made.next_round().assignments["e"].gpus) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("sizes", "limit", "used"),
    [
        pytest.param([0.3] * 9, 1, 0.9, id="three at a time"),
        pytest.param([0.5] * 3, 0.5, 0.5, id="one at a time, though two fit on a GPU"),
        pytest.param([0.5] * 8, 1.5, 1.5, id="three of four on two GPUs"),
        pytest.param([0.3, 0.3, 0.3, 0.5], 0.7, 0.6, id="two of 0.3, or one of 0.5"),
    ],
)
def test_fractions_of_gpus_count_as_requested(sizes: list[float], limit: float, used: float) -> None:
    jobs = [job(f"f{n}", size, job_type=GAINING[1]) for n, size in enumerate(sizes)]
    made = scheduler(jobs, gp.MaxGpus(limit, every_round=True), profile=SHARED, cluster="v100:4/4")
    assert max(played(made, jobs, 24)) == pytest.approx(used)
    assert made.delivery().undelivered_share < 0.15


def test_two_jobs_that_share_gpus_count_for_half_of_them() -> None:
    jobs = [job(f"s{n}", 1, job_type=GAINING[n % 2]) for n in range(8)]
    made = scheduler(jobs, gp.MaxGpus(2, every_round=True), profile=SHARED, cluster="v100:4/4", sharing=True)
    assert max(played(made, jobs)) <= 2
    assert max(len(made.next_round().assignments) for _ in range(4)) == 4


def test_a_new_limit_comes_before_the_minimum_run_time() -> None:
    made = scheduler(jobs := gangs(2, 2, 2, 2), min_run_seconds=3600)
    assert played(made, jobs, 2) == [8, 8]
    made.policy = gp.resolve_policy("max_min_fairness", constraints=[gp.MaxGpus(5, every_round=True)])
    first, second = made.next_round(), made.next_round()
    assert gpus(first.assignments, jobs) == 4
    assert second.kept == first.kept == tuple(sorted(first.assignments))  # the others run on until then


def test_gangs_that_start_within_a_round_keep_the_limit() -> None:
    made = scheduler(jobs := gangs(2, 2, 2), gp.MaxGpus(5, every_round=True))
    made.next_round(0)
    held = set(made.running)
    made.cancel(min(held))
    assert len(made.start_waiting(100)) == 1
    assert gpus(made.running, jobs) == 4
    assert made.start_waiting(200) == {}


def test_a_job_that_has_failed_is_placed_elsewhere_within_the_limit() -> None:
    made = scheduler(jobs := gangs(2, 2, 2), LIMIT, cluster="v100:8/2", retry_seconds=60)
    for _ in range(6):
        begun = made.next_round()
        assert gpus(begun.assignments, jobs) <= 4
        made.job_failed(min(begun.assignments))


def test_gpus_of_a_planned_gang_that_has_left_go_to_others_within_the_limit() -> None:
    made = scheduler(jobs := gangs(2, 2, 2, 1), LIMIT)
    planned = made.plan_next()
    made.cancel(min(planned.assignments))
    assert gpus(made.next_round().assignments, jobs) in {3, 4}


@pytest.mark.parametrize("tenant", [None, "v"])
def test_gangs_of_1_2_and_4_use_what_a_limit_of_7_allows(tenant: str | None) -> None:
    others = [job(f"o{n}", 1, "o") for n in range(12)] if tenant else []
    jobs = [job(f"{size}-{n}", size, "v") for size in (1, 2, 4) for n in range(4)]
    made = scheduler([*jobs, *others], gp.MaxGpus(7, tenant=tenant, every_round=True), cluster="v100:16/8")
    used = played(made, [*jobs, *others], 30, tenant)
    assert max(used) == 7
    assert np.mean(used) >= 0.95 * 7


@pytest.mark.parametrize("sizes", [(1, 1, 2, 4, 4, 4, 4), (1, 2, 2, 4, 8, 8)])
def test_rounds_deliver_what_is_promised_to_gangs_of_more_than_half_of_a_limit(sizes: tuple[int, ...]) -> None:
    made = scheduler(jobs := gangs(*sizes), gp.MaxGpus(7, every_round=True), cluster="v100:16/8")
    assert max(played(made, jobs, 30)) <= 7
    assert made.delivery().undelivered_share < 0.05


def test_nothing_is_computed_without_such_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduler(jobs := gangs(3, 3), gp.MaxGpus(4))
    monkeypatch.setattr("gavel_py.scheduling.round_planning.within_limits", None)
    assert max(played(made, jobs)) == 6


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(count), n) for n in range(count + 1))


def test_the_jobs_of_largest_worth_that_keep_a_limit_remain_runnable() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        count = int(rng.integers(1, 9))
        sizes, scores = rng.choice([1, 2, 3, 5], count), rng.integers(0, 9, (count, 1)) / 2
        parts, price, most = rng.choice([0.0, 0.5, 1.0], count), rng.choice([1.0, 0.9, 2.5]), rng.choice([1.0, 4.0, 7.5])
        limit = RoundLimit("most", parts, np.array([price]), most)
        left = within_limits(np.ones((count, 1), dtype=bool), worths_of(scores, sizes), scores, sizes, [limit])[:, 0]
        costs, worths = parts * price * sizes, (scores[:, 0] + 1e-6) * sizes * (parts > 0)
        best = max(worths[list(some)].sum() for some in subsets(count) if costs[list(some)].sum() <= most + 1e-9)
        assert costs[left].sum() <= most + 1e-5
        assert left[parts == 0].all()
        assert worths[left].sum() == pytest.approx(best)


def test_a_job_may_use_all_of_a_limit_whatever_its_price() -> None:
    """The prices of the types have no common divisor, and the other two jobs fit together, too."""
    can_run = np.eye(3, dtype=bool)
    for price in np.random.default_rng(5).uniform(0.1, 100.0, 200).tolist():
        limit = RoundLimit("budget", np.ones(3), price * np.array([1.0, 0.377123, 0.511777]), price)
        worths = np.where(can_run, [10.0, 1.0, 1.0], -np.inf)
        left = within_limits(can_run, worths, np.ones((3, 3)), np.ones(3, dtype=np.int64), [limit])
        assert left.any(axis=1).tolist() == [True, False, False]


def test_a_large_limit_is_used_to_the_last_gpu() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.choice([1, 2, 4, 8], 3000)
    limit = RoundLimit("most", np.ones(3000), np.ones(2), 2001.0)
    scores = rng.random((3000, 2))
    left = within_limits(np.ones((3000, 2), dtype=bool), worths_of(scores, sizes), scores, sizes, [limit])
    assert sizes[left.any(axis=1)].sum() == 2001


# Anything may happen


def any_constraints(rng: random.Random) -> list[gp.Constraint]:
    most = rng.choice([1, 2, 3, 4, 5, 7, 9, 2.5])
    makers: list[Callable[..., gp.Constraint]] = [
        partial(gp.MaxGpus, most),
        partial(gp.MaxGpus, most, tenant=rng.choice("ab")),
        partial(gp.MaxGpus, most, accelerator=rng.choice([*PRICES]), tenant=rng.choice(["a", None])),
        partial(gp.MaxGpus, most, job="j3"),
        partial(gp.Quota, rng.choice("ab"), gpus=most, borrowable=False, guaranteed=False),
        partial(gp.CostBudget, rng.choice([5, 9.3, 12, 20])),
        partial(gp.Reserve, "v100", min(most, 4), reserved_for="a"),
        partial(gp.Reserve, "v100", min(most, 4), min_gang=4),
    ]
    others = [gp.MaxGpus(1000)] if rng.random() < 0.5 else []  # idle GPUs stay idle
    return [*(make(every_round=True) for make in rng.sample(makers, rng.randint(1, 3))), *others]


def counted(constraint: Any, each: gp.Job, held: gp.Assignment) -> float:
    """What a running job uses of a limit, in GPUs or money per hour."""
    share = each.num_gpus if each.num_gpus < 1 else len(held.gpus) / (1 + len(held.shared_with))
    if isinstance(constraint, gp.CostBudget):
        return float(share * PRICES[held.accelerator])
    if isinstance(constraint, gp.Quota):
        return share * (each.tenant == constraint.tenant)
    on_type = constraint.accelerator in (None, held.accelerator)
    if isinstance(constraint, gp.MaxGpus):
        return share * (on_type and constraint.tenant in (None, each.tenant) and constraint.job in (None, each.job_id))
    is_entitled = each.tenant in constraint.reserved_for or len(held.gpus) >= (constraint.min_gang or np.inf)
    return share * (on_type and not is_entitled)


def most_of(constraint: Any, cluster: gp.Cluster) -> float:
    if isinstance(constraint, gp.CostBudget):
        return float(constraint.per_hour)
    if isinstance(constraint, gp.Reserve):
        return float(dict(zip(cluster.accelerator_names, cluster.capacities, strict=True))["v100"] - constraint.gpus)
    return float(constraint.gpus)


def any_job(rng: random.Random, number: int, kind: str) -> gp.Job:
    tenant = rng.choice("abc")
    if kind == "elastic" and rng.random() < 0.7:
        return job(
            f"j{number}", None, tenant, rng.choice(["resnet", "bert"]), gpu_counts=rng.choice([(1, 2, 4), (2, 4, 8), (1, 2)])
        )
    if kind in {"elastic", "whole"}:
        return job(f"j{number}", rng.choice(SIZES), tenant, rng.choice(["resnet", "bert"]))
    sizes = [0.1, 0.25, 0.5, 0.9, 0.333, 1, 2] if kind == "fractions" else [1, 1, 2]
    return job(f"j{number}", rng.choice(sizes), tenant, rng.choice(GAINING))


class Life:
    """A scheduler to which anything may happen, with the limits that hold."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311
        self.kind = ("whole", "elastic", "fractions", "pairs")[seed % 4]
        nodes = [gp.Node(name=f"{name}-{n}", accelerator=name, num_gpus=4) for name in PRICES for n in range(rng.randint(1, 3))]
        types = [gp.AcceleratorType(name=name, price_per_hour=price) for name, price in PRICES.items()]
        self.cluster, self.constraints, self.jobs = gp.Cluster(nodes, types), any_constraints(rng), dict[str, gp.Job]()
        whole = self.kind in {"whole", "fractions"}
        self.policy = rng.choice(["max_min_fairness", "max_total_throughput", *(["fifo", "hierarchical"] if whole else [])])
        mechanisms: list[Any] = ["deficit", greedy_sizes] if self.kind == "elastic" else ["deficit", "priority", greedy]
        self.made = scheduler(
            [],
            *self.constraints,
            cluster=self.cluster,
            policy=self.policy,
            profile=PROFILE if self.kind in {"whole", "elastic"} else SHARED,
            mechanism=rng.choice(mechanisms),
            sharing=self.kind == "pairs",
            min_run_seconds=rng.choice([0, 1000]),
            restart_seconds=rng.choice([0, 60]),
            solve_seconds=rng.choice([0, 1500]),
            retry_seconds=rng.choice([0, 300]),
        )

    def check(self, held: Mapping[str, gp.Assignment]) -> None:
        for each in self.constraints:
            used = sum(counted(each, self.jobs[job_id], gang) for job_id, gang in held.items())
            assert used <= most_of(each, self.cluster) + 1e-6, each.text

    def submit(self) -> None:
        new = any_job(self.rng, len(self.jobs), self.kind)
        self.jobs[new.job_id] = new
        self.made.submit(new)

    def cancel(self) -> None:
        self.made.cancel(self.rng.choice(self.made.jobs).job_id)

    def change_tenant(self) -> None:
        job_id, tenant = self.rng.choice(self.made.jobs).job_id, self.rng.choice("abc")
        self.jobs[job_id] = self.jobs[job_id].model_copy(update={"tenant": tenant})
        self.made.update(job_id, tenant=tenant)

    def change_node(self) -> None:
        name = self.rng.choice(self.cluster.nodes).name
        (self.made.node_up if self.made.nodes[name] is gp.NodeState.DOWN else self.made.node_down)(name)

    def fail(self) -> None:
        for job_id in sorted(self.made.running)[:1]:
            self.made.job_failed(job_id)

    def change_limits(self) -> None:
        self.constraints = any_constraints(self.rng)
        self.made.policy = gp.resolve_policy(self.policy, constraints=self.constraints)

    def keep(self) -> None:
        for job_id in sorted(self.made.running)[-1:]:
            self.made.keep_running(job_id, 3600)

    def play(self, now: float) -> None:
        """One round, perhaps planned in advance, and perhaps with starts within it."""
        if self.rng.random() < 0.3:
            planned = self.made.plan_next(now)
            self.submit()
            if planned.assignments:
                self.made.cancel(self.rng.choice(sorted(planned.assignments)))
        self.check(self.made.next_round(now).assignments)
        if self.rng.random() < 0.4:
            self.submit()
            self.made.start_waiting(now + 100)
            self.check(self.made.running)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
def test_no_round_exceeds_a_limit_whatever_happens(seed: int) -> None:
    warnings.simplefilter("ignore", gp.GavelWarning)
    life = Life(seed)
    for _ in range(life.rng.randint(3, 12)):
        life.submit()
    changes = [life.submit, life.cancel, life.change_tenant, life.change_node, life.fail, life.change_limits, life.keep]
    with suppress(gp.InputError):  # without some nodes, there may be fewer GPUs than are reserved
        for now in range(0, 14 * 360, 360):
            if life.made.jobs:
                life.rng.choice(changes)()
            life.play(now)


# Limits that hold on average


def test_rounds_count_those_that_exceed_a_limit_on_average(tmp_path: Path) -> None:
    limits = gp.MaxGpus(4), gp.MaxGpus(2, job="a0"), gp.MaxGpus(7, every_round=True)
    jobs = [*gangs(3, 3, 2), job("b0", 1, "b")]
    made, used = scheduler(jobs, *limits, restart_seconds=10), list[Mapping[str, gp.Assignment]]()
    for _ in range(12):
        begun = made.next_round()
        used.append(begun.assignments)
        assert (limits[0].text in begun.exceeded) == (gpus(begun.assignments, jobs) > 4)
    above = {limits[0].text: sum(gpus(held, jobs) > 4 for held in used), limits[1].text: sum("a0" in held for held in used)}
    assert made.limit_rounds == {name: {"rounds": 12, "exceeded": number} for name, number in above.items()}
    assert 0 < above[limits[0].text] < 12
    assert f"in {above[limits[1].text]} of 12 rounds; every_round: true forbids it" in made.exceeded_notes[1]
    made.save(tmp_path / "saved.json")
    assert gp.RoundScheduler.load(tmp_path / "saved.json", PROFILE).limit_rounds == made.limit_rounds


def test_a_round_that_exceeds_a_limit_by_a_start_within_it_counts_once() -> None:
    made = scheduler(gangs(3, 3), gp.MaxGpus(4), cluster="v100:8/4")
    made.node_down("v100-1")
    assert not made.next_round(0).exceeded
    made.node_up("v100-1")
    assert [len(made.start_waiting(now)) for now in (100, 200)] == [1, 0]
    made.interrupted(min(made.running))
    assert len(made.start_waiting(300)) == 1
    assert made.limit_rounds == {"the limit of 4 GPUs": {"rounds": 1, "exceeded": 1}}


def test_a_job_that_waits_for_a_limit_says_so() -> None:
    made = scheduler(gangs(3, 3, 3), LIMIT)
    ran = {*made.next_round().assignments, *made.next_round().assignments}
    (waits,) = {each.job_id for each in made.jobs} - ran
    assert str(made.wait_of(waits)) == "a limit that holds in every round left it no room"


def test_the_summary_of_a_simulation_counts_rounds_above_limits() -> None:
    jobs = [gp.Job(f"a{n}", job_type="resnet", num_gpus=3, total_steps=1e4) for n in range(2)]
    cluster, limits = gp.Cluster.from_inline("v100:8/8"), [gp.MaxGpus(4)]
    found = gp.simulate(jobs, cluster, PROFILE, policy=gp.resolve_policy("max_min_fairness", constraints=limits))
    (counted,) = found.summary.limit_rounds.values()
    assert 0 < counted["exceeded"] < counted["rounds"] == found.summary.rounds
    assert gp.Summary.from_dict(found.summary.to_dict()) == found.summary
