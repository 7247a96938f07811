"""Rights of the driver's account: checked at the start, and reported with a remedy if one is missing."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import EARLIER, FakeSlurm
from tests.slurm.support import BERT, cluster, cluster_with, driver, events

ACCOUNTS = "Current Association Manager state\n\nUser Records\n\n{records}"
RECORD = "UserName={name}({uid}) DefAccount=root DefWckey=(null) AdminLevel={level}\n"
SOMEBODY = 12_345


def with_account(
    slurm: FakeSlurm, level: str | None, *, storage: str = "accounting_storage/slurmdbd", uid: int | None = None
) -> str:
    """Register the current account in Slurm with an admin level, None for no account, and return its name."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    slurm.config = f"AccountingStorageType   = {storage}\nSlurmUser               = slurm({SOMEBODY})\n"
    others = RECORD.format(name="anna", uid=SOMEBODY + 1, level="Administrator")
    own = "" if level is None else RECORD.format(name=name, uid=os.geteuid() if uid is None else uid, level=level)
    slurm.accounts = ACCOUNTS.format(records=others + own)
    return name


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has all rights; these tests need another account."""
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("daemon").pw_uid)


def test_an_operator_manages_jobs_without_writing_admin_comments(tmp_path: Path) -> None:
    slurm = cluster_with(5, 4)
    for job in slurm.jobs.values():
        job.admin_comment = job.lease = ""
    slurm.stuck = {1}
    with_account(slurm, "Operator")
    slurm.refuses = lambda line: "Access/permission denied for job 1" if "AdminComment" in line else ""
    with driver(slurm, tmp_path) as driven:
        for _ in range(10):
            _, applied = driven.round()
            assert applied.errors == []
            slurm.clock.seconds += 100
    assert sum(job.restarts for job in slurm.jobs.values()) > 1
    assert {job.number for job in slurm.jobs.values() if job.restarts or job.held} == {2, 3, 4, 5}


@pytest.mark.parametrize("level", ["Administrator", None])
def test_administrators_and_slurm_user_annotate_jobs(tmp_path: Path, level: str | None) -> None:
    slurm = cluster()
    if level is not None:
        with_account(slurm, level)
    else:
        slurm.config = f"SlurmUser = slurm({os.geteuid()})\n"
    slurm.submit(1, per_job="gpu:4", comment=BERT, admin_comment="", lease="", reason="Resources")
    slurm.stuck = {1}
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert slurm.jobs[1].admin_comment.startswith("gavel:submit=")
    marks = [line for line in slurm.sent if "AdminComment" in line]
    assert not any("StartTime" in line or "Dependency" in line for line in marks), "a refused mark refuses nothing else"


@pytest.mark.parametrize(
    ("level", "cure"),
    [
        ("None", "sacctmgr -i modify user where name={name} set adminlevel=operator"),
        ("Not Set", "sacctmgr -i modify user where name={name} set adminlevel=operator"),
        (None, "sacctmgr -i add user {name} account=root adminlevel=operator"),
    ],
)
@pytest.mark.parametrize("once", [True, False])
def test_a_missing_right_is_an_error_before_anything_is_changed(tmp_path: Path, level: str | None, cure: str, once: bool) -> None:
    slurm = cluster_with(3, 4)
    name = with_account(slurm, level)
    with driver(slurm, tmp_path) as driven, pytest.raises(gp.SlurmError) as found:
        driven.round() if once else driven.run()
    assert f"{name} (uid {os.geteuid()}) may not manage the jobs of other users" in str(found.value)
    assert str(found.value).endswith(cure.format(name=name))
    assert slurm.sent == []
    assert not events(tmp_path, "round")


def test_an_account_with_another_uid_in_the_controller_has_no_rights(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    with_account(slurm, "Operator", uid=SOMEBODY)
    with driver(slurm, tmp_path) as driven, pytest.raises(gp.SlurmError, match="may not manage"):
        driven.round()


@pytest.mark.parametrize("storage", ["accounting_storage/none", "(null)"])
def test_without_accounts_only_slurm_user_can_run_it(tmp_path: Path, storage: str) -> None:
    slurm = cluster_with(1, 4)
    with_account(slurm, None, storage=storage)
    with driver(slurm, tmp_path) as driven, pytest.raises(gp.SlurmError, match="sudo -u slurm gavel slurm run"):
        driven.round()


def test_looking_and_planning_need_no_right() -> None:
    slurm = cluster_with(1, 4)
    with_account(slurm, None)
    assert driver(slurm, None).plan().moves.start == {"1": {"v100-0": 4}}


@pytest.mark.parametrize(
    "message", ["Access/permission denied for job {}", "Invalid user id for job {}", "Unspecified error for job {}"]
)
def test_denied_starts_of_all_jobs_are_an_error(tmp_path: Path, message: str) -> None:
    """This happens, for example, if the job_submit plugin does not know the account."""
    slurm = cluster_with(2, 4)
    name = with_account(slurm, "Operator")

    def refuse(line: str) -> str:
        return message.format(line.split()[1].removeprefix("JobId=")) if "Dependency=" in line else ""

    slurm.refuses = refuse
    with driver(slurm, tmp_path, start_seconds=5.0) as driven, pytest.raises(gp.SlurmError) as found:
        driven.run()
    assert f"Slurm does not allow {name} to start jobs ({message.format(1)})" in str(found.value)
    assert f"gavel slurm install --partition gpu --user {name}" in str(found.value)
    assert {(job.state, job.lease) for job in slurm.jobs.values()} == {("PENDING", EARLIER)}, "they wait as before"


def test_a_single_denied_start_is_no_missing_right(tmp_path: Path) -> None:
    slurm = cluster_with(2, 4)
    slurm.refuses = lambda line: "Unspecified error for job 1" if line.startswith("update JobId=1 Dependency= ") else ""
    with driver(slurm, tmp_path, start_seconds=5.0) as driven:
        _, applied = driven.round()
    assert (applied.errors, applied.started) == (["Unspecified error for job 1"], ["2"])
