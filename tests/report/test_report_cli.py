"""The command gavel report: pages from files of runs, and one-line errors."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.report.runs.files import CellStore, GridPlace, StoredCell, packed
from tests.end_to_end.test_cli import Gavel, gavel  # noqa: F401
from tests.report.some_runs import some_run
from tests.report.test_run_report import Page

RUNS = [replace(some_run(policy, load, 0, jobs=20), over_time=None, shares={}) for policy in ("fifo", "las") for load in (2.0, 4.5)]


def stored(path: Path, runs: list[gp.Run], failed: list[tuple[dict[str, str | float | None], str]] = []) -> None:  # noqa: B006
    """Write the store of a sweep with these cells."""
    done = [StoredCell(f"d{n}", "{}", "done", metrics=run.metrics, run=packed(run)) for n, run in enumerate(runs)]
    broken = [StoredCell(f"f{n}", "{}", "failed", error=error) for n, (_, error) in enumerate(failed)]
    grid = [GridPlace(cell.key, run.labels) for cell, run in zip(done, runs, strict=True)]
    grid += [GridPlace(cell.key, labels) for cell, (labels, _) in zip(broken, failed, strict=True)]
    with CellStore(path) as store:
        store.begin({}, {}, "", grid)
        store.add([*done, *broken])


def policies(path: Path) -> list[str]:
    return [cells[0] for cells in Page(path.read_text()).tables[0] if len(cells) > 1][1:]


@pytest.mark.deep
def test_a_report_of_several_files(gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    gp.write_runs(tmp_path / "one.json", RUNS[:2])
    stored(tmp_path / "sweep.sqlite", RUNS[2:])
    done = gavel("report", "one.json", "sweep.sqlite", "--charts", "charts", "--title", "Which?")
    assert (done.code, done.out) == (0, "")
    assert done.err == "The report of 4 runs is in report.html, its charts in charts (14 files)\n"
    assert policies(tmp_path / "report.html") == ["fifo", "las", "fifo", "las"]
    assert Page((tmp_path / "report.html").read_text()).words["h1"] == ["Which?"]
    assert len([*(tmp_path / "charts").iterdir()]) == 14


@pytest.mark.deep
def test_only_some_of_the_runs(gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    gp.write_runs(tmp_path / "r.json", RUNS)
    assert gavel("report", "r.json", "--only", "load=4.50", "-o", "a.html").code == 0
    assert policies(tmp_path / "a.html") == ["fifo", "las"]
    done = gavel("report", "r.json", "--only", "policy=las", "--only", "policy=fifo", "--only", "load=2", "-o", "b.html")
    assert done.err == "The report of 2 runs is in b.html\n"


def test_what_failed_is_listed_and_does_not_stop_the_report(gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    failed = [({"policy": "mine", "seed": 1.0}, "Traceback ...\nZeroDivisionError: division by zero")]
    stored(tmp_path / "s.sqlite", RUNS[:1], failed)
    done = gavel("report", "s.sqlite")
    assert (done.code, done.err) == (0, "The report of 1 run and 1 that failed is in report.html\n")
    assert Page((tmp_path / "report.html").read_text()).tables[-1][1][-1].endswith("ZeroDivisionError: division by zero")
    stored(tmp_path / "f.sqlite", [], failed)
    assert gavel("report", "f.sqlite").err == "The report of 0 runs and 1 that failed is in report.html\n"
    (tmp_path / "s.sqlite").chmod(0o444)
    assert gp.read_failures(tmp_path / "s.sqlite") == failed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.json"], "nothing.json: cannot be read: No such file or directory"),
        (["text.json"], "text.json"),
        (["other.json"], "holds no runs"),
        (["text.json"], "neither the store of gavel sweep (--results) nor a .json file of gavel simulate --run-out"),
        (["cut.json"], "cut.json, line 1: is not valid JSON"),
        (["old.json"], "has version 0"),
        (["other.sqlite"], "not that of a sweep"),
        (["none.json"], "none.json: contains no finished run"),
        (["none.sqlite"], "none.sqlite: contains no finished run"),
        (["r.json", "-o", "r.png"], "must end in .html"),
        (["r.json", "-o", "no/r.html"], "there is no folder 'no'"),
        (["r.json", "--charts", "text.json"], "is a file, but must be a folder"),
        (["r.json", "--only", "load"], "must be LABEL=VALUE"),
        (["r.json", "--only", "polcy=fifo"], "no run has a label 'polcy'; did you mean 'policy'?"),
        (["r.json", "--only", "policy=fifi"], "no run has the policy 'fifi'; did you mean 'fifo'?"),
        (["r.json", "--only", "load=3"], "no run has the load '3'; known: 2, 4.5"),
        (["q.json", "--only", "policy=las", "--only", "load=2"], "no run has policy=las and load=2"),
        ([], "Missing argument 'RESULTS...'"),
    ],
)
def test_errors_are_one_line(gavel: Gavel, tmp_path: Path, words: list[str], message: str) -> None:  # noqa: F811
    gp.write_runs(tmp_path / "r.json", RUNS)
    gp.write_runs(tmp_path / "q.json", RUNS[:-2] + RUNS[-1:])
    gp.write_runs(tmp_path / "none.json", [])
    stored(tmp_path / "none.sqlite", [])
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "other.json").write_text("[1]")
    (tmp_path / "cut.json").write_text((tmp_path / "r.json").read_text()[:50])
    (tmp_path / "old.json").write_text(json.dumps({**json.loads((tmp_path / "none.json").read_text()), "version": 0}))
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    done = gavel("report", *words)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.deep
def test_a_report_goes_into_a_pipe_too(tmp_path: Path) -> None:
    gp.write_runs(tmp_path / "r.json", RUNS[:1])
    command = [sys.executable, "-m", "gavel_py", "report", str(tmp_path / "r.json"), "-o", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<!doctype html>")
    assert done.stderr == "The report of 1 run is in /dev/stdout\n"
