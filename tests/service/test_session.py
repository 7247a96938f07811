"""A session applies every event once, in order, and is after a kill what it was when it last answered."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.io.snapshots import encode
from gavel_py.service import events as events_module
from gavel_py.service import log as event_log
from gavel_py.service import session as session_module
from gavel_py.service.events import strict_json
from tests.service.sessions import as_changes, changes_in, history, library_rounds, opened, profile, scheduler, submit
from tests.support.examples import CHARACTERS, examples, seeds

ROUND = {"event": "round"}
ROOT = Path(__file__).resolve().parents[2]


def rounds(*names: str) -> list[dict[str, Any]]:
    return [{"id": name, **ROUND} for name in names]


def faults(answer: dict[str, Any]) -> str:
    assert answer["status"] == "refused"
    return "; ".join(str(gp.Fault(**each)) for each in answer["faults"])


DRAWN = [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (2, 3))]


@pytest.mark.parametrize("seed", DRAWN)
def test_rounds_are_those_of_the_library(tmp_path: Path, seed: int) -> None:
    events = history(seed)
    with opened(tmp_path / "state") as session:
        answers = session.apply(events)
    assert changes_in(answers) == [as_changes(each) for each in library_rounds(events)]
    assert {each["status"] for each in answers} == {"applied", "refused"}


@pytest.mark.parametrize("seed", DRAWN)
def test_neither_batches_nor_restarts_change_anything(tmp_path: Path, seed: int) -> None:
    events = history(seed)
    with opened(tmp_path / "whole") as session:
        whole, state = session.apply(events), session.scheduler.to_dict()
    found: list[dict[str, Any]] = []
    for number in range(0, len(events), 3):
        with opened(tmp_path / "single") as session:
            for event in events[number : number + 3]:
                found += session.apply([event])
            session.checkpoint(always=number % 4 == 0)
    assert found == whole
    with opened(tmp_path / "single") as session:
        assert json.dumps(session.scheduler.to_dict()["scheduler"]["jobs"]) == json.dumps(state["scheduler"]["jobs"])
        assert session.last_round == next(
            {name: value for name, value in each.items() if name not in ("id", "status", "version")}
            for each in reversed(whole)
            if "digest" in each
        )


def test_an_event_counts_once_however_often_it_is_sent(tmp_path: Path) -> None:
    events = [submit(0), *rounds("r"), submit(1), submit(1)]
    with opened(tmp_path) as session:
        first = session.apply(events)
        assert [each["status"] for each in first] == ["applied", "applied", "applied", "repeated"]
        assert session.version == 3
    for again in (True, False):
        with opened(tmp_path) as session:
            assert session.apply(events) == [each | {"status": "repeated"} for each in first]
            assert session.version == 3
            session.checkpoint(always=again)


def test_the_id_of_another_event_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        (answer,) = session.apply([submit(0, weight=2)])
    assert answer["code"] == 409
    assert faults(answer) == "event 'submit-0', field id: was used for another event, number 1"


def test_refused_events_change_nothing_and_later_ones_go_on(tmp_path: Path) -> None:
    wrong = [
        (submit(0, num_gpus=0), "job 'j0', field num_gpus: must be at least 0.001 of a GPU, found 0; CPU jobs are not scheduled"),
        ({"id": "a", "event": "complete", "job_id": "nobody"}, "job 'nobody', field job_id: there is no such job in the system"),
        ({"id": "a", "event": "comlete"}, "event 'a', field event: 'comlete' is not known; did you mean 'complete'?"),
        ({"id": "a b", "event": "round"}, "event 'a b', field id: must be 1 to 128 visible ASCII characters, found 'a b'"),
        ({"event": "round"}, "event, field id: is required"),
        ({"id": "a", "event": "round", "now": 3}, "event 'a', field now: is not known; did you mean 'now_seconds'?"),
        ({"id": "a", "event": "round", "now_seconds": "3"}, "event 'a', field now_seconds: must be a number, found '3'"),
        ({"id": "a", "event": "policy", "policy": "os:system"}, "event 'a', field policy: 'os:system' is not a policy here"),
        ({"id": "a", "event": "policy", "policy": "fifo", "options": {"constraints": "x"}}, "constraints cannot be set here"),
        ({"id": "a", "event": "submit", "job": [1]}, "event 'a', field job: "),
        ({"id": "a", "event": ["round"]}, "event 'a', field event: must be one of submit, complete,"),
        (json.loads("[" * 40 + "]" * 40), "event: must be an object, found [[["),
        ({"id": "a", "event": "submit", "job": {"x": json.loads("[" * 40 + "]" * 40)}}, "must be nested at most 32 levels deep"),
        (submit(0, depends_on=["j9"] * 10_001), "must be nested at most 32 levels deep, with 10,000 values in each"),
        ({"id": "a", "event": "round", **dict.fromkeys(map(str, range(10_001)))}, "with 10,000 values in each"),
        (7, "event: must be an object, found 7"),
    ]
    with opened(tmp_path) as session:
        answers = session.apply([submit(9), *(event for event, _ in wrong), *rounds("r")])
        assert session.version == 2
    assert answers[-1]["starts"].keys() == {"j9"}
    for answer, (event, text) in zip(answers[1:-1], wrong, strict=True):
        assert text in faults(answer), event
        assert answer["code"] == 422


def test_a_clock_that_jumps_back_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        _, late, ahead = session.apply([{"id": n, **ROUND, "now_seconds": t} for n, t in (("a", 500), ("b", 499), ("c", 9e9))])
    assert "not before the previous round, which started at 500, found 499" in faults(late)
    assert (ahead["index"], ahead["start_seconds"]) == (1, 9e9)


def test_a_torn_last_line_is_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0), *rounds("r")])
    (log,) = tmp_path.glob("events-*")
    whole = log.read_bytes()
    for torn in (b'{"version":3,"event":{"id"', whole.splitlines()[-1].replace(b'"version":2', b'"version":3')):
        log.write_bytes(whole + torn)
        with opened(tmp_path) as session:
            assert session.version == 2
            assert log.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda line: line.replace('"digest": "', '"digest": "0'),
            "line 2: round 0 would now be decided otherwise; use the version",
        ),
        (lambda line: line.replace('"version":2', '"version":3'), "line 2: is damaged: it should be event 2"),
        (lambda line: line.replace('"event":', '"event"'), "line 2: is damaged: "),
        (lambda line: line.replace('"round"', '"drain","node":"x"'), "line 2: was applied before, and is refused now: "),
    ],
)
def test_a_log_that_does_not_lead_to_the_same_rounds_is_refused(tmp_path: Path, change: Any, text: str) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0), *rounds("r")])
    (log,) = tmp_path.glob("events-*")
    first, second = log.read_text().splitlines()
    log.write_text(f"{first}\n{change(second)}\n")
    with pytest.raises(gp.GavelError, match=text):
        opened(tmp_path)


def test_a_full_disk_refuses_events_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        write = os.write

        def fails_halfway(file: int, data: bytes) -> int:
            if len(data) > 100:
                return write(file, data[:50])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fails_halfway)
            answers = session.apply([submit(0), submit(1), *rounds("r")])
        assert [each["status"] for each in answers] == ["repeated", "refused", "refused"]
        assert answers[1]["code"] == 507
        assert "cannot be written: No space left on device" in faults(answers[1])
        assert session.version == 1
        session.apply([submit(1)])
    with opened(tmp_path) as session:
        assert [job.job_id for job in session.scheduler.jobs] == ["j0", "j1"]


def test_a_state_that_is_not_whole_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            patch.setattr(session_module.SNAPSHOT.__class__, "read", lambda *_: full(0, b""))
            with pytest.raises(OSError, match="No space left"):
                session.apply([submit(1)])
        session.checkpoint(always=True)
    with opened(tmp_path) as session:
        assert [job.job_id for job in session.scheduler.jobs] == ["j0"]
        assert session.apply([submit(1)])[0]["status"] == "applied"


def full(_file: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_file_that_cannot_be_begun_is_begun_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LARGEST_FILE", 1)
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        with monkeypatch.context() as patch:
            patch.setattr(event_log.SessionLog, "open", lambda self, _: (self.close(), full(0, b"")))
            session.checkpoint(always=True)
        (refused,) = session.apply([submit(1)])
        assert (refused["status"], refused["code"]) == ("refused", 507)
        (applied,) = session.apply([submit(1)])
        assert (applied["status"], applied["version"]) == ("applied", 2)


def test_a_snapshot_that_fails_stops_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        monkeypatch.setattr(gp.RoundScheduler, "to_dict", lambda _: 1 / 0)
        session.checkpoint(always=True)
        assert session.apply([submit(1)])[0]["status"] == "applied"


def test_values_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        for value, text in ((np.int64(2), "int64 is not JSON serializable"), (math.inf, "Out of range float values")):
            ok, wrong = session.apply([submit(0), submit(1, num_gpus=value) | {"id": "x"}])
            assert ok["version"] == 1
            assert text in faults(wrong) or "must be" in faults(wrong)
        assert session.version == 1


def test_an_id_that_is_no_longer_known_can_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "KEPT_IDS", 3)
    with opened(tmp_path) as session:
        session.apply(rounds("a", "b"))
        session.checkpoint(always=True)
        for name in "cda":
            last = session.apply(rounds(name))
    with opened(tmp_path) as session:
        session.checkpoint(always=True)
    with opened(tmp_path) as session:
        again = session.apply(rounds("c", "d", "a"))
        assert [(each["status"], each["version"], each["index"]) for each in again] == [("repeated", n, n - 1) for n in (3, 4, 5)]
        assert again[-1]["digest"] == last[0]["digest"]


@pytest.mark.parametrize("turns", [18, pytest.param(240, marks=pytest.mark.deep)])
def test_a_session_does_not_grow_with_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """Jobs come and leave in each way that there is; the rounds are those of a scheduler that forgets none."""
    monkeypatch.setattr(events_module, "KEPT_JOBS", 3)
    monkeypatch.setattr(session_module, "KEPT_IDS", 20)
    monkeypatch.setattr(session_module, "LARGEST_FILE", 2000)
    ways, fields = ["complete", "cancel", "job_failed"], {"num_gpus": 1, "max_retries": 0}
    sent, answers, sizes = list[dict[str, Any]](), list[dict[str, Any]](), list[int]()
    session = opened(tmp_path)
    for turn in range(turns):
        jobs = [{"job_id": f"p{turn}", "tenant": "t"}, {"job_id": f"c{turn}", "depends_on": [f"p{turn}"], "workflow": f"w{turn}"}]
        events = [submit(turn, **fields, **each) | {"id": str(each["job_id"])} for each in jobs]
        if turn >= 2:
            events.append({"id": f"left-{turn}", "event": ways[turn % 3], "job_id": f"p{turn - 2}"})
        if turn >= 2 and turn % 3 == 0:  # else the job that waits for it can never start
            events.append({"id": f"next-{turn}", "event": "complete", "job_id": f"c{turn - 2}"})
        events += rounds(f"r{turn}")
        sent += events
        answers += session.apply(events)
        session.checkpoint()
        if (turn + 1) % (turns // 3) == 0:
            session.close()
            sizes.append((tmp_path / "snapshot.json").stat().st_size)
            session = opened(tmp_path)
    assert {each["status"] for each in answers} == {"applied"}
    assert changes_in(answers) == [as_changes(each) for each in library_rounds(sent)]
    assert sizes[-1] < 1.1 * sizes[0]
    assert len(session.scheduler.forgettable) == 3
    assert session.apply(sent[-20:]) == [each | {"status": "repeated"} for each in answers[-20:]]
    early, late = ({"id": "x", "event": "cancel", "job_id": f"p{turn}"} for turn in (0, turns - 3))
    assert "there is no such job in the system" in faults(session.apply([early])[0])
    assert "is no longer in the system: it failed for good" in faults(session.apply([late])[0])
    assert session.apply([submit(0, job_id="p0")])[0]["status"] == "applied"
    session.close()


def test_repeated_events_are_looked_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as session:
        first = session.apply([submit(n) for n in range(20)])
    reads: list[int] = []
    lines_after = event_log.SessionLog.lines_after
    monkeypatch.setattr(event_log.SessionLog, "lines_after", lambda self, n: reads.append(n) or lines_after(self, n))
    with opened(tmp_path) as session:
        again = session.apply([submit(n) for n in range(20)])
    assert again == [each | {"status": "repeated"} for each in first]
    assert reads == [0]


def test_a_fault_of_the_program_leaves_the_state_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_done(self: gp.RoundScheduler, job_id: str) -> None:  # noqa: ARG001
        self.cancel("j1")
        raise ZeroDivisionError

    with opened(tmp_path) as session:
        session.apply([submit(0)])
        monkeypatch.setattr(gp.RoundScheduler, "complete", half_done)
        answers = session.apply([submit(1), {"id": "c", "event": "complete", "job_id": "j0"}, *rounds("r")])
        assert [each["status"] for each in answers] == ["applied", "refused", "applied"]
        assert "because of a fault of gavel-py: ZeroDivisionError; the state is unchanged" in faults(answers[1])
        assert sorted(answers[2]["starts"]) == ["j0", "j1"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(gp.InputError, match=rf"is in use by another process \({os.getpid()}\)"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_folder_is_private(tmp_path: Path) -> None:
    with opened(tmp_path / "new") as session:
        session.apply([submit(0)])
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "new").chmod(0o750)
    with pytest.raises(gp.InputError, match="may be read by other users \\(mode 750\\); chmod 700 makes it private"):
        opened(tmp_path / "new")


def test_a_session_is_made_once(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="has no session; a new one needs a cluster"):
        gp.Session(tmp_path, profile())
    with opened(tmp_path) as session:
        session.apply([{"id": "p", "event": "policy", "policy": "fifo"}])
    with opened(tmp_path) as session:  # with the options as before, although the policy has changed since
        assert session.scheduler.policy.name == "fifo"
    other = gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), profile(), "fifo", round_seconds=60)
    with pytest.raises(gp.InputError) as refused:
        gp.Session(tmp_path, profile(), lambda: other)
    assert [fault.problem.partition(";")[0] for fault in refused.value.faults] == [
        f"is that of a session with another {part}" for part in ("cluster", "policy", "options")
    ]


def test_policies_that_a_snapshot_cannot_name_are_refused(tmp_path: Path) -> None:
    class Own(gp.policy_class("fifo")):  # type: ignore[misc]
        pass

    with pytest.raises(gp.InputError, match="is not part of gavel-py, so that a session could not restore it"):
        gp.Session(tmp_path, profile(), lambda: gp.RoundScheduler(gp.Cluster.from_inline("v100:1"), profile(), Own()))


def test_at_most_five_rounds_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as session:
        session.apply([submit(0)])
        for number in range(13):
            session.apply(rounds(f"r{number}"))
            session.checkpoint()
        last = session.last_round
    played: list[int] = []
    next_round = gp.RoundScheduler.next_round
    monkeypatch.setattr(gp.RoundScheduler, "next_round", lambda self, now: played.append(1) or next_round(self, now))
    with opened(tmp_path) as session:
        assert session.last_round == last
    assert len(played) == 3


def test_equal_rows_are_saved_once(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as session:
        session.apply([*(submit(n, num_gpus=1) for n in range(400)), *rounds("a", "b", "c")])
        session.checkpoint(always=True)
        state = session.scheduler.to_dict()
        plain = json.loads(json.dumps(state))
        small = session_module.packed(plain)
        assert session_module.unpacked(small) == plain
        assert small != plain
        assert (tmp_path / "a" / "snapshot.json").stat().st_size < 0.6 * len(json.dumps(state))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        wanted = session.apply([*rounds("d"), {"id": "c", "event": "complete", "job_id": "j0"}, *rounds("e")])
    with opened(tmp_path / "b") as session:
        assert session.apply([*rounds("d"), {"id": "c", "event": "complete", "job_id": "j0"}, *rounds("e")]) == wanted


@given(st.integers(1, 4), st.integers(1, 300), st.sampled_from(["f8", "i8", "?", "f4"]), st.integers(0, 2**32))
def test_packed_arrays_are_unpacked_bit_by_bit(columns: int, count: int, kind: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    pool = np.array([0.0, -0.0, 1.5, 2.0**60, math.nan, math.inf])
    with np.errstate(invalid="ignore"):
        array = pool[chance.integers(0, 6, (chance.integers(1, 30), columns))][chance.integers(0, 1, count)].astype(kind)
        array[: count // 3] = pool[chance.integers(0, 6, (count // 3, columns))].astype(kind)
    plain = {"x": [encode(array)], "y": [1, None, {"rows": 3}], "z": {"rows": [1, 2]}}
    assert session_module.unpacked(json.loads(json.dumps(session_module.packed(plain)))) == plain


def test_the_log_is_kept_in_a_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LARGEST_FILE", 1)
    monkeypatch.setattr(event_log, "RECENT_BYTES", 200)
    with opened(tmp_path) as session:
        for number in range(9):
            session.apply(rounds(f"q{number}", f"r{number}"))
            session.checkpoint(always=True)
        versions = [json.loads(line)["version"] for line in session.events_after(12, 4)]
        assert versions == [13, 14, 15, 16]
        assert json.loads(session.events_after(0, 1)[0])["version"] == 13  # older files are gone
        old, new = session.apply([*rounds("r0"), *rounds("r8")])
        assert (old["code"], session.version) == (410, 18)
        assert faults(old) == "event 'r0', field id: was applied as number 2, and its answer is no longer kept; nothing has changed"
        assert new["index"] == 17
    assert len(list(tmp_path.glob("events-*"))) == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN}', "number NaN is not one of JSON"),
        ('{"a": -Infinity}', "number -Infinity is not one of JSON"),
        ('{"a": 1e999}', "number 1e999 is too large"),
        ('{"a": 1, "a": 2}', "key 'a' appears twice in one object"),
        ("1" * 5000, "it has a number with too many digits"),
        ('{"a":\n x}', "Expecting value (line 2, column 2)"),
        ("[" * 100_000, "must be nested at most 32 levels deep"),
    ],
)
def test_json_is_read_strictly(text: str, problem: str) -> None:
    with pytest.raises(gp.InputError) as refused:
        strict_json("body", text)
    assert problem in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(CHARACTERS, max_size=5), lambda x: st.lists(x, max_size=2)
)
FIELDS = st.sampled_from(["id", "event", "job", "job_id", "steps_done", "node", "policy", "fields", "now_seconds", "options", "x"])
KINDS = st.sampled_from(["submit", "complete", "report", "update", "node_down", "policy", "round", "job_failed"])
JOBS = st.dictionaries(st.sampled_from(sorted(gp.Job.model_fields)) | st.text(CHARACTERS, max_size=3), VALUES, max_size=4)


@settings(max_examples=examples(100))
@given(st.data())
def test_whatever_is_sent_is_answered(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.dictionaries(FIELDS, VALUES | JOBS, max_size=5) | VALUES, max_size=4))
    sent = [{"event": data.draw(KINDS), "id": str(n), **each} if isinstance(each, dict) else each for n, each in enumerate(drawn)]
    with opened(tmp_path_factory.mktemp("state")) as session:
        answers = session.apply(sent)
        assert session.apply(rounds("r"))[0]["status"] == "applied"
    assert [each["status"] for each in answers if each.get("code") not in (None, 409, 422)] == []


# Kills

PROGRAM = """
import json, sys
from pathlib import Path
from tests.service.sessions import opened
session = opened(Path(sys.argv[1]))
for line in sys.stdin:
    print(json.dumps(session.apply([json.loads(line)])[0]), flush=True)
    session.checkpoint()
"""


@pytest.mark.deep
@pytest.mark.parametrize("seed", seeds(1))
def test_a_kill_at_any_time_loses_no_answered_event(tmp_path: Path, seed: int) -> None:
    """Each process is killed at a random time, and the next one gets the events that had no answer again."""
    events, answers = history(seed, 40), list[dict[str, Any]]()
    kills = 0
    while len(answers) < len(events):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stop = len(answers) + (seed + kills) % 9 + 1
        for event in events[len(answers) : stop]:
            process.stdin.write(json.dumps(event) + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline()))
        if stop < len(events):  # one more is on its way
            process.stdin.write(json.dumps(events[stop]) + "\n")
            process.stdin.flush()
            time.sleep((seed * 7 + kills * 3) % 40 / 1000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    undisturbed = gp.Session(tmp_path / "other", profile(), scheduler).apply(events)
    assert [each | {"status": each["status"].replace("repeated", "applied")} for each in answers] == undisturbed
