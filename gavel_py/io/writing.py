"""Writing a file whole or not at all: beside its place, and put there in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["write_whole"]


def write_whole(path: str | Path, content: bytes, *, durable: bool = False) -> None:
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
