"""Lanes, bars and colours of Gantt charts, for rounds (`plot_rounds`) and for the stays of a run (`stay_lanes`).

A lane is a row of the chart. Rounds name their GPUs, so each GPU has a lane; a run only names nodes, so a node has as many lanes as
GPUs were held on it at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from numbers import Real
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.io.names import natural_key
from gavel_py.io.writing import FORMATS, check_plot, write_atomic
from gavel_py.problem.cluster import Cluster
from gavel_py.report.measures import counted
from gavel_py.report.runs import Stay
from gavel_py.scheduling.delivery import DeliveryReport
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.round import Round


@dataclass(frozen=True)
class LaneGroup:
    """The lanes first .. end − 1 of a node or of an accelerator type."""

    name: str
    first: int
    end: int

    @property
    def size(self) -> int:
        """Number of lanes."""
        return self.end - self.first

    @property
    def middle(self) -> float:
        """Vertical centre, in lanes."""
        return (self.first + self.end) / 2


def spaced(groups: Iterable[LaneGroup], distance: float) -> list[LaneGroup]:
    """Return the groups to label, so that the centres of labels are at least `distance` lanes apart."""
    shown: list[LaneGroup] = []
    for group in groups:
        if not shown or group.middle - shown[-1].middle >= distance:
            shown.append(group)
    return shown


def spread(places: Sequence[float], distance: float, end: float) -> list[float]:
    """Move ascending places down to be at least `distance` apart, then up from the end as far as there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + distance) if found else place)
    latest = max(end - distance / 2, found[0] + distance * (len(found) - 1))
    for n in reversed(range(len(found))):
        found[n] = min(found[n], latest)
        latest = found[n] - distance
    return found


@dataclass(frozen=True)
class Lanes:
    """L lanes from top to bottom. gpus: (node, index) of each lane; nodes, types: groups of neighbouring lanes."""

    gpus: Sequence[Gpu]
    nodes: Sequence[LaneGroup]
    types: Sequence[LaneGroup]


def lanes_of(cluster: Cluster) -> Lanes:
    """Return the lanes of a cluster, types and nodes in its order. Raises `InputError` if it has no GPUs."""
    gpus: list[Gpu] = []
    nodes: list[LaneGroup] = []
    types: list[LaneGroup] = []
    for name in cluster.accelerator_names:
        first = len(gpus)
        for node in cluster.nodes_of(name):
            nodes.append(LaneGroup(node.name, len(gpus), len(gpus) + node.num_gpus))
            gpus += [(node.name, index) for index in range(node.num_gpus)]
        types.append(LaneGroup(name, first, len(gpus)))
    if not gpus:
        raise InputError("there is nothing to draw: the cluster has no GPUs")
    return Lanes(gpus, [node for node in nodes if node.size], [group for group in types if group.size])


IDLE = -1


@dataclass(frozen=True)
class RoundGrid:
    """The jobs on L lanes in R rounds, numbered in order of appearance in `job_ids`.

    jobs: (L, R) number of the job on the GPU, or `IDLE`.
    """

    job_ids: Sequence[str]
    jobs: NDArray[np.int64]

    @property
    def used_share(self) -> float:
        """Share of all GPU time held by jobs."""
        return float(np.mean(self.jobs != IDLE))


def grid_of(rounds: Sequence[Round], lanes: Lanes) -> RoundGrid:
    """Return the grid of consecutive rounds.

    Raises `InputError` for an empty or interrupted sequence of rounds, for GPUs that are not in the cluster, and for GPUs assigned
    to two jobs in one round.
    """
    if not rounds:
        raise InputError("there is nothing to draw: no rounds")
    for before, after in pairwise(rounds):
        if after.index != before.index + 1:
            raise InputError(f"rounds must follow one another: after round {before.index} comes round {after.index}")
    lane_of = {gpu: lane for lane, gpu in enumerate(lanes.gpus)}
    numbers: dict[str, int] = {}
    jobs = np.full((len(lanes.gpus), len(rounds)), IDLE, dtype=np.int64)
    faults: list[Fault] = []
    for position, round_ in enumerate(rounds):
        for job_id, held in round_.assignments.items():
            number = numbers.setdefault(job_id, len(numbers))
            for node, index in held.gpus:
                where = f"round {round_.index}, job {job_id!r}"
                lane = lane_of.get((node, index))
                if lane is None:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which the cluster does not have"))
                elif jobs[lane, position] != IDLE:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which another job has too"))
                else:
                    jobs[lane, position] = number
    InputError.raise_any(faults)
    return RoundGrid(list(numbers), jobs)


