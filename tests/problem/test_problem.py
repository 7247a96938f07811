"""Allocation problems: from arrays and from jobs, eligibility, and refused input."""

from __future__ import annotations

import warnings
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import (
    AcceleratorType,
    AllocationProblem,
    Cluster,
    GavelWarning,
    Job,
    JobSet,
    Node,
    UnknownNameError,
)
from tests.support.fakes import FakeProfile, refusal
from tests.support.instances import problems

NAN, INF = np.nan, np.inf
from_arrays, from_jobs = AllocationProblem.from_arrays, AllocationProblem.from_jobs

SPEEDS = [[4.0, 1.0], [4.0, 3.0], [2.0, 0.0]]
COUNTS = [1, 3]
NAMES: dict[str, Any] = {"job_ids": ["a", "b", "c"], "accelerator_types": ["v100", "k80"]}

BY_JOB = {
    "num_gpus": [1, 2, 1],
    "weights": [1.0, 2.0, 0.5],
    "priorities": [0.0, -1.0, 5.0],
    "steps_remaining": [10.0, 20.0, 30.0],
    "total_steps": [40.0, 50.0, 60.0],
    "arrival_seconds": [-1.0, 0.0, 7.0],
    "elapsed_seconds": [0.0, 1.0, 2.0],
    "waiting_seconds": [3.0, 4.0, 5.0],
    "isolated_seconds": [6.0, 7.0, 8.0],
    "attained_gpu_seconds": [9.0, 10.0, 11.0],
    "deadlines_seconds": [NAN, -5.0, 100.0],
    "ready_tasks": [1.0, 2.0, 2.0],
    "workflow_seconds": [0.0, 30.0, 30.0],
    "path_seconds": [0.0, 20.0, 5.0],
    "latest_end_seconds": [NAN, -5.0, 100.0],
}


def arrays_of(problem: AllocationProblem) -> dict[str, np.ndarray]:
    values = {field.name: getattr(problem, field.name) for field in fields(problem)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


class TestFromArrays:
    def test_throughputs_and_capacities_are_enough(self) -> None:
        problem = from_arrays(SPEEDS, COUNTS)
        assert problem.num_jobs == 3
        assert problem.job_ids == ("0", "1", "2")
        assert problem.accelerator_types == ("type-0", "type-1")
        assert problem.throughputs.tolist() == SPEEDS
        assert problem.capacities.tolist() == COUNTS

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("num_gpus", [1, 1, 1]),
            ("weights", [1, 1, 1]),
            ("priorities", [0, 0, 0]),
            ("steps_remaining", [NAN, NAN, NAN]),
            ("total_steps", [NAN, NAN, NAN]),
            ("arrival_seconds", [0, 0, 0]),
            ("elapsed_seconds", [0, 0, 0]),
            ("waiting_seconds", [0, 0, 0]),
            ("isolated_seconds", [0, 0, 0]),
            ("attained_gpu_seconds", [0, 0, 0]),
            ("deadlines_seconds", [NAN, NAN, NAN]),
            ("ready_tasks", [1, 1, 1]),
            ("workflow_seconds", [0, 0, 0]),
            ("path_seconds", [0, 0, 0]),
            ("latest_end_seconds", [NAN, NAN, NAN]),
            ("running_on", [-1, -1, -1]),
            ("previous_fractions", [[0, 0], [0, 0], [0, 0]]),
            ("prices_per_hour", [NAN, NAN]),
        ],
    )
    def test_defaults(self, field: str, value: list[Any]) -> None:
        np.testing.assert_array_equal(getattr(from_arrays(SPEEDS, COUNTS), field), value)

    def test_no_tenants_are_empty_texts(self) -> None:
        assert from_arrays(SPEEDS, COUNTS).tenants == ("", "", "")

    @pytest.mark.parametrize("field", BY_JOB)
    def test_a_value_per_job(self, field: str) -> None:
        np.testing.assert_array_equal(getattr(from_arrays(SPEEDS, COUNTS, **{field: BY_JOB[field]}), field), BY_JOB[field])

    def test_the_other_values(self) -> None:
        problem = from_arrays(
            SPEEDS,
            COUNTS,
            job_ids=[7, "b", "c"],
            accelerator_types=["v100", "k80"],
            prices_per_hour=[2.5, NAN],
            tenants=["x", "y", "x"],
            previous_fractions=[[0.5, 0.5], [0, 1], [0, 0]],
        )
        assert problem.job_ids == ("7", "b", "c")
        assert problem.accelerator_types == ("v100", "k80")
        assert problem.tenants == ("x", "y", "x")
        np.testing.assert_array_equal(problem.prices_per_hour, [2.5, NAN])
        np.testing.assert_array_equal(problem.previous_fractions, [[0.5, 0.5], [0, 1], [0, 0]])

    def test_gangs_are_whole_numbers_or_fractions_of_one_gpu(self) -> None:
        problem = from_arrays(SPEEDS, COUNTS, num_gpus=[1, 2.0, 0.25])
        assert problem.num_gpus.dtype == np.float64
        assert problem.num_gpus.tolist() == [1, 2, 0.25]

    def test_steps_remaining_are_the_total_unless_said(self) -> None:
        assert from_arrays(SPEEDS, COUNTS, total_steps=[5, 6, 7]).steps_remaining.tolist() == [5, 6, 7]
        assert from_arrays(SPEEDS, COUNTS, total_steps=[5, 6, 7], steps_remaining=[1, 2, 0]).steps_remaining.tolist() == [1, 2, 0]
        assert np.isnan(from_arrays(SPEEDS, COUNTS, steps_remaining=[1, 2, 0]).total_steps).all()

    @pytest.mark.parametrize(
        "running_on",
        [
            pytest.param(["k80", None, "v100"], id="names"),
            pytest.param([1, -1, 0], id="columns"),
            pytest.param(np.array([1, -1, 0]), id="array of columns"),
            pytest.param([1, None, "v100"], id="mixed"),
        ],
    )
    def test_running_on(self, running_on: Any) -> None:
        assert from_arrays(SPEEDS, COUNTS, **NAMES, running_on=running_on).running_on.tolist() == [1, -1, 0]


