"""Decisions between which little changes: an ordered policy's pass over jobs that are kept in order, and places for who starts.

It is the same decision as that of `Chooser`, which asks the policy about all jobs anew, wherever this one is made at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from gavel_py.errors import ProofError
from gavel_py.job_arrays import Profile
from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.rounds.assignment import Assignment
from gavel_py.rounds.gang_on_type import GangOnType
from gavel_py.rounds.kept_gpus import KeptGpus
from gavel_py.rounds.line import InLine, Line, can_keep_order
from gavel_py.rounds.scheduler_state import SchedulerState
from gavel_py.rounds.scores import hysteresis_of
from gavel_py.rounds.traits import Looker

__all__ = ["InTurn", "Turns"]


PROOF_EVERY = 1_000
"""So often, a decision is compared with that of the policy on the whole problem, with its proof."""


@dataclass(frozen=True)
class Turns:
    """What was decided: who runs where; who can run nowhere, and why; given: the type on which each job has all of its time."""

    assignments: dict[str, Assignment]
    excluded: dict[str, str]
    given: Callable[[], dict[str, str]]


class InTurn:
    """What is kept for one policy and one cluster; the settings are those of `RoundScheduler`."""

    @staticmethod
    def can(policy: Policy, state: SchedulerState) -> bool:
        """Say whether decisions under this policy on this cluster may be made in turn."""
        if not isinstance(policy, OrderedPolicy) or policy.fractional or policy.constraints or not can_keep_order(policy):
            return False
        return all(node.cpus is None and node.memory_gb is None for node in state.nodes.cluster.nodes)

    def __init__(
        self,
        policy: OrderedPolicy,
        state: SchedulerState,
        profile: Profile,
        *,
        whole_gangs: bool,
        restart_seconds: float,
        round_seconds: float,
    ) -> None:
        cluster = state.nodes.cluster
        self._profile = profile
        self.policy, self._restart_seconds, self._round_seconds = policy, restart_seconds, round_seconds
        self.looker = Looker(policy, state.nodes, profile, whole_gangs, state.rows)
        self._line = Line(policy, self.looker)
        self._gpus = KeptGpus(cluster.nodes, self._gang)
        self._names = cluster.accelerator_names
        self._columns = {name: column for column, name in enumerate(self._names)}
        self._capacities = cluster.capacities.tolist()
        numbers = self._gpus.layout.type_number
        self._column_of = {number: self._columns[name] for name, number in numbers.items()} | {-1: -1}
        self._last: tuple[list[InLine], list[int]] = ([], [])
        self._decisions = 0
        self._kept_for: dict[tuple[int, float], float] = {}
        self._changed: set[str] = set()
        state.book.touched |= set(state.book.jobs)

    def holds_for(self, policy: Policy, profile: Profile, restart_seconds: float) -> bool:
        """Say whether what is kept is that for these."""
        return policy is self.policy and profile is self._profile and restart_seconds == self._restart_seconds

    @property
    def is_to_be_proven(self) -> bool:
        """Whether the policy is to be asked about all jobs now, to see that it comes to the same."""
        return self._decisions % PROOF_EVERY == 1

    def decide(self, state: SchedulerState) -> Turns | None:
        """Return the decision, None where `Chooser` has to make it: jobs are owed time, nodes are down, a gang has to make room."""
        self._changed |= state.book.touched
        if not self._line.follow(state.book) or not state.nodes.all_up or state.ledger.owes_any_of(self._line.of):
            return None
        if not state.running.keys() <= self._line.of.keys():
            return None
        self._gpus.follow(state.running, self._changed)
        self._changed = set()
        order = self._line.order.copy()
        runs = self._runs(order)
        seats = self._seats(order, runs)
        self._last = order, seats
        assignments = self._placed(order, runs, seats, state.running)
        if assignments is None:
            return None
        self._decisions += 1
        return Turns(assignments, self._line.excluded, partial(self._given, order, seats))

    def _runs(self, order: list[InLine]) -> list[int]:
        """The column on which each job runs, -1 for none."""
        type_of, columns = self._gpus.type_of, self._column_of
        return [columns[type_of.get(each.job_id, -1)] for each in order]

    def _seats(self, order: list[InLine], runs: list[int]) -> list[int]:
        """The column on which each job is given all of its time, -1 for none.

        Where whoever comes first is served first, only jobs behind the first that is another than last time can have changed.
        """
        before, had = self._last
        first = next((i for i, (each, then) in enumerate(zip(order, before, strict=False)) if each is not then), None)
        same = min(len(order), len(before)) if first is None else first
        if not self.policy.preemptive:
            same = 0
        seats, free = had[:same], self._capacities.copy()
        for each, seat in zip(order, seats, strict=False):
            if seat >= 0:
                free[seat] -= each.traits.size
        rest = order[same:]
        if -1 in seats and not self.policy.backfill:
            return seats + [-1] * len(rest)
        left = free.copy()
        sizes = [each.traits.size for each in rest]
        found, _ = self.policy.seats([each.traits.wishes for each in rest], sizes, runs[same:], left)
        self._check(rest, found, free)
        return seats + found

    def _given(self, order: list[InLine], seats: list[int]) -> dict[str, str]:
        return {each.job_id: self._names[seat] for each, seat in zip(order, seats, strict=True) if seat >= 0}

    def _placed(
        self, order: list[InLine], runs: list[int], seats: list[int], running: Mapping[str, Assignment]
    ) -> dict[str, Assignment] | None:
        """Who holds what, with a place for all that have a seat, None if there is not."""
        gpus, stop, start = self._gpus, set(), []
        if runs != seats:
            other = [(each, had, seat) for each, had, seat in zip(order, runs, seats, strict=True) if had != seat]
            stop = {each.job_id for each, had, _ in other if had >= 0}
            start = [self._gang(each.job_id, self._names[seat]) for each, _, seat in other if seat >= 0]
        for job_id in stop:
            gpus.release(job_id)
        found = gpus.place(start)
        if found is None:
            return None
        if not stop and not found:
            return dict(running)
        left = {job_id: held for job_id, held in running.items() if job_id not in stop} | found
        return {job_id: left[job_id] for job_id in sorted(left)} if found else left

    def _gang(self, job_id: str, accelerator: str) -> GangOnType:
        each, column = self._line.of[job_id], self._columns[accelerator]
        traits = each.traits
        restart = self._restart_seconds if each.restart_seconds is None else each.restart_seconds
        key = traits.size, restart
        if key not in self._kept_for:
            rounds = np.array([restart]) / self._round_seconds
            self._kept_for[key] = float(hysteresis_of(np.ones(1), np.array([traits.size]), rounds)[0])
        number = self._gpus.layout.type_number[accelerator]
        kind, fewest = traits.kinds[column], traits.fewest[column]
        return GangOnType(job_id, number, traits.size, traits.scope, kind, fewest, each.natural, self._kept_for[key])

    def _check(self, order: list[InLine], seats: list[int], free: list[float]) -> None:
        """Prove that time is given only where jobs can run, and no more of it than there are GPUs. Raises `ProofError`."""
        left = free.copy()
        for each, seat in zip(order, seats, strict=True):
            if seat >= 0:
                left[seat] -= each.traits.size
                if seat not in each.traits.wishes:
                    raise ProofError(f"job {each.job_id!r} was given time where it cannot run")
        if min(left, default=0) < 0:
            raise ProofError("more GPUs were given than there are")
