"""Signs of life: a second driver is refused, and no partition is held in silence."""

from __future__ import annotations

import resource
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.beacon import DEAD_SECONDS, notify, signs_of_life
from gavel_py.integrations.slurm.monitoring.event_log import EventLog
from tests.slurm.fake_slurm import FakeClock, FakeSlurm, answered
from tests.slurm.support import cluster_with, driver, events


def held(slurm: FakeSlurm) -> set[int]:
    return {job.number for job in slurm.jobs.values() if job.state == "PENDING" and not job.priority}


def test_a_driver_gives_signs_of_life_all_the_time(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    oldest = 0.0

    def look(seconds: float) -> None:
        nonlocal oldest
        (sign,) = signs_of_life(slurm, ["gpu"])
        oldest = max(oldest, seconds - sign.seconds)

    slurm.slow = dict.fromkeys(slurm.jobs, 100.0)
    slurm.clock.on_sleep, slurm.clock.stops_at = look, slurm.clock.now() + 700
    with driver(slurm, tmp_path) as driven:
        driven.run()
    assert oldest < DEAD_SECONDS / 10, "also while it waits for jobs to stop"
    assert len(slurm.beacons) == 1, "a restart goes on where it was"


def test_entries_of_unexpected_structure_are_no_signs_of_life() -> None:
    slurm = FakeSlurm(FakeClock(), {})
    odd = '{"name": "gavel-driver", "comment": "gavel:driver=a:1:b alive=1", "user_id": 1e400}'
    listed = f'{{"jobs": [null, "gavel-driver", [], {odd}]}}'
    slurm.run = lambda *_: answered(listed)  # type: ignore[method-assign]
    assert signs_of_life(slurm, ["gpu"]) == []


def test_a_second_driver_with_another_state_is_refused(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path / "first") as first, driver(slurm, tmp_path / "second") as second:
        first.round()
        sent = len(slurm.sent)
        slurm.clock.seconds += 100
        with pytest.raises(
            gp.InputError, match=r"^partition gpu: another driver manages it \(process \d+ on .*, last alive 100 s ago\)"
        ):
            second.run()
        assert len(slurm.sent) == sent
    with driver(slurm, tmp_path / "first") as again:
        again.round()
    slurm.clock.seconds += DEAD_SECONDS
    with driver(slurm, tmp_path / "second") as second:
        second.round()
    assert len(slurm.beacons) == 1


def test_the_plugin_knows_what_the_partition_has_from_the_first_round_on(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    offer = "types=k80,v100 gpus=4 mem=64000 cpus=16 all={} has=k80:4/4,v100:4/{}"
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert next(iter(slurm.beacons.values())).endswith(f" of=gpu {offer.format(8, 4)}")
        slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
        slurm.clock.seconds += 1
        driven.round()
        assert next(iter(slurm.beacons.values())).endswith(f" of=gpu {offer.format(12, 8)}")


def signed_by(slurm: FakeSlurm, uid: int, *, alive: bool) -> str:
    """Submit a job that looks like a driver's sign of life, as an account, and return its comment."""
    seconds = slurm.clock.now() if alive else 1.0
    slurm.owners["50"] = uid
    slurm.beacons["50"] = f"gavel:driver=evil:1:abcdef alive={seconds:.0f} of=gpu"
    return slurm.beacons["50"]


OPERATOR = "User Records\n\nUserName=user77(77) DefAccount=root DefWckey=(null) AdminLevel=Operator\n"


@pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])
@pytest.mark.parametrize("alive", [True, False])
def test_users_cannot_stop_or_blind_a_driver_with_a_sign_of_their_own(tmp_path: Path, alive: bool, new: bool) -> None:
    """The plugin reads only signs of accounts that may run a driver, so the driver needs one of its own."""
    slurm = cluster_with(3, 4)
    slurm.new = new
    comment = signed_by(slurm, 77, alive=alive)
    with driver(slurm, tmp_path) as driven:
        with pytest.warns(gp.GavelWarning, match="job 50 of user77 looks like a driver's sign") as told:
            driven.round()
        slurm.clock.seconds += 100
        driven.round()
        driven.release()
    assert len(told) == 1
    assert slurm.beacons == {"50": comment}, "it is left alone"
    assert signs_of_life(slurm, ["gpu"]) == []


