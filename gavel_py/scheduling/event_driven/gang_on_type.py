"""A gang on an accelerator type, and where it comes among the others there, as choosing and placing have it."""

from __future__ import annotations

from typing import NamedTuple

from gavel_py.scheduling.placement.layout import ANYWHERE

__all__ = ["GangOnType"]

Natural = tuple[tuple[str | int, ...], str]


class GangOnType(NamedTuple):
    """A gang on a type; number: that of the type; scope, kind, fewest: as in `Crowd`; natural: the job's id as a sort key;
    kept_for: how many rounds more than others it must be owed to whom it loses its place.
    """

    job_id: str
    number: int
    size: int
    scope: int
    kind: int
    fewest: int
    natural: Natural
    kept_for: float

    @property
    def standing(self) -> tuple[float, Natural]:
        """Where it comes among the gangs of its type when it runs there: who matters most comes first, as in `Chosen`."""
        return -(1.0 + self.kept_for), self.natural

    @property
    def starting(self) -> tuple[float, Natural]:
        """Where it comes when it is to start there."""
        return -1.0, self.natural

    @property
    def hardest_first(self) -> tuple[bool, int, Natural]:
        """Where it comes among those that start when places are sought."""
        return self.scope == ANYWHERE, -self.size, self.natural