@dataclass(frozen=True)
class Bar:
    """A job on the lanes first_lane .. end_lane − 1 in the rounds at positions first .. end − 1.

    started: the bar begins with a start of the job, not at the first round drawn; preempted: it ends with a preemption.
    """

    job_id: str
    first_lane: int
    end_lane: int
    first: int
    end: int
    started: bool
    preempted: bool


def bars_of(rounds: Sequence[Round], lanes: Lanes) -> list[Bar]:
    """Return a bar for each stay of a gang on neighbouring lanes of a node; together they cover each busy GPU and round once.

    A restart of a gang begins a new stay, even on the GPUs that the gang already had.
    """
    lane_of = {gpu: lane for lane, gpu in enumerate(lanes.gpus)}
    running: dict[str, tuple[int, bool, Sequence[Gpu]]] = {}
    bars = []

    def end(job_id: str, at: int, *, preempted: bool) -> None:
        first, started, gpus = running.pop(job_id)
        for _, on_node in groupby(sorted(gpus), key=lambda gpu: gpu[0]):
            for top, bottom in _runs(sorted(lane_of[gpu] for gpu in on_node)):
                bars.append(Bar(job_id, top, bottom, first, at, started, preempted))

    for position, round_ in enumerate(rounds):
        kept, started, preempted = set(round_.kept), set(round_.started), set(round_.preempted)
        for job_id in [job_id for job_id in running if job_id not in kept]:
            end(job_id, position, preempted=job_id in preempted)
        for job_id in round_.assignments.keys() - running.keys():
            running[job_id] = position, job_id in started, round_.assignments[job_id].gpus
    for job_id in list(running):
        end(job_id, len(rounds), preempted=False)
    return sorted(bars, key=lambda bar: (bar.first_lane, bar.first))


NO_WORKFLOWS: Mapping[str, str] = {}
NO_TENANTS: Mapping[str, str] = {}

COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#004488", "#FFAABB", "#44BB99", "#994455", "#99DDFF", "#BBCC33", "#117733")
"""Paul Tol's light qualitative scheme, meant for filled areas with text, and three of his dark colours
(https://personal.sron.nl/~pault)."""


def colours_of(grid: RoundGrid, groups: Mapping[str, str] = NO_WORKFLOWS) -> list[str]:
    """Return a colour for each job: the next in turn that differs from its earlier neighbours, on the next GPU or round.

    groups: {job_id: its workflow or tenant}; the jobs of one have one colour.
    """
    numbers: dict[tuple[bool, str], int] = {}
    keys = [(name in groups, groups.get(name, name)) for name in grid.job_ids]
    owners = np.array([numbers.setdefault(key, len(numbers)) for key in keys] + [IDLE], dtype=np.int64)
    neighbours = _neighbours(owners[grid.jobs])  # IDLE is the last of them
    chosen: list[int] = []
    for owner in range(len(numbers)):
        taken = {chosen[other] for other in neighbours.get(owner, ()) if other < owner}
        candidates = [(owner + offset) % len(COLOURS) for offset in range(len(COLOURS))]
        chosen.append(next((colour for colour in candidates if colour not in taken), candidates[0]))
    return [COLOURS[chosen[owner]] for owner in owners[:-1].tolist()]


