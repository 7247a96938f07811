"""The lease: jobs wait for one driver, as long as it is alive and can manage them."""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.job_roles import Role
from gavel_py.integrations.slurm.lease import BEAT_SECONDS, MAX_COMMENT, holders, notify
from gavel_py.integrations.slurm.monitoring.event_log import EventLog
from tests.slurm.fake_slurm import EARLIER, FIRST, FakeClock, FakeJob, FakeSlurm, answered
from tests.slurm.support import BERT, bound, cluster, cluster_with, driver, events, recorded_commands
from tests.slurm.test_rights import with_account
from tests.support.commands import runner

LEASE = 600.0

NEXT = "90002"
"""The second lease that drivers take."""

POLL = 5.0

WARNED = "no round was possible|the disk is full|limits and shares of accounts"


def end_of(slurm: FakeSlurm, lease: str = FIRST) -> float:
    """Return when a lease ends."""
    return float(slurm.leases[lease][1])


def waiting(slurm: FakeSlurm) -> set[int]:
    return {number for number, job in slurm.jobs.items() if job.state == "PENDING"}


def denied(line: str) -> str:
    """Return what Slurm answers to a change of a job without the right to make it."""
    return f"Access/permission denied for job {line.split()[1].removeprefix('JobId=')}"


def disk_is_full(*_: object) -> None:
    raise gp.InputError("the disk is full")


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no state be saved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gavel_py.integrations.slurm.driver.save_state", disk_is_full)
        yield


