"""A driver that observes a live partition without changing it: it decides for a virtual copy and records what Slurm does meanwhile.

Nodes, arrivals and requests are those of the live partition. `VirtualPartition` carries out the driver's decisions: its jobs start,
stop and end according to the throughputs of the profile, and the driver reads its jobs instead of those in Slurm's queue. A second
reconciler follows the live partition; it provides the real schedule and the work of each job that has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.actions import Actions
from gavel_py.integrations.slurm.apply import Applied
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob, SlurmNode, Snapshot
from gavel_py.integrations.slurm.decision import ClusterSnapshot, Decided, SlurmPlanner
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.job_mapping import gpus_used
from gavel_py.integrations.slurm.job_roles import Role, eligibility_of
from gavel_py.integrations.slurm.lease import holders
from gavel_py.integrations.slurm.monitoring.event_log import ACTUAL, STAY_EVENTS, warn
from gavel_py.integrations.slurm.monitoring.virtual import (
    MAX_RUNS,
    Jobs,
    StartCosts,
    VirtualJob,
    VirtualPartition,
    loading_of,
)
from gavel_py.integrations.slurm.records import RestartCost, Tracked
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.state import DRIVER, SHADOW, STATE, save_state
from gavel_py.io.snapshots import damage_as_fault
from gavel_py.policies import Policy
from gavel_py.scheduling.options import DEFAULTS, SchedulerOptions
from gavel_py.throughput_profiles import ThroughputProfile

if TYPE_CHECKING:
    from gavel_py.scheduling.keywords import OptionChanges

LIVE = "slurm.json"
"""Name of the state file of the reconciler that follows the live partition."""

MEASURED = RestartCost([0.3], [0.6])
"""Stops and starts of drivers in the comparison of docs/slurm-driver.md, of jobs that end at once when they are told to."""

DEFAULT_LOADING_SECONDS = 9.1
"""With these, a restart costs 10 s."""


class SlurmShadow(SlurmDriver):
    """Shows what a `SlurmDriver` would do on a live partition, without changing anything there.

    Its log, queue and figures are those of a driver whose decisions were carried out; the log also records what Slurm does.
    `slurm_comparison` compares the two schedules. A shadow reads what a driver reads, by commands that every user may run, and
    writes only to its own directory.

    Jobs that are running when the shadow starts run in both schedules. From then on, jobs arrive as in Slurm and progress at the
    speeds of the profile, after stops, their start and loading have taken their time (`costs`). A job ends when its work is done.
    If it has already ended in Slurm, its work is what it did there after loading, at the profile's speed for the type on which it
    ran; otherwise it is the number of steps that it specifies. A job with known work also
    ends at its time limit. A job that specifies no steps holds its GPUs at least until it has ended in Slurm. A job that is
    cancelled in Slurm is cancelled here too. The GPUs of jobs that are left to Slurm are not available to the shadow.

    Args:
        settings: The settings of the site. A shadow changes nothing in Slurm when it ends.
        profile: Throughputs by job type.
        policy: A name or a `Policy`.
        options: As for `SlurmDriver`. With `restart_seconds`, each start costs that.
        directory: The directory for the state and the log.
        commands: Replacement of Slurm's commands, for tests.
        clock: Replacement of the system clock, for tests.
        **changes: Values for fields of the options, by name.

    Raises:
        InputError: An argument is invalid.
    """

    is_shadow = True

    def __init__(
        self,
        settings: SlurmSettings,
        profile: ThroughputProfile,
        policy: str | Policy = "max_min_fairness",
        *,
        options: SchedulerOptions = DEFAULTS,
        directory: str | Path | None = None,
        commands: SlurmCommands | None = None,
        clock: WallClock | None = None,
        **changes: Unpack[OptionChanges],
    ) -> None:
        settings = settings.changed(on_exit="leave", on_failure="retry", progress=None)
        options = options.changed(**changes)
        super().__init__(settings, profile, policy, options=options, directory=directory, commands=commands, clock=clock)
        saved, path = (None if self._directory is None else self._directory / name for name in (SHADOW, LIVE))
        self._partition = VirtualPartition.load(saved, settings.default_steps)
        self._live = SlurmPlanner(self.settings, profile, self.policy, DEFAULTS, path, self._log_live)
        self._jobs: Jobs = {}
        self._nodes: Mapping[str, SlurmNode] = {}
        self._given_seconds = options.restart_seconds if "restart_seconds" in options.model_fields_set else None
        self._measured = MEASURED if settings.history is None else _measured_by(settings.history / STATE)
        self._assumed: dict[str, Any] = {}
        self._counts = Counter[tuple[str, int]]()

    @property
    def costs(self) -> StartCosts:
        """What starts cost here.

        Stops and starts take the median time that the driver of `SlurmSettings.history` measured. The loading time is estimated
        from the jobs that have finished in Slurm, or is what `restart_seconds` leaves for it.
        """
        loading = loading_of(self._partition.runs)
        found = StartCosts(*self._measured.medians, DEFAULT_LOADING_SECONDS if loading is None else loading)
        return found if self._given_seconds is None else found.within(self._given_seconds)

    def __enter__(self) -> Self:
        super().__enter__()
        self._log("shadow")
        with suppress(SlurmError):  # the first round reports it
            for each in holders(self._commands, self.settings.partitions):
                text = f"a driver manages partition {','.join(sorted(each.partitions))} ({each.origin})"
                warn(f"{text}; a shadow is for partitions without one, which it compares with what Slurm does by itself")
        return self

    def release(self) -> None:
        """Do nothing: a shadow has no lease."""

    def _prepare(self) -> None:
        pass  # a shadow needs no rights and takes no lease

    def _read(self, *, within_round: bool = False) -> Snapshot:
        """Return the virtual partition as a snapshot of Slurm."""
        for planner in (self._planner, self._live):
            planner.load()
        snapshot, partition, known = super()._read(within_round=within_round), self._partition, self._known
        # The live reconciler follows what has happened in Slurm, so limits and reservations do not matter to it.
        state = self._live.reconcile(replace(snapshot, partitions={}, reservations=())).state
        state.forget_departed()
        self._note_ends(snapshot.jobs, known)
        partition.admit(snapshot.jobs, state.tracked)
        self._nodes = snapshot.nodes
        jobs = self._advance_and_list()
        return replace(snapshot, nodes=partition.nodes(snapshot.nodes, jobs), jobs=jobs)

    def _read_jobs(self) -> Jobs:
        jobs, known, now = super()._read_jobs(), self._known, self._clock.now()
        state, reconciler = self._live.state, self._live.reconciler
        if state is None or reconciler is None:
            return jobs
        before = state.turnover
        reconciler.update_jobs(jobs, now)
        self._note_ends(jobs, known)
        if state.turnover != before:
            self._try_to_save()
        # New jobs wait for the next decision here, even if Slurm has started them.
        left = {job_id for job_id, each in reconciler.roles.items() if each.role.is_left_to_slurm}
        new = [i for i in jobs.keys() - self._partition.jobs.keys() - left if not jobs[i].phase.is_over]
        new = [i for i in new if eligibility_of(jobs[i], self.settings.partitions, now).role is Role.MANAGED]
        return self._advance_and_list(new) | {job_id: VirtualJob(jobs[job_id]).listed(jobs[job_id]) for job_id in new}

    @property
    def _known(self) -> dict[str, Tracked]:
        """The records of jobs in the live partition."""
        return {} if self._live.state is None else self._live.state.aside | self._live.state.tracked

    def _note_ends(self, jobs: Jobs, known: Mapping[str, Tracked]) -> None:
        """Record the jobs that have ended in Slurm; known: {job: its record before this snapshot}."""
        partition, self._jobs = self._partition, jobs
        for job_id, each in list(partition.jobs.items()):
            job, tracked = jobs.get(job_id), known.get(job_id)
            if each.outcome is None and (job is None or job.phase.is_over):
                steps = (
                    0.0 if tracked is None else self._work_of(tracked, each, has_finished=bool(job and job.phase is Phase.FINISHED))
                )
                partition.note_end(job_id, job, steps, self._clock.now())
                asked = {} if tracked is None or job is None else self._request_of(job, tracked, each)
                self._log("work", job=job_id, steps=steps, given=None if tracked is None else tracked.total_steps, **asked)
        partition.forget(jobs)

    def _work_of(self, tracked: Tracked, each: VirtualJob, *, has_finished: bool) -> float:
        """Return the steps that a job has done in Slurm, without those that its loading time would have allowed."""
        run, steps, given = tracked.running_seconds, tracked.steps_done, tracked.total_steps
        if has_finished and given and steps > 0 and tracked.starts == 1 and not each.is_inherited:
            runs = self._partition.runs
            runs[:] = [*runs, (run * given / steps, run)][-MAX_RUNS:]
        loading = 0.0 if each.is_inherited else self.costs.loading
        return steps * max(0.0, 1.0 - loading * tracked.starts / run) if run > 0 else steps

    def _request_of(self, job: SlurmJob, tracked: Tracked, each: VirtualJob) -> dict[str, Any]:
        """Return what the model of Slurm needs of a job. ran_on: where it was running when the shadow began."""
        if self._live.reconciler is None or self._live.state is None:
            return {}
        matcher, speeds = self._live.reconciler.matcher, self._live.state.speeds
        types = dict.fromkeys(matcher.type_of[name] for name in matcher.candidates(job, tracked.usable, tracked.barred))
        known = {name: speed for name in types if (speed := speeds.speed(tracked.job_type, tracked.num_gpus, name)) > 0}
        there = [matcher.type_of[name] for name in tracked.types_used[:1] if each.is_inherited and name in matcher.type_of]
        return {"nodes": max(1, job.nodes), "limit": job.time_limit_seconds, "speeds": known, "ran_on": "".join(there)}

    def _advance_and_list(self, new: Collection[str] = ()) -> dict[str, SlurmJob]:
        """End and stop the jobs that are due, and return all jobs. new: jobs that the partition is about to admit."""
        partition, state, now = self._partition, self.state, self._clock.now()
        if state is not None:
            partition.end_jobs(now, state, self._types, self._jobs)
            partition.leave_to_slurm(state.unplanned, self._jobs)
        here = {job_id for job_id, each in partition.jobs.items() if not each.is_left}.union(new)
        others = [job for job_id, job in self._jobs.items() if job_id not in here]
        for job_id in list(partition.displaced(self._nodes, gpus_used(others))):
            partition.stop(job_id, now, state, self._types)
        return partition.listed(self._jobs)

    @property
    def _types(self) -> Mapping[str, str]:
        """{node: accelerator}."""
        return {} if self._live.reconciler is None else self._live.reconciler.types

    def _decide(self, picture: ClusterSnapshot) -> Decided:
        picture.state.pending, picture.state.sums = set(), {}  # virtual jobs provide no measurements
        cluster = picture.state.scheduler.cluster
        types = dict(zip(cluster.accelerator_names, cluster.profile_names, strict=True))
        counts = Counter((types[node.accelerator], node.num_gpus) for node in cluster.nodes)
        if counts != self._counts:
            self._counts = counts
            self._log("nodes", nodes=[[*each, count] for each, count in counts.items()])
        return super()._decide(picture)

    def _apply(self, picture: ClusterSnapshot, actions: Actions) -> Applied:
        """Stop and start jobs of the virtual partition."""
        partition, now, state, types = self._partition, self._clock.now(), picture.state, self._types
        costs = self.costs
        stop = costs.stop if actions.stop else 0.0
        state.restart_cost.measure(stop_seconds=stop or None, start_seconds=costs.start if actions.start else None)
        self._log_costs(costs)
        for job_id in actions.stop:
            partition.stop(job_id, now, state, types)
        for job_id, target in actions.start.items():
            partition.start(job_id, target, now, stop + costs.start + costs.loading, state, types)
        for job_id, minutes in actions.limits.items():
            limit = picture.snapshot.jobs[job_id].time_limit_seconds or 0.0
            partition.jobs[job_id].lowered_seconds += max(0.0, limit - 60.0 * minutes)
        started, waiting = list(actions.start), dict(actions.cannot)
        return Applied(kept=actions.keep, stopped=actions.stop, started=started, waiting=waiting, jobs=self._advance_and_list())

    def _log_costs(self, costs: StartCosts) -> None:
        """Log the costs of starts and where they come from, if they have changed."""
        origin = "" if loading_of(self._partition.runs) is None else "jobs that have finished in Slurm"
        origin = origin if self._given_seconds is None else "--restart-seconds"
        history = "" if self.settings.history is None else str(self.settings.history)
        assumed = {name: round(value, 1) for name, value in costs._asdict().items()} | {"history": history, "loading_from": origin}
        if assumed != self._assumed:
            self._assumed = assumed
            self._log("assumed", **assumed)

    def _save(self) -> None:
        if self._directory is not None and self._live.state is not None:
            self._partition.save(self._directory / SHADOW)
            save_state(self._directory / LIVE, self._live.state)
            super()._save()

    def _log_live(self, event: str, seconds: float | None = None, **fields: Any) -> None:
        if event in STAY_EVENTS:
            self._log(f"{ACTUAL}{event}", seconds=seconds, **fields)


def _measured_by(path: Path) -> RestartCost:
    """Return the costs of restarts in the state of a driver. Raises `InputError`."""
    document = DRIVER.read(path)
    with damage_as_fault(path):
        return RestartCost(**document["restart_cost"])
