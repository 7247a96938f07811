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
