"""The round scheduler: jobs and nodes come and go, and each round says who runs where."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from gavel_py.errors import GavelError, InputError
from gavel_py.io.locking import synchronized
from gavel_py.policies import Policy
from gavel_py.problem.from_jobs import Profile
from gavel_py.scheduling.commit import begin, given_away, in_words
from gavel_py.scheduling.delivery import DeliveryReport, JobDelivery
from gavel_py.scheduling.mechanism import MechanismName
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.round import Lease, Round
from gavel_py.scheduling.scheduler_base import JobEvents, NodeEvents, fault, is_finite
from gavel_py.scheduling.snapshot import OPTIONS, SCHEDULER, Saved
from gavel_py.scheduling.state import PlannedRound

logger = logging.getLogger(__name__)


class RoundScheduler(JobEvents, NodeEvents):
    """Turns a policy's time fractions into rounds: which job runs on which GPUs from one round to the next.

    cluster, allow_unknown_types: what becomes of types that the profile lacks, see `Cluster.known_to`; policy: a name or a `Policy`
    object; round_seconds: length of a round; mechanism: who runs, a name (`resolve_mechanism`) or a function of what is owed;
    restart_seconds: what a restart costs a job that does not say it itself; min_run_seconds: a gang that has started is not
    preempted before it has run so long, unless it loses its GPUs or may no longer run there; whole_gangs, sharing,
    min_gain: see `AllocationProblem.from_jobs`; by_events: rounds begin when something happens, and no time is counted in them, for
    policies that give jobs all of their time or none; solve_seconds: where nothing but jobs has changed, the policy is asked again
    at the earliest so long after it was asked last, as in the published simulator of Gavel (OSDI 2020); jobs that come meanwhile
    get what is left over; time_limit_seconds: a solve that takes longer is ended, the allocation in force stays in force, and the
    next round tries again (`Round.notes`).
    When a job or node came, went or changed, or a job reported progress, the allocation is solved anew for the next round, or once
    `solve_seconds` have passed; else it is kept. A job's account (`delivery`) is kept after it has left, until it is told to
    `forget` it.
    Every round counts as `round_seconds` of promised, delivered and attained time, whenever the next one starts; for a gang that
    loses its GPUs (`node_down`, `gpu_lost`, `interrupted`) as promised only.
    Several threads may use a scheduler, one call at a time, and the policy and mechanism that it asks may call it back; it can be
    copied and pickled. See docs/rounds.md.

    Raises `InputError` (`UnknownNameError`) for a wrong argument.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [2.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    >>> scheduler.submit(gp.Job("a"))
    >>> scheduler.submit(gp.Job("b"))
    >>> scheduler.next_round().assignments
    {'a': Assignment(accelerator='v100', gpus=[('v100-0', 0)])}
    """

    @synchronized
    def plan_next(self, now_seconds: float | None = None) -> Round:
        """Decide the next round ahead and return it, so that jobs can be told before the present one ends who keeps its GPUs.

        now_seconds: when it is to start, as in `next_round`, which then starts this round and no other. What happens in between
        counts for the round after, but that gangs drop out whose GPUs are lost, or that have left, finished or asked for others;
        their GPUs are offered to the rest when the round starts. Asked again, it returns the same. Raises as `next_round`.
        """
        self._state.check_at_rest()
        coming = self._decided(self._start(now_seconds))
        told = in_words(self._state, self._state.plan_still_valid, coming.start_seconds, self.round_seconds)
        return given_away(told)

    @synchronized
    def lease(self, job_id: str) -> Lease | None:
        """Return the lease of a job, None if it holds no GPUs. Raises `UnknownNameError` for a job that is not in the system.

        It says whether it is renewed once the next round has been planned (`plan_next`).
        """
        state = self._state
        held = state.running.get(state.book.known(job_id).job_id)
        if held is None or state.last is None:
            return None
        held = replace(held, gpus=list(held.gpus))
        if state.coming is None:
            return Lease(held, state.last.end_seconds)
        if state.plan_still_valid.get(job_id) != held:
            return Lease(held, state.last.end_seconds, renewed=False)
        return Lease(held, state.coming.start_seconds + self.round_seconds, renewed=True)

    @synchronized
    def next_round(self, now_seconds: float | None = None) -> Round:
        """Start the next round and return it: the one that was planned (`plan_next`), or else one that is decided now.

        now_seconds: its start, by default the one that was planned, or `round_seconds` after the previous one, the first at 0.
        When this raises, the scheduler is as before: `InputError` for a time that goes backwards, and whatever `solve` raises.
        """
        return given_away(self.next_round_to_read(now_seconds))

    @synchronized
    def next_round_to_read(self, now_seconds: float | None = None) -> Round:
        """Start the next round as `next_round` does, for a caller that changes nothing of it: the scheduler uses its parts too.

        It saves a copy of every assignment in every round. Raises as `next_round`.
        """
        self._state.check_at_rest()
        began = time.perf_counter()
        start, state = self._start(now_seconds), self._state
        planned = state.coming is not None
        coming = self._decided(start)
        planned |= state.changed  # what is decided now stands, unless policy or mechanism have reported something meanwhile
        assignments = state.plan_still_valid if planned else coming.assignments
        if len(assignments) < len(coming.assignments):
            assert state.in_force is not None  # noqa: S101
            assignments = self._chooser.chosen(state, state.in_force, assignments)
        moved = None if planned else coming.moved
        begun = in_words(state, assignments, start, self.round_seconds, moved)
        begin(state, begun, self.round_seconds, moved)
        if logger.isEnabledFor(logging.INFO):
            counts = (len(state.book), len(begun.assignments), len(begun.started), len(begun.preempted), len(begun.excluded))
            text = "round %d at %.9g s: %d jobs, %d running, %d started, %d preempted, %d excluded, %.3f s"
            logger.info(text, begun.index, start, *counts, time.perf_counter() - began)
        return begun

    @synchronized
    def delivery(self) -> DeliveryReport:
        """Return what was promised and delivered so far, jobs that have left included; nothing of it is counted `by_events`."""
        return DeliveryReport({}) if self.by_events else self._state.ledger.report()

    @synchronized
    def delivery_of(self, job_id: str) -> JobDelivery | None:
        """Return what one job was promised and had so far, None for a job of which no allocation has told yet."""
        return None if self.by_events else self._state.ledger.account(job_id)

    @synchronized
    def save(self, path: str | Path) -> None:
        """Write all that the scheduler knows to a file, from which `load` makes one that goes on with the same rounds.

        The file holds what it held before until the new content is complete and on the disk, also if the process is killed.
        Raises `InputError` where it cannot be written.
        """
        SCHEDULER.write(path, self.to_dict())
        logger.debug("saved to %s", path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        profile: Profile,
        *,
        policy: str | Policy | None = None,
        mechanism: MechanismName | Mechanism | None = None,
    ) -> Self:
        """Return the scheduler that `save` wrote.

        profile: the one that it had, of which the file holds no more than the throughputs of its jobs, to see that it is the same;
        policy, mechanism: needed only for a class or function of one's own, since no file names what is to be imported.
        Raises `InputError` for a file that is damaged, foreign or of a newer version, and for another profile or policy.
        """
        return cls.from_dict(SCHEDULER.read(path), profile, policy=policy, mechanism=mechanism, source=path)

    @synchronized
    def to_dict(self) -> dict[str, Any]:
        """Return what `save` writes as plain data, for a file of one's own that holds more than the scheduler."""
        options = {name: getattr(self, name) for name in OPTIONS}
        return Saved(self._solver, self._profile, self.mechanism, options, self._state).to_dict()

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        profile: Profile,
        *,
        policy: str | Policy | None = None,
        mechanism: MechanismName | Mechanism | None = None,
        source: str | Path = "round scheduler",
    ) -> Self:
        """Return the scheduler that `to_dict` described; the rest as for `load`. source: what messages call it."""
        saved = Saved.from_dict(document, source, profile, policy, mechanism)
        made = cls(saved.state.nodes.cluster, saved.profile, saved.solver.policy, mechanism=saved.mechanism, **saved.options)
        made._solver, made._state = saved.solver, saved.state
        return made

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: a solver and a state of its own, and the same cluster, profile, policy and mechanism."""
        solver = copy.copy(self._solver)
        shared = {id(each): each for each in (self.cluster, self._profile, solver.policy, self.mechanism)}
        state = copy.deepcopy(self._state, shared | {id(self._solver): solver})
        return super().__getstate__() | {"_solver": solver, "_state": state}

    def _recover(self) -> None:
        if not self._state.is_asking:
            text = "another thread was changing it when this process was forked; use one that was saved, or made in this process"
            raise GavelError(f"round scheduler: {text}")
        self._state.drop_caches()

    def _start(self, now_seconds: float | None) -> float:
        last, coming = self._state.last, self._state.coming
        if now_seconds is None:
            if coming is not None:
                return coming.start_seconds
            return 0.0 if last is None else last.start_seconds + self.round_seconds
        earliest = -math.inf if last is None else last.start_seconds
        if not (is_finite(now_seconds) and now_seconds >= earliest):
            since = "" if last is None else f", not before the previous round, which started at {earliest:g}"
            raise InputError(fault("now_seconds", f"must be a finite number{since}, found {now_seconds!r}"))
        return float(now_seconds)

    def _decided(self, start: float) -> PlannedRound:
        """The next round, decided now if it has not been."""
        if self._state.coming is None:
            self._chooser.decide(self._state, start)
        assert self._state.coming is not None  # noqa: S101
        return self._state.coming
