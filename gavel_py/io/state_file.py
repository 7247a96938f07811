"""A state as a file: checked, versioned, and either as it was or whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.io.writing import write_whole

__all__ = ["SCHEDULER", "Kind", "read_state", "write_state"]


class Kind(NamedTuple):
    """What a file is the state of: its mark, the version that is written and the newest that is read, and who writes it."""

    format: str
    version: int
    what: str


SCHEDULER = Kind("gavel-py scheduler", 2, "the state of a scheduler, as RoundScheduler.save writes it")


def write_state(path: str | Path, state: dict[str, Any], kind: Kind = SCHEDULER) -> None:
    """Write `state` to the file, which holds what it held before until all of it is on the disk. Raises `InputError`."""
    text = json.dumps(state, separators=(",", ":"))
    head = json.dumps({"format": kind.format, "version": kind.version, "sha256": _digest(text)}, separators=(",", ":"))
    write_whole(path, f'{head[:-1]},"state":{text}}}'.encode(), durable=True)


def read_state(path: str | Path, kind: Kind = SCHEDULER) -> dict[str, Any]:
    """Return what `write_state` wrote. Raises `InputError` for a file that is damaged, foreign or of a newer version."""
    document = reading.json_document(path)
    if not isinstance(document, dict) or document.get("format") != kind.format:
        raise _refused(path, f"is not {kind.what}")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise _refused(path, f"is damaged: there is no version {version!r}")
    if version > kind.version:
        newest = f"reads up to version {kind.version}"
        raise _refused(path, f"has version {version}, and this gavel-py {newest}: a newer one has written it")
    state = document.get("state")
    # Numbers are written so that the same text comes of them when they have been read.
    if not isinstance(state, dict) or document.get("sha256") != _digest(json.dumps(state, separators=(",", ":"))):
        raise _refused(path, "is damaged or was changed by hand: its content does not fit its checksum")
    return state


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _refused(path: str | Path, problem: str) -> InputError:
    return InputError(Fault(str(path), "", problem))
