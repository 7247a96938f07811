"""Helpers for tests of rounds: a policy with fixed fractions, demands from lists, and rounds on arrays alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import gavel_py as gp
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.placement.free_gpus import FreeResources
from gavel_py.scheduling.placement.gangs import HeldGpus, ResourceRequests, Spans
from gavel_py.scheduling.placement.topology import Layout
from gavel_py.scheduling.round import Assignments
from gavel_py.scheduling.round_planning import plan_round

choose_jobs = gp.scheduling.choose_jobs

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fixed(gp.Policy):
    """A policy that returns fixed fractions {job_id: {accelerator: fraction}}, 0 for all other jobs."""

    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fills: bool = True

    @property
    def backfills(self) -> bool:
        return self.fills

    reads = ("job_ids",)
    reduces = False

    def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:  # noqa: ARG002
        rows = [[self.shares.get(job, {}).get(name, 0.0) for name in jobs.accelerator_types] for job in jobs.job_ids]
        return gp.policies.Decision(np.array(rows))


def demand(
    fractions: ArrayLike,
    capacities: Sequence[int],
    *,
    deficits: ArrayLike = 0.0,
    num_gpus: Sequence[int] | NDArray[np.int64] | None = None,
    throughputs: ArrayLike = 1.0,
    running_on: Sequence[int] | None = None,
    backfill: bool = True,
    received: ArrayLike = 0.0,
    restart_rounds: ArrayLike = 0.0,
    locked: ArrayLike = False,
    new: ArrayLike = False,
    promised: ArrayLike = np.inf,
) -> gp.RoundDemand:
    """Return a demand; by default of waiting single-GPU jobs, equally fast, without deficits. A throughput of 0: not runnable."""
    x = np.array(fractions, dtype=float)
    speeds = np.array(np.broadcast_to(throughputs, x.shape), dtype=float)
    return gp.RoundDemand(
        deficits=np.array(np.broadcast_to(deficits, x.shape), dtype=float),
        fractions=x,
        runnable=speeds > 0,
        throughputs=speeds,
        num_gpus=np.array([1] * len(x) if num_gpus is None else num_gpus, dtype=np.int64),
        capacities=np.array(capacities, dtype=np.int64),
        running_on=np.array([-1] * len(x) if running_on is None else running_on, dtype=np.int64),
        backfill=backfill,
        received=np.array(received, dtype=float),
        restart_rounds=np.array(restart_rounds, dtype=float),
        locked=np.array(locked, dtype=bool),
        new=np.broadcast_to(np.array(new, dtype=bool), len(x)),
        promised=np.array(promised, dtype=float),
    )


@dataclass(frozen=True)
class Played:
    """columns: (rounds, N) where each job ran; deficits: (rounds, N, K) after each round; share: (N, K) of the time received."""

    columns: NDArray[np.int64]
    deficits: Floats

    @property
    def share(self) -> Floats:
        types = np.arange(self.deficits.shape[2])
        share: Floats = (self.columns[:, :, None] == types).mean(axis=0)
        return share

    def line(self, job: int, letters: str = "ABCDEFGH") -> str:
        """The timeline of one job: the letter of its type in each round, or a dot."""
        return "".join(letters[column] if column >= 0 else "." for column in self.columns[:, job])


def play(
    rounds: int, fractions: ArrayLike, capacities: Sequence[int], *, mechanism: Mechanism = choose_jobs, **options: Any
) -> Played:
    """Play rounds of fixed fractions, counting GPUs only."""
    x = np.array(fractions, dtype=float)
    names = [f"type-{j}" for j in range(len(capacities))]
    rows, ledger = np.arange(len(x)), DeliveryLedger(names)
    ledger.fit(len(x))
    running = [-1] * len(x)
    columns, deficits = [], []
    for _ in range(rounds):
        asked = demand(x, capacities, deficits=ledger.deficits, running_on=running, received=ledger.received, **options)
        chosen = mechanism(asked)
        assert_feasible(asked, chosen)
        ledger.begin_round(1.0)
        ledger.record(rows, asked.num_gpus, asked.runnable, x, chosen)
        running = chosen.tolist()
        columns.append(chosen)
        deficits.append(ledger.deficits.copy())
    return Played(np.array(columns), np.array(deficits))


def assert_feasible(asked: gp.RoundDemand, chosen: NDArray[np.int64]) -> None:
    """One type at most per job, only where it may run, and no more GPUs than there are."""
    assert chosen.shape == (len(asked.num_gpus),)
    seated = np.flatnonzero(chosen >= 0)
    assert asked.runnable[seated, chosen[seated]].all()
    used = np.bincount(chosen[seated], weights=asked.num_gpus[seated], minlength=len(asked.capacities))
    assert (used <= asked.capacities).all()


def nodes(*shapes: tuple[int, str | None] | int, accelerator: str = "v100") -> list[gp.Node]:
    """Nodes n0, n1, ... of these sizes, each given as GPUs or (GPUs, rack)."""
    pairs = [shape if isinstance(shape, tuple) else (shape, None) for shape in shapes]
    return [gp.Node(name=f"n{i}", accelerator=accelerator, num_gpus=size, rack=rack) for i, (size, rack) in enumerate(pairs)]


def planned(
    asked: gp.RoundDemand,
    jobs: Sequence[gp.Job],
    cluster: gp.Cluster,
    before: Mapping[str, gp.Assignment],
    mechanism: Mechanism = choose_jobs,
    spans: Spans | None = None,
) -> Mapping[str, gp.Assignment]:
    """Return {job_id: Assignment} of one round of jobs, which must be sorted by their ids; before: those of the last one."""
    layout, ids = Layout(cluster.nodes, cluster.accelerator_names), [job.job_id for job in jobs]
    gpus = [layout.numbers(before[job_id].gpus).tolist() if job_id in before else [] for job_id in ids]
    types = [layout.type_number[before[job_id].accelerator] if job_id in before else -1 for job_id in ids]
    requests = ResourceRequests.of(jobs, layout)
    spans = Spans(cluster) if spans is None else spans
    return named(ids, plan_round(asked, requests, FreeResources(layout), spans, HeldGpus.of(types, gpus), mechanism), layout)


def named(ids: Sequence[str], held: HeldGpus, layout: Layout) -> Assignments:
    """Return the assignments of the jobs that hold GPUs."""
    runs = np.flatnonzero(held.runs)
    return Assignments(tuple(ids[i] for i in runs.tolist()), held.take(runs), layout)


def play_on(
    rounds: int, cluster: gp.Cluster, jobs: Sequence[gp.Job], fractions: Floats, *, backfill: bool = True
) -> tuple[list[Mapping[str, gp.Assignment]], DeliveryLedger]:
    """Play rounds of fixed fractions on a cluster where every job is equally fast on every type that holds its gang.

    The jobs are sorted by their ids; their rows in the ledger are their places.
    """
    names = cluster.accelerator_names
    fits = np.array([[job.num_gpus <= cluster.largest_gang(name, job.locality) for name in names] for job in jobs], dtype=bool)
    ids, layout, ledger = [job.job_id for job in jobs], Layout(cluster.nodes, names), DeliveryLedger(names)
    ledger.fit(len(jobs))
    requests, pool = ResourceRequests.of(jobs, layout), FreeResources(layout)
    held, history = HeldGpus.none(len(jobs)), list[Mapping[str, gp.Assignment]]()
    for _ in range(rounds):
        asked = demand(
            fractions,
            [int(c) for c in cluster.capacities],
            deficits=ledger.deficits,
            num_gpus=[job.num_gpus for job in jobs],
            throughputs=fits.reshape(fractions.shape),
            running_on=held.types.tolist(),
            backfill=backfill,
        )
        held = plan_round(asked, requests, pool, Spans(cluster), held, choose_jobs)
        history.append(named(ids, held, layout))
        ledger.begin_round(1.0)
        ledger.record(np.arange(len(jobs)), asked.num_gpus, asked.runnable, fractions, held.types)
    return history, ledger
