"""Sweeps on a Dask cluster of separate processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gavel_py as gp
from tests.sweeps.support import Dying, Failing, simulations, solves, timeless

pytestmark = pytest.mark.slow

pytest.importorskip("distributed")


def test_a_killed_worker_costs_only_its_cell(tmp_path: Path) -> None:
    spec = solves("fifo", Dying(mark=str(tmp_path / "once"), times=1), "isolated", Failing(), seeds=3)
    spec["results"] = str(tmp_path / "cells.sqlite")
    with gp.dask_executor(workers=2) as executor:
        rows = gp.sweep(spec, executor=executor)
        same = gp.sweep(simulations("fifo", fairness=True), executor=executor)
        lost = gp.sweep(solves("fifo", Dying(mark=str(tmp_path / "always")), seeds=1), executor=executor)
    found = {(row["policy"].partition(",")[0], row["status"]) for row in rows}
    assert found == {("fifo", "done"), ("dying", "done"), ("isolated", "done"), ("failing", "failed")}
    assert len((tmp_path / "once").read_text()) == 1
    with ThreadPoolExecutor(1) as threads:
        assert timeless(same) == timeless(gp.sweep(simulations("fifo", fairness=True), executor=threads))
    assert [row["status"] for row in lost] == ["done", "failed"]
    assert "KilledWorker" in str(lost[1]["error"])
    assert len(gp.read_runs(spec["results"])) == 9


def test_an_existing_cluster_is_used() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=None
        ) as cluster,
        gp.dask_executor(cluster.scheduler_address) as executor,
    ):
        assert [row["status"] for row in gp.sweep(solves(seeds=1), executor=executor)] == ["done"] * 2


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers there within 5 s"),
        ("nonsense", "is no address of a Dask scheduler (missing port number"),
    ],
)
def test_a_scheduler_that_does_not_answer_is_an_error(address: str, said: str) -> None:
    started = time.monotonic()
    with pytest.raises(gp.InputError, match="scheduler ") as caught, gp.dask_executor(address):
        pytest.fail("nobody is there")
    assert said in str(caught.value)
    assert time.monotonic() - started < 10
