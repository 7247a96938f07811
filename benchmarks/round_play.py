"""Rounds of a scene under a mechanism, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from round_scenes import SIZES, Phase, Scene

import gavel_py as gp
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.demand import Mechanism, RoundDemand
from gavel_py.scheduling.round import Assignment
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
    names, sizes = scene.cluster.accelerator_names, np.array([job.num_gpus for job in scene.jobs])
    outcome = Outcome(sizes, *(np.zeros((len(sizes), len(names))) for _ in range(2)))
    ledger, had = DeliveryLedger(names), np.zeros((len(sizes), len(names)))
    held: dict[str, Assignment] = {}
    number = 0
    for phase in scene.phases:
        if resets:
            had[:] = 0.0
        jobs = [scene.jobs[row] for row in phase.rows]
        for _ in range(phase.rounds):
            asked = demand_of(phase, ledger, held, had[phase.rows], ~outcome.delivered[phase.rows].any(axis=1))
            plan = plan_round(asked, jobs, names, scene.cluster.nodes, held, rule) if placed else counted(asked, jobs, names, rule)
            columns = columns_of(phase, plan)
            ledger.record(phase.problem.job_ids, asked.num_gpus, asked.runnable, phase.fractions, columns, 1.0)
            ran = columns[:, None] == np.arange(len(names))
            outcome.restarts += sum(held.get(i) != now and outcome.delivered[row].any() for i, now, row in _placed(phase, plan))
            had[phase.rows] += ran
            outcome.promised[phase.rows] += phase.fractions
            outcome.delivered[phase.rows] += ran
            outcome.worst = max(outcome.worst, float((outcome.promised - outcome.delivered).max()))
            outcome.running += len(plan)
            _count_idle(outcome, asked, columns)
            held, number = plan, number + 1
            if number in at:
                outcome.short_after[number] = outcome.undelivered(), outcome.by_size
    return outcome


def demand_of(
    phase: Phase, ledger: DeliveryLedger, held: dict[str, Assignment], received: Floats, new: NDArray[np.bool_]
) -> RoundDemand:
    """Run a round; new: the jobs that have never run."""
    problem = phase.problem
    return RoundDemand(
        deficits=ledger.deficits(problem.job_ids),
        fractions=phase.fractions,
        runnable=problem.runnable,
        throughputs=problem.throughputs,
        num_gpus=problem.num_gpus.astype(np.int64),
        capacities=problem.capacities.astype(np.int64),
        running_on=columns_of(phase, held),
        backfill=True,
        received=received,
        new=new,
        promised=ledger.promised(problem.job_ids).sum(axis=1),
    )


def columns_of(phase: Phase, plan: dict[str, Assignment]) -> Indices:
    numbers = {name: column for column, name in enumerate(phase.problem.accelerator_types)}
    return np.array([numbers[plan[i].accelerator] if i in plan else -1 for i in phase.problem.job_ids], dtype=np.int64)


def counted(asked: RoundDemand, jobs: list[gp.Job], names: tuple[str, ...], rule: Mechanism) -> dict[str, Assignment]:
    chosen = zip(jobs, rule(asked).tolist(), strict=True)
    return {job.job_id: Assignment(names[column], []) for job, column in chosen if column >= 0}


def _placed(phase: Phase, plan: dict[str, Assignment]) -> list[tuple[str, Assignment, int]]:
    return [(i, plan[i], row) for i, row in zip(phase.problem.job_ids, phase.rows.tolist(), strict=True) if i in plan]


def _count_idle(outcome: Outcome, asked: RoundDemand, columns: Indices) -> None:
    used = np.bincount(columns[columns >= 0], weights=asked.num_gpus[columns >= 0], minlength=len(asked.capacities))
    free = asked.capacities - used
    could = asked.runnable & (columns < 0)[:, None] & (asked.num_gpus[:, None] <= free)
    outcome.idle += int(free[could.any(axis=0)].sum())
