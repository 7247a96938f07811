"""Snapshots: versioned files of plain data with a checksum, from which exactly the same state is restored.

Every class that is part of the state has `to_dict`, which returns data for JSON, and `from_dict`, which restores an equal object;
`encode` and `decode` do the same for arrays, tuples and containers of them, `generator_state` and `generator_from` for random
generators. A `SnapshotFormat` reads and writes the file; `damage_as_fault` converts errors of `from_dict` to faults of the file.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import faults_from, refuse
from gavel_py.io import reading
from gavel_py.io.names import NumberedNames
from gavel_py.io.writing import write_atomic

MAX_LISTED = 64
"""Longer arrays of numbers are written as Base64 of their bytes: numbers as text take most of the time and space of large files."""

DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)
"""Errors that reading an object from plain data raises if a part is missing, has another type or is too large."""

STATE = ',"state":'
"""The text before the state in a file."""

PLAIN = bool | int | float | str | None

PLAIN_TYPES = frozenset(get_args(PLAIN))
"""The same as a set, which a list of many values is compared with at once."""


def encode(value: Any) -> Any:
    """Return JSON data for a number, text or array, or a tuple, list or dict of such values."""
    if isinstance(value, np.ndarray):
        # JSON has neither NaN nor infinity.
        is_plain = value.size <= MAX_LISTED and not (value.dtype.kind == "f" and not np.isfinite(value).all())
        content = value.ravel().tolist() if is_plain or value.dtype.kind not in "biuf" else b64encode(value.tobytes()).decode()
        return {"array": content, "shape": list(value.shape), "dtype": value.dtype.str}
    if isinstance(value, tuple | NumberedNames):
        return {"tuple": encode(list(value))}
    if isinstance(value, list):
        return list(value) if PLAIN_TYPES.issuperset(map(type, value)) else [encode(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[encode(name), encode(each)] for name, each in value.items()]}
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, PLAIN):
        raise TypeError(f"cannot be written to a file: {value!r}")
    return value


def decode(data: Any) -> Any:
    """Return the value that `encode` converted to this data."""
    if isinstance(data, list):
        return list(data) if PLAIN_TYPES.issuperset(map(type, data)) else [decode(each) for each in data]
    if not isinstance(data, dict):
        return data
    if "array" in data:
        content, dtype = data["array"], np.dtype(data["dtype"])
        array = np.frombuffer(b64decode(content), dtype).copy() if isinstance(content, str) else np.array(content, dtype=dtype)
        return array.reshape(data["shape"])
    if "tuple" in data:
        return tuple(decode(data["tuple"]))
    return {decode(name): decode(each) for name, each in data["dict"]}


def decode_array(data: Any, shape: tuple[int, ...], among: range | None = None) -> NDArray[Any]:
    """Return the array that `encode` converted; raises `ValueError` for another shape, and for numbers outside a range."""
    array = np.asarray(decode(data))
    if array.shape != shape:
        raise ValueError(f"an array has the shape {array.shape} instead of {shape}")
    if among is not None and not np.isin(array, np.arange(among.start, among.stop)).all():
        raise ValueError(f"an array has numbers outside {among}")
    return array


@dataclass(frozen=True)
class SnapshotFormat:
    """One kind of snapshot file.

    name: the value of "format" in the file; version: the version that is written, and the newest that can be read; description: a
    description of such a file, for messages about other files.
    """

    name: str
    version: int
    description: str

    def write(self, path: str | Path, state: dict[str, Any]) -> None:
        """Write a state to a file; after a failure or a crash, the old file is still complete. Raises `InputError`."""
        text = json.dumps(state, separators=(",", ":"))
        head = json.dumps({"format": self.name, "version": self.version, "sha256": _checksum(text)}, separators=(",", ":"))
        write_atomic(path, f"{head[:-1]}{STATE}{text}}}".encode(), durable=True)

    def read(self, path: str | Path) -> dict[str, Any]:
        """Return the state in a file. Raises `InputError` if it is damaged, of another format or of a newer version."""
        text = reading.text_of(path)
        document = reading.parse_json(path, text, 1)
        refuse(str(path), (not isinstance(document, dict) or document.get("format") != self.name, "", f"is not {self.description}"))
        version, state = document.get("version"), document.get("state")
        is_version, newest = isinstance(version, int) and version >= 1, f"this gavel-py reads up to version {self.version}"
        refuse(
            str(path),
            (not is_version, "", f"is damaged: it has the invalid version {version!r}"),
            (is_version and version > self.version, "", f"has version {version}, but {newest}; it was written by a newer one"),
        )
        # The state is the rest of the text. A reformatted file is serialised again, which restores the original text.
        is_whole = isinstance(state, dict) and (
            document.get("sha256") == _checksum(text.partition(STATE)[2][:-1])
            or document.get("sha256") == _checksum(json.dumps(state, separators=(",", ":")))
        )
        refuse(str(path), (not is_whole, "", "is damaged or was changed by hand: its content does not match its checksum"))
        return dict(state)


def damage_as_fault(path: str | Path) -> AbstractContextManager[None]:
    """Convert errors in the block that are caused by missing or invalid data to an `InputError` that names the file."""
    return faults_from(str(path), "is damaged, or was written by another version of gavel-py", *DAMAGED, named=True)


def generator_state(chance: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as plain data."""
    return dict(chance.bit_generator.state)


def generator_from(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a generator that continues from the state that `generator_state` returned."""
    chance = np.random.default_rng(0)
    chance.bit_generator.state = state
    return chance


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
