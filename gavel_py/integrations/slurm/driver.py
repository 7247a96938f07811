"""The driver of Slurm partitions: reads the cluster, plans a round, carries it out, and watches jobs until the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from gavel_py.errors import InputError, SlurmError, SolverError
from gavel_py.integrations.slurm.accounts import AccountsReader
from gavel_py.integrations.slurm.actions import Actions, FillTrigger
from gavel_py.integrations.slurm.apply import FREE, OUTCOME, Applied, Applier
from gavel_py.integrations.slurm.client import commands as slurm
from gavel_py.integrations.slurm.client.contact import Contact
from gavel_py.integrations.slurm.client.queue import QueueReader
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob, Snapshot
from gavel_py.integrations.slurm.decision import ClusterSnapshot, Decided, SlurmPlanner
from gavel_py.integrations.slurm.job_roles import Role, eligibility_of
from gavel_py.integrations.slurm.lease import DriverLease, exclusive_lock, notify, offer_of, release_all
from gavel_py.integrations.slurm.measuring import SpeedStore
from gavel_py.integrations.slurm.monitoring.event_log import LOG, EventLog, warn
from gavel_py.integrations.slurm.monitoring.metrics import Metrics
from gavel_py.integrations.slurm.monitoring.queue_view import Publisher
from gavel_py.integrations.slurm.reservations import with_reservations
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import STATE, TOTALS, DriverState, check_directory, save_state
from gavel_py.policies import Policy, resolve_policy
from gavel_py.scheduling.options import DEFAULTS, SchedulerOptions
from gavel_py.throughput_profiles import ThroughputProfile, ThroughputStore

if TYPE_CHECKING:
    from gavel_py import ThroughputLearner
    from gavel_py.scheduling.keywords import OptionChanges

LOCK = "lock"
MAX_RETRY_SECONDS = 60.0


class SlurmDriver:
    """Drives one or several partitions of a Slurm cluster.

    As a context manager it holds the lock of its directory; without the lock it changes nothing in Slurm.

    Args:
        settings: The settings of the site.
        profile: Throughputs by job type; or a `ThroughputLearner`, which learns them from the progress of jobs. A new one takes
            over what the state in `directory` has learned.
        policy: A name or a `Policy`.
        options: How the scheduler plans rounds. Without `restart_seconds`, the duration of stops and starts is measured; without a
            minimum run time, jobs run long enough that preemptions cost at most 2 % of GPU time.
        directory: For the state, the log and the lock; None to keep nothing, which suffices for `look` and `plan`.
        store: The store to which measured throughputs or the observations of a learner are added; None for no store.
        commands: Replacement of Slurm's commands, for tests.
        clock: Replacement of the system clock, for tests.
        **changes: Values for fields of the options, by name.

    Raises:
        InputError: An argument is invalid.
    """

    is_shadow = False
    """Whether the driver leaves Slurm unchanged."""

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile | ThroughputLearner,
        policy: str | Policy = "max_min_fairness",
        *,
        options: SchedulerOptions = DEFAULTS,
        directory: str | Path | None = None,
        store: ThroughputStore | None = None,
        commands: slurm.SlurmCommands | None = None,
        clock: slurm.WallClock | None = None,
        **changes: Unpack[OptionChanges],
    ) -> None:
        self.settings, self.policy = settings, resolve_policy(policy)
        self._directory = None if directory is None else Path(directory)
        self._commands = slurm.SlurmCommands() if commands is None else commands
        self._clock = slurm.WallClock() if clock is None else clock
        self._store = SpeedStore(store, settings.measured, self._log)
        options = options.changed(**changes)
        if "retry_seconds" not in options.model_fields_set:
            options = options.changed(retry_seconds=settings.retry_seconds)
        self._round_seconds = options.round_seconds
        path = None if self._directory is None else self._directory / STATE
        self._planner = SlurmPlanner(settings, profile, self.policy, options, path, self._log)
        self._contact, self._queue = Contact(self._clock, self._log), QueueReader(self._commands, settings.partitions)
        self._accounts = AccountsReader(self._commands, settings.tenants_from_slurm)
        self._event_log: EventLog | None = None
        self._resources = ExitStack()
        self._metrics = Metrics(settings.metrics, settings.metrics_port)
        self._publisher: Publisher | None = None
        self._lease: DriverLease | None = None
        self._may_annotate: bool | None = None
        self._left_to_slurm: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        if self._directory is None:
            raise InputError("a driver that changes anything needs a directory for its state")
        self._resources.enter_context(exclusive_lock(self._directory / LOCK))
        check_directory(self._directory, is_shadow=self.is_shadow)
        self._resources.enter_context(self._metrics)
        self._publisher = Publisher(self._directory, self._metrics, self._commands, self._clock)
        self._event_log = self._resources.enter_context(closing(EventLog(self._directory / LOG)))
        self._log("begun", policy=self.policy.label, partition=self.settings.partition, round_seconds=self._round_seconds)
        return self

    def __exit__(self, *error: object) -> None:
        self._event_log = None
        self._resources.close()

    def reopen_log(self) -> None:
        """Write to a new log file from now on, after the old one was moved. May be called from a signal handler."""
        if self._event_log is not None:
            self._event_log.is_moved = True

    @property
    def state(self) -> DriverState | None:
        """The state of the driver; None before the first snapshot."""
        return self._planner.state

    def look(self) -> ClusterSnapshot:
        """Read the cluster without changing anything.

        Returns:
            The snapshot with the driver's view of it.

        Raises:
            SlurmError: Slurm does not answer.
        """
        return self._planner.reconcile(self._read())

    def _read(self, *, within_round: bool = False) -> Snapshot:
        """Read the cluster, and limits and shares of accounts if that is due."""
        with self._contact.reading():
            read = self._queue.latest if within_round else self._queue.whole
            snapshot = slurm.with_partitions(read(self._clock.now()), self._commands)
            snapshot = with_reservations(snapshot, self._commands)
        problem = self._accounts.read(0 if self.state is None else self.state.rounds)
        self._planner.accounts = self._accounts.latest
        if problem and self._event_log is not None:
            self._log("no_accounts", why=problem)
            warn(f"limits and shares of accounts could not be read; those read before still apply, if any: {problem}")
        return snapshot

    def _read_jobs(self) -> Mapping[str, SlurmJob]:
        with self._contact.reading():
            return self._queue.jobs()

    def plan(self) -> Decided:
        """Plan the next round without changing anything.

        Returns:
            The round and the actions that it requires.

        Raises:
            SlurmError: Slurm does not answer.
            GavelError: No decision is possible.
        """
        return self._planner.decide(self.look())

    def round(self) -> tuple[Decided, Applied]:
        """Plan one round, carry it out, and compare Slurm with the plan.

        Returns:
            The planned round and its outcome.

        Raises:
            SlurmError: Slurm does not answer, or does not allow this account to manage jobs.
            GavelError: No decision is possible, or the state cannot be saved. Then nothing has been changed in Slurm.
        """
        self._prepare()
        if self.state is not None:
            self.state.deferred.clear()  # the new round replaces deferred starts
        picture = self.look()
        self._clock.catch_up(picture.state.scheduler.last_start_seconds or 0.0)  # in case it was set back before this driver began
        if self._lease is not None:
            self._lease.offer = offer_of(picture.snapshot.nodes.values(), self.settings.partitions)
        self._left_to_slurm = frozenset(i for i, standing in picture.standings.items() if standing.role.is_left_to_slurm)
        decided = self._decide(picture)
        actions, begun = decided.moves, decided.begun
        planned = {name: getattr(actions, name) for name in ("keep", "stop", "bind", "start", "cannot", "deferred", "give_back")}
        planned |= {"round": begun.index, "excluded": begun.excluded, "refused": dict(picture.refused), **decided.account()}
        self._log("round", seconds=begun.start_seconds, **planned)
        applied = self._carry_out(picture, actions, "applied")
        if self._publisher is not None:
            self._publisher.show_round(decided, applied)
        return decided, applied

    def _carry_out(self, picture: ClusterSnapshot, actions: Actions, event: str) -> Applied:
        """Carry out actions in Slurm, record the outcome in the state, and log it as this event."""
        state = picture.state
        state.stopping |= set(actions.stopped)
        state.note_starts(actions.start, actions.limits, picture.snapshot.jobs)
        self._save()
        if self._lease is not None:  # only here, since Slurm is to start the jobs of a driver that cannot save its state
            self._lease.is_paused = self._lease.is_new = False
            self._lease.renew()
            self._planner.lease = self._lease.term
        if actions.warn:
            self._log("warned", jobs={i: {"signal": each.name, "until": state.warned[i]} for i, each in actions.warn.items()})
        for job_id in actions.stop:
            state.steered[job_id].stop_seconds = math.floor(self._clock.now())  # as Slurm, which counts whole seconds
        applied = self._apply(picture, actions)
        if self._lease is not None:
            self._lease.end_replaced()
        self._planner.take_outcome(applied.jobs, [*applied.waiting, *applied.elsewhere], self._clock.now())
        ending = {job_id for job_id, job in applied.jobs.items() if job.phase is Phase.STOPPING}
        state.stopping = (state.stopping & ending) | {*applied.lingering}
        self._try_to_save()
        outcome = {name: round(getattr(applied, name), 3) for name in ("stop_seconds", "start_seconds")}
        outcome |= {} if event == "applied" else {"start": actions.start}
        self._log(event, **outcome, **{name: getattr(applied, name) for name in OUTCOME})
        if applied.given_back:
            self._log("let_go", jobs={job_id: actions.give_back[job_id] for job_id in applied.given_back})
        slurm.check_started(actions.start, applied.started, applied.errors, self.settings.partition)
        return applied

    def _prepare(self) -> None:
        """Check rights and clocks before anything is changed for the first time, and take the lease."""
        if self._may_annotate is None:
            self._may_annotate = slurm.may_annotate(self._commands)
            if self._publisher is not None:
                self._publisher.may_annotate = self._may_annotate
            slurm.warn_of_configuration(self._commands, self.settings.partitions, self.settings.stop_seconds)
        if self._lease is None and self._directory is not None:
            slurm.check_clock(self._commands, self._clock)
            lease = DriverLease(self._commands, self._clock, self.settings.partitions, self._directory, self.settings.lease)
            lease.begin()  # raises if another driver manages the partition
            self._lease, self._planner.lease = lease, lease.term

    def _fail(self, error: Exception) -> None:
        """Renew the lease no more until a round is possible, or end it; after a refusal, the rights are checked again first."""
        self._log("undecided", why=str(error))
        if isinstance(error, slurm.RightsError):
            self._may_annotate = None
        if self._lease is None:
            return
        self._lease.is_paused = True
        if self.settings.on_failure == "release" or self._lease.is_new:
            self.release()

    def _apply(self, picture: ClusterSnapshot, actions: Actions) -> Applied:
        """Stop and start jobs, and measure how long that takes."""
        state, settings = picture.state, self.settings
        known, lease = {**picture.known, **state.tracked}, self._planner.lease
        applier = Applier(actions, known, self._commands, self._clock, lease, picture.most_nodes, self._read_jobs, self._beat)
        applied = applier.apply(
            picture.snapshot.jobs, settings.stop_seconds, settings.start_seconds, may_annotate=bool(self._may_annotate)
        )
        state.restart_cost.measure(
            stop_seconds=applied.stop_seconds if actions.stop else None,
            start_seconds=applied.start_seconds if applied.started and not applied.waiting else None,
        )
        return applied

    def fill(self) -> Applied | None:
        """Start waiting jobs on idle GPUs within the round in progress; only warned jobs whose grace period is over are stopped.

        Returns:
            The outcome; None if no job starts.

        Raises:
            SlurmError: Slurm does not answer, or does not allow this account to manage jobs.
            GavelError: The cluster cannot be planned, or the state cannot be saved. Then nothing has been changed in Slurm.
        """
        picture = self._planner.reconcile(self._read(within_round=True), within_round=True)
        actions = self._planner.fill(picture)
        filled = None if actions is None else self._carry_out(picture, actions, "filled")
        if self._publisher is not None:
            self._publisher.show_reading(picture.snapshot.jobs if filled is None else filled.jobs, picture, filled)
        return filled

    def run(self, rounds: int | None = None, *, tell: Callable[[Decided, Applied], None] | None = None) -> None:
        """Run rounds until the clock stops; then Slurm starts the waiting jobs when the lease ends, or at once.

        If the controller does not answer, the driver retries; it warns when that begins and when it is over. Other errors after
        the first round are logged, and the next round begins when it is due. Jobs keep running meanwhile, and the lease is not
        renewed.

        Args:
            rounds: Number of rounds after which to end; None for no limit.
            tell: Called with each round and its outcome.

        Raises:
            GavelError: An error before the first round is complete that retrying would not resolve.
        """
        retry, completed = self.settings.retry_seconds, 0
        notify("READY=1")
        while True:
            try:
                decided, applied = self.round()
                retry, completed = self.settings.retry_seconds, completed + 1
                if tell is not None:
                    with suppress(OSError):  # a full disk under standard output, for example, must not affect jobs
                        tell(decided, applied)
                if rounds is not None and completed >= rounds:
                    break
                end, had_jobs = decided.begun.end_seconds, bool(applied.kept or applied.started)
            except (InputError, slurm.RightsError, SolverError) as error:
                self._fail(error)
                if not completed:
                    raise
                warn(f"no round was possible, the next attempt follows in {self._round_seconds:g} s: {error}")
                end, had_jobs = self._clock.now() + self._round_seconds, False
            except SlurmError as error:
                if isinstance(error, slurm.NoSlurmError) and not completed:
                    raise
                self._contact.lost(error, retry_seconds=retry)
                end, had_jobs = self._clock.now() + retry, False
                retry = min(MAX_RETRY_SECONDS, retry * 2)
            if not self._watch_until(end, had_jobs):
                break
        self.end()

    def _watch_until(self, end: float, had_jobs: bool) -> bool:
        """Update jobs and start waiting ones on idle GPUs, until the next round is due or no job runs while others wait.

        Returns False if the clock stops.
        """
        trigger = FillTrigger()
        while True:
            self._beat()
            left = max(0.0, end - self._clock.now())
            # Called even if Slurm took longer than the round, since the clock may have stopped.
            if not self._clock.sleep(min(left, self.settings.poll_seconds)):
                return False
            if not left:
                return True
            try:
                if end - self._clock.now() > 0 and self._is_due(had_jobs, trigger):
                    return True
            except (InputError, slurm.RightsError, SolverError) as error:
                self._fail(error)
            except SlurmError as error:
                self._contact.lost(error)

    def _is_due(self, had_jobs: bool, trigger: FillTrigger) -> bool:
        """Update jobs, start waiting ones on idle GPUs, and return whether a round is due early: no job runs although one could."""
        state, reconciler, now = self._planner.state, self._planner.reconciler, self._clock.now()
        if state is None or reconciler is None:
            return False
        jobs, known, before = self._read_jobs(), {*state.tracked, *state.aside, *self._left_to_slurm}, state.turnover
        reconciler.update_jobs(jobs, now)
        if state.turnover != before:
            self._try_to_save()
        if not any(tracked.runs for tracked in state.tracked.values()):
            if had_jobs and state.tracked.keys() - state.unplanned.keys():
                return True
            new = [job for job in reconciler.rules.startable(jobs.values()) if job.job_id not in known]
            if any(eligibility_of(job, self.settings.partitions, now).role is Role.MANAGED for job in new):
                return True
        if trigger.is_due(jobs, now) or any(until <= now for until in state.warned.values()):
            self.fill()
        elif self._publisher is not None:
            self._publisher.show_reading(jobs)
        return False

    def _decide(self, picture: ClusterSnapshot) -> Decided:
        """Plan a round with the latest measurements, and add them to the store."""
        with self._store.latest_used(picture.state):
            return self._planner.decide(picture)

    def end(self) -> None:
        """End the lease if the settings require it; `run` calls it at its end."""
        state = self._planner.state
        if self.settings.on_exit == "release" and state is not None:
            self.release()
        totals = {} if state is None else dict(zip(TOTALS, state.totals(self._clock.now()), strict=True))
        self._log("ended", **totals)

    def release(self) -> None:
        """End the lease, so that Slurm starts all jobs until the next round. Errors are only reported."""
        try:
            released = release_all(self._commands, self.settings.partitions, self._planner.state)
            self._lease, self._planner.lease = None, FREE
            self._log("released", **released._asdict())
            if released.problem:
                warn(f"jobs wait until the lease ends: {released.problem}")
        except SlurmError as error:
            self._contact.lost(error)

    def _beat(self) -> None:
        if self._lease is not None:
            self._lease.beat()
            self._planner.lease = self._lease.term

    def _save(self) -> None:
        if self._directory is not None and self._planner.state is not None:
            save_state(self._directory / STATE, self._planner.state)

    def _try_to_save(self) -> None:
        """Save the state after changes that the next driver could also find in Slurm. Errors are only logged."""
        try:
            self._save()
        except InputError as error:
            self._log("not_saved", why=str(error))
            warn(str(error))

    def _log(self, event: str, seconds: float | None = None, **fields: Any) -> None:
        if self._event_log is not None:
            self._event_log.write(event, self._clock.now() if seconds is None else seconds, **fields)
