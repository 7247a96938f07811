"""What is kept of jobs makes the same problem as asking for everything anew, in every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.problem.from_jobs import hosts_of, largest_gangs
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache
from tests.support.examples import examples
from tests.support.profiles import OSDI

CLUSTER = gp.Cluster(
    [
        gp.Node(name=f"{kind}-{i}", accelerator=kind, num_gpus=4, rack=f"r{i % 2}", cpus=8 + i)
        for kind in ("v100", "k80")
        for i in range(3)
    ],
    [gp.AcceleratorType(name="v100", memory_gb=16), gp.AcceleratorType(name="k80", memory_gb=12)],
)
TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 40)", "ResNet-18 (batch size 64)")


@st.composite
def jobs(draw: st.DrawFn, number: int) -> gp.Job:
    fields_: dict[str, Any] = {"total_steps": draw(st.sampled_from([100.0, 5e4]))}
    if draw(st.booleans()):
        fields_ = {"duration_seconds": 500.0, "duration_accelerator": "v100"}
    if draw(st.booleans()):
        fields_ |= draw(st.sampled_from([{"deadline_seconds": 1e4}, {"deadline_factor": 1.5}]))
    return gp.Job(
        f"j{number}",
        job_type=draw(st.sampled_from(TYPES)),
        num_gpus=draw(st.sampled_from([1, 2, 4, 8])),
        weight=draw(st.sampled_from([1.0, 2.0])),
        priority=draw(st.sampled_from([0.0, 3.0])),
        steps_done=draw(st.sampled_from([0.0, 7.5, 100.0])),
        arrival_seconds=draw(st.sampled_from([0.0, 50.0])),
        tenant=draw(st.sampled_from(["", "a"])),
        allowed_accelerators=draw(st.sampled_from([None, ("k80",)])),
        locality=draw(st.sampled_from(["any", "rack", "node"])),
        cpus_per_gpu=draw(st.sampled_from([0.0, 1.5, 9.0])),
        gpu_memory_gb=draw(st.sampled_from([None, None, 8.0, 14.0, 20.0])),
        **fields_,
    )


@settings(max_examples=examples(60, costly=True))
@given(data=st.data(), whole_gangs=st.booleans(), down=st.booleans(), sharing=st.booleans())
def test_the_problem_is_the_same_in_every_field(data: st.DataObject, whole_gangs: bool, down: bool, sharing: bool) -> None:
    nodes, table = NodeStates(CLUSTER), ScheduledJobs()
    cache = ProblemCache(CLUSTER, OSDI, whole_gangs, table.gang_numbers.models)
    if down:
        nodes.put("v100-0", gp.NodeState.DOWN)
    there: dict[str, gp.Job] = {}
    for _ in range(4):  # jobs come, go, change and make progress
        for number in data.draw(st.sets(st.integers(0, 6), max_size=4)):
            if f"j{number}" in there and data.draw(st.booleans()):
                del there[f"j{number}"]
            else:
                there[f"j{number}"] = data.draw(jobs(number))
        count, now, running = len(there), data.draw(st.sampled_from([0.0, 33.3])), [(0, -1, 1)[i % 3] for i in range(len(there))]
        past = np.arange(float(count)), np.full(count, 0.5), np.full(count, 2.0), np.array(running, dtype=np.int64)
        history = dict(zip(("waiting_seconds", "isolated_seconds", "attained_gpu_seconds", "running_on"), past, strict=True))
        if data.draw(st.booleans()):
            history["previous_fractions"] = np.full((count, 2), 0.25)
        requests = table.requests_of(list(there.values()))
        cache.complete(list(there.values()), requests)
        objects = np.array([*there.values(), None], dtype=object)[:-1]
        policy_input = PolicyInput(
            now, past[3], objects, requests["gangs"], requests, history, gp.SchedulerOptions(sharing=sharing)
        )
        expected = gp.AllocationProblem.from_jobs(
            there.values(), CLUSTER, OSDI, now_seconds=now, **history, whole_gangs=whole_gangs, sharing=sharing
        )
        assert_same(cache.problem_if_up(policy_input), expected)
        if down:
            assert_same(cache.problem(policy_input, nodes), on_the_nodes_left(expected, list(there.values()), nodes))


def on_the_nodes_left(problem: gp.AllocationProblem, there: list[gp.Job], nodes: NodeStates) -> gp.AllocationProblem:
    """Return the problem on the nodes that are up, built from the jobs."""
    left, hosts = nodes.available, problem.hosts
    found = problem.with_capacities(left.capacities, largest_gangs=largest_gangs(there, left))
    why = {i: reason if i in problem.excluded else f"{nodes.reason}: {reason}" for i, reason in found.excluded.items()}
    hosts = hosts and hosts_of(left, hosts.localities, hosts.per_gpu, hosts.speeds, hosts.gpu_memory)
    return replace(found, excluded=why, hosts=hosts)


def assert_same(one: Any, other: Any, where: str = "problem") -> None:
    assert type(one) is type(other), where
    if hasattr(one, "__dataclass_fields__"):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, where)
    else:
        assert one == other, where


def test_an_error_names_the_job_that_is_refused_and_not_an_equal_one_before_it() -> None:
    """What is kept of a gang begins with a job of that gang, which may have been refused."""
    scheduler = gp.RoundScheduler(CLUSTER, OSDI)
    wide = [gp.Job(f"j{i}", job_type="A3C", num_gpus=2, total_steps=10) for i in range(5)]
    for some in (wide[:1], wide[1:2], wide[2:]):
        with pytest.raises(gp.MissingThroughputError, match=f"needed by job '{some[0].job_id}'"):
            scheduler.submit_all(some)
    scheduler.submit(gp.Job("one", job_type="A3C", total_steps=10))
    assert set(scheduler.next_round().assignments) == {"one"}


class Doubled(gp.ThroughputProfile):
    """Speeds of one job are twice those of others with an equal gang."""

    def matrix(self, jobs: Sequence[gp.Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        factors = [2.0 if job.job_id == "fast" else 1.0 for job in jobs]
        return super().matrix(jobs, accelerators) * np.array(factors)[:, None]


def test_a_profile_of_the_user_may_distinguish_jobs_with_equal_gangs() -> None:
    class Alike(gp.ThroughputProfile, by_type=True):
        pass

    assert (gp.ThroughputProfile.is_by_type, Alike.is_by_type, Doubled.is_by_type) == (True, True, False)
    known = gp.Measurement(job_type="t", num_gpus=1, accelerator="v100", steps_per_second=3.0)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 2}), Doubled("own", [known]), "isolated")
    scheduler.submit_all([gp.Job(name, job_type="t") for name in ("fast", "slow")])
    scheduler.next_round()
    assert scheduler.allocation is not None
    assert scheduler.allocation.throughputs.tolist() == [6.0, 3.0]
