"""Where each stay of a gang is drawn: a lane for each GPU, as many for a node as were ever held there at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.names import natural_key
from gavel_py.report.lanes import Group
from gavel_py.report.round_grid import IDLE, RoundGrid
from gavel_py.report.runs import Stay

__all__ = ["Block", "StayLanes", "stay_grid", "stay_lanes"]

SAME_MOMENT = 1e-6
"""Seconds; a stay that ends no later than this after another begins makes room for it."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stay, or a part of it, on the lanes first .. end − 1, which lie side by side."""

    stay: Stay
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class StayLanes:
    """Lanes from the top down, by accelerator type and node, and what lies on them, on the clock of the trace."""

    nodes: Sequence[Group]
    types: Sequence[Group]
    blocks: Sequence[Block]
    start_seconds: float
    end_seconds: float

    @property
    def count(self) -> int:
        """The number of lanes."""
        return self.nodes[-1].end


def stay_lanes(stays: Sequence[Stay], types: Iterable[str] = ()) -> StayLanes:
    """Return the lanes of these stays, of which there must be one; types: the order of accelerator types, others follow.

    Runs tell which node a gang was on, not which of its GPUs it had; the picture gives it the lowest that are free, side by side
    where there are so many. A node has no more lanes than GPUs that were held at once.
    """
    by_node: dict[tuple[str, str], list[Stay]] = {}
    for stay in sorted(stays, key=lambda stay: (stay.start_seconds, stay.end_seconds, natural_key(stay.job_id))):
        by_node.setdefault((stay.accelerator, stay.node), []).append(stay)
    order = list(dict.fromkeys([*types, *sorted({name for name, _ in by_node}, key=natural_key)]))
    keys = sorted(by_node, key=lambda key: (order.index(key[0]), natural_key(key[1])))
    nodes: list[Group] = []
    kinds: dict[str, Group] = {}
    blocks: list[Block] = []
    first = 0
    for accelerator, node in keys:
        placed, lanes = _placed(by_node[accelerator, node], first)
        blocks += placed
        nodes.append(Group(node, first, first + lanes))
        kinds[accelerator] = Group(accelerator, kinds.get(accelerator, nodes[-1]).first, first + lanes)
        first += lanes
    start, end = min(stay.start_seconds for stay in stays), max(stay.end_seconds for stay in stays)
    return StayLanes(nodes, list(kinds.values()), blocks, start, end)


def stay_grid(lanes: StayLanes, columns: int) -> RoundGrid:
    """Return who has which lane in the middle of each of so many even stretches of time, jobs numbered by their first stay."""
    numbers: dict[str, int] = {}
    for block in sorted(lanes.blocks, key=lambda block: (block.stay.start_seconds, block.first)):
        numbers.setdefault(block.stay.job_id, len(numbers))
    jobs: NDArray[np.int64] = np.full((lanes.count, columns), IDLE, dtype=np.int64)
    length = (lanes.end_seconds - lanes.start_seconds) / columns
    for block in lanes.blocks:
        begin, end = ((s - lanes.start_seconds) / length - 0.5 for s in (block.stay.start_seconds, block.stay.end_seconds))
        jobs[block.first : block.end, max(0, int(np.ceil(begin))) : max(0, int(np.ceil(end)))] = numbers[block.stay.job_id]
    return RoundGrid(list(numbers), jobs, np.zeros(jobs.shape, dtype=bool))


def _placed(stays: Sequence[Stay], first: int) -> tuple[list[Block], int]:
    """The stays on one node, in order of their start, on lanes from `first` on, and the number of lanes."""
    busy_until: list[float] = []
    blocks = []
    for stay in stays:
        free = [lane for lane, until in enumerate(busy_until) if until <= stay.start_seconds + SAME_MOMENT]
        free += range(len(busy_until), len(busy_until) + max(0, stay.gpus - len(free)))
        busy_until += [0.0] * (free[-1] + 1 - len(busy_until)) if free else []
        chosen = _side_by_side(free, stay.gpus)
        for lane in chosen:
            busy_until[lane] = stay.end_seconds
        blocks += [Block(stay, first + begin, first + end) for begin, end in _runs(chosen)]
    return blocks, len(busy_until)


def _side_by_side(free: Sequence[int], count: int) -> Sequence[int]:
    """The first so many lanes that lie side by side, or the first at all."""
    for begin in range(len(free) - count + 1):
        if free[begin + count - 1] - free[begin] == count - 1:
            return free[begin : begin + count]
    return free[:count]


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Begin and end of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane:
            runs[-1] = (runs[-1][0], lane + 1)
        else:
            runs.append((lane, lane + 1))
    return runs
