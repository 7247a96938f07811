"""Results as tables: columns, data frames and notebooks; jobs from data frames."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.io.tabular import Rows, array_of
from tests.support.fakes import refusal

PROBLEM = gp.AllocationProblem.from_arrays(
    [[4, 1], [2, 1], [1, 1]],
    [1, 1],
    job_ids=["bert", "<b>resnet</b>", "huge"],
    accelerator_types=["v100", "k80"],
    num_gpus=[1, 1, 2],
)


def test_an_allocation_is_a_table() -> None:
    allocation = gp.solve(PROBLEM)
    frame = allocation.to_pandas()
    figures = ["throughput", "normalized_throughput", "vs_fair_share", "excluded"]
    assert list(frame.columns) == ["job_id", "v100", "k80", *figures, *vars(allocation.forecast())]
    assert list(gp.Allocation.from_json(allocation.to_json()).to_columns()) == ["job_id", "v100", "k80", *figures]
    assert frame["job_id"].tolist() == list(allocation.job_ids)
    assert np.array_equal(frame[["v100", "k80"]].to_numpy(), allocation.time_fractions)
    assert frame["throughput"].tolist() == allocation.throughputs.tolist()
    assert [bool(reason) for reason in frame["excluded"]] == [False, False, True]
    assert pyarrow.table(allocation.to_columns()).num_rows == 3


def test_a_job_of_an_allocation() -> None:
    allocation = gp.solve(PROBLEM)
    found = allocation["bert"]
    assert found == allocation.to_dict()["jobs"][0]
    assert found["time_fractions"]["v100"] == allocation.time_fractions[0, 0]
    with pytest.raises(gp.UnknownNameError, match="allocation: 'brt' is not one of its jobs; did you mean 'bert'"):
        allocation["brt"]


def test_a_notebook_shows_the_first_rows() -> None:
    html = gp.solve(PROBLEM)._repr_html_()
    assert "&lt;b&gt;resnet&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "more rows" not in html
    many = gp.JobSet(gp.Job(f"job-{i}", num_gpus=1) for i in range(12))._repr_html_()
    assert "job-9<" in many
    assert "job-10" not in many
    assert "2 more rows" in many
    assert gp.JobSet([])._repr_html_().startswith("<p>JobSet(0 jobs)</p>")


def test_jobs_go_to_a_data_frame_and_back() -> None:
    jobs = gp.JobSet(
        [
            gp.Job("a", job_type="LM", num_gpus=0.5, total_steps=1e5, allowed_accelerators=["v100", "k80"], even_split=True),
            gp.Job("b", tenant="red", num_gpus=8, duration_seconds=60, duration_accelerator="k80", deadline_seconds=-3.5),
        ]
    )
    frame = jobs.to_pandas()
    assert frame["total_steps"].isna().tolist() == [False, True]
    assert gp.JobSet.from_pandas(frame) == jobs
    assert gp.JobSet.from_pandas(frame.set_index("job_id")) == jobs
    assert gp.JobSet.from_columns(jobs.to_columns()) == jobs
    assert gp.JobSet.from_pandas(gp.JobSet([]).to_pandas()) == gp.JobSet([])


@given(
    sizes=st.lists(st.sampled_from([1, 2, 8, 0.25]), min_size=1, max_size=5),
    steps=st.lists(st.none() | st.floats(1, 1e9), min_size=5, max_size=5),
    retries=st.integers(0, 9),
)
def test_any_jobs_go_to_columns_and_back(sizes: list[float], steps: list[float | None], retries: int) -> None:
    jobs = gp.JobSet(
        gp.Job(f"job-{i}", num_gpus=size, total_steps=steps[i], max_retries=retries, locality="node")
        for i, size in enumerate(sizes)
    )
    assert gp.JobSet.from_columns(jobs.to_columns()) == jobs
    assert gp.JobSet.from_pandas(jobs.to_pandas()) == jobs


def test_faults_of_a_data_frame_name_the_row() -> None:
    frame = pd.DataFrame({"job_id": ["a", "b"], "num_gpus": [1, -2], "gpus": [1, 1]})
    text = refusal(gp.JobSet.from_pandas, frame)
    assert "row 1 (job 'b'), field num_gpus: must be at least" in text
    assert "row 0 (job 'a'), field gpus: is not known" in text
    assert "must have the same length, found job_id 2, weight 1" in refusal(
        gp.JobSet.from_columns, {"job_id": ["a", "b"], "weight": [1]}
    )


def test_a_simulation_is_a_table() -> None:
    trace = [gp.Job("a", job_type="A3C", total_steps=1e4), gp.Job("b", job_type="A3C", total_steps=1e4)]
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    result = gp.simulate(trace, gp.Cluster.from_inline("k80:1"), profile, "fifo")
    frame = result.to_pandas()
    assert frame["job_id"].tolist() == ["a", "b"]
    assert frame["outcome"].tolist() == ["finished", "finished"]
    assert frame["jct_seconds"].tolist() == [record.jct_seconds for record in result.jobs.values()]
    assert frame["measured"].dtype == bool


@pytest.mark.deep
def test_runs_and_sweeps_are_tables(tmp_path: Path) -> None:
    spec = {"policies": ["fifo", "isolated"], "traces": [{"generate": {"jobs": 3}}], "clusters": ["v100:8"]}
    rows = gp.sweep(spec, workers=1)
    assert rows.to_pandas()["policy"].tolist() == ["fifo", "isolated"]
    assert isinstance(rows, list)
    runs = [gp.Run({"policy": name, "seed": 0}, {"makespan_seconds": seconds}) for name, seconds in (("fifo", 1.0), ("las", None))]
    gp.write_runs(tmp_path / "runs.json", runs)
    read = gp.read_runs(tmp_path / "runs.json")
    assert read.to_pandas()["policy"].tolist() == ["fifo", "las"]
    assert np.isnan(read.to_columns()["makespan_seconds"][1])
    assert runs[0].to_pandas().to_dict("records") == [{"policy": "fifo", "seed": 0, "makespan_seconds": 1.0}]
    assert "<p>2 runs</p>" in read._repr_html_()


def test_without_pandas_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    text = refusal(gp.solve(PROBLEM).to_pandas)
    assert text.startswith("data frames need pandas")
    assert "pip install 'gavel-py[pandas]'" in text


def test_arrays_have_the_types_of_their_values() -> None:
    assert array_of([True, False]).dtype == bool
    assert array_of([1, 2]).dtype == np.int64
    assert array_of([1, 2.5, None]).tolist()[:2] == [1.0, 2.5]
    assert array_of([None, "a", 1]).tolist() == [None, "a", 1]
    assert array_of([]).shape == (0,)
    assert Rows([{"a": 1}, {"b": "x"}]).to_columns()["b"].tolist() == [None, "x"]
