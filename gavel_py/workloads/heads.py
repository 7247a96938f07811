"""The beginning of a file, by which its format is recognised."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["Head", "head_of"]

LENGTH = 1 << 16
"""Characters read; the first record of every known format is far shorter."""


@dataclass(frozen=True)
class Head:
    """The name of a file or folder, the names of the files in a folder, and the first lines of a file."""

    path: Path
    inside: frozenset[str]
    text: str

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    @property
    def is_json(self) -> bool:
        """Whether this begins as a JSON document."""
        return self.text.lstrip()[:1] in ("[", "{")

    def has_columns(self, *names: str, separator: str = ",") -> bool:
        """Say whether the first line names all these columns."""
        return set(names) <= set(self.columns(separator))

    def columns(self, separator: str = ",") -> Collection[str]:
        """The cells of the first line."""
        return [cell.strip().strip('"') for cell in self.first_line.split(separator)]


def head_of(path: str | Path) -> Head:
    """Return the beginning of the file, or the names in the folder; raises `InputError` where it cannot be read."""
    there = Path(path)
    try:
        if there.is_dir():
            return Head(there, frozenset(file.name for file in there.iterdir()), "")
        with open(there, encoding="utf-8-sig", errors="replace") as file:
            return Head(there, frozenset(), file.read(LENGTH))
    except OSError as error:
        raise InputError(Fault(str(path), "", f"cannot be read: {error.strerror or error}")) from None
