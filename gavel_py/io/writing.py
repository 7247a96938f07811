"""Writing files: checks before the work that fills them, atomic replacement, and SQLite's errors in the user's words.

Pictures and reports take long to compute, so the checks of suffix, folder and libraries come first (`check_plot`, `check_report`).
`write_whole` writes to a temporary file in the same folder and renames it, so that a file is written whole or not at all.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel_py.errors import Fault, InputError

FORMATS = {".svg": "svg", ".png": "png"}

PAGES = (".html", ".htm")


def check_plot(path: str | Path) -> None:
    """Say beforehand whether a picture can be made and written to `path`, which takes less time than what it is to show.

    Raises `InputError` for another ending than .svg or .png, a folder that is not there or may not be written to, and where
    matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(Fault(str(path), "", "a picture is drawn as .svg or .png; give the file one of these endings"))
    check_writable(Path(path))
    _check_libraries("pictures", ["matplotlib"])


def check_report(path: str | Path) -> None:
    """Say beforehand whether a report can be made and written to `path`.

    Raises `InputError` for another ending than .html, a folder that is not there or may not be written to, and where matplotlib or
    jinja2 is not installed.
    """
    if Path(path).suffix.lower() not in PAGES and not _is_stream(Path(path)):
        raise InputError(Fault(str(path), "", "a report is written as .html; give the file this ending"))
    check_writable(Path(path))
    _check_libraries("reports", ["matplotlib", "jinja2"])


def check_writable_folder(path: str | Path) -> None:
    """Raise `InputError` unless files can be written into this folder, which is made if its own folder is there."""
    place = Path(path)
    if place.exists() and not place.is_dir():
        raise InputError(Fault(str(path), "", "is a file, where a folder is to be"))
    check_writable(place / "file" if place.is_dir() else place)


def check_writable(place: Path) -> None:
    """Raise `InputError` unless a file can be put there: a folder that is not there, or may not be written to, holds none."""
    if not place.parent.is_dir():
        raise InputError(Fault(str(place), "", f"cannot be written: there is no folder {str(place.parent)!r}"))
    if place.is_dir():
        raise InputError(Fault(str(place), "", "cannot be written: it is a folder"))
    if not _is_stream(place) and not os.access(place.parent, os.W_OK):
        raise InputError(Fault(str(place), "", f"cannot be written: nothing may be put into the folder {str(place.parent)!r}"))


def _is_stream(place: Path) -> bool:
    """A pipe or a device, into which no folder puts anything."""
    return place.exists() and not place.is_file() and not place.is_dir()


def _check_libraries(what: str, names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"{what} need {name} ({error}); install it with: pip install 'gavel-py[plot]'") from None


def write_atomic(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Write `content` to the file, which holds what it held before until all of it is there; a link stays a link.

    durable: not before it is on the disk, so that a machine that loses its power loses neither. Raises `InputError`.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():
            Path(path).write_bytes(content)  # a pipe or a device; /dev/stdout leads to one that has no path of its own
            return
        place = Path(os.path.realpath(path))
        beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            _write(beside, content, durable)
            if place.exists():
                beside.chmod(stat.S_IMODE(place.stat().st_mode))  # who may read it is not ours to change
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(place.parent)
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}")) from None


def _write(path: Path, content: bytes, durable: bool) -> None:
    with open(path, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk too; some systems cannot, and have it there already or never."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""

WORDING = {
    sqlite3.SQLITE_BUSY: "another process has kept it locked for more than {seconds:g} s",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it is a file in a directory that you may write to",
    sqlite3.SQLITE_CORRUPT: "is damaged: {error}",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written ({error}); is the disk full?",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database",
    sqlite3.SQLITE_READONLY: "cannot be written: the file or its directory is read-only",
}


@contextmanager
def file_errors_as_faults(where: str, busy_seconds: float = BUSY_SECONDS) -> Iterator[None]:
    """Within this, what goes wrong with a file is an `InputError`; where: what the user calls the file; busy_seconds: how long
    another process was waited for.
    """
    try:
        yield
    except sqlite3.Error as error:
        # The lowest byte is the error's kind, the rest its details.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        problem = WORDING.get(kind, "failed: {error}").format(error=error, seconds=busy_seconds)
        raise InputError(Fault(where, "", problem)) from None
    except OSError as error:
        raise InputError(Fault(where, "", f"cannot be used: {error.strerror or error}")) from None
