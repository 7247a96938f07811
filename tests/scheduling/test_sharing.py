"""Rounds of jobs that share GPUs: both members of a pair at once, on the same GPUs, as long as they were promised."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.colocation.groups import ColocationLedger, PartnerKey
from tests.support.examples import examples
from tests.support.profiles import OSDI

TYPES = ("v100", "p100", "k80")
KINDS = [
    (name, size)
    for name in OSDI.job_types
    for size in (1, 2, 4)
    if all(OSDI.has(name, size, kind) and OSDI.throughput(name, size, kind) > 0 for kind in TYPES)
]
GAINING = ("LM (batch size 80)", "ResNet-18 (batch size 64)")


def jobs_of(kinds: list[int]) -> list[gp.Job]:
    return [gp.Job(f"job-{n}", job_type=KINDS[k][0], num_gpus=KINDS[k][1], total_steps=1e7) for n, k in enumerate(kinds)]


def cluster_of(nodes: list[int]) -> gp.Cluster:
    named = (gp.Node(name=f"{TYPES[t]}-{n}", accelerator=TYPES[t], num_gpus=4) for n, t in enumerate(nodes))
    return gp.Cluster(named)


def scheduler_of(jobs: list[gp.Job], cluster: gp.Cluster, **options: object) -> gp.RoundScheduler:
    scheduler = gp.RoundScheduler(cluster, OSDI, **({"sharing": True} | options))
    for job in jobs:
        scheduler.submit(job)
    return scheduler


def check_round(begun: gp.Round, jobs: list[gp.Job]) -> None:
    """Gangs are whole; each GPU has one job, or two of equal gangs that share all of their GPUs and list each other."""
    sizes = {job.job_id: job.num_gpus for job in jobs}
    holders = Counter(gpu for held in begun.assignments.values() for gpu in held.gpus)
    for job_id, held in begun.assignments.items():
        assert len(set(held.gpus)) == sizes[job_id]
        assert len(held.shared_with) <= 1
        assert {holders[gpu] for gpu in held.gpus} == {1 + len(held.shared_with)}
        for other in held.shared_with:
            assert begun.assignments[other].gpus == held.gpus
            assert begun.assignments[other].shared_with == (job_id,)
            assert sizes[other] == sizes[job_id]


@given(
    st.lists(st.integers(0, len(KINDS) - 1), min_size=2, max_size=14),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.sampled_from(["max_min_fairness", "max_total_throughput"]),
    st.sampled_from(["deficit", "priority"]),
    st.data(),
)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
def test_gpus_are_shared_by_pairs_as_whole_gangs_whatever_happens(
    kinds: list[int], nodes: list[int], policy: str, mechanism: str, data: st.DataObject
) -> None:
    jobs, cluster = jobs_of(kinds), cluster_of(nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gp.GavelWarning)
        scheduler = scheduler_of(jobs, cluster, policy=policy, mechanism=mechanism)
    for _ in range(4):
        begun = scheduler.next_round()
        check_round(begun, jobs)
        gone = data.draw(st.sampled_from(["nothing", "job", "node", "plan"]))
        if gone == "job" and len(scheduler.jobs) > 1:
            scheduler.cancel(data.draw(st.sampled_from([job.job_id for job in scheduler.jobs])))
        elif gone == "node" and len(nodes) > 1:
            scheduler.node_down(data.draw(st.sampled_from([node.name for node in cluster.nodes])))
        elif gone == "plan":
            check_round(scheduler.plan_next(), jobs)


def two_that_gain(**options: object) -> gp.RoundScheduler:
    jobs = [gp.Job(job_id, job_type=kind) for job_id, kind in zip("ab", GAINING, strict=True)]
    return scheduler_of(jobs, gp.Cluster.from_counts({"v100": 1}), **options)


def test_two_that_gain_have_the_gpu_together_and_keep_it() -> None:
    scheduler = two_that_gain()
    first, *later = [scheduler.next_round() for _ in range(4)]
    assert {job_id: held.shared_with for job_id, held in first.assignments.items()} == {"a": ("b",), "b": ("a",)}
    assert all(begun.kept == ("a", "b") for begun in later)
    assert scheduler.delivery().undelivered_share == 0.0


def test_without_sharing_they_take_turns() -> None:
    scheduler = two_that_gain(sharing=False)
    assert all(len(scheduler.next_round().assignments) == 1 for _ in range(4))


def test_the_remaining_partner_continues_in_place() -> None:
    scheduler = two_that_gain()
    scheduler.next_round()
    scheduler.complete("a")
    assert scheduler.running["b"].shared_with == ()
    begun = scheduler.next_round()
    assert (begun.kept, begun.assignments["b"].shared_with) == (("b",), ())


def test_a_job_that_leaves_after_the_plan_is_no_partner() -> None:
    scheduler = two_that_gain()
    scheduler.next_round()
    assert scheduler.plan_next().assignments["b"].shared_with == ("a",)
    scheduler.cancel("a")
    assert scheduler.next_round().assignments["b"].shared_with == ()


def test_a_new_job_joins_a_running_one_without_moving_it() -> None:
    scheduler = two_that_gain()
    scheduler.cancel("a")
    assert set(scheduler.next_round().assignments) == {"b"}
    scheduler.submit(gp.Job("c", job_type=GAINING[0]))
    begun = scheduler.next_round()
    assert (begun.kept, begun.started) == (("b",), ("c",))


def test_each_of_two_counts_for_half_of_the_gpus_that_they_have() -> None:
    scheduler = two_that_gain(policy="max_min_fairness")
    scheduler.next_round()
    held = scheduler.running["a"]
    assert (held.gpu_share, len(held.gpus)) == (0.5, 1)
    assert attained(scheduler, "a") == [180.0]
    scheduler.node_down("v100-0")
    assert attained(scheduler, "a", "b") == [0.0, 0.0]


def test_cpus_of_a_node_must_do_for_both() -> None:
    jobs = [gp.Job(job_id, job_type=kind, cpus_per_gpu=6) for job_id, kind in zip("ab", GAINING, strict=True)]
    for cpus, together in ((8, 0), (12, 1)):
        cluster = gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=1, cpus=cpus)])
        scheduler = scheduler_of(jobs, cluster)
        for _ in range(3):
            begun = scheduler.next_round()
            assert all(len(held.shared_with) == together for held in begun.assignments.values())
            assert begun.assignments


def test_what_is_promised_to_many_is_delivered() -> None:
    """Pairs of changing partners on three types: deficits stay bounded, and shortfalls small."""
    jobs = jobs_of([n % len(KINDS) for n in range(0, 96, 2)])
    scheduler = scheduler_of(jobs, cluster_of([0, 0, 1, 1, 2, 2]))
    for _ in range(60):
        check_round(scheduler.next_round(), jobs)
    assert any(held.shared_with for held in scheduler.running.values())
    assert scheduler.delivery().undelivered_share < 0.06


def test_a_saved_scheduler_continues_with_the_same_partners(tmp_path: Path) -> None:
    jobs = jobs_of([3 * n % len(KINDS) for n in range(20)])
    scheduler = scheduler_of(jobs, cluster_of([0, 1, 2]))
    for _ in range(5):
        scheduler.next_round()
    scheduler.save(tmp_path / "state")
    again = gp.RoundScheduler.load(tmp_path / "state", OSDI)
    for _ in range(5):
        assert again.next_round().to_dict() == scheduler.next_round().to_dict()


def test_colocation_accounts_end_with_their_promise() -> None:
    ledger, one, other = ColocationLedger(), PartnerKey("a", "x", "v100"), PartnerKey("b", "x", "v100")
    ledger.record([one, other], np.array([0.5, 1.0]), np.array([0.0, 1.0]))
    assert ledger.deficits([one, other]).tolist() == [0.5, 0.0]
    ledger.receive(other, -1.0)
    assert ledger.deficits([other]).tolist() == [1.0]
    ledger.keep([one])
    assert ledger.deficits([one, other]).tolist() == [0.5, 0.0]
    assert ColocationLedger.from_list(ledger.to_list()).deficits([one]).tolist() == [0.5]
    ledger.forget({"a"})
    assert ledger.deficits([one]).tolist() == [0.0]


def test_deficits_of_colocation_stay_within_the_bounds_of_those_of_jobs() -> None:
    """Promised a tenth and always together; promised all and never together; and beyond both within rounds."""
    ledger, keys = ColocationLedger(), [PartnerKey("a", "x", "v100"), PartnerKey("b", "x", "v100")]
    for _ in range(30):
        ledger.record(keys, np.array([0.1, 1.0]), np.array([1.0, 0.0]))
    assert ledger.deficits(keys).tolist() == [-1.0, 10.0]
    for _ in range(30):
        ledger.receive(keys[0], 0.5)
        ledger.receive(keys[1], -0.5)
    assert ledger.deficits(keys).tolist() == [-10.0, 10.0]


def test_a_profile_without_pairs_shares_nothing() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[2.0], [2.0]], job_ids=["a", "b"], accelerators=["v100"])
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds, sharing=True)
    for job_id in "ab":
        scheduler.submit(gp.Job(job_id))
    assert len(scheduler.next_round().assignments) == 1


def test_gangs_that_need_different_numbers_of_gpus_on_a_node_do_not_share() -> None:
    alone = [gp.Measurement(job_type=name, num_gpus=2, accelerator="v100", steps_per_second=1.0) for name in "ab"]
    pairs = [
        gp.Measurement(
            job_type=one, num_gpus=2, accelerator="v100", steps_per_second=0.9, partner_job_type=other, partner_steps_per_second=0.9
        )
        for one, other in ("aa", "ab", "bb")
    ]
    cluster = gp.Cluster([gp.Node(name=f"n{n}", accelerator="v100", num_gpus=2) for n in range(2)])
    scheduler = gp.RoundScheduler(cluster, gp.ThroughputProfile("pairs", [*alone, *pairs]), sharing=True)
    needs = [2, 1, 2, 1, 2, 2, 1, None]
    jobs = {
        f"j{n}": gp.Job(f"j{n}", job_type="ab"[n % 2], num_gpus=2, total_steps=1e7, gpus_per_node=each)
        for n, each in enumerate(needs)
    }
    scheduler.submit_all(jobs.values())
    shared = Counter[tuple[int | None, int | None]]()
    for _ in range(12):
        for job_id, held in scheduler.next_round().assignments.items():
            need, nodes = jobs[job_id].gpus_per_node, {node for node, _ in held.gpus}
            assert need is None or len(nodes) == 2 // need
            shared.update((need, jobs[other].gpus_per_node) for other in held.shared_with)
    assert {(2, 2), (1, 1)} <= shared.keys()
    assert not shared.keys() & {(1, 2), (2, 1)}


@pytest.mark.parametrize("least", [0.5, float("nan"), "much"])
def test_a_gain_below_one_is_refused(least: object) -> None:
    with pytest.raises(gp.InputError, match="min_gain"):
        gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), OSDI, sharing=True, min_gain=least)


def attained(scheduler: gp.RoundScheduler, *job_ids: str) -> list[float]:
    """GPU-seconds that jobs have received."""
    table = scheduler._state.table
    return [table.columns["attained_gpu_seconds"].item(table.known(job_id)) for job_id in job_ids]
