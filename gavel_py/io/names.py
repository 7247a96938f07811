"""Names in lists of jobs, nodes and types: their natural order, which of them are the same, and numbered ones made on demand.

The natural order puts job-2 before job-10. `NaturalOrder` keeps a sorted collection from one call to the next, since few names come
and go and sorting all of them again takes long.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import overload


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that compares runs of digits as numbers, and the text itself where those are equal.

    >>> sorted(["10", "9", "b", "a10", "a9"], key=natural_key)
    ['9', '10', 'a9', 'a10', 'b']
    """
    parts = re.split(r"([0-9]+)", name)  # text and digits in turn, text first
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


def same_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is this one, or else the only one that differs from it in case only; None where there is none.

    >>> same_name("H100", ["v100", "h100"]), same_name("H100", ["h100", "H100"]), same_name("h100", ["H100", "h100 "])
    ('h100', 'H100', 'H100')
    """
    if name in known:
        return name
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


class NumberedNames(Sequence[str]):
    """The names prefix0, prefix1, ...: a sequence that formats a name when it is asked for, since there may be a million.

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


class NaturalOrder:
    """The names of a collection that changes little between two questions, sorted by `natural_key`.

    >>> order = NaturalOrder()
    >>> order.of({"a10": 1, "a9": 1}), order.of({"b": 1, "a10": 1})
    (['a9', 'a10'], ['a10', 'b'])
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._keys: list[tuple[tuple[str | int, ...], str]] = []
        self._known: set[str] = set()

    def of(self, names: Collection[str]) -> list[str]:
        """Return these names in their order."""
        there = names if isinstance(names, Mapping | Set) else set(names)
        for name in [name for name in self._known if name not in there]:
            self._drop(name)
        if len(self._known) < len(there):
            for name in [name for name in there if name not in self._known]:
                self._add(name)
        return list(self._names)

    def _add(self, name: str) -> None:
        key = natural_key(name)
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._names.insert(place, name)
        self._known.add(name)

    def _drop(self, name: str) -> None:
        place = bisect_left(self._keys, natural_key(name))
        del self._keys[place], self._names[place]
        self._known.discard(name)
