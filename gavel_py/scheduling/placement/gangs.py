"""Gangs as arrays: requests, minimum numbers of nodes, preferred placements, and the GPUs that they hold, now or in a plan.

`free_gpus.py` chooses their nodes (best fit), `assign.py` the order in which they are placed, and which of them move.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.io.snapshots import decode, decode_array, encode
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.eligibility import ANY_SPLIT
from gavel_py.problem.job import Job, host_requests_of
from gavel_py.problem.pair_throughputs import fewest_nodes
from gavel_py.scheduling.placement.topology import ANYWHERE, NODE, NOTHING, SCOPES, Layout, Resources


class ResourceRequests:
    """Requests of N jobs as arrays. If no node has known CPUs or memory, jobs request none.

    Attributes:
        scopes: (N,) localities, as indices into `SCOPES`.
        splits: (N,) how gangs divide over nodes, as `Job.split`.
        distinct: The distinct requests per GPU; the first is for no CPUs and memory.
        distinct_of: (N,) index of each job's request.
    """

    def __init__(self, per_gpu: Floats, scopes: Indices, splits: Indices, *, limited: bool = True) -> None:
        self.scopes, self.splits = scopes, splits
        self.distinct: list[Resources] = [NOTHING]
        self.distinct_of = np.zeros(len(scopes), dtype=np.int64)
        if limited and per_gpu.any():
            found, place = np.unique(per_gpu, axis=0, return_inverse=True)
            codes = {NOTHING: 0}
            numbers = [codes.setdefault(Resources(*each), len(codes)) for each in found.tolist()]
            self.distinct, self.distinct_of = list(codes), np.array(numbers, dtype=np.int64)[place.ravel()]

    @classmethod
    def of(cls, jobs: Sequence[Job], layout: Layout) -> ResourceRequests:
        """Return the requests of jobs on nodes."""
        return cls(
            host_requests_of(jobs),
            np.array([SCOPES.index(job.locality) for job in jobs], dtype=np.int64),
            np.array([job.split for job in jobs], dtype=np.int64),
            limited=layout.limited,
        )

    def per_gpu_of(self, rows: NDArray[np.int64]) -> list[Resources]:
        """Return the CPUs and memory that each GPU of these jobs requests."""
        if len(self.distinct) == 1:
            return [NOTHING] * len(rows)
        return [self.distinct[code] for code in self.distinct_of[rows].tolist()]

    def joined(self, groups: Iterable[Sequence[int]], parts: NDArray[np.float64]) -> ResourceRequests:
        """Return requests in which the first job of each group has the combined request of the group.

        Args:
            groups: Rows of the jobs of each group.
            parts: (N,) the part of its GPUs that a job requests, and thus of their CPUs and memory.
        """
        made = copy(self)
        made.scopes, made.splits, made.distinct_of = self.scopes.copy(), self.splits.copy(), self.distinct_of.copy()
        codes = {each: n for n, each in enumerate(self.distinct)}
        for group in groups:
            rows = list(group)
            made.scopes[rows[0]] = self.scopes[rows].min()
            made.splits[rows[0]] = max(self.splits[rows].tolist(), key=lambda split: (abs(split), split))  # the strictest
            if len(self.distinct) > 1:
                cpus, memory = parts[rows] @ np.array([self.distinct[code] for code in self.distinct_of[rows].tolist()])
                made.distinct_of[rows[0]] = codes.setdefault(Resources(float(cpus), float(memory)), len(codes))
        made.distinct = list(codes)
        return made


SWITCH_ROUNDS = 1.0
"""A gang that is promised time in both placements changes its placement if the deficit of the other one exceeds that of the present
one by this plus the cost of a restart, all in rounds."""


class PlacementPreference(IntEnum):
    """Preferred placement of a gang. ANY: few nodes, but no moves; CONSOLIDATED: as few nodes as possible; SPREAD: more nodes."""

    ANY = 0
    CONSOLIDATED = 1
    SPREAD = 2


ANY_PLACEMENT, CONSOLIDATED, SPREAD = PlacementPreference  # slow to read from the enumeration


def preferences_of(
    fractions: Floats,
    spread: Floats,
    faster_spread: Mask,
    deficits: Floats,
    spread_deficits: Floats,
    runs_spread: Floats,
    restart_rounds: Floats,
) -> NDArray[np.int8]:
    """Return (N, K) the `PlacementPreference` of each job on each type for this round.

    Args:
        fractions: (N, K) X_ij.
        spread: (N, K) the part S_ij of X_ij promised on spread placements, NaN where the placement makes no difference.
        faster_spread: (N, K) whether the job is faster when spread; decides on types where no time is promised.
        deficits: (N, K) D_ij.
        spread_deficits: (N, K) A_ij, the part of D_ij that belongs to spread placements.
        runs_spread: (N, K) 1 where the job runs spread now, -1 where it runs consolidated, 0 elsewhere.
        restart_rounds: (N,) cost of a restart.
    """
    unimportant = np.isnan(spread)
    promised = np.where(unimportant, 0.0, spread)
    more_spread = (spread_deficits + promised) - (deficits - spread_deficits + fractions - promised)
    kept = runs_spread * (SWITCH_ROUNDS + restart_rounds[:, None])
    is_spread = np.where(fractions <= 0, faster_spread, (promised > 0) & ((promised >= fractions) | (more_spread + kept > 0)))
    preferences: NDArray[np.int8] = np.array([CONSOLIDATED, SPREAD], dtype=np.int8)[is_spread.astype(np.int8)]
    preferences[unimportant] = ANY_PLACEMENT
    return preferences


@dataclass(frozen=True, eq=False)
class GangBatch:
    """M gangs to be placed, as arrays; sorted by type, and on each type by importance, most important first."""

    sizes: Indices  # (M,) GPUs
    types: Indices  # (M,) numbers of the types in the layout, ascending; -1 for a type without nodes
    scopes: Indices  # (M,) localities, as indices into `SCOPES`
    splits: Indices  # (M,) how they divide over nodes, as `Job.split`
    preferences: NDArray[np.int8]  # (M,) values of `PlacementPreference`
    min_nodes: Indices  # (M,) the least number of nodes; only set for gangs with a preference
    per_gpu: Sequence[Resources]  # by gang, the CPUs and memory that each GPU needs
    held: Indices  # (H,) numbers of the GPUs that the gangs hold so far, -1 for GPUs that do not exist
    owners: Indices  # (H,) their gangs, ascending

    def __len__(self) -> int:
        return len(self.sizes)

    def on_type(self, number: int, first_gpu: int) -> tuple[int, GangBatch]:
        """Return the index of the first gang on a type, and the batch of its gangs, with GPUs numbered from `first_gpu`."""
        start, stop = np.searchsorted(self.types, [number, number + 1]).tolist()
        gangs, held = slice(start, stop), slice(*np.searchsorted(self.owners, [start, stop]).tolist())
        here = GangBatch(
            self.sizes[gangs],
            self.types[gangs],
            self.scopes[gangs],
            self.splits[gangs],
            self.preferences[gangs],
            self.min_nodes[gangs],
            self.per_gpu[gangs],
            self.held[held] - first_gpu,
            self.owners[held] - start,
        )
        return start, here

    def with_preferences_on(self, nodes: int) -> GangBatch:
        """Return the gangs, all on one type with this number of nodes, without preferences that have no alternative."""
        if not self.preferences.any():
            return self
        may_spread = (self.sizes > self.min_nodes) & (self.min_nodes < nodes) & (self.scopes != NODE) & (self.splits == ANY_SPLIT)
        return replace(self, preferences=np.where(may_spread, self.preferences, ANY_PLACEMENT).astype(np.int8))


class Spans:
    """The minimum number of nodes of gangs on a cluster; a gang on more nodes is spread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._min_nodes: dict[tuple[str, int], int] = {}

    def min_nodes(self, accelerator: str, size: int) -> int:
        """Return the least number of nodes of a type that hold a gang of this size."""
        key = accelerator, size
        if key not in self._min_nodes:
            self._min_nodes[key] = fewest_nodes(self._cluster, accelerator, size)
        return self._min_nodes[key]

    def is_spread(self, accelerator: str, nodes: Sequence[Hashable]) -> bool:
        """Return whether a gang is on more nodes than it needs; nodes: the node of each of its GPUs."""
        return len(nodes) > 1 and len(set(nodes)) > self.min_nodes(accelerator, len(nodes))

    def are_spread(self, held: HeldGpus, layout: Layout) -> Mask:
        """Return (N,) which gangs are on more nodes than they need."""
        spread = np.zeros(len(held), dtype=bool)
        several = np.flatnonzero(held.sizes > 1)
        if len(several):
            part = held.take(several)
            types = len(layout.types)
            keys, place = np.unique(part.sizes * types + part.types, return_inverse=True)
            least = [self.min_nodes(layout.types[key % types], key // types) for key in keys.tolist()]
            spread[several] = part.num_nodes(layout) > np.array(least)[place]
        return spread


@dataclass(frozen=True, eq=False)
class HeldGpus:
    """The GPUs of N gangs, by their numbers in a `Layout`; H GPUs in all.

    Attributes:
        types: (N,) columns of the accelerator types, -1 for gangs without GPUs.
        starts: (N + 1,) the first GPU of each gang in `gpus`, and H.
        gpus: (H,) GPUs, gang after gang.
        parts: (N,) the part of its GPU that each job requests, 1 for whole gangs; None if all are 1.
        partners: {gang: ids of the jobs on the same GPUs} for gangs that share them.
    """

    types: Indices
    starts: Indices
    gpus: Indices
    parts: Floats | None = None
    partners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, types: Sequence[int] | Indices, gpus: Collection[Sequence[int]]) -> HeldGpus:
        """Return the GPUs of gangs, given one after the other."""
        starts = _starts(np.fromiter(map(len, gpus), dtype=np.int64, count=len(gpus)))
        flat = np.fromiter(chain.from_iterable(gpus), dtype=np.int64, count=starts.item(-1))
        return cls(np.array(types, dtype=np.int64), starts, flat)

    @classmethod
    def none(cls, count: int) -> HeldGpus:
        """Return the GPUs of gangs that hold none."""
        return cls(np.full(count, -1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.types)

    @property
    def runs(self) -> Mask:
        """(N,) the gangs that hold GPUs."""
        return self.types >= 0

    @cached_property
    def sizes(self) -> Indices:
        """(N,) number of GPUs."""
        return np.diff(self.starts)

    @cached_property
    def owners(self) -> Indices:
        """(H,) the gang that holds each GPU."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def shares(self) -> Floats:
        """(N,) GPUs accounted to each job: its part of one GPU, or its equal share of the GPUs of co-located jobs."""
        shares = self.sizes.astype(float)
        for gang, others in self.partners.items():
            shares[gang] /= 1 + len(others)
        return shares if self.parts is None else np.where((self.parts < 1) & self.runs, self.parts, shares)

    def list_of(self, gang: int) -> list[int]:
        """Return the GPUs of one gang."""
        gpus: list[int] = self.gpus[self.starts[gang] : self.starts[gang + 1]].tolist()
        return gpus

    def take(self, gangs: Indices) -> HeldGpus:
        """Return the GPUs of these gangs; -1 stands for a gang without GPUs."""
        if not len(self):
            return HeldGpus.none(len(gangs))
        there = gangs >= 0
        sizes = np.where(there, self.sizes[gangs], 0)
        starts = _starts(sizes)
        index = np.repeat(self.starts[gangs] - starts[:-1], sizes) + np.arange(starts[-1])
        types = np.where(there, self.types[gangs], -1)
        parts = None if self.parts is None else np.where(there, self.parts[gangs], 1.0)
        partners = self.partners
        if partners:
            partners = {i: partners[gang] for i, gang in enumerate(gangs.tolist()) if gang in partners}
        return HeldGpus(types, starts, self.gpus[index], parts, partners)

    def where(self, keep: Mask) -> HeldGpus:
        """Return the GPUs of the gangs in `keep`, and none for all others."""
        return self if (keep | ~self.runs).all() else self.take(np.where(keep, np.arange(len(self)), -1))

    def replaced(self, gangs: Indices, other: HeldGpus, keep: Mask | None = None) -> HeldGpus:
        """Return the GPUs with those of these gangs replaced by `other`, in order; parts and partners are dropped.

        keep: (N,) which of the other gangs keep theirs, None for all.
        """
        source = np.arange(len(self)) if keep is None else np.where(keep, np.arange(len(self)), -1)
        source[gangs] = len(self) + np.arange(len(other))
        return replace(self.joined(other), parts=None, partners={}).take(source)

    def joined(self, other: HeldGpus) -> HeldGpus:
        """Return the GPUs of these gangs, followed by those of `other`."""
        parts = None
        if self.parts is not None or other.parts is not None:
            parts = np.concatenate([np.ones(len(each)) if each.parts is None else each.parts for each in (self, other)])
        return HeldGpus(
            np.concatenate([self.types, other.types]),
            np.concatenate([self.starts, self.starts[-1] + other.starts[1:]]),
            np.concatenate([self.gpus, other.gpus]),
            parts,
            {**self.partners, **{len(self) + gang: others for gang, others in other.partners.items()}},
        )

    def same_as(self, other: HeldGpus) -> Mask:
        """Return (N,) which gangs hold the same GPUs, in the same order, as in `other`; False for gangs without GPUs."""
        if self is other:
            return self.runs
        same: Mask = self.runs & (self.types == other.types) & (self.sizes == other.sizes)
        rows = np.flatnonzero(same)
        sizes = self.sizes[rows]
        owners = np.repeat(rows, sizes)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        differs = self.gpus[self.starts[owners] + within] != other.gpus[other.starts[owners] + within]
        same[owners[differs]] = False
        return same

    def moved(self, before: Layout, after: Layout) -> HeldGpus:
        """Return the same GPUs by their numbers in another layout; none for gangs whose GPUs are not all of one type there."""
        gpus = after.numbers(before.named(range(before.num_gpus)))[self.gpus]
        types, kinds = np.full(len(self), -1, dtype=np.int64), after.regions[ANYWHERE][after.node_of[gpus]]
        types[self.runs] = kinds[self.starts[:-1][self.runs]]
        apart = np.unique(self.owners[kinds != types[self.owners]])
        return replace(self, types=types, gpus=gpus).where(~np.isin(np.arange(len(self)), apart))

    def num_nodes(self, layout: Layout) -> Indices:
        """Return (N,) the number of nodes of each gang."""
        nodes = layout.node_of[self.gpus]
        if not (self.sizes > 1).any():
            return self.sizes
        pairs = np.unique(self.owners * len(layout.names) + nodes)
        return np.bincount(pairs // max(1, len(layout.names)), minlength=len(self))

    def with_partners_among(self, job_ids: Collection[str]) -> HeldGpus:
        """Return the GPUs with partners reduced to these jobs."""
        if not self.partners:
            return self
        partners = {gang: tuple(other for other in others if other in job_ids) for gang, others in self.partners.items()}
        return replace(self, partners={gang: others for gang, others in partners.items() if others})

    def to_dict(self) -> dict[str, Any]:
        """Return the GPUs as plain data."""
        return {
            "types": encode(self.types),
            "sizes": encode(self.sizes),
            "gpus": encode(self.gpus),
            "parts": encode(self.parts),
            "partners": [[gang, list(others)] for gang, others in self.partners.items()],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], count: int, layout: Layout) -> HeldGpus:
        """Restore the GPUs of this number of gangs from `to_dict`; raises `ValueError` for GPUs that the layout does not have."""
        types = decode_array(document["types"], (count,), range(-1, len(layout.types)))
        sizes = decode_array(document["sizes"], (count,))
        gpus = decode_array(document["gpus"], (sizes.sum(),), range(layout.num_gpus))
        partners = {gang: tuple(others) for gang, others in document["partners"]}
        return cls(types, _starts(sizes), gpus, decode(document["parts"]), partners)


class RunningGangs:
    """The gangs that hold GPUs, by their rows in the `JobTable`.

    Attributes:
        layout: All GPUs of the cluster.
        types: (rows,) columns of the accelerator types, -1 for none.
        is_spread: (rows,) whether a gang is on more nodes than it needs.
        moved: Rows of jobs whose GPUs may have changed since the latest round began; None before the first round of this process.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.types: Indices = np.zeros(0, dtype=np.int64)
        self.is_spread: Mask = np.zeros(0, dtype=bool)
        self.moved: set[int] | None = None
        self._rows: Indices = np.zeros(0, dtype=np.int64)
        self._held = HeldGpus.none(0)
        self._places: Indices = np.zeros(0, dtype=np.int64)  # (rows,) index in `_held`
        self._new: dict[int, list[int]] = {}  # {row: GPUs} of gangs that are not in `_held`
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Indices:
        """(N,) rows of the gangs, ascending."""
        return np.flatnonzero(self.types >= 0)

    @property
    def are_shared(self) -> bool:
        """Whether any GPUs are shared by several jobs."""
        return bool(self._held.partners)

    def gpus_of(self, row: int) -> list[int]:
        """Return the GPUs of the gang in a row."""
        if self.types[row] < 0:
            return []
        return self._new[row] if row in self._new else self._held.list_of(self._places.item(row))

    def partners_of(self, row: int) -> tuple[str, ...]:
        """Return the ids of the jobs that share GPUs with the gang in a row."""
        partners = self._held.partners
        return partners.get(self._places.item(row), ()) if partners and self.types[row] >= 0 and row not in self._new else ()

    def of(self, rows: Indices) -> HeldGpus:
        """Return the GPUs of the gangs in these rows."""
        if self._new:
            self._gather()
        if self.moved is not None and not self.moved and np.array_equal(rows, self._rows):
            return self._held  # nothing has changed since the round began
        return self._held.take(np.where(self.types[rows] >= 0, self._places[rows], -1))

    def holds(self, rows: Indices, held: HeldGpus) -> bool:
        """Return whether the running gangs are exactly those with which the latest round began, with these rows and GPUs."""
        return held is self._held and not self._new and not self.moved and self.moved is not None and len(rows) == self._count

    def fit(self, capacity: int) -> None:
        """Make room for this number of rows."""
        more = capacity - len(self.types)
        if more > 0:
            self.types = np.concatenate([self.types, np.full(more, -1, dtype=np.int64)])
            self.is_spread = np.concatenate([self.is_spread, np.zeros(more, dtype=bool)])
            self._places = np.concatenate([self._places, np.zeros(more, dtype=np.int64)])

    def begin(self, rows: Indices, held: HeldGpus, is_spread: Mask) -> None:
        """Replace all gangs by those of a new round; held, is_spread: (N,) of these rows."""
        self.types.fill(-1)
        self.types[rows], self.is_spread[rows], self._places[rows] = held.types, is_spread, np.arange(len(rows))
        self._rows, self._held, self._count, self.moved = rows, held, len(rows), set()
        self._new = {}

    def put(self, row: int, column: int, gpus: list[int], *, is_spread: bool) -> None:
        """Set the type and the GPUs of one gang."""
        self.stop(row)
        self.types[row], self.is_spread[row], self._new[row] = column, is_spread, gpus
        self._count += 1
        if self.moved is not None:
            self.moved.add(row)

    def _gather(self) -> None:
        """Merge the gangs of `_new` into the arrays."""
        rows, new = self.rows, np.array([*self._new], dtype=np.int64)
        held = self._held.take(np.where(np.isin(rows, new), -1, self._places[rows]))
        parts = None if held.parts is None else np.where(held.runs, held.parts, 1.0)
        joined = held.replaced(np.searchsorted(rows, new), HeldGpus.of(self.types[new], list(self._new.values())))
        self._rows, self._held, self._new = rows, replace(joined, parts=parts, partners=held.partners), {}
        self._places[rows] = np.arange(len(rows))

    def add(self, rows: Indices, held: HeldGpus, is_spread: Mask) -> None:
        """Set the GPUs of several gangs that hold none."""
        others = self.rows
        moved = None if self.moved is None else self.moved | set(rows.tolist())
        self.begin(np.append(others, rows), self.of(others).joined(held), np.append(self.is_spread[others], is_spread))
        self.moved = moved

    def stop(self, row: int) -> None:
        """Remove the GPUs of a gang, if it holds any; its partners keep theirs."""
        if self.types[row] < 0:
            return
        self.types[row] = -1
        self._new.pop(row, None)
        self._count -= 1
        if self.moved is not None:
            self.moved.add(row)

    def drop_partner(self, job_id: str, row: int) -> None:
        """Record that a job no longer shares its GPUs with the gang of a row."""
        if self._new:
            self._gather()
        place, partners = int(self._places[row]), dict(self._held.partners)
        partners[place] = tuple(other for other in partners.get(place, ()) if other != job_id)
        self._held = replace(self._held, partners={i: others for i, others in partners.items() if others})
        if self.moved is not None:
            self.moved.add(row)


def _starts(sizes: Indices) -> Indices:
    """Return (N + 1,) the sums of sizes before each gang, and of all."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts
