"""The order of names where nothing else decides: as a person reads them, job-2 before job-10."""

from __future__ import annotations

import re

__all__ = ["natural_key"]


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that compares runs of digits as numbers, and the text itself where those are equal.

    >>> sorted(["10", "9", "b", "a10", "a9"], key=natural_key)
    ['9', '10', 'a9', 'a10', 'b']
    """
    parts = re.split(r"([0-9]+)", name)  # text and digits in turn, text first
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name
