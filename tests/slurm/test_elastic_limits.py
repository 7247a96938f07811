"""Elastic jobs below limits of GPUs: they grow as far as these allow, and at no time beyond."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.cli.slurm.driving import status_text
from gavel_py.integrations.slurm.accounts import Accounts, Association, Qos, Turns
from gavel_py.integrations.slurm.client.records import Phase
from tests.slurm.fake_slurm import FakeJob, FakeSlurm
from tests.slurm.support import driver
from tests.slurm.test_accounts import a_job, with_accounts
from tests.slurm.test_elastic import ELASTIC, cluster, profile, ranged
from tests.support.commands import runner
from tests.support.examples import examples

CHEM = {"account": "chem", "user_name": "games", "qos": ""}


def limited(gpus: int, nodes: int = 8) -> FakeSlurm:
    """Return a cluster in which the account chem may use so many GPUs; that it never has more is checked at each command."""
    slurm = with_accounts(cluster(nodes))
    slurm.tables["assoc"] = slurm.tables["assoc"].replace("gres/gpu=4", f"gres/gpu={gpus}")
    slurm.tables["qos"] = ""
    assert f"gres/gpu={gpus}" in slurm.tables["assoc"]
    plain = slurm.run

    def run(arguments: Sequence[str], text: str = "") -> Any:
        answer = plain(arguments, text)
        assert used(slurm) <= gpus
        return answer

    slurm.run = run  # type: ignore[method-assign]
    return slurm


def of_chem(slurm: FakeSlurm, number: int, most: int = 4, *, type_: str = "", **more: Any) -> FakeJob:
    job = ranged(slurm, number, most, **CHEM, **more)
    job.per_node = f"gpu:{type_}:4" if type_ else job.per_node
    return job


def used(slurm: FakeSlurm, account: str = "chem") -> int:
    return sum(sum(job.held.values()) for job in slurm.jobs.values() if job.more.get("account") == account)


def sizes(slurm: FakeSlurm) -> dict[int, int]:
    return {number: sum(job.held.values()) for number, job in slurm.jobs.items() if job.held}


def play(slurm: FakeSlurm, driven: gp.SlurmDriver, rounds: int = 4) -> dict[int, int]:
    """Run some rounds, in which each start succeeds, and return the GPUs of the jobs after the last one."""
    for _ in range(rounds):
        slurm.clock.seconds += 100
        _, applied = driven.round()
        assert (applied.errors, applied.waiting, applied.elsewhere) == ([], {}, {})
    return sizes(slurm)


def test_a_job_grows_up_to_the_limit_of_its_account_and_shares_that_with_others(tmp_path: Path) -> None:
    slurm = limited(12)
    of_chem(slurm, 1)
    ranged(slurm, 9, 4, account="physics", user_name="nobody")
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert play(slurm, driven) == {1: 8, 9: 16}, "16 would be beyond the limit, and the profile has no 12"
        of_chem(slurm, 2)
        assert play(slurm, driven) == {1: 8, 2: 4, 9: 16}, "both cannot have 8"
        of_chem(slurm, 3)
        assert play(slurm, driven) == {1: 4, 2: 4, 3: 4, 9: 16}
        of_chem(slurm, 4)
        assert 4 not in play(slurm, driven)
        assert set(driven.look().left_alone.values()) == {"account chem may use 12 GPUs at a time (GrpTRES)"}
        for number in (1, 2):
            slurm.end(number)
        assert play(slurm, driven, 2) == {3: 8, 4: 4, 9: 16}


@pytest.mark.deep
def test_a_limit_that_is_lifted_or_not_enforced_is_forgotten(tmp_path: Path) -> None:
    slurm = limited(8, nodes=4)
    of_chem(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert play(slurm, driven) == {1: 8}
    slurm = limited(100, nodes=4)
    of_chem(slurm, 1)
    with driver(slurm, tmp_path / "lifted", speeds=profile()) as driven:
        assert play(slurm, driven, 2) == {1: 16}
        slurm.tables["assoc"] = slurm.tables["assoc"].replace("gres/gpu=100", "gres/gpu=8")
        assert play(slurm, driven, 12) == {1: 8}, "limits are read every ten rounds"
        slurm.config = slurm.config.replace("limits,", "")
        assert play(slurm, driven, 12) == {1: 16}


def test_a_job_that_may_not_be_stopped_yet_keeps_what_it_has_before_others_come(tmp_path: Path) -> None:
    slurm = limited(16)
    of_chem(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile(), min_run_seconds=350.0) as driven:
        assert play(slurm, driven, 1) == {1: 16}
        of_chem(slurm, 2)
        assert [play(slurm, driven, 1) for _ in range(4)] == [*[{1: 16}] * 3, {1: 8, 2: 8}]


def test_nothing_starts_within_a_round_beyond_a_limit_that_running_jobs_use_up(tmp_path: Path) -> None:
    slurm = limited(16)
    of_chem(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert play(slurm, driven, 1) == {1: 16}
        of_chem(slurm, 2)
        driven.fill()
        assert sizes(slurm) == {1: 16}
        slurm.clock.seconds += 10
        slurm.end(1)
        driven.fill()
        assert sizes(slurm) == {2: 16}, "it may have all of the limit now"


def test_a_start_waits_while_a_warned_job_has_what_the_limit_leaves_it(tmp_path: Path) -> None:
    """Job 2 would have other nodes, which are free, but the GPUs of its account only when job 1 gives them back."""
    slurm = limited(16)
    slurm.nodes |= {f"k80-{n}": ("k80", 4) for n in range(4)}
    slurm.states |= dict.fromkeys(slurm.nodes, "IDLE")
    rows = [row.model_copy(update={"accelerator": name}) for row in profile().measurements for name in ("v100", "k80")]
    of_chem(slurm, 1, comment=f"{ELASTIC} warn=USR1@60", type_="v100")
    with driver(slurm, tmp_path, speeds=gp.ThroughputProfile("both", rows), warn_seconds=60.0) as driven:
        assert play(slurm, driven, 1) == {1: 16}
        of_chem(slurm, 2, type_="k80")
        slurm.clock.seconds += 100
        decided, _ = driven.round()
        assert sizes(slurm) == {1: 16}
        assert decided.waiting["2"].endswith("of which jobs that have been warned still hold some")
        slurm.clock.seconds += 61
        driven.fill()
        assert sizes(slurm) == {1: 8, 2: 8}


COUNTS = st.sampled_from([(1, 2, 4, 8), (4, 8, 16), (2, 3, 7), (5,)])
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "q"]), COUNTS, st.integers(0, 3)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=examples(100))
@given(ROWS, st.integers(5, 60), st.integers(5, 40), st.integers(5, 40))
def test_rooms_keep_all_limits_and_leave_none_unused(
    rows: list[tuple[str, str, tuple[int, ...], int]], a: int, b: int, user: int
) -> None:
    associations = {("a", ""): Association("root", 1, a), ("b", ""): Association("a", 1, b)}
    accounts = Accounts(associations, {"q": Qos(gpus_per_user=user)}, {})
    jobs, needs, choices = {}, {}, {}
    for number, (account, qos, counts, held) in enumerate(rows):
        fields = {"phase": Phase.RUNNING, "held": {"n": counts[held]}} if 0 < held < len(counts) else {}
        job = a_job(str(number), account, "x", qos, counts[0], **fields)
        candidate = {**jobs, job.job_id: job}
        if not accounts.over_limits(candidate, list(candidate), Turns({}), dict.fromkeys(candidate, 0) | needs):
            jobs, needs[job.job_id], choices[job.job_id] = candidate, counts[0], counts
    most = {"a": a, "b": b, "user": user}
    groups = {i: [*{"a": "a", "b": "ab", "c": ""}[job.account], *(["user"] if job.qos else [])] for i, job in jobs.items()}
    needs = {i: gpus for i, gpus in needs.items() if all(need(groups, needs, each) <= most[each] for each in most)}
    found = accounts.rooms(jobs, needs, {i: choices[i] for i in needs})
    sums = {each: need(groups, found, each) for each in most}
    assert all(sums[each] <= most[each] for each in most)
    for i, gpus in found.items():
        assert gpus in choices[i]
        more = next((count for count in choices[i] if count > gpus), None)
        assert more is None or any(sums[each] + more - gpus > most[each] for each in groups[i]), "there is room for more"


def need(groups: dict[str, list[str]], gpus: dict[str, int], group: str) -> int:
    return sum(count for i, count in gpus.items() if group in groups[i])


def test_equal_jobs_get_equal_rooms_and_those_that_run_are_left_alone() -> None:
    accounts = Accounts({("a", ""): Association("root", 1, 24)}, {}, {})
    jobs = {str(n): a_job(str(n), "a", gpus=4) for n in (1, 2)}
    choices = dict.fromkeys(jobs, (4, 8, 16))
    assert accounts.rooms(jobs, dict.fromkeys(jobs, 4), choices) == {"1": 16, "2": 8}
    jobs["2"] = a_job("2", "a", gpus=4, phase=Phase.RUNNING, held={"n": 16})
    assert accounts.rooms(jobs, dict.fromkeys(jobs, 4), choices) == {"1": 8, "2": 16}


@pytest.mark.parametrize("limit", [4, 8, 12, 20])
def test_the_limit_is_kept_whoever_comes_and_goes(tmp_path: Path, limit: int) -> None:
    slurm = limited(limit, nodes=6)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        for number in range(1, 9):
            if number % 3:
                of_chem(slurm, number, most=1 + number % 4, comment=ELASTIC)
            else:
                slurm.submit(number, per_node="gpu:4", comment=ELASTIC, more=dict(CHEM))
            play(slurm, driven, 1)
            slurm.clock.seconds += 20
            if number % 2 == 0 and (running := sorted(sizes(slurm))):
                slurm.end(running[0])
            driven.fill()
        play(slurm, driven)
    left = limit - used(slurm)
    for number, job in slurm.jobs.items():
        if job.state in {"PENDING", "RUNNING"}:
            most = 4 * max(1, job.most)
            present = sum(job.held.values())
            more = next((gpus - present for gpus in (4, 8, 16) if present < gpus <= most), None)
            assert more is None or more > left, f"there is room for {number}"


def test_users_and_operators_see_the_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm, gavel = limited(12), runner(capsys, "slurm")
    for number in (1, 2, 3):
        of_chem(slurm, number)
    slurm.submit(4, comment=f"{ELASTIC} gpus=1,2,4", per_node="gpu:1", more={"tasks": 1, "cpus": 1})
    slurm.submit(5, per_node="gpu:4", comment=ELASTIC)
    slurm.jobs[4].eligible = slurm.clock.now() + 86_400
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        driven.round()
        slurm.end(3)
        driven.round()
        picture = driven.look()
    told = {number: gavel("why", str(number), "--state", str(tmp_path)).out for number in (1, 2, 5)}
    held = {number: sum(slurm.jobs[number].held.values()) for number in (1, 2)}
    assert sorted(held.values()) == [4, 8]
    for number, gpus in held.items():
        assert told[number].startswith(
            f"Job {number} of games (1, 2 or 4 nodes with 4 GPUs each, now {gpus // 4}) is running on v100-"
        )
        assert f"A limit of its account or QOS leaves it {gpus} GPUs at most." in told[number]
    assert told[5].startswith("Job 5 of anna (4 GPUs) is running on v100-")
    table = gavel("queue", "--state", str(tmp_path)).out
    assert max(map(len, table.splitlines())) <= 80
    assert "8 of 4-16" in table
    assert "8 of 4-16" in status_text(picture)
    jobs = {job.job_id: job for job in gp.slurm_queue(tmp_path)}
    assert [jobs[name].gpu_counts for name in "145"] == [(4, 8, 16), (), ()], "a job that begins later has no number"
