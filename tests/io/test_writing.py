"""Files that are replaced: whole in every case, by several writers too, and never more readable than they were."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.io.writing import write_atomic


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def modes_while_written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The permissions of the files that are flushed to the disk, filled while a test runs."""
    seen: list[int] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISREG(found):
            seen.append(stat.S_IMODE(found))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return seen


def test_several_threads_replace_one_file_by_whole_contents(tmp_path: Path) -> None:
    path, contents = tmp_path / "state.json", [bytes([65 + i]) * (200_000 * (1 + i)) for i in range(4)]
    path.write_bytes(contents[0])
    stop, torn = threading.Event(), set[tuple[bytes, int]]()

    def read() -> None:
        while not stop.is_set():
            found = path.read_bytes()
            if found not in contents:
                torn.add((found[:1], len(found)))

    def write(content: bytes) -> None:
        for _ in range(25):
            write_atomic(path, content)

    with ThreadPoolExecutor(5) as threads:
        reader, writers = threads.submit(read), [threads.submit(write, each) for each in contents]
        try:
            for each in writers:
                each.result()
        finally:
            stop.set()
        reader.result()
    assert not torn
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_processes_of_the_same_number_do_not_share_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "state.json", Path.replace
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def other_first(temporary: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_atomic(path, b"other")
        assert path.read_bytes() == b"other"
        return replace(temporary, target)

    monkeypatch.setattr(Path, "replace", other_first)
    write_atomic(path, b"mine")
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_permissions_and_is_never_more_readable(tmp_path: Path, kept: int, modes_while_written: list[int]) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    path.chmod(kept)
    write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert mode(path) == kept
    assert modes_while_written == [0o600]


def test_permissions_that_change_while_a_file_is_written_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    monkeypatch.setattr(os, "fsync", lambda _: path.chmod(0o600))
    write_atomic(path, b"new", durable=True)
    assert mode(path) == 0o600


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new.json", b"new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new.json") == 0o640


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: "guessed")
    (tmp_path / ".state.json.guessed.tmp").symlink_to(victim)
    (tmp_path / f".state.json.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(gp.InputError, match="cannot be written: File exists"):
        write_atomic(tmp_path / "state.json", b"new")
    assert victim.read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(gp.InputError, match="No space left"):
        write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
