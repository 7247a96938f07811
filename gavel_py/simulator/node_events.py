"""Events of nodes: random failures, and maintenance windows, which `read_maintenance` reads from a file."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from gavel_py.errors import check_known, refuse
from gavel_py.io import reading
from gavel_py.io.records import Name, Positive, Record, Seconds, check, check_records
from gavel_py.io.snapshots import generator_from, generator_state
from gavel_py.problem.tolerances import FLOAT_ROUNDING

Change = Literal["down", "drain", "up"]


def latest_at(seconds: float) -> float:
    """Return the latest time that counts as this one: starts of rounds are sums of lengths, which are rounded."""
    return seconds + FLOAT_ROUNDING * abs(seconds)


class NodeEvent(NamedTuple):
    """A change of the state of a node."""

    seconds: float
    node: str
    change: Change


@dataclass(frozen=True)
class NodeFailures:
    """Random failures: each node is up, then down, for exponentially distributed times.

    The mean time between two failures of a node is the sum of both means.

    Attributes:
        mean_seconds_up: mean time from a repair to the next failure.
        mean_seconds_down: mean time from a failure to its repair.

    Raises:
        InputError: for a mean that is not positive and finite.
    """

    mean_seconds_up: float
    mean_seconds_down: float

    def __post_init__(self) -> None:
        check(
            "node failures", mean_seconds_up=(self.mean_seconds_up, Positive), mean_seconds_down=(self.mean_seconds_down, Positive)
        )


@dataclass(frozen=True)
class NodeWindow:
    """A maintenance window, during which a node is down. Before it, the node is drained: it has no round that the window would cut.

    Windows of one node may overlap. A node that comes up less than a round before its next window comes up drained.

    Attributes:
        node: the name of the node.
        start_seconds: when it goes down, on the clock of the trace.
        end_seconds: when it comes up again.

    Raises:
        InputError: unless start_seconds is finite and before end_seconds.
    """

    node: str
    start_seconds: float
    end_seconds: float

    def __post_init__(self) -> None:
        is_right = math.isfinite(self.start_seconds) and self.start_seconds < self.end_seconds
        text = f"must be after start_seconds ({self.start_seconds!r}), found {self.end_seconds!r}"
        refuse(f"maintenance of node {self.node!r}", (not is_right, "end_seconds", text))


RANKS = {"drain": 0, "down": 1, "fail": 2, "up": 3, "repaired": 4}
"""The order of events at the same time: nodes go down before they come up, so that no gang starts between two adjacent windows."""


class NodeEvents:
    """The queue of events. A node is down while any window or failure keeps it down.

    start_seconds: when the clock starts, with all nodes up except those in windows; notice_seconds: the length of a round, 0 in
    event mode. Before a window, its node is drained for rounds that would end after the window begins.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        failures: NodeFailures | None,
        windows: Iterable[NodeWindow],
        notice_seconds: float,
        chance: np.random.Generator,
        start_seconds: float = 0.0,
    ) -> None:
        self._failures, self._chance = failures, chance
        self._reasons: dict[str, int] = {}  # by node, the windows and failures that keep it down
        self._notices: dict[str, int] = {}  # by node, the windows for which it is drained
        self._queue: list[tuple[float, int, int, str, str]] = []
        self._count = 0
        for window in windows:
            if window.node not in nodes:
                check_known("maintenance", "node", [window.node], nodes, "is not in the cluster")
            # A round that begins at the very start of the notice ends when the window begins, so the node is drained after it.
            after = 2 * FLOAT_ROUNDING * max(abs(window.start_seconds), notice_seconds)
            self._push(window.start_seconds - max(0.0, notice_seconds - after), window.node, "drain")
            self._push(window.start_seconds, window.node, "down")
            self._push(window.end_seconds, window.node, "up")
        for node in nodes if failures is not None else ():
            self._push(start_seconds + self._draw_seconds(up=True), node, "fail")

    def until(self, seconds: float) -> Iterator[NodeEvent]:
        """Remove and yield the events before this time, in order."""
        while self._queue and self._queue[0][0] < seconds:
            at, _, _, node, cause = heapq.heappop(self._queue)
            if cause == "fail":
                self._push(at + self._draw_seconds(up=False), node, "repaired")
            elif cause == "repaired":
                self._push(at + self._draw_seconds(up=True), node, "fail")
            for change in self._changes(node, cause):
                yield NodeEvent(at, node, change)

    @property
    def next_seconds(self) -> float:
        """The time of the next event, infinite if there is none."""
        return self._queue[0][0] if self._queue else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return the queue and the state of the nodes as plain data."""
        return {
            "failures": None if self._failures is None else asdict(self._failures),
            "reasons": dict(self._reasons),
            "notices": dict(self._notices),
            "queue": [list(event) for event in self._queue],
            "count": self._count,
            "chance": generator_state(self._chance),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NodeEvents:
        """Restore from `to_dict`."""
        means = document["failures"]
        made = cls((), None if means is None else NodeFailures(**means), (), 0.0, generator_from(document["chance"]))
        made._reasons, made._notices = dict(document["reasons"]), dict(document["notices"])
        made._queue = [(at, rank, count, node, cause) for at, rank, count, node, cause in document["queue"]]
        made._count = document["count"]
        return made

    def _changes(self, node: str, cause: str) -> Iterator[Change]:
        """Yield the changes of the node: none if it was already down, or is still down for another reason."""
        before, notices = self._reasons.get(node, 0), self._notices.get(node, 0)
        if cause == "drain":
            self._notices[node] = notices + 1
            if not before and not notices:
                yield "drain"
            return
        if cause == "down":
            self._notices[node] = notices - 1  # the window of this notice has begun
        self._reasons[node] = after = before + (1 if cause in ("down", "fail") else -1)
        if not before and after:
            yield "down"
        elif before and not after:
            yield "up"
            if notices:
                yield "drain"

    def _draw_seconds(self, *, up: bool) -> float:
        assert self._failures is not None  # noqa: S101
        mean = self._failures.mean_seconds_up if up else self._failures.mean_seconds_down
        return float(self._chance.exponential(mean))

    def _push(self, at: float, node: str, cause: str) -> None:
        heapq.heappush(self._queue, (at, RANKS[cause], self._count, node, cause))
        self._count += 1


class _Window(Record):
    """A row of a file of windows."""

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "node"

    node: Name
    start_seconds: Seconds
    end_seconds: Seconds

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        text = f"must be after start_seconds ({self.start_seconds:g}), found {self.end_seconds:g}"
        refuse("", (self.end_seconds <= self.start_seconds, "end_seconds", text))
        return self


def read_maintenance(path: str | Path) -> tuple[NodeWindow, ...]:
    """Read windows from a CSV file with the columns node, start_seconds and end_seconds, on the clock of the trace.

    Args:
        path: the file.

    Raises:
        InputError: with all faults of the file, each with its line and field.
    """
    rows = check_records(_Window, reading.csv_rows(path, required=tuple(_Window.model_fields)))
    return tuple(NodeWindow(**row.model_dump()) for row in rows)
