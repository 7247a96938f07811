"""Names in their natural order, kept from one time to the next: few come and go, and sorting all anew takes long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Set

from gavel_py.io.ordering import natural_key

__all__ = ["NaturalOrder"]


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
