"""Decisions between which little changes: an ordered policy's pass over jobs that are kept in order, and places for who starts.

It is the same decision as that of `Chooser`, which asks the policy about all jobs anew, wherever this one is made at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.from_jobs import Profile
from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.event_driven.gang_on_type import GangOnType
from gavel_py.scheduling.event_driven.kept_gpus import KeptGpus
from gavel_py.scheduling.event_driven.line import BY_PLACE, InLine, Line, can_keep_order
from gavel_py.scheduling.event_driven.seating import Seating
from gavel_py.scheduling.event_driven.traits import Looker
from gavel_py.scheduling.mechanism.scores import hysteresis_of
from gavel_py.scheduling.scheduler_state import SchedulerState

__all__ = ["InTurn", "Turns"]


PROOF_EVERY = 1_000
"""So often, a decision is compared with that of the policy on the whole problem, with its proof."""


@dataclass(frozen=True)
class Turns:
    """What was decided: who runs where, all of its time; who can run nowhere, and why; moved: all who hold other GPUs than when the
    latest round began or get others now, None where that may be anybody.
    """

    assignments: dict[str, Assignment]
    excluded: dict[str, str]
    moved: Set[str] | None

    def given(self) -> dict[str, str]:
        """Return the type on which each job has all of its time."""
        return {job_id: held.accelerator for job_id, held in self.assignments.items()}


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
        self._seating = Seating(policy, cluster.capacities.tolist())
        numbers = self._gpus.layout.type_number
        self._column_of = {number: self._columns[name] for name, number in numbers.items()} | {-1: -1}
        self._decisions = 0
        self._kept_for: dict[tuple[int, float], float] = {}
        self._changed: set[str] = set()
        self._latest: tuple[Turns, set[str]] | None = None
        state.book.follow()

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
        among, self._latest = self._unsure(state), None  # where this goes wrong, nothing is sure
        if not self._may_go_on(state.running, among):
            return None
        self._gpus.follow(state.running, self._changed, among)
        if among is None:
            self._seating.clear()
        changed, self._changed = self._changed, set()
        seated = self._seating.follow(self._line.order, changed, self._runs)
        stop, start = self._other(self._line.of.keys() | state.running.keys() if among is None else among | seated)
        found = self._placed(stop, start)
        if found is None:
            return None
        self._decisions += 1
        before, now = state.gangs.moved, {*stop, *found}
        moved = None if before is None else before | now
        self._latest = Turns(_with(state.gangs.as_now(), stop, found), self._line.excluded, moved), now
        return self._latest[0]

    def _unsure(self, state: SchedulerState) -> Set[str] | None:
        """The jobs that may run elsewhere than when the latest decision was made, or be others than then, None where any may."""
        if self._latest is None or state.gangs.moved is None:
            return None
        turns, now = self._latest
        # What was decided may have begun as it was, or else only in part, after this or that has happened.
        began = state.last is not None and state.last.assignments is turns.assignments
        return state.gangs.moved | self._changed | now if began else None

    def _may_go_on(self, running: Mapping[str, Assignment], among: Set[str] | None) -> bool:
        """Say whether all that run are in line, and share their GPUs with nobody."""
        known = self._line.of
        there = running.keys() if among is None else running.keys() & among
        return all(job_id in known and not running[job_id].shared_with for job_id in there)

    def _runs(self, order: Sequence[InLine]) -> list[int]:
        """The column on which each of these jobs runs, -1 for none."""
        type_of, columns = self._gpus.type_of, self._column_of
        return [columns[type_of.get(each.job_id, -1)] for each in order]

    def _other(self, among: Set[str]) -> tuple[list[str], list[GangOnType]]:
        """Those of these jobs that have to stop where they run, and those that are to start, in the order of the line."""
        type_of, stop, start = self._gpus.type_of, [], []
        for job_id in among:
            each = self._line.of.get(job_id)
            runs, seat = self._column_of[type_of.get(job_id, -1)], self._seating.column_of(each)
            if runs != seat and runs >= 0:
                stop.append(job_id)
            if runs != seat and seat >= 0 and each is not None:
                start.append(each)
        start.sort(key=BY_PLACE)
        return stop, [self._gang(each.job_id, self._names[self._seating.column_of(each)]) for each in start]

    def _placed(self, stop: Iterable[str], start: Sequence[GangOnType]) -> dict[str, Assignment] | None:
        """Who gets other GPUs than it had, with a place for all that are to start, None if there is not."""
        for job_id in stop:
            self._gpus.release(job_id)
        return self._gpus.place(start)

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


def _with(running: dict[str, Assignment], stop: Sequence[str], found: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """Who holds what once some have stopped and others have got other GPUs."""
    if not stop and not found:
        return running
    held = running.copy()
    for job_id in stop:
        del held[job_id]
    if not found:
        return held
    held |= found
    names = sorted(held)
    return dict(zip(names, map(held.__getitem__, names), strict=True))
