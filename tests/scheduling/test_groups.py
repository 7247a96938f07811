"""Nodes that are put into other groups of their GPU types while jobs run: jobs, accounts and running gangs stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.io.snapshots import decode

SPEEDS = {"v100": 4.0, "k80": 1.0}
PROFILE = gp.ThroughputProfile(
    "two",
    [
        gp.Measurement(job_type="lm", num_gpus=gpus, accelerator=name, steps_per_second=speed * gpus)
        for gpus in (1, 2, 4, 8)
        for name, speed in SPEEDS.items()
    ],
)
KINDS = ("v100", "v100", "v100", "v100", "k80", "k80")


def cluster(groups: str) -> gp.Cluster:
    """Return nodes of 4 GPUs in groups, with a digit for each node; those with 0 have the name of the type."""
    names = [kind if digit == "0" else f"{kind} {digit}" for kind, digit in zip(KINDS, groups, strict=True)]
    nodes = [gp.Node(name=f"n{i}", accelerator=name, num_gpus=4) for i, name in enumerate(names)]
    types = dict(zip(names, KINDS, strict=True))
    return gp.Cluster(nodes, [gp.AcceleratorType(name=n, profile_name=None if n == kind else kind) for n, kind in types.items()])


def job(name: str, gpus: int, **fields: object) -> gp.Job:
    return gp.Job(name, job_type="lm", num_gpus=gpus, total_steps=1e6, **fields)  # type: ignore[arg-type]


def places(scheduler: gp.RoundScheduler) -> dict[str, list[tuple[str, int]]]:
    return {job_id: held.gpus for job_id, held in scheduler.running.items()}


def by_type(scheduler: gp.RoundScheduler) -> dict[str, list[list[float]]]:
    """Return {table: values of each job by GPU type} of the accounts."""
    kinds = scheduler.cluster.profile_names
    ledger = scheduler.to_dict()["scheduler"]["ledger"]
    tables = {name: decode(ledger[name]) for name in ("promised", "delivered", "deficits", "offered")}
    columns = [[i for i, each in enumerate(kinds) if each == kind] for kind in ("v100", "k80")]
    return {name: [table[..., at].sum(axis=-1).tolist() for at in columns] for name, table in tables.items()}


GROUPS = st.text("012", min_size=6, max_size=6)


@pytest.mark.deep
@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=9), st.lists(GROUPS, min_size=1, max_size=3), st.booleans())
@example(sizes=[2, 2, 2, 2, 2, 8], groupings=["000000"], only_v100=True)  # a gang whose first GPUs are not on its first node
def test_accounts_and_running_gangs_stay(sizes: list[int], groupings: list[str], only_v100: bool) -> None:
    scheduler = gp.RoundScheduler(cluster("000000"), PROFILE)
    for i, gpus in enumerate(sizes):
        scheduler.submit(job(f"j{i}", gpus, allowed_accelerators=("v100",) if only_v100 and i % 2 else None))
    for groups in groupings:
        for _ in range(2):
            scheduler.next_round()
        before, held, accounts = scheduler.running, places(scheduler), by_type(scheduler)
        stopped = scheduler.regroup(cluster(groups))
        apart = {i for i, each in before.items() if len({(KINDS[int(n[1])], groups[int(n[1])]) for n, _ in each.gpus}) > 1}
        assert set(stopped) == apart
        assert places(scheduler) == {job_id: gpus for job_id, gpus in held.items() if job_id not in apart}
        for name, table in by_type(scheduler).items():
            np.testing.assert_allclose(table, accounts[name], atol=1e-9)
        again = gp.RoundScheduler.from_dict(scheduler.to_dict(), PROFILE)
        found = scheduler.next_round()
        assert again.next_round() == found
        assert all(each.gpus and scheduler.cluster.nodes_of(each.accelerator) for each in found.assignments.values())
        types = {job_id: {KINDS[int(node[1])] for node, _ in each.gpus} for job_id, each in found.assignments.items()}
        assert all(types[f"j{i}"] == {"v100"} for i in range(len(sizes)) if only_v100 and i % 2 and f"j{i}" in types)


def test_a_job_that_may_still_run_there_keeps_its_gpus() -> None:
    scheduler = gp.RoundScheduler(cluster("000111"), PROFILE)
    scheduler.submit_all([job("a", 4), job("b", 4)])
    scheduler.next_round()
    held = scheduler.running
    for name, each in held.items():
        scheduler.update(name, allowed_accelerators=(each.accelerator,))
    assert scheduler.running == held
    scheduler.update("a", allowed_accelerators=("k80",))
    assert scheduler.running.keys() == {"b"}


@pytest.mark.parametrize("other", [gp.Cluster(cluster("000000").nodes[:5]), gp.Cluster.from_counts({"v100": (24, 4)})])
def test_other_nodes_are_refused(other: gp.Cluster) -> None:
    scheduler = gp.RoundScheduler(cluster("000000"), PROFILE)
    with pytest.raises(gp.InputError, match="node 'n5': must have the same GPUs when groups change: it had 4 GPUs of type k80"):
        scheduler.regroup(other)


@pytest.mark.parametrize("is_blocked", [False, True])
def test_groups_on_which_the_speed_of_a_job_is_unknown_are_refused(is_blocked: bool) -> None:
    """Before, the type of the group had no GPUs, so nobody asked how fast the job is there."""
    nodes = (("n0", "v100 1"), ("n1", "k80"))
    types = [gp.AcceleratorType(name=name, profile_name=name.split()[0]) for name in ("v100", "k80", "v100 1")]

    def grouped(first: str) -> gp.Cluster:
        return gp.Cluster([gp.Node(name=n, accelerator=first if n == "n0" else kind, num_gpus=4) for n, kind in nodes], types)

    rows = [
        gp.Measurement(job_type="lm", num_gpus=gpus, accelerator=name, steps_per_second=1.0)
        for gpus, name in ((1, "v100"), (1, "k80"), (2, "k80"))
    ]
    scheduler = gp.RoundScheduler(grouped("v100 1"), gp.ThroughputProfile("less", rows))
    scheduler.submit(job("first", 1))
    depends_on = ("first",) if is_blocked else ()
    scheduler.submit(job("wide", 2, allowed_accelerators=("v100", "k80"), depends_on=depends_on))
    scheduler.next_round()
    before = scheduler.to_dict()
    with pytest.raises(gp.MissingThroughputError, match=r"no throughput of 'lm' on 2 x v100 .*needed by job 'wide'"):
        scheduler.regroup(grouped("v100"))
    assert scheduler.to_dict() == before
    scheduler.cancel("wide")
    assert scheduler.regroup(grouped("v100")) == ()
    assert set(scheduler.next_round().assignments) == {"first"}


def test_types_that_the_profile_lacks_are_left_out_of_groups_if_they_have_no_gpus() -> None:
    nodes = [gp.Node(name="n0", accelerator="v100", num_gpus=4)]
    scheduler = gp.RoundScheduler(gp.Cluster(nodes), PROFILE)
    scheduler.submit(job("a", 1))
    scheduler.next_round()
    with pytest.warns(gp.GavelWarning, match="0 GPUs are ignored: accelerator 'h900'"):
        scheduler.regroup(gp.Cluster(nodes, [gp.AcceleratorType(name=name) for name in ("v100", "h900")]))
    assert set(scheduler.next_round().assignments) == {"a"}
    with pytest.raises(gp.UnknownNameError, match="accelerator 'h900'"):
        scheduler.regroup(gp.Cluster([gp.Node(name="n0", accelerator="h900", num_gpus=4)]))
