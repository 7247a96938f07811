"""While slurmctld is down, squeue and sinfo of Slurm 22.05 print empty lists with code 0, which is not an empty cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.client.parsing import jobs_from, nodes_from
from tests.slurm.fake_slurm import EARLIER, FIRST
from tests.slurm.support import cluster_with, driver, events, recorded_commands
from tests.support.commands import Gavel, runner

ERRORS = [
    {"description": "Failed while looking for jobs", "error_number": -1, "error": "Unspecified error", "source": "slurm_load_jobs"}
]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"errors": ERRORS, "jobs": [], "nodes": []}, r"Failed while looking for jobs \(Unspecified error\); is slurmctld up\?"),
        ({"errors": [{"error": "Unspecified error", "errno": -1}], "jobs": [], "nodes": []}, "Unspecified error; "),
        ({"errors": ERRORS, "jobs": [{"job_id": 1}], "nodes": [{"name": "a"}]}, r"Failed while looking for jobs"),
        ({"errors": ["busy"], "jobs": [], "sinfo": []}, "busy; "),
        ({"errors": {"error": 5}, "jobs": [], "nodes": []}, "an error without a text"),
        ({}, "it printed JSON without them"),
        ({"jobs": None, "nodes": None}, "it printed JSON without them"),
        ({"jobs": {}, "sinfo": {}}, "it printed JSON without them"),
    ],
)
def test_an_answer_with_errors_or_without_a_list_is_none(document: dict[str, Any], why: str) -> None:
    with pytest.raises(gp.SlurmError, match=f"^Slurm does not list its jobs: {why}"):
        jobs_from(document)
    with pytest.raises(gp.SlurmError, match=f"^Slurm does not list its nodes: {why}"):
        nodes_from(document)


@pytest.mark.parametrize("more", [{}, {"errors": []}, {"errors": None}, {"errors": [], "warnings": [{"description": "Zero jobs"}]}])
def test_an_empty_queue_is_an_answer(more: dict[str, Any]) -> None:
    assert jobs_from({"jobs": [], **more}) == ({}, ())


def test_nothing_is_lost_while_the_controller_is_down(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    begin = slurm.clock.now()

    def play(now: float) -> None:
        slurm.is_down = begin + 30 < now < begin + 230

    slurm.clock.on_sleep, slurm.clock.stops_at = play, begin + 600
    with driver(slurm, tmp_path) as driven:
        with pytest.warns(gp.GavelWarning, match="Slurm (does not answer since|answers again)"):
            driven.run()
        assert driven.state is not None
        assert set(driven.state.tracked) == {"1", "2", "3"}
    assert "failed: Unable to contact controller" in events(tmp_path, "no_answer")[0]["why"]
    assert events(tmp_path, "left") == []
    assert events(tmp_path, "round")[-1]["seconds"] > begin + 230, "rounds go on"
    assert list(slurm.leases) == [EARLIER, FIRST], "the lease is still that of before"


def test_nothing_is_released_or_explained_while_the_controller_is_down() -> None:
    slurm = cluster_with(2, 4)
    slurm.is_down = True
    with pytest.raises(gp.SlurmError, match="Slurm does not list its jobs"):
        gp.slurm_release("gpu", commands=slurm)
    with pytest.raises(gp.SlurmError, match="Slurm does not list its jobs"):
        gp.slurm_job("1", commands=slurm)
    assert slurm.sent == []


@pytest.mark.parametrize("words", [("release", "--partition", "opt"), ("why", "1"), ("status", "--partition", "opt")])
def test_commands_fail_while_the_controller_is_down(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = recorded_commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GAVEL_SLURM_STATE", str(tmp_path / "none"))
    for name in ("squeue", "sinfo"):
        document = json.dumps({"errors": ERRORS, "jobs": [], "nodes": []})
        Path(folder, name).write_text(f"#!/bin/sh\necho '{document}'\n")
    gavel: Gavel = runner(capsys, "slurm")
    done = gavel(*words)
    assert (done.code, done.out) == (1, "")
    assert "Failed while looking for jobs" in done.err
