"""One driver at a time: a lock on a file that the system takes back when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["only_one"]


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Within this, nobody else is. Raises `InputError` if another process has the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        hint = "the state needs a directory that this account may write to (--state)"
        raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}; {hint}")) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            text = f"another driver is at work with this state (process {holder or 'unknown'}); there must be only one"
            raise InputError(Fault(str(path), "", text)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
