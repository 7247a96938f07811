"""gavel step gives the answers of a session, one process after the other, and says in its exit code what became of the events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.service.sessions import CLUSTER, history, opened, submit
from tests.support.commands import Gavel, enter_folder, runner, written


@pytest.fixture
def gavel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    return runner(capsys, "step", "--state", "state")


def lines(events: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in events)


def test_the_answers_are_those_of_a_session(tmp_path: Path, gavel: Gavel) -> None:
    events = history(0)
    with opened(tmp_path / "other") as session:
        wanted = [{"schema_version": 1, **each} for each in session.apply(events)]
    first = gavel(written("a.ndjson", lines(events[:17])), "-c", CLUSTER)
    rest = gavel(written("b.ndjson", lines(events[17:])))
    assert first.out + rest.out == lines(wanted)
    assert (first.code, rest.code) == tuple(
        2 if "refused" in {each["status"] for each in part} else 0 for part in (wanted[:17], wanted[17:])
    )


def test_lines_that_are_not_json_are_all_named_and_nothing_is_applied(gavel: Gavel) -> None:
    done = gavel(written("e.ndjson", lines([submit(0)]) + '{"id": 1e999}\n\n{"a": 1, "a": 2}\n'), "-c", CLUSTER)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "Error: e.ndjson, line 2: is not valid JSON: number 1e999 is too large",
        "e.ndjson, line 4: is not valid JSON: key 'a' appears twice in one object",
    ]
    assert json.loads(gavel(written("e.ndjson", lines([submit(0)]))).out)["status"] == "applied"


def test_bytes_that_are_not_text_are_refused(tmp_path: Path, gavel: Gavel) -> None:
    (tmp_path / "e.ndjson").write_bytes(json.dumps(submit(0)).encode().replace(b"j0", b"j\xff"))
    assert gavel("e.ndjson", "-c", CLUSTER).err.startswith("Error: e.ndjson: cannot be read: ")
    assert gavel("absent.ndjson", "-c", CLUSTER).err == "Error: absent.ndjson: cannot be read: No such file or directory\n"
    assert not (tmp_path / "state").exists()


def test_what_only_a_new_session_can_have_needs_a_cluster(gavel: Gavel) -> None:
    for options in (["-p", "fifo"], ["--round-seconds", "60"]):
        assert "options of a new session need --cluster" in gavel(written("e", ""), *options).err
    assert "state: has no session; a new one needs a cluster" in gavel(written("e", "")).err
    assert "--extrapolate needs all jobs at the start" in gavel(written("e", ""), "-c", CLUSTER, "--extrapolate").err
    assert gavel("e", "-c", CLUSTER, "-p", "fifo", "--round-seconds", "60").code == 0
    assert gavel("e", "-c", CLUSTER, "-p", "fifo", "--round-seconds", "60").code == 0
    again = gavel("e", "-c", CLUSTER, "-p", "fifo")
    assert again.code == 2
    assert again.err.startswith("Error: state: is that of a session with another options; leave out its options")


def test_a_full_disk_is_no_fault_of_the_events(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, os.strerror(28))

    gavel(written("e", ""), "-c", CLUSTER)
    monkeypatch.setattr(os, "write", full)
    done = gavel(written("e.ndjson", lines([submit(0)])))
    assert done.code == 1
    assert "No space left on device" in json.loads(done.out)["faults"][0]["problem"]
