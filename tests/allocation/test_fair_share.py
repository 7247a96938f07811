"""`vs_fair_share`: how fast a job is compared with its weighted slice of the cluster."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp


def solved(throughputs: Any, capacities: Any, policy: str = "max_min_fairness", **arrays: Any) -> gp.Allocation:
    return gp.solve(gp.AllocationProblem.from_arrays(throughputs, capacities, **arrays), policy)


def test_a_gang_of_8_has_an_eighth_of_the_slice_of_a_job_of_1() -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0], [1.0]], [8], num_gpus=[8, 1])
    assert problem.fair_share.tolist() == [0.5, 1.0]  # 4 of 8 GPUs: half of the time of the gang, more than the other can use
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.vs_fair_share == pytest.approx(allocation.normalized_throughputs / [0.5, 1.0])


def test_half_the_weight_is_half_the_slice() -> None:
    allocation = solved([[2.0], [2.0]], [1], weights=[0.5, 1.0])
    assert allocation.normalized_throughputs == pytest.approx([1 / 3, 2 / 3])
    assert allocation.vs_fair_share == pytest.approx([1.0, 1.0])


def test_one_job_is_compared_with_the_mix_of_gpus_as_long_as_it_fits() -> None:
    assert solved([[3.0, 1.0]], [1, 1]).vs_fair_share == pytest.approx([1.5])  # all the time on the faster type, of 2 on average
    assert solved([[3.0]], [4], num_gpus=[4]).vs_fair_share == pytest.approx([1.0])


def test_more_gpus_than_jobs_make_no_slice_larger_than_all_the_time() -> None:
    allocation = solved([[1.0], [2.0]], [100])
    assert allocation.vs_fair_share == pytest.approx([1.0, 1.0])


def test_jobs_that_can_run_nowhere_take_no_part() -> None:
    allocation = solved([[1.0], [1.0]], [2], num_gpus=[2, 4])
    assert list(allocation.excluded) == ["1"]
    assert allocation.vs_fair_share == pytest.approx([1.0, 0.0])


def test_without_gpus_there_is_no_share() -> None:
    assert solved([[1.0]], [0]).vs_fair_share.tolist() == [0.0]


@given(
    st.lists(st.tuples(st.sampled_from([0.25, 1, 2, 8]), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=6),
    st.integers(1, 20),
)
def test_it_is_the_level_of_max_min_fairness_where_no_slice_is_larger_than_all_the_time(
    jobs: list[tuple[float, float]], gpus: int
) -> None:
    sizes, weights = (np.array(column) for column in zip(*jobs, strict=True))
    problem = gp.AllocationProblem.from_arrays(np.ones((len(jobs), 1)), [gpus], num_gpus=sizes, weights=weights)
    assert (problem.fair_share > 0).all()
    assert (problem.fair_share <= 1).all()
    allocation = gp.solve(problem, "max_min_fairness")
    allocation.verify()
    runs = problem.runnable.any(axis=1)
    share = np.minimum(1.0, weights * gpus / (sizes * weights[runs].sum() if runs.any() else 1.0))
    expected = np.where(runs, allocation.normalized_throughputs / share, 0.0)
    assert allocation.vs_fair_share == pytest.approx(expected)
    if runs.any() and (weights * gpus <= sizes * weights[runs].sum())[runs].all() and allocation.objective_value is not None:
        level = allocation.objective_value * weights[runs].sum() / gpus
        assert allocation.vs_fair_share[runs].min() == pytest.approx(level, rel=1e-6)


def test_a_wrong_figure_is_found() -> None:
    allocation = solved([[1.0], [2.0]], [1])
    allocation.vs_fair_share[0] += 0.1
    with pytest.raises(gp.ProofError, match="vs fair share"):
        allocation.verify()


def test_files_have_it() -> None:
    allocation = solved([[1.0], [2.0]], [1])
    document = json.loads(allocation.to_json())
    assert gp.Allocation.from_dict(document).vs_fair_share == pytest.approx(allocation.vs_fair_share)
    del document["jobs"][0]["vs_fair_share"]
    with pytest.raises(gp.InputError, match="not an allocation written by gavel: KeyError 'vs_fair_share'"):
        gp.Allocation.from_dict(document)
