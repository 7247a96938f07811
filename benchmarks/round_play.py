"""Rounds of a scene under a mechanism, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from round_scenes import SIZES, Phase, Scene

from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import HeldGpus, ResourceRequests, Spans
from gavel_py.scheduling.placement.topology import Layout
from gavel_py.scheduling.round_planning import plan_round

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass
class Outcome:
    """Sums over all rounds; promised, delivered: (N, K) rounds of each job of the scene.

    short_after: {rounds: undelivered share}; worst: the largest deficit of any job on any type after any round;
    running, restarts: jobs, one per round; idle: GPUs that a waiting job could have used.
    """

    sizes: Indices
    promised: Floats
    delivered: Floats
    short_after: dict[int, tuple[float, dict[int, float]]] = field(default_factory=dict)
    worst: float = 0.0
    running: int = 0
    restarts: int = 0
    idle: int = 0

    def undelivered(self, size: int | None = None) -> float:
        """Σ s·max(0, promised − delivered) / Σ s·promised, of all jobs or those of one gang size."""
        rows = slice(None) if size is None else self.sizes == size
        short = np.maximum(0.0, self.promised - self.delivered)[rows].sum(axis=1) @ self.sizes[rows]
        return float(short / max(1e-9, self.promised[rows].sum(axis=1) @ self.sizes[rows]))

    @property
    def by_size(self) -> dict[int, float]:
        return {size: self.undelivered(size) for size in SIZES}

    @property
    def restart_rate(self) -> float:
        return self.restarts / max(1, self.running)


def play(scene: Scene, rule: Mechanism, *, resets: bool = True, at: tuple[int, ...] = (), placed: bool = True) -> Outcome:
    """Run all phases of a scene. resets: whether rounds received under the last allocation are dropped with it.

    placed: if not, GPUs are only counted, and a job restarts when it resumes or changes its type.
    """
    cluster, names, sizes = scene.cluster, scene.cluster.accelerator_names, np.array([job.num_gpus for job in scene.jobs])
    promised, delivered, had = np.zeros((3, len(sizes), len(names)))
    outcome, ledger = Outcome(sizes, promised, delivered), DeliveryLedger(names)
    ledger.fit(len(sizes))
    layout, spans = Layout(cluster.nodes, names), Spans(cluster)
    held = HeldGpus.none(len(sizes))  # of all jobs of the scene
    number = 0
    for phase in scene.phases:
        if resets:
            had[:] = 0.0
        rows = phase.rows
        requests = ResourceRequests.of([scene.jobs[row] for row in rows], layout)
        for _ in range(phase.rounds):
            previous, has_run = held.take(rows), outcome.delivered[rows].sum(axis=1) > 0
            asked = demand_of(phase, ledger, previous.types, had[rows], ~has_run)
            plan = plan_round(asked, requests, FreeResources(layout), spans, previous, rule) if placed else counted(rule(asked))
            ledger.begin_round(1.0)
            ledger.record(rows, phase.problem.num_gpus, asked.runnable, phase.fractions, plan.types)
            ran = plan.types[:, None] == np.arange(len(names))
            outcome.restarts += int((plan.runs & ~plan.same_as(previous) & has_run).sum())
            had[rows] += ran
            outcome.promised[rows] += phase.fractions
            outcome.delivered[rows] += ran
            outcome.worst = max(outcome.worst, float((outcome.promised - outcome.delivered).max()))
            outcome.running += int(plan.runs.sum())
            _count_idle(outcome, asked, plan.types)
            held, number = HeldGpus.none(len(sizes)).replaced(rows, plan), number + 1
            if number in at:
                outcome.short_after[number] = outcome.undelivered(), outcome.by_size
    return outcome


def demand_of(phase: Phase, ledger: DeliveryLedger, running_on: Indices, received: Floats, new: NDArray[np.bool_]) -> RoundDemand:
    """Return the demand of a round; running_on: the types of the previous round; new: the jobs that have never run."""
    problem = phase.problem
    return RoundDemand(
        deficits=ledger.deficits[phase.rows],
        fractions=phase.fractions,
        runnable=problem.runnable,
        throughputs=problem.throughputs,
        num_gpus=problem.num_gpus.astype(np.int64),
        capacities=problem.capacities.astype(np.int64),
        running_on=running_on,
        backfill=True,
        received=received,
        new=new,
        promised=ledger.promised[phase.rows].sum(axis=1),
    )


def counted(columns: Indices) -> HeldGpus:
    """Return gangs on types, without GPUs."""
    return HeldGpus(columns, np.zeros(len(columns) + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _count_idle(outcome: Outcome, asked: RoundDemand, columns: Indices) -> None:
    used = np.bincount(columns[columns >= 0], weights=asked.num_gpus[columns >= 0], minlength=len(asked.capacities))
    free = asked.capacities - used
    could = asked.runnable & (columns < 0)[:, None] & (asked.num_gpus[:, None] <= free)
    outcome.idle += int(free[could.any(axis=0)].sum())
