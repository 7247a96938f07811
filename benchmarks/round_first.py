"""Rounds of `RoundScheduler`: what the first ones deliver, when jobs start, and which gangs are on one node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from round_exact import silence
from round_scenes import Scene, profile, scene_of
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

import gavel_py as gp

EXAMPLES = Path(__file__).parents[1] / "examples"

SHORT_ROUNDS = 12
"""A job that leaves within this number of rounds is short."""


@dataclass
class Course:
    """The result of a run.

    undelivered, least: {number of rounds: share} undelivered by then, and the lower bound of the delivery report; worst: the
    largest deficit of any job on any type after any round, in rounds; running, restarts: jobs, one per round; waits: rounds to the
    first start of each job that came after the first round and has started; short_jobs: jobs that left within 12 rounds; short,
    short_promised: their shortfall and promise in GPU-seconds; together, at_most: {whether they are promised time on one node
    only: gangs of several GPUs on one node, one per round}, and the number that the best packing would have there.
    """

    undelivered: dict[int, float] = field(default_factory=dict)
    least: dict[int, float] = field(default_factory=dict)
    worst: float = 0.0
    running: int = 0
    restarts: int = 0
    waits: list[int] = field(default_factory=list)
    short_jobs: int = 0
    short: float = 0.0
    short_promised: float = 0.0
    together: Counter[bool] = field(default_factory=Counter)
    at_most: Counter[bool] = field(default_factory=Counter)

    @property
    def restart_rate(self) -> float:
        return self.restarts / max(1, self.running)

    def together_share(self, *promised: bool) -> float:
        """Return the number of gangs on one node over that of the best packing, for gangs with these promises."""
        together, at_most = (sum(counts[key] for key in promised) for counts in (self.together, self.at_most))
        return together / max(1, at_most)


def of_demo(_: int) -> Scene:
    """The jobs and the cluster of `make demo`, for 200 rounds."""
    jobs = list(gp.JobSet.from_file(EXAMPLES / "jobs.csv"))
    return scene_of(jobs, gp.Cluster.from_file(EXAMPLES / "cluster.yaml"), 200)


def course_of(scene: Scene, mechanism: str, at: tuple[int, ...]) -> Course:
    """Run all phases of a scene under `max_min_fairness`; at: the numbers of rounds after which shares are recorded."""
    scheduler = gp.RoundScheduler(scene.cluster, scene.profile, mechanism=mechanism, round_seconds=1.0)
    course, came, ran, there = Course(), dict[str, int](), set[str](), set[str]()
    number = 0
    for phase in scene.phases:
        ids = {scene.jobs[row].job_id for row in phase.rows}
        for job_id in sorted(there - ids):
            scheduler.cancel(job_id)
            _note_short(course, scheduler, job_id, came[job_id], number)
        scheduler.submit_all([scene.jobs[row] for row in phase.rows if scene.jobs[row].job_id not in there])
        came |= dict.fromkeys(ids - there, number)
        there = ids
        for _ in range(phase.rounds):
            begun = scheduler.next_round()
            course.running += len(begun.assignments)
            course.restarts += len(ran.intersection(begun.started))
            _count_together(course, scheduler, begun)
            course.waits += [number - came[job_id] for job_id in begun.started if job_id not in ran and came[job_id]]
            ran.update(begun.started)
            number += 1
            report = scheduler.delivery()
            course.worst = max(course.worst, worst_deficit(report))
            if number in at:
                course.undelivered[number], course.least[number] = report.undelivered_share, report.least_undelivered_share
    return course


def worst_deficit(report: gp.DeliveryReport) -> float:
    """Return the largest deficit of any job on any type, in rounds."""
    accounts = report.jobs.values()
    return max(
        (
            (promised - job.delivered_by_type[name]) / job.round_seconds
            for job in accounts
            for name, promised in job.promised_by_type.items()
        ),
        default=0.0,
    )


def best_first_round(cluster: gp.Cluster, jobs: list[gp.Job]) -> float:
    """Return the least share that any first round leaves undelivered: max Σ s_i X_ij y_ij, y binary, by an exact program."""
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile())
    fractions, sizes = gp.solve(problem, "max_min_fairness").time_fractions, problem.num_gpus
    rows, columns = np.nonzero(fractions > 1e-9)
    pairs, worth = np.arange(len(rows)), (sizes[:, None] * fractions)[rows, columns]
    once = csr_array((np.ones(len(rows)), (rows, pairs)), shape=(len(sizes), len(rows)))
    gpus = csr_array((sizes[rows], (columns, pairs)), shape=(len(problem.capacities), len(rows)))
    limits = [LinearConstraint(once, ub=1), LinearConstraint(gpus, ub=problem.capacities)]
    with silence():
        found = milp(-worth, integrality=np.ones(len(rows)), bounds=Bounds(0, 1), constraints=limits, options={"mip_rel_gap": 1e-9})
    return float(1.0 + found.fun / (sizes @ fractions).sum())


def _note_short(course: Course, scheduler: gp.RoundScheduler, job_id: str, came: int, now: int) -> None:
    """Add the account of a job that has just left."""
    if not 0 < came <= now <= came + SHORT_ROUNDS:
        return
    account = scheduler.delivery().jobs[job_id]
    course.short_jobs += 1
    course.short += account.num_gpus * account.undelivered_seconds
    course.short_promised += account.num_gpus * account.promised_seconds


def _count_together(course: Course, scheduler: gp.RoundScheduler, begun: gp.Round) -> None:
    """Count gangs on one node, separately for those that are promised time on more nodes."""
    cluster, allocation = scheduler.cluster, scheduler.allocation
    assert allocation is not None
    spread = allocation.spread_fractions
    apart = {
        (allocation.job_ids[i], allocation.accelerator_types[j])
        for i, j in (() if spread is None else np.argwhere(np.nan_to_num(spread) > 1e-9).tolist())
    }
    for name in cluster.accelerator_names:
        nodes = np.array([node.num_gpus for node in cluster.nodes_of(name)])
        for alone in (True, False):
            held = [
                each.gpus
                for job_id, each in begun.assignments.items()
                if each.accelerator == name and 1 < len(each.gpus) <= nodes.max() and ((job_id, name) not in apart) == alone
            ]
            course.together[alone] += sum(len({node for node, _ in gpus}) == 1 for gpus in held)
            course.at_most[alone] += most_together(Counter(len(gpus) for gpus in held), nodes)


def most_together(gangs: Counter[int], nodes: NDArray[np.int64]) -> int:
    """Return the largest number of gangs that can each be on one node, if all sizes of gangs and nodes are powers of two.

    Then gangs of at least s GPUs fit on nodes of at least s GPUs if and only if they need no more GPUs in all; the largest are
    split first, since that splits the fewest.
    """
    kept = Counter(gangs)
    for size in sorted(gangs, reverse=True):
        room = int(nodes[nodes >= size].sum())
        for larger in sorted((s for s in kept if s >= size), reverse=True):
            excess = sum(s * count for s, count in kept.items() if s >= size) - room
            kept[larger] -= min(kept[larger], max(0, -(-excess // larger)))
    return kept.total()
