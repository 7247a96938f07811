"""Values that many cells share, which are packed once, and unpacked once in each process that plays cells."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

__all__ = ["Choice", "Part", "digest", "plain_text"]

MOST_UNPACKED = 32


@dataclass(frozen=True)
class Part:
    """A value as it goes to another process; parts of one identity are the same."""

    identity: str
    data: bytes = field(compare=False, repr=False)

    @classmethod
    def of(cls, value: Any, content: Any) -> Part:
        """Pack a value; content: what tells it from others, as JSON can hold it."""
        return cls(digest(content), pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    @property
    def value(self) -> Any:
        """The value; cells must not change it."""
        return _unpacked(self)


@dataclass(frozen=True)
class Choice:
    """A value on an axis of the grid: what it is called, what tells it from others as JSON can hold it, and the value."""

    label: str
    content: Any = field(compare=False)
    part: Part


def plain_text(content: Any) -> str:
    """Return plain data as JSON; that of two is the same just if they are."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def digest(content: Any) -> str:
    """Return a checksum of plain data."""
    return hashlib.sha256(plain_text(content).encode()).hexdigest()


@lru_cache(maxsize=MOST_UNPACKED)
def _unpacked(part: Part) -> Any:
    return pickle.loads(part.data)  # noqa: S301  packed by this program a moment ago