class TestRenewal:
    @pytest.mark.parametrize("seconds", [LEASE, 40.0])
    def test_a_lease_is_renewed_all_the_time(self, tmp_path: Path, seconds: float) -> None:
        slurm, left = cluster_with(3, 4), []

        def look(now: float) -> None:
            (lease,) = holders(slurm, ["gpu"])
            left.append(lease.end_seconds - now)

        slurm.slow = dict.fromkeys(slurm.jobs, 100.0)
        slurm.clock.on_sleep, slurm.clock.stops_at = look, slurm.clock.now() + 700
        with driver(slurm, tmp_path, lease=seconds) as driven:
            driven.run()
        assert any(event["stop_seconds"] >= 100 for event in events(tmp_path, "applied"))
        assert min(left) >= seconds - min(BEAT_SECONDS, seconds / 4) - POLL - 0.1, "also while it waits for jobs to stop"
        assert list(slurm.leases) == [EARLIER, FIRST]
        assert bound(slurm) == waiting(slurm)

    def test_the_jobs_of_a_dead_driver_start_when_its_lease_ends(self, tmp_path: Path) -> None:
        slurm = cluster_with(5, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        waits = bound(slurm)
        assert len(waits) == 3
        end = end_of(slurm)
        assert end == pytest.approx(slurm.clock.now() + LEASE, abs=2)
        for number in slurm.jobs.keys() - waits:
            slurm.end(number)
        slurm.clock.seconds = end - 1
        slurm.run(["squeue"])
        assert bound(slurm) == waits
        slurm.clock.seconds = end + 1
        slurm.run(["squeue"])
        assert bound(slurm) == set()
        assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2

    def test_a_lost_lease_is_taken_again_and_jobs_are_bound_to_it(self, tmp_path: Path) -> None:
        """An administrator cancels it, and Slurm starts no job as long as there is no room."""
        slurm = cluster_with(5, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
            slurm.run(["scancel", FIRST])
            assert bound(slurm) == set()
            slurm.clock.seconds += 100
            driven.round()
            assert list(slurm.leases) == [EARLIER, NEXT]
            assert bound(slurm) == waiting(slurm)
            slurm.run(["scancel", NEXT])
            slurm.clock.stops_at = slurm.clock.now() + 60
            driven.run()
        assert slurm.drivers()
        assert bound(slurm) == waiting(slurm)
        assert {slurm.jobs[number].lease for number in waiting(slurm)} == {"90003"}

    def test_a_change_that_slurm_refuses_once_is_no_loss_of_the_lease(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
            slurm.refuses = lambda line: "Unable to contact slurm controller" if "StartTime=now+" in line else ""
            slurm.clock.seconds += 100
            driven.round()
            assert list(slurm.leases) == [EARLIER, FIRST]

    def test_the_plugin_knows_what_the_partition_has_from_the_first_round_on(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
            assert [text.partition(" ")[2] for text in slurm.drivers()] == ["lease=600 of=gpu gpus=4"]
            slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 8), "IDLE"
            slurm.clock.seconds += 1
            driven.round()
            assert [text.partition(" ")[2] for text in slurm.drivers()] == ["lease=600 of=gpu gpus=8"]

    @pytest.mark.parametrize(("count", "offer"), [(2, "gpus=4 [p0 gpus=4] [p1 gpus=4]"), (60, "gpus=4")])
    def test_the_comment_of_a_lease_is_no_longer_than_slurm_allows(self, tmp_path: Path, count: int, offer: str) -> None:
        slurm, names = cluster(), [f"p{n}" for n in range(count)]
        slurm.members = dict.fromkeys(slurm.nodes, names)  # type: ignore[assignment]
        slurm.partitions = "".join(f"PartitionName={name} QoS=N/A\n" for name in names)
        slurm.submit(1, per_job="gpu:1", partition="p1", comment=BERT)
        with driver(slurm, tmp_path, partition=",".join(names)) as driven:
            driven.round()
        (comment,) = slurm.drivers()
        assert comment.endswith(f" of={','.join(names)} {offer}")
        assert len(comment) <= MAX_COMMENT

    @pytest.mark.parametrize("round_seconds", [100.0, 10.0])
    def test_systemd_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_seconds: float) -> None:
        """Also if rounds, each of which renews the lease, follow each other closely."""
        path = str(tmp_path / "notify")
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(path)
            channel.settimeout(60.0)
            slurm = cluster_with(1, 4)
            slurm.clock.stops_at = slurm.clock.now() + 50
            with driver(slurm, tmp_path / "state", round_seconds=round_seconds) as driven:
                driven.run()
            channel.setblocking(False)
            words = [channel.recv(100) for _ in range(3)]
        assert words == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
        notify("READY=1")


class TestOtherDrivers:
    def test_a_second_driver_with_another_state_is_refused(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        with driver(slurm, tmp_path / "first") as first, driver(slurm, tmp_path / "second") as second:
            first.round()
            sent, leases = len(slurm.sent), dict(slurm.leases)
            slurm.clock.seconds = end_of(slurm) - 500
            cure = "end it first, or if its host is dead: gavel slurm release --partition gpu"
            with pytest.raises(
                gp.InputError,
                match=rf"^partition gpu: another driver manages it \(process \d+ on .*, its lease ends in 500 s\); {cure}$",
            ):
                second.run()
            assert (len(slurm.sent), slurm.leases) == (sent, leases)
        with driver(slurm, tmp_path / "first") as again:
            again.round()
        slurm.clock.seconds = end_of(slurm) + 1
        with driver(slurm, tmp_path / "second") as second:
            second.round()
        assert list(slurm.leases) == [EARLIER, NEXT]

    @pytest.mark.parametrize(("other", "goes_on"), [("80000", False), ("95000", True)])
    def test_of_two_drivers_that_begin_at_the_same_time_one_goes_on(self, tmp_path: Path, other: str, goes_on: bool) -> None:
        """The other one takes its lease after this one has looked for leases."""
        slurm = cluster_with(3, 4)

        def begin(command: Any) -> None:
            if command[0] == "sbatch":
                slurm.leases[other] = ["gavel:driver=far:1:abc lease=600 of=gpu", slurm.clock.now() + 600]

        slurm.fails = begin
        with driver(slurm, tmp_path) as driven:
            if goes_on:
                driven.round()
            else:
                with pytest.raises(gp.InputError, match=r"another driver manages it \(process 1 on far"):
                    driven.round()
        assert (FIRST in slurm.leases, other in slurm.leases) == (goes_on, True)
        assert bool(slurm.sent) is goes_on

    def test_entries_of_unexpected_structure_are_no_leases(self) -> None:
        slurm = FakeSlurm(FakeClock(), {})
        odd = [
            '{"name": "gavel-driver", "job_id": 1, "comment": "gavel:driver=a:1:b lease=1", "user_id": 1e400}',
            '{"name": "gavel-driver", "job_id": 1, "comment": "gavel:driver=a lease=1", "user_id": 0}',
            '{"name": "gavel-driver", "job_id": 1, "comment": 7, "user_id": 0}',
            '{"name": "gavel", "job_id": 1, "comment": "gavel:driver=a:1:b lease=1 of=gpu", "user_id": 0}',
            '{"name": "gavel-driver", "job_state": "COMPLETED", "comment": "gavel:driver=a:1:b lease=1 of=gpu", "user_id": 0}',
        ]
        listed = f'{{"jobs": [null, "gavel-driver", [], {", ".join(odd)}]}}'
        slurm.run = lambda *_: answered(listed)  # type: ignore[method-assign]
        assert holders(slurm, ["gpu", ""]) == []

    @pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])
    def test_users_cannot_stop_or_blind_a_driver_with_a_lease_of_their_own(self, tmp_path: Path, new: bool) -> None:
        """The plugin reads only leases of accounts that may run a driver."""
        slurm = cluster_with(3, 4)
        slurm.new = new
        evil = evil_lease(slurm)
        with driver(slurm, tmp_path) as driven:
            with pytest.warns(
                gp.GavelWarning, match="job 50 of user77 looks like a driver's lease, but that account may not"
            ) as told:
                driven.round()
            slurm.clock.seconds += 100
            driven.round()
            assert bound(slurm) == waiting(slurm)
            assert {slurm.jobs[number].lease for number in waiting(slurm)} == {FIRST}
            driven.release()
        assert len(told) == 1
        assert slurm.leases == {EARLIER: slurm.leases[EARLIER], "50": evil}, "it is left alone"
        assert holders(slurm, ["gpu"]) == []

    def test_leases_of_operators_count(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        slurm.accounts = OPERATOR
        evil_lease(slurm)
        with (
            driver(slurm, tmp_path) as driven,
            pytest.raises(gp.InputError, match=r"another driver manages it \(process 1 on evil"),
        ):
            driven.round()
        assert slurm.sent == []

    def test_a_lease_of_another_account_with_the_same_state_is_replaced(self, tmp_path: Path) -> None:
        """The driver's account has changed, and an operator may not change all fields of the job of another."""
        slurm = cluster_with(3, 4)
        slurm.accounts = OPERATOR
        evil_lease(slurm, own_owner(tmp_path))
        with driver(slurm, tmp_path) as driven:
            driven.round()
        assert list(slurm.leases) == [EARLIER, FIRST]

    @pytest.mark.parametrize("refused", [["gpu"], ["gpu", "free"]])
    def test_sbatch_may_refuse_the_job(self, tmp_path: Path, refused: list[str]) -> None:
        slurm = cluster_with(3, 4)

        def refuses(line: str) -> str:
            asked = [word.removeprefix("--partition=") for word in line.split() if word.startswith("--partition=")]
            is_refused = any(name in refused for names in asked for name in names.split(","))
            return "sbatch: error: AssocMaxSubmitJobLimit" if is_refused else ""

        slurm.refuses = refuses
        with driver(slurm, tmp_path, partition="gpu,free") as driven:
            if len(refused) == 1:
                driven.round()
                assert len(slurm.drivers()) == 1
            else:
                text = "^partition gpu,free: sbatch refuses the job on which waiting jobs depend while the driver is alive: "
                with pytest.raises(gp.InputError, match=f"{text}sbatch: error: AssocMaxSubmitJobLimit; if the plugin"):
                    driven.run(rounds=1)
                assert (slurm.sent, slurm.drivers()) == ([], [])


OPERATOR = "User Records\n\nUserName=user77(77) DefAccount=root DefWckey=(null) AdminLevel=Operator\n"


def evil_lease(slurm: FakeSlurm, owner: str = "evil:1:abcdef") -> list[Any]:
    """Submit a job that looks like a driver's lease, as another account, and return its comment and end."""
    slurm.owners["50"] = 77
    slurm.leases["50"] = [f"gavel:driver={owner} lease=600 of=gpu", slurm.clock.now() + 1e6]
    return slurm.leases["50"]


def own_owner(folder: Path) -> str:
    """Return the owner in the lease of a driver on this host with this state."""
    return f"{socket.gethostname()}:1:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


class TestDriversThatCannotManageJobs:
    """Such a driver does not renew its lease, so Slurm starts the jobs that wait for it."""

    def test_a_driver_takes_over_its_lease_without_renewing_it_before_its_first_round(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        end = end_of(slurm)
        slurm.clock.seconds += 100
        with driver(slurm, tmp_path) as driven:
            with full_disk(), pytest.raises(gp.InputError, match="the disk is full"):
                driven.round()
            assert (list(slurm.leases), end_of(slurm)) == ([EARLIER, FIRST], end)
            driven.round()
            assert list(slurm.leases) == [EARLIER, FIRST]
            assert end_of(slurm) == pytest.approx(slurm.clock.now() + LEASE, abs=2)

    @pytest.mark.parametrize("cause", ["full disk", "no operator any more"])
    def test_it_may_be_started_again_and_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
        """Jobs that wait, and those that the plugin lets wait for it later, start after the time of a lease at most."""
        monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("daemon").pw_uid)
        slurm = cluster_with(5, 4)
        with_account(slurm, "Operator")
        with driver(slurm, tmp_path) as driven:
            driven.round()
        began = {number: slurm.clock.now() for number in bound(slurm)}
        assert len(began) == 3
        if cause == "full disk":
            monkeypatch.setattr("gavel_py.integrations.slurm.driver.save_state", disk_is_full)
        else:
            with_account(slurm, None)
        begin, longest = slurm.clock.now(), dict[int, float]()
        while slurm.clock.now() < begin + 2 * LEASE:
            for number in [number for number, job in slurm.jobs.items() if job.held]:
                slurm.end(number)
            number = max(slurm.jobs) + 1
            slurm.submit(number, per_job="gpu:4", comment=BERT)
            began[number] = slurm.clock.now()
            with driver(slurm, tmp_path, start_seconds=5.0) as driven, pytest.raises(gp.GavelError):
                driven.run()
            slurm.clock.seconds += 140
            slurm.run(["squeue"])
            longest |= {number: slurm.clock.now() - began[number] for number in bound(slurm)}
        assert max(longest.values()) <= LEASE + 150
        assert not any(slurm.jobs[number].state == "PENDING" for number, since in began.items() if since < begin + LEASE - 150)

    @pytest.mark.parametrize("cause", ["full disk", "no operator any more"])
    def test_it_may_go_on_trying(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("daemon").pw_uid)
        slurm = cluster_with(5, 4)
        with_account(slurm, "Operator")
        begin = slurm.clock.now()
        patch = pytest.MonkeyPatch()

        def fails() -> None:
            if cause == "full disk":
                patch.setattr("gavel_py.integrations.slurm.driver.save_state", disk_is_full)
            else:
                with_account(slurm, None)
                slurm.refuses = lambda line: denied(line) if line.startswith("update") else ""
            for number in [number for number, job in slurm.jobs.items() if job.held]:
                slurm.end(number)

        def works() -> None:
            assert bound(slurm) == set(), "its lease has ended"
            assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2, "Slurm has started them"
            patch.undo()
            with_account(slurm, "Operator")
            slurm.refuses = lambda _: ""

        plays = [(begin + 60, fails), (begin + 900, works)]

        def happen(now: float) -> None:
            if plays and now >= plays[0][0]:
                plays.pop(0)[1]()

        slurm.clock.on_sleep, slurm.clock.stops_at = happen, begin + 1200
        try:
            with driver(slurm, tmp_path, start_seconds=5.0, poll_seconds=20.0) as driven, pytest.warns(match=WARNED):
                driven.run()
        finally:
            patch.undo()
        assert plays == []
        assert len(slurm.drivers()) == 1, "it goes on once it can"
        assert len(waiting(slurm)) == 1
        assert bound(slurm) == waiting(slurm)

    @pytest.mark.parametrize(("on_failure", "kept"), [("retry", True), ("release", False)])
    def test_a_state_that_cannot_be_read(self, tmp_path: Path, on_failure: str, kept: bool) -> None:
        slurm = cluster_with(5, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        waits = bound(slurm)
        assert len(waits) == 3
        (tmp_path / "state.json").write_text("{")
        with driver(slurm, tmp_path, on_failure=on_failure) as driven, pytest.raises(gp.InputError, match=r"state\.json"):
            driven.run()
        assert bound(slurm) == (waits if kept else set())
        assert bool(slurm.drivers()) is kept

    def test_rounds_that_are_not_possible_any_more_release_jobs_and_say_so(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        slurm.clock.stops_at = slurm.clock.now() + 150

        def break_state(*_: object) -> None:
            (tmp_path / "state.json").unlink()
            (tmp_path / "state.json").mkdir()

        with driver(slurm, tmp_path, on_failure="release") as driven, pytest.warns(gp.GavelWarning, match=r"state\.json") as told:
            driven.run(tell=break_state)
        assert any("no round was possible" in str(each.message) for each in told)
        assert bound(slurm) == set()
        assert not slurm.drivers()


def either(slurm: FakeSlurm, number: int, begin: float = 0.0) -> FakeJob:
    """Submit a job that waits for one of two others (joined by ?), as the plugin leaves it; begin: requested by its user."""
    now = slurm.clock.now()
    note = f"gavel:submit={now:.0f};shared;begin={begin:.0f};place=any"
    eligible = max(begin, now + LEASE)
    return slurm.submit(
        number, per_job="gpu:4", comment=BERT, dependency="afterok:7?afterok:8", lease="", eligible=eligible, admin_comment=note
    )


class TestDependenciesJoinedByOr:
    """Slurm does not combine them with the one on the lease, so such jobs begin later, again and again."""

    def test_they_are_postponed_at_half_time(self, tmp_path: Path) -> None:
        slurm = cluster()
        job = either(slurm, 1)
        left = []
        slurm.clock.on_sleep = lambda now: left.append(job.eligible - now)
        slurm.clock.stops_at = slurm.clock.now() + 3 * LEASE
        with driver(slurm, tmp_path) as driven:
            driven.run()
            assert driven.look().standing_of("1") == (Role.ASIDE, "it waits for another job, afterok:7?afterok:8")
        assert min(left) >= LEASE / 2 - 100 - POLL, "the driver looks at it in each round at least"
        assert max(left) <= LEASE
        postponed = [line for line in slurm.sent if line == "update JobId=1 StartTime=now+600"]
        assert 3 <= len(postponed) <= 7
        assert not any("Dependency=" in line for line in slurm.sent)
        slurm.clock.seconds += LEASE
        job.dependency = ""
        slurm.run(["squeue"])
        assert job.state == "RUNNING", "nobody postpones it if the driver is dead"

    def test_it_is_bound_once_one_is_fulfilled(self, tmp_path: Path) -> None:
        slurm = cluster_with(2, 4)
        job = either(slurm, 3)
        with driver(slurm, tmp_path) as driven:
            driven.round()
            assert 3 not in bound(slurm)
            job.dependency = ""
            slurm.clock.seconds += 5
            driven.fill()
            assert (job.lease, job.eligible) == (FIRST, pytest.approx(slurm.clock.now(), abs=2))
            for _ in range(4):
                slurm.clock.seconds += 100
                driven.round()
                assert job.held or 3 in bound(slurm)
                if job.held:
                    break
        assert job.held, "it takes its turns"
        assert job.admin_comment.startswith("gavel:submit=")

    def test_it_begins_when_its_user_has_requested(self, tmp_path: Path) -> None:
        slurm = cluster()
        begin = slurm.clock.now() + 1000
        job = either(slurm, 1, begin)
        with driver(slurm, tmp_path) as driven:
            driven.round()
            assert job.eligible == begin, "it is not postponed before it is due"
            job.dependency = ""
            slurm.clock.seconds += 100
            decided, _ = driven.round()
            assert decided.picture.standing_of("1") == (Role.ASIDE, "it begins later")
            assert (job.lease, job.eligible) == (FIRST, begin)
            line = f"update JobId=1 Dependency=afterany:{FIRST} StartTime={datetime.fromtimestamp(begin).isoformat()}"
            assert slurm.sent.count(line) == 1
            while not job.held:
                slurm.clock.seconds += 100
                driven.round()
        assert begin <= job.start <= begin + 110

    def test_a_begin_that_was_requested_is_restored_after_it_was_postponed(self, tmp_path: Path) -> None:
        slurm = cluster()
        begin = slurm.clock.now() + 2000
        job = either(slurm, 1, begin)
        job.eligible = slurm.clock.now() + LEASE
        with driver(slurm, tmp_path) as driven:
            for _ in range(5):
                driven.round()
                slurm.clock.seconds += 100
            assert job.eligible > slurm.clock.now() + LEASE / 2 - 100
            job.dependency = ""
            driven.round()
            assert (job.lease, job.eligible) == (FIRST, begin)

    def test_a_release_lets_it_wait_for_the_others_only(self, tmp_path: Path) -> None:
        slurm = cluster()
        job = either(slurm, 1)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        gp.slurm_release("gpu", directory=tmp_path, commands=slurm)
        assert job.dependency == "afterok:7?afterok:8"
        job.dependency = ""
        slurm.clock.seconds = job.eligible
        slurm.run(["squeue"])
        assert job.state == "RUNNING"


class TestRelease:
    @pytest.mark.parametrize("with_state", [True, False])
    def test_it_needs_no_state_and_may_be_repeated(self, tmp_path: Path, with_state: bool) -> None:
        slurm = cluster_with(5, 4)
        slurm.submit(6, per_job="gpu:4", priority=0)
        with driver(slurm, tmp_path) as driven:
            for _ in range(4):
                driven.round()
                slurm.clock.seconds += 100
        waits = bound(slurm)
        assert len(waits) == 4
        assert waits == waiting(slurm)
        directory = tmp_path if with_state else None
        released = gp.slurm_release("gpu", directory=directory, commands=slurm)
        assert set(map(int, released)) == waits
        assert bound(slurm) == set()
        assert not any(slurm.jobs[int(job_id)].wanted for job_id in released), "they may start anywhere"
        assert slurm.jobs[6].priority == 0, "its user holds it"
        assert not slurm.drivers()
        assert gp.slurm_release("gpu", directory=directory, commands=slurm) == []

    def test_jobs_are_not_ahead_of_others_afterwards(self, tmp_path: Path) -> None:
        """Those that run have been moved to the front, for a driver to start them."""
        slurm = cluster_with(6, 4)
        with driver(slurm, tmp_path) as driven:
            for _ in range(6):
                driven.round()
                slurm.clock.seconds += 100
            assert 4_294_967_293 in {job.priority for job in slurm.jobs.values() if job.state == "PENDING"}
            driven.release()
        assert {job.priority for job in slurm.jobs.values() if job.state == "PENDING"} == {1000}
        assert {job.priority for job in slurm.jobs.values() if job.held} == {4_294_967_293}

    @pytest.mark.parametrize("with_state", [True, False])
    def test_it_frees_jobs_whose_nodes_have_failed_since(self, tmp_path: Path, with_state: bool) -> None:
        """A running job still requests the nodes on which it was started, which Slurm does not let anybody change."""
        slurm = cluster_with(2, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        slurm.submit(3, per_job="gpu:4", partition="free", wanted=["k80-0"])
        failed = next(iter(slurm.jobs[2].held))
        slurm.stuck = {3}
        slurm.node_fails(failed)
        assert slurm.jobs[2].wanted == [failed]
        assert gp.slurm_release("gpu", directory=tmp_path if with_state else None, commands=slurm) == ["2"]
        assert slurm.jobs[2].wanted == []
        assert slurm.jobs[3].wanted == ["k80-0"], "its user wants it there"

    def test_it_is_an_error_if_slurm_refuses_it(self, tmp_path: Path) -> None:
        slurm = cluster_with(5, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        slurm.refuses = refuse_to_cancel
        before, leases = bound(slurm), dict(slurm.leases)
        with pytest.raises(gp.SlurmError) as found:
            gp.slurm_release("gpu", commands=slurm)
        denied = f"scancel: error: Kill job error on job id {FIRST}: Access/permission denied"
        cure = "cancel it as SlurmUser, root or an operator"
        assert str(found.value) == f"job {FIRST}, the driver's lease, could not be cancelled: {denied}; {cure}"
        assert (bound(slurm), slurm.leases) == (before, leases)

    def test_a_driver_that_may_not_end_its_lease_warns(self, tmp_path: Path) -> None:
        slurm = cluster_with(3, 4)
        with driver(slurm, tmp_path, on_exit="release") as driven:
            driven.round()
            slurm.refuses = refuse_to_cancel
            with pytest.warns(gp.GavelWarning, match=f"^jobs wait until the lease ends: job {FIRST}, the driver's lease"):
                driven.end()
        (released,) = events(tmp_path, "released")
        assert released["problem"].startswith(f"job {FIRST}, the driver's lease, could not be cancelled: scancel: error:")


def refuse_to_cancel(line: str) -> str:
    if not line.startswith("scancel"):
        return ""
    return f"scancel: error: Kill job error on job id {line.split()[1]}: Access/permission denied"


class TestUninstall:
    @pytest.fixture(autouse=True)
    def _not_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Root may write any AdminComment."""
        monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("daemon").pw_uid)

    @pytest.mark.parametrize(("level", "may_annotate"), [("Administrator", True), ("Operator", False)])
    def test_what_drivers_have_written_is_removed_as_far_as_possible(self, tmp_path: Path, level: str, may_annotate: bool) -> None:
        slurm = cluster_with(5, 4)
        slurm.jobs[5].admin_comment = "project 7;" + slurm.jobs[5].admin_comment
        with_account(slurm, "Administrator")
        with driver(slurm, tmp_path) as driven:
            for _ in range(2):
                driven.round()
                slurm.clock.seconds += 100
        slurm.submit(6, per_job="gpu:4", admin_comment="not ours", priority=0)
        slurm.submit(7, per_job="gpu:4", partition="free", admin_comment="gavel:submit=1;shared", priority=0)
        slurm.submit(8, per_job="gpu:4", admin_comment="gavel:submit=1;shared", priority=0)
        slurm.end(8)
        assert any("gavel-why=" in job.admin_comment for job in slurm.jobs.values())
        notes = {number: job.admin_comment for number, job in slurm.jobs.items()}
        waits, runs = sorted(bound(slurm)), sorted(number for number, job in slurm.jobs.items() if job.held)
        with_account(slurm, level)
        remains = gp.slurm_uninstall("gpu", directory=tmp_path, commands=slurm)
        assert sorted(map(int, remains.released)) == waits
        marked = ["1", "2", "3", "4", "5"]
        assert (sorted(remains.cleaned), sorted(remains.noted)) == ((marked, []) if may_annotate else ([], marked))
        assert sorted(map(int, remains.placed)) == runs
        cleaned = notes | {1: "", 2: "", 3: "", 4: "", 5: "project_7"} if may_annotate else notes
        assert {number: job.admin_comment for number, job in slurm.jobs.items()} == cleaned
        assert {job.priority for job in slurm.jobs.values() if job.number < 6} == {1000}
        assert (slurm.drivers(), bound(slurm)) == ([], set())
        again = gp.slurm_uninstall("gpu", commands=slurm)
        assert (again.released, again.cleaned) == ([], [])
        assert sorted(again.noted) == ([] if may_annotate else marked)

    def test_it_needs_the_right_to_manage_jobs(self, tmp_path: Path) -> None:
        slurm = cluster_with(5, 4)
        with_account(slurm, "Operator")
        with driver(slurm, tmp_path) as driven:
            driven.round()
        with_account(slurm, None)
        slurm.refuses = refuse_to_cancel
        notes, leases = {number: job.admin_comment for number, job in slurm.jobs.items()}, dict(slurm.leases)
        with pytest.raises(gp.SlurmError, match="could not be cancelled"):
            gp.slurm_uninstall("gpu", commands=slurm)
        assert ({number: job.admin_comment for number, job in slurm.jobs.items()}, slurm.leases) == (notes, leases)

    @pytest.mark.parametrize(
        ("remains", "lines"),
        [
            (gp.SlurmRemains(["1", "2"], ["1", "2", "3"], [], []), ["2 jobs released, notes removed from 3 jobs."]),
            (
                gp.SlurmRemains(["1"], [], ["2", "3"], ["3"]),
                [
                    "1 job released, notes removed from 0 jobs.",
                    "2 jobs: their AdminComment keeps notes that begin with gavel:, which only SlurmUser, root and administrators "
                    "may remove; they change nothing.",
                    "1 job may only run on the present nodes: Slurm cannot change that while they run; if such a node fails, its "
                    "job waits for it until scontrol update JobId=... ReqNodeList=.",
                ],
            ),
        ],
    )
    def test_the_command_says_what_remains(
        self, remains: gp.SlurmRemains, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def uninstall(partition: str, *, directory: Path | None) -> gp.SlurmRemains:
            asked.append((partition, directory))
            return remains

        monkeypatch.setattr(gp, "slurm_uninstall", uninstall)
        done = runner(capsys, "slurm")("uninstall", "--partition", "gpu,long")
        assert (done.code, done.out.splitlines(), asked) == (0, lines, [("gpu,long", None)])
        plugin, file = "remove lua from JobSubmitPlugins", "remove job_submit.lua"
        assert 0 < done.err.index(plugin) < done.err.index(file), "slurmctld ends without a plugin that slurm.conf names"

    def test_the_command_runs_on_a_recorded_cluster(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """There is no lease, and scontrol tells no rights. One job waits for the node on which a driver wanted to start it."""
        monkeypatch.setenv("PATH", recorded_commands(tmp_path / "bin"), prepend=os.pathsep)
        done = runner(capsys, "slurm")("uninstall", "--partition", "opt")
        assert done.code == 0, done.err
        first, noted = done.out.splitlines()
        assert first == "1 job released, notes removed from 0 jobs."
        assert noted.startswith("7 jobs: their AdminComment keeps notes")


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
    text = gp.slurm_plugin("gpu", [7])
    assert 'local LEASE = "gavel-driver"' in text
    assert "local ADMINISTRATORS = { [0] = true, [7] = true }" in text
    unit = gp.slurm_service("gpu", user="gavel", command="/opt/bin/gavel")
    assert "ExecStart=/opt/bin/gavel slurm run --partition gpu --state /var/lib/gavel-slurm" in unit
    assert "@" not in text
    assert "@" not in unit
    with pytest.raises(gp.InputError, match="not a valid partition"):
        gp.slurm_service("a b", user="gavel")