class TestFaultsInArrays:
    @pytest.mark.parametrize(
        ("throughputs", "capacities", "problem"),
        [
            ([1.0, 2.0], [1, 1], "throughputs: must have the shape (jobs, 2) to match the capacities, found (2,)"),
            ([[1.0, 2.0]], [1], "throughputs: must have the shape (jobs, 1) to match the capacities, found (1, 2)"),
            ([[1.0]], [], "throughputs: must have the shape (jobs, 0) to match the capacities, found (1, 1)"),
            (np.ones((1, 1, 1)), [1], "throughputs: must have the shape (jobs, 1) to match the capacities, found (1, 1, 1)"),
            (1.0, [1], "throughputs: must have the shape (jobs, 1) to match the capacities, found ()"),
            ([[1, 2], [1]], [1, 1], "throughputs: must be a table with one number per capacity in each row"),
            ([["fast"]], [1], "throughputs: must be an array of numbers of shape (1, 1)"),
            ([[1j]], [1], "throughputs: must be an array of numbers of shape (1, 1)"),
            ([[1.0]], 1, "capacities: must be a list with one number per accelerator type, found shape ()"),
            ([[1.0]], [[1]], "capacities: must be a list with one number per accelerator type, found shape (1, 1)"),
            ([[1.0]], ["many"], "capacities: must be an array of numbers of shape (1,)"),
        ],
    )
    def test_shapes(self, throughputs: Any, capacities: Any, problem: str) -> None:
        assert refusal(from_arrays, throughputs, capacities) == f"field {problem}"

    @pytest.mark.parametrize(
        ("throughputs", "capacities", "problem"),
        [
            (
                [[NAN, -1], [INF, 0], [None, 1]],
                [1, 1],
                "job 'a', accelerator type 'v100', field throughputs: must be a finite number of at least 0, found nan\n"
                "job 'a', accelerator type 'k80', field throughputs: must be a finite number of at least 0, found -1\n"
                "job 'b', accelerator type 'v100', field throughputs: must be a finite number of at least 0, found inf\n"
                "job 'c', accelerator type 'v100', field throughputs: must be a finite number of at least 0, found nan",
            ),
            (
                SPEEDS,
                [-1, NAN],
                "accelerator type 'v100', field capacities: must be a finite number of at least 0, found -1\n"
                "accelerator type 'k80', field capacities: must be a finite number of at least 0, found nan",
            ),
        ],
    )
    def test_numbers(self, throughputs: Any, capacities: Any, problem: str) -> None:
        assert refusal(from_arrays, throughputs, capacities, **NAMES) == problem

    @pytest.mark.parametrize(
        ("field", "rule", "wrong"),
        [
            (
                "num_gpus",
                "must be a whole number from 1 to 1,000,000, or a fraction of one GPU of at least 0.001",
                [0, -1, 0.0005, 1.5, NAN, INF],
            ),
            ("weights", "must be a finite number greater than 0", [0, -1, NAN, INF]),
            ("priorities", "must be a finite number", [NAN, INF, -INF]),
            ("steps_remaining", "must be a finite number of at least 0", [-1, NAN, INF]),
            ("total_steps", "must be a finite number greater than 0", [0, -1, NAN, INF]),
            ("arrival_seconds", "must be a finite number", [NAN, INF, -INF]),
            ("elapsed_seconds", "must be a finite number of at least 0", [-1, NAN, INF]),
            ("waiting_seconds", "must be a finite number of at least 0", [-1, NAN, INF]),
            ("isolated_seconds", "must be a finite number of at least 0", [-1, NAN, INF]),
            ("attained_gpu_seconds", "must be a finite number of at least 0", [-1, NAN, INF]),
            ("deadlines_seconds", "must be a finite number, or NaN for none", [INF, -INF]),
            ("ready_tasks", "must be a finite number of at least 1", [0, 0.5, NAN, INF]),
            ("workflow_seconds", "must be a finite number of at least 0", [-1, NAN, INF]),
        ],
    )
    def test_a_wrong_value_names_its_job_and_field(self, field: str, rule: str, wrong: list[float]) -> None:
        first, _, last = BY_JOB[field]
        for value in wrong:
            problem = f"job 'b', field {field}: {rule}, found {value:g}"
            assert refusal(from_arrays, SPEEDS, COUNTS, **NAMES, **{field: [first, value, last]}) == problem

    @pytest.mark.parametrize("value", ["h100", "0", 2, -2, 0.5])
    def test_running_on_what_is_not_there(self, value: Any) -> None:
        problem = f"job 'b', field running_on: must be one of v100, k80, a column number, or -1 for none, found {value!r}"
        assert refusal(from_arrays, SPEEDS, COUNTS, **NAMES, running_on=["k80", value, None]) == problem

    @pytest.mark.parametrize("field", BY_JOB)
    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            pytest.param([1, 2], "must have the shape (3,), found (2,)", id="too few"),
            pytest.param([1, 2, 3, 4], "must have the shape (3,), found (4,)", id="too many"),
            pytest.param(1, "must have the shape (3,), found ()", id="one number"),
            pytest.param([[1], [2], [3]], "must have the shape (3,), found (3, 1)", id="a column"),
            pytest.param([[1], [1, 2], 3], "must be an array of numbers of shape (3,)", id="no array"),
            pytest.param(["x", "y", "z"], "must be an array of numbers of shape (3,)", id="texts"),
        ],
    )
    def test_a_wrong_length_names_the_field(self, field: str, values: Any, problem: str) -> None:
        assert refusal(from_arrays, SPEEDS, COUNTS, **NAMES, **{field: values}) == f"field {field}: {problem}"

    @pytest.mark.parametrize(
        ("values", "problem"),
        [
            ({"job_ids": ["a", "b"]}, "field job_ids: must have 3 entries, found 2"),
            ({"job_ids": ["a", "b", "a"]}, "'a', field job_ids: appears twice; names must be unique"),
            ({"job_ids": [1, "1", 2]}, "'1', field job_ids: appears twice; names must be unique"),
            ({"job_ids": ["a", "", "b"]}, "field job_ids: must not contain an empty name or control characters"),
            ({"accelerator_types": ["v100"]}, "field accelerator_types: must have 2 entries, found 1"),
            ({"accelerator_types": ["k80", "k80"]}, "'k80', field accelerator_types: appears twice; names must be unique"),
            ({"tenants": ["x"]}, "field tenants: must have 3 entries, found 1"),
            ({"running_on": [0]}, "field running_on: must have 3 entries, found 1"),
            ({"previous_fractions": [1, 0, 0]}, "field previous_fractions: must have the shape (3, 2), found (3,)"),
            (
                {"previous_fractions": [[0, 0], [0, -1], [0, 0]]},
                "job '1', accelerator type 'type-1', field previous_fractions: must be a number from 0 to 1, found -1",
            ),
            ({"prices_per_hour": [1]}, "field prices_per_hour: must have the shape (2,), found (1,)"),
            (
                {"prices_per_hour": [1, -1]},
                "accelerator type 'type-1', field prices_per_hour: "
                "must be a finite number of at least 0, or NaN for unknown, found -1",
            ),
        ],
    )
    def test_other_arrays(self, values: dict[str, Any], problem: str) -> None:
        assert refusal(from_arrays, SPEEDS, COUNTS, **values) == problem

    def test_all_faults_at_once(self) -> None:
        values: dict[str, Any] = {"weights": [0, 1], "num_gpus": [1], "running_on": [5, 0], "tenants": [], "job_ids": ["a", "a"]}
        message = refusal(from_arrays, [[NAN, 1.0], [1.0, 1.0]], [-1, 1], **values)
        assert [line.split(":")[0] for line in message.splitlines()] == [
            "'a', field job_ids",
            "accelerator type 'type-0', field capacities",
            "field tenants",
            "job 'a', accelerator type 'type-0', field throughputs",
            "field num_gpus",
            "job 'a', field weights",
            "job 'a', field running_on",
        ]


