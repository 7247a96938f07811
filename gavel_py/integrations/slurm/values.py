"""Values as Slurm writes them in JSON, of every version: numbers with or without a wrapping, one state or a list of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gavel_py.io.records import CONTROL

__all__ = ["as_number", "as_text", "as_words", "printable"]

LONGEST = 200
"""Characters of a text that is shown; names and comments are whatever their users wrote."""

INFINITE = 4_294_967_294
"""From here on up, 32-bit numbers of Slurm mean "none" or "no limit"."""


def as_number(value: Any) -> float | None:
    """Return a number, None where there is none or no limit: 3, {"set": true, "infinite": false, "number": 3}, null.

    >>> as_number(3), as_number({"set": True, "infinite": False, "number": 4}), as_number({"set": False, "number": 0})
    (3.0, 4.0, None)
    """
    if isinstance(value, Mapping):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value >= INFINITE and value <= INFINITE + 1 else float(value)


def as_words(value: Any) -> frozenset[str]:
    """Return the words of a state, in upper case: "RUNNING", "idle+drain", ["RUNNING", "COMPLETING"].

    >>> sorted(as_words(["RUNNING", "COMPLETING"])), sorted(as_words("idle"))
    (['COMPLETING', 'RUNNING'], ['IDLE'])
    """
    texts = value if isinstance(value, list) else [value]
    return frozenset(word.upper() for text in texts if isinstance(text, str) for word in re.findall(r"[A-Za-z_]+", text))


def as_text(value: Any) -> str:
    """Return a text, empty where there is none; some versions wrap it in a list, as they do with nodes that are asked for."""
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))
    return value if isinstance(value, str) else ""


def printable(text: str) -> str:
    """Return a user's text as it may stand in a terminal, a message or a file: no control characters, and not too long."""
    clean = re.sub(f"[{CONTROL}\\u200b-\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]", " ", text).strip()
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 3] + "..."
