"""The log of a driver: a line of JSON for each decision and each thing that happened, with its time."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gavel_py.errors import GavelWarning

__all__ = ["RunLog", "warn"]


def warn(text: str) -> None:
    """Issue a `GavelWarning`; where that fails too, since standard error is closed, say, the driver goes on all the same."""
    with suppress(OSError):
        warnings.warn(text, GavelWarning, stacklevel=3)


class RunLog:
    """Appends to a file; each line is on its way to the disk before the next thing is done.

    Jobs depend on the driver, not on its log: where a line cannot be written, it is left out with a `GavelWarning`, and the next
    one is tried again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def write(self, event: str, seconds: float, **told: Any) -> None:
        """Write one line."""
        line = json.dumps({"event": event, "seconds": round(seconds, 3), **told}, separators=(",", ":"), allow_nan=False)
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self._file.write(f"{line}\n".encode())
        except OSError as error:
            warn(f"{self._path} cannot be written, and the driver goes on without it: {error.strerror or error}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
