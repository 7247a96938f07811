"""The command gavel sweep: from a file, from options, dry runs and errors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

import gavel_py as gp
from gavel_py.cli.sweep import progress_text
from tests.support.commands import Gavel, runner

ROOT = Path(__file__).parents[2]
SOLVE = ["--mode", "solve", "-p", "fifo", "-p", "isolated", "--jobs", "4", "-c", "v100:8", "--workers", "1"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    return runner(capsys, "sweep")


@pytest.mark.deep
def test_options_alone_define_a_sweep_that_can_be_continued(gavel: Gavel) -> None:
    first = gavel(*SOLVE, "--seed", "0-1", "--seed", "5", "--results", "cells.sqlite", "--export", "rows.csv")
    assert first.code == 0
    assert "0 of 6 cells done · 0 failed · 6 left\n" in first.err
    assert "6 of 6 cells done · 0 failed · 0 left" in first.err
    assert first.err.endswith("6 cells: 6 done, 0 failed, 0 left; results in cells.sqlite\n")
    assert "Means over the cells" in first.out
    with open("rows.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"]) for row in rows] == [(p, s) for s in "015" for p in ("fifo", "isolated")]
    text = Path("rows.csv").read_text()
    again = gavel(*SOLVE, "--seed", "0-1", "--seed", "5", "--results", "cells.sqlite", "--export", "rows.csv")
    assert (again.code, again.out) == (0, first.out)
    assert again.err.startswith("6 of 6 cells done")
    assert Path("rows.csv").read_text() == text  # times included, so no cell was run again


def test_a_dry_run_shows_the_grid_and_writes_no_file(gavel: Gavel) -> None:
    dry = gavel("-p", "fifo", "--jobs", "3", "--load", "60", "-c", "v100:8", "--fairness", "--results", "cells.sqlite", "--dry-run")
    assert dry.code == 0
    assert "policies: fifo\ntraces: 3 generated jobs\njobs per hour: 60\nclusters: v100:8\nseeds: 0\n" in dry.out
    assert "cells: 1, and 1 of the policy isolated for comparison; 1 points of the grid\n" in dry.out
    assert "estimate: " in dry.out
    assert "basis: one cell of each policy from the middle of its grid, run for a second" in dry.out
    assert not Path("cells.sqlite").exists()


@pytest.mark.deep
def test_a_window_of_jobs_is_measured(gavel: Gavel) -> None:
    spec = ["-p", "fifo", "--jobs", "6", "--load", "60", "-c", "v100:8", "--measure-jobs", "1:4", "--workers", "1"]
    dry = gavel(*spec, "--dry-run")
    assert "round length: 360 s\nmeasured jobs: 1:4\n" in dry.out
    done = gavel(*spec, "--export", "rows.csv")
    assert done.code == 0
    assert "unfinished" in done.out
    with open("rows.csv") as file:
        (row,) = csv.DictReader(file)
    assert (row["measure_jobs"], row["finished"], row["unfinished"]) == ("1:4", "3", "0")
    for window, said in (("1:7", "which has 6 jobs, found 1:7"), ("7", "'7' is not of the form FIRST:END")):
        refused = gavel(*spec, "--measure-jobs", window)
        assert refused.code == 2
        assert said in refused.err


@pytest.mark.deep
def test_a_dry_run_counts_cells_that_have_ended(gavel: Gavel) -> None:
    gavel(*SOLVE, "--results", "cells.sqlite")
    dry = gavel(*SOLVE, "--seed", "0-4", "--results", "cells.sqlite", "--dry-run")
    assert "stored in cells.sqlite: 2 done, 0 failed\n" in dry.out
    assert "basis: the mean time of the completed cells of each policy\n" in dry.out
    done = gavel(*SOLVE, "--results", "cells.sqlite", "--dry-run")
    assert "basis: nothing is left\n" in done.out


@pytest.mark.deep
def test_the_example_runs_at_a_small_scale(gavel: Gavel) -> None:
    """All policies of the example, on fewer jobs, GPUs, loads and seeds."""
    spec = yaml.safe_load((ROOT / "examples" / "sweep.yaml").read_text())
    assert (len(spec["policies"]), len(spec["loads"]), len(spec["seeds"])) == (8, 5, 3)
    spec["traces"][0]["generate"].update(jobs=6, gangs={1: 1.0})
    spec["clusters"] = [{"v100": 2, "p100": 2, "k80": 2}]
    Path("sweep.yaml").write_text(yaml.safe_dump(spec))
    outcome = gavel("sweep.yaml", "--load", "20", "--seed", "0", "--round-seconds", "3600", "--no-progress")
    assert outcome.err == "9 cells: 9 done, 0 failed, 0 left; results in sweep.sqlite\n"
    assert outcome.code == 0
    runs = gp.read_runs("sweep.sqlite")
    assert [run.labels["policy"] for run in runs] == [
        *("max_min_fairness", "max_min_fairness agnostic", "finish_time_fairness", "max_total_throughput"),
        *("least_attained_service", "shortest_job_first", "fifo", "isolated"),
    ]
    assert all(len(run.fairness) == 6 for run in runs)


@pytest.mark.guard
def test_failed_cells_are_listed_and_set_the_exit_code(gavel: Gavel) -> None:
    Path("own.py").write_text(
        "import gavel_py as gp\n"
        "class Slips(gp.OrderedPolicy):\n"
        "    reads = ('arrival_seconds',)\n"
        "    def sort_key(self, jobs):\n"
        "        raise ValueError('a slip')\n"
    )
    outcome = gavel(*SOLVE, "-p", "own:Slips", "--results", "cells.sqlite")
    assert outcome.code == 1
    assert "policy slips, trace 4 generated jobs, cluster v100:8, seed 0 failed: ValueError: a slip\n" in outcome.out
    assert "3 cells: 2 done, 1 failed, 0 left; results in cells.sqlite\n" in outcome.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a SPEC file, or at least --policy, --trace or --jobs, and --cluster"),
        (["absent.yaml"], "absent.yaml: cannot be read: No such file or directory"),
        ([*SOLVE, "--seed", "4-1"], "'4-1' is neither a seed nor a range of seeds, as in 0-4"),
        ([*SOLVE, "--export", "rows.txt"], "rows.txt: cannot determine the format from the name; it must end in .csv, .parquet"),
        ([*SOLVE, "--export", "no/rows.csv"], "no/rows.csv: cannot be written: there is no folder 'no'"),
        ([*SOLVE, "--load", "3"], "loads: concerns time"),
        ([*SOLVE, "--scheduler", "tcp://x:1"], "--scheduler is the address of a Dask scheduler; add --engine dask"),
        ([*SOLVE, "--engine", "dask", "--scheduler", "tcp://x:1"], "--workers sets the number of local processes"),
    ],
)
def test_invalid_options_are_refused(gavel: Gavel, options: list[str], said: str) -> None:
    outcome = gavel(*options)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.out == ""
    assert "cells done" not in outcome.err  # the error comes before any cell runs


def test_progress_is_a_line() -> None:
    assert progress_text(gp.Progress(total=120, done=10, failed=2, kept=4, seconds=16.0)) == (
        "10 of 120 cells done · 2 failed · 108 left · 0.5 cells/s · ends in 3.6 minutes"
    )
    assert progress_text(gp.Progress(total=2, done=0, failed=0, kept=0, seconds=3.0)) == "0 of 2 cells done · 0 failed · 2 left"
