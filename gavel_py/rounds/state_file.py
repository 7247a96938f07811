"""The state of a scheduler as a file: checked, versioned, and either as it was or whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gavel_py import reading
from gavel_py.errors import Fault, InputError
from gavel_py.writing import write_whole

__all__ = ["read_state", "write_state"]

FORMAT = "gavel-py scheduler"
VERSION = 1


def write_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write `state` to the file, which holds what it held before until all of it is on the disk. Raises `InputError`."""
    document = {"format": FORMAT, "version": VERSION, "sha256": _checksum(state), "state": state}
    content = json.dumps(document, separators=(",", ":")).encode()
    write_whole(path, content, durable=True)


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
