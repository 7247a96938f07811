"""The queue as users see it, from the file of the driver."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, cluster_with, driver, events, recorded_commands
from tests.slurm.test_rights import with_account
from tests.support.commands import Gavel, runner


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str]) -> Gavel:
    return runner(capsys, "slurm")


def played(folder: Path) -> None:
    """Play a round: two of three gangs run, one is held by its user, one asks for what is not there."""
    slurm = cluster_with(3, 4)
    slurm.submit(4, per_job="gpu:4", comment=BERT, priority=0)
    slurm.submit(5, per_job="gpu:h100:1", comment=BERT)
    slurm.submit(6, per_job="gpu:1", partition="free", priority=0)
    with driver(slurm, folder) as driven:
        driven.round()


def test_each_job_has_a_state_and_a_reason(tmp_path: Path) -> None:
    played(tmp_path)
    jobs = {job.job_id: job for job in gp.slurm_queue(tmp_path)}
    assert sorted(job.state for job in jobs.values()) == ["left to Slurm", "running", "running", "set aside", "waiting"]
    assert jobs["4"].reason == "its user or an administrator holds it"
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
    assert "It was to start at about 2023-11-14" in told
    assert " % of the time.\nAs of 2023-11-14 " in told
    assert told.count("days ago; the driver has not written since.\n") == 3
    assert "is running on v100-0:4.\n" in told
    table = gavel("queue", "--state", str(tmp_path)).out
    assert "its user or an administrator" in table
    assert len(json.loads(gavel("queue", "--state", str(tmp_path), "--json").out)) == 5
    assert gavel("queue", "--state", str(tmp_path), "--user", "berta").out.startswith("No jobs.\n")


def test_the_age_is_shown(gavel: Gavel, tmp_path: Path) -> None:
    played(tmp_path)
    now = time.time()
    os.utime(tmp_path / "queue.json", (now - 200, now - 200))
    assert re.search(r"\nAs of [0-9 :-]+, 3\.3\d minutes ago\.\n$", gavel("queue", "--state", str(tmp_path)).out)
    os.utime(tmp_path / "queue.json", (now - 960, now - 960))
    told = gavel("queue", "--state", str(tmp_path), "--json")
    assert "16 minutes ago; the driver has not written since.\n" in told.err
    assert len(json.loads(told.out)) == 5


def test_starts_and_readings_within_a_round_are_shown_at_once(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    begun, seen = slurm.clock.now(), dict[int, dict[str, str]]()

    def happen(seconds: float) -> None:
        passed = round(seconds - begun)
        seen[passed] = {job.job_id: job.state for job in gp.slurm_queue(tmp_path)}
        assert seconds - gp.slurm_queue(tmp_path).seconds <= 10, "as of the latest reading"
        held = re.findall(r"^gavel_gpus_held.* (\d+)$", (tmp_path / "gavel.prom").read_text(), re.MULTILINE)
        assert sum(map(int, held)) == 4 * sum(state == "running" for state in seen[passed].values())
        if passed == 20:
            slurm.submit(2, per_job="gpu:4", comment=BERT)
        elif passed == 40:
            slurm.submit(3, per_job="gpu:4", comment=BERT)
        elif passed == 60:
            slurm.submit(4, per_job="gpu:1", partition="free,gpu", priority=5)
        elif passed == 80:
            slurm.end(1)

    slurm.clock.on_sleep, slurm.clock.stops_at = happen, begun + 100
    with driver(slurm, tmp_path, round_seconds=360.0, metrics=tmp_path / "gavel.prom") as driven:
        driven.run()
    assert len(events(tmp_path, "round")) == 1
    assert seen[30] == {"1": "running", "2": "running"}
    assert seen[50] == seen[30] | {"3": "waiting"}
    assert seen[70] == seen[50] | {"4": "not managed"}
    assert "1" not in seen[90]


def test_a_new_job_that_finds_no_gpu_has_just_arrived(tmp_path: Path) -> None:
    slurm = cluster_with(2, 4)
    slurm.clock.stops_at = slurm.clock.now() + 30
    slurm.clock.on_sleep = lambda _: None if 3 in slurm.jobs else slurm.submit(3, per_job="gpu:4", comment=BERT) and None
    with driver(slurm, tmp_path, round_seconds=360.0) as driven:
        driven.run()
    (job,) = [job for job in gp.slurm_queue(tmp_path) if job.job_id == "3"]
    assert (job.state, job.reason) == ("waiting", "it has just arrived")


def written_reasons(slurm: FakeSlurm) -> list[str]:
    return [line for line in slurm.sent if "gavel-why=" in line]


def test_reasons_are_in_admin_comments_until_jobs_start(tmp_path: Path) -> None:
    slurm = cluster_with(4, 4)
    slurm.submit(5, per_job="gpu:4", comment=BERT, priority=0)
    slurm.submit(6, per_job="gpu:1", partition="free", admin_comment="not ours", priority=0)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        waiting = [number for number, job in slurm.jobs.items() if number < 5 and not job.held]
        assert [slurm.jobs[number].admin_comment.rpartition(";")[2] for number in waiting] == ["gavel-why=it_has_just_arrived"] * 2
        assert slurm.jobs[5].admin_comment.endswith(";shared;gavel-why=its_user_or_an_administrator_holds_it")
        assert slurm.jobs[6].admin_comment == "not ours"
        assert len(written_reasons(slurm)) == 3
        driven.round()
        for _ in range(3):
            sent = len(written_reasons(slurm))
            before = {number: job.admin_comment for number, job in slurm.jobs.items()}
            slurm.clock.seconds += 100
            driven.round()
            changed = [number for number, job in slurm.jobs.items() if job.admin_comment != before[number] and not job.held]
            assert len(written_reasons(slurm)) - sent == len(changed), "only changes are written"
        assert not any("gavel-why" in job.admin_comment for job in slurm.jobs.values() if job.held)
    assert sum(job.restarts for job in slurm.jobs.values()) > 0


def test_at_most_100_reasons_are_written_in_a_round(tmp_path: Path) -> None:
    slurm = cluster_with(130, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert len(written_reasons(slurm)) == 100
        slurm.clock.seconds += 1
        driven.fill()
        assert len(written_reasons(slurm)) == 100
        slurm.clock.seconds += 100
        driven.round()
    assert 128 <= sum("gavel-why" in job.admin_comment for job in slurm.jobs.values()) <= 130


@pytest.mark.parametrize(("level", "written"), [("Operator", 0), ("Administrator", 2)])
def test_reasons_are_written_with_the_right_to_do_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, written: int
) -> None:
    slurm = cluster_with(4, 4)
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 1)
    with_account(slurm, level)
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert len(written_reasons(slurm)) == written


def test_the_reason_of_the_driver_is_shown_for_a_job_that_only_slurm_lists() -> None:
    slurm = cluster_with(1, 4)
    slurm.jobs[1].admin_comment += ";gavel-why=others_were_owed_more"
    job = gp.slurm_job("1", commands=slurm)
    assert job is not None
    assert (job.state, job.reason) == ("waiting", "others were owed more")
    assert gp.slurm_job("2", commands=slurm) is None


def test_slurm_answers_for_a_job_that_the_driver_has_not_listed(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path)
    monkeypatch.setenv("PATH", recorded_commands(tmp_path / "bin"), prepend=os.pathsep)
    for directory, note in (
        (tmp_path, "The driver has not listed it. As of 2"),
        (tmp_path / "a", "The driver's queue cannot be read:"),
    ):
        done = gavel("why", "101", "--state", str(directory))
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("Job 101 of nobody (3 GPUs) is waiting.\nReason: Slurm names ")
        assert f"This is from Slurm. {note}" in done.out
    done = gavel("why", "99999", "--state", str(tmp_path))
    assert done.code == 2
    assert done.err.startswith("Error: Slurm lists no job 99999: it has ended a while ago, or does not exist, or is hidden")


@pytest.mark.parametrize(
    ("job_id", "why"),
    [
        ("6", r"^job 6: is an array, whose tasks run and wait on their own; name one of them: 6_2, 6_3, 6_10$"),
        ("6_[3,10]", r"name one of them: 6_2, 6_3, 6_10$"),
        ("7", r"name one of them: 7_0, 7_1, .*7_9, \.\.\.$"),
        ("13+1", r"^job 13\+1: is a part of a heterogeneous job, with an id of its own: 14$"),
    ],
)
def test_ids_that_slurm_prints_lead_to_those_of_jobs(job_id: str, why: str) -> None:
    slurm = cluster_with(1, 4)
    slurm.submit(6, per_job="gpu:1", more={"array_job_id": 6, "array_task_string": "3,10"})
    for number, task in ((8, 2), (9, 1)):
        slurm.submit(number, per_job="gpu:1", state="RUNNING", more={"array_job_id": 6, "array_task_id": task})
    slurm.end(9)
    slurm.submit(7, per_job="gpu:1", more={"array_job_id": 7, "array_task_string": "0-11"})
    for offset in (0, 1):
        slurm.submit(13 + offset, per_job="gpu:1", more={"het_job_id": 13, "het_job_offset": offset})
    with pytest.raises(gp.InputError, match=why):
        gp.slurm_job(job_id, commands=slurm)
    for known in ("1", "6_3", "6_1", "13", "14"):
        assert gp.slurm_job(known, commands=slurm) is not None
    for unknown in ("2", "6_4", "13+2", "8", "_", ""):
        assert gp.slurm_job(unknown, commands=slurm) is None


@pytest.mark.parametrize(("setting", "mode"), [("none", 0o755), ("usage", 0o755), ("accounts,jobs,users", 0o750)])
def test_the_jobs_of_others_are_hidden_if_slurm_hides_them(tmp_path: Path, setting: str, mode: int) -> None:
    slurm = cluster_with(1, 4)
    slurm.config += f"PrivateData             = {setting}\n"
    tmp_path.chmod(0o755)
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert tmp_path.stat().st_mode & 0o777 == mode


def test_mistakes_are_reported(gavel: Gavel, tmp_path: Path) -> None:
    played(tmp_path)
    done = gavel("why", "77", "--state", str(tmp_path))
    assert (done.code, done.err.startswith("Error: job 77 is not known here. The driver has not listed it.")) == (1, True)
    done = gavel("queue", "--state", str(tmp_path / "nowhere"))
    assert done.code == 2
    assert "queue.json: does not exist: no driver has finished a round with this directory" in done.err
    (tmp_path / "queue.json").write_text('{"a": 1}')
    assert "was not written by a driver" in gavel("queue", "--state", str(tmp_path)).err
