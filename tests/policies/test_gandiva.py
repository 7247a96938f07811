"""Gandiva: equal slices of time, and random pairs of jobs, of which those are kept that gain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.optimization.test_pairs import assert_valid, cases, problem_of
from tests.support.examples import examples

Named = list[tuple[str, str]]


def equal_jobs(count: int, gpus: int, **arrays: Any) -> gp.AllocationProblem:
    """Jobs of 2 steps/s that do 1.5 in pairs."""
    return gp.AllocationProblem.from_arrays([[2.0]] * count, [gpus], pair_kinds=[0] * count, pair_throughputs=[[[1.5]]], **arrays)


def partners(problem: gp.AllocationProblem, **options: Any) -> Named:
    allocation = gp.solve(problem, "gandiva", **options)
    assert allocation.pairs is not None
    names = problem.job_ids
    return sorted({(names[a], names[b]) for a, b in zip(allocation.pairs.first, allocation.pairs.second, strict=True)})


def test_pairs_have_a_slice_together() -> None:
    four = gp.solve(equal_jobs(4, 1), "gandiva")
    assert four.time_fractions.tolist() == [[0.5]] * 4
    assert four.throughputs.tolist() == [0.75] * 4
    three = gp.solve(equal_jobs(3, 1), "gandiva")
    assert three.time_fractions.tolist() == [[0.5]] * 3
    assert sorted(three.throughputs.tolist()) == [0.75, 0.75, 1.0]
    assert three.utilization.tolist() == [1.0]


def test_no_pairs_with_enough_gpus_or_without_sharing() -> None:
    assert gp.solve(equal_jobs(4, 4), "gandiva").throughputs.tolist() == [2.0] * 4
    assert partners(equal_jobs(4, 4)) == []
    alone = gp.solve(equal_jobs(4, 1), "gandiva", sharing=False)
    assert (alone.throughputs.tolist(), alone.pairs) == ([0.5] * 4, None)


def test_pairs_that_lose_are_not_kept() -> None:
    arrays: dict[str, Any] = {"pair_kinds": [0, 0, 1], "pair_throughputs": [[[0.9], [1.8]], [[1.0], [0.0]]]}
    problem = gp.AllocationProblem.from_arrays([[2.0], [2.0], [2.0]], [1], job_ids=["a", "b", "c"], **arrays)
    found = {tuple(partners(problem, seed=seed)) for seed in range(20)}
    assert found == {(("a", "c"),), (("b", "c"),)}


def test_where_a_pair_does_not_gain_its_jobs_take_turns_or_one_has_it_all() -> None:
    together = [[[0, 0, 0], [3, 0, 1]], [[3, 0, 1], [0, 0, 0]]]
    speeds = [[4, 1, 0], [4, 1, 1], [1, 0, 0], [1, 0, 0]]
    problem = gp.AllocationProblem.from_arrays(speeds, [1, 1, 1], pair_kinds=[0, 1, -1, -1], pair_throughputs=together)
    allocation = gp.solve(problem, "gandiva")
    assert allocation.time_fractions == pytest.approx(np.array([[2, 1, 0], [2, 1, 2], [2, 0, 0], [2, 0, 0]]) / 6)
    assert allocation.throughputs == pytest.approx([3 / 3 + 1 / 6, 3 / 3 + 1 / 6 + 1 / 3, 1 / 3, 1 / 3])


@settings(max_examples=examples(150))
@given(case=cases(), seed=st.integers(0, 3))
def test_the_answer_is_valid_and_no_two_jobs_are_left_that_would_gain(case: dict[str, Any], seed: int) -> None:
    problem = problem_of(case)
    able = np.flatnonzero(problem.runnable.any(axis=1))
    if not len(able):
        return
    allocation = gp.solve(problem, "gandiva", seed=seed)
    assert_valid(problem, allocation)
    pairs, speeds = allocation.pairs, problem.pairs
    assert pairs is not None
    assert speeds is not None
    couples = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert max(Counter(job for couple in couples for job in couple).values(), default=1) == 1
    slices = gp.solve(problem, "isolated", sharing=False)
    if problem.num_gpus[able].sum() <= problem.capacities.sum():
        assert not couples
    else:
        left = set(able.tolist()) - {job for couple in couples for job in couple}
        for a in left:
            for b in left - {a}:
                both = problem.runnable[a] & problem.runnable[b]
                assert not (speeds.useful[speeds.kinds[a], speeds.kinds[b]] & both).any()
    if not couples:
        assert allocation.time_fractions == pytest.approx(slices.time_fractions)
    units = len(able) - len(couples)
    expected = problem.capacities / units / problem.num_gpus[:, None]
    expected /= np.maximum(1, expected.sum(axis=1, keepdims=True))
    for a in set(able.tolist()):
        (other,) = [set(couple) - {a} for couple in couples if a in couple] or [set()]
        whole = allocation.time_fractions[a].copy()
        for b in other:
            turns = (pairs.first == min(a, b)) & (pairs.second == max(a, b))
            alone = np.ones(len(whole), dtype=bool)
            alone[pairs.types[turns]] = False
            whole += np.where(alone, allocation.time_fractions[b], 0.0)
            assert pairs.times[turns] == pytest.approx(expected[a, pairs.types[turns]])
            runs = problem.runnable[a] | problem.runnable[b]
        assert whole == pytest.approx(np.where(runs if other else problem.runnable[a], expected[a], 0.0))


@settings(max_examples=examples(50))
@given(case=cases(), data=st.data())
def test_the_order_of_jobs_is_no_matter(case: dict[str, Any], data: st.DataObject) -> None:
    problem = problem_of(case)
    if len(problem.excluded) == problem.num_jobs:
        return
    rows = np.array(data.draw(st.permutations(range(problem.num_jobs))))
    other = problem.select(rows)
    one, again = gp.solve(problem, "gandiva"), gp.solve(other, "gandiva")
    np.testing.assert_array_equal(one.time_fractions[rows], again.time_fractions)
    assert {frozenset(pair) for pair in partners(problem)} == {frozenset(pair) for pair in partners(other)}


def test_all_pairs_are_as_likely_and_the_seed_decides() -> None:
    problem = equal_jobs(4, 1, job_ids=list("abcd"))
    counts = Counter(tuple(partners(problem, seed=seed)) for seed in range(300))
    assert len(counts) == 3
    assert all(70 <= count <= 130 for count in counts.values())
    assert partners(problem, seed=7) == partners(problem, seed=7)


def test_most_pairs_stay_when_a_job_leaves() -> None:
    many = equal_jobs(200, 10)
    before = set(partners(many))
    kept = [len(before & set(partners(many.select(np.arange(200) != gone)))) for gone in range(0, 200, 20)]
    assert len(before) == 100
    assert np.mean(kept) > 40  # all in the order before the one that has left


def test_the_agnostic_variant_cannot_find_gains() -> None:
    with pytest.raises(gp.InputError, match="ignores throughputs, so it cannot weigh the cost of sharing"):
        gp.solve(equal_jobs(4, 1), "gandiva", agnostic=True)


def test_constraints_hold_or_are_named() -> None:
    assert gp.solve(equal_jobs(4, 1), "gandiva", constraints=[gp.MaxGpus(gpus=1)]).throughputs.tolist() == [0.75] * 4
    with pytest.raises(gp.InputError, match="is violated by gandiva"):
        gp.solve(equal_jobs(4, 1), "gandiva", constraints=[gp.MaxGpus(gpus=0.5)])


def test_rounds_play_the_pairs() -> None:
    profile = gp.ThroughputProfile(
        "lab",
        [
            gp.Measurement(job_type="a", num_gpus=1, accelerator="v100", steps_per_second=2),
            gp.Measurement(
                job_type="a",
                num_gpus=1,
                accelerator="v100",
                steps_per_second=1.5,
                partner_job_type="a",
                partner_steps_per_second=1.5,
            ),
        ],
    )
    jobs = [gp.Job(str(i), job_type="a", total_steps=10_800) for i in range(4)]
    ends = [
        gp.simulate(jobs, gp.Cluster.from_counts({"v100": 1}), profile, "gandiva", sharing=sharing).summary.makespan_seconds
        for sharing in (False, True)
    ]
    assert ends == [21_600, 14_400]