class TestImmutability:
    def given(self) -> dict[str, np.ndarray]:
        values = {name: np.array(value, dtype=float) for name, value in BY_JOB.items()}
        return values | {
            "throughputs": np.array(SPEEDS),
            "capacities": np.array(COUNTS, dtype=float),
            "prices_per_hour": np.array([2.5, NAN]),
            "previous_fractions": np.array([[0.5, 0.5], [0, 1], [0, 0]]),
            "uncertainty": np.array([[0.0, 0.2], [0, 0], [0.5, 0]]),
            "running_on": np.array([0, 1, -1]),
        }

    def test_no_array_can_be_written_to(self) -> None:
        arrays = arrays_of(from_arrays(**self.given()))
        assert set(arrays) == {*self.given(), "runnable", "share_capacities"}
        assert [name for name, array in arrays.items() if array.flags.writeable] == []

    def test_no_field_can_be_set(self) -> None:
        with pytest.raises(FrozenInstanceError):
            from_arrays(SPEEDS, COUNTS).weights = np.ones(3)  # type: ignore[misc]

    def test_the_callers_arrays_are_neither_frozen_nor_changed(self) -> None:
        arrays = self.given()
        from_arrays(**arrays)
        for name, array in arrays.items():
            assert array.flags.writeable, name
            np.testing.assert_array_equal(array, self.given()[name])

    def test_what_the_caller_does_to_the_arrays_later_does_not_matter(self) -> None:
        arrays = self.given()
        problem = from_arrays(**arrays)
        for array in arrays.values():
            array += 1
        for name, array in self.given().items():
            np.testing.assert_array_equal(getattr(problem, name), array)


def test_repr_shows_the_size() -> None:
    problem = from_arrays(SPEEDS, COUNTS, **NAMES, num_gpus=[8, 1, 1])
    assert repr(problem) == "AllocationProblem(3 jobs, 1 of them excluded; GPUs v100: 1, k80: 3)"


class TestEqualShare:
    """P_i = Σ_j T_ij c_j / C."""

    def test_formula(self) -> None:
        assert from_arrays(SPEEDS, COUNTS).equal_share.tolist() == [4 / 4 + 3 / 4, 4 / 4 + 9 / 4, 2 / 4]

    def test_does_not_depend_on_weights_gangs_or_the_number_of_jobs(self) -> None:
        alone = from_arrays(SPEEDS[:1], COUNTS, weights=[7], num_gpus=[4])
        assert alone.equal_share[0] == from_arrays(SPEEDS, COUNTS).equal_share[0]

    def test_is_0_without_gpus(self) -> None:
        assert from_arrays(SPEEDS, [0, 0]).equal_share.tolist() == [0, 0, 0]


