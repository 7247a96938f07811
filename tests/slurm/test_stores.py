"""State, log and store: only a state that cannot be saved stops the driver."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.support import cluster, cluster_with, driver, events, recorded_commands
from tests.support.commands import Gavel, runner


class BrokenStore(gp.ThroughputStore):
    """A store that fails until its file can be written."""

    works = False

    def add(self, name: str, measurements: Iterable[gp.Measurement]) -> None:
        if not self.works:
            raise gp.InputError("cannot be opened")
        super().add(name, measurements)


def test_a_failing_store_is_reported_and_filled_later(tmp_path: Path) -> None:
    slurm = cluster()
    store = BrokenStore(tmp_path / "store.sqlite")
    for number, name in ((1, "v100"), (2, "k80")):
        slurm.submit(number, per_job="gpu:2", comment="gavel: type=bert steps=4000", more={"features": name})
    with driver(slurm, tmp_path, store=store) as driven:
        driven.round()
        slurm.clock.seconds += 200
        slurm.end(1)
        with pytest.warns(gp.GavelWarning, match="measured speeds were not stored: cannot be opened"):
            driven.round()
        assert driven.state is not None
        assert driven.state.speeds.measured.keys() == {("bert", 2, "v100")}, "it is used all the same"
        store.works = True
        slurm.clock.seconds += 200
        slurm.end(2)
        driven.round()
    assert {row.accelerator for row in store.load("slurm").measurements} == {"v100", "k80"}
    assert [event["why"] for event in events(tmp_path, "not_stored")] == ["cannot be opened"]


def test_an_unwritable_log_does_not_stop_the_driver(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    (tmp_path / "log.jsonl").mkdir()
    message = "log.jsonl cannot be written; the driver continues without it"
    with pytest.warns(gp.GavelWarning, match=message), driver(slurm, tmp_path) as driven:
        driven.run(rounds=3)
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2


def test_a_closed_output_does_not_stop_the_driver(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)

    def tell(*_: object) -> None:
        raise BrokenPipeError

    with driver(slurm, tmp_path) as driven:
        driven.run(rounds=3, tell=tell)
    assert len(events(tmp_path, "applied")) == 3


def test_without_a_saved_state_no_job_is_changed_and_the_driver_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actions must be saved first, so that the successor of a killed driver knows which jobs it was stopping."""
    slurm = cluster_with(4, 4)
    counts: list[int] = []
    breaks = iter([False, True, True, False])

    def save(*_: object) -> None:
        if next(breaks, False):
            raise gp.InputError("the disk is full")

    with driver(slurm, tmp_path) as driven:
        monkeypatch.setattr("gavel_py.integrations.slurm.driver.save_state", save)
        with pytest.warns(gp.GavelWarning, match="the disk is full"):
            driven.run(rounds=3, tell=lambda *_: counts.append(len(slurm.sent)))
    assert [event["why"] for event in events(tmp_path, "undecided")] == ["the disk is full"]
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2
    assert len(counts) == 3


def test_a_state_that_cannot_be_saved_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = cluster_with(4, 4)

    def save(*_: object) -> None:
        raise gp.InputError("the disk is full")

    monkeypatch.setattr("gavel_py.integrations.slurm.driver.save_state", save)
    with driver(slurm, tmp_path) as driven, pytest.raises(gp.InputError, match="the disk is full"):
        driven.run()
    assert slurm.sent == []


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """The command with a recorded cluster, run by an account without home directory."""
    monkeypatch.setenv("PATH", f"{recorded_commands(tmp_path / 'bin')}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/nonexistent")
    for name in ("GAVEL_PY_STORE", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return runner(capsys, "slurm")


def test_a_profile_may_be_one_that_the_driver_has_measured(gavel: Gavel, tmp_path: Path) -> None:
    rows = [
        gp.Measurement(job_type="own", num_gpus=n, accelerator=name, steps_per_second=n)
        for n in (1, 2, 4)
        for name in ("v100", "k80")
    ]
    state = tmp_path / "state"
    state.mkdir()
    gp.ThroughputStore(state / "profiles.sqlite").save(gp.ThroughputProfile("slurm", rows))
    done = gavel("status", "--partition", "opt", "--state", str(state), "--profile", "slurm")
    assert done.code == 0, done.err
    assert "own" in done.out
    done = gavel("status", "--partition", "opt", "--state", str(tmp_path), "--profile", "slurm")
    assert done.code == 2
    assert "has no profile 'slurm'" in done.err


def test_no_home_directory_is_needed(gavel: Gavel, tmp_path: Path) -> None:
    assert gavel("status", "--partition", "opt").code == 0
    assert gavel("plan", "--partition", "opt", "--state", str(tmp_path / "state")).code == 0
    assert not (tmp_path / "state").exists()
    (tmp_path / "file").write_text("")
    done = gavel("run", "--partition", "opt", "--once", "--state", str(tmp_path / "file" / "state"))
    assert done.code == 2
    assert "the state needs a directory that this account can write to (--state)" in done.err
