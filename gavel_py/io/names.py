"""Names of jobs, nodes and types: natural order, case-insensitive matches, and numbered names; limits of names and counts.

In natural order, job-2 precedes job-10. Arrays need these limits as well as records, but not pydantic, whose import takes a while.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import overload

CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
"""Control characters and line breaks, which would garble tables, messages and files."""

MAX_COUNT = 1_000_000
"""Upper limit of the size of a gang and of the nodes of an entry; a larger number is a typing error, and costly to build."""

SMALLEST_FRACTION = 0.001
"""Smallest fraction of a GPU. Schedulers that share GPUs use at most thousandths, so a smaller fraction is a typing error."""

DIGITS = re.compile("([0-9]+)")


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that compares runs of digits as numbers; the text itself breaks ties.

    >>> sorted(["10", "9", "b", "a10", "a9"], key=natural_key)
    ['9', '10', 'a9', 'a10', 'b']
    """
    parts: list[str | int] = DIGITS.split(name)  # text and digits alternate, text first
    parts[1::2] = map(int, parts[1::2])
    return tuple(parts), name


def same_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name equal to this one, or else the only one that differs just in case; None if there is none.

    >>> same_name("H100", ["v100", "h100"]), same_name("H100", ["h100", "H100"]), same_name("h100", ["H100", "h100 "])
    ('h100', 'H100', 'H100')
    """
    if name in known:
        return name
    matches = [each for each in known if each.casefold() == name.casefold()]
    return matches[0] if len(matches) == 1 else None


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    found = tuple(names)
    if len(set(found)) == len(found):  # ten times as fast as counting
        return []
    return [name for name, times in Counter(found).items() if times > 1]


class NumberedNames(Sequence[str]):
    """The sequence of names prefix0, prefix1, ..., formatted on access, since there may be a million.

    >>> NumberedNames("type-", 3)
    ('type-0', 'type-1', 'type-2')
    """

    def __init__(self, prefix: str, size: int) -> None:
        self.prefix = prefix
        self.size = size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        numbers = range(self.size)[at]
        return tuple(f"{self.prefix}{i}" for i in numbers) if isinstance(numbers, range) else f"{self.prefix}{numbers}"

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{i}" for i in range(self.size))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames):
            return (self.prefix, self.size) == (other.prefix, other.size)
        return isinstance(other, Sequence) and not isinstance(other, str) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def has_control(text: str) -> bool:
    """Return True if the text has a line break or control character."""
    return re.search(f"[{CONTROL}]", text) is not None


def is_absent(value: object) -> bool:
    """Return True for a missing value: None, NaN, NaT, pandas.NA, or a masked entry of NumPy."""
    if value is None or isinstance(value, str):
        return value is None
    if type(value).__name__ in ("NAType", "MaskedConstant"):  # their comparisons are neither true nor false
        return True
    try:
        return bool(value != value)  # NaN of any kind
    except (TypeError, ValueError):
        return False
