"""Lists of nodes as Slurm shortens them: rack1-[0-3,07]-gpu,login."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

__all__ = ["expand", "is_node_name"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
MOST = 100_000
"""Nodes of one list; the largest clusters have less, and a broken list must not fill the memory."""


def is_node_name(text: str) -> bool:
    """Say whether this can be the name of a node; nothing else goes into a command."""
    return NAME.fullmatch(text) is not None


def expand(text: str) -> list[str]:
    """Return the names of a list in its order; raises `ValueError` for what is none.

    >>> expand("a[0-2,10]-[x,y],b")
    ['a0-x', 'a0-y', 'a1-x', 'a1-y', 'a2-x', 'a2-y', 'a10-x', 'a10-y', 'b']
    """
    if not text:
        return []
    if "[" not in text:
        return _checked(text.split(","), text)
    names: list[str] = []
    at = 0
    while at < len(text):
        part = PART.match(text, at)
        if part is None:
            raise ValueError(f"is not a list of nodes: {text[:80]!r}")
        names += _names(part[1])
        at = part.end()
    return _checked(names, text)


def _checked(names: list[str], text: str) -> list[str]:
    if not all(map(is_node_name, names)):
        raise ValueError(f"is not a list of nodes: {text[:80]!r}")
    return names


def _names(part: str) -> Iterator[str]:
    """The names of one element, each range of which stands for several."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [[piece] if n % 2 == 0 else list(_range(piece)) for n, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MOST:
        raise ValueError(f"names more than {MOST:,} nodes: {part[:80]!r}")
    return ("".join(words) for words in product(*choices))


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()):
            yield piece
            continue
        if int(last) - int(first) >= MOST:
            raise ValueError(f"names more than {MOST:,} nodes: {text[:80]!r}")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