def test_fastest_is_over_the_types_where_the_job_can_run() -> None:
    assert from_arrays([[4.0, 1.0], [4.0, 0.3], [2.0, 0.0]], COUNTS, num_gpus=[1, 2, 2]).fastest.tolist() == [4, 0.3, 0]


class TestExclusion:
    @pytest.mark.parametrize(
        ("speeds", "capacities", "values", "reason"),
        [
            pytest.param([0, 0], [4, 4], {}, "its throughput is 0 on every accelerator type", id="runs nowhere"),
            pytest.param(
                [2, 1],
                [4, 4],
                {"num_gpus": 8},
                "its gang of 8 GPUs fits nowhere (largest gang that fits: v100: 4, k80: 4)",
                id="8 GPUs on 4 + 4",
            ),
            pytest.param(
                [2, 0],
                [4, 8],
                {"num_gpus": 8},
                "its gang of 8 GPUs fits nowhere (largest gang that fits: v100: 4)",
                id="gang too large where it runs",
            ),
            pytest.param(
                [2, 0],
                [0, 8],
                {},
                "its gang of 1 GPUs fits nowhere (largest gang that fits: v100: 0)",
                id="no GPUs where it runs",
            ),
            pytest.param([2, 1], [4, 4], {"steps_remaining": 0}, "it has finished: no steps remain", id="finished"),
            pytest.param([2, 1], [0, 0], {}, "the cluster has no GPUs", id="no GPUs at all"),
            pytest.param([0, 0], [0, 0], {"steps_remaining": 0}, "it has finished: no steps remain", id="several reasons"),
        ],
    )
    def test_an_excluded_job_has_its_reason(
        self, speeds: list[float], capacities: list[int], values: dict[str, float], reason: str
    ) -> None:
        by_job = {name: [value] for name, value in values.items()}
        problem = from_arrays([speeds], capacities, **by_job, job_ids=["a"], accelerator_types=["v100", "k80"])
        assert problem.excluded == {"a": reason}
        assert not problem.runnable.any()

    def test_the_others_are_kept(self) -> None:
        problem = from_arrays([[2, 1], [2, 1], [2, 1]], [4, 4], **NAMES, num_gpus=[4, 8, 1])
        assert list(problem.excluded) == ["b"]
        assert problem.runnable.tolist() == [[True, True], [False, False], [True, True]]
        assert problem.job_ids == ("a", "b", "c")

    def test_a_gang_may_fit_one_type_and_not_another(self) -> None:
        problem = from_arrays([[2, 1]], [4, 8], num_gpus=[8])
        assert problem.runnable.tolist() == [[False, True]]
        assert problem.excluded == {}

    def test_unknown_steps_are_not_none(self) -> None:
        assert from_arrays(SPEEDS, COUNTS).excluded == {}


class TestEmpty:
    @pytest.mark.parametrize("throughputs", [[], np.zeros((0, 2)), ()])
    def test_no_jobs(self, throughputs: Any) -> None:
        problem = from_arrays(throughputs, [1, 1])
        assert (problem.num_jobs, problem.excluded) == (0, {})
        assert problem.throughputs.shape == problem.runnable.shape == problem.previous_fractions.shape == (0, 2)
        assert problem.equal_share.shape == problem.fastest.shape == problem.weights.shape == (0,)

    @pytest.mark.parametrize("throughputs", [[[], []], np.zeros((2, 0))])
    def test_no_accelerator_types(self, throughputs: Any) -> None:
        problem = from_arrays(throughputs, [], job_ids=["a", "b"])
        assert problem.excluded == {"a": "the cluster has no GPUs", "b": "the cluster has no GPUs"}
        assert problem.throughputs.shape == problem.runnable.shape == (2, 0)
        assert problem.equal_share.tolist() == problem.fastest.tolist() == [0, 0]

    def test_nothing_at_all(self) -> None:
        problem = from_arrays([], [])
        assert (problem.num_jobs, problem.accelerator_types, problem.throughputs.shape) == (0, (), (0, 0))

    def test_a_value_for_a_job_that_is_not_there(self) -> None:
        assert refusal(from_arrays, [], [1, 1], weights=[1]) == "field weights: must have the shape (0,), found (1,)"


class TestSelect:
    PROBLEM = from_arrays(
        SPEEDS,
        COUNTS,
        **NAMES,
        **BY_JOB | {"num_gpus": [4, 2, 1]},
        tenants=["x", "y", "z"],
        running_on=["k80", None, "v100"],
        previous_fractions=[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]],
        prices_per_hour=[2, 1],
    )

    def test_picks_jobs_in_the_order_asked(self) -> None:
        part = self.PROBLEM.select(np.array([2, 0]))
        assert (part.job_ids, part.tenants) == (("c", "a"), ("z", "x"))
        assert part.throughputs.tolist() == [SPEEDS[2], SPEEDS[0]]
        assert part.runnable.tolist() == [[True, False], [False, False]]
        assert part.running_on.tolist() == [0, 1]
        assert part.previous_fractions.tolist() == [[0.5, 0.6], [0.1, 0.2]]
        for field in BY_JOB:
            np.testing.assert_array_equal(getattr(part, field), getattr(self.PROBLEM, field)[[2, 0]])

    def test_keeps_the_cluster(self) -> None:
        part = self.PROBLEM.select(np.array([1]))
        assert part.accelerator_types == ("v100", "k80")
        assert (part.capacities.tolist(), part.prices_per_hour.tolist()) == (COUNTS, [2, 1])

    def test_keeps_the_reasons_of_its_own_jobs(self) -> None:
        assert list(self.PROBLEM.excluded) == ["a"]
        assert self.PROBLEM.select(np.array([0, 1])).excluded == self.PROBLEM.excluded
        assert self.PROBLEM.select(np.array([1, 2])).excluded == {}

    def test_may_select_no_job(self) -> None:
        part = self.PROBLEM.select(np.array([], dtype=np.int64))
        assert (part.num_jobs, part.throughputs.shape, part.excluded) == (0, (0, 2), {})

    def test_cannot_be_written_to_either(self) -> None:
        assert not any(array.flags.writeable for array in arrays_of(self.PROBLEM.select(np.array([1]))).values())


