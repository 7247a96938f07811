"""Lanes, bars and colours of Gantt charts, for rounds (`rounds_gantt`) and for the stays of a run (`stays_gantt`).

A lane is a row of the chart. Rounds name their GPUs, so each GPU has a lane; a run only names nodes, so a node has as many lanes as
GPUs were held on it at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io.names import natural_key
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.tolerances import SECONDS_ROUNDING
from gavel_py.report.runs import Stay
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
    """L lanes from top to bottom. nodes, types: groups of neighbouring lanes; gpus: (node, index) of each lane, if known."""

    nodes: Sequence[LaneGroup]
    types: Sequence[LaneGroup]
    gpus: Sequence[Gpu] = ()

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.nodes[-1].end


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
    refuse("", (not gpus, "", "there is nothing to draw: the cluster has no GPUs"))
    return Lanes([node for node in nodes if node.size], [group for group in types if group.size], gpus)


@dataclass(frozen=True)
class Bar:
    """A job on the lanes first_lane .. end_lane − 1.

    started: the bar begins with a start of the job, not at the first round drawn; preempted: it ends with a preemption.
    """

    job_id: str
    first_lane: int
    end_lane: int
    start_seconds: float
    end_seconds: float
    started: bool = False
    preempted: bool = False


@dataclass(frozen=True, eq=False)
class Gantt:
    """Bars on lanes, between two moments.

    round_starts: the start of each round, numbered from first_round on, if there are any; down: nodes that are down.
    """

    lanes: Lanes
    bars: Sequence[Bar]
    start_seconds: float
    end_seconds: float
    round_starts: Sequence[float] = ()
    first_round: int = 0
    down: Collection[str] = ()


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
    gaps = [(before.index, after.index) for before, after in pairwise(rounds) if after.index != before.index + 1]
    refuse(
        "",
        (not rounds, "", "there is nothing to draw: no rounds"),
        *((gap, "", "rounds must follow one another: after round {} comes round {}".format(*gap)) for gap in gaps),
    )
    lane_of = {gpu: lane for lane, gpu in enumerate(lanes.gpus)}
    numbers: dict[str, int] = {}
    jobs = np.full((len(lanes.gpus), len(rounds)), IDLE, dtype=np.int64)
    faults: list[Fault] = []
    for position, round_ in enumerate(rounds):
        for job_id, held in round_.assignments.items():
            number = numbers.setdefault(job_id, len(numbers))
            for node, index in held.gpus:
                lane = lane_of.get((node, index))
                if lane is None or jobs[lane, position] != IDLE:
                    which = "the cluster does not have" if lane is None else "another job has too"
                    text = f"has GPU {index} of node {node!r}, which {which}"
                    faults.append(Fault(f"round {round_.index}, job {job_id!r}", "", text))
                else:
                    jobs[lane, position] = number
    InputError.raise_any(faults)
    return RoundGrid(list(numbers), jobs)


def rounds_gantt(rounds: Sequence[Round], lanes: Lanes, round_seconds: float) -> Gantt:
    """Return the Gantt chart of rounds: a bar for each stay of a gang on neighbouring lanes of a node, which together cover each
    busy GPU and round once.

    A restart of a gang begins a new stay, even on the GPUs that the gang already had.
    """
    edges = np.maximum.accumulate([each.start_seconds for each in rounds]).tolist()
    edges.append(edges[-1] + round_seconds)
    lane_of = {gpu: lane for lane, gpu in enumerate(lanes.gpus)}
    running: dict[str, tuple[int, bool, Sequence[Gpu]]] = {}
    bars: list[Bar] = []

    def end(job_id: str, at: int, *, preempted: bool) -> None:
        first, started, gpus = running.pop(job_id)
        for _, on_node in groupby(sorted(gpus), key=lambda gpu: gpu[0]):
            for top, bottom in _runs(sorted(lane_of[gpu] for gpu in on_node)):
                bars.append(Bar(job_id, top, bottom, edges[first], edges[at], started, preempted))

    for position, round_ in enumerate(rounds):
        kept, started, preempted = set(round_.kept), set(round_.started), set(round_.preempted)
        for job_id in [job_id for job_id in running if job_id not in kept]:
            end(job_id, position, preempted=job_id in preempted)
        for job_id in round_.assignments.keys() - running.keys():
            running[job_id] = position, job_id in started, round_.assignments[job_id].gpus
    for job_id in list(running):
        end(job_id, len(rounds), preempted=False)
    bars.sort(key=lambda bar: (bar.first_lane, bar.start_seconds))
    return Gantt(lanes, bars, edges[0], edges[-1], edges[:-1], rounds[0].index)


NO_WORKFLOWS: Mapping[str, str] = {}

COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#004488", "#FFAABB", "#44BB99", "#994455", "#99DDFF", "#BBCC33", "#117733")
"""Paul Tol's light qualitative scheme, meant for filled areas with text, and three of his dark colours
(https://personal.sron.nl/~pault)."""


def colours_of(grid: RoundGrid, groups: Mapping[str, str] = NO_WORKFLOWS) -> dict[str, str]:
    """Return {job_id: colour}: the next in turn that differs from its earlier neighbours, on the next GPU or round.

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
    return {job_id: COLOURS[chosen[owner]] for job_id, owner in zip(grid.job_ids, owners.tolist(), strict=False)}  # IDLE has none


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


def stays_gantt(stays: Sequence[Stay], types: Iterable[str] = ()) -> Gantt:
    """Return the Gantt chart of stays, of which there is at least one; types: the order of accelerator types, others follow.

    Each stay is drawn on the lowest free lanes of its node, on neighbouring ones if possible.
    """
    by_node: dict[tuple[str, str], list[Stay]] = {}
    for stay in sorted(stays, key=lambda stay: (stay.start_seconds, stay.end_seconds, natural_key(stay.job_id))):
        by_node.setdefault((stay.accelerator, stay.node), []).append(stay)
    order = list(dict.fromkeys([*types, *sorted({name for name, _ in by_node}, key=natural_key)]))
    nodes: list[LaneGroup] = []
    type_groups: dict[str, LaneGroup] = {}
    bars: list[Bar] = []
    first = 0
    for accelerator, node in sorted(by_node, key=lambda key: (order.index(key[0]), natural_key(key[1]))):
        placed, lanes = _placed(by_node[accelerator, node], first)
        bars += placed
        nodes.append(LaneGroup(node, first, first + lanes))
        type_groups[accelerator] = LaneGroup(accelerator, type_groups.get(accelerator, nodes[-1]).first, first + lanes)
        first += lanes
    start, end = min(stay.start_seconds for stay in stays), max(stay.end_seconds for stay in stays)
    return Gantt(Lanes(nodes, list(type_groups.values())), bars, start, end)


def stay_grid(gantt: Gantt, columns: int) -> RoundGrid:
    """Return the job on each lane at the middle of each of `columns` even intervals; jobs are numbered by their first stay."""
    numbers: dict[str, int] = {}
    jobs: NDArray[np.int64] = np.full((gantt.lanes.count, columns), IDLE, dtype=np.int64)
    length = (gantt.end_seconds - gantt.start_seconds) / columns
    for bar in sorted(gantt.bars, key=lambda bar: (bar.start_seconds, bar.first_lane)):
        begin, end = (max(0, int(np.ceil((s - gantt.start_seconds) / length - 0.5))) for s in (bar.start_seconds, bar.end_seconds))
        jobs[bar.first_lane : bar.end_lane, begin:end] = numbers.setdefault(bar.job_id, len(numbers))
    return RoundGrid(list(numbers), jobs)


def _placed(stays: Sequence[Stay], first: int) -> tuple[list[Bar], int]:
    """Place the stays of one node, sorted by start, on lanes from `first` on; return their bars and the number of lanes."""
    busy_until: list[float] = []
    bars = []
    for stay in stays:
        free = [lane for lane, until in enumerate(busy_until) if until <= stay.start_seconds + SECONDS_ROUNDING]
        added = range(len(busy_until), len(busy_until) + stay.gpus - len(free))
        busy_until += [0.0] * len(added)
        free += added
        places = range(len(free) - stay.gpus + 1)
        # Neighbouring lanes, or else the first that are free.
        place = next((n for n in places if free[n + stay.gpus - 1] - free[n] == stay.gpus - 1), 0)
        for begin, end in _runs(free[place : place + stay.gpus]):
            busy_until[begin:end] = [stay.end_seconds] * (end - begin)
            bars.append(Bar(stay.job_id, first + begin, first + end, stay.start_seconds, stay.end_seconds))
    return bars, len(busy_until)


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Split ascending lanes into runs (begin, end) of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for lane in lanes:
        if runs and runs[-1][1] == lane:
            runs[-1] = (runs[-1][0], lane + 1)
        else:
            runs.append((lane, lane + 1))
    return runs
