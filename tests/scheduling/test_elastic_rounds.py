"""Elastic jobs in rounds: which options are chosen, what is delivered, what stays where it is, and what is kept in files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import identity, kron, vstack

import gavel_py as gp
from gavel_py.problem.eligibility import EVEN_SPLIT
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.mechanism.demand import GangSelection
from gavel_py.scheduling.mechanism.elastic import SizeOptions, best_options
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.placement.topology import Layout
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache
from gavel_py.scheduling.round_planning import resized
from tests.scheduling.test_problem_cache import assert_same
from tests.support.examples import examples

TYPES, SIZES = ("v100", "k80"), (1, 2, 4, 8)

PROFILE = gp.ThroughputProfile(
    "mine",
    [
        gp.Measurement(job_type=job_type, num_gpus=n, accelerator=name, steps_per_second=rate * factor * n**power)
        for job_type, rate, power in (("resnet", 1.0, 0.9), ("bert", 2.0, 0.6), ("lm", 0.5, 1.0))
        for name, factor in (("v100", 1.0), ("k80", 0.3))
        for n in SIZES
    ]
    + [gp.Measurement(job_type="lm", num_gpus=16, accelerator="v100", steps_per_second=7.0)],
)
CLUSTER = gp.Cluster.from_inline("v100:16/8,k80:8/4")


def elastic(count: int, **fields: Any) -> list[gp.Job]:
    names = ("resnet", "bert", "lm")
    jobs = [gp.Job(f"e{n}", job_type=names[n % 3], gpu_counts=SIZES, total_steps=1e7, **fields) for n in range(count)]
    return [*jobs, gp.Job("fixed", job_type="resnet", num_gpus=2, total_steps=1e7)]


def scheduler(jobs: list[gp.Job], mechanism: str = "deficit", **options: Any) -> gp.RoundScheduler:
    made = gp.RoundScheduler(CLUSTER, PROFILE, mechanism=mechanism, **options)
    for job in jobs:
        made.submit(job)
    return made


@st.composite
def choices(draw: st.DrawFn, most: int = 9) -> tuple[SizeOptions, Any]:
    seed, count = draw(st.integers(0, 10**6)), draw(st.integers(1, most))
    chance = np.random.default_rng(seed)
    types, gpus = np.repeat([0, 1, 2], 4), np.tile(SIZES, 3)
    sizes = chance.integers(1, 3, count)
    worths = chance.uniform(0.1, 1, (count, 1)) * gpus ** chance.uniform(0, 1, (count, 1))
    worths[chance.random(worths.shape) < 0.3] = 0
    return SizeOptions(np.repeat(np.arange(count), sizes), sizes, types, gpus, worths), chance.integers(0, 12, 3)


def taken(options: SizeOptions, chosen: Any) -> tuple[Any, float]:
    """The GPUs of each type in use, and the sum of the worths."""
    rows = np.flatnonzero(chosen >= 0)
    picked = chosen[rows]
    return np.bincount(options.types[picked], options.gpus[picked], 3), float(options.worths[options.index[rows], picked].sum())


def one_job_each(options: SizeOptions) -> Any:
    """The same program with a row for each job."""
    worths = options.worths[options.index]
    jobs, count = len(worths), len(options.types)
    rows = np.zeros((jobs + 3, jobs * count))
    for i in range(jobs):
        rows[i, i * count : (i + 1) * count] = 1
        rows[jobs + options.types, i * count + np.arange(count)] = options.gpus
    return worths, rows


@given(choices())
@settings(max_examples=examples(25))
def test_few_jobs_get_the_best_options(case: tuple[SizeOptions, Any]) -> None:
    options, capacities = case
    found = best_options(options, capacities)
    used, worth = taken(options, found.options)
    assert (used <= capacities).all()
    worths, rows = one_job_each(options)
    limits = np.concatenate([np.ones(len(worths)), capacities])
    best = milp(-worths.ravel(), constraints=LinearConstraint(rows, ub=limits), integrality=1, bounds=Bounds(0, worths.ravel() > 0))
    assert worth == pytest.approx(found.worth, abs=1e-9) == pytest.approx(-best.fun, rel=1e-6, abs=1e-9)
    assert found.gap <= 1e-6


@pytest.mark.parametrize("kinds", [40, 700])  # of the second, the relaxation begins with a sample
def test_many_jobs_get_nearly_the_best_and_the_bound_is_that_of_the_relaxation(kinds: int) -> None:
    chance = np.random.default_rng(1)
    types, gpus = np.repeat([0, 1, 2], 4), np.tile(SIZES, 3)
    worths = chance.uniform(0.1, 1, (kinds, 1)) * gpus ** chance.uniform(0, 1, (kinds, 12)) * chance.uniform(0.9, 1.1, (kinds, 12))
    index = np.sort(chance.integers(0, kinds, 2000))
    options = SizeOptions(index, np.bincount(index, minlength=kinds), types, gpus, worths)
    capacities = np.array([900, 700, 500])
    found = best_options(options, capacities)
    used, worth = taken(options, found.options)
    assert (used <= capacities).all()
    rows = vstack([kron(identity(kinds), np.ones(12)), kron(np.ones(kinds), (types == np.arange(3)[:, None]) * gpus)])
    relaxed = -linprog(-worths.ravel(), rows, np.concatenate([options.sizes, capacities]), method="highs").fun
    assert found.bound == pytest.approx(relaxed, rel=1e-9)
    assert worth == pytest.approx(found.worth)
    assert 0 <= found.gap <= 1e-4


def held_by(layout: Layout, *gangs: list[tuple[str, int]]) -> HeldGpus:
    return HeldGpus.of([0] * len(gangs), [layout.numbers(gang).tolist() for gang in gangs])


def test_a_gang_that_shrinks_keeps_its_node_and_one_that_grows_stays_there_if_it_can() -> None:
    cluster = gp.Cluster.from_inline("v100:16/8")
    layout = Layout(cluster.nodes, cluster.accelerator_names)
    names = layout.names
    previous = held_by(
        layout,
        [(names[0], n) for n in range(4)],
        [(names[0], 4), (names[0], 5)],
        [(names[1], 0), (names[1], 1)],
        [(names[1], n) for n in range(2, 8)],
    )
    selection = GangSelection(np.zeros(4, dtype=np.int64), np.array([2, 4, 4, 6]))
    now = resized(previous, selection, FreeResources(layout), np.zeros(4, dtype=np.int64))
    assert set(now.list_of(0)) < set(previous.list_of(0))
    assert len(now.list_of(0)) == 2
    assert set(previous.list_of(1)) < set(now.list_of(1))
    assert set(layout.node_of[now.list_of(1)].tolist()) == {0}
    assert now.list_of(2) == previous.list_of(2)  # its node is full, so placement finds others
    assert now.list_of(3) == previous.list_of(3)


def test_a_gang_with_an_even_split_keeps_it_when_its_number_of_gpus_changes() -> None:
    cluster = gp.Cluster.from_inline("v100:24/8")
    layout = Layout(cluster.nodes, cluster.accelerator_names)
    first, second, third = layout.names
    halves = [(first, n) for n in range(4)] + [(second, n) for n in range(4)]
    previous = held_by(layout, halves, [(third, n) for n in range(4)], [(first, 4), (first, 5), (second, 4), (second, 5)])
    splits = np.array([EVEN_SPLIT, 4, 2])
    now = resized(previous, GangSelection(np.zeros(3, dtype=np.int64), np.array([6, 8, 2])), FreeResources(layout), splits)
    assert set(now.list_of(0)) < set(previous.list_of(0))
    assert sorted(Counter(layout.node_of[now.list_of(0)].tolist()).values()) == [3, 3]
    assert now.list_of(1) == previous.list_of(1), "its second node cannot be its first, so placement finds it"
    assert len(set(layout.node_of[now.list_of(2)].tolist())) == 1


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_rounds_give_every_job_an_offered_number_of_gpus(mechanism: str) -> None:
    jobs = elastic(7)
    made = scheduler(jobs, mechanism, restart_seconds=30)
    for _ in range(15):
        found = made.next_round().assignments
        used = [gpu for each in found.values() for gpu in each.gpus]
        assert len(used) == len(set(used))
        for job_id, each in found.items():
            assert len(each.gpus) in (SIZES if job_id != "fixed" else (2,))
    assert any(len(each.gpus) > 1 for job_id, each in found.items() if job_id != "fixed")


@pytest.mark.deep
def test_rounds_deliver_the_gpu_rounds_that_an_allocation_promises() -> None:
    jobs = elastic(5)
    made = scheduler(jobs, restart_seconds=10)
    gpus = np.zeros(2)
    for _ in range(60):
        held = made.next_round().assignments.values()
        gpus += [sum(len(each.gpus) for each in held if each.accelerator == name) for name in TYPES]
    problem = gp.AllocationProblem.from_jobs(jobs, CLUSTER, PROFILE)
    promised, report = gp.solve(problem).gpus, made.delivery().jobs
    for row, job in enumerate(jobs):
        each = report[job.job_id]
        size = 2 if job.job_id == "fixed" else 1
        stated = np.array([each.promised_by_type[name] for name in TYPES]) * size
        assert stated == pytest.approx(60 * 360 * promised[row], rel=1e-6, abs=1e-3)
        given = np.array([each.delivered_by_type[name] for name in TYPES]) * size
        assert (np.abs(stated - given) <= 360 * 10 * 8).all()
    delivered = sum(sum(each.delivered_by_type.values()) * each.num_gpus for each in report.values())
    assert delivered == pytest.approx(360 * gpus.sum())


def test_a_job_that_restarts_is_left_alone() -> None:
    made = scheduler(elastic(3), "direct", restart_seconds=600, round_seconds=60)
    first = {job_id: each.gpus for job_id, each in made.next_round().assignments.items()}
    for n in range(3, 9):
        made.submit(gp.Job(f"late{n}", job_type="lm", gpu_counts=SIZES, total_steps=1e6))
        now = made.next_round().assignments
        assert all(now[job_id].gpus == gpus for job_id, gpus in first.items())


def test_a_restart_must_pay_off_before_the_number_of_gpus_changes() -> None:
    """Twice the GPUs do 1.5 times the work, which a restart that costs more than a third of the age undoes."""
    alone = gp.Job("a", job_type="bert", gpu_counts=(4, 8), total_steps=1e7)
    for seconds, size in ((1.0, 8), (700.0, 4)):
        made = gp.RoundScheduler(gp.Cluster.from_inline("v100:8"), PROFILE, mechanism="direct", restart_seconds=seconds)
        made.submit(alone)
        made.submit(gp.Job("b", job_type="bert", num_gpus=4, total_steps=1e7, weight=5))
        for _ in range(3):
            assert len(made.next_round().assignments["a"].gpus) == 4
        made.complete("b")
        assert len(made.next_round().assignments["a"].gpus) == size  # kept of its age: (1080 - 0) / (1080 + 700) = 0.61
        for _ in range(12):
            found = made.next_round().assignments["a"]
        assert len(found.gpus) == 8


def test_the_numbers_of_gpus_of_a_job_can_be_changed() -> None:
    made = scheduler([gp.Job("a", job_type="lm", gpu_counts=(1, 2, 4), total_steps=1e7)], "direct")
    assert len(made.next_round().assignments["a"].gpus) == 4
    made.update("a", gpu_counts=(4, 8))
    assert len(made.running["a"].gpus) == 4  # it keeps what it may still run on
    made.update("a", gpu_counts=(1, 2))
    assert "a" not in made.running
    assert len(made.next_round().assignments["a"].gpus) == 2
    made.update("a", num_gpus=8)
    assert len(made.next_round().assignments["a"].gpus) == 8
    with pytest.raises(gp.InputError, match="num_gpus and gpu_counts are both given"):
        made.update("a", num_gpus=4, gpu_counts=(1, 2))


def test_a_changed_bound_keeps_the_other_one() -> None:
    def changed(job: dict[str, Any], **fields: Any) -> tuple[Any, ...]:
        made = scheduler([gp.Job("a", job_type="lm", total_steps=1e7, **job)])
        made.update("a", **fields)
        (found,) = made.jobs
        return found.gpu_counts or (found.gpu_range if found.is_elastic else found.num_gpus)

    assert changed({"min_gpus": 4, "max_gpus": 8}, max_gpus=4) == (4, 4)
    assert changed({"max_gpus": 8}, min_gpus=4) == (4, 8)
    assert changed({"max_gpus": 8}, max_gpus=4) == (1, 4)
    assert changed({"min_gpus": 2, "max_gpus": 8}, gpu_counts=(1, 2)) == (1, 2)
    assert changed({"gpu_counts": (2, 4)}, max_gpus=8) == (1, 8)
    assert changed({"min_gpus": 2, "max_gpus": 8}, num_gpus=2) == 2
    assert changed({"min_gpus": 2, "max_gpus": 8}, weight=2) == (2, 8)
    with pytest.raises(gp.InputError, match="min_gpus must not exceed max_gpus, found 2 and 1"):
        changed({"min_gpus": 2, "max_gpus": 8}, max_gpus=1)
    with pytest.raises(gp.InputError, match="min_gpus needs max_gpus"):
        changed({"gpu_counts": (2, 4)}, min_gpus=4)


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_saved_scheduler_goes_on_as_if_it_had_not_been_saved(mechanism: str, tmp_path: Path) -> None:
    made = scheduler(elastic(7), mechanism, restart_seconds=30, round_seconds=60)
    for _ in range(4):
        made.next_round()
    made.save(tmp_path / "s.json")
    again = gp.RoundScheduler.load(tmp_path / "s.json", PROFILE)
    for n in range(5):
        for each in (made, again):
            if n == 2:
                each.update("e1", gpu_counts=(1, 2))
        one, other = made.next_round(), again.next_round()
        assert one.to_dict() == other.to_dict()
    assert made.delivery() == again.delivery()


def test_a_node_that_fails_gives_back_gpu_rounds_and_numbers_that_no_longer_fit_are_not_chosen() -> None:
    made = scheduler([gp.Job("a", job_type="lm", gpu_counts=(4, 8, 16), total_steps=1e7, allowed_accelerators=("v100",))])
    assert len(made.next_round().assignments["a"].gpus) == 16
    assert made.node_down(CLUSTER.nodes[0].name) == ("a",)
    report = made.delivery().jobs["a"]
    assert report.delivered_by_type["v100"] == 0
    assert report.promised_by_type["v100"] == pytest.approx(16 * 360)
    found = made.next_round().assignments["a"]
    assert len(found.gpus) == 8
    assert {node for node, _ in found.gpus} == {CLUSTER.nodes[1].name}


def test_waiting_elastic_jobs_start_within_a_round() -> None:
    made = scheduler([gp.Job("a", job_type="lm", gpu_counts=(8,), total_steps=1e7, allowed_accelerators=("v100",))])
    made.next_round()
    made.submit(gp.Job("b", job_type="lm", gpu_counts=(2, 4), total_steps=1e7))
    started = made.start_waiting(100.0)
    assert len(started["b"].gpus) in (2, 4)
    report = made.delivery().jobs["b"]
    assert sum(report.delivered_by_type.values()) == pytest.approx(260 * len(started["b"].gpus))


def test_the_problem_of_rounds_is_that_of_the_jobs_in_every_field() -> None:
    nodes, table = NodeStates(CLUSTER), ScheduledJobs()
    cache = ProblemCache(CLUSTER, PROFILE, True, table.gang_numbers.models)
    jobs = [*elastic(4, cpus_per_gpu=0.5), gp.Job("r", job_type="bert", min_gpus=2, max_gpus=4, total_steps=5.0)]
    requests = table.requests_of(jobs)
    cache.complete(jobs, requests)
    expected = gp.AllocationProblem.from_jobs(jobs, CLUSTER, PROFILE)
    policy_input = PolicyInput.of_new(jobs, requests)
    assert_same(cache.problem_if_up(policy_input), expected)
    nodes.put(CLUSTER.nodes[0].name, gp.NodeState.DOWN)
    left = cache.problem(policy_input, nodes).counts
    assert left is not None
    assert left.offered(0, 0).keys() == {1, 2, 4, 8}
    assert expected.counts is not None
    assert expected.counts.offered(0, 0).keys() == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanism": "priority"}, "needs one of the mechanisms deficit, direct"),
        ({"mechanism": lambda demand: demand.running_on}, "needs one of the mechanisms deficit, direct"),
        ({"sharing": True}, "cannot be combined with sharing"),
        ({"policy": "fifo"}, "policy fifo: solves no program"),
        ({"policy": "finish_time_fairness"}, "policy finish_time_fairness: compares jobs with their isolated share"),
        ({"policy": "min_cost"}, "policy min_cost: .*give min_share"),
    ],
)
def test_what_does_not_go_with_elastic_jobs_refuses_them_when_they_are_submitted(options: dict[str, Any], message: str) -> None:
    made = gp.RoundScheduler(CLUSTER, PROFILE, **options)
    with pytest.raises(gp.InputError, match=message):
        made.submit(elastic(1)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharing": True}, "field sharing: cannot be used with the mechanism direct"),
        ({"by_events": True, "policy": "fifo"}, "field by_events: cannot be used with the mechanism direct"),
        ({"policy": gp.resolve_policy("max_min_fairness", constraints=[gp.CostBudget(3.0)])}, "limit allocations, which the mech"),
    ],
)
def test_what_does_not_go_with_the_direct_mechanism_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        gp.RoundScheduler(CLUSTER, PROFILE, mechanism="direct", **options)
    with pytest.raises(gp.InputError, match="must be a whole number with the mechanism direct"):
        scheduler([gp.Job("half", job_type="lm", num_gpus=0.5, total_steps=1.0)], "direct")


def test_fractions_of_gpus_do_not_go_with_elastic_jobs() -> None:
    half = gp.Job("half", job_type="lm", num_gpus=0.5, total_steps=1.0)
    for first, second in ((elastic(1)[0], half), (half, elastic(1)[0])):
        made = scheduler([first])
        with pytest.raises(gp.InputError, match="cannot be combined with fractions of a GPU"):
            made.submit(second)


def test_among_equal_jobs_those_that_run_go_on() -> None:
    jobs = [gp.Job(f"j{n}", job_type="resnet", num_gpus=8, total_steps=1e6) for n in range(6)]
    made = scheduler(jobs, "direct")
    first = made.next_round().assignments.keys()
    assert len(first) == 3
    assert all(made.next_round().assignments.keys() == first for _ in range(5))


def test_direct_rounds_of_fixed_gangs_promise_nothing_and_fill_the_cluster() -> None:
    jobs = [gp.Job(f"j{n}", job_type="resnet", num_gpus=4, total_steps=1e6) for n in range(9)]
    made = scheduler(jobs, "direct")
    found = made.next_round().assignments
    assert len(found) == 6
    assert made.allocation is not None
    assert made.allocation.status == "direct"
    assert not made.allocation.time_fractions.any()


def test_an_elastic_job_alone_takes_the_time_of_its_best_number_and_a_restart() -> None:
    trace = [gp.Job("a", job_type="lm", gpu_counts=SIZES, total_steps=4e4)]
    result = gp.simulate(trace, CLUSTER, PROFILE, mechanism="direct", restart_seconds=30)
    record = result.jobs["a"]
    assert record.jct_seconds == pytest.approx(30 + 4e4 / (0.5 * 8))
    assert record.gpu_seconds == pytest.approx(8 * record.running_seconds)
    assert record.lost_gpu_seconds == pytest.approx(8 * 30)


@pytest.mark.deep
def test_elastic_jobs_end_much_earlier_than_gangs() -> None:
    durations = gp.LogUniform([(1.0, 900, 7200)])
    trace = gp.generate_trace(25, PROFILE, jobs_per_hour=6, gang_mix={1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}, durations=durations, seed=1)
    played = (trace, trace.with_elastic_jobs(8))
    fixed, elastic = (gp.simulate(each, CLUSTER, PROFILE, mechanism="direct", restart_seconds=30).summary.jct for each in played)
    assert fixed.mean is not None
    assert elastic.mean is not None
    assert fixed.mean / elastic.mean >= 1.5


@pytest.mark.deep
def test_a_round_of_ten_thousand_jobs_is_proven_nearly_the_best(caplog: pytest.LogCaptureFixture) -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2000/8,k80:1000/4"), PROFILE, mechanism="direct", restart_seconds=30)
    chance = np.random.default_rng(1)
    kinds = chance.integers(0, 3, 10_000).tolist()
    names = ("resnet", "bert", "lm")
    made.submit_all([gp.Job(f"j{n}", job_type=names[k], gpu_counts=SIZES, total_steps=1e7) for n, k in enumerate(kinds)])
    with caplog.at_level("DEBUG", "gavel_py.scheduling.mechanism.elastic"):
        held = [made.next_round().assignments for _ in range(2)]
    gaps = [float(record.args[1]) for record in caplog.records if isinstance(record.args, tuple)]
    assert len(gaps) >= 2
    assert max(gaps) <= 1e-4
    assert all(sum(len(each.gpus) for each in found.values()) == 3000 for found in held)


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_whole_round_places_gangs_of_many_sizes_on_all_gpus(mechanism: str) -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:192/8,k80:64/8"), PROFILE, mechanism=mechanism, restart_seconds=30)
    names = ("resnet", "bert", "lm")
    made.submit_all([gp.Job(f"j{n}", job_type=names[n % 3], gpu_counts=SIZES, total_steps=1e7) for n in range(100)])
    for _ in range(3):
        found = made.next_round().assignments
        used = [gpu for each in found.values() for gpu in each.gpus]
        assert len(used) == len(set(used)) >= 0.95 * 256
        assert all(len(each.gpus) in SIZES and len({node for node, _ in each.gpus}) == 1 for each in found.values())
    assert len({len(each.gpus) for each in found.values()}) > 1


@pytest.mark.deep
@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_simulation_does_all_the_work_and_counts_every_gpu(mechanism: str) -> None:
    chance = np.random.default_rng(3)
    names = ("resnet", "bert", "lm")
    trace = [
        gp.Job(
            f"j{n}",
            job_type=names[n % 3],
            gpu_counts=SIZES,
            total_steps=float(chance.uniform(2e3, 2e4)),
            arrival_seconds=300.0 * n,
        )
        for n in range(15)
    ]
    result = gp.simulate(trace, CLUSTER, PROFILE, mechanism=mechanism, restart_seconds=20, round_seconds=120)
    assert all(record.steps_done == record.total_steps for record in result.jobs.values())
    used = sum(each["used"] for each in result.summary.usage.values())
    assert used == pytest.approx(sum(record.gpu_seconds for record in result.jobs.values()))
    fixed = [job.model_copy(update={"gpu_counts": None, "num_gpus": 4}) for job in trace]
    slower = gp.simulate(fixed, CLUSTER, PROFILE, mechanism=mechanism, restart_seconds=20, round_seconds=120)
    assert np.mean([r.jct_seconds for r in result.jobs.values()]) < np.mean([r.jct_seconds for r in slower.jobs.values()])


@pytest.mark.deep
@pytest.mark.parametrize("seed", [0, 3])
def test_rounds_deliver_the_throughput_that_an_allocation_promises(seed: int) -> None:
    """GPU-rounds alone do not suffice: a job that waits and then has many GPUs does less work with as many GPU-rounds."""
    chance = np.random.default_rng(seed)
    powers, rates = chance.uniform(0.5, 0.95, 6), chance.uniform(1, 5, (6, 2))
    rows = [
        gp.Measurement(job_type=f"m{k}", num_gpus=n, accelerator=name, steps_per_second=float(rates[k, j] * n ** powers[k]))
        for k in range(6)
        for j, name in enumerate(TYPES)
        for n in SIZES
    ]
    profile, rounds = gp.ThroughputProfile("powers", rows), 150
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:32/8,k80:32/8"), profile)
    types = {f"j{i}": f"m{k}" for i, k in enumerate(chance.integers(6, size=20))}
    made.submit_all([gp.Job(job_id, job_type=job_type, gpu_counts=SIZES) for job_id, job_type in types.items()])
    work, starts = Counter[str](), 0
    for _ in range(rounds):
        begun = made.next_round()
        starts += len(begun.started)
        for job_id, held in begun.assignments.items():
            work[job_id] += profile.throughput(types[job_id], len(held.gpus), held.accelerator) / rounds
    allocation = made.allocation
    assert allocation is not None
    delivered = [work[job_id] / promised for job_id, promised in zip(allocation.job_ids, allocation.throughputs, strict=True)]
    assert min(delivered) > 0.96
    assert np.median(delivered) > 0.985
    assert starts < 0.25 * 20 * rounds


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_round_without_an_option_for_any_elastic_job_is_empty(mechanism: str) -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2"), PROFILE, mechanism=mechanism)
    made.submit(gp.Job("large", job_type="lm", gpu_counts=(8,)))
    assert not made.next_round().assignments


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_round_without_jobs_is_empty(mechanism: str) -> None:
    made = scheduler([], mechanism)
    assert made.plan_next().assignments == made.next_round().assignments == {}
    made.submit(gp.Job("a", job_type="lm", gpu_counts=SIZES, total_steps=1e7))
    assert set(made.next_round().assignments) == {"a"}
    made.complete("a")
    assert made.next_round().assignments == {}
    assert made.start_waiting(1080.0) == {}


@pytest.mark.parametrize("mechanism", ["deficit", "direct"])
def test_a_range_has_only_multiples_of_the_gpus_of_a_node(mechanism: str) -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:16/4"), PROFILE, mechanism=mechanism)
    made.submit(gp.Job("a", job_type="resnet", max_gpus=8, gpus_per_node=4))
    assert len(made.next_round().assignments["a"].gpus) == 8
    with pytest.raises(gp.MissingThroughputError, match="no gang of 1 to 2 GPUs that is a multiple of 4"):
        made.submit(gp.Job("b", job_type="resnet", max_gpus=2, gpus_per_node=4))


def test_an_elastic_job_may_become_one_with_a_part_of_a_gpu() -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2"), PROFILE)
    made.submit(gp.Job("first", job_type="lm", total_steps=1e7))
    made.submit(gp.Job("a", job_type="lm", gpu_counts=(1, 2), total_steps=1e7, depends_on=("first",)))
    made.update("a", gpu_counts=None, num_gpus=0.5)
    made.complete("first")
    assert set(made.next_round().assignments) == {"a"}