CLUSTER = Cluster(
    [
        Node(name="a", accelerator="v100", num_gpus=8, rack="r1"),
        Node(name="b", accelerator="p100", num_gpus=4, rack="r1"),
        Node(name="c", accelerator="p100", num_gpus=4, rack="r1"),
        Node(name="d", accelerator="p100", num_gpus=4, rack="r2"),
    ],
    [AcceleratorType(name="v100", price_per_hour=2.48)],
)
PROFILE = FakeProfile({"t": {"v100": 4.0, "p100": 2.0, "k80": 1.0}, "no-v100": {"p100": 3.0}, "slow": {"v100": 0.5}})


def job(job_id: str = "a", **fields: Any) -> Job:
    return Job(job_id, **{"job_type": "t"} | fields)


class TestFromJobs:
    def test_throughputs_come_from_the_profile_and_the_rest_from_jobs_and_cluster(self) -> None:
        jobs = [
            job("a", num_gpus=2, weight=3, priority=1, tenant="x", total_steps=100, steps_done=40, arrival_seconds=5),
            job("b", job_type="no-v100"),
        ]
        problem = from_jobs(jobs, CLUSTER, PROFILE, now_seconds=20)
        assert problem.job_ids == ("a", "b")
        assert problem.accelerator_types == ("v100", "p100")
        assert problem.throughputs.tolist() == [[4, 2], [0, 3]]
        assert problem.capacities.tolist() == [8, 12]
        np.testing.assert_array_equal(problem.prices_per_hour, [2.48, NAN])
        assert problem.tenants == ("x", "")
        assert problem.num_gpus.tolist() == [2, 1]
        assert problem.weights.tolist() == [3, 1]
        assert problem.priorities.tolist() == [1, 0]
        np.testing.assert_array_equal(problem.total_steps, [100, NAN])
        np.testing.assert_array_equal(problem.steps_remaining, [60, NAN])
        assert problem.arrival_seconds.tolist() == [5, 0]
        assert problem.elapsed_seconds.tolist() == [15, 20]

    def test_a_job_that_is_yet_to_arrive_has_waited_for_nothing(self) -> None:
        assert from_jobs([job(arrival_seconds=100)], CLUSTER, PROFILE, now_seconds=20).elapsed_seconds.tolist() == [0]

    def test_optional_arrays_come_in_the_order_of_the_jobs(self) -> None:
        problem = from_jobs(
            [job("a"), job("b")],
            CLUSTER,
            PROFILE,
            waiting_seconds=[1, 2],
            isolated_seconds=[3, 4],
            attained_gpu_seconds=[5, 6],
            running_on=["p100", None],
            previous_fractions=[[0, 1], [0.5, 0]],
        )
        assert problem.waiting_seconds.tolist() == [1, 2]
        assert problem.isolated_seconds.tolist() == [3, 4]
        assert problem.attained_gpu_seconds.tolist() == [5, 6]
        assert problem.running_on.tolist() == [1, -1]
        assert problem.previous_fractions.tolist() == [[0, 1], [0.5, 0]]

    @pytest.mark.parametrize("jobs", [JobSet([job("a"), job("b")]), [job("a"), job("b")], (job(x) for x in "ab")])
    def test_jobs_may_be_any_iterable(self, jobs: Any) -> None:
        assert from_jobs(jobs, CLUSTER, PROFILE).job_ids == ("a", "b")

    def test_ids_are_unique(self) -> None:
        problem = "job 'a', field job_id: appears twice; job ids must be unique"
        assert refusal(from_jobs, [job("a"), job("a")], CLUSTER, PROFILE) == problem

    def test_wrong_lengths_name_the_field(self) -> None:
        problem = "field waiting_seconds: must have the shape (1,), found (2,)"
        assert refusal(from_jobs, [job()], CLUSTER, PROFILE, waiting_seconds=[1, 2]) == problem

    def test_no_jobs(self) -> None:
        problem = from_jobs([], CLUSTER, PROFILE)
        assert (problem.num_jobs, problem.throughputs.shape, problem.runnable.shape) == (0, (0, 2), (0, 2))

    def test_no_cluster(self) -> None:
        problem = from_jobs([job()], Cluster([]), PROFILE)
        assert problem.excluded == {"a": "the cluster has no GPUs"}
        assert problem.throughputs.shape == (1, 0)

    def test_cannot_be_written_to(self) -> None:
        assert not any(array.flags.writeable for array in arrays_of(from_jobs([job()], CLUSTER, PROFILE)).values())


