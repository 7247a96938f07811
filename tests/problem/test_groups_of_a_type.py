"""Groups of the GPUs of one type with names of their own: throughputs are those of the type, and jobs are allowed by group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.fakes import refusal
from tests.support.profiles import OSDI

TYPES = ("ResNet-50 (batch size 64)", "LM (batch size 5)")
GROUPS = {"v100 near": "v100", "v100 far": "v100", "k80": "k80"}


def cluster_of(groups: dict[str, str], gpus: int = 2) -> gp.Cluster:
    kinds = [gp.AcceleratorType(name=name, profile_name=there if there != name else None) for name, there in groups.items()]
    return gp.Cluster([gp.Node(name=f"n{i}", accelerator=name, num_gpus=gpus) for i, name in enumerate(groups)], kinds)


@given(
    st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from([1, 2]), st.sets(st.sampled_from(sorted(GROUPS)), min_size=1)),
        min_size=1,
        max_size=6,
    )
)
def test_throughputs_are_those_of_the_type_where_a_job_is_allowed(asked: list[tuple[str, int, set[str]]]) -> None:
    jobs = [
        gp.Job(str(i), job_type=kind, num_gpus=gpus, total_steps=1e6, allowed_accelerators=tuple(sorted(names)))
        for i, (kind, gpus, names) in enumerate(asked)
    ]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster_of(GROUPS), OSDI)
    for i, (kind, gpus, names) in enumerate(asked):
        for j, name in enumerate(problem.accelerator_types):
            assert problem.runnable[i, j] == (name in names)
            if name in names:
                assert problem.throughputs[i, j] == OSDI.throughput(kind, gpus, GROUPS[name])


def test_groups_open_to_all_jobs_are_worth_as_much_as_the_type() -> None:
    jobs = [gp.Job(str(i), job_type=TYPES[i % 2], total_steps=1e6) for i in range(7)]
    whole = gp.Cluster.from_counts({"v100": (4, 2), "k80": (2, 2)})
    found = [gp.solve(gp.AllocationProblem.from_jobs(jobs, each, OSDI)) for each in (cluster_of(GROUPS), whole)]
    assert found[0].objective_value == pytest.approx(found[1].objective_value)
    by_type = found[0].time_fractions[:, :2].sum(axis=1)
    np.testing.assert_allclose(by_type.sum(), found[1].time_fractions[:, 0].sum(), atol=1e-6)


@pytest.mark.parametrize("explore", ["optimistic", 0.4])
def test_a_learner_learns_the_type_and_a_saved_scheduler_goes_on(tmp_path: Path, explore: str | float) -> None:
    learner = gp.ThroughputLearner(explore=explore)
    scheduler = gp.RoundScheduler(cluster_of(GROUPS), learner)
    for i in range(6):
        allowed = ("v100 near",) if i == 0 else ("v100 far",) if i == 1 else None
        scheduler.submit(gp.Job(str(i), job_type=TYPES[0], total_steps=1e9, allowed_accelerators=allowed))
    done = dict.fromkeys(map(str, range(6)), 0.0)
    for _ in range(6):
        for job_id, held in scheduler.next_round().assignments.items():
            done[job_id] += 360.0 * OSDI.throughput(TYPES[0], 1, GROUPS[held.accelerator])
            scheduler.report(job_id, steps_done=done[job_id])
    assert set(learner.observations) == {
        gp.throughput_profiles.Entry(TYPES[0], 1, "v100"),
        gp.throughput_profiles.Entry(TYPES[0], 1, "k80"),
    }
    scheduler.save(tmp_path / "state.json")
    again = gp.RoundScheduler.load(tmp_path / "state.json", gp.ThroughputLearner(explore=explore))
    assert again.cluster == scheduler.cluster
    assert again.next_round().assignments == scheduler.next_round().assignments


def test_a_group_needs_the_name_of_a_type_of_the_profile_and_is_not_given_in_files(tmp_path: Path) -> None:
    told = refusal(gp.RoundScheduler, cluster_of({"near": "h100"}), OSDI)
    assert told.startswith("cluster, field accelerator 'near': is not in profile 'gavel-osdi20'")
    path = tmp_path / "cluster.yaml"
    path.write_text("accelerator_types: {near: {profile_name: v100}}\nnodes: [{name: a, accelerator: near, num_gpus: 1}]\n")
    assert "field profile_name: cannot be given in a file" in refusal(gp.Cluster.from_file, path)
