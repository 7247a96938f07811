"""The saved state of a driver: the scheduler, the throughputs in use, and a record of each managed job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gavel_py.errors import refuse
from gavel_py.integrations.slurm.client.records import SlurmJob
from gavel_py.integrations.slurm.records import RestartCost, Tracked
from gavel_py.integrations.slurm.speeds import Speeds, Sums, estimates_in, saved_learner
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy
from gavel_py.policies.serialization import policy_document
from gavel_py.scheduling import RoundScheduler
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.files import MeasuredRow

if TYPE_CHECKING:
    from gavel_py import ThroughputLearner

TOTALS = ("promised_gpu_seconds", "delivered_gpu_seconds", "owed_gpu_seconds")
"""Names of `DriverState.totals`."""

STATE = "state.json"
"""Name of the state file in the directory of a driver."""

SHADOW = "shadow.json"
"""Name of the additional file in the directory of a shadow."""


def check_directory(directory: Path, *, is_shadow: bool) -> None:
    """Raise `InputError` if a driver is to use the directory of a shadow, or a shadow that of a driver."""
    is_wrong = (directory / STATE).exists() and (directory / SHADOW).exists() is not is_shadow
    text = "is the state of a driver" if is_shadow else "is the state of a shadow (--shadow)"
    refuse(str(directory), (is_wrong, "", f"{text}; use another directory (--state)"))


DRIVER = SnapshotFormat("gavel-py slurm driver", 2, "a driver state written by gavel slurm run")


@dataclass
class DriverState:
    """The state of a driver.

    Attributes:
        partition: The managed partitions, separated by commas.
        scheduler: The scheduler of the rounds.
        speeds: The throughputs in use.
        tracked: {job: record} of the managed jobs.
        aside: {job: record} of jobs set aside, in case they return.
        stopping: Jobs that the driver is stopping.
        departed: Jobs that the scheduler forgets after the next decision.
        sums: Sums over the measured stays of all jobs.
        pending: Entries of `sums` that `speeds` does not contain yet.
        rounds: Number of rounds so far.
        departed_totals: GPU-seconds promised to, delivered to and owed to departed jobs.
        delivered: {(tenant, GPU type): GPU-seconds} delivered so far.
        unplanned: {job: reason} of jobs that the latest decision leaves to Slurm.
        multi_partition: Jobs that wait in several partitions; once they run, Slurm lists only one of these.
        restart_cost: The measured cost of stops and starts.
        warned: {job: time from which it may be stopped} of jobs that have received the signal before a stop.
        deferred: Jobs whose planned GPUs are still in use by warned jobs.
        yielding: Jobs of `aside` that run, and have to give way to others below a limit, or to a reservation.
        has_new_speeds: Whether other speeds came into use on loading, by which jobs may run on other GPU types; not saved.
    """

    partition: str
    scheduler: RoundScheduler
    speeds: Speeds
    tracked: dict[str, Tracked] = field(default_factory=dict)
    aside: dict[str, Tracked] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    departed: list[str] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)
    pending: set[tuple[str, int, str]] = field(default_factory=set)
    rounds: int = 0
    departed_totals: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    delivered: dict[tuple[str, str], float] = field(default_factory=dict)
    unplanned: dict[str, str] = field(default_factory=dict)
    multi_partition: set[str] = field(default_factory=set)
    restart_cost: RestartCost = field(default_factory=RestartCost)
    warned: dict[str, float] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    yielding: set[str] = field(default_factory=set)
    has_new_speeds: bool = False

    @property
    def partitions(self) -> tuple[str, ...]:
        """The managed partitions."""
        return tuple(self.partition.split(","))

    @property
    def steered(self) -> dict[str, Tracked]:
        """{job: record} of the jobs that the driver starts and stops: the managed ones, and those that give way to others."""
        return {**self.tracked, **{job_id: self.aside[job_id] for job_id in self.yielding if job_id in self.aside}}

    @property
    def turnover(self) -> tuple[int, int, int]:
        """Numbers of jobs, starts and running jobs; the state is saved when one of them changes."""
        jobs = self.tracked.values()
        return len(jobs), sum(job.starts for job in jobs), sum(job.runs for job in jobs)

    def totals(self, now: float) -> list[float]:
        """Return the GPU-seconds promised, delivered and owed so far; delivered time follows from Slurm's start and end times."""
        accounts = [self._account(tracked, now) for tracked in self.tracked.values()]
        return [sum(parts) for parts in zip(self.departed_totals, *accounts, strict=True)]

    def count_delivered(self, tracked: Tracked, seconds: float) -> None:
        """Add the GPU-seconds of a running job; a negative time corrects what was counted before."""
        cluster, gpu_seconds = self.scheduler.cluster, seconds * tracked.gpus
        types = dict(zip(cluster.accelerator_names, cluster.profile_names, strict=True))
        labels = tracked.tenant, types.get(tracked.accelerator, tracked.accelerator)
        self.delivered[labels] = self.delivered.get(labels, 0.0) + gpu_seconds
        tracked.gpu_seconds += gpu_seconds

    def depart(self, tracked: Tracked, now: float) -> None:
        """Remove a job and add its account to the totals; the scheduler forgets it after its next decision."""
        account = self._account(self.tracked.pop(tracked.job_id), now)
        self.departed_totals = [total + part for total, part in zip(self.departed_totals, account, strict=True)]
        self.departed.append(tracked.job_id)
        tracked.counted_gpu_seconds = tracked.gpu_seconds

    def _account(self, tracked: Tracked, now: float) -> list[float]:
        delivered = tracked.gpu_seconds - tracked.counted_gpu_seconds
        promised = self._promised_gpu_seconds(tracked, now)
        return [promised, delivered, max(0.0, promised - delivered)]

    def _promised_gpu_seconds(self, tracked: Tracked, now: float) -> float:
        """Return the GPU-seconds promised to a job so far; the scheduler counts a round as a whole when it begins."""
        job_id, scheduler = tracked.job_id, self.scheduler
        account = scheduler.delivery_of(job_id)
        if account is None or scheduler.last_start_seconds is None:
            return 0.0
        left, allocation = scheduler.last_start_seconds + scheduler.round_seconds - now, scheduler.allocation
        promised = account.promised_seconds * account.num_gpus
        if left <= 0 or allocation is None or job_id not in allocation.job_ids:
            return promised
        gpus = float(allocation.time_fractions[allocation.job_ids.index(job_id)].sum()) * account.num_gpus
        if tracked.offered:
            gpus = sum(count * part for (_, count), part in allocation.gpu_counts.get(job_id, {}).items())
        return max(0.0, promised - gpus * left)

    def note_starts(self, starts: Mapping[str, Mapping[str, int]], limits: Mapping[str, int], jobs: Mapping[str, SlurmJob]) -> None:
        """Record the numbers of GPUs with which jobs are about to start, and the amounts by which their time limits are lowered.

        starts: {job: {node: GPUs}}; limits: {job: its new time limit in minutes}.
        """
        for job_id, target in starts.items():
            if (gpus := sum(target.values())) not in self.tracked[job_id].set_gpus:
                self.tracked[job_id].set_gpus.append(gpus)
        for job_id, minutes in limits.items():
            self.tracked[job_id].limit_counted_seconds += max(0.0, (jobs[job_id].time_limit_seconds or 0.0) - 60.0 * minutes)

    def forget_departed(self) -> None:
        """Let the scheduler forget departed jobs."""
        self.scheduler.forget(*self.departed)
        self.departed = []