class TestAllowedAccelerators:
    @pytest.mark.parametrize(
        ("allowed", "runnable"),
        [
            (None, [True, True]),
            (["v100"], [True, False]),
            (["k80", "p100"], [False, True]),
            (["p100", "v100"], [True, True]),
        ],
    )
    def test_a_job_runs_on_what_it_allows(self, allowed: list[str] | None, runnable: list[bool]) -> None:
        assert from_jobs([job(allowed_accelerators=allowed)], CLUSTER, PROFILE).runnable.tolist() == [runnable]

    @pytest.mark.parametrize(
        ("job_type", "allowed", "could"), [("t", "k80", "v100, p100"), ("no-v100", "v100", "p100"), ("no-v100", "v100|k80", "p100")]
    )
    def test_a_job_that_allows_no_usable_type_has_its_reason(self, job_type: str, allowed: str, could: str) -> None:
        problem = from_jobs([job(job_type=job_type, allowed_accelerators=allowed), job("b")], CLUSTER, PROFILE)
        assert problem.excluded == {"a": f"it allows none of the accelerator types on which it could run ({could})"}

    def test_unknown_names_are_refused_all_together(self) -> None:
        jobs = [job("a", allowed_accelerators="v10|p100"), job("b", duration_seconds=9, duration_accelerator="cpu")]
        with pytest.raises(UnknownNameError) as error:
            from_jobs(jobs, CLUSTER, PROFILE)
        assert str(error.value) == (
            "job 'a', field allowed_accelerators: accelerator 'v10' is in neither the cluster nor the profile; "
            "did you mean 'v100'?\n"
            "job 'b', field duration_accelerator: accelerator 'cpu' is in neither the cluster nor the profile; "
            "known: k80, p100, v100"
        )


class TestLocality:
    """Of v100 there is one node of 8; of p100 there are nodes of 4, two in one rack and one in another."""

    @pytest.mark.parametrize(
        ("locality", "gang", "runnable"),
        [
            ("node", 4, [True, True]),
            ("node", 8, [True, False]),
            ("rack", 8, [True, True]),
            ("rack", 9, [False, False]),
            ("any", 12, [False, True]),
            ("any", 13, [False, False]),
        ],
    )
    def test_a_gang_runs_where_an_empty_cluster_can_hold_it(self, locality: str, gang: int, runnable: list[bool]) -> None:
        problem = from_jobs([job(locality=locality, num_gpus=gang)], CLUSTER, PROFILE)
        assert problem.runnable.tolist() == [runnable]

    def test_a_gang_that_fits_nowhere_sees_the_largest_spans(self) -> None:
        jobs = [job("node", locality="node", num_gpus=16), job("any", num_gpus=16, allowed_accelerators="p100")]
        assert from_jobs(jobs, CLUSTER, PROFILE).excluded == {
            "node": "its gang of 16 GPUs fits nowhere (largest gang that fits: v100: 8, p100: 4)",
            "any": "its gang of 16 GPUs fits nowhere (largest gang that fits: p100: 12)",
        }

    def test_a_rack_where_no_node_names_one_is_said(self) -> None:
        jobs = [job("racks", locality="rack", num_gpus=16), job("any", num_gpus=32)]
        bare = Cluster.from_counts({"v100": (16, 8)})
        said = from_jobs(jobs, bare, PROFILE).excluded
        nowhere = "gang of {} GPUs fits nowhere (largest gang that fits: v100: {})"
        assert said["any"] == f"its {nowhere.format(32, 16)}"
        assert said["racks"].startswith(
            f"its {nowhere.format(16, 8)}; its locality is rack, but no node names its rack (field rack)"
        )
        racked = Cluster([node.model_copy(update={"rack": node.name}) for node in bare.nodes])
        assert from_jobs(jobs, racked, PROFILE).excluded["racks"] == f"its {nowhere.format(16, 8)}"

    def test_each_job_has_its_own(self) -> None:
        jobs = [job(locality, locality=locality, num_gpus=8) for locality in ("any", "rack", "node")]
        assert from_jobs(jobs, CLUSTER, PROFILE).runnable.tolist() == [[True, True], [True, True], [True, False]]


class TestSteps:
    def test_a_duration_is_steps_at_the_speed_of_its_accelerator(self) -> None:
        jobs = [
            job("a", duration_seconds=10, duration_accelerator="v100"),
            job("b", duration_seconds=10, duration_accelerator="p100", steps_done=5),
        ]
        problem = from_jobs(jobs, CLUSTER, PROFILE)
        assert problem.total_steps.tolist() == [40, 20]
        assert problem.steps_remaining.tolist() == [40, 15]

    def test_a_duration_may_be_less_than_a_step(self) -> None:
        jobs = [job(job_type="slow", duration_seconds=1, duration_accelerator="v100")]
        assert from_jobs(jobs, CLUSTER, PROFILE).total_steps.tolist() == [0.5]

    def test_a_duration_may_be_on_an_accelerator_that_the_cluster_lacks(self) -> None:
        jobs = [job(duration_seconds=10, duration_accelerator="k80", allowed_accelerators="v100")]
        assert from_jobs(jobs, CLUSTER, PROFILE).total_steps.tolist() == [10]

    def test_a_duration_on_a_type_without_throughput_is_refused(self) -> None:
        jobs = [job(name, job_type="no-v100", duration_seconds=10, duration_accelerator="v100") for name in "ab"]
        assert refusal(from_jobs, jobs, CLUSTER, PROFILE) == (
            "job 'a', field duration_accelerator: its throughput on 'v100' is 0, so the duration gives no steps\n"
            "job 'b', field duration_accelerator: its throughput on 'v100' is 0, so the duration gives no steps"
        )

    @pytest.mark.parametrize("done", [5, 9])
    def test_a_job_with_all_steps_done_has_finished(self, done: int) -> None:
        problem = from_jobs([job(total_steps=5, steps_done=done)], CLUSTER, PROFILE)
        assert problem.steps_remaining.tolist() == [0]
        assert problem.excluded == {"a": "it has finished: no steps remain"}

    def test_steps_may_be_unknown(self) -> None:
        problem = from_jobs([job(steps_done=5)], CLUSTER, PROFILE)
        assert np.isnan([problem.total_steps, problem.steps_remaining]).all()
        assert problem.excluded == {}


