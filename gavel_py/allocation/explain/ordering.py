"""Why a job has no more under a policy that serves jobs in an order: what was gone when it was its turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explain.duals import could_use, is_all, time_binding
from gavel_py.allocation.explain.records import Binding
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.optimization.linear_rows import Rules
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.problem import AllocationProblem

__all__ = ["Turn", "turn_bindings", "turn_of"]

Floats = NDArray[np.float64]

Indices = NDArray[np.int64]

Mask = NDArray[np.bool_]

SOME = 1e-9

"""A part of a job's time below this is not taken."""


@dataclass(frozen=True, eq=False)
class Turn:
    """The turn of one job among those that can run.

    at: its row; fractions: (G, K) what they have; places: (G,) their places in the order, from 0.
    """

    policy: OrderedPolicy
    jobs: JobClasses
    at: int
    fractions: Floats
    places: Indices

    @property
    def before(self) -> Mask:
        """(G,) the jobs served before it."""
        earlier: Mask = self.places < self.places[self.at]
        return earlier

    @property
    def useful(self) -> Mask:
        """(K,) the types that could make it faster, as the policy sees it."""
        return could_use(self.jobs.throughputs[self.at], self.jobs.runnable[self.at], self.fractions[self.at])

    @property
    def held(self) -> Floats:
        """(K,) GPUs that those before it hold."""
        gpus: Floats = np.where(self.before, self.jobs.num_gpus, 0.0) @ self.fractions
        return gpus

    @property
    def gone(self) -> Mask:
        """(K,) the types that it could use, and of which too little was left."""
        return self.useful & self._short((self.jobs.capacities - self.held) / self.jobs.num_gpus[self.at])

    @property
    def used_up(self) -> Mask:
        """(R,) the upper limits of which too little was left for it on a type that it could use."""
        costs, most = self.jobs.limit_tables
        left = most - np.einsum("rgk,gk->r", costs[:, self.before], self.fractions[self.before])
        own = np.where(self.useful, costs[:, self.at], 0.0).max(axis=1, initial=0.0)
        parts = np.divide(left, own, out=np.ones_like(left), where=own > 0)
        used_up: Mask = (most >= 0) & (own > 0) & self._short(parts)
        return used_up

    @property
    def blocker(self) -> str | None:
        """The first job that did not fit and that nobody may pass, if it came before this one."""
        waiting = np.flatnonzero(self.before & ~is_all(self.fractions))
        if self.policy.backfill or not len(waiting):
            return None
        return self.jobs.example(int(waiting[self.places[waiting].argmin()]))

    def _short(self, parts: Floats) -> Mask:
        """Where the part of its time that it could have is too little to be taken."""
        short: Mask = parts <= SOME if self.policy.fractional else parts < 1 - SOME
        return short


def turn_of(policy: OrderedPolicy, problem: AllocationProblem, rules: Rules, fractions: Floats, i: int) -> Turn:
    """Return the turn of job i, given (N, K) the fractions of an allocation under this policy."""
    jobs = policy.view(separate_jobs(problem, policy.name, policy.reads, rules))
    shown, order = fractions[jobs.jobs], policy.serve(jobs)[1]
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return Turn(policy, jobs, int(np.searchsorted(jobs.jobs, i)), shown, places)


def turn_bindings(turn: Turn) -> Iterator[Binding]:
    """Yield why the job has no more than it has."""
    time = time_binding(turn.jobs, turn.at, turn.fractions[turn.at], turn.jobs.accelerator_types)
    if time is not None:
        yield time
    if not turn.useful.any():
        return
    place = f"it is number {turn.places[turn.at] + 1} of {len(turn.jobs)} in the order"
    yield Binding("order", turn.policy.name, None, place)
    if turn.blocker is not None:
        text = f"{turn.blocker} comes before it and does not fit, and nobody passes without `backfill`"
        yield Binding("order", turn.blocker, None, text)
    for r in np.flatnonzero(turn.used_up).tolist():
        name = turn.jobs.rules.hard_rows[r].name
        yield Binding("limit", name, None, f"{name} was used up by jobs before it")
    yield from (_gone(turn, j) for j in np.flatnonzero(turn.gone).tolist())


def _gone(turn: Turn, j: int) -> Binding:
    name, gang = turn.jobs.accelerator_types[j], turn.jobs.num_gpus[turn.at]
    count = int((turn.before & (turn.fractions[:, j] > SOME)).sum())
    jobs = "1 job" if count == 1 else f"{count} jobs"
    text = f"{name} was taken: {jobs} before it had {turn.held[j]:.4g} of {turn.jobs.capacities[j]:g} GPUs"
    return Binding("gpus", name, None, text + (f", and its gang needs {gang:.0f}" if gang > 1 else ""))
