"""The log of a driver, with one JSON object per line for each decision and event, and its warnings."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from gavel_py.errors import GavelWarning

logger = logging.getLogger(__name__)

LOG = "log.jsonl"
"""Name of the log in the directory of the state."""

STAY_EVENTS = frozenset({"started", "stopped", "left"})

ACTUAL = "slurm_"
"""Prefix of these events in the log of a shadow if they belong to Slurm's own schedule."""


def warn(text: str) -> None:
    """Issue a `GavelWarning`; the driver continues even if standard error is closed."""
    with suppress(OSError):
        warnings.warn(text, GavelWarning, stacklevel=3)


PROBLEMS = frozenset({"outlier", "strange"})
"""Events that need attention and never come with a `GavelWarning`."""

MAX_SHOWN = 100
"""Values of an entry that are longer than this are omitted from messages."""


def log_event(event: str, fields: Mapping[str, Any]) -> None:
    """Send an event to Python's logger: problems as warnings, others at level INFO; long values only if DEBUG is on."""
    level = logging.WARNING if event in PROBLEMS else logging.INFO
    if logger.isEnabledFor(level):
        is_whole = level > logging.INFO or logger.isEnabledFor(logging.DEBUG)
        texts = {name: str(value) for name, value in fields.items() if value not in ({}, [], (), None, "")}
        shown = [f"{name}={text}" for name, text in texts.items() if is_whole or len(text) <= MAX_SHOWN]
        logger.log(level, "%s", " ".join([event, *shown]))


class EventLog:
    """Appends entries to a log, and sends them to Python's logger.

    If an entry cannot be written, it is dropped with a `GavelWarning`, since jobs do not depend on the log. A full disk or the end
    of a killed driver may leave a part of one, after which the next entry starts on a new line. After a signal handler has set
    `is_moved`, the next entry starts a new file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.is_moved = False

    def write(self, event: str, seconds: float, **fields: Any) -> None:
        """Write an entry without buffering."""
        log_event(event, fields)
        line = json.dumps({"event": event, "seconds": round(seconds, 3), **fields}, separators=(",", ":"), allow_nan=False)
        try:
            if self.is_moved:
                self.close()
            text = f"{line}\n".encode()
            if self._file is None:
                self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115
                text = b"\n" * self._is_torn(self._file) + text
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            self.close()
            warn(f"{self._path} cannot be written; the driver continues without it: {error.strerror or error}")

    @staticmethod
    def _is_torn(file: FileIO) -> bool:
        """Return whether a file ends within a line."""
        if not file.seekable() or not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

    def close(self) -> None:
        """Close the file."""
        self.is_moved = False
        if self._file is not None:
            self._file.close()
            self._file = None
