"""Sweeps on a Dask cluster of separate processes."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import gavel_py as gp
from tests.sweeps.support import Dying, Failing, simulations, solves, timeless

# It is not imported here, since it takes 40 MiB of each process that collects tests, and no fast test needs it.
NO_DASK = pytest.mark.skipif(find_spec("distributed") is None, reason="distributed is not installed (the extra dask)")
pytestmark = [pytest.mark.deep, NO_DASK]


@pytest.mark.deep
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
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=None
        ) as cluster,
        gp.dask_executor(cluster.scheduler_address) as executor,
    ):
        assert [row["status"] for row in gp.sweep(solves(seeds=1), executor=executor)] == ["done"] * 2


@contextmanager
def service(answer: bytes | None, backlog: int = 8) -> Iterator[str]:
    """Yield the address of a service that sends an answer to each connection, or None: that accepts none."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server, ExitStack() as connections:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.enter_context(connection)
                    connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        for _ in range(backlog + 1 if answer is None else 0):  # fill the queue: further packets are dropped
            connections.enter_context(socket.create_connection(server.getsockname()))
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.close()


def refused(address: str) -> str:
    """Return the error for a scheduler that does not answer."""
    with pytest.raises(gp.InputError, match="scheduler ") as caught, gp.dask_executor(address):
        pytest.fail("nobody is there")
    return str(caught.value)


def test_a_scheduler_that_does_not_answer_is_an_error() -> None:
    assert "no Dask scheduler answers there within 5 s" in refused("tcp://127.0.0.1:9")
    assert "is not the address of a Dask scheduler (missing port number" in refused("nonsense")


@pytest.mark.parametrize(
    ("answer", "backlog", "said"),
    [
        (None, 0, "no Dask scheduler answers there within 5 s"),
        (b"", 8, "no Dask scheduler answers there within 5 s (no response)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 8, "no Dask scheduler answers there within 5 s (another service answers)"),
    ],
    ids=["packets are dropped", "silent", "another service"],
)
def test_what_swallows_packets_or_speaks_otherwise_is_an_error(answer: bytes | None, backlog: int, said: str) -> None:
    with service(answer, backlog) as address:
        assert said in refused(address)


# Dask may leave a coroutine or a socket of the workers that died to the garbage collector.
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_die_at_their_start_are_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    (tmp_path / "dying.py").write_text("import os\ndef dask_setup(worker):\n    os.kill(os.getpid(), 9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    cluster = distributed.LocalCluster
    monkeypatch.setattr(distributed, "LocalCluster", lambda **settings: cluster(**settings | {"preload": "dying"}))
    with pytest.raises(gp.GavelError, match="the processes of Dask cannot be started"), gp.dask_executor(workers=1):
        pytest.fail("no worker can start")
    gc.collect()  # here, and not in a later test