class TestDeadlines:
    @pytest.mark.parametrize(
        ("fields", "seconds_from_now"),
        [
            pytest.param({}, NAN, id="none"),
            pytest.param({"deadline_seconds": 120}, 70, id="on the clock"),
            pytest.param({"deadline_seconds": 20}, -30, id="passed"),
            pytest.param({"deadline_factor": 2, "total_steps": 400}, 150, id="2 x 100 s on v100, from the start"),
            pytest.param({"deadline_factor": 2, "total_steps": 400, "arrival_seconds": 30}, 180, id="from its arrival"),
            pytest.param({"deadline_factor": 2, "total_steps": 400, "steps_done": 390}, 150, id="of all steps, not of the rest"),
            pytest.param(
                {"deadline_factor": 2, "total_steps": 400, "allowed_accelerators": "p100"}, 350, id="2 x 200 s, v100 not allowed"
            ),
            pytest.param(
                {"job_type": "slow", "deadline_factor": 2, "total_steps": 100}, 350, id="2 x 200 s, at half a step a second"
            ),
            pytest.param(
                {"deadline_factor": 2, "duration_seconds": 400, "duration_accelerator": "k80"}, 150, id="2 x 100 s, of a duration"
            ),
        ],
    )
    def test_are_seconds_from_now(self, fields: dict[str, Any], seconds_from_now: float) -> None:
        problem = from_jobs([job(**fields)], CLUSTER, PROFILE, now_seconds=50)
        np.testing.assert_array_equal(problem.deadlines_seconds, [seconds_from_now])

    def test_now_is_0_unless_said(self) -> None:
        problem = from_jobs([job(deadline_seconds=120, arrival_seconds=-3)], CLUSTER, PROFILE)
        assert (problem.deadlines_seconds.tolist(), problem.elapsed_seconds.tolist()) == ([120], [3])

    def test_a_factor_needs_the_number_of_steps(self) -> None:
        problem = "job 'a', field deadline_factor: needs total_steps (or a duration) as well"
        assert refusal(from_jobs, [job(deadline_factor=2)], CLUSTER, PROFILE) == problem

    def test_a_job_that_runs_nowhere_has_none(self) -> None:
        problem = from_jobs([job(job_type="new", deadline_factor=2, total_steps=5)], CLUSTER, PROFILE)
        assert np.isnan(problem.deadlines_seconds).all()
        assert list(problem.excluded) == ["a"]


