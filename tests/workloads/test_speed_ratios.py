"""Relative speeds from the accounting of Slurm: the same job name on different types of GPUs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import runner

HEADER = "JobID|JobName|Submit|Start|End|Elapsed|State|AllocTRES\n"


def record(number: int, name: str, minutes: int, tres: str, state: str = "COMPLETED") -> str:
    start, end = "2026-05-01T08:00:00", f"2026-05-01T{8 + minutes // 60:02d}:{minutes % 60:02d}:00"
    return f"{number}|{name}|{start}|{start}|{end}|{minutes // 60:02d}:{minutes % 60:02d}:00|{state}|{tres}\n"


RUNS = [
    record(1, "bert", 30, "gres/gpu:a100=2"),
    record(2, "bert", 32, "gres/gpu:a100=2"),
    record(3, "bert", 60, "gres/gpu:a100=2"),
    record(4, "bert", 16, "gres/gpu:h100=2"),
    record(5, "bert", 1, "gres/gpu:h100=2", "FAILED"),
    record(6, "lonely", 10, "gres/gpu:h100=1"),
    record(7, "untyped", 10, "gres/gpu=1"),
]


def trace(tmp_path: Path, runs: list[str]) -> gp.Trace:
    path = tmp_path / "sacct.txt"
    path.write_text(HEADER + "".join(runs))
    return gp.read_trace(path)


def test_ratios_are_those_of_the_median_running_times(tmp_path: Path) -> None:
    profile = gp.relative_speeds(trace(tmp_path, RUNS))
    assert profile.job_types == ("bert",)
    assert profile.units == ("1/min",)
    assert profile.throughput("bert", 2, "a100") == pytest.approx(1 / 32)
    assert profile.throughput("bert", 2, "h100") / profile.throughput("bert", 2, "a100") == pytest.approx(2)
    assert [row.source for row in profile.rows] == ["median of 3 finished runs", "1 finished run"]


def test_runs_that_differ_much_are_a_warning(tmp_path: Path) -> None:
    with pytest.warns(gp.GavelWarning, match="differ by more than a factor of 2, so they may not be the same work: 'bert'"):
        gp.relative_speeds(trace(tmp_path, [*RUNS, record(8, "bert", 90, "gres/gpu:a100=2")]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp.relative_speeds(trace(tmp_path, RUNS))


def test_a_file_without_ratios_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="no two finished jobs of the same job_name on different accelerator types; the"):
        gp.relative_speeds(trace(tmp_path, RUNS[:3]))


def test_the_command_recognises_the_output_of_sacct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.txt").write_text(HEADER + "".join(RUNS))
    store = str(tmp_path / "store.sqlite")
    done = runner(capsys, "profiles", "--store", store)("import", str(tmp_path / "runs.txt"))
    assert done.code == 0, done.err
    assert gp.ThroughputStore(store).load("runs").accelerators == ("a100", "h100")
