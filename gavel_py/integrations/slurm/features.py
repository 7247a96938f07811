"""What --constraint asks of nodes, as far as it is names joined by & or by |."""

from __future__ import annotations

import re
from collections.abc import Set

__all__ = ["is_plain", "satisfies"]

PLAIN = re.compile(r"[A-Za-z0-9_.:=-]+(?:[&|][A-Za-z0-9_.:=-]+)*")


def is_plain(asked: str) -> bool:
    """Say whether an expression is empty, or names joined by & and |, which are read from left to right."""
    return not asked or PLAIN.fullmatch(asked) is not None


def satisfies(features: Set[str], asked: str) -> bool:
    """Say whether a node with these features is what a plain expression asks for.

    >>> satisfies({"v100", "ib"}, "v100&ib"), satisfies({"v100"}, "a100|v100"), satisfies({"k80"}, "v100")
    (True, True, False)
    """
    if not asked:
        return True
    first, *rest = re.split(r"([&|])", asked)
    holds = first in features
    for joint, name in zip(rest[::2], rest[1::2], strict=True):
        holds = (holds and name in features) if joint == "&" else (holds or name in features)
    return holds
