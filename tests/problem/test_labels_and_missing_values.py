"""Labelled arrays (pandas) are read by their labels or refused; missing and masked entries are missing, and never a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py import AllocationProblem
from gavel_py.problem.arrays import ARRAYS
from tests.support.fakes import FakeProfile, refusal

from_arrays, from_types = AllocationProblem.from_arrays, AllocationProblem.from_types
JOBS, TYPES = ["a", "b", "c"], ["v100", "k80"]
SPEEDS = np.array([[4.0, 1.0], [2.0, 1.0], [3.0, 0.0]])
GPUS = np.array([1.0, 5.0])
NAMED: dict[str, Any] = {"job_ids": JOBS, "accelerator_types": TYPES}
PROFILE = FakeProfile({"t": {"v100": 4.0, "k80": 1.0}})
CLUSTER = gp.Cluster.from_counts({"v100": 2, "k80": 2})
MISSING = [None, np.nan, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), np.ma.masked]

# For each array by job: three values that are right, and different ones.
BY_JOB: dict[str, list[Any]] = {name: [1, 2, 4] for name, array in ARRAYS.items() if array.axes == ("job",)} | {
    "steps_remaining": [10, 20, 40],
    "tenants": ["x", "y", "z"],
    "running_on": ["v100", None, "k80"],
    "previous_fractions": [[0.5, 0.0], [0.25, 0.5], [0.0, 0.0]],
    "pair_kinds": [0, -1, 1],
}


def given_with(name: str, values: Any) -> AllocationProblem:
    more: dict[str, Any] = {"pair_throughputs": np.ones((2, 2, 2))} if name == "pair_kinds" else {}
    return from_arrays(SPEEDS, GPUS, **NAMED, **more, **{name: values})


def as_data(problem: AllocationProblem, name: str) -> list[Any]:
    if name == "pair_kinds":
        assert problem.pairs is not None
        return list(problem.pairs.kinds)
    return np.asarray(getattr(problem, name)).tolist()


def frame(values: Any, index: list[Any], columns: list[Any] | None = None) -> Any:
    return pd.Series(list(values), index=index) if np.ndim(values) == 1 else pd.DataFrame(values, index=index, columns=columns)


class TestByLabel:
    def test_capacities(self) -> None:
        problem = from_arrays(SPEEDS, pd.Series({"k80": 5, "v100": 1}), **NAMED)
        assert problem.capacities.tolist() == [1, 5]

    def test_prices(self) -> None:
        problem = from_arrays(SPEEDS, GPUS, **NAMED, prices_per_hour=pd.Series({"k80": 0.5, "v100": 3.0}))
        assert problem.prices_per_hour.tolist() == [3.0, 0.5]

    def test_throughputs(self) -> None:
        table = pd.DataFrame(SPEEDS, index=JOBS, columns=TYPES)
        assert from_arrays(table.iloc[[2, 0, 1], ::-1], GPUS, **NAMED).throughputs.tolist() == SPEEDS.tolist()

    def test_rows_that_are_series(self) -> None:
        rows = [pd.Series({"k80": slow, "v100": fast}) for fast, slow in SPEEDS]
        assert from_arrays(rows, GPUS, **NAMED).throughputs.tolist() == SPEEDS.tolist()

    def test_a_table_names_jobs_and_types_where_nothing_else_does(self) -> None:
        problem = from_arrays(pd.DataFrame(SPEEDS, index=JOBS, columns=TYPES), pd.Series({"k80": 5, "v100": 1}))
        assert (list(problem.job_ids), problem.accelerator_types) == (JOBS, tuple(TYPES))
        assert problem.capacities.tolist() == [1, 5]

    @pytest.mark.parametrize("name", BY_JOB)
    def test_arrays_by_job(self, name: str) -> None:
        values, order = BY_JOB[name], [2, 0, 1]
        expected = as_data(given_with(name, values), name)
        labelled = frame([values[i] for i in order], [JOBS[i] for i in order], TYPES)
        assert as_data(given_with(name, labelled), name) == expected

    def test_previous_fractions_by_type_too(self) -> None:
        table = pd.DataFrame(BY_JOB["previous_fractions"], index=JOBS, columns=TYPES)
        assert given_with("previous_fractions", table.iloc[:, ::-1]).previous_fractions.tolist() == table.to_numpy().tolist()

    def test_type_index(self) -> None:
        index = pd.Series({"c": 1, "a": 0, "b": 1})
        problem = from_types(SPEEDS[:2], index, GPUS, **NAMED)
        assert problem.throughputs.tolist() == SPEEDS[[0, 1, 1]].tolist()
        assert problem.type_index is not None
        assert problem.type_index.tolist() == [0, 1, 1]

    def test_a_table_of_job_types_that_is_named(self) -> None:
        table = pd.DataFrame(SPEEDS[:2, ::-1], index=["bert", "lstm"], columns=TYPES[::-1])
        problem = from_types(table, [0, 1, 1], GPUS, job_ids=JOBS)
        assert problem.accelerator_types == ("k80", "v100")
        assert from_types(table, [0, 1, 1], GPUS, **NAMED).throughputs.tolist() == SPEEDS[[0, 1, 1]].tolist()

    def test_job_types_by_number(self) -> None:
        table = pd.DataFrame(SPEEDS[:2], index=[1, 0], columns=TYPES)
        assert from_types(table, [0, 1], GPUS).throughputs.tolist() == SPEEDS[[1, 0]].tolist()

    def test_other_numbers_of_gpus(self) -> None:
        problem = from_arrays(SPEEDS, GPUS, **NAMED)
        assert problem.with_capacities(pd.Series({"k80": 7, "v100": 3})).capacities.tolist() == [3, 7]
        spans = pd.DataFrame({"k80": [0, 9, 9], "v100": [9, 0, 9]}, index=JOBS)
        assert problem.with_capacities([3, 7], largest_gangs=spans).runnable.tolist() == [
            [True, False],
            [False, True],
            [True, False],
        ]

    def test_gpus_of_a_cluster(self) -> None:
        assert gp.Cluster.from_counts(pd.Series({"k80": 5, "v100": 1})) == gp.Cluster.from_counts({"k80": 5, "v100": 1})

    def test_a_mask_of_jobs(self) -> None:
        problem = from_arrays(SPEEDS, GPUS, **NAMED)
        assert list(problem.select(pd.Series({"c": True, "b": False, "a": False})).job_ids) == ["c"]

    def test_of_jobs_and_cluster(self) -> None:
        jobs = [gp.Job(name, job_type="t") for name in JOBS]
        problem = AllocationProblem.from_jobs(
            jobs,
            CLUSTER,
            PROFILE,
            waiting_seconds=pd.Series({"b": 2, "a": 1, "c": 3}),
            running_on=pd.Series({"c": "k80", "a": "v100", "b": None}),
            previous_fractions=pd.DataFrame({"k80": [0.1, 0.2, 0.3], "v100": [0.0, 0.5, 0.0]}, index=["c", "b", "a"]),
        )
        assert problem.waiting_seconds.tolist() == [1, 2, 3]
        assert problem.running_on.tolist() == [0, -1, 1]
        assert problem.previous_fractions.tolist() == [[0.0, 0.3], [0.5, 0.2], [0.0, 0.1]]

    def test_a_matrix_of_throughputs(self) -> None:
        table = pd.DataFrame({"k80": [1.0, np.nan], "v100": [4.0, 2.0]}, index=["b", "a"])
        for matrix in (
            gp.ThroughputProfile.from_matrix(table),
            gp.ThroughputProfile.from_matrix(table, job_ids=["a", "b"], accelerators=["v100", "k80"]),
        ):
            jobs = [gp.Job("a", allowed_accelerators=["v100"]), gp.Job("b")]
            assert matrix.matrix(jobs, ["v100", "k80"]).tolist() == [[2.0, 0.0], [4.0, 1.0]]
            assert "has no throughput on 'k80' for job 'a'" in refusal(matrix.matrix, [gp.Job("a")], ["k80"])

    def test_a_matrix_of_rows_that_are_series(self) -> None:
        rows = [pd.Series({"k80": 1.0, "v100": 4.0}), pd.Series({"v100": 2.0, "k80": 3.0})]
        from_matrix = gp.ThroughputProfile.from_matrix
        matrix = from_matrix(rows, job_ids=["a", "b"], accelerators=["v100", "k80"])
        assert matrix.values.tolist() == [[4, 1], [2, 3]]
        assert "is labelled 'k80', 'v100'" in refusal(from_matrix, rows, job_ids=["a", "b"], accelerators=["v100", "t4"])

    def test_labelled_results_of_a_policy_are_aligned(self) -> None:
        class Sorted(gp.OrderedPolicy):
            def sort_key(self, jobs: Any) -> Any:
                return pd.Series([2.0, 0.0, 1.0][: len(jobs)]).sort_values()  # by position it would be 0, 1, 2

        problem = from_arrays([[1.0], [1.0], [1.0]], [1], job_ids=JOBS)
        assert gp.solve(problem, Sorted()).time_fractions[:, 0].tolist() == [0, 1, 0]


class TestByPosition:
    @pytest.mark.parametrize("name", BY_JOB)
    def test_a_default_index(self, name: str) -> None:
        values = BY_JOB[name]
        labelled = frame(values, [0, 1, 2], TYPES)
        assert as_data(given_with(name, labelled), name) == as_data(given_with(name, values), name)

    @pytest.mark.parametrize("kind", [list, tuple, np.array, pd.array, pd.Index])
    def test_without_labels(self, kind: Callable[[Any], Any]) -> None:
        assert from_arrays(SPEEDS, kind([1, 5]), **NAMED, weights=kind([1, 2, 4])).weights.tolist() == [1, 2, 4]

    def test_columns_of_one_table_with_numbered_rows(self) -> None:
        jobs = pd.DataFrame({"name": JOBS, "gpus": [1, 2, 4], "who": ["x", "y", "z"]}, index=[7, 3, 9])
        problem = from_arrays(
            SPEEDS, GPUS, job_ids=jobs["name"], num_gpus=jobs["gpus"], tenants=jobs["who"].sort_values(ascending=False)
        )
        assert (problem.num_gpus.tolist(), list(problem.tenants)) == ([1, 2, 4], ["x", "y", "z"])


class TestRefused:
    @pytest.mark.parametrize(
        ("labels", "told"),
        [
            (["k80", "p100"], "is labelled 'k80', 'p100', but the accelerator types are 'v100', 'k80'"),
            (["k80", "k80"], "is labelled 'k80', 'k80', but the accelerator types are 'v100', 'k80'"),
            ([1, 0], "is labelled 1, 0, but the accelerator types are 'v100', 'k80'"),
            ([np.nan, "k80"], "is labelled nan, 'k80', but the accelerator types are 'v100', 'k80'"),
        ],
    )
    def test_other_labels(self, labels: list[Any], told: str) -> None:
        problem = refusal(from_arrays, SPEEDS, pd.Series([5, 1], index=labels), **NAMED)
        assert problem == f"field capacities: {told}; pass plain values in this order (.to_numpy())"

    def test_labels_where_nothing_has_names(self) -> None:
        assert refusal(from_arrays, SPEEDS, pd.Series({"k80": 5, "v100": 1})) == (
            "field capacities: is labelled 'k80', 'v100', but the accelerator types are 'type-0', 'type-1'; "
            "name them with accelerator_types, or pass plain values in this order (.to_numpy())"
        )

    @pytest.mark.parametrize("name", BY_JOB)
    def test_arrays_by_job(self, name: str) -> None:
        told = refusal(given_with, name, frame(BY_JOB[name], ["a", "b", "d"], TYPES))
        assert told.startswith(f"field {name}: is labelled 'a', 'b', 'd', but the jobs are 'a', 'b', 'c'")

    def test_all_faults_come_together(self) -> None:
        wrong = pd.Series([1, 2, 4], index=["x", "y", "z"])
        assert len(refusal(from_arrays, SPEEDS, GPUS, **NAMED, weights=wrong, num_gpus=wrong, tenants=wrong).splitlines()) == 3

    def test_elsewhere(self) -> None:
        problem = from_arrays(SPEEDS, GPUS, **NAMED)
        assert "field capacities: is labelled" in refusal(problem.with_capacities, pd.Series({"k80": 5, "t4": 1}))
        assert "field rows: is labelled" in refusal(problem.select, pd.Series([True] * 3, index=["a", "b", "d"]))
        table = pd.DataFrame(SPEEDS, index=JOBS, columns=TYPES)
        from_matrix = gp.ThroughputProfile.from_matrix
        assert "is labelled 'v100', 'k80'" in refusal(from_matrix, table, job_ids=JOBS, accelerators=["v100", "t4"])
        assert "an array of throughputs needs job_ids" in refusal(from_matrix, pd.DataFrame(SPEEDS))


class TestMissing:
    @pytest.mark.parametrize("value", MISSING, ids=repr)
    def test_is_no_name(self, value: Any) -> None:
        for i, name in enumerate(("job_ids", "accelerator_types")):
            names = list(NAMED[name])
            names[1] = value
            told = refusal(from_arrays, SPEEDS, GPUS, **NAMED | {name: names})
            assert told == f"entry 1, field {('job_ids', 'accelerator_types')[i]}: must be a name, found {value!r}"
        from_matrix = gp.ThroughputProfile.from_matrix
        assert "row 2, field job_id: is required" in refusal(from_matrix, SPEEDS, job_ids=["a", value, "c"], accelerators=TYPES)
        assert "column 2, field accelerator: is required" in refusal(
            from_matrix, SPEEDS, job_ids=JOBS, accelerators=["v100", value]
        )

    @pytest.mark.parametrize("value", MISSING, ids=repr)
    def test_a_missing_tenant_is_none(self, value: Any) -> None:
        assert list(from_arrays(SPEEDS, GPUS, **NAMED, tenants=["x", value, "z"]).tenants) == ["x", "", "z"]

    @pytest.mark.parametrize("value", MISSING, ids=repr)
    def test_a_job_that_runs_nowhere(self, value: Any) -> None:
        assert from_arrays(SPEEDS, GPUS, **NAMED, running_on=["k80", value, 0]).running_on.tolist() == [1, -1, 0]

    @pytest.mark.parametrize("value", MISSING, ids=repr)
    @pytest.mark.parametrize(
        "make",
        [
            lambda v: gp.Job(job_id=v),
            lambda v: gp.Job("a", tenant=v),
            lambda v: gp.Job("a", job_type=v),
            lambda v: gp.Job("a", allowed_accelerators=["v100", v]),
            lambda v: gp.Tenant(name=v),
            lambda v: gp.Node(name=v, accelerator="v100", num_gpus=1),
            lambda v: gp.Node(name="n", accelerator=v, num_gpus=1),
            lambda v: gp.AcceleratorType(name=v),
            lambda v: gp.Measurement(job_type=v, num_gpus=1, accelerator="v100", steps_per_second=1),
            lambda v: gp.Quota(v, gpus=1),
            lambda v: gp.Pin("a", [v]),
        ],
    )
    def test_records_refuse_it_as_a_name(self, make: Callable[[Any], object], value: Any) -> None:
        refusal(make, value)

    @pytest.mark.parametrize("value", [None, np.nan])
    def test_mappings_refuse_it_as_a_name(self, value: Any) -> None:
        refusal(gp.Cluster.from_counts, {value: 4})
        refusal(gp.TenantTree.from_dict, {value: {}})
        refusal(gp.plan_sweep, {"policies": ["fifo"], "traces": [{"generate": {"jobs": 2}}], "clusters": [{value: 4}]})

    @pytest.mark.parametrize("value", [None, np.nan])
    def test_is_no_node(self, value: Any) -> None:
        window, speeds = gp.NodeWindow(value, 0, 1), gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["a"], accelerators=["v100"])
        job, cluster = gp.Job("a", total_steps=1), gp.Cluster.from_counts({"v100": 1})
        assert "is not in the cluster" in refusal(gp.simulate, [job], cluster, speeds, maintenance=[window])
        assert f"{value!r}" in refusal(gp.RoundScheduler(cluster, speeds).node_down, value)

    def test_empty_names(self) -> None:
        assert "must not contain an empty name" in refusal(from_arrays, SPEEDS, GPUS, **NAMED | {"job_ids": ["a", "", "c"]})
        assert "job_id: must not be empty" in refusal(gp.Job, " ")


class TestMasked:
    @pytest.mark.parametrize("name", [name for name in BY_JOB if name not in {"tenants", "running_on", "pair_kinds"}])
    def test_a_masked_number_is_as_nan(self, name: str) -> None:
        values = np.array(BY_JOB[name], dtype=float)
        mask = np.zeros(values.shape, dtype=bool)
        mask[1] = True
        masked, absent = np.ma.array(values, mask=mask), np.where(mask, np.nan, values)
        if name in {"deadlines_seconds", "latest_end_seconds"}:
            assert np.isnan(getattr(given_with(name, masked), name)).tolist() == [False, True, False]
        else:
            assert refusal(given_with, name, masked) == refusal(given_with, name, absent)

    @pytest.mark.parametrize("kind", [int, float])
    def test_tables_and_arrays_by_type(self, kind: type) -> None:
        hidden = np.ma.array(SPEEDS.astype(kind), mask=[[0, 0], [0, 1], [0, 0]])
        problem = "job 'b', accelerator type 'k80', field throughputs: must be a finite number of at least 0, found nan"
        assert refusal(from_arrays, hidden, GPUS, **NAMED) == problem
        assert refusal(from_arrays, list(hidden), GPUS, **NAMED) == problem
        assert "'k80', field capacities: must be a finite" in refusal(
            from_arrays, SPEEDS, np.ma.array([1, 5], mask=[0, 1]), **NAMED
        )
        prices = np.ma.array([3, 1], mask=[0, 1])
        assert np.isnan(from_arrays(SPEEDS, GPUS, **NAMED, prices_per_hour=prices).prices_per_hour).tolist() == [False, True]

    def test_whole_numbers_and_names(self) -> None:
        hidden = np.ma.array([0, 1, 1], mask=[0, 1, 0])
        assert "entry 1, field type_index: must be a whole number" in refusal(from_types, SPEEDS[:2], hidden, GPUS)
        assert "field pair_kinds: must be an array of numbers without masked entries" in refusal(given_with, "pair_kinds", hidden)
        names = np.ma.array(JOBS, mask=[0, 1, 0])
        assert "entry 1, field job_ids: must be a name" in refusal(from_arrays, SPEEDS, GPUS, job_ids=names)
        assert list(from_arrays(SPEEDS, GPUS, tenants=names).tenants) == ["a", "", "c"]
        assert from_arrays(SPEEDS, GPUS, running_on=hidden).running_on.tolist() == [0, -1, 1]

    def test_a_matrix_of_throughputs(self) -> None:
        hidden = np.ma.array([[4, 1], [2, 1]], mask=[[0, 0], [0, 1]])
        matrix = gp.ThroughputProfile.from_matrix(hidden, job_ids=["a", "b"], accelerators=TYPES)
        assert np.isnan(matrix.values).tolist() == [[False, False], [False, True]]

    @pytest.mark.parametrize("rows", [np.ma.array([True, False, True], mask=[1, 0, 0]), np.ma.array([0, 2], mask=[1, 0])])
    def test_jobs_to_select(self, rows: Any) -> None:
        assert refusal(from_arrays(SPEEDS, GPUS, **NAMED).select, rows) == "field rows: must have no masked entries"

    def test_nothing_is_masked(self) -> None:
        problem = from_arrays(np.ma.array(SPEEDS), np.ma.array(GPUS), **NAMED, num_gpus=np.ma.array([1, 2, 4], mask=False))
        assert problem.num_gpus.tolist() == [1, 2, 4]

    def test_numbers_that_pandas_leaves_out(self) -> None:
        numbers = pd.array([60, None, 30], dtype="Int64")
        assert np.isnan(from_arrays(SPEEDS, GPUS, **NAMED, deadlines_seconds=numbers).deadlines_seconds).tolist() == [
            False,
            True,
            False,
        ]
        assert "job 'b', field weights: must be a finite number" in refusal(from_arrays, SPEEDS, GPUS, **NAMED, weights=numbers)


@given(st.permutations(range(3)), st.permutations(range(2)), st.data())
def test_the_order_of_labelled_arrays_makes_no_difference(rows: list[int], columns: list[int], data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)), dtype=float)
    table = pd.DataFrame(SPEEDS, index=JOBS, columns=TYPES).iloc[rows, columns]
    shuffled = pd.Series(weights, index=JOBS).iloc[data.draw(st.permutations(range(3)))]
    plain = gp.solve(from_arrays(SPEEDS, GPUS, **NAMED, weights=weights))
    labelled = gp.solve(from_arrays(table, pd.Series(GPUS, index=TYPES).iloc[::-1], **NAMED, weights=shuffled))
    assert labelled.time_fractions.tolist() == plain.time_fractions.tolist()
