"""What SQLite's errors mean in the user's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from gavel_py.errors import Fault, InputError

__all__ = ["BUSY_SECONDS", "clear_errors"]

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
def clear_errors(where: str, busy_seconds: float = BUSY_SECONDS) -> Iterator[None]:
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
