"""Forced assignments equal those that a mechanism selects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling import planner as choosing
from gavel_py.scheduling.placement.free_gpus import FreeGpus, FreeResources
from gavel_py.scheduling.placement.topology import Layout
from tests.support.examples import examples
from tests.support.profiles import OSDI

TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 40)", "Transformer (batch size 64)")
POLICIES = ("fifo", "fifo,preemptive=false", "fifo,backfill=true", "shortest_job_first", "priority", "max_min_fairness", "isolated")


@contextmanager
def always_choosing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choosing, "forced_gangs", lambda *_, **__: None)
        yield


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Submission]:
    found, arrival = [], 0.0
    for i in range(draw(st.integers(1, 25))):
        arrival += draw(st.sampled_from([0.0, 1.0, 90.0, 700.0]))
        job = gp.Job(
            f"j{i}",
            job_type=draw(st.sampled_from(TYPES)),
            num_gpus=draw(st.sampled_from([1, 1, 2, 4, 8])),
            arrival_seconds=arrival,
            total_steps=draw(st.sampled_from([300.0, 4e3, 2e4])),
            priority=draw(st.sampled_from([0.0, 1.0])),
            locality=draw(st.sampled_from(["any", "any", "node", "rack"])),
            cpus_per_gpu=draw(st.sampled_from([0.0, 3.0])),
        )
        found.append(
            gp.Submission(
                job, failed_attempts=draw(st.integers(0, 1)), cancelled_seconds=draw(st.none() | st.just(arrival + 300.0))
            )
        )
    return found


def rounds(trace: list[gp.Submission], cluster: gp.Cluster, policy: str, **options: Any) -> list[gp.Round]:
    name, *rest = policy.split(",")
    chosen = gp.resolve_policy(name, **dict(each.split("=") for each in rest))
    found: list[gp.Round] = []
    gp.simulate(trace, cluster, OSDI, chosen, on_round=found.append, job_failures="recorded", until_seconds=2e4, **options)
    return found


@pytest.mark.deep
@settings(max_examples=examples(40, costly=True))
@given(
    trace=traces(),
    policy=st.sampled_from(POLICIES),
    by_events=st.booleans(),
    gpus=st.sampled_from(["v100:8/4,k80:8/8", "v100:32/4,k80:32/8", "v100:6/3,p100:7/2"]),
    cpus=st.sampled_from([None, 8]),
    restart=st.sampled_from([0.0, 40.0]),
    fails=st.booleans(),
)
def test_rounds_are_the_same(
    trace: list[gp.Submission], policy: str, by_events: bool, gpus: str, cpus: int | None, restart: float, fails: bool
) -> None:
    cluster = gp.Cluster(node.model_copy(update={"cpus": cpus}) for node in gp.Cluster.from_inline(gpus).nodes)
    options: dict[str, Any] = {"restart_seconds": restart, "node_failures": gp.NodeFailures(9000, 900) if fails else None}
    if by_events and policy not in ("max_min_fairness", "isolated"):
        options["round_seconds"] = None
    with always_choosing():
        expected = rounds(trace, cluster, policy, **options)
    assert rounds(trace, cluster, policy, **options) == expected


@given(sizes=st.lists(st.integers(1, 4), max_size=10), size=st.integers(1, 5), data=st.data())
def test_the_tightest_node_equals_place(sizes: list[int], size: int, data: st.DataObject) -> None:
    """`take_tightest` equals `place` for gangs that fit on one node."""
    nodes = gp.Cluster.from_inline("v100:13/4").nodes
    gangs = [gp.scheduling.Gang(f"g{i}", each, "v100") for i, each in enumerate(sizes)]
    places = gp.scheduling.place(nodes, gangs)
    taken = {gpu for gpus in places.values() if data.draw(st.booleans()) for gpu in gpus}
    alone = gp.scheduling.place(nodes, [gp.scheduling.Gang("new", size, "v100", "node")], taken)
    pool = FreeResources(Layout(nodes), taken)
    found = FreeGpus(pool.layout.parts[0], pool.free, pool.cpus, pool.memory_gb).take_tightest(size)
    assert tuple(pool.layout.named(found)) == alone.get("new", ())