@pytest.mark.parametrize("alive", [True, False])
def test_signs_of_operators_count_but_are_not_adopted(tmp_path: Path, alive: bool) -> None:
    slurm = cluster_with(3, 4)
    slurm.accounts = OPERATOR
    signed_by(slurm, 77, alive=alive)
    with driver(slurm, tmp_path) as driven:
        if alive:
            with pytest.raises(gp.InputError, match=r"another driver manages it \(process 1 on evil"):
                driven.round()
        else:
            driven.round()
            assert "50" not in slurm.beacons
            assert len(slurm.beacons) == 1


@pytest.mark.parametrize("with_state", [True, False])
def test_release_needs_no_state_and_may_be_repeated(tmp_path: Path, with_state: bool) -> None:
    slurm = cluster_with(5, 4)
    slurm.submit(6, per_job="gpu:4", comment="gavel-hold")
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
    assert len(held(slurm)) == 4
    directory = tmp_path if with_state else None
    released = gp.slurm_release("gpu", directory=directory, commands=slurm)
    assert set(map(int, released)) == {number for number, job in slurm.jobs.items() if job.priority and not job.held}
    assert held(slurm) == {6}, "its user holds it"
    assert not any(slurm.jobs[int(job_id)].wanted for job_id in released), "it may start anywhere"
    assert not slurm.beacons
    assert gp.slurm_release("gpu", directory=directory, commands=slurm) == []


def test_release_removes_marks_and_priorities_where_slurm_has_released(tmp_path: Path) -> None:
    slurm = cluster_with(6, 4)
    slurm.jobs[4].comment, slurm.jobs[5].admin_comment = "gavel:", "project 7;" + slurm.jobs[5].admin_comment
    slurm.jobs[6].comment += " gavel-hold"
    with driver(slurm, tmp_path) as driven:
        driven.round()
    held_by_user, marks = slurm.jobs[6].admin_comment, {number: job.admin_comment for number, job in slurm.jobs.items()}
    running = {number: job.admin_comment for number, job in slurm.jobs.items() if job.held}
    assert {slurm.jobs[number].priority for number in running} == {4_294_967_293}
    slurm.refuses = lambda line: "Unspecified error for job 3" if line.startswith("release 3") else ""
    with pytest.warns(gp.GavelWarning, match="jobs remain on hold"):
        driven.release()
    assert {number: job.admin_comment for number, job in slurm.jobs.items()} == marks, "they are still on hold"
    slurm.refuses = lambda _: ""
    driven.release()
    assert (slurm.jobs[4].admin_comment, slurm.jobs[4].comment) == ("", "")
    assert slurm.jobs[5].admin_comment == "project_7"
    assert slurm.jobs[6].admin_comment == held_by_user
    assert {number: job.admin_comment for number, job in slurm.jobs.items() if job.held} == running
    assert {slurm.jobs[number].priority for number in running} == {1000}


@pytest.mark.parametrize("with_state", [True, False])
def test_release_frees_jobs_whose_nodes_have_failed_since(tmp_path: Path, with_state: bool) -> None:
    """A running job still requests the nodes on which it was started, which Slurm does not let anybody change."""
    slurm = cluster_with(2, 4)
    slurm.jobs[2].admin_comment += ";of=gpu;place=any"
    with driver(slurm, tmp_path) as driven:
        driven.round()
    slurm.submit(3, per_job="gpu:4", partition="free", wanted=["k80-0"], priority=5)
    failed = next(iter(slurm.jobs[2].held))
    slurm.node_fails(failed)
    assert slurm.jobs[2].wanted == [failed]
    assert gp.slurm_release("gpu", directory=tmp_path if with_state else None, commands=slurm) == ["2"]
    assert slurm.jobs[2].wanted == []
    assert slurm.jobs[3].wanted == ["k80-0"], "its user wants it there"


