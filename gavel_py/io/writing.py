"""Writing of files: early checks, atomic replacement, and clear messages for file and SQLite errors.

What takes long to compute is checked first: folder, suffix and libraries (`check_writable`, `check_plot`, `check_report`).
"""

from __future__ import annotations

import importlib
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel_py.errors import Fault, InputError, faults_from, refuse

FORMATS = {".svg": "svg", ".png": "png"}
PAGES = (".html", ".htm")

NEW_FILE = 0o666
"""Permissions of a new file, from which the system takes those of the umask."""


def check_plot(path: str | Path) -> None:
    """Check, before a chart is computed, that it can be drawn and written.

    Args:
        path: the file.

    Raises:
        InputError: for a suffix other than .svg and .png, a folder that does not exist or is not writable, and if matplotlib is not
            installed.
    """
    refuse(str(path), (Path(path).suffix.lower() not in FORMATS, "", "must end in .svg or .png, the formats of pictures"))
    check_writable(path)
    check_libraries("pictures", "plot", "matplotlib")


def check_report(path: str | Path) -> None:
    """Check, before a report is computed, that it can be written.

    Args:
        path: the file.

    Raises:
        InputError: for a suffix other than .html and .htm, a folder that does not exist or is not writable, and if matplotlib or
            jinja2 is not installed.
    """
    is_page = Path(path).suffix.lower() in PAGES or _is_stream(Path(path))
    refuse(str(path), (not is_page, "", "must end in .html, the format of reports"))
    check_writable(path)
    check_libraries("reports", "plot", "matplotlib", "jinja2")


def check_writable(path: str | Path, *, folder: bool = False) -> None:
    """Check, before something is computed, that it can be written.

    Args:
        path: the file, or the folder, which may be new if its parent exists.
        folder: whether it is a folder.

    Raises:
        InputError: for a folder that does not exist or is not writable, and for a file in place of a folder or the reverse.
    """
    place = Path(path, "file") if folder and Path(path).is_dir() else Path(path)
    refuse(str(path), (folder and place == Path(path) and place.exists(), "", "is a file, but must be a folder"))
    folder_name, has_folder = repr(str(place.parent)), place.parent.is_dir()
    is_closed = has_folder and not place.is_dir() and not _is_stream(place) and not os.access(place.parent, os.W_OK)
    refuse(
        str(place),
        (not has_folder, "", f"cannot be written: there is no folder {folder_name}"),
        (place.is_dir(), "", "cannot be written: it is a folder"),
        (is_closed, "", f"cannot be written: no permission to write to the folder {folder_name}"),
    )


def _is_stream(place: Path) -> bool:
    """Return True for a pipe or a device, which needs no writable folder."""
    return place.exists() and not place.is_file() and not place.is_dir()


def check_libraries(what: str, extra: str, *names: str) -> None:
    """Raise `InputError` if a module that `what` requires cannot be imported; extra: the extra of gavel-py that installs it."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            package = name.partition(".")[0]
            raise InputError(f"{what} need {package} ({error}); install it with: pip install 'gavel-py[{extra}]'") from None


def write_atomic(path: str | Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file through a temporary file in the same folder; after a failure, it still has its old content.

    A symbolic link is followed. Several threads and processes may write the same file: the last one counts. A process that is
    killed may leave its temporary file. durable: also wait until the content is on the disk, so that it survives a loss of power.
    Raises `InputError`.
    """
    with faults_from(str(path), "cannot be written", OSError):
        if Path(path).exists() and not Path(path).is_file():
            Path(path).write_bytes(content)  # a pipe or a device; realpath of /dev/stdout may not exist
            return
        place = Path(os.path.realpath(path))
        mode = _permissions(place)
        # The new content of a file that exists is readable for no one else before it has the permissions of the file.
        temporary, descriptor = _new_beside(place, NEW_FILE if mode is None else stat.S_IRUSR | stat.S_IWUSR)
        try:
            _write(descriptor, content, durable)
            mode = _permissions(place, mode)  # they may have been changed meanwhile
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(place.parent)


def _permissions(place: Path, otherwise: int | None = None) -> int | None:
    """Return the permissions of a file; if there is none, `otherwise`."""
    try:
        return stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        return otherwise


def _new_beside(place: Path, mode: int) -> tuple[Path, int]:
    """Create a temporary file in the same folder, which no other thread or process uses, and return it and its descriptor."""
    temporary = place.with_name(f".{place.name}.{secrets.token_urlsafe(6)}.tmp")
    # O_EXCL follows no link. On Windows, O_BINARY keeps line ends.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return temporary, os.open(temporary, flags, mode)


def _write(descriptor: int, content: bytes, durable: bool) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Write the folder entry to the disk; systems that cannot open folders do not need or allow it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


BUSY_SECONDS = 30.0
"""How long to wait for another process that holds the lock of a database."""

WORDING = {
    sqlite3.SQLITE_BUSY: "has been locked by another process for more than {seconds:g} s",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it is a file in a directory that you may write to",
    sqlite3.SQLITE_CORRUPT: "is damaged: {error}",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written ({error}); is the disk full?",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database",
    sqlite3.SQLITE_READONLY: "cannot be written: the file or its directory is read-only",
}


@contextmanager
def file_errors_as_faults(where: str, busy_seconds: float = BUSY_SECONDS) -> Iterator[None]:
    """Raise errors of SQLite and of files within the block as `InputError`.

    where: the name of the file in messages; busy_seconds: the time after which SQLite gave up waiting for another process.
    """
    try:
        with faults_from(where, "cannot be used", OSError):
            yield
    except sqlite3.Error as error:
        primary_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the other bytes are details
        problem = WORDING.get(primary_code, "failed: {error}").format(error=error, seconds=busy_seconds)
        raise InputError(Fault(where, "", problem)) from None