def is_dark(colour: str) -> bool:
    """Return whether white text has more contrast on this colour than black text."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance: float = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return luminance < 0.18  # the luminance at which both contrasts are equal


def _neighbours(jobs: NDArray[np.int64]) -> dict[int, set[int]]:
    aside = np.stack([jobs[:, :-1].ravel(), jobs[:, 1:].ravel()])
    below = np.stack([jobs[:-1].ravel(), jobs[1:].ravel()])
    pairs = np.concatenate([aside, below], axis=1)
    pairs = np.unique(pairs[:, (pairs != IDLE).all(axis=0) & (pairs[0] != pairs[1])], axis=1)
    found: dict[int, set[int]] = {}
    for one, other in pairs.T.tolist():
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found


SAME_TIME = 1e-6
"""Seconds; a lane is free for a stay that begins at most this long before the previous one ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stay, or a part of it, on the neighbouring lanes first .. end − 1."""

    stay: Stay
    first: int
    end: int


@dataclass(frozen=True, eq=False)
class StayLanes:
    """The lanes of a run from top to bottom, and the blocks on them; times are on the clock of the trace."""

    nodes: Sequence[LaneGroup]
    types: Sequence[LaneGroup]
    blocks: Sequence[Block]
    start_seconds: float
    end_seconds: float

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.nodes[-1].end


def stay_lanes(stays: Sequence[Stay], types: Iterable[str] = ()) -> StayLanes:
    """Assign stays, at least one, to lanes; types: the order of accelerator types, others follow.

    Each stay is drawn on the lowest free lanes of its node, on neighbouring ones if possible.
    """
    by_node: dict[tuple[str, str], list[Stay]] = {}
    for stay in sorted(stays, key=lambda stay: (stay.start_seconds, stay.end_seconds, natural_key(stay.job_id))):
        by_node.setdefault((stay.accelerator, stay.node), []).append(stay)
    order = list(dict.fromkeys([*types, *sorted({name for name, _ in by_node}, key=natural_key)]))
    nodes: list[LaneGroup] = []
    type_groups: dict[str, LaneGroup] = {}
    blocks: list[Block] = []
    first = 0
    for accelerator, node in sorted(by_node, key=lambda key: (order.index(key[0]), natural_key(key[1]))):
        placed, lanes = _placed(by_node[accelerator, node], first)
        blocks += placed
        nodes.append(LaneGroup(node, first, first + lanes))
        type_groups[accelerator] = LaneGroup(accelerator, type_groups.get(accelerator, nodes[-1]).first, first + lanes)
        first += lanes
    start, end = min(stay.start_seconds for stay in stays), max(stay.end_seconds for stay in stays)
    return StayLanes(nodes, list(type_groups.values()), blocks, start, end)


def stay_grid(lanes: StayLanes, columns: int) -> RoundGrid:
    """Return the job on each lane at the middle of each of `columns` even intervals; jobs are numbered by their first stay."""
    numbers: dict[str, int] = {}
    for block in sorted(lanes.blocks, key=lambda block: (block.stay.start_seconds, block.first)):
        numbers.setdefault(block.stay.job_id, len(numbers))
    jobs: NDArray[np.int64] = np.full((lanes.count, columns), IDLE, dtype=np.int64)
    length = (lanes.end_seconds - lanes.start_seconds) / columns
    for block in lanes.blocks:
        begin, end = ((s - lanes.start_seconds) / length - 0.5 for s in (block.stay.start_seconds, block.stay.end_seconds))
        jobs[block.first : block.end, max(0, int(np.ceil(begin))) : max(0, int(np.ceil(end)))] = numbers[block.stay.job_id]
    return RoundGrid(list(numbers), jobs)


def _placed(stays: Sequence[Stay], first: int) -> tuple[list[Block], int]:
    """Place the stays of one node, sorted by start, on lanes from `first` on; return their blocks and the number of lanes."""
    busy_until: list[float] = []
    blocks = []
    for stay in stays:
        free = [lane for lane, until in enumerate(busy_until) if until <= stay.start_seconds + SAME_TIME]
        added = range(len(busy_until), len(busy_until) + stay.gpus - len(free))
        busy_until += [0.0] * len(added)
        free += added
        places = range(len(free) - stay.gpus + 1)
        # Neighbouring lanes, or else the first that are free.
        place = next((n for n in places if free[n + stay.gpus - 1] - free[n] == stay.gpus - 1), 0)
        for begin, end in _runs(free[place : place + stay.gpus]):
            busy_until[begin:end] = [stay.end_seconds] * (end - begin)
            blocks.append(Block(stay, first + begin, first + end))
    return blocks, len(busy_until)


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Split ascending lanes into runs (begin, end) of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane:
            runs[-1] = (runs[-1][0], lane + 1)
        else:
            runs.append((lane, lane + 1))
    return runs


def plot_rounds(
    rounds: Iterable[Round],
    cluster: Cluster,
    path: str | Path,
    *,
    round_seconds: float,
    delivery: DeliveryReport | None = None,
    policy: str | None = None,
    workflows: Mapping[str, str] = NO_WORKFLOWS,
    tenants: Mapping[str, str] = NO_TENANTS,
) -> None:
    """Draw consecutive rounds as a Gantt chart: time from left to right, GPUs by type and node from top to bottom.

    A bar is a gang on its GPUs, with marks where it started and where it was preempted; idle GPUs are white. The same input gives
    the same bytes with the same version of matplotlib. The file is written atomically.

    Args:
        rounds: The rounds, without gaps in their indices.
        cluster: The cluster of the scheduler, whose GPUs are drawn.
        path: An .svg or .png file.
        round_seconds: Length of a round.
        delivery: Adds the undelivered share and the number of all jobs to the title.
        policy: Name of the policy for the title.
        workflows: {job_id: workflow}; the jobs of one have one colour, which a legend names.
        tenants: {job_id: tenant}; without workflows, the jobs of one have one colour if there are 2 to 9 tenants. The legend names
            it, with the GPU-hours promised to the tenant and received if `delivery` is given.

    Raises:
        InputError: As `check_plot` does, for rounds that are empty or not consecutive, for GPUs that are not in the cluster or
            assigned to two jobs in one round, and for an invalid `round_seconds`.
    """
    check_plot(path)
    if not (isinstance(round_seconds, Real) and math.isfinite(round_seconds) and round_seconds > 0):
        raise InputError(Fault("", "round_seconds", f"must be a finite number greater than 0, found {round_seconds!r}"))
    lanes, rounds = lanes_of(cluster), list(rounds)
    grid = grid_of(rounds, lanes)
    head = "" if policy is None else f"{policy}: "
    title = f"{head}{counted(len(rounds), 'round')} of {duration(round_seconds)}, {counted(len(lanes.gpus), 'GPU')}"
    subtitle = ", ".join(_subtitle(grid, rounds, delivery))

    from gavel_py.report.timeline_drawing import Coloured, rounds_image

    coloured = Coloured(grid, workflows, tenants, delivery)
    image = rounds_image(rounds, lanes, coloured, float(round_seconds), title, subtitle, FORMATS[Path(path).suffix.lower()])
    write_atomic(path, image)


def _subtitle(grid: RoundGrid, rounds: Sequence[Round], delivery: DeliveryReport | None) -> Iterator[str]:
    ran = len(grid.job_ids)
    jobs = ran if delivery is None else len(delivery.jobs)
    yield f"{ran:,} of {counted(jobs, 'job')} ran" if jobs > ran else f"{counted(ran, 'job')} ran"
    yield f"{grid.used_share:.1%} of GPU time used"
    yield counted(sum(len(each.started) for each in rounds), "start")
    yield counted(sum(len(each.preempted) for each in rounds), "preemption")
    if delivery is not None:
        yield f"{delivery.undelivered_share:.2%} of what was promised is still owed"


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit.

    >>> duration(360), duration(5400)
    ('6 min', '1.5 h')
    """
    for name, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.4g} {name}"
    return f"{seconds:.4g} s"
