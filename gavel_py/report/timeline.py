"""Rounds and stays as shapes on the GPUs of a cluster: lanes, the jobs on them over time, bars, and colours.

Of rounds: `Lanes` from the top down, by accelerator type and node; `RoundGrid`, which job has which GPU in which round, as one
array; `bars_of`, `blocks_of`: one bar for each stay of a gang on GPUs, and blocks of bars that are alike; `colours_of`: one colour
for each job, such that neighbours differ, also for people who see fewer colours. Of stays in a run: `StayLanes`, a lane for each
GPU, as many for a node as were ever held there at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.io.names import natural_key
from gavel_py.problem.cluster import Cluster
from gavel_py.report.runs import Stay
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.round import Round


@dataclass(frozen=True)
class Group:
    """Lanes that belong together, those of a node or of an accelerator type; first and end: lanes, end not included."""

    name: str
    first: int
    end: int

    @property
    def middle(self) -> float:
        """The middle of the lanes."""
        return (self.first + self.end) / 2


@dataclass(frozen=True)
class Lanes:
    """L lanes, one for each GPU. gpus: (node, index) by lane; nodes and types: the groups that they form, from the top down."""

    gpus: Sequence[Gpu]
    nodes: Sequence[Group]
    types: Sequence[Group]

    @cached_property
    def number(self) -> dict[Gpu, int]:
        """The lane of each GPU."""
        return {gpu: lane for lane, gpu in enumerate(self.gpus)}

    @cached_property
    def node_numbers(self) -> list[int]:
        """(L,) the number of each lane's node."""
        return [number for number, node in enumerate(self.nodes) for _ in range(node.first, node.end)]


def lanes_of(cluster: Cluster) -> Lanes:
    """Return the lanes of a cluster, types and nodes in its order. Raises `InputError` when it has no GPUs."""
    gpus: list[Gpu] = []
    nodes: list[Group] = []
    types: list[Group] = []
    for name in cluster.accelerator_names:
        first = len(gpus)
        for node in cluster.nodes_of(name):
            nodes.append(Group(node.name, len(gpus), len(gpus) + node.num_gpus))
            gpus += [(node.name, index) for index in range(node.num_gpus)]
        types.append(Group(name, first, len(gpus)))
    if not gpus:
        raise InputError("there is nothing to draw: the cluster has no GPUs")
    return Lanes(gpus, [node for node in nodes if node.end > node.first], [kind for kind in types if kind.end > kind.first])


IDLE = -1


@dataclass(frozen=True)
class RoundGrid:
    """L lanes, R rounds. job_ids: in the order of their first appearance, which numbers them.

    jobs: (L, R) the number of the job that has the GPU, `IDLE` for none; started: (L, R) whether it started in this round.
    """

    job_ids: Sequence[str]
    jobs: NDArray[np.int64]
    started: NDArray[np.bool_]

    @property
    def used_share(self) -> float:
        """The part of all GPU time that jobs had."""
        return float(np.mean(self.jobs != IDLE))


def grid_of(rounds: Sequence[Round], lanes: Lanes) -> RoundGrid:
    """Return the grid of these rounds.

    Raises `InputError` for no rounds, rounds that do not follow one another, a GPU that the cluster does not have, and one that two
    jobs have.
    """
    _check_order(rounds)
    numbers: dict[str, int] = {}
    jobs = np.full((len(lanes.gpus), len(rounds)), IDLE, dtype=np.int64)
    started = np.zeros(jobs.shape, dtype=bool)
    faults: list[Fault] = []
    for position, round_ in enumerate(rounds):
        fresh = set(round_.started)
        for job_id, held in round_.assignments.items():
            number = numbers.setdefault(job_id, len(numbers))
            for node, index in held.gpus:
                where = f"round {round_.index}, job {job_id!r}"
                lane = lanes.number.get((node, index))
                if lane is None:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which the cluster does not have"))
                elif jobs[lane, position] != IDLE:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which another job has too"))
                else:
                    jobs[lane, position], started[lane, position] = number, job_id in fresh
    InputError.raise_any(faults)
    return RoundGrid(list(numbers), jobs, started)


def _check_order(rounds: Sequence[Round]) -> None:
    if not rounds:
        raise InputError("there is nothing to draw: no rounds")
    for before, after in pairwise(rounds):
        if after.index != before.index + 1:
            raise InputError(f"rounds must follow one another: after round {before.index} comes round {after.index}")


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


COLOURS = (
    "#77AADD",
    "#EE8866",
    "#EEDD88",
    "#004488",
    "#FFAABB",
    "#44BB99",
    "#994455",
    "#99DDFF",
    "#BBCC33",
    "#117733",
)
"""Paul Tol's light colours, made to be filled and written on, and three dark ones of his (https://personal.sron.nl/~pault)."""


def colours_of(grid: RoundGrid) -> list[str]:
    """Return a colour for each job: the next in turn that no earlier neighbour has, on the next GPU or in the next round."""
    neighbours = _neighbours(grid)
    chosen: list[int] = []
    for job in range(len(grid.job_ids)):
        taken = {chosen[other] for other in neighbours.get(job, ()) if other < job}
        turns = [(job + more) % len(COLOURS) for more in range(len(COLOURS))]
        chosen.append(next((turn for turn in turns if turn not in taken), turns[0]))
    return [COLOURS[turn] for turn in chosen]


def is_dark(colour: str) -> bool:
    """Say whether white letters are easier to read on it than black ones."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance: float = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return luminance < 0.18  # there both contrasts are equal


def _neighbours(grid: RoundGrid) -> dict[int, set[int]]:
    """The jobs that each job touches."""
    jobs = grid.jobs
    aside = np.stack([jobs[:, :-1].ravel(), jobs[:, 1:].ravel()])
    below = np.stack([jobs[:-1].ravel(), jobs[1:].ravel()])
    pairs = np.concatenate([aside, below], axis=1)
    pairs = np.unique(pairs[:, (pairs != IDLE).all(axis=0) & (pairs[0] != pairs[1])], axis=1)
    found: dict[int, set[int]] = {}
    for one, other in pairs.T.tolist():
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found


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