def test_a_release_that_slurm_refuses_is_an_error(tmp_path: Path) -> None:
    slurm = cluster_with(5, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()

    def stranger(line: str) -> str:
        if line.startswith("scancel"):
            return f"scancel: error: Kill job error on job id {line.split()[1]}: Access/permission denied"
        numbers = line.partition(" ")[2].split(",")
        return "\n".join(f"Unspecified error for job {number}" for number in numbers) if line.startswith("release") else ""

    slurm.refuses, before, signs = stranger, held(slurm), dict(slurm.beacons)
    with pytest.raises(gp.SlurmError, match=r"jobs released: 0; refused by Slurm: 4 \(3, 4, 5, 90000, the sign") as found:
        gp.slurm_release("gpu", commands=slurm)
    assert "Unspecified error for a job; scancel: error: Kill job error on job id 90000: Access/permission denied" in str(
        found.value
    )
    assert (held(slurm), set(slurm.beacons)) == (before, set(signs))
    slurm.refuses = lambda line: "Unspecified error for job 3" if line == "release 3" else ""
    slurm.jobs[4].comment = slurm.jobs[5].comment = "gavel-hold"
    with pytest.raises(gp.SlurmError, match=r"jobs released: 0; refused by Slurm: 1 \(3\), Unspecified error"):
        gp.slurm_release("gpu", commands=slurm)


def test_a_driver_that_may_no_longer_release_jobs_warns(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path, on_exit="release") as driven:
        driven.round()
        slurm.refuses = lambda line: "Access/permission denied for job 3" if line.startswith("release") else ""
        with pytest.warns(gp.GavelWarning, match=r"jobs remain on hold: jobs released: 0; refused by Slurm: 1 \(3\)"):
            driven.end()
    assert [line["refused"] for line in events(tmp_path, "released")] == [{"3": "Access/permission denied for job 3"}]


@pytest.mark.parametrize(("on_failure", "kept"), [("retry", True), ("release", False)])
def test_a_state_that_cannot_be_read_or_saved(tmp_path: Path, on_failure: str, kept: bool) -> None:
    slurm = cluster_with(3, 4)
    (tmp_path / "state.json").write_text("{")
    with driver(slurm, tmp_path, on_failure=on_failure) as driven, pytest.raises(gp.InputError, match=r"state\.json"):
        driven.run()
    assert held(slurm) == ({1, 2, 3} if kept else set())
    assert bool(slurm.beacons) is kept


def test_rounds_that_are_not_possible_any_more_release_jobs_and_say_so(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    slurm.clock.stops_at = slurm.clock.now() + 150

    def disk_is_full(*_: object) -> None:
        (tmp_path / "state.json").unlink()
        (tmp_path / "state.json").mkdir()

    with driver(slurm, tmp_path, on_failure="release") as driven, pytest.warns(gp.GavelWarning, match=r"state\.json") as told:
        driven.run(tell=disk_is_full)
    assert any("no round was possible" in str(each.message) for each in told)
    assert held(slurm) == set()
    assert not slurm.beacons


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(path)
        channel.settimeout(60.0)
        slurm = cluster_with(1, 4)
        slurm.clock.stops_at = slurm.clock.now() + 50
        with driver(slurm, tmp_path / "state") as driven:
            driven.run()
        channel.setblocking(False)
        words = [channel.recv(100) for _ in range(3)]
    assert words == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")


def test_the_log_is_written_to_a_new_file_after_it_was_moved(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (tmp_path / "log.jsonl").rename(tmp_path / "log.jsonl.1")
        driven.reopen_log()
        slurm.clock.seconds += 100
        driven.round()
    assert len(events(tmp_path, "round")) == 1
    assert '"event":"round"' in (tmp_path / "log.jsonl.1").read_text()


def test_a_full_disk_tears_one_entry_of_the_log(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write beyond the limit is an error, as on a full disk
    with closing(EventLog(tmp_path / "log.jsonl")) as log:
        try:
            log.write("first", 1.0)
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log.jsonl").stat().st_size + 12, limits[1]))
            for _ in range(2):
                with pytest.warns(gp.GavelWarning, match=r"log\.jsonl cannot be written; .*: File too large"):
                    log.write("torn", 2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        log.write("next", 3.0)
        log.write("last", 4.0)
    first, torn, *rest = (tmp_path / "log.jsonl").read_text().splitlines()
    assert (first, torn) == ('{"event":"first","seconds":1.0}', '{"event":"to')
    assert rest == ['{"event":"next","seconds":3.0}', '{"event":"last","seconds":4.0}']


def test_the_plugin_and_the_unit_are_for_this_partition() -> None:
    text = gp.slurm_plugin("gpu", [7], dead_seconds=59.5)
    assert 'local BEACON = "gavel-driver"' in text
    assert "local DEAD_SECONDS = 60\n" in text
    unit = gp.slurm_service("gpu", user="gavel", command="/opt/bin/gavel")
    assert "ExecStart=/opt/bin/gavel slurm run --partition gpu --state /var/lib/gavel-slurm" in unit
    assert "@" not in unit
    with pytest.raises(gp.InputError, match="dead_seconds"):
        gp.slurm_plugin("gpu", dead_seconds=-1)
    with pytest.raises(gp.InputError, match="not a valid partition"):
        gp.slurm_service("a b", user="gavel")
