"""Packing of fractional jobs, which request a part of one GPU, onto whole GPUs before the mechanism selects jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.eligibility import GpuMemory
from gavel_py.scheduling.colocation.groups import ColocationGroup, ColocationGroups
from gavel_py.scheduling.mechanism.demand import RoundDemand, hysteresis_of, rounded

ROUNDING = 1e-9
"""Tolerance of sums of parts: ten tenths are one GPU."""


@dataclass
class _SharedGpu:
    """Jobs that share one GPU of a type."""

    type: int  # column of the type
    memory_left: float  # free GPU memory in GB
    gpu: int | None = None  # the GPU that these jobs hold now and keep, None for any
    has_claim: bool = True  # whether a job has a claim; otherwise the group may go to any type
    left: float = 1.0  # the free part of the GPU
    rows: list[int] = field(default_factory=list)  # the jobs

    def as_group(self, gpus: Sequence[int | None]) -> ColocationGroup:
        """Return the jobs as a group, led by the first job that holds the GPU."""
        rows = sorted(self.rows, key=lambda row: (self.gpu is None or gpus[row] != self.gpu, row))
        return ColocationGroup(tuple(rows), -1 if self.gpu is None else rows[0])


def pack_fractional(groups: ColocationGroups, parts: Floats, memory: GpuMemory, gpus: Sequence[int | None]) -> ColocationGroups:
    """Return the groups with one more for each GPU that fractional jobs are to share.

    Each job goes to the type of its largest claim; the claim gains its hysteresis (`hysteresis_of`) where the job runs. Jobs that
    already run there stay together with the jobs on the same GPU. The others follow in the order of their claims: each goes to the
    GPU of its type with enough memory that it fills best, or to a new one. With `backfill`, jobs without a claim fill the rest. A
    group claims Σ_i s_i (D_ij + X_ij) on its type, and takes one GPU.

    Args:
        groups: Groups of jobs that share whole GPUs.
        parts: (N,) s_i, 1 for whole gangs.
        memory: GPU memory of the jobs and types.
        gpus: For each job, the number of the first GPU that it holds now.
    """
    small = (parts < 1) & groups.demand.runnable.any(axis=1) & ~groups.demand.locked
    if not small.any():
        return groups
    packing = _Packing(groups.demand, parts, memory, gpus)
    packing.pack(np.flatnonzero(small))
    found = [(shared.as_group(gpus), shared) for shared in packing.shared_gpus]
    demand = _joint_demand(groups.demand, parts, found, small, packing.suitable_types(found))
    return ColocationGroups((*groups.groups, *(group for group, _ in found)), demand)


class _Packing:
    """Shared GPUs while they are filled; arguments as for `pack_fractional`."""

    def __init__(self, demand: RoundDemand, parts: Floats, memory: GpuMemory, gpus: Sequence[int | None]) -> None:
        self._demand, self._parts, self._gpus = demand, parts, gpus
        self._needed, self._memory = np.nan_to_num(memory.needed), np.where(np.isnan(memory.capacity), np.inf, memory.capacity)
        self.shared_gpus: list[_SharedGpu] = []

    def pack(self, rows: Indices) -> None:
        """Assign each of these jobs to a shared GPU."""
        scores = self._scores(rows)
        best, highest = scores.argmax(axis=1), scores.max(axis=1)
        order = [place for place in np.argsort(-highest, kind="stable").tolist() if highest[place] > 0]
        types, running = best.tolist(), self._demand.running_on[rows].tolist()
        stays = {place for place in order if running[place] == types[place] and self._gpus[rows[place]] is not None}
        on: dict[int, _SharedGpu] = {}
        for place in [*filter(stays.__contains__, order), *(place for place in order if place not in stays)]:
            row, gpu = int(rows[place]), self._gpus[rows[place]] if place in stays else None
            if self._place(row, [types[place]], on.get(gpu) if gpu is not None else None) is None:
                shared = self._open(row, types[place], gpu if gpu not in on else None)
                if shared.gpu is not None:
                    on[shared.gpu] = shared
        if self._demand.backfill:
            self._fill(rows[highest <= 0])

    def suitable_types(self, found: Sequence[tuple[ColocationGroup, _SharedGpu]]) -> Mask:
        """Return (N, K) the types on which all jobs of a group can run and fit together, in the row of its first job."""
        suitable = np.zeros_like(self._demand.runnable)
        for group, _ in found:
            rows = list(group.rows)
            fits = self._needed[rows].sum(axis=0) <= self._memory * (1 + ROUNDING)
            suitable[rows[0]] = self._demand.runnable[rows].all(axis=0) & fits
        return suitable

    def _scores(self, rows: Indices) -> Floats:
        """Return (M, K) claims, with hysteresis where the job runs, -inf where it has none or may not run."""
        demand, restarts = self._demand, self._demand.restart_rounds[rows][:, None]
        claims = rounded(demand.deficits[rows] + demand.fractions[rows])
        hysteresis = hysteresis_of(demand.fractions[rows], np.ones((len(rows), 1), dtype=np.int64), restarts)
        has_claim = (claims > 0) | (demand.running[rows] & (demand.fractions[rows] > 0))
        scores: Floats = np.where(demand.runnable[rows] & has_claim, claims + hysteresis * demand.running[rows], -np.inf)
        return scores

    def _fill(self, rows: Indices) -> None:
        """Assign jobs without a claim to the remaining parts of GPUs, each where it is fastest."""
        for row in rows.tolist():
            types = np.argsort(-self._demand.throughputs[row], kind="stable")
            runnable = [j for j in types.tolist() if self._demand.runnable[row, j]]
            if self._place(row, runnable, None) is None:
                self._open(row, runnable[0], None).has_claim = False

    def _place(self, row: int, types: Sequence[int], wanted: _SharedGpu | None) -> _SharedGpu | None:
        """Add a job to the wanted GPU, or else to the one that it fills best on the first of these types with room."""
        for j in types:
            fitting = [shared for shared in self._on(j, wanted) if self._fits(row, shared)]
            if fitting:
                return self._put(row, min(fitting, key=lambda shared: shared.left))
        return None

    def _on(self, j: int, wanted: _SharedGpu | None) -> Iterator[_SharedGpu]:
        return (shared for shared in self.shared_gpus if shared.type == j and (wanted is None or shared is wanted))

    def _fits(self, row: int, shared: _SharedGpu) -> bool:
        enough = self._parts[row] <= shared.left + ROUNDING
        return bool(enough and self._needed[row, shared.type] <= shared.memory_left * (1 + ROUNDING))

    def _open(self, row: int, j: int, gpu: int | None) -> _SharedGpu:
        """Return a new shared GPU with this job on it."""
        self.shared_gpus.append(_SharedGpu(j, float(self._memory[j]), gpu))
        return self._put(row, self.shared_gpus[-1])

    def _put(self, row: int, shared: _SharedGpu) -> _SharedGpu:
        shared.rows.append(row)
        shared.left -= float(self._parts[row])
        shared.memory_left -= float(self._needed[row, shared.type])
        return shared


def _joint_demand(
    demand: RoundDemand, parts: Floats, found: Sequence[tuple[ColocationGroup, _SharedGpu]], small: Mask, suitable: Mask
) -> RoundDemand:
    """Return the demand with each group's claims on its type in the row of its first job, and none in those of the others."""
    joint = demand.copy()
    for table in (joint.deficits, joint.fractions, joint.received):
        table[small] = 0.0
    joint.runnable[small], joint.running_on[small] = False, -1
    has_claim = (demand.claims > 0) | demand.running
    for group, shared in found:
        first, rows, j = group.rows[0], list(group.rows), shared.type
        joint.restart_rounds[first], joint.new[first] = parts[rows] @ demand.restart_rounds[rows], demand.new[rows].all()
        joint.promised[first] = demand.promised[rows].min()
        if not shared.has_claim:
            joint.runnable[first] = suitable[first]
            continue
        weights = parts[rows] * has_claim[rows, j]
        joint.deficits[first, j] = weights @ demand.deficits[rows, j]
        joint.fractions[first, j] = weights @ demand.fractions[rows, j]
        joint.received[first, j] = weights @ demand.received[rows, j]
        joint.runnable[first, j], joint.running_on[first] = True, j if group.holder >= 0 else -1
    return joint