def save_state(path: Path, state: DriverState) -> None:
    """Write the state to a file atomically. Raises `InputError`."""
    speeds, scheduler = state.speeds, state.scheduler
    saved = scheduler.to_dict()
    estimates = {} if scheduler.learner is not None else estimates_in(scheduler.profile, scheduler.cluster.profile_names)
    document = {
        "partition": state.partition,
        "scheduler": saved,
        "profile": {"name": speeds.base.name, "rows": [list(row) for row in speeds.base.rows], "sizes": sorted(speeds.sizes)},
        "measured": [[*entry, speed] for entry, speed in speeds.measured.items()],
        # The scheduler continues from the speeds that it had; a learner has them in its own document.
        **({"estimates": [[*entry, speed] for entry, speed in estimates.items()]} if estimates else {}),
        "tracked": [job.to_dict() for job in state.tracked.values()],
        "aside": [job.to_dict() for job in state.aside.values()],
        "stopping": sorted(state.stopping),
        "departed": list(state.departed),
        "sums": [[*entry, *sums] for entry, sums in state.sums.items()],
        "pending": sorted(map(list, state.pending)),
        "rounds": state.rounds,
        "departed_totals": list(state.departed_totals),
        "delivered": [[*labels, seconds] for labels, seconds in state.delivered.items()],
        "unplanned": dict(state.unplanned),
        "multi_partition": sorted(state.multi_partition),
        "restart_cost": asdict(state.restart_cost),
        "warned": dict(state.warned),
        "yielding": sorted(state.yielding),
    }
    DRIVER.write(path, document)


