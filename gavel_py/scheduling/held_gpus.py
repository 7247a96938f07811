"""The GPUs that gangs hold, as arrays: of N gangs as a value (`HeldGpus`), of all running gangs as a state (`RunningGangs`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gavel_py.io.snapshots import decode, encode
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.placement.topology import Layout


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
    def of(cls, types: Sequence[int] | Indices, gpus: Sequence[Sequence[int]]) -> HeldGpus:
        """Return the GPUs of gangs, given one after the other."""
        lengths = np.array([len(each) for each in gpus], dtype=np.int64)
        flat = np.array([gpu for each in gpus for gpu in each], dtype=np.int64)
        return cls(np.array(types, dtype=np.int64), _starts(lengths), flat)

    @classmethod
    def none(cls, count: int) -> HeldGpus:
        """Return the GPUs of gangs that hold none."""
        return cls(np.full(count, -1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.types)

    @property
    def runs(self) -> Mask:
        """(N,) the gangs that hold GPUs."""
        runs: Mask = self.types >= 0
        return runs

    @cached_property
    def sizes(self) -> Indices:
        """(N,) number of GPUs."""
        sizes: Indices = np.diff(self.starts)
        return sizes

    @cached_property
    def owners(self) -> Indices:
        """(H,) the gang that holds each GPU."""
        owners: Indices = np.repeat(np.arange(len(self)), self.sizes)
        return owners

    @property
    def shares(self) -> Floats:
        """(N,) GPUs that are accounted to each job: its part of one GPU, or an equal part of the GPUs for each co-located job."""
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
        """Return the GPUs of all gangs, none for those not to keep."""
        return self if (keep | ~self.runs).all() else self.take(np.where(keep, np.arange(len(self)), -1))

    def replaced(self, gangs: Indices, other: HeldGpus) -> HeldGpus:
        """Return the GPUs of all gangs, those of `other`, in order, for these gangs; parts and partners are dropped."""
        both = HeldGpus(
            np.concatenate([self.types, other.types]),
            np.concatenate([self.starts, self.starts[-1] + other.starts[1:]]),
            np.concatenate([self.gpus, other.gpus]),
        )
        source = np.arange(len(self))
        source[gangs] = len(self) + np.arange(len(other))
        return both.take(source)

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

    def num_nodes(self, layout: Layout) -> Indices:
        """Return (N,) the number of nodes of each gang."""
        nodes = layout.node_of[self.gpus]
        if not (self.sizes > 1).any():
            return self.sizes
        pairs = np.unique(self.owners * len(layout.names) + nodes)
        counts: Indices = np.bincount(pairs // max(1, len(layout.names)), minlength=len(self))
        return counts

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
    def from_dict(cls, document: Mapping[str, Any], layout: Layout) -> HeldGpus:
        """Restore the GPUs from `to_dict`; raises `ValueError` for GPUs that the layout does not have."""
        types, sizes, gpus, parts = (decode(document[name]) for name in ("types", "sizes", "gpus", "parts"))
        inside = len(types) == len(sizes) and len(gpus) == sizes.sum() and np.isin(gpus, np.arange(layout.num_gpus)).all()
        if not inside or not np.isin(types, np.arange(-1, len(layout.types))).all():
            raise ValueError("gangs hold GPUs that the cluster does not have")
        return cls(types, _starts(sizes), gpus, parts, {gang: tuple(others) for gang, others in document["partners"]})


class RunningGangs:
    """The gangs that hold GPUs, by their rows in the `JobTable`.

    Attributes:
        layout: All GPUs of the cluster.
        types: (rows,) columns of the accelerator types, -1 for none.
        is_spread: (rows,) whether a gang is on more nodes than it needs.
        moved: Rows of jobs whose GPUs may have changed since the latest round began; None if no round has begun in this process.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.types: Indices = np.zeros(0, dtype=np.int64)
        self.is_spread: Mask = np.zeros(0, dtype=bool)
        self.moved: set[int] | None = None
        self._rows: Indices = np.zeros(0, dtype=np.int64)
        self._held = HeldGpus.none(0)
        self._places: Indices = np.zeros(0, dtype=np.int64)  # (rows,) index in `_held`
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
        """Return the GPUs of one row."""
        return self._held.list_of(self._places.item(row)) if self.types[row] >= 0 else []

    def of(self, rows: Indices) -> HeldGpus:
        """Return the GPUs of these rows."""
        if self.moved is not None and not self.moved and np.array_equal(rows, self._rows):
            return self._held  # nothing has changed since the round began
        return self._held.take(np.where(self.types[rows] >= 0, self._places[rows], -1))

    def holds(self, rows: Indices, held: HeldGpus) -> bool:
        """Return whether just these gangs, as they were handed out, hold GPUs."""
        return held is self._held and not self.moved and self.moved is not None and len(rows) == self._count

    def fit(self, capacity: int) -> None:
        """Make room for this number of rows."""
        more = capacity - len(self.types)
        if more > 0:
            self.types = np.concatenate([self.types, np.full(more, -1, dtype=np.int64)])
            self.is_spread = np.concatenate([self.is_spread, np.zeros(more, dtype=bool)])
            self._places = np.concatenate([self._places, np.zeros(more, dtype=np.int64)])

    def begin(self, rows: Indices, held: HeldGpus, is_spread: Mask) -> None:
        """Replace all gangs by those of a round that begins; held, is_spread: (N,) of these rows."""
        self.types.fill(-1)
        self.types[rows], self.is_spread[rows], self._places[rows] = held.types, is_spread, np.arange(len(rows))
        self._rows, self._held, self._count, self.moved = rows, held, len(rows), set()

    def put(self, row: int, held: HeldGpus, *, is_spread: bool) -> None:
        """Set the GPUs of one gang."""
        rows = np.append(self.rows[self.rows != row], row)
        others = self.of(rows[:-1])
        joined = HeldGpus(
            np.concatenate([others.types, held.types]),
            np.concatenate([others.starts, others.starts[-1] + held.starts[1:]]),
            np.concatenate([others.gpus, held.gpus]),
            None if others.parts is None else np.append(others.parts, 1.0),
            others.partners,
        )
        moved = None if self.moved is None else self.moved | {row}
        self.begin(rows, joined, np.append(self.is_spread[rows[:-1]], is_spread))
        self.moved = moved

    def stop(self, row: int) -> None:
        """Take all GPUs away from a gang, if it holds any; its partners keep theirs."""
        if self.types[row] < 0:
            return
        self.types[row] = -1
        self._count -= 1
        if self.moved is not None:
            self.moved.add(row)

    def drop_partner(self, job_id: str, row: int) -> None:
        """Record that a job no longer shares its GPUs with the gang of a row."""
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
