"""The log of a session on disk: files of one event a line, synced before an event is answered, and cut where a line is torn."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, faults_from, refuse

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600

LARGEST_FILE = 32 << 20
"""Size in bytes from which a snapshot begins a new file."""

KEPT_FILES = 4
"""Number of log files that are kept, the newest ones; what older ones had is only in the snapshot."""

RECENT_BYTES = 8 << 20
"""Size of the newest lines, which are kept in memory for callers that follow the log."""

sync = getattr(os, "fdatasync", os.fsync)


def claim_folder(folder: Path) -> int:
    """Make a folder that only its owner may read, lock it for this process, and return the lock, open until the process ends.

    Raises `InputError` for a folder that others may read, and one that another process uses.
    """
    with faults_from(str(folder), "cannot be used", OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        mode = stat.S_IMODE(folder.stat().st_mode)
        refuse(str(folder), (mode & 0o077, "", f"may be read by other users (mode {mode:o}); chmod 700 makes it private"))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            raise InputError(Fault(str(folder), "", f"is in use by another process ({pid}); one at a time may use it")) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock


class SessionLog:
    """Appends lines to the newest of several files, each named by the version of its first event.

    A line is `{"version":N,"event":{...},"answer":{...}}`. Either all lines of a call are in the file, or none.

    Attributes:
        name: Name of the file to which lines are appended.
        size: Its size in bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name, self.size = folder, "", 0
        self._file = -1
        self._recent, self._recent_bytes = deque[bytes](), 0

    def open(self, name: str) -> None:
        """Append to this file from now on, and delete the files that are too old."""
        self.close()
        path = self.folder / name
        with faults_from(str(path), "cannot be opened", OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
            self.name, self.size = name, os.fstat(self._file).st_size
            for old in self._files()[:-KEPT_FILES]:
                old.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines and wait until they are on the disk. Raises `InputError`; then none of them is in the file."""
        content = b"".join(lines)
        with faults_from(str(self.folder / self.name), "cannot be written", OSError):
            try:
                written = 0
                while written < len(content):
                    written += os.write(self._file, content[written:])
                sync(self._file)
            except OSError:
                os.ftruncate(self._file, self.size)
                raise
        self.size += len(content)
        self._recent.extend(lines)
        self._recent_bytes += len(content)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popleft())

    def resume(self, name: str, offset: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Open a file, cut a torn last line, and yield ("file, line n", entry) of the lines from an offset on."""
        self.open(name)
        self._recent.clear()  # which may lack lines that are in the file
        self._recent_bytes = 0
        path = self.folder / name
        with faults_from(str(path), "cannot be read", OSError):
            refuse(str(path), (self.size < offset, "", f"is damaged: it has {self.size} bytes, and the snapshot has seen {offset}"))
            content = path.read_bytes()
            self.size = max(offset, content.rfind(b"\n") + 1)
            os.ftruncate(self._file, self.size)
        first = content.count(b"\n", 0, offset) + 1
        for number, line in enumerate(content[offset : self.size].splitlines(), first):
            with faults_from(f"{path}, line {number}", "is damaged", ValueError):
                entry = json.loads(line)
            yield f"{path}, line {number}", entry

    def lines_after(self, version: int) -> Iterator[bytes]:
        """Yield the lines of the events after this version, as far as they are kept."""
        if self._recent and (skipped := version + 1 - version_of(self._recent[0])) >= 0:
            yield from islice(self._recent, skipped, None)
            return
        files = self._files()
        firsts = [_first_version(path) for path in files]
        for path, following in zip(files, [*firsts[1:], None], strict=True):
            if following is None or following > version + 1:
                with faults_from(str(path), "cannot be read", OSError), open(path, "rb") as file:
                    yield from (line for line in file if line.endswith(b"\n") and version_of(line) > version)

    def answers(self, versions: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return {version: answer} of the events of these versions, as far as they are kept; the log is read once."""
        wanted, found = set(versions), dict[int, dict[str, Any]]()
        for line in self.lines_after(min(wanted) - 1) if wanted else ():
            if (version := version_of(line)) in wanted:
                found[version] = json.loads(line)["answer"]
                if len(found) == len(wanted):
                    break
        return found

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("events-*.ndjson"))


def file_name(first_version: int) -> str:
    """Return the name of the file that begins with the event of this version; names sort like versions."""
    return f"events-{first_version:015d}.ndjson"


def _first_version(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def version_of(line: bytes) -> int:
    """Return the version of a line, which is its first number."""
    return int(line[len(b'{"version":') :].partition(b",")[0])
