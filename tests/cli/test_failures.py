"""With --json, a command that fails lists its faults on standard output; the exit code is that of the message without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written

BAD = "job_id,num_gpus,weight\na,0,1\nb,1,x\n"


@pytest.fixture
def gavel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    return runner(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["solve", "jobs.csv", "-c", "v100:2"],
        ["rounds", "jobs.csv", "-c", "v100:2", "-p", "no_such_policy"],
        ["solve", "jobs.csv"],
        ["solve", "jobs.csv", "-c", "v100:2", "--no-such-option"],
    ],
)
def test_faults_are_listed(gavel: Gavel, words: list[str]) -> None:
    written("jobs.csv", BAD)
    text, listed = gavel(*words), gavel(*words, "--json")
    assert (listed.code, listed.err) == (text.code, "")
    faults = [gp.Fault(**each) for each in json.loads(listed.out)["faults"]]
    assert faults
    shown = " ".join(text.err.split())
    assert [str(each) for each in faults if " ".join(str(each).split()) not in shown] == []


def test_every_fault_has_its_place(gavel: Gavel) -> None:
    written("jobs.csv", BAD)
    faults = json.loads(gavel("solve", "jobs.csv", "-c", "v100:2", "--json").out)["faults"]
    assert [(each["where"], each["field"]) for each in faults] == [
        ("jobs.csv, line 2 (job 'a')", "num_gpus"),
        ("jobs.csv, line 3 (job 'b')", "weight"),
    ]


def test_failures_at_run_time_are_listed(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise gp.SolverError("the solver has failed")

    monkeypatch.setattr(gp, "solve", fail)
    monkeypatch.setattr(gp.Solver, "solve", fail)
    done = gavel("solve", written("jobs.csv", "job_id,job_type\na,ResNet-50 (batch size 64)\n"), "-c", "v100:2", "--json")
    assert done.code == 1
    assert json.loads(done.out)["faults"] == [{"where": "", "field": "", "problem": "the solver has failed"}]
