"""The log of a driver: a line of JSON for each decision and each thing that happened, with its time."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gavel_py.errors import Fault, InputError

__all__ = ["RunLog"]


class RunLog:
    """Appends to a file; each line is on its way to the disk before the next thing is done."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}")) from None

    def write(self, event: str, seconds: float, **told: Any) -> None:
        """Write one line."""
        line = json.dumps({"event": event, "seconds": round(seconds, 3), **told}, separators=(",", ":"), allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
