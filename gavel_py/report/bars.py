"""The stays of gangs on GPUs: one bar for each, and blocks of bars that are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavel_py.report.lanes import Lanes
from gavel_py.report.round_grid import IDLE, RoundGrid
from gavel_py.scheduling.round import Round

__all__ = ["Bar", "bars_of", "blocks_of"]


@dataclass(frozen=True)
class Bar:
    """A job's stay on the lanes first_lane .. end_lane − 1, in the rounds drawn at first .. end − 1.

    started: it began with a start, not by staying from a round before those drawn; preempted: the job lost its GPUs at the end.
    """

    job: int
    first_lane: int
    end_lane: int
    first: int
    end: int
    started: bool
    preempted: bool


def bars_of(grid: RoundGrid, rounds: Sequence[Round]) -> list[Bar]:
    """Return the bars of single GPUs, by lane and time: each GPU and round that is not idle is in one of them.

    A gang that starts anew begins another bar, also on a GPU that it had before.
    """
    jobs = grid.jobs
    breaks = (jobs == IDLE) | grid.started
    breaks[:, 0] = True  # lanes one after the other: no bar goes over the end of its own
    breaks[:, 1:] |= jobs[:, 1:] != jobs[:, :-1]
    begins = np.flatnonzero(breaks)
    ends = np.append(begins[1:], jobs.size)
    preempted = [set(each.preempted) for each in rounds]
    bars = []
    for begin, length in zip(begins.tolist(), (ends - begins).tolist(), strict=True):
        lane, first = divmod(begin, jobs.shape[1])
        job, end = int(jobs[lane, first]), first + length
        if job != IDLE:
            lost = end < len(rounds) and grid.job_ids[job] in preempted[end]
            bars.append(Bar(job, lane, lane + 1, first, end, bool(grid.started[lane, first]), lost))
    return bars


def blocks_of(bars: Iterable[Bar], lanes: Lanes) -> list[Bar]:
    """Return the bars with those of one gang that lie side by side on a node, over the same rounds, made one."""
    open_: dict[tuple[int, int, int, int], Bar] = {}
    blocks = []
    for bar in bars:
        key = (lanes.node_numbers[bar.first_lane], bar.job, bar.first, bar.end)
        above = open_.get(key)
        if above is not None and above.end_lane == bar.first_lane:
            open_[key] = replace(above, end_lane=bar.end_lane)
            continue
        if above is not None:
            blocks.append(above)
        open_[key] = bar
    return sorted([*blocks, *open_.values()], key=lambda block: (block.first_lane, block.first))
