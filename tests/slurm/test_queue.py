"""The queue as users see it, from the file of the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.support import BERT, cluster_with, driver
from tests.support.commands import Gavel, runner


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str]) -> Gavel:
    return runner(capsys, "slurm")


def played(folder: Path) -> None:
    """Play a round: two of three gangs run, one is held by its user, one asks for what is not there."""
    slurm = cluster_with(3, 4)
    slurm.submit(4, per_job="gpu:4", comment=BERT + " gavel-hold")
    slurm.submit(5, per_job="gpu:h100:1", comment=BERT)
    slurm.submit(6, per_job="gpu:1", partition="free")
    with driver(slurm, folder) as driven:
        driven.round()


def test_each_job_has_a_state_and_a_reason(tmp_path: Path) -> None:
    played(tmp_path)
    jobs = {job.job_id: job for job in gp.slurm_queue(tmp_path)}
    assert sorted(job.state for job in jobs.values()) == ["left to Slurm", "running", "running", "set aside", "waiting"]
    assert jobs["4"].reason == "its user holds it"
    assert jobs["5"].reason.startswith("asks for GPUs of type h100")
    (waits,) = (job for job in jobs.values() if job.state == "waiting")
    assert (waits.reason, waits.nodes) == ("it has just arrived", {})
    assert waits.share is not None
    assert 0 < waits.share < 1
    assert waits.expected_seconds == pytest.approx(1_700_000_000.0 + 100 * (1 - waits.share) / waits.share)
    assert all(job.nodes and job.expected_seconds is None for job in jobs.values() if job.state == "running")
    assert (tmp_path / "queue.json").stat().st_mode & 0o044 == 0o044, "every user may read it"


def test_users_ask_why(gavel: Gavel, tmp_path: Path) -> None:
    played(tmp_path)
    told = "".join(gavel("why", job, "--state", str(tmp_path)).out for job in ("1", "2", "3"))
    assert "of anna (4 GPUs) is waiting.\nReason: it has just arrived.\nThe policy promises it " in told
    assert "It starts at about 2023-11-14" in told
    assert "is running on v100-0:4.\n" in told
    table = gavel("queue", "--state", str(tmp_path)).out
    assert "its user holds it" in table
    assert len(json.loads(gavel("queue", "--state", str(tmp_path), "--json").out)) == 5
    assert gavel("queue", "--state", str(tmp_path), "--user", "berta").out == "No jobs.\n"


def test_mistakes_are_reported(gavel: Gavel, tmp_path: Path) -> None:
    played(tmp_path)
    done = gavel("why", "77", "--state", str(tmp_path))
    assert (done.code, "job 77 was not in a managed partition" in done.err) == (2, True)
    done = gavel("queue", "--state", str(tmp_path / "nowhere"))
    assert done.code == 2
    assert "queue.json: does not exist: no driver has finished a round with this directory" in done.err
    (tmp_path / "queue.json").write_text('{"a": 1}')
    assert "was not written by a driver" in gavel("queue", "--state", str(tmp_path)).err