class TestUnknownAcceleratorTypes:
    MIXED = Cluster.from_counts({"mi300": 12, "v100": 8, "gaudi": 0})

    def test_are_left_out_with_a_warning_each(self) -> None:
        with pytest.warns(GavelWarning) as caught:
            problem = from_jobs([job()], self.MIXED, PROFILE, allow_unknown_types=True)
        assert [str(warning.message) for warning in caught] == [
            "12 GPUs are ignored: accelerator 'mi300' is not in profile 'fake', which has v100, p100, k80",
            "0 GPUs are ignored: accelerator 'gaudi' is not in profile 'fake', which has v100, p100, k80",
        ]
        assert problem.accelerator_types == ("v100",)
        assert problem.capacities.tolist() == [8]

    def test_the_warning_points_at_the_caller(self) -> None:
        with pytest.warns(GavelWarning) as caught:
            from_jobs([job()], self.MIXED, PROFILE, allow_unknown_types=True)
        assert {warning.filename for warning in caught} == {__file__}

    def test_the_cluster_keeps_them(self) -> None:
        with pytest.warns(GavelWarning):
            from_jobs([job()], self.MIXED, PROFILE, allow_unknown_types=True)
        assert self.MIXED.accelerator_names == ("mi300", "v100", "gaudi")

    def test_none_known_is_an_error(self) -> None:
        with pytest.raises(UnknownNameError) as error:
            from_jobs([job()], Cluster.from_counts({"mi300": 8, "v10": 8}), PROFILE, allow_unknown_types=True)
        assert str(error.value).splitlines()[:2] == [
            "cluster, field accelerator 'mi300': is not in profile 'fake', which has v100, p100, k80; its 8 GPUs cannot be used",
            "cluster, field accelerator 'v10': is not in profile 'fake', which has v100, p100, k80; its 8 GPUs cannot be used",
        ]

    def test_all_known_is_quiet(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            from_jobs([job()], CLUSTER, PROFILE)


@given(problem=problems())
def test_a_job_may_run_exactly_where_it_has_a_throughput_and_its_gang_fits(problem: AllocationProblem) -> None:
    for i, job_id in enumerate(problem.job_ids):
        columns = zip(problem.throughputs[i], problem.capacities, strict=True)
        fits = [speed > 0 and problem.num_gpus[i] <= gpus for speed, gpus in columns]
        assert problem.runnable[i].tolist() == fits
        assert (job_id in problem.excluded) == (not any(fits))


@given(problem=problems())
def test_the_equal_share_lies_between_the_slowest_and_the_fastest_type(problem: AllocationProblem) -> None:
    used = problem.throughputs[:, problem.capacities > 0]
    if used.size:
        assert np.all(problem.equal_share <= used.max(axis=1) * (1 + 1e-12))
        assert np.all(problem.equal_share >= used.min(axis=1) * (1 - 1e-12))


@given(problem=problems(), data=st.data())
def test_selecting_twice_is_selecting_once(problem: AllocationProblem, data: st.DataObject) -> None:
    first = np.array(data.draw(st.permutations(range(problem.num_jobs))))
    second = first[: data.draw(st.integers(0, problem.num_jobs))]
    twice = problem.select(first).select(np.argsort(first)[second])
    once = problem.select(second)
    assert (twice.job_ids, twice.excluded) == (once.job_ids, once.excluded)
    for name, array in arrays_of(once).items():
        np.testing.assert_array_equal(array, arrays_of(twice)[name])


@given(problem=problems())
def test_jobs_and_arrays_with_the_same_numbers_are_the_same_problem(problem: AllocationProblem) -> None:
    types = problem.accelerator_types
    profile = FakeProfile(
        {job_id: dict(zip(types, row, strict=True)) for job_id, row in zip(problem.job_ids, problem.throughputs, strict=True)}
    )
    jobs = [
        Job(job_id, job_type=job_id, num_gpus=gang, weight=weight, total_steps=steps, arrival_seconds=arrival)
        for job_id, gang, weight, steps, arrival in zip(
            problem.job_ids,
            problem.num_gpus.tolist(),
            problem.weights,
            problem.steps_remaining,
            problem.arrival_seconds,
            strict=True,
        )
    ]
    cluster = Cluster.from_counts(dict(zip(types, problem.capacities.astype(int).tolist(), strict=True)))
    same = from_jobs(jobs, cluster, profile)
    assert (same.job_ids, same.accelerator_types, same.excluded) == (problem.job_ids, types, problem.excluded)
    for name in ("throughputs", "capacities", "runnable", "num_gpus", "weights", "steps_remaining", "arrival_seconds"):
        np.testing.assert_array_equal(getattr(same, name), getattr(problem, name))


class TestFromTypes:
    def test_it_is_the_same_as_from_arrays(self) -> None:
        table, index = np.array([[4.0, 1.0], [0.0, 0.0], [2.0, 2.0]]), [2, 0, 1, 0]
        gangs, steps = [1, 4, 1, 8], [5, 0, 5, 5]
        typed = AllocationProblem.from_types(table, index, [4, 8], num_gpus=gangs, steps_remaining=steps)
        plain = AllocationProblem.from_arrays(table[index], [4, 8], num_gpus=gangs, steps_remaining=steps)
        for name in ("throughputs", "runnable", "num_gpus", "weights", "steps_remaining", "equal_share", "fastest"):
            assert np.array_equal(getattr(typed, name), getattr(plain, name)), name
        assert typed.excluded == plain.excluded
        assert list(typed.excluded) == ["1", "2"]
        assert typed.job_ids == plain.job_ids

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            ([0, 2], "entry 1, field type_index: must be a whole number from 0 to 1, found 2"),
            ([0.5, 1], "entry 0, field type_index: must be a whole number from 0 to 1, found 0.5"),
            ([float("nan"), -1], "entry 1, field type_index: must be a whole number from 0 to 1, found -1"),
            ("ab", "field type_index: must be a list of whole numbers from 0 to 1, one per job"),
            ([[0]], "field type_index: must be a list of whole numbers from 0 to 1, one per job"),
        ],
    )
    def test_a_wrong_index_is_named(self, index: Any, message: str) -> None:
        assert message in refusal(AllocationProblem.from_types, [[1.0], [2.0]], index, [1])

    def test_faults_of_the_table_name_the_job_type(self) -> None:
        message = refusal(AllocationProblem.from_types, [[1.0], [-2.0]], [0, 1], [1], weights=[1, 0])
        assert "job type '1', accelerator type 'type-0', field throughputs: must be a finite number of at least 0" in message
        assert "job '1', field weights" in message

    def test_types_without_jobs_are_a_problem(self) -> None:
        problem = AllocationProblem.from_types([[1.0]], [], [4], num_gpus=np.array([]))
        assert (problem.num_jobs, problem.throughputs.shape) == (0, (0, 1))

    def test_an_unknown_argument_is_named(self) -> None:
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'weight'; did you mean 'weights'"):
            AllocationProblem.from_types([[1.0]], [0], [1], weight=[1])  # type: ignore[call-arg]


class TestWithCapacities:
    def test_normalisers_stay(self) -> None:
        problem = AllocationProblem.from_arrays([[4.0, 1.0]], [1, 1])
        more = problem.with_capacities([3, 1])
        assert more.capacities.tolist() == [3, 1]
        assert more.equal_share.tolist() == problem.equal_share.tolist() == [2.5]

    def test_masks_close_and_do_not_open(self) -> None:
        problem = AllocationProblem.from_arrays([[1.0, 1.0], [1.0, 1.0]], [4, 2], num_gpus=[4, 1])
        assert problem.with_capacities([4, 8]).runnable.tolist() == [[True, False], [True, True]]
        fewer = problem.with_capacities([2, 2])
        assert fewer.runnable.tolist() == [[False, False], [True, True]]
        assert "its gang of 4 GPUs fits nowhere" in fewer.excluded["0"]

    def test_a_wrong_count_is_named(self) -> None:
        problem = AllocationProblem.from_arrays([[1.0]], [4])
        assert "accelerator type 'type-0', field capacities: must be a finite number of at least 0" in refusal(
            problem.with_capacities, [-1]
        )