def load_state(path: Path, partitions: Sequence[str], policy: Policy, learner: ThroughputLearner | None = None) -> DriverState:
    """Load a saved state, in which the given policy applies from the next round on.

    Args:
        path: The state file.
        partitions: The partitions managed now; at least one of them must be in the state.
        policy: The policy of the driver.
        learner: Takes over what the saved driver has learned; unused if that did not learn.

    Raises:
        InputError: The file cannot be read, is damaged, or belongs to other partitions.
    """
    document = DRIVER.read(path)
    with damage_as_fault(path):
        text = f"is for partition {document['partition']!r}, not {','.join(partitions)!r}; use one directory per driver"
        refuse(str(path), (set(document["partition"].split(",")).isdisjoint(partitions), "", text))
        profile = document["profile"]
        rows = [Measurement(**dict(zip(MeasuredRow._fields, row, strict=True))) for row in profile["rows"]]
        measured, estimates = (
            {(job_type, gpus, name): speed for job_type, gpus, name, speed in document.get(part, ())}
            for part in ("measured", "estimates")
        )
        speeds = Speeds(ThroughputProfile(profile["name"], rows), measured, profile["sizes"])
        saved_policy = document["scheduler"]["policy"]["document"]
        custom = policy if saved_policy is None else None  # policies defined by users cannot be saved
        at_save = Speeds(speeds.base, measured | estimates, speeds.sizes) if estimates else speeds
        believed = saved_learner(document["scheduler"], speeds.base, learner) or at_save.profile
        scheduler = RoundScheduler.from_dict(document["scheduler"], believed, policy=custom, source=path)
        if policy_document(policy) != saved_policy:
            scheduler.policy = policy
        return DriverState(
            partition=document["partition"],
            scheduler=scheduler,
            speeds=speeds,
            tracked={job["job_id"]: Tracked.from_dict(job) for job in document["tracked"]},
            aside={job["job_id"]: Tracked.from_dict(job) for job in document["aside"]},
            stopping=set(document["stopping"]),
            departed=list(document["departed"]),
            sums={(job_type, gpus, name): [steps, seconds] for job_type, gpus, name, steps, seconds in document["sums"]},
            pending={(job_type, gpus, name) for job_type, gpus, name in document["pending"]},
            rounds=document["rounds"],
            departed_totals=list(document["departed_totals"]),
            unplanned=dict(document["unplanned"]),
            delivered={(tenant, name): seconds for tenant, name, seconds in document["delivered"]},
            multi_partition=set(document["multi_partition"]),
            restart_cost=RestartCost(**document["restart_cost"]),
            warned=dict(document["warned"]),
            yielding=set(document["yielding"]),
        )
