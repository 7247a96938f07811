"""Rounds of `RoundScheduler` as the teams of its jobs see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from round_first import worst_deficit

import gavel_py as gp

Floats = NDArray[np.float64]
DIGITS = 9
"""Of promises and shares: what solvers leave behind these is rounding."""


class Stay(NamedTuple):
    """A job with the round in which it arrives and that in which it has left, None for never."""

    job: gp.Job
    first: int = 0
    end: int | None = None


@dataclass
class Watched:
    """The result of a run of R rounds.

    teams: (T,) sorted; promised, held: (R, T) GPUs; starts: (R,) gangs that start; undelivered: (R,) share of all promises so far;
    worst: the largest deficit of any job on any type after any round, in rounds; running, restarts: jobs, one per round.
    """

    teams: tuple[str, ...]
    promised: Floats
    held: Floats
    starts: list[int] = field(default_factory=list)
    undelivered: list[float] = field(default_factory=list)
    worst: float = 0.0
    running: int = 0
    restarts: int = 0

    @property
    def shortfall(self) -> float:
        """Σ_rt max(0, promised − held) / Σ_rt promised."""
        return float(np.maximum(0.0, self.promised - self.held).sum() / self.promised.sum())

    @property
    def behind(self) -> float:
        """max_rt Σ_{r' ≤ r} (promised − held) / max(1, promised): rounds that a team is owed, where it is promised any GPUs."""
        owed = np.cumsum(self.promised - self.held, axis=0) / np.maximum(1.0, self.promised)
        return float(owed[self.promised > 0].max())

    @property
    def without_gpus(self) -> int:
        """Rounds in which a team that is promised at least one GPU has none, over all teams."""
        return int(((self.promised >= 1) & (self.held == 0)).sum())

    @property
    def first_rounds(self) -> list[int]:
        """(T,) the first round in which a team has GPUs."""
        return (self.held > 0).argmax(axis=0).tolist()  # type: ignore[no-any-return]

    @property
    def restart_rate(self) -> float:
        return self.restarts / max(1, self.running)

    @property
    def rounds_without_start(self) -> int:
        """The largest number of rounds in a row in which no gang starts."""
        changes = [-1, *np.flatnonzero(self.starts).tolist(), len(self.starts)]
        return int(np.diff(changes).max()) - 1

    def summary(self, most: int = 3) -> str:
        """Return the GPUs of all teams in a round with their number of rounds, the most frequent first."""
        counts = Counter("/".join(f"{gpus:.0f}" for gpus in row) for row in self.held.tolist()).most_common()
        rest = sum(count for _, count in counts[most:])
        return ", ".join([*(f"{text}: {count}" for text, count in counts[:most]), *([f"others: {rest}"] if rest else [])])


def watched(
    scheduler: gp.RoundScheduler, stays: Sequence[Stay], rounds: int, team_of: Callable[[gp.Job], str] = lambda job: job.tenant
) -> Watched:
    """Run rounds in which jobs come and go."""
    teams = tuple(sorted({team_of(stay.job) for stay in stays}))
    column = {stay.job.job_id: teams.index(team_of(stay.job)) for stay in stays}
    sizes = {stay.job.job_id: stay.job.num_gpus for stay in stays}
    seen, ran = Watched(teams, *np.zeros((2, rounds, len(teams)))), set[str]()
    for number in range(rounds):
        for stay in stays:
            if stay.end == number:
                scheduler.cancel(stay.job.job_id)
        scheduler.submit_all([stay.job for stay in stays if stay.first == number])
        begun, allocation = scheduler.next_round(), scheduler.allocation
        if allocation is not None:
            for job_id, fraction in zip(allocation.job_ids, allocation.time_fractions.sum(axis=1).tolist(), strict=True):
                seen.promised[number, column[job_id]] += sizes[job_id] * fraction
        for job_id, gang in begun.assignments.items():
            seen.held[number, column[job_id]] += len(gang.gpus)
        report = scheduler.delivery()
        seen.undelivered.append(round(report.undelivered_share, DIGITS))
        seen.worst = max(seen.worst, worst_deficit(report))
        seen.starts.append(len(begun.started))
        seen.running += len(begun.assignments)
        seen.restarts += len(ran.intersection(begun.started))
        ran.update(begun.started)
    seen.promised = seen.promised.round(DIGITS)
    return seen


def least_shortfall(promised: Floats, sizes: Sequence[int], gpus: int) -> float:
    """Return the least team shortfall of whole gangs; promised: (R, T) GPUs; sizes: (T,) the smallest gang of each team."""
    rows, counts = np.unique(promised, axis=0, return_counts=True)
    return float(sum(count * _least(row, sizes, gpus) for row, count in zip(rows.tolist(), counts, strict=True)) / promised.sum())


def _least(promised: Sequence[float], sizes: Sequence[int], gpus: int) -> float:
    """min Σ_t max(0, promised_t − n_t) with Σ_t n_t <= gpus, n_t multiples of the sizes: a dynamic program over GPUs in use."""
    best = np.zeros(gpus + 1)
    for due, size in zip(promised, sizes, strict=True):
        held = range(0, min(gpus, int(due) + size) + 1, size)
        best = np.min([np.pad(best[: gpus + 1 - n], (n, 0), constant_values=np.inf) + max(0.0, due - n) for n in held], axis=0)
    return float(best.min())


@dataclass
class Turns:
    """How jobs that never leave take turns: the longest wait in rounds, the least part of a promise that any job received,
    rounds in which a waiting job would have fitted, and starts per running job-round."""

    longest_wait: int
    least_received: float
    with_room: int
    start_rate: float


def turns_of(scheduler: gp.RoundScheduler, jobs: Sequence[gp.Job], rounds: int) -> Turns:
    """Run rounds of jobs that may have fractions of GPUs."""
    scheduler.submit_all(jobs)
    size_of = {job.job_id: float(job.num_gpus) for job in jobs}
    begun = [scheduler.next_round() for _ in range(rounds)]
    allocation = scheduler.allocation
    assert allocation is not None
    runs = np.array([[job_id in each.assignments for job_id in allocation.job_ids] for each in begun])
    waits = [len(wait) for row in runs.T.tolist() for wait in "".join("01"[ran] for ran in row).split("1")]
    received = runs.mean(axis=0) / allocation.time_fractions.sum(axis=1)
    starts = sum(len(each.started) for each in begun) / runs.sum()
    room = sum(has_room(each, scheduler.cluster, size_of) for each in begun)
    return Turns(max(waits), float(received.min()), room, float(starts))


def has_room(begun: gp.Round, cluster: gp.Cluster, size_of: Mapping[str, float]) -> bool:
    """Return whether a job without GPUs would fit on those that are idle or partly used."""
    free = {(node.name, i): 1.0 for node in cluster.nodes for i in range(node.num_gpus)}
    for job_id, gang in begun.assignments.items():
        for gpu in gang.gpus:
            free[gpu] -= min(1.0, size_of[job_id])
    largest, whole = max(free.values()) + 1e-9, sum(part > 1 - 1e-9 for part in free.values())
    return any(size <= (largest if size < 1 else whole) for job_id, size in size_of.items() if job_id not in begun.assignments)
