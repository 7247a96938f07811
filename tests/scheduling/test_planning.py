"""A whole round: choosing and placing together, on any cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.scheduling.placement import largest_free
from tests.scheduling.support import nodes, play_on
from tests.support.examples import examples


def names(rounds: list[Mapping[str, gp.Assignment]]) -> list[str]:
    """The jobs of each round in one word, for jobs named by a letter."""
    return ["".join(assignments) for assignments in rounds]


def test_gpus_that_a_node_gang_cannot_use_go_to_the_next_in_line() -> None:
    """By count there are GPUs for a, b and c, but no third node for c; d, e and f, without a deficit, get the rest."""
    jobs = [
        *(gp.Job(name, num_gpus=4, locality="node") for name in "abc"),
        gp.Job("d", num_gpus=2),
        gp.Job("e"),
        gp.Job("f"),
        gp.Job("g"),
    ]
    rounds, _ = play_on(1, gp.Cluster(nodes(4, 2, 2, 4)), jobs, np.array([[0.9], [0.8], [0.7], [0.0], [0.0], [0.0], [0.0]]))
    assert names(rounds) == ["abdef"]


def test_unclaimed_gpus_idle_if_the_policy_forbids_backfilling() -> None:
    jobs = [gp.Job("b", num_gpus=4, locality="node"), gp.Job("c", num_gpus=4, locality="node"), gp.Job("d")]
    rounds, _ = play_on(1, gp.Cluster(nodes(4, 3)), jobs, np.array([[0.9], [0.8], [0.0]]), backfill=False)
    assert names(rounds) == ["b"]


def test_node_gangs_that_never_fit_together_take_turns() -> None:
    jobs = [gp.Job(name, num_gpus=4, locality="node") for name in "abc"]
    rounds, ledger = play_on(90, gp.Cluster(nodes(4, 2, 2, 4)), jobs, np.array([[2 / 3]] * 3))
    assert all(len(assignments) == 2 for assignments in rounds)
    assert [
        job.delivered_seconds for job in ledger.report({name: row for row, name in enumerate("abc")}).jobs.values()
    ] == pytest.approx([60, 60, 60], abs=4)
    moves = sum(before.get(job) != gpus for before, now in itertools.pairwise(rounds) for job, gpus in now.items())
    assert moves <= 60, "who runs is restarted without need"


@dataclass(frozen=True)
class Scene:
    """A cluster, jobs, and fractions that are valid by count, though not always deliverable."""

    cluster: gp.Cluster
    jobs: list[gp.Job]
    fractions: NDArray[np.float64]
    backfill: bool


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = ["v100", "k80"][: rng.integers(1, 3)]
    cluster = gp.Cluster(
        gp.Node(name=f"n{i}", accelerator=str(kind), num_gpus=int(rng.integers(0, 9)), rack=[None, "r1", "r2"][rng.integers(3)])
        for i, kind in enumerate(rng.choice(kinds, size=rng.integers(1, 7)))
    )
    gangs = rng.choice([1, 1, 2, 3, 4, 8], size=rng.integers(0, 20))
    jobs = [gp.Job(f"j{i:02d}", num_gpus=int(s), locality=["any", "rack", "node"][rng.integers(3)]) for i, s in enumerate(gangs)]
    types = cluster.accelerator_names
    fits = np.array([[j.num_gpus <= cluster.largest_gang(t, j.locality) for t in types] for j in jobs]).reshape(
        len(jobs), len(types)
    )
    raw = rng.random(fits.shape) * fits * (rng.random(fits.shape) < 0.7)
    raw /= np.maximum(1, raw.sum(axis=1, keepdims=True))
    load = gangs @ raw
    raw *= np.minimum(1, np.divide(cluster.capacities, load, out=np.ones_like(load), where=load > 0))
    return Scene(cluster, jobs, raw, draw(st.booleans()))


@settings(max_examples=examples(150, costly=True))
@given(scene=scenes())
def test_any_round_keeps_the_rules(scene: Scene) -> None:
    rounds, ledger = play_on(8, scene.cluster, scene.jobs, scene.fractions, backfill=scene.backfill)
    for assignments in rounds:
        assert list(assignments) == sorted(assignments)
        assert_rules(scene, assignments)
        if scene.backfill:
            assert_nothing_wasted(scene, assignments)
    again, _ = play_on(8, scene.cluster, scene.jobs, scene.fractions, backfill=scene.backfill)
    assert repr(again) == repr(rounds)
    assert_account(scene, rounds, ledger)


def assert_rules(scene: Scene, assignments: Mapping[str, gp.Assignment]) -> None:
    """No GPU twice, gangs whole, one type per gang, localities kept, only GPUs that exist."""
    by_name = {node.name: node for node in scene.cluster.nodes}
    used = [gpu for assignment in assignments.values() for gpu in assignment.gpus]
    assert len(used) == len(set(used))
    assert all(0 <= index < by_name[node].num_gpus for node, index in used)
    for job in scene.jobs:
        if job.job_id in assignments:
            assignment = assignments[job.job_id]
            on = [by_name[node] for node, _ in assignment.gpus]
            assert len(on) == job.num_gpus
            assert {node.accelerator for node in on} == {assignment.accelerator}
            regions = {node.name if job.locality == "node" or node.rack is None else f"rack {node.rack}" for node in on}
            assert job.locality == "any" or len(regions) == 1


def assert_nothing_wasted(scene: Scene, assignments: Mapping[str, gp.Assignment]) -> None:
    """No waiting job would fit what is left, by count and locality."""
    holes = largest_free(scene.cluster.nodes, {gpu for assignment in assignments.values() for gpu in assignment.gpus})
    for job in scene.jobs:
        if job.job_id not in assignments:
            assert job.num_gpus > max(holes[job.locality].values())


def assert_account(scene: Scene, rounds: list[Mapping[str, gp.Assignment]], ledger: Any) -> None:
    """The ledger agrees with the rounds."""
    report = ledger.report({job.job_id: row for row, job in enumerate(scene.jobs)})
    for i, job in enumerate(scene.jobs):
        account = report.jobs[job.job_id]
        for j, name in enumerate(scene.cluster.accelerator_names):
            ran = sum(job.job_id in assignments and assignments[job.job_id].accelerator == name for assignments in rounds)
            assert account.delivered_by_type[name] == ran
            assert account.promised_by_type[name] == pytest.approx(8 * scene.fractions[i, j])
