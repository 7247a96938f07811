"""Throughputs by job, from an array or a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp

ThroughputMatrix = gp.throughput_profiles.ThroughputMatrix


@pytest.fixture
def matrix() -> ThroughputMatrix:
    return gp.ThroughputProfile.from_matrix(
        [[4.0, 1.0], [3.0, None], [0.0, 2.0]], job_ids=["a", "b", "c"], accelerators=["v100", "k80"], name="mine"
    )


class TestLookup:
    def test_rows_are_looked_up_by_job_id(self, matrix: ThroughputMatrix) -> None:
        jobs = [gp.Job("c", job_type="resnet"), gp.Job("a", num_gpus=8), gp.Job("c")]
        assert matrix.matrix(jobs, ["k80", "v100"]).tolist() == [[2.0, 0.0], [1.0, 4.0], [2.0, 0.0]]

    def test_the_throughput_of_one_job(self, matrix: ThroughputMatrix) -> None:
        assert matrix.job_throughput(gp.Job("a"), "k80") == 1.0
        assert matrix.job_throughput(gp.Job("c"), "v100") == 0.0

    def test_no_jobs(self, matrix: ThroughputMatrix) -> None:
        assert matrix.matrix([], ["v100", "k80"]).shape == (0, 2)
        assert len(ThroughputMatrix("empty", [], ["v100"], [])) == 0

    def test_an_array(self) -> None:
        array = np.array([[1.5, 2.5]])
        matrix = gp.ThroughputProfile.from_matrix(array, job_ids=["a"], accelerators=["v100", "k80"])
        array[0, 0] = 9.0
        assert matrix.matrix([gp.Job("a")], ["v100", "k80"]).tolist() == [[1.5, 2.5]]

    def test_it_is_immutable(self, matrix: ThroughputMatrix) -> None:
        with pytest.raises(ValueError, match="read-only"):
            matrix.values[0, 0] = 1.0

    def test_results_are_copies(self, matrix: ThroughputMatrix) -> None:
        matrix.matrix([gp.Job("a")], ["v100"])[0, 0] = 99.0
        assert matrix.job_throughput(gp.Job("a"), "v100") == 4.0

    def test_missing_values_count_as_zero_where_the_job_may_not_run(self, matrix: ThroughputMatrix) -> None:
        jobs = [gp.Job("b", allowed_accelerators=("v100",)), gp.Job("x", allowed_accelerators=("h100",))]
        assert matrix.matrix(jobs, ["v100", "k80"]).tolist() == [[3.0, 0.0], [0.0, 0.0]]

    def test_a_missing_throughput_of_one_job_is_an_error(self, matrix: ThroughputMatrix) -> None:
        with pytest.raises(gp.MissingThroughputError, match="has no throughput on 'k80' for job 'b'; use 0 if it cannot run"):
            matrix.job_throughput(gp.Job("b", allowed_accelerators=("v100",)), "k80")


class TestMissing:
    def test_each_missing_value_is_reported_once(self, matrix: ThroughputMatrix) -> None:
        jobs = [gp.Job("b"), gp.Job("aa"), gp.Job("cc"), gp.Job("a")]
        with pytest.raises(gp.MissingThroughputError) as caught:
            matrix.matrix(jobs, ["k80", "v10"])
        assert [str(fault) for fault in caught.value.faults] == [
            "throughput matrix 'mine': has no throughput on 'k80' for job 'b'; use 0 if it cannot run there",
            "throughput matrix 'mine', field accelerator: 'v10' is missing, needed by job 'b' and 3 more; did you mean 'v100'?",
            "throughput matrix 'mine', field job_id: has no row for job 'aa' and 1 more; did you mean 'a'?",
        ]

    def test_an_unknown_job(self, matrix: ThroughputMatrix) -> None:
        with pytest.raises(gp.MissingThroughputError, match="has no row for job 'aa'; did you mean 'a'"):
            matrix.job_throughput(gp.Job("aa"), "v100")

    def test_an_unknown_accelerator(self, matrix: ThroughputMatrix) -> None:
        with pytest.raises(gp.UnknownNameError, match="'v10' is missing"):
            matrix.job_throughput(gp.Job("a"), "v10")

    def test_spread_throughputs_are_missing(self, matrix: ThroughputMatrix) -> None:
        with pytest.raises(
            gp.MissingThroughputError, match="has only consolidated throughputs; 'spread' was requested for job 'a'"
        ):
            matrix.job_throughput(gp.Job("a"), "v100", "spread")


class TestFaultsOfArrays:
    @pytest.mark.parametrize("values", [[[1.0, 2.0]], [1.0, 2.0], [[1.0], [2.0, 3.0]], np.ones((2, 3))])
    def test_a_wrong_shape(self, values: object) -> None:
        with pytest.raises(gp.InputError, match=r"must be of shape \(jobs, accelerators\) = \(2, 2\)"):
            ThroughputMatrix("m", ["a", "b"], ["v100", "k80"], values)  # type: ignore[arg-type]

    @pytest.mark.parametrize("cell", [-1.0, float("nan"), float("inf"), "fast", 10**400])
    def test_a_wrong_value(self, cell: object) -> None:
        with pytest.raises(gp.InputError) as caught:
            ThroughputMatrix("m", ["a", "b"], ["v100", "k80"], [[1.0, 1.0], [1.0, cell]])  # type: ignore[list-item]
        (fault,) = caught.value.faults
        assert (fault.where, fault.field) == ("throughput matrix 'm', row 2", "k80")
        assert fault.problem.endswith(f"found {cell!r}")

    def test_duplicate_and_empty_names(self) -> None:
        with pytest.raises(gp.InputError) as caught:
            ThroughputMatrix("m", ["a", "a", ""], ["v100", "v100"], np.ones((3, 2)))
        assert [str(fault) for fault in caught.value.faults] == [
            "throughput matrix 'm', row 2 (job 'a'), field job_id: appears twice, first at throughput matrix 'm', row 1",
            "throughput matrix 'm', row 3, field job_id: is required",
            "throughput matrix 'm', column 2 (accelerator 'v100'), field accelerator: appears twice, "
            "first at throughput matrix 'm', column 1",
        ]

    def test_an_array_needs_names(self) -> None:
        with pytest.raises(gp.InputError, match="needs job_ids, one per row, and accelerators, one per column"):
            gp.ThroughputProfile.from_matrix([[1.0]], job_ids=["a"])


class TestFiles:
    def read(self, folder: Path, text: str) -> ThroughputMatrix:
        path = folder / "m.csv"
        path.write_text(text)
        return gp.ThroughputProfile.from_matrix(path)

    def test_columns_have_the_order_of_the_header(self, tmp_path: Path) -> None:
        matrix = self.read(tmp_path, "v100,job_id,k80,p100\n,a,1,\n0,b,,\n")
        assert matrix.name == "m"
        assert matrix.accelerators == ("v100", "k80", "p100")
        assert matrix.job_ids == ("a", "b")
        np.testing.assert_array_equal(matrix.values, [[np.nan, 1.0, np.nan], [0.0, np.nan, np.nan]])

    def test_a_file_without_jobs(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "job_id,v100\n").accelerators == ("v100",)

    @pytest.mark.parametrize("cell", ["-1", "nan", "inf", "fast"])
    def test_a_wrong_value_names_line_and_column(self, tmp_path: Path, cell: str) -> None:
        with pytest.raises(gp.InputError) as caught:
            self.read(tmp_path, f"job_id,v100,k80\na,1,1\n\nb,1,{cell}\n")
        (fault,) = caught.value.faults
        assert (fault.where, fault.field) == (f"{tmp_path / 'm.csv'}, line 4", "k80")
        assert fault.problem.endswith(f"found {cell!r}")

    def test_all_faults_are_reported_together(self, tmp_path: Path) -> None:
        with pytest.raises(gp.InputError) as caught:
            self.read(tmp_path, "job_id,v100,k80\na,-1,1\na,1,x\n,1,1\n")
        assert [(fault.where.partition(" (")[0].rpartition(" ")[2], fault.field) for fault in caught.value.faults] == [
            ("3", "job_id"),
            ("4", "job_id"),
            ("2", "v100"),
            ("3", "k80"),
        ]

    def test_a_file_without_job_ids(self, tmp_path: Path) -> None:
        with pytest.raises(gp.InputError, match="line 1: column 'job_id' is missing; did you mean 'job'"):
            self.read(tmp_path, "job,v100\na,1\n")
