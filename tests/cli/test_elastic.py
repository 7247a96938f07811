"""Elastic jobs on the command line: side by side with fixed gangs, in rounds, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Gavel, enter_folder, runner

JOBS = """\
job_id,job_type,num_gpus,gpu_counts,total_steps,arrival_seconds
a,"ResNet-50 (batch size 64)",1,,3e4,0
b,"LM (batch size 40)",2,,1e5,100
c,"ResNet-50 (batch size 64)",,1|2|4|8,6e4,200
"""


@pytest.fixture
def gavel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    Path("jobs.csv").write_text(JOBS)
    return runner(capsys)


def test_a_trace_is_simulated_with_and_without_elastic_jobs(gavel: Gavel) -> None:
    command = ["simulate", "jobs.csv", "-c", "v100:8,k80:8", "--elastic", "--mechanism", "direct", "--restart-seconds", "30"]
    shown = gavel(*command)
    assert shown.code == 0, shown.err
    assert "(fixed gangs)" in shown.out
    assert "(elastic)" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    found = json.loads(gavel(*command, "--json").out)["policies"]
    assert [each["elastic"] for each in found] == [False, True]
    fixed, elastic = (each["summary"]["jct"]["mean"] for each in found)
    assert elastic < fixed


def test_elastic_does_not_go_with_learning_or_saved_states(gavel: Gavel) -> None:
    for options in (["--learn"], ["--save-state", "s.json"]):
        refused = gavel("simulate", "jobs.csv", "-c", "v100:8", "--elastic", *options)
        assert refused.code == 2
        assert "--elastic compares two runs of each policy" in refused.err


def test_rounds_show_the_numbers_of_gpus(gavel: Gavel) -> None:
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8", "--rounds", "2")
    assert shown.code == 0, shown.err
    assert "1-8" in shown.out


def test_mistakes_are_named_with_their_place(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "1|0|4|4"))
    refused = gavel("solve", "jobs.csv", "-c", "v100:8")
    assert refused.code == 2
    assert "jobs.csv, line 4 (job 'c'): gpu_counts has 4 twice" in refused.err
    Path("jobs.csv").write_text(JOBS)
    refused = gavel("simulate", "jobs.csv", "-c", "v100:8", "--mechanism", "priority")
    assert "needs one of the mechanisms deficit, direct" in refused.err


def test_numbers_of_gpus_that_a_job_cannot_have_are_named_with_the_reason(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "1|3|4|16"))
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8")
    assert "c cannot run on 3 or 16 GPUs: the profile has no speed there; --estimate fills it in." in " ".join(shown.out.split())
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8", "--estimate")
    assert "c cannot run on 16 GPUs: no GPU type can hold that many." in shown.out
    shown = gavel("explain", "c", "jobs.csv", "-c", "v100:4,k80:2")
    assert "c cannot run on 3 or 16 GPUs" in shown.out
    Path("jobs.csv").write_text(JOBS)
    assert "cannot run on" not in gavel("solve", "jobs.csv", "-c", "v100:8,k80:8").out
