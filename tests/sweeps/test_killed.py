"""A sweep that is killed, interrupted or runs out of disk can be continued, with the same rows in the end."""

from __future__ import annotations

import csv
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import gavel_py as gp
from gavel_py.report.runs.files import CellStore, StoredCell
from tests.support.commands import runner
from tests.sweeps.support import simulations, solves, timeless

pytestmark = pytest.mark.deep

SPEC = """\
policies: [fifo, isolated, shortest_job_first]
traces:
  - generate: {jobs: 12, gangs: {1: 0.5, 2: 0.5}, durations: [[1, 3600, 25000]]}
loads: [3]
clusters: [{v100: 6, k80: 6}]
seeds: [0, 1, 2, 3]
fairness: true
results: cells.sqlite
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The rows of an undisturbed sweep, played in threads of this process."""
    folder = tmp_path_factory.mktemp("whole")
    spec = yaml.safe_load(SPEC) | {"results": str(folder / "cells.sqlite")}
    with ThreadPoolExecutor(1) as executor:
        gp.write_table(folder / "rows.csv", gp.sweep(spec, executor=executor))
    return rows(folder)


def begun(folder: Path) -> subprocess.Popen[str]:
    """Start or continue the sweep of a folder, in a process with its own terminal session."""
    (folder / "sweep.yaml").write_text(SPEC)
    command = [sys.executable, "-m", "gavel_py", "sweep", "sweep.yaml", "--workers", "2", "--export", "rows.csv"]
    with open(folder / "told.txt", "a") as told:
        return subprocess.Popen(command, cwd=folder, stdout=told, stderr=told, text=True, start_new_session=True)


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "rows.csv") as file:
        return timeless(csv.DictReader(file))


def stored(folder: Path) -> int:
    if not (folder / "cells.sqlite").exists():
        return 0
    connection = sqlite3.connect(folder / "cells.sqlite")
    try:
        return int(connection.execute("SELECT count(*) FROM cells").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # no tables yet
    finally:
        connection.close()


def until(happened: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 120
    while not happened() and time.monotonic() < deadline and (process is None or process.poll() is None):
        time.sleep(0.02)
    assert happened()


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_killed_sweep_continues(whole: list[dict[str, str]], tmp_path: Path) -> None:
    workers: list[int] = []
    for cells in (2, 6):
        with begun(tmp_path) as process:
            until(lambda cells=cells: stored(tmp_path) >= cells, process)  # type: ignore[misc]
            workers += children(process.pid)
            process.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))  # workers end with their parent
    kept = stored(tmp_path)
    assert 6 <= kept < 16
    with begun(tmp_path) as process:
        assert process.wait() == 0
    assert f"{kept} of 16 cells done" in (tmp_path / "told.txt").read_text()
    assert rows(tmp_path) == whole


def test_a_worker_that_is_killed_from_outside_is_replaced(whole: list[dict[str, str]], tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        until(lambda: stored(tmp_path) >= 2, process)
        for pid in children(process.pid):
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        assert process.wait() == 0
    found = rows(tmp_path)
    assert {row.pop("status") for row in found} == {"done"}
    assert {row.pop("attempts") for row in found} <= {"1", "2"}
    assert found == [{k: v for k, v in row.items() if k not in ("status", "attempts")} for row in whole]


@pytest.mark.deep
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_it_cleanly(
    times: int,
    whole: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with begun(tmp_path) as process:
        until(lambda: stored(tmp_path) >= 2, process)
        for _ in range(times):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.3)
        assert process.wait() == 130
    told = (tmp_path / "told.txt").read_text()
    assert "Traceback" not in told
    assert "The same command continues from here." in told
    kept = stored(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = runner(capsys, "sweep")("sweep.yaml", "--workers", "1", "--export", "rows.csv")
    assert outcome.code == 0
    assert outcome.err.startswith(f"{kept} of 16 cells done")
    assert rows(tmp_path) == whole


SEEDS = 6
FULL = f"""
import resource, sys
import gavel_py as gp
from concurrent.futures import ThreadPoolExecutor
from tests.sweeps.support import simulations

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
with ThreadPoolExecutor(1) as executor:
    gp.sweep(simulations(seeds={SEEDS}, results=sys.argv[1]), executor=executor)
"""


@pytest.mark.deep
def test_a_full_disk_loses_no_stored_cell(tmp_path: Path) -> None:
    path = tmp_path / "cells.sqlite"
    command = [sys.executable, "-c", FULL, str(path), "44000"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{path}: " in done.stderr
    assert "disk" in done.stderr.splitlines()[-1]
    kept = gp.read_runs(path)
    assert 0 < len(kept) < 2 * SEEDS
    told: list[gp.Progress] = []
    assert len(gp.sweep(simulations(seeds=SEEDS), results=str(path), workers=1, on_progress=told.append)) == 2 * SEEDS
    assert told[0].done == len(kept)


def test_a_full_store_keeps_its_cells(tmp_path: Path) -> None:
    with CellStore(tmp_path / "cells.sqlite") as store:
        store.begin({}, {}, "", [])
        store.add([StoredCell("a", "{}", "done", run=b"x")])
        store._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(gp.InputError, match=r"cells\.sqlite: the disk is full"):
            store.add([StoredCell("b", "{}", "done", run=os.urandom(100_000)), StoredCell("c", "{}", "done")])
        assert store.statuses() == {"a": "done"}
        store.add([StoredCell("c", "{}", "failed", "no")])
    connection = sqlite3.connect(tmp_path / "cells.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.deep
def test_a_transaction_of_a_killed_process_is_rolled_back(tmp_path: Path) -> None:
    """The process is killed within a transaction after pages of it have been written to the file."""
    program = """
import os, signal, sys
from gavel_py.report.runs.files import INSERT, CellStore, StoredCell
store = CellStore(sys.argv[1])
store.begin({}, {}, "", [])
store.add([StoredCell("a", "{}", "done", run=b"x")])
store._connection.execute("PRAGMA cache_size = 1")
store._connection.execute("BEGIN IMMEDIATE")
for n in range(50):
    store._connection.execute(INSERT, (str(n), "{}", "done", None, 1, 0.0, 1, None, os.urandom(9000), None))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "cells.sqlite"
    subprocess.run([sys.executable, "-c", program, str(path)], check=False, cwd=Path(__file__).parents[2])
    assert Path(f"{path}-journal").exists()
    with CellStore(path) as store:
        assert store.statuses() == {"a": "done"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"policy,trace\n" * 100, "is not an SQLite database"),
        (b"SQLite format 3\0" + b"\1" * 5000, "is "),
    ],
)
def test_a_file_that_is_no_store_is_left_alone(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "cells.sqlite").write_bytes(content)
    with pytest.raises(gp.InputError) as caught:
        gp.sweep(solves("fifo", seeds=1), results=str(tmp_path / "cells.sqlite"), workers=1)
    assert str(caught.value).startswith(f"{tmp_path / 'cells.sqlite'}: {said}")
    assert (tmp_path / "cells.sqlite").read_bytes() == content
