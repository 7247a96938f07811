"""The round scheduler: callers report changes of jobs and nodes, and each round assigns GPUs to jobs."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver, check_elastic
from gavel_py.errors import Fault, GavelError, InputError, UnknownNameError, refuse
from gavel_py.io.locking import Synchronized, synchronized
from gavel_py.io.records import Finite, check
from gavel_py.policies import Policy
from gavel_py.problem.arrays import JOB_ATTRIBUTES, is_finite
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.gpu_counts import counts_of
from gavel_py.problem.job import ELASTIC_FIELDS, Job, changed_job
from gavel_py.problem.job_set import JobSet
from gavel_py.problem.profile import Profile
from gavel_py.problem.tolerances import DURATION_ROUNDING
from gavel_py.problem.workflows import check_parents, dependencies_of, has_dependencies
from gavel_py.scheduling.between_rounds import select_starts
from gavel_py.scheduling.commit import adopt, begin_round, begin_starts, build_round, stop_lost, take_back
from gavel_py.scheduling.current_allocation import LazyAllocation
from gavel_py.scheduling.delivery import DeliveryReport, JobDelivery, Wait
from gavel_py.scheduling.event_driven import EventParts
from gavel_py.scheduling.jobs.history import DEPARTURES, Departure, ReportedSteps, ScheduledJobs, on_groups
from gavel_py.scheduling.jobs.waiting import Backoff, ReleasedJobs, Unblocked
from gavel_py.scheduling.learning import Learner, ProgressObserver, observed
from gavel_py.scheduling.mechanism import SIZING, chooses_gpus, resolve_mechanism
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import NodeState, NodeStates
from gavel_py.scheduling.options import DEFAULTS, AllocationOptions, SchedulerOptions
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.planner import RoundPlanner, may_decide_at_events
from gavel_py.scheduling.problem_cache import PolicyInput, ProblemCache, is_by_type
from gavel_py.scheduling.round import Assignment, Lease, Round, exceeded_notes, fallback_text
from gavel_py.scheduling.snapshot import SCHEDULER, from_document, to_document
from gavel_py.scheduling.state import EventPlan, RoundPlan, SchedulerState

if TYPE_CHECKING:
    from gavel_py.scheduling.keywords import OptionAttributes, SchedulerKeywords
else:
    from gavel_py.scheduling.options import OptionAttributes

logger = logging.getLogger(__name__)


class RoundScheduler(OptionAttributes, Synchronized):
    """Turns a policy's time fractions into rounds: which jobs run on which GPUs, from one round to the next.

    The allocation is solved again for the next round if a job or node has arrived, left or changed, or a job has reported progress
    (but no sooner than `solve_seconds` after the last solve); otherwise it is kept. Every round counts as `round_seconds` of
    promised, delivered and attained time, whenever the next one starts. For a gang that loses its GPUs (`node_down`, `gpu_lost`,
    `interrupted`), the round counts as promised only. For a gang that starts within the round (`start_waiting`), the rest of the
    round counts as delivered and attained. The account of a job (`delivery`) is kept after it has left, until `forget`.

    A solve that fails (`SolverError`, `ProofError`) does not stop rounds: they follow the answer for rounded throughputs, or the
    times of the last solve (`Round.fallback`), until the next change. Errors of the input are raised.

    `options`, and attributes with the names of options, may be set, and apply from the next decision on. What the constructor
    refuses, or `submit` for a job in the system, is refused then too, and changes nothing.

    Several threads may use a scheduler, one call at a time. Policy and mechanism may call it back while it decides. It can be
    copied and pickled. See docs/rounds.md.

    Args:
        cluster: The nodes on which jobs run.
        profile: Throughputs of jobs by accelerator type; or a `ThroughputLearner`, which learns them from reported progress. The
            profile of a learner is replaced between rounds.
        policy: A name or a `Policy`, which decides on the allocation.
        round_seconds: Length of a round; by default that of the options.
        options: How rounds are planned.
        allow_unknown_types: Whether to leave out GPUs of types that the profile lacks, instead of raising an error
            (`Cluster.known_to`).
        **changes: Fields of `SchedulerOptions` that replace those of `options`.

    Raises:
        InputError: An argument is wrong (`UnknownNameError` for a name).

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [2.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    >>> scheduler.submit(gp.Job("a"))
    >>> scheduler.submit(gp.Job("b"))
    >>> scheduler.next_round().assignments
    {'a': Assignment(accelerator='v100', gpus=[('v100-0', 0)])}
    """

    def __init__(
        self,
        cluster: Cluster,
        profile: Profile | Learner,
        policy: str | Policy = "max_min_fairness",
        round_seconds: float | None = None,
        *,
        options: SchedulerOptions = DEFAULTS,
        allow_unknown_types: bool = False,
        **changes: Unpack[SchedulerKeywords],
    ) -> None:
        options = options.changed(**changes) if round_seconds is None else options.changed(**changes, round_seconds=round_seconds)
        known, observer = observed(profile, cluster.profile_names)
        self.cluster = cluster.known_to(known, allow_unknown_types=allow_unknown_types)
        # One solver for all rounds, since it starts each program from the basis of the previous one.
        planner = RoundPlanner(Solver(policy, time_limit_seconds=options.time_limit_seconds), known, options, observer)
        self._state = SchedulerState(NodeStates(self.cluster))
        self._configure(planner)
        self._state.table.number_gangs(by_type=is_by_type(known))

    def _configure(self, planner: RoundPlanner) -> None:
        """Use another planner from now on. Raises `InputError`, and keeps the present one, if its policy and options do not fit."""
        planner.options.check_policy(planner.solver.policy)
        resolve_mechanism(planner.options.mechanism, self.cluster.accelerator_names)  # raises for an unknown name
        self._planner = planner
        self._state.tenant_ledger.arrange(planner.solver.policy.tenant_tree)

    @property
    def options(self) -> SchedulerOptions:
        """How rounds are planned. Others apply from the next decision on."""
        return self._planner.options  # without the lock, so that nobody waits for a solve

    @options.setter
    @synchronized
    def options(self, options: SchedulerOptions) -> None:
        planner, before, solver = self._planner, self._planner.options, self._planner.solver
        if options.time_limit_seconds != solver.time_limit_seconds:
            solver = copy.copy(solver)  # a lazy allocation is resolved with the limit with which it was decided
            solver.time_limit_seconds = options.time_limit_seconds
        made = replace(planner, solver=solver, options=options)
        if (options.mechanism, options.sharing) != (before.mechanism, before.sharing):
            self._check_sizes(self._jobs_in_system(), made)
        self._configure(made)
        self._state.changes.require_solve(  # if another option on which the allocation depends has changed
            changed=any(getattr(options, n) != getattr(before, n) for n in ("mechanism", *AllocationOptions.model_fields))
        )

    # Rounds

    @synchronized
    def next_round(self, now_seconds: float | None = None) -> Round:
        """Start the next round and return it: the round that `plan_next` planned, or else one that is decided now.

        If this raises, the scheduler is unchanged.

        Args:
            now_seconds: Start of the round; by default the planned one, or `round_seconds` after the previous start, 0 at first.

        Returns:
            The round.

        Raises:
            InputError: The time lies before the start of the previous round.
            GavelError: Whatever `solve` raises.
        """
        state, began = self._state, time.perf_counter()
        state.check_idle()
        start = self._start(now_seconds)
        planned_before = state.plan is not None
        plan = self._plan(start)
        if planned_before or state.changes.of_inputs:  # since it was planned, or by policy or mechanism while it was being planned
            plan = self._planner.revise(state, plan)
        if state.backoffs.by_job:
            self._end_backoffs(start)
        limits = self._planner.limits(state, state.allocation)
        new_round = begin_round(state, plan, start, self._planner.options, limits)
        if any(state.blocked.news):
            state.blocked.take_news()
        if new_round.fallback is not None:
            number, notes = state.fallback_rounds.total(), "; ".join(new_round.notes)
            logger.warning("round %d at %.9g s, number %d without a solve: %s", new_round.index, start, number, notes)
        if logger.isEnabledFor(logging.INFO):
            changes = (len(new_round.started), len(new_round.preempted), len(new_round.excluded))
            counts = (len(state.table), len(new_round.assignments), *changes)
            text = "round %d at %.9g s: %d jobs, %d running, %d started, %d preempted, %d excluded, %.3f s"
            logger.info(text, new_round.index, start, *counts, time.perf_counter() - began)
        return new_round.copied()

    @synchronized
    def plan_next(self, now_seconds: float | None = None) -> Round:
        """Plan the next round and return it, so that jobs know before the current one ends whether they keep their GPUs.

        `next_round` then starts this round. Events in between count for the round after it, with one exception: gangs whose GPUs
        are lost, or that have left, finished or changed their request, drop out, and their GPUs are offered to other jobs at the
        start of the round. Further calls return the same round. Raises the same errors as `next_round`.

        Args:
            now_seconds: Start of the round, as for `next_round`.
        """
        self._state.check_idle()
        state, plan = self._state, self._plan(self._start(now_seconds))
        valid = np.flatnonzero(state.still_valid(plan))
        rows = plan.rows[valid]
        held = plan.held.take(valid).with_partners_among(state.table.ids[rows].tolist())
        keeps = state.gangs.of(rows).same_as(held)
        limits = self._planner.limits(state, state.allocation).on_average
        return build_round(state, rows, held, keeps, plan.start_seconds, self.options.round_seconds, limits)

    @synchronized
    def start_waiting(self, now_seconds: float) -> dict[str, Assignment]:
        """Start waiting jobs on GPUs that idle within the round in progress, preempting none, and return those that start.

        For use after jobs have arrived or GPUs have become free. The mechanism selects the jobs under the current allocation; jobs
        that this does not cover yet get the GPUs that remain. If the policy does not fill idle GPUs, or constraints may keep them
        free, only jobs with a claim to time start. The rest of the round counts as delivered and attained. A round that is already
        planned does not change: gangs lose GPUs that it needs when it starts, even within `min_run_seconds`.

        Nothing starts before the first round, or once the round has ended (`Round.end_seconds`) and until the next one starts.

        Args:
            now_seconds: The time, at least the start of the round.

        Returns:
            {job_id: Assignment} of the gangs that start, sorted by job_id.

        Raises:
            InputError: The time lies before the start of the round, or in event-driven mode, where `next_round` does this.
        """
        state = self._state
        state.check_idle()
        no_rounds = "has no rounds within which jobs could start; call next_round, which decides at any time"
        refuse("round scheduler", (self.options.by_events, "by_events", no_rounds))
        now, last = self._start(now_seconds), state.last
        if last is None or now >= last.end_seconds:
            return {}
        found = select_starts(self._planner, state, now)
        started: dict[str, Assignment] = {}
        if found is not None:
            limits = self._planner.limits(state, found[0].allocation).on_average
            started = dict(begin_starts(state, *found, limits))
        if started:
            logger.info("%d jobs start at %.9g s, within round %d", len(started), now, last.index)
        return started

    @synchronized
    def lease(self, job_id: str) -> Lease | None:
        """Return the lease of a job, None if it holds no GPUs. Once the next round is planned, it shows whether it is renewed.

        Raises:
            UnknownNameError: The job is not in the system.
        """
        state = self._state
        row = state.row_of(job_id)
        held = state.assignments(np.array([row]), state.gangs.of(np.array([row])))
        if not held.held.runs.all() or state.last is None:
            return None
        assignment, plan = held[job_id], state.plan
        if plan is None:
            return Lease(assignment, state.last.end_seconds)
        planned = np.flatnonzero((plan.rows == row) & state.still_valid(plan))
        if not plan.held.take(planned).same_as(held.held.take(np.zeros(len(planned), dtype=np.int64))).any():
            return Lease(assignment, state.last.end_seconds, renewed=False)
        return Lease(assignment, plan.start_seconds + self.options.round_seconds, renewed=True)

    def _start(self, now_seconds: float | None) -> float:
        """Return the start of the next round in seconds. Raises `InputError` for a time before the previous round."""
        last, plan = self._state.last, self._state.plan
        if now_seconds is None:
            if plan is not None:
                return plan.start_seconds
            return 0.0 if last is None else last.start_seconds + self.options.round_seconds
        earliest = -math.inf if last is None else last.start_seconds
        is_wrong = not (is_finite(now_seconds) and now_seconds >= earliest)
        since = "" if last is None else f", not before the previous round, which started at {earliest:g}"
        refuse("round scheduler", (is_wrong, "now_seconds", f"must be a finite number{since}, found {now_seconds!r}"))
        return float(now_seconds)

    def _plan(self, start: float) -> RoundPlan | EventPlan:
        """Return the plan of the next round; decide it now if there is none."""
        state = self._state
        if state.plan is None:
            self._learn(start)
            state.changes.begin_decision()
            adopt(state, self._planner.decide(state, start))
        assert state.plan is not None  # noqa: S101
        return state.plan

    @property
    @synchronized
    def event_parts(self) -> EventParts | None:
        """What a simulation needs to decide at events by itself; None if options, policy or cluster need the full path."""
        planner, state, options = self._planner, self._state, self.options
        if options.retry_seconds or not may_decide_at_events(options):  # a job that waits after a failure is no longer in the order
            return None
        return EventParts.of(planner.solver.policy, state, planner.cache(state), options.restart_seconds, planner.order)

    def _learn(self, start: float) -> None:
        """Feed the learner, if there is one, and use its profile if that has changed."""
        observer, options = self._planner.observer, self._planner.options
        if observer is not None:
            observer.observe(self._state, start, options.round_seconds, options.restart_seconds)
            profile = observer.learner.profile
            if profile is not self._planner.profile:
                self._use(profile, observer)

    # State

    @property
    @synchronized
    def policy(self) -> Policy:
        """The policy that decides on the allocation. A new one (or its name) applies from the next round on."""
        return self._planner.solver.policy

    @policy.setter
    @synchronized
    def policy(self, policy: str | Policy) -> None:
        self._configure(replace(self._planner, solver=Solver(policy, time_limit_seconds=self.options.time_limit_seconds)))
        self._state.changes.require_solve()

    @property
    @synchronized
    def profile(self) -> Profile:
        """Throughputs of jobs. A new profile, with the types of the cluster and the jobs, applies from the next round on."""
        return self._planner.profile

    @profile.setter
    @synchronized
    def profile(self, profile: Profile | Learner) -> None:
        known, observer = observed(profile, self.cluster.profile_names)
        has, names = f"which the cluster has; it has {', '.join(known.accelerators)}", self.cluster.profile_names
        refuse(
            "round scheduler",
            *((name not in known.accelerators, "profile", f"lacks accelerator {name!r}, {has}") for name in names),
        )
        self._use(known, observer)

    def _use(self, profile: Profile, observer: ProgressObserver | None) -> None:
        """Use new throughputs from the next round on."""
        _ = self._state.current_allocation  # a lazy one is solved with the throughputs with which it was decided
        self._planner = replace(self._planner, profile=profile, observer=observer)
        self._state.changes.require_solve()

    @property
    @synchronized
    def learner(self) -> Learner | None:
        """The learner that is fed with reported progress, None if the throughputs come from a fixed profile."""
        observer = self._planner.observer
        return None if observer is None else observer.learner

    @property
    @synchronized
    def jobs(self) -> tuple[Job, ...]:
        """The jobs in the system that are not blocked, with the progress last reported, in natural order of their ids."""
        table = self._state.table
        return tuple(table.jobs_at(table.natural_order.rows))

    @property
    @synchronized
    def blocked(self) -> dict[str, tuple[str, ...]]:
        """{job_id: what it still waits for} of the jobs that wait for others. Rounds have no entries for them.

        They become ready when the other jobs leave: by `complete`, `cancel`, or final failure. In `jobs`, a ready job no longer has
        dependencies.
        """
        return self._state.blocked.reasons

    @synchronized
    def is_blocked(self, job_id: str) -> bool:
        """Return whether a job is in the system and waits for others."""
        return job_id in self._state.blocked.jobs

    @synchronized
    def take_unblocked(self) -> Unblocked:
        """Return the jobs that have become ready and those that were cancelled, since the last call or the start of a round.

        If what a job waits for can no longer happen, the job is cancelled, and so are the jobs that wait for it to finish.
        """
        return self._state.blocked.take_news()

    @property
    @synchronized
    def failed(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that failed more often than `Job.max_retries` and have left."""
        return self._state.table.failed

    @property
    @synchronized
    def allocation(self) -> Allocation | None:
        """The allocation of the latest round, or of the next one if it is planned; None before the first.

        It is for the jobs at the time of the solve; with `solve_seconds`, jobs may have arrived and left since.
        """
        current = self._state.current_allocation
        return None if current is None else current.allocation

    @property
    @synchronized
    def running(self) -> dict[str, Assignment]:
        """{job_id: Assignment} of the gangs that hold GPUs: those of the latest round that have not stopped since."""
        return dict(self._state.running)

    @property
    @synchronized
    def backoffs(self) -> dict[str, Backoff]:
        """{job_id: Backoff} of the jobs that have failed and not succeeded since; empty without `retry_seconds`."""
        return dict(self._state.backoffs.by_job)

    @property
    @synchronized
    def fallback_rounds(self) -> dict[str, dict[str, int]]:
        """{policy: {kind: number of rounds}} of the rounds for which no proven answer was found (`Round.fallback`)."""
        found: dict[str, dict[str, int]] = {}
        for each, number in self._state.fallback_rounds.items():
            found.setdefault(each.policy, {})[each.kind] = number
        return found

    @property
    def fallback_text(self) -> str:
        """`fallback_rounds` as a sentence, empty without such rounds."""
        return fallback_text(self.fallback_rounds)

    @property
    @synchronized
    def limit_rounds(self) -> dict[str, dict[str, int]]:
        """{constraint: {"rounds": number, "exceeded": of these, those above it}} of limits that hold on average (`every_round`)."""
        counts = self._state.limit_rounds.items()
        return {name: {"rounds": rounds, "exceeded": exceeded} for name, (rounds, exceeded) in counts}

    @property
    def exceeded_notes(self) -> tuple[str, ...]:
        """Notes on the limits of `limit_rounds` that were exceeded."""
        return exceeded_notes(self.limit_rounds)

    @property
    @synchronized
    def last_start_seconds(self) -> float | None:
        """Start of the latest round, None before the first."""
        return None if self._state.last is None else self._state.last.start_seconds

    @property
    @synchronized
    def next_change_seconds(self) -> float:
        """When time alone changes what the next round decides: in event-driven mode, call `next_round` then, if not before.

        A job reaches a time at which the order changes (`OrderedPolicy.changes_at`), or the minimum run time of a gang ends.
        Infinite if neither will happen, or if the order may change at any time. Rounds of a fixed length ask at their start.
        """
        return self._planner.next_change(self._state)

    @property
    @synchronized
    def nodes(self) -> dict[str, NodeState]:
        """{name: state} of all nodes: up, draining or down."""
        return self._state.nodes.by_name

    @property
    @synchronized
    def lost_gpus(self) -> tuple[Gpu, ...]:
        """The single GPUs that are lost, as (node, index)."""
        return tuple(sorted(self._state.nodes.lost))

    @property
    @synchronized
    def solver_seconds(self) -> float:
        """Wall-clock seconds that allocations have taken so far in this process; a loaded scheduler starts at 0."""
        return self._state.solver_seconds

    @synchronized
    def delivery(self) -> DeliveryReport:
        """Return the time promised and delivered so far, including jobs that have left; empty in event-driven mode."""
        table = self._state.table
        rows = (
            {}
            if self.options.by_events
            else dict(zip(table.ids[table.saved_rows].tolist(), table.saved_rows.tolist(), strict=True))
        )
        report = self._state.ledger.report(rows) if rows else DeliveryReport({})
        offered = sum(report.offered_by_type.values()) if rows else math.inf
        tenants, least = self._state.tenant_ledger.report(offered)
        return replace(report, tenants=tenants, least_tenant_undelivered_gpu_seconds=least) if tenants else report

    @synchronized
    def delivery_of(self, job_id: str) -> JobDelivery | None:
        """Return the time promised and delivered to one job; None if it has had no allocation so far."""
        row = self._state.table.row_of(job_id)
        return None if self.options.by_events or row is None else self._state.ledger.account(job_id, row)

    @synchronized
    def wait_of(self, job_id: str) -> Wait | None:
        """Return why a job that is owed time got none in the latest round; None for others, and in event-driven mode.

        Not saved: after `load`, it is None until the next round.
        """
        row = self._state.table.by_id.get(job_id)
        return None if row is None else self._state.ledger.wait_of(row)

    # Events of jobs

    @synchronized
    def submit(self, job: Job) -> None:
        """Add a job, which the next round takes into account. If it cannot run anywhere, that round excludes it with the reason.

        The job is in the system at once. Its `arrival_seconds` only orders jobs and starts its time in the system. A job that waits
        for others is `blocked` until they have left. If they have already left in a way that it can never start, it is cancelled.

        Raises:
            InputError: The id was used before, the job does not fit cluster and profile (`AllocationProblem.from_jobs`), it lacks a
                field that the policy reads, or it waits for a job that is unknown or was forgotten.
        """
        self.submit_all([job])

    @synchronized
    def submit_all(self, jobs: Iterable[Job]) -> None:
        """Add several jobs, all of them or none; much faster than one at a time. Raises the same errors as `submit`."""
        state, jobs = self._state, tuple(jobs)
        state.table.check_new(jobs, state.blocked.jobs)
        if len(jobs) > 1:
            JobSet(jobs)  # raises for an id that occurs twice, and for a cycle
        if jobs:
            self._check_parents(jobs)
            requests = self._checked(jobs)
            released = state.blocked.submit(jobs, self._ended_well)
            if len(released.ready) == len(jobs):
                state.table.add([job.without_dependencies() for job in jobs], requests)
                state.fit()
            else:
                self._take_released(released)
        state.changes.note(changed=bool(jobs))
        logger.debug("submitted: %s", jobs[0].job_id if len(jobs) == 1 else f"{len(jobs)} jobs")

    @synchronized
    def update(self, job_id: str, /, **fields: object) -> None:
        """Change fields of a job (weight, priority, deadline, locality, num_gpus, ...) from the next round on.

        A job whose gang changes (num_gpus, locality, ...) loses its GPUs and restarts. An elastic job that may still run on its
        current number of GPUs (gpu_counts, min_gpus, max_gpus) keeps them, and so does a job that may still run on its current
        type.

        Raises:
            UnknownNameError: The job is not in the system.
            InputError: A field cannot be changed, or `submit` would refuse the changed job.
        """
        state = self._state
        if job_id in state.blocked.jobs:
            job = changed_job(state.blocked.jobs[job_id], fields)
            self._checked([job])
            state.blocked.replace(job)
            return
        row = state.row_of(job_id)
        gang, job = state.table.gangs.item(row), changed_job(state.table.job(row), fields)
        requests = self._checked([job])
        if isinstance(state.allocation, LazyAllocation):
            state.allocation.remember(row)
        state.blocked.move(state.table.jobs[row], job)
        state.table.replace(job, requests)
        if requests["gangs"].item(0) != gang and not self._keeps_gpus(row, job, fields):
            state.stop(row)
        state.changes.note()
        logger.debug("job %s has changed: %s", job_id, ", ".join(fields))

    def _keeps_gpus(self, row: int, job: Job, fields: Collection[str]) -> bool:
        """Return whether a job of which these fields have changed may still run on the GPUs that it holds."""
        if {"allowed_accelerators"}.issuperset(fields):
            column = self._state.gangs.types[row]
            return bool(column >= 0 and job.allows(self._state.layout.types[column]))
        held = len(self._state.gangs.gpus_of(row))
        return job.is_elastic and ELASTIC_FIELDS.issuperset(fields) and held in counts_of(job, self._planner.profile)

    @synchronized
    def report(self, job_id: str, *, steps_done: float, trust: float | None = None) -> None:
        """Report a job's progress. After its last step the job is finished, and later rounds do not run it.

        A report may arrive late, while the job waits or before it is tried again, as long as the job is in the system.

        Args:
            job_id: The job.
            steps_done: Steps done in all; fewer than before after a restart from an older checkpoint.
            trust: For a learner, the factor by which the rate may differ from its initial profile, 10 by default; 0 for steps that
                were computed from a throughput, from which nothing can be learned.

        Raises:
            UnknownNameError: The job is not in the system; the message states how it left.
            InputError: The number is negative or not finite, or `trust` is neither 0 nor at least 1.
        """
        self.report_all({job_id: steps_done}, trust=trust)

    @synchronized
    def report_all(self, steps_done: Mapping[str, float], *, trust: float | None = None) -> None:
        """Report the progress of several jobs, {job_id: steps done in all}, all or none of it. Raises like `report`."""
        table = self._state.table
        if trust is not None:
            refuse("round scheduler", (trust != 0 and not trust >= 1, "trust", f"must be 0, or at least 1, found {trust!r}"))
        if isinstance(steps_done, ReportedSteps):
            steps = steps_done.steps
        else:
            values = list(steps_done.values())
            if set(map(type, values)) != {float}:
                _check_steps(table, steps_done)
            steps = np.array(values, dtype=float)
        if not ((steps >= 0) & (steps < np.inf)).all():
            _check_steps(table, steps_done)
        before = table.columns["steps_done"].copy() if self._state.backoffs.by_job else None
        if isinstance(self._state.allocation, LazyAllocation):
            self._state.allocation.remember_progress()
        try:
            table.report(steps_done, steps)
        except UnknownNameError:
            for job_id in steps_done:
                self._state.row_of(job_id)  # raises, with the reason if the job waits for others
            raise
        if self._planner.observer is not None:
            self._planner.observer.note(steps_done, trust)
        if before is not None:
            done = table.columns["steps_done"]
            self._state.backoffs.succeed(table, self._state.gangs, lambda row: bool(done[row] > before[row]))
        self._state.changes.note(changed=bool(steps_done))

    @synchronized
    def complete(self, job_id: str) -> None:
        """Remove a job that is done. Raises `UnknownNameError`."""
        self._leave(job_id, Departure.COMPLETED)

    @synchronized
    def cancel(self, job_id: str) -> None:
        """Remove a job that is not done. Raises `UnknownNameError`."""
        self._leave(job_id, Departure.CANCELLED)

    @synchronized
    def job_failed(self, job_id: str, *, now_seconds: float | None = None) -> bool:
        """Record that a job has stopped with an error; return whether it will be tried again.

        It loses its GPUs, and the round counts as delivered. Up to `Job.max_retries` times it stays in the system and is restarted
        in a later round. After that it leaves, and is listed in `failed` and in the next round. Node failures do not count.

        Args:
            job_id: The job.
            now_seconds: When it failed, from which its back-off counts (`retry_seconds`); by default the start of the latest round.

        Raises:
            UnknownNameError: The job is not in the system.
            InputError: The time lies before the start of the latest round.
        """
        state = self._state
        row = state.row_of(job_id)
        self._back_off(job_id, now_seconds)
        again = state.table.fail(job_id)
        state.stop(row)
        state.changes.note()
        if not again:
            state.backoffs.drop([job_id])
            state.newly_failed[job_id] = state.table.why_failed(job_id)
            self._take_released(state.blocked.leave(state.table.jobs[row], ended_well=False))
        logger.info("job %s has failed: it %s", job_id, "will be tried again" if again else state.table.why_failed(job_id))
        return again

    @synchronized
    def interrupted(self, job_id: str, *, now_seconds: float | None = None, is_failure: bool = True) -> None:
        """Record that a job does not run although the round assigns it GPUs, for instance because its launch failed.

        It loses its GPUs, the round does not count as delivered, and the job is restarted in a later round. If it held GPUs, its
        back-off begins (`retry_seconds`).

        Args:
            job_id: The job.
            now_seconds: As for `job_failed`.
            is_failure: Whether the job failed; without a failure, there is no back-off.

        Raises:
            UnknownNameError: The job is not in the system.
            InputError: The time lies before the start of the latest round.
        """
        row = self._state.row_of(job_id)
        if is_failure:
            self._back_off(job_id, now_seconds, only_running=True)
        take_back(self._state, row)
        self._state.changes.note()
        logger.info("job %s was interrupted", job_id)

    @synchronized
    def found_running(self, job_id: str, gpus: Mapping[str, int]) -> None:
        """Record that a job runs on these nodes although no round placed it there, as when the scheduler takes over a busy cluster.

        The job may stay there as if the latest round had started it, but no time counts as delivered; on a node that is down or
        draining, only until the next round. Its GPUs are chosen among the GPUs of each node that are neither held nor lost.

        Args:
            job_id: The job.
            gpus: {node: number of GPUs}.

        Raises:
            UnknownNameError: The job or a node does not exist.
            InputError: The nodes are of several types or lack free GPUs, the numbers do not add up to the job's gang, or the job
                has a fraction of a GPU, since others may be on that GPU.
        """
        state = self._state
        row = state.row_of(job_id)
        running = state.gangs.rows[state.gangs.rows != row]
        taken = set(state.layout.named(state.gangs.of(running).gpus.tolist()))
        accelerator, found = state.nodes.free_place(job_id, gpus, taken)
        job = state.table.jobs[row]
        requested = counts_of(job, self._planner.profile) if job.is_elastic else (job.num_gpus,)
        is_part, sizes = job.num_gpus < 1, " or ".join(map(str, requested))
        refuse(
            f"job {job_id!r}",
            (is_part, "gpus", f"needs a job with whole GPUs; this one has {job.num_gpus:g}"),
            (not is_part and len(found) not in requested, "gpus", f"must be {sizes} in total, found {len(found)}"),
        )
        column, numbers = state.layout.type_number[accelerator], state.layout.numbers(found).tolist()
        state.gangs.put(row, column, numbers, is_spread=state.spans.is_spread(accelerator, [name for name, _ in found]))
        columns = state.table.columns
        columns["running_since_seconds"][row] = np.nan if state.last is None else state.last.start_seconds
        columns["has_run"][row] = True
        state.changes.note()

    @synchronized
    def note_times(self, job_id: str, *, attained_gpu_seconds: float, waiting_since_seconds: float) -> None:
        """Record times of a job that passed before the scheduler took over, for policies that read them.

        Args:
            job_id: The job.
            attained_gpu_seconds: The GPU-seconds that it has received.
            waiting_since_seconds: When it last held GPUs, or arrived.

        Raises:
            UnknownNameError: The job is not in the system.
            InputError: A time is not a finite number.
        """
        times = {"attained_gpu_seconds": attained_gpu_seconds, "waiting_since_seconds": waiting_since_seconds}
        check("round scheduler", **{name: (value, Finite) for name, value in times.items()})
        row = self._state.row_of(job_id)
        for name, value in times.items():
            self._state.table.columns[name][row] = value
        self._state.changes.note()

    @synchronized
    def keep_running(self, job_id: str, until_seconds: float) -> None:
        """Do not preempt a job before this time, unless it loses its GPUs or may no longer run there, as with `min_run_seconds`.

        This applies from the next decision on. In event-driven mode, `fifo` and other policies that decide on events alone ignore
        it.

        Raises:
            UnknownNameError: The job is not in the system.
            InputError: The time is not a finite number.
        """
        check("round scheduler", until_seconds=(until_seconds, Finite))
        self._state.table.columns["kept_until_seconds"][self._state.row_of(job_id)] = until_seconds

    @synchronized
    def forget(self, *job_ids: str) -> None:
        """Drop the accounts and histories of jobs that have left; otherwise, memory and saved files keep them forever.

        The jobs are no longer part of `delivery` and `failed`, and their ids may be used again.

        Raises:
            InputError: A job is in the system, or was when the last round was decided.
            UnknownNameError: A job was never in the system.
        """
        state, unique = self._state, set(job_ids)
        state.table.check_gone(job_ids, state.blocked.jobs, state.is_in_decision)
        state.note_forgotten(unique)
        state.ledger.forget(state.table.forget(unique))
        state.colocation_ledger.forget(unique)

    @property
    @synchronized
    def forgettable(self) -> list[str]:
        """Ids of the jobs that `forget` may drop now, in the order in which they left."""
        is_in_decision = self._state.is_in_decision
        return [job_id for job_id, row in self._state.table.departed.items() if not is_in_decision[row]]

    def _checked(self, jobs: Sequence[Job]) -> dict[str, NDArray[Any]]:
        """Return the requests of jobs. Raises for jobs on which the policy cannot decide, since every later round would fail."""
        planner, state = self._planner, self._state
        self._check_sizes(jobs, planner)
        requests = state.table.requests_of(jobs)
        cache = planner.cache(state)
        cache.complete(jobs, requests)
        event_planner = planner.event_planner(state)
        # A job equal to a known one has been checked already.
        if event_planner is None:
            is_checked = not _may_refuse(planner.solver.policy, requests)
        else:
            is_checked = event_planner.profiler.knows(jobs, requests["gangs"].tolist())
        if not is_checked:
            policy_input = PolicyInput.of_new(jobs, requests)
            planner.solver.policy.check(cache.problem_if_up(policy_input))
            if event_planner is not None:
                event_planner.profiler.checked.update(requests["gangs"].tolist())
        return requests

    def _jobs_in_system(self) -> list[Job]:
        """Return all jobs in the system, also those that are blocked; their progress may be older than that reported last."""
        table = self._state.table
        return [*table.jobs[table.natural_order.rows].tolist(), *self._state.blocked.jobs.values()]

    def _check_sizes(self, jobs: Sequence[Job], planner: RoundPlanner) -> None:
        """Raise `InputError` for elastic jobs that are not compatible with the mechanism, the options, the policy or other jobs."""
        options = planner.options
        elastic, parts = [job for job in jobs if job.is_elastic], [job for job in jobs if job.num_gpus < 1]
        if not elastic and not parts:
            return
        ids = {job.job_id for job in jobs}  # of which there may be another version
        together = [*jobs, *(job for job in self._jobs_in_system() if job.job_id not in ids)]
        is_mixed = any(job.is_elastic for job in together) and any(job.num_gpus < 1 for job in together)
        chooses = chooses_gpus(options.mechanism, self.cluster.accelerator_names)
        no_sizes = f"needs one of the mechanisms {', '.join(SIZING)}, which choose numbers of GPUs"
        no_parts = "must be a whole number with the mechanism direct, found {.num_gpus:g}"
        no_sharing = "cannot be combined with sharing: rounds choose either the number of GPUs of a job or its partners"
        no_both = "cannot be combined with fractions of a GPU in rounds: either all jobs have whole GPUs, or none is elastic"
        cases = (
            (elastic, not chooses, "gpu_counts", no_sizes),
            (parts, options.mechanism == "direct", "num_gpus", no_parts),
            (elastic, options.sharing, "gpu_counts", no_sharing),
            (elastic or parts, is_mixed, "gpu_counts" if elastic else "num_gpus", no_both),
        )
        InputError.raise_any(
            [Fault(job.where, field, text.format(job)) for some, wrong, field, text in cases if wrong for job in some]
        )
        if elastic and options.mechanism != "direct":
            check_elastic(planner.solver.policy)

    def _back_off(self, job_id: str, now_seconds: float | None, *, only_running: bool = False) -> None:
        """Begin the back-off of a job that failed at this time and is about to stop, if the scheduler uses back-offs."""
        state, options = self._state, self.options
        start = 0.0 if state.last is None else state.last.start_seconds
        now = start if now_seconds is None else self._start(now_seconds)
        row = state.table.known(job_id)
        if options.retry_seconds and (not only_running or state.gangs.types[row] >= 0):
            if state.plan is not None:
                state.failed_meanwhile.add(job_id)
            nodes = sorted({state.layout.names[node] for node in state.layout.nodes_of(state.gangs.gpus_of(row))})
            state.backoffs.fail(job_id, nodes, now, options.retry_seconds, 0.0 if options.by_events else options.round_seconds)

    def _end_backoffs(self, now: float) -> None:
        """End the back-offs of jobs that have run for a whole round; in event-driven mode, for as long as the first back-off."""
        least = (self.options.retry_seconds if self.options.by_events else self.options.round_seconds) * (1 - DURATION_ROUNDING)
        state, since = self._state, self._state.table.columns["running_since_seconds"]
        state.backoffs.succeed(state.table, state.gangs, lambda row: bool(now - since[row] >= least))

    def _leave(self, job_id: str, how: Departure) -> None:
        state = self._state
        state.backoffs.drop([job_id])
        if job_id in state.blocked.jobs:
            self._add([state.blocked.jobs[job_id]])
        row = state.table.remove(job_id, how)
        state.stop(row)
        self._take_released(state.blocked.leave(state.table.jobs[row], ended_well=how is Departure.COMPLETED))
        state.changes.note()
        logger.debug("job %s %s", job_id, how)

    # Jobs that wait for others

    def _check_parents(self, jobs: Sequence[Job]) -> None:
        """Raise `InputError` for jobs that wait for unknown jobs."""
        if has_dependencies(jobs):
            named = {each.job_id for job in jobs for each in dependencies_of(job)}
            check_parents(
                jobs, [name for name in named if name in self._state.blocked.jobs or self._state.table.row_of(name) is not None]
            )

    def _ended_well(self, job_id: str) -> bool | None:
        """Return whether a job that has left has finished; None for a job in the system."""
        table, row = self._state.table, self._state.table.row_of(job_id)
        left = -1 if row is None else int(table.columns["left"].item(row))
        return None if left < 0 else DEPARTURES[left] is Departure.COMPLETED

    def _take_released(self, released: ReleasedJobs) -> None:
        """Add the jobs that no longer wait to the table, and remove those that can never start."""
        state = self._state
        self._add(released.ready)
        if released.ready and state.last is not None:  # time blocked is not waiting time
            rows = [state.table.by_id[job.job_id] for job in released.ready]
            since = state.table.columns["waiting_since_seconds"]
            since[rows] = np.maximum(since[rows], state.last.start_seconds)
        self._add(released.cancelled)
        for job in released.cancelled:
            state.table.remove(job.job_id, Departure.CANCELLED)
            logger.debug("job %s was cancelled: what it waited for can no longer happen", job.job_id)

    def _add(self, jobs: Sequence[Job]) -> None:
        """Add checked jobs to the table."""
        if jobs:
            plain = [job.without_dependencies() for job in jobs]
            requests = self._state.table.requests_of(plain)
            self._planner.cache(self._state).complete(plain, requests)
            self._state.table.add(plain, requests)
            self._state.fit()

    # Events of nodes

    @synchronized
    def node_down(self, name: str) -> tuple[str, ...]:
        """Record that a node is lost, and return the jobs that ran there; they no longer hold GPUs.

        No job runs there until `node_up`. For these jobs the round does not count as delivered, so their deficits stay. Deficits on
        the node's type are kept. Jobs that cannot run anywhere else are excluded, with the reason.

        Raises:
            UnknownNameError: There is no such node.
        """
        return self._set_node_state(name, NodeState.DOWN)

    @synchronized
    def drain(self, name: str) -> None:
        """Empty a node without stopping its gangs: they run until their leases end, and no gang starts there.

        The node is empty when the next round starts, or the one after that if the next one is planned already (`plan_next`).

        Raises:
            UnknownNameError: There is no such node.
        """
        self._set_node_state(name, NodeState.DRAINING)

    @synchronized
    def node_up(self, name: str) -> None:
        """Use a node again from the next round on; its lost GPUs stay lost. Raises `UnknownNameError`."""
        self._set_node_state(name, NodeState.UP)

    @synchronized
    def gpu_lost(self, node: str, index: int) -> tuple[str, ...]:
        """Record that one GPU of a node is lost, and return the job that ran on it, if any; otherwise like `node_down`.

        Raises:
            UnknownNameError: There is no such node.
            InputError: The node has no GPU of this index.
        """
        self._state.changes.require_solve(changed=self._state.nodes.lose(node, index))
        stopped = stop_lost(self._state)
        logger.info("GPU %d of node %s is lost; %d gangs stop", index, node, len(stopped))
        return stopped

    @synchronized
    def gpu_back(self, node: str, index: int) -> None:
        """Use a lost GPU again from the next round on. Raises the same errors as `gpu_lost`."""
        self._state.changes.require_solve(changed=self._state.nodes.give_back(node, index))
        logger.info("GPU %d of node %s is back", index, node)

    @synchronized
    def reserve(self, node: str, *, cpus: float = 0.0, memory_gb: float = 0.0) -> None:
        """Reserve CPUs and memory of a node for other work from the next decision on, replacing the previous reservation.

        Gangs start there only if the rest of the node is enough for them; gangs that already run there are not disturbed.
        Allocations ignore the reservation, since other work comes and goes: a job that was promised time but finds no place gains
        priority until it has one. On a node whose CPUs (or memory) are unknown, the reservation has no effect.

        Args:
            node: Its name.
            cpus: CPUs in use by other work.
            memory_gb: Memory in use by other work.

        Raises:
            UnknownNameError: There is no such node.
            InputError: An amount is negative or not finite.
        """
        self._state.nodes.reserve(node, cpus, memory_gb)
        logger.debug("%g CPUs and %g GB of node %s are reserved for other work", cpus, memory_gb, node)

    @synchronized
    def regroup(self, cluster: Cluster) -> tuple[str, ...]:
        """Regroup the nodes of each GPU type (`AcceleratorType.profile_name`), and return the jobs that this stops.

        Jobs, accounts and running gangs are kept, except for gangs that are now on several groups. Time that is due to a job on a
        removed group becomes due on the first group of its type. A job that may run on a group may run on all new groups of its
        type, until `update` changes this. The next round is decided again, and no job starts before it.

        Args:
            cluster: The same nodes, with new accelerator names for the same types in the profile.

        Raises:
            InputError: Nodes differ in more than that, or the profile lacks a type (`UnknownNameError`), or the throughput of a job
                on a group on which it may run (`MissingThroughputError`). The groups then stay as they are.
        """
        self._state.check_idle()
        cluster = cluster.known_to(self._planner.profile)
        before, after = _nodes_of(self.cluster), _nodes_of(cluster)
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        text = "must have the same GPUs when groups change: it had {}, and now has {}"
        InputError.raise_any(
            [Fault(f"node {name!r}", "", text.format(before.get(name, "none"), after.get(name, "none"))) for name in changed]
        )
        self._check_runnable(cluster)
        self._state, stopped = self._state.regrouped(cluster)
        self.cluster = cluster
        logger.info("the nodes are in %d groups; %d gangs stop", len(cluster.accelerator_names), len(stopped))
        return stopped

    def _check_runnable(self, cluster: Cluster) -> None:
        """Raise `InputError` if the profile does not say how fast a job is on the groups of a cluster on which it may run."""
        planner, table = self._planner, ScheduledJobs()
        table.number_gangs(by_type=is_by_type(planner.profile))
        jobs = [on_groups(job, self.cluster, cluster) for job in self._jobs_in_system()]
        requests = table.requests_of(jobs)
        ProblemCache(cluster, planner.profile, planner.options.whole_gangs, table.gang_numbers.models).complete(jobs, requests)

    def _set_node_state(self, name: str, to: NodeState) -> tuple[str, ...]:
        """Set the state of a node, and return the jobs that stop because of it."""
        self._state.changes.require_solve(changed=self._state.nodes.put(name, to))
        stopped = stop_lost(self._state)
        logger.info("node %s is %s; %d gangs stop", name, to, len(stopped))
        return stopped

    # Saving and copying

    @synchronized
    def save(self, path: str | Path) -> None:
        """Write the scheduler to a file. A scheduler that `load` restores from it continues with the same rounds.

        The write is atomic: until it is complete and on disk, the file keeps its old content, even if the process is killed.

        Raises:
            InputError: The file cannot be written.
        """
        SCHEDULER.write(path, self.to_dict())
        logger.debug("saved to %s", path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        profile: Profile | Learner,
        *,
        policy: str | Policy | None = None,
        mechanism: str | Mechanism | None = None,
    ) -> Self:
        """Return the scheduler that `save` wrote.

        Args:
            path: The file.
            profile: The profile that the scheduler had. The file contains the throughputs of its jobs, only to check this. A
                learner may have learned more since; the next round is then solved with its current profile.
            policy: Needed only for a policy class that is not part of gavel-py.
            mechanism: Needed only for a mechanism that is a function.

        Raises:
            InputError: The file is damaged, not a scheduler or from a newer version, or it was saved with another profile or
                policy.
        """
        return cls.from_dict(SCHEDULER.read(path), profile, policy=policy, mechanism=mechanism, source=path)

    @synchronized
    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file that `save` writes as plain data, for embedding in other files."""
        return to_document(self._planner, self._state)

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        profile: Profile | Learner,
        *,
        policy: str | Policy | None = None,
        mechanism: str | Mechanism | None = None,
        source: str | Path = "round scheduler",
    ) -> Self:
        """Restore a scheduler from `to_dict`; arguments and errors as for `load`.

        Args:
            document: The plain data.
            profile: As for `load`.
            policy: As for `load`.
            mechanism: As for `load`.
            source: Where the data comes from, for messages.
        """
        planner, state = from_document(document, source, profile, policy, mechanism)
        made = cls(state.nodes.cluster, planner.profile, planner.solver.policy, options=planner.options)
        made._state = state
        made._configure(planner)
        return made

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: with its own solver and state, and the same cluster, profile, policy and mechanism."""
        solver = copy.copy(self._planner.solver)
        planner = replace(self._planner, solver=solver, observer=copy.deepcopy(self._planner.observer))
        shared = {id(each): each for each in (self.cluster, planner.profile, solver.policy, planner.options.mechanism)}
        state = copy.deepcopy(self._state, shared | {id(self._planner.solver): solver, id(self._planner): planner})
        return super().__getstate__() | {"_planner": planner, "_state": state}

    def _recover(self) -> None:
        if not self._state.is_calling_out:
            text = "another thread was changing it when this process was forked; use one that was loaded or created in this process"
            raise GavelError(f"round scheduler: {text}")
        self._state.drop_caches()


def _nodes_of(cluster: Cluster) -> dict[str, str]:
    """Return {node: its GPUs, by their name in the profile}, as text."""
    kinds = dict(zip(cluster.accelerator_names, cluster.profile_names, strict=True))
    return {node.name: f"{node.num_gpus} GPUs of type {kinds[node.accelerator]}" for node in cluster.nodes}


def _may_refuse(policy: Policy, requests: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a policy may refuse jobs: it has its own checks, or may need steps that are unknown."""
    inherits = type(policy).check is Policy.check and type(policy).view is Policy.view and not policy.agnostic
    return not inherits or not set(policy.reads) <= set(JOB_ATTRIBUTES) or bool(np.isnan(requests["total_steps"]).any())


def _check_steps(table: ScheduledJobs, steps_done: Mapping[str, float]) -> None:
    """Raise `InputError` for the numbers that are not finite or negative."""
    wrong = {job_id: steps for job_id, steps in steps_done.items() if not (is_finite(steps) and steps >= 0)}
    for job_id in wrong:
        table.known(job_id)
    rule = "must be a finite number of at least 0, found"
    InputError.raise_any([Fault(f"job {job_id!r}", "steps_done", f"{rule} {steps!r}") for job_id, steps in wrong.items()])
