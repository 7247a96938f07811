"""The driver on an in-memory Slurm: rounds, and events between and during them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.cli.slurm.driving import applied_text
from gavel_py.integrations.slurm.monitoring.metrics import metrics_text
from tests.slurm.fake_slurm import FakeClock, FakeSlurm, no_answer
from tests.slurm.support import BERT, LSTM, KilledError, cluster, cluster_with, driver, dying_at, events, profile

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])


def assert_sound(slurm: FakeSlurm) -> None:
    """Assert that no GPU is allocated twice."""
    assert all(slurm.free(name) >= 0 for name in slurm.nodes)


@both_shapes
def test_a_round_starts_jobs_where_it_says(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    slurm.submit(2, per_node="gpu:4", comment=LSTM)
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
    assert sorted(applied.started) == ["1", "2"]
    assert {str(j.number): j.held for j in slurm.jobs.values()} == {k: dict(v) for k, v in decided.moves.start.items()}
    # Per GPU, bert gains most from a v100, and the order of the lines is that of the protocol.
    sent = slurm.sent.index("update JobId=1 Dependency= Priority=4294967293")
    assert [line.partition(" ReqNodeList=")[0] for line in slurm.sent[sent - 2 : sent]] == [
        "update JobId=1 NumNodes=1-1",
        "update JobId=2 NumNodes=1-1",
    ]
    assert "TresPerJob= Gres=gpu:4 StartTime=now" in slurm.sent[sent - 1], "as its user asked: by node"
    assert "Gres" not in slurm.sent[sent - 2], "Slurm never forgets a request by node"
    assert slurm.sent[sent + 1 :] == ["update JobId=2 Dependency= Priority=4294967293"]
    assert_sound(slurm)


@both_shapes
def test_rounds_take_turns_and_kept_jobs_are_not_touched(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    for number in range(1, 6):
        slurm.submit(number, per_job="gpu:4", comment=BERT if number % 2 else LSTM)
    ran: set[int] = set()
    with driver(slurm, tmp_path) as driven:
        for _ in range(8):
            before = {n: (j.held, j.start) for n, j in slurm.jobs.items()}
            slurm.sent.clear()
            decided, applied = driven.round()
            assert sorted(applied.started) == sorted(decided.moves.start)
            for job_id in decided.moves.keep:
                assert before[int(job_id)] == (slurm.jobs[int(job_id)].held, slurm.jobs[int(job_id)].start)
                assert not any(job_id in line.replace(",", " ").split() for line in slurm.sent)
            ran |= {n for n, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
            assert_sound(slurm)
    assert ran == {1, 2, 3, 4, 5}
    stopped = events(tmp_path, "stopped")
    assert stopped
    assert all(event["preempted"] for event in stopped)


def test_jobs_of_others_are_left_alone_and_their_gpus_are_not_planned(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_node="gpu:3", partition="free", state="RUNNING", held={"v100-0": 3}, priority=9, start=slurm.clock.now())
    for number in (2, 3, 4):
        slurm.submit(number, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            decided, _ = driven.round()
            assert all(node == "k80-0" for target in decided.moves.start.values() for node in target)
            slurm.clock.seconds += 100
        assert slurm.jobs[1].held == {"v100-0": 3}
        slurm.end(1)
        driven.round()
    assert any("v100-0" in job.held for job in slurm.jobs.values())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dependency": "afterok:7(unfulfilled)"}, "it waits for another job, afterok:7"),
        ({"dependency": "afterok:7(unfulfilled)?afterok:8(failed)", "lease": ""}, "it waits for another job, afterok:7?afterok:8"),
        ({"priority": 0}, "its user or an administrator holds it"),
        ({"eligible": 1_800_000_000.0}, "it begins later"),
        ({"more": {"requeue": False}}, "it may not be requeued (--no-requeue)"),
        ({"more": {"het_job_id": 7}}, "it is part of a heterogeneous job"),
        ({"more": {"excluded_nodes": "k80-0"}}, "it excludes nodes (--exclude)"),
        ({"wanted": ["k80-0"]}, "it asks for certain nodes (--nodelist)"),
        ({"per_job": "", "per_node": "gpu:v100:1,gpu:k80:1"}, "it asks for GPUs of several types (k80, v100)"),
        ({"more": {"features": "[v100*2&k80]"}}, "it has a --constraint other than names joined by & or |"),
    ],
)
def test_unplanned_jobs_have_a_reason(fields: dict[str, object], why: str) -> None:
    slurm = cluster()
    slurm.submit(1, **({"per_job": "gpu:2", "comment": BERT} | fields))
    plan = driver(slurm, None).plan()
    assert plan.picture.left_alone == {"1": why}
    assert not plan.moves.start


def test_typed_jobs_stay_on_their_type(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2, 3):
        slurm.submit(number, per_node="gpu:k80:4", comment=BERT)
    slurm.submit(4, per_job="gpu:4", comment=LSTM, more={"features": "v100"})
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
            assert {name for n in (1, 2, 3) for name in slurm.jobs[n].held} == {"k80-0"}
            assert slurm.jobs[4].held == {"v100-0": 4}
    assert all("Gres=gpu:k80:4" in line for line in slurm.sent if "NumNodes=" in line and "JobId=4 " not in line)


@pytest.mark.parametrize(("factor", "waiting"), [(None, 0), (4.0, 0), (3.9, 1)])
def test_jobs_keep_off_types_on_which_they_are_too_slow(tmp_path: Path, factor: float | None, waiting: int) -> None:
    """bert is 4 times as fast on v100 as on k80, and lstm 1.5 times. Of 8 jobs on 8 GPUs, five of bert name no type."""
    slurm = cluster()
    for number in range(1, 7):
        slurm.submit(number, per_job="gpu:1", comment=BERT)
    slurm.submit(7, per_job="gpu:1", comment=LSTM)
    slurm.submit(8, per_job="gpu:k80:1", comment=BERT)
    slurm.jobs[6].state, slurm.jobs[6].held, slurm.jobs[6].start = "RUNNING", {"k80-0": 1}, slurm.clock.now() - 50.0
    policy = gp.resolve_policy("fifo", preemptive=False, backfill=True)
    with driver(slurm, tmp_path, policy=policy, too_slow=factor) as driven:
        driven.round()
    places = {number: "".join(job.held) for number, job in slurm.jobs.items()}
    assert places[6] == "k80-0", "a job that runs there stays"
    assert places[8] == "k80-0", "its user has named this type"
    assert sum(not place for place in places.values()) == waiting
    assert sum(places[number] == "k80-0" for number in range(1, 6)) == 1 - waiting


def test_gangs_that_fit_one_node_are_not_split_and_larger_ones_are_split_evenly(tmp_path: Path) -> None:
    slurm = FakeSlurm(cluster().clock, {"v100-0": ("v100", 4), "v100-1": ("v100", 4), "k80-0": ("k80", 1)})
    slurm.submit(1, per_job="gpu:2", comment=BERT + "\x1b[31m", more={"features": "v100"})
    slurm.submit(2, per_job="gpu:v100:4", nodes=2, comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert len(slurm.jobs[1].held) == 1
    assert set(slurm.jobs[2].held.values()) == {4}


def test_a_running_cluster_is_taken_over_without_stopping_jobs(tmp_path: Path) -> None:
    slurm = cluster()
    for number, node in ((1, "v100-0"), (2, "k80-0")):
        slurm.submit(
            number,
            per_job="gpu:4",
            comment=BERT,
            state="RUNNING",
            held={node: 4},
            priority=5,
            admin_comment="",
            start=slurm.clock.now(),
        )
    with driver(slurm, tmp_path) as driven:
        decided, _ = driven.round()
    assert decided.moves.keep == ("1", "2")
    assert slurm.sent == []


def test_nodes_that_drain_are_emptied_and_dead_ones_are_avoided(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert slurm.jobs[1].held == {"v100-0": 2}
        slurm.states["v100-0"] = "MIXED+DRAIN"
        slurm.clock.seconds += 100
        driven.round()
        assert slurm.jobs[1].held == {"k80-0": 2}
        slurm.states["v100-0"] = "IDLE"
        slurm.node_fails("k80-0")
        slurm.clock.seconds += 5
        driven.round()
        assert slurm.jobs[1].held == {"v100-0": 2}
    changes = {(event["node"], event["state"]) for event in events(tmp_path, "node")}
    assert changes == {("v100-0", "draining"), ("k80-0", "down"), ("v100-0", "up")}


def test_ended_jobs_are_credited_and_their_throughput_is_measured(tmp_path: Path) -> None:
    slurm = cluster()
    store = gp.ThroughputStore(tmp_path / "store.sqlite")
    slurm.submit(1, per_job="gpu:2", comment="gavel: type=bert steps=4000")
    with driver(slurm, tmp_path, store=store) as driven:
        driven.round()
        slurm.clock.seconds += 200
        slurm.end(1)
        slurm.clock.seconds += 50
        driven.round()
        assert driven.state is not None
        assert driven.state.scheduler.jobs == ()
    (left,) = events(tmp_path, "left")
    assert (left["outcome"], left["jct_seconds"], left["running_seconds"]) == ("finished", 200.0, 200.0)
    (row,) = store.load("slurm").measurements
    assert (row.job_type, row.num_gpus, row.accelerator, row.source) == ("bert", 2, "v100", "slurm")
    assert row.steps_per_second == pytest.approx(20, rel=0.02)


def test_ending_jobs_and_jobs_on_failed_nodes_do_not_count_as_preempted(tmp_path: Path) -> None:
    slurm = cluster()
    for number, node in ((1, "v100"), (2, "k80")):
        slurm.submit(number, per_job="gpu:4", comment=BERT, more={"features": node})
    with driver(slurm, tmp_path, stop_seconds=30.0) as driven:
        driven.round()
        slurm.jobs[1].state, slurm.jobs[1].stops = "COMPLETING", float("inf")
        slurm.node_fails("k80-0")
        slurm.clock.seconds += 100
        driven.round()
        slurm.end(1)
        slurm.end(2, "CANCELLED")
        driven.round()
    assert [(event["job"], event["preempted"]) for event in events(tmp_path, "stopped")] == [("1", False), ("2", False)]
    assert [(event["outcome"], event["preemptions"]) for event in events(tmp_path, "left")] == [("finished", 0), ("cancelled", 0)]


def test_progress_files_come_before_estimates(tmp_path: Path) -> None:
    slurm, progress = cluster(), tmp_path / "progress"
    progress.mkdir()
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path / "state", progress=progress) as driven:
        driven.round()
        slurm.clock.seconds += 100
        (progress / "1").write_text("1234 steps\n")
        driven.round()
        assert driven.state is not None
        assert driven.state.scheduler.jobs[0].steps_done == 1234
        (progress / "1").write_text("nonsense")
        slurm.clock.seconds += 100
        driven.round()
        assert driven.state.scheduler.jobs[0].steps_done == pytest.approx(1234 + 100 * 16, rel=0.05)


def test_a_job_beyond_its_total_steps_is_expected_to_need_more(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:1", comment="gavel: type=bert steps=10")
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
        assert slurm.jobs[1].state == "RUNNING"
        assert driven.state is not None
        (job,) = driven.state.scheduler.jobs
    assert job.total_steps is not None
    assert job.total_steps > job.steps_done > 10


def test_unknown_types_get_the_default_with_a_note(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:1", comment="gavel: type=gpt9 steps=-3")
    slurm.submit(2, per_job="gpu:1", name="bert-large")
    slurm.submit(3, per_job="gpu:3", name="lstm")
    rules = (gp.TypeRule("bert*", "bert", 500.0),)
    with driver(slurm, tmp_path, default_type="lstm", type_rules=rules) as driven:
        driven.round()
        assert driven.state is not None
        types = {job.job_id: (job.job_type, job.total_steps) for job in driven.state.scheduler.jobs}
    assert types == {"1": ("lstm", None), "2": ("bert", 500.0), "3": ("lstm", None)}
    notes = {event["job"]: event["notes"] for event in events(tmp_path, "arrived")}
    assert notes["1"] == ["steps=-3 is not a number greater than 0", "type gpt9 is not in profile small; treated as lstm"]
    assert notes["2"] == notes["3"] == []


def test_gangs_unknown_to_the_profile_are_refused_with_a_reason(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:h100:1", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        decided, _ = driven.round()
    assert decided.picture.refused == {"1": "job 1: asks for GPUs of type h100, which no node of partition gpu has"}


@pytest.mark.deep
def test_the_controller_may_be_away_at_any_command(tmp_path: Path) -> None:
    slurm = cluster_with(4, 4)
    calls = [0]

    def sometimes(_: Sequence[str]) -> None:
        calls[0] += 1
        if calls[0] % 29 in (3, 4, 11):
            no_answer()

    slurm.fails, warned = sometimes, "Slurm does not answer|Slurm answers again|limits and shares of accounts could not be read"
    with driver(slurm, tmp_path) as driven, pytest.warns(gp.GavelWarning, match=warned):
        driven.run(rounds=12)
    slurm.fails = None
    assert events(tmp_path, "no_answer")
    assert_sound(slurm)
    assert sum(job.state == "RUNNING" for job in slurm.jobs.values()) == 2
    assert all(job.restarts > 0 or job.state == "RUNNING" for job in slurm.jobs.values())


@pytest.mark.parametrize("at", range(1, 26))
def test_a_driver_killed_at_any_command_is_succeeded_by_the_next(tmp_path: Path, at: int) -> None:
    """Killed before or after any command, the driver loses no job, runs none twice and lets none wait for ever."""
    slurm = cluster_with(5, 2)
    slurm.submit(6, per_job="gpu:1", priority=0)
    with pytest.raises(KilledError), dying_at(slurm, at), driver(slurm, tmp_path) as driven:
        driven.run()
    if at % 3 == 0:  # its state is lost too; the annotations in Slurm must suffice
        (tmp_path / "state.json").unlink(missing_ok=True)
    ran: set[int] = set()
    with driver(slurm, tmp_path) as driven:
        for _ in range(6):
            _, applied = driven.round()
            assert not applied.waiting
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
            assert_sound(slurm)
    assert ran == {1, 2, 3, 4, 5}
    assert slurm.jobs[6].restarts == 0
    assert slurm.jobs[6].priority == 0


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    slurm = cluster()
    with (
        driver(slurm, tmp_path),
        pytest.raises(gp.InputError, match=f"another driver is running.*process {os.getpid()}"),
        driver(slurm, tmp_path),
    ):
        pass
    with driver(slurm, tmp_path):
        pass


def test_a_round_ends_early_when_no_job_runs(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)

    def later(seconds: float) -> None:
        if seconds > slurm.clock.now() - 1 and slurm.jobs[1].state == "RUNNING" and 2 not in slurm.jobs:
            slurm.end(1)
            slurm.submit(2, per_job="gpu:4", comment=BERT)

    slurm.clock.on_sleep = later
    with driver(slurm, tmp_path, round_seconds=3600.0) as driven:
        driven.run(rounds=2)
    first, second = (event["seconds"] for event in events(tmp_path, "round"))
    assert second - first < 120
    assert slurm.jobs[2].state == "RUNNING"


def test_new_nodes_are_used_from_the_next_round_on(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
        slurm.clock.seconds += 100
        decided, _ = driven.round()
    assert len(decided.moves.keep) == 2
    assert list(decided.moves.start.values()) == [{"v100-1": 4}]


def test_planning_and_looking_change_nothing(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    planned = driver(slurm, tmp_path).plan()
    picture = driver(slurm, tmp_path).look()
    assert planned.moves.start == {"1": {"v100-0": 4}}
    assert planned.waiting == {}
    assert picture.standings["1"].role == "managed"
    assert slurm.sent == []
    assert list(tmp_path.iterdir()) == []
    assert picture.snapshot.jobs["1"].phase == "waiting"


def test_texts_of_users_are_checked_before_commands_and_log(tmp_path: Path) -> None:
    slurm = cluster()
    nasty = 'x"; scancel 1\nshutdown \x1b[2J'
    slurm.submit(1, per_job="gpu:2", comment=f"gavel: type={nasty}", name=nasty, admin_comment=f"gavel:submit=1;shared {nasty}")
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert slurm.jobs[1].state == "RUNNING"
    assert all(line.isprintable() and "scancel" not in line for line in slurm.sent)
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert "\x1b" not in log
    assert "\\u001b" not in log
    assert all(json.loads(line) for line in log.splitlines())


def test_a_driver_has_the_options_that_it_is_given_and_measures_the_others(tmp_path: Path) -> None:
    """Also after a restart: what an earlier driver was given does not count, what it has measured does."""
    slurm, options = cluster_with(3, 4), gp.SchedulerOptions(solve_seconds=900)
    with driver(slurm, tmp_path, measures=True, options=options, min_run_seconds=70.0) as driven:
        driven.round()
        assert driven.state is not None
        first = driven.state.scheduler.options
    assert (first.solve_seconds, first.min_run_seconds, first.retry_seconds) == (900.0, 70.0, 5.0)
    assert first.restart_seconds > 0
    with driver(slurm, tmp_path, measures=True, retry_seconds=20.0) as driven:
        driven.look()
        assert driven.state is not None
        second = driven.state.scheduler.options
    assert second == first.changed(solve_seconds=0.0, retry_seconds=20.0)


def test_the_state_of_another_partition_is_refused(tmp_path: Path) -> None:
    slurm = cluster()
    with driver(slurm, tmp_path) as driven:
        driven.round()
    other = gp.SlurmDriver(
        gp.SlurmSettings("free"), gp.ThroughputProfile.builtin("gavel-osdi20"), directory=tmp_path, commands=slurm
    )
    with pytest.raises(gp.InputError, match="is for partition 'gpu', not 'free'"):
        other.plan()


class TestTypesThatTheProfileLacks:
    def test_names_in_another_case_are_matched_and_noted(self, tmp_path: Path) -> None:
        slurm = FakeSlurm(FakeClock(), {"v100-0": ("V100", 4), "k80-0": ("k80", 4)})
        slurm.submit(1, per_job="gpu:V100:4", comment=BERT)
        with driver(slurm, tmp_path) as driven:
            decided, applied = driven.round()
        assert applied.started == ["1"]
        assert decided.picture.state.scheduler.cluster.accelerator_names == ("k80", "v100")
        assert decided.picture.notes == ("GPU type 'V100' is treated as 'v100' of the profile: they differ only in case",)

    def test_no_known_type_is_an_error_before_the_first_round_only(self, tmp_path: Path) -> None:
        strange = FakeSlurm(FakeClock(), {"a": ("v10", 4)})
        with driver(strange, tmp_path / "a") as driven, pytest.raises(gp.UnknownNameError) as error:
            driven.round()
        message = "profile small: does not have GPU type 'v10'; it has v100, k80; --estimate and --learn take speeds from "
        assert str(error.value) == message + "specifications, --map-accelerator OLD=NEW maps a type to a name of the profile"
        slurm = cluster_with(1, 4)
        with driver(slurm, tmp_path / "b") as driven:
            driven.round()
            slurm.nodes = dict.fromkeys(slurm.nodes, ("h100", 4))
            slurm.clock.seconds += 100
            decided, _ = driven.round()
        assert len(decided.picture.notes) == 1
        assert "does not have GPU type 'h100'; it has v100, k80; its nodes are ignored" in decided.picture.notes[0]

    def test_a_state_with_types_missing_in_the_profile_begins_anew(self, tmp_path: Path) -> None:
        slurm = cluster_with(2, 4)
        with driver(slurm, tmp_path) as driven:
            driven.round()
        fewer = gp.ThroughputProfile("small", [each for each in profile().measurements if each.accelerator == "v100"])
        settings = gp.SlurmSettings("gpu")
        slurm.clock.seconds += 100
        with gp.SlurmDriver(settings, fewer, directory=tmp_path, commands=slurm, clock=slurm.clock, round_seconds=100.0) as driven:
            decided, _ = driven.round()
        assert decided.picture.state.scheduler.cluster.accelerator_names == ("v100",)
        assert "GPU types" in events(tmp_path, "cluster")[-1]["why"]


def test_a_round_whose_solve_fails_keeps_jobs_running_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(solver: gp.Solver, problem: gp.AllocationProblem) -> gp.Allocation:  # noqa: ARG001
        raise gp.SolverError("broken on purpose")

    slurm = cluster_with(1, 4)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        held = dict(slurm.jobs[1].held)
        monkeypatch.setattr(gp.Solver, "solve", fail)
        slurm.submit(2, per_job="gpu:4", comment=LSTM)
        slurm.clock.sleep(360)
        decided, applied = driven.round()
        assert (applied.started, dict(slurm.jobs[1].held)) == (["2"], held)
        assert decided.begun.fallback == gp.Fallback("max_min_fairness", "kept")
        text = "1 with the times of its last answer, or equal parts of the free GPUs"
        assert driven.look().notes == (f"Rounds without a proven answer of max_min_fairness: {text}.",)
        assert "broken on purpose" in applied_text(decided, applied)
        assert 'gavel_fallback_rounds_total{policy="max_min_fairness",kind="kept"} 1' in metrics_text(decided, applied, {})
    logged = [each for each in events(tmp_path, "round") if "fallback" in each]
    assert [each["fallback"] for each in logged] == [{"policy": "max_min_fairness", "kind": "kept"}]
    assert_sound(slurm)


def test_status_log_and_metrics_say_which_rounds_exceed_a_limit_on_average(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    limit = gp.MaxGpus(2)
    with driver(slurm, tmp_path, policy=gp.resolve_policy("max_min_fairness", constraints=[limit])) as driven:
        decided, applied = driven.round()
        assert applied.started == ["1"]
        assert driven.look().notes == (f"{limit.text}: exceeded in 1 of 1 rounds; every_round: true forbids it",)
        assert f'gavel_exceeded_rounds_total{{constraint="{limit.text}"}} 1' in metrics_text(decided, applied, {})
    assert [each["exceeded"] for each in events(tmp_path, "round")] == [[limit.text]]


def test_a_job_gives_way_as_time_passes_although_nothing_else_happens(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2, 3):  # two of them run
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    with driver(slurm, tmp_path, policy=gp.resolve_policy("least_attained_service", thresholds=(1000,))) as driven:
        for seconds in range(0, 400, 100):
            driven.round()
            runs = {number for number, each in slurm.jobs.items() if each.state == "RUNNING"}
            assert (3 in runs) == (seconds >= 300), "of 4 GPUs each, three rounds of 100 s are 1,200 GPU-seconds"
            slurm.clock.seconds += 100
