"""Files of a command: no output overwrites an input or another output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import Gavel, enter_folder, runner, written

JOBS = "job_id,job_type,num_gpus,total_steps\na,A3C,1,100\nb,A3C,1,100\n"
CLUSTER = "nodes:\n- {name: n, accelerator: v100, num_gpus: 2}\n"
SWEEP = "policies: [fifo]\ntraces: [jobs.csv]\nclusters: [c.yaml]\n"


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    written("jobs.csv", JOBS)
    written("c.yaml", CLUSTER)
    written("sweep.yaml", SWEEP)
    Path("link.csv").symlink_to("jobs.csv")
    os.link("jobs.csv", "second.csv")
    return runner(capsys)


def content() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path().iterdir())}


SIMULATE = ["simulate", "jobs.csv", "-c", "c.yaml", "-p", "fifo"]
IMPORT = ["trace", "import", "jobs.csv", "--profile", "gavel-osdi20", "--extrapolate"]
OVERWRITE = [
    ([*SIMULATE, "--jobs-out", "jobs.csv"], "--jobs-out jobs.csv and TRACE jobs.csv are the same file, so the output would"),
    ([*SIMULATE, "--jobs-out", "link.csv"], "--jobs-out link.csv and TRACE jobs.csv"),
    ([*SIMULATE, "--jobs-out", "second.csv"], "--jobs-out second.csv and TRACE jobs.csv"),
    (["simulate", "--timeline-out", "jobs.csv", *SIMULATE[1:]], "--timeline-out jobs.csv and TRACE jobs.csv"),
    ([*SIMULATE, "--tenants-out", "./jobs.csv"], "--tenants-out jobs.csv and TRACE jobs.csv"),
    ([*SIMULATE, "--out", "c.yaml"], "--out c.yaml and --cluster c.yaml"),
    ([*SIMULATE, "--out", "x", "--save-state", "x"], "--save-state x and --out x are the same file, so each would overwrite"),
    (["solve", "jobs.csv", "-c", "c.yaml", "--out", "jobs.csv"], "--out jobs.csv and JOBS jobs.csv"),
    (["solve", "jobs.csv", "-c", "c.yaml", "--profile", "gavel-osdi20+c.yaml", "--out", "c.yaml"], "--out c.yaml and "),
    (["rounds", "jobs.csv", "-c", "c.yaml", "--out", "jobs.csv"], "--out jobs.csv and JOBS jobs.csv"),
    (["trace", "describe", "jobs.csv", "--out", "jobs.csv"], "--out jobs.csv and FILE jobs.csv"),
    (["trace", "scale", "jobs.csv", "--load", "2", "--out", "jobs.csv"], "--out jobs.csv and FILE jobs.csv"),
    ([*IMPORT, "--out", "y.csv", "--profile-out", "y.csv"], "--profile-out y.csv and --out y.csv"),
    (["sweep", "sweep.yaml", "--results", "x.csv", "--export", "x.csv"], "x.csv and --export x.csv"),
    (["sweep", "sweep.yaml", "--results", "x", "--export", "a.csv", "--tenants-out", "a.csv"], "--tenants-out a.csv and --export"),
    (["sweep", "sweep.yaml", "--export", "jobs.csv"], "--export jobs.csv and a file of the sweep jobs.csv"),
    (["sweep", "sweep.yaml", "--results", "c.yaml"], "and a file of the sweep c.yaml are the same file"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "problem"), OVERWRITE)
def test_an_output_that_would_overwrite_a_file_of_the_command_is_refused(gavel: Gavel, arguments: list[str], problem: str) -> None:
    before = content()
    outcome = gavel(*arguments)
    assert outcome.code == 2
    assert problem in outcome.err
    assert content() == before


def test_a_state_may_be_continued_and_saved_in_the_same_file(gavel: Gavel) -> None:
    saved = [*SIMULATE, "--save-state", "run.state"]
    assert gavel(*saved, "--until", "6min", "--state-every", "1rounds").code == 0
    outcome = gavel(*saved, "--continue", "run.state")
    assert outcome.code == 0, outcome.err
    refused = gavel(*saved, "--continue", "run.state", "--out", "run.state")
    assert refused.code == 2
    assert "are the same file" in refused.err


@pytest.mark.deep
def test_devices_and_the_same_option_twice_are_no_conflict(gavel: Gavel) -> None:
    assert gavel("solve", "jobs.csv", "-c", "c.yaml", "--out", "/dev/null").code == 0
    twice = gavel("sweep", "sweep.yaml", "--export", "a.csv", "--export", "a.csv", "--workers", "1")
    assert twice.code == 0, twice.err
