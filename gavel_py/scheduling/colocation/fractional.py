"""Jobs that ask for a part of a GPU, packed onto whole ones before it is decided who runs in a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.scheduling.colocation.groups import ColocationGroup, ColocationGroups
from gavel_py.scheduling.mechanism.demand import RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement.topology import Gpu

ROUNDING = 1e-9
"""A part of a GPU that is told from none: ten tenths are one."""


@dataclass
class _SharedGpu:
    """Jobs for one GPU of a type. left, memory_left: parts and GB of it that nobody has; gpu: the one that is kept, None for any;
    owed: whether anybody is owed anything there; who only fills up what idles may come on any type that suits all.
    """

    type: int
    memory_left: float
    gpu: Gpu | None = None
    owed: bool = True
    left: float = 1.0
    rows: list[int] = field(default_factory=list)


def bundled(crews: ColocationGroups, parts: Floats, memory: GpuMemory, gpus: Sequence[Gpu | None]) -> ColocationGroups:
    """Return the crews with the jobs that ask for part of a GPU as further ones: those that are to have one GPU together.

    parts: (N,) s_i, of whole gangs at least 1; memory: of these jobs; gpus: by job, the first GPU that it has now.

    Each job goes where it is owed most, and where it runs counts for h rounds more (`hysteresis_of`). Who runs there already
    stays with those that do so on the same GPU; the others come in the order of what they are owed, each to the GPU of its type
    where it leaves least, by its part and by its memory, or to a new one. With `backfill`, who is owed nothing fills what is left.
    A bundle is owed Σ_i s_i (D_ij + X_ij) on its type, and takes one GPU.
    """
    small = (parts < 1) & crews.demand.runnable.any(axis=1) & ~crews.demand.locked
    if not small.any():
        return crews
    packing = _Packing(crews.demand, parts, memory, gpus)
    packing.pack(np.flatnonzero(small))
    found = [(_group_on_gpu(bundle, gpus), bundle) for bundle in packing.bundles]
    demand = _joined(crews.demand, parts, found, small, packing.suits(found))
    return ColocationGroups((*crews.crews, *(crew for crew, _ in found)), demand)


class _Packing:
    """Bundles as they fill; the arguments are those of `bundled`."""

    def __init__(self, demand: RoundDemand, parts: Floats, memory: GpuMemory, gpus: Sequence[Gpu | None]) -> None:
        self._demand, self._parts, self._gpus = demand, parts, gpus
        self._needed, self._room = np.nan_to_num(memory.needed), np.where(np.isnan(memory.capacity), np.inf, memory.capacity)
        self.bundles: list[_SharedGpu] = []

    def pack(self, rows: NDArray[np.int64]) -> None:
        """Put these jobs into bundles."""
        scores = self._scores(rows)
        best, most = scores.argmax(axis=1), scores.max(axis=1)
        order = [place for place in np.argsort(-most, kind="stable").tolist() if most[place] > 0]
        types, running = best.tolist(), self._demand.running_on[rows].tolist()
        stays = {place for place in order if running[place] == types[place] and self._gpus[rows[place]] is not None}
        on: dict[Gpu, _SharedGpu] = {}
        for place in [*filter(stays.__contains__, order), *(place for place in order if place not in stays)]:
            row, gpu = int(rows[place]), self._gpus[rows[place]] if place in stays else None
            bundle = self._place(row, [types[place]], on.get(gpu) if gpu is not None else None)
            if bundle is None:
                bundle = self._opened(row, types[place], gpu if gpu not in on else None)
                if bundle.gpu is not None:
                    on[bundle.gpu] = bundle
        self._fill(rows[most <= 0])

    def suits(self, found: Sequence[tuple[ColocationGroup, _SharedGpu]]) -> Mask:
        """Return (N, K) the types on which all of each bundle may be, and fit together, in the row of its first job."""
        suits = np.zeros_like(self._demand.runnable)
        for crew, _ in found:
            rows = list(crew.rows)
            suits[rows[0]] = self._demand.runnable[rows].all(axis=0) & (
                self._needed[rows].sum(axis=0) <= self._room * (1 + ROUNDING)
            )
        return suits

    def _scores(self, rows: NDArray[np.int64]) -> Floats:
        """(M, K) the rounds that jobs are owed, more where they run, nothing where they may not."""
        demand = self._demand
        claims = rounded(demand.deficits[rows] + demand.fractions[rows])
        kept_for = hysteresis_of(
            demand.fractions[rows], np.ones((len(rows), 1), dtype=np.int64), demand.restart_rounds[rows][:, None]
        )
        owed = (claims > 0) | (demand.running[rows] & (demand.fractions[rows] > 0))
        scores: Floats = np.where(demand.runnable[rows] & owed, claims + kept_for * demand.running[rows], -np.inf)
        return scores

    def _fill(self, rows: NDArray[np.int64]) -> None:
        """Let jobs that are owed nothing have what is left, where they are fastest."""
        if not self._demand.backfill:
            return
        for row in rows.tolist():
            types = np.argsort(-self._demand.throughputs[row], kind="stable")
            suiting = [j for j in types.tolist() if self._demand.runnable[row, j]]
            if self._place(row, suiting, None) is None:
                self._opened(row, suiting[0], None).owed = False

    def _place(self, row: int, types: Sequence[int], wanted: _SharedGpu | None) -> _SharedGpu | None:
        """Put a job into the bundle that is wanted, or else where it leaves least on the first of these types that has room."""
        for j in types:
            fitting = [bundle for bundle in self._on(j, wanted) if self._fits(row, bundle)]
            if fitting:
                return self._put(row, min(fitting, key=lambda bundle: bundle.left))
        return None

    def _on(self, j: int, wanted: _SharedGpu | None) -> Iterator[_SharedGpu]:
        return (bundle for bundle in self.bundles if bundle.type == j and (wanted is None or bundle is wanted))

    def _fits(self, row: int, bundle: _SharedGpu) -> bool:
        enough = self._parts[row] <= bundle.left + ROUNDING
        return bool(enough and self._needed[row, bundle.type] <= bundle.memory_left * (1 + ROUNDING))

    def _opened(self, row: int, j: int, gpu: Gpu | None) -> _SharedGpu:
        self.bundles.append(_SharedGpu(j, float(self._room[j]), gpu))
        return self._put(row, self.bundles[-1])

    def _put(self, row: int, bundle: _SharedGpu) -> _SharedGpu:
        bundle.rows.append(row)
        bundle.left -= float(self._parts[row])
        bundle.memory_left -= float(self._needed[row, bundle.type])
        return bundle


def _group_on_gpu(bundle: _SharedGpu, gpus: Sequence[Gpu | None]) -> ColocationGroup:
    """Who leads is who has the GPU that is kept."""
    rows = sorted(bundle.rows, key=lambda row: (bundle.gpu is None or gpus[row] != bundle.gpu, row))
    return ColocationGroup(tuple(rows), -1 if bundle.gpu is None else rows[0])


def _joined(
    demand: RoundDemand, parts: Floats, found: Sequence[tuple[ColocationGroup, _SharedGpu]], small: Mask, suits: Mask
) -> RoundDemand:
    """Put what bundles are owed on their types into the rows of their first jobs; suits: (N, K) where each bundle can be."""
    deficits, fractions, received = demand.deficits.copy(), demand.fractions.copy(), demand.received.copy()
    runnable, on, restarts = demand.runnable.copy(), demand.running_on.copy(), demand.restart_rounds.copy()
    new, promised = demand.new.copy(), demand.promised.copy()
    for table in (deficits, fractions, received):
        table[small] = 0.0
    runnable[small], on[small] = False, -1
    owed = (demand.claims > 0) | demand.running
    for crew, bundle in found:
        first, rows, j = crew.rows[0], list(crew.rows), bundle.type
        restarts[first], new[first] = parts[rows] @ demand.restart_rounds[rows], demand.new[rows].all()
        promised[first] = demand.promised[rows].min()
        if not bundle.owed:
            runnable[first] = suits[first]
            continue
        weights = parts[rows] * owed[rows, j]
        for table, before in ((deficits, demand.deficits), (fractions, demand.fractions), (received, demand.received)):
            table[first, j] = weights @ before[rows, j]
        runnable[first, j], on[first] = True, j if crew.holder >= 0 else -1
    return replace(
        demand,
        deficits=deficits,
        fractions=fractions,
        received=received,
        runnable=runnable,
        running_on=on,
        restart_rounds=restarts,
        new=new,
        promised=promised,
    )
