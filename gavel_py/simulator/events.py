"""What happens to nodes: failures at random, and windows of maintenance."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest

__all__ = ["NodeEvent", "NodeEvents", "NodeFailures", "NodeWindow"]


class NodeEvent(NamedTuple):
    """A node changes its state; events are in the order of time."""

    seconds: float
    node: str
    change: Literal["down", "drain", "up"]


@dataclass(frozen=True)
class NodeFailures:
    """Each node fails after an exponentially distributed time of this mean, and is repaired after another one.

    The mean time between the failures of one node is their sum.
    """

    mean_seconds_up: float
    mean_seconds_down: float

    def __post_init__(self) -> None:
        for name in ("mean_seconds_up", "mean_seconds_down"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InputError(Fault("node failures", name, f"must be a finite number greater than 0, found {value!r}"))


@dataclass(frozen=True)
class NodeWindow:
    """Maintenance of a node: nobody runs there from one time to another. It is drained first, for a round before."""

    node: str
    start_seconds: float
    end_seconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_seconds) and self.start_seconds < self.end_seconds):
            text = f"must be after start_seconds ({self.start_seconds!r}), found {self.end_seconds!r}"
            raise InputError(Fault(f"maintenance of node {self.node!r}", "end_seconds", text))


class NodeEvents:
    """All events to come. Windows come before failures at the same time; a node is up again when nothing keeps it down."""

    def __init__(
        self,
        nodes: Sequence[str],
        failures: NodeFailures | None,
        windows: Iterable[NodeWindow],
        notice_seconds: float,
        chance: np.random.Generator,
    ) -> None:
        self._failures, self._chance = failures, chance
        self._reasons: dict[str, int] = {}
        self._queue: list[tuple[float, int, str, str]] = []
        self._count = itertools.count()
        for window in windows:
            if window.node not in nodes:
                text = f"is not in the cluster{nearest(window.node, nodes)}"
                raise UnknownNameError(Fault("maintenance", "node", f"{window.node!r} {text}"))
            self._push(window.start_seconds - notice_seconds, window.node, "drain")
            self._push(window.start_seconds, window.node, "down")
            self._push(window.end_seconds, window.node, "up")
        for node in nodes if failures is not None else ():
            self._push(self._next(up=True), node, "fail")

    def until(self, seconds: float) -> Iterator[NodeEvent]:
        """Take and yield the events before this time, in order."""
        while self._queue and self._queue[0][0] < seconds:
            at, _, node, kind = heapq.heappop(self._queue)
            if kind == "fail":
                self._push(at + self._next(up=False), node, "repaired")
            elif kind == "repaired":
                self._push(at + self._next(up=True), node, "fail")
            change = self._change(node, kind)
            if change is not None:
                yield NodeEvent(at, node, change)

    @property
    def next_seconds(self) -> float:
        """The time of the next one, infinite if there is none."""
        return self._queue[0][0] if self._queue else math.inf

    def _change(self, node: str, kind: str) -> Literal["down", "drain", "up"] | None:
        """What this does to the node, None if it is down already, or is still kept down."""
        before = self._reasons.get(node, 0)
        if kind == "drain":
            return "drain" if not before else None
        self._reasons[node] = after = before + (1 if kind in ("down", "fail") else -1)
        if not before and after:
            return "down"
        return "up" if before and not after else None

    def _next(self, *, up: bool) -> float:
        assert self._failures is not None  # noqa: S101
        mean = self._failures.mean_seconds_up if up else self._failures.mean_seconds_down
        return float(self._chance.exponential(mean))

    def _push(self, at: float, node: str, kind: str) -> None:
        heapq.heappush(self._queue, (at, next(self._count), node, kind))
