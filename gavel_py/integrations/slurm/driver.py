"""The driver: reads a Slurm cluster, lets the round scheduler decide, carries the round out, and checks that it has come about.

A lock on a file keeps a second driver away; the operating system takes it back when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gavel_py.errors import Fault, InputError, SlurmError, SolverError
from gavel_py.integrations.slurm.apply import Applied, Applier
from gavel_py.integrations.slurm.commands import (
    Clock,
    Commands,
    Rights,
    RightsError,
    SlurmCommands,
    WallClock,
    check_started,
    read_cluster,
    read_jobs,
    rights_of,
)
from gavel_py.integrations.slurm.decision import Actions, ClusterSnapshot, Decided, RoundPlanner, restore_lines
from gavel_py.integrations.slurm.event_log import RunLog, applied_line, round_line, warn
from gavel_py.integrations.slurm.job_roles import Role, eligibility_of, is_held_by_driver
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import DriverState, measurements_of, save_state
from gavel_py.integrations.slurm.sync import Progress
from gavel_py.policies import Policy, resolve_policy
from gavel_py.throughput_profiles import ThroughputProfile, ThroughputStore


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Within this, nobody else is. Raises `InputError` if another process has the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        hint = "the state needs a directory that this account may write to (--state)"
        raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}; {hint}")) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            text = f"another driver is at work with this state (process {holder or 'unknown'}); there must be only one"
            raise InputError(Fault(str(path), "", text)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


STATE, LOG, LOCK = "state.json", "log.jsonl", "lock"

SLOWEST_RETRY = 60.0


class SlurmDriver:
    """Drives one partition of a Slurm cluster.

    settings: what the site decides; profile: throughputs by job type; policy: a name or a `Policy`; directory: where the state, the
    log and the lock are, None: nothing is kept, which is enough to look and to plan; progress: a directory with a file of each job;
    store, measured: where measured throughputs go, under which name (None: nowhere); commands, clock: other ways to reach Slurm and
    to tell time; options: `round_seconds`, `restart_seconds`, `min_run_seconds` and `solve_seconds` of `RoundScheduler`.
    As a context manager it holds the lock, without which nothing is changed. Raises `InputError` for wrong arguments.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile,
        policy: str | Policy = "max_min_fairness",
        *,
        directory: str | Path | None = None,
        progress: str | Path | None = None,
        store: ThroughputStore | None = None,
        measured: str = "slurm",
        commands: Commands | None = None,
        clock: Clock | None = None,
        **options: float,
    ) -> None:
        self.settings, self.policy = settings, resolve_policy(policy)
        self._directory = None if directory is None else Path(directory)
        self._commands: Commands = SlurmCommands() if commands is None else commands
        self._clock: Clock = WallClock() if clock is None else clock
        self._store, self._measured = store, measured
        self._round_seconds = options.setdefault("round_seconds", 360.0)
        steps = Progress(None if progress is None else Path(progress))
        path = None if self._directory is None else self._directory / STATE
        self._planner = RoundPlanner(settings, profile, self.policy, options, path, steps, self._log)
        self._applier = Applier(self._commands, self._clock, settings.stop_seconds, settings.start_seconds)
        self._file: RunLog | None = None
        self._locked = ExitStack()
        self._rights: Rights | None = None
        self._unstored: set[tuple[str, int, str]] = set()
        self._slurms: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        if self._directory is None:
            raise InputError("a driver that is to change anything needs a directory for its state")
        self._locked.enter_context(exclusive_lock(self._directory / LOCK))
        self._file = self._locked.enter_context(RunLog(self._directory / LOG))
        self._log("begun", policy=self.policy.label, partition=self.settings.partition, round_seconds=self._round_seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file = None
        self._locked.close()

    @property
    def state(self) -> DriverState | None:
        """What it knows; None before it has looked."""
        return self._planner.state

    def look(self) -> ClusterSnapshot:
        """Read the cluster and return it as this program sees it; nothing is changed. Raises `SlurmError`."""
        return self._planner.picture(read_cluster(self._commands, self._clock.now()))

    def plan(self) -> Decided:
        """Return what the next round would be; nothing is changed. Raises `SlurmError`, and what deciding raises."""
        return self._planner.decide(self.look())

    def round(self) -> tuple[Decided, Applied]:
        """Play one round: read, decide, carry out, compare.

        Raises:
            SlurmError: Slurm does not answer, or does not let this account manage jobs.
            GavelError: What deciding raises, or the state cannot be saved; then nothing has been changed in Slurm.
        """
        if self._rights is None:
            self._rights = rights_of(self._commands)
        picture = self.look()
        self._slurms = frozenset(job_id for job_id, standing in picture.standings.items() if standing.role.is_left_to_slurm)
        decided = self._decide(picture)
        state, moves = picture.state, decided.moves
        self._log("round", seconds=decided.begun.start_seconds, **round_line(decided))
        state.stopping |= set(moves.stop)
        self._save()
        known = {**picture.known, **state.tracked}
        applied = self._applier.apply(moves, known, most_nodes=picture.most_nodes, marks=self._rights.may_annotate)
        self._take_in(applied, moves)
        state.stopping = set(applied.lingering)
        self._save_if_possible()
        self._log("applied", **applied_line(applied))
        if applied.given_back:
            self._log("let_go", jobs={job_id: moves.give_back[job_id] for job_id in applied.given_back})
        check_started(applied.sent, applied.started, applied.errors, self.settings.partition)
        return decided, applied

    def run(self, rounds: int | None = None, *, tell: Callable[[Decided, Applied], None] | None = None) -> None:
        """Play rounds, until the clock says that it is to end, or so many; then leave or release the jobs that wait.

        tell: is called with each round and what came of it. A controller that does not answer is waited for. What goes wrong
        after the first round is logged, and the next round is played when it is due; jobs go on meanwhile.
        """
        retry, played = self.settings.retry_seconds, 0
        while True:
            try:
                decided, applied = self.round()
                retry, played = self.settings.retry_seconds, played + 1
                if tell is not None:
                    with suppress(OSError):  # such as a full disk under standard output: jobs must not suffer from it
                        tell(decided, applied)
                if rounds is not None and played >= rounds:
                    break
                end, had_any = decided.begun.end_seconds, bool(applied.kept or applied.started)
            except (InputError, RightsError, SolverError) as error:
                if not played:
                    raise  # what never worked is to be told at once
                self._log("undecided", why=str(error))
                end, had_any = self._clock.now() + self._round_seconds, False
            except SlurmError as error:
                self._log("no_answer", why=str(error), retry_seconds=retry)
                end, had_any = self._clock.now() + retry, False
                retry = min(SLOWEST_RETRY, retry * 2)
            if not self._until(end, had_any):
                break
        self.end()

    def _until(self, end: float, had_any: bool) -> bool:
        """Watch jobs until the next round is due, or nobody runs any more and somebody waits; say whether to go on."""
        # Also where nothing is left of the round, since Slurm was slower than it is long, the driver may be to end.
        while (left := max(0.0, end - self._clock.now())) >= 0:
            if not self._clock.sleep(min(left, self.settings.poll_seconds)):
                return False
            if not left:
                break
            try:
                if end - self._clock.now() > 0 and self._is_idle(had_any):
                    break
            except SlurmError as error:
                self._log("no_answer", why=str(error))
        return True

    def _is_idle(self, had_any: bool) -> bool:
        """Take note of what has happened, and say whether a round is due: nobody runs, and there is somebody to run."""
        state, monitor = self._planner.state, self._planner.monitor
        if state is None or monitor is None:
            return False
        jobs, known, before = read_jobs(self._commands), {*state.tracked, *state.aside, *self._slurms}, state.turnover
        monitor.update(jobs, self._clock.now())
        if state.turnover != before:
            self._save_if_possible()
        if any(tracked.runs for tracked in state.tracked.values()):
            return False
        return any(self._is_new(job, known) for job in jobs.values()) or (
            had_any and bool(state.tracked.keys() - state.unplanned.keys())
        )

    def _is_new(self, job: SlurmJob, known: set[str]) -> bool:
        if job.phase is not Phase.WAITING or job.job_id in known:
            return False
        return eligibility_of(job, self.settings.partition, self._clock.now()).role is Role.MANAGED

    def _take_in(self, applied: Applied, moves: Actions) -> None:
        """Let the scheduler know what came of the round."""
        state, monitor = self._planner.state, self._planner.monitor
        assert state is not None  # noqa: S101
        assert monitor is not None  # noqa: S101
        monitor.update(applied.jobs, self._clock.now())
        for job_id in [*applied.waiting, *applied.elsewhere]:
            if job_id in state.tracked:
                state.scheduler.interrupted(job_id)
        for job_id in applied.waiting:
            if job_id in state.tracked and (job_id not in moves.cannot or job_id in moves.misfits):
                state.tracked[job_id].note_failed_start(state.rounds)

    def _decide(self, picture: ClusterSnapshot) -> Decided:
        """Decide by what jobs have shown of their speed, and take it into use, and into the store.

        With a decision, and at no other time: what is saved must have the speeds that its allocation was made with. Where nothing
        can be decided, they stay news.
        """
        state = picture.state
        before, had = state.speeds, state.scheduler.profile
        measured = measurements_of(state.sums, state.news)
        if measured:
            state.speeds = before.with_measured({(m.job_type, m.num_gpus, m.accelerator): m.steps_per_second for m in measured})
            state.scheduler.profile = state.speeds.profile
        try:
            decided = self._planner.decide(picture)
        except BaseException:
            if measured:
                state.speeds, state.scheduler.profile = before, had
            raise
        if measured:
            self._log("measured", speeds=[[m.job_type, m.num_gpus, m.accelerator, m.steps_per_second] for m in measured])
            self._put_into_store(state)
        state.news = set()
        return decided

    def _put_into_store(self, state: DriverState) -> None:
        """Add what there is news of to the store, with what it could not take before; the state has it in any case."""
        self._unstored |= state.news
        if self._store is None:
            return
        try:
            self._store.add(self._measured, measurements_of(state.sums, self._unstored))
        except InputError as error:
            self._log("not_stored", why=str(error))
            warn(f"measured speeds are in no store: {error}")
        else:
            self._unstored = set()

    def end(self) -> None:
        """Release the jobs that wait on hold, if the settings say so; `run` does it at its end."""
        state = self._planner.state
        if self.settings.on_exit == "release" and state is not None:
            try:
                jobs, known = read_jobs(self._commands), state.aside | state.tracked
                # Also those that were not planned, since they wait for something else too, or came since the last round.
                held = [job for job in jobs.values() if is_held_by_driver(job, self.settings.partition, known, state.stopping)]
                lines = restore_lines(held, known, len(state.scheduler.cluster.nodes))
                self._commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
                self._log("released", jobs=[job.job_id for job in held])
            except SlurmError as error:
                self._log("no_answer", why=str(error))
        self._log("ended")

    def _save_if_possible(self) -> None:
        """Save what has come about. The next driver would find it in Slurm, too, and the next round is not begun unsaved."""
        try:
            self._save()
        except InputError as error:
            self._log("not_saved", why=str(error))
            warn(str(error))

    def _save(self) -> None:
        if self._directory is not None and self._planner.state is not None:
            save_state(self._directory / STATE, self._planner.state)

    def _log(self, event: str, seconds: float | None = None, **told: Any) -> None:
        if self._file is not None:
            self._file.write(event, self._clock.now() if seconds is None else seconds, **told)
