"""Snapshots: a state as plain data, written to a versioned file with a checksum, from which exactly the same state is read back.

`as_data` and `from_data` convert arrays, tuples and containers of them; `write_state` and `read_state` handle the file, which is
either as it was before or complete.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.io.writing import write_whole

PLAIN = bool | int | float | str | None


def as_data(value: Any) -> Any:
    """Return an array, a tuple, list or mapping of text to such values, a number or a text as what JSON can hold."""
    if isinstance(value, np.ndarray):
        return {"array": value.ravel().tolist(), "shape": list(value.shape), "dtype": value.dtype.str}
    if isinstance(value, tuple):
        return {"tuple": [as_data(each) for each in value]}
    if isinstance(value, list):
        return [as_data(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[as_data(name), as_data(each)] for name, each in value.items()]}
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, PLAIN):
        raise TypeError(f"cannot be written to a file: {value!r}")
    return value


def from_data(data: Any) -> Any:
    """Return the value that `as_data` described."""
    if isinstance(data, list):
        return [from_data(each) for each in data]
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return np.array(data["array"], dtype=np.dtype(data["dtype"])).reshape(data["shape"])
    if "tuple" in data:
        return tuple(from_data(each) for each in data["tuple"])
    return {from_data(name): from_data(each) for name, each in data["dict"]}


class Format(NamedTuple):
    """What a file is the state of: its mark, the version that is written and the newest that is read, and who writes it."""

    format: str
    version: int
    what: str


SCHEDULER = Format("gavel-py scheduler", 2, "the state of a scheduler, as RoundScheduler.save writes it")


def write_state(path: str | Path, state: dict[str, Any], kind: Format = SCHEDULER) -> None:
    """Write `state` to the file, which holds what it held before until all of it is on the disk. Raises `InputError`."""
    text = json.dumps(state, separators=(",", ":"))
    head = json.dumps({"format": kind.format, "version": kind.version, "sha256": _digest(text)}, separators=(",", ":"))
    write_whole(path, f'{head[:-1]},"state":{text}}}'.encode(), durable=True)


def read_state(path: str | Path, kind: Format = SCHEDULER) -> dict[str, Any]:
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
