"""A file that is either as it was or whole: written beside its place, checked, and put there in one step."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from gavel_py import reading
from gavel_py.errors import Fault, InputError

__all__ = ["read_state", "write_state"]

FORMAT = "gavel-py scheduler"
VERSION = 1


def write_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write `state` to the file, which holds what it held before until all of it is on the disk. Raises `InputError`."""
    document = {"format": FORMAT, "version": VERSION, "sha256": _checksum(state), "state": state}
    content = json.dumps(document, separators=(",", ":")).encode()
    place = Path(os.path.realpath(path))
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if place.exists():
                beside.chmod(stat.S_IMODE(place.stat().st_mode))  # who may read it is not ours to change
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(place.parent)
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}")) from None


def read_state(path: str | Path) -> dict[str, Any]:
    """Return what `write_state` wrote. Raises `InputError` for a file that is damaged, foreign or of a newer version."""
    document = reading.json_document(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refused(path, "is not the state of a scheduler, as RoundScheduler.save writes it")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise _refused(path, f"is damaged: there is no version {version!r}")
    if version > VERSION:
        raise _refused(path, f"has version {version}, and this gavel-py reads up to version {VERSION}: a newer one has written it")
    state = document.get("state")
    if not isinstance(state, dict) or document.get("sha256") != _checksum(state):
        raise _refused(path, "is damaged or was changed by hand: its content does not fit its checksum")
    return state


def _checksum(state: dict[str, Any]) -> str:
    # Numbers are written so that the same text comes of them when they have been read.
    return hashlib.sha256(json.dumps(state, separators=(",", ":")).encode()).hexdigest()


def _refused(path: str | Path, problem: str) -> InputError:
    return InputError(Fault(str(path), "", problem))


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
