"""The saved state of a driver: the scheduler, the throughputs in use, and a record of each managed job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.client.records import SlurmJob
from gavel_py.integrations.slurm.job_roles import Place
from gavel_py.integrations.slurm.speeds import Speeds, Sums, saved_learner
from gavel_py.integrations.slurm.turns import RestartCost
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy
from gavel_py.policies.serialization import policy_document
from gavel_py.scheduling import RoundScheduler
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.files import Row

if TYPE_CHECKING:
    from gavel_py.throughput_profiles.learning import ThroughputLearner

HISTORY = (
    *("arrival_seconds", "place", "steps_done", "first_start_seconds", "running_seconds", "gpu_seconds", "counted_gpu_seconds"),
    *("starts", "preemptions", "measured", "types_used", "sizes_used", "set_gpus", "is_on_several_nodes"),
    *("limit_counted_seconds", "partitions"),
)

NODE_REQUEST = (
    *("num_gpus", "per_node", "min_nodes", "max_nodes", "exact_nodes", "min_cpus", "tasks", "tasks_on_node", "cpus", "memory_mb"),
)

SAVED_KEYS = {
    "stay_start_seconds": "stay_seconds",
    "stay_start_steps": "stay_steps",
    "measured": "worked",
    "types_used": "ran_on",
    "request": "asks",
    "min_nodes": "fewest_nodes",
    "max_nodes": "most_nodes",
    "min_cpus": "fewest_cpus",
}
"""Keys of saved states that differ from the fields of `Tracked`."""


TOTALS = ("promised_gpu_seconds", "delivered_gpu_seconds", "owed_gpu_seconds")
"""Names of `DriverState.totals`."""


@dataclass
class Tracked:
    """The record of a managed job, kept from one snapshot to the next.

    Attributes:
        job_id, name, user, job_type: The job in Slurm, and its type in the profile.
        tenant: Its account, or its user.
        num_gpus: Size of the gang; for an elastic job, on the fewest nodes requested.
        place: Whether it must be on one node.
        arrival_seconds: When it was submitted.
        seen_seconds: Time up to which its progress is counted.
        total_steps, steps_done: Steps; the total is None if unknown.
        held, accelerator: {node: GPUs} and GPU type in the latest snapshot; empty while it waits.
        stay_start_seconds, stay_start_steps: Time and steps at the start of its current stay on these GPUs.
        first_start_seconds: Its first start; None before.
        running_seconds, gpu_seconds: Running time, and the same multiplied by its GPUs.
        counted_gpu_seconds: The part of `gpu_seconds` that is already in the totals of departed jobs.
        limit_counted_seconds: Running time by which its time limit in Slurm has been lowered.
        starts, preemptions: How often it was started and preempted.
        stop_seconds: When the driver asked it to stop; None if it has not.
        waited_seconds: When it was last seen waiting.
        since_seconds: When it was last taken into the scheduler, or set aside.
        measured: {accelerator: {GPUs: [steps, seconds]}} of its measured stays.
        types_used, sizes_used: Accelerators and numbers of GPUs on which it has run.
        request: From `request_text`.
        is_known: Whether the job type is its own, not the default.
        is_outlier: Whether it has reported more steps than are plausible.
        has_reported: Whether it reported its latest steps itself.
        is_on_several_nodes: Whether it has ever run on several nodes.
        partitions: All partitions in which it may run; while it runs, Slurm lists only one of them.
        barred: Accelerators on which it cannot start, since a reservation begins before it may end.
        usable: The partitions among these in which the scheduler may place it.
        per_node: Whether the user requests GPUs per node. This and the following fields keep the user's request, which each start
            overwrites in Slurm.
        min_nodes, max_nodes: Accepted node counts; 0 for no limit.
        exact_nodes: The node count implied by --ntasks-per-node; 0 if there is none.
        min_cpus: CPUs per node; None in states saved by versions without this field.
        tasks, tasks_on_node, cpus, memory_mb: As in `sizes.Request`; 0 if unknown.
        gpu_counts: Numbers of GPUs that it accepts; empty if it accepts only the number requested.
        set_gpus: Numbers of GPUs that its starts have requested.
        offered: Numbers of GPUs among which the scheduler chooses; empty for a gang of a fixed size.
        gpus_per_node: GPUs that it must have on each node; 0 for any equal number.
    """

    job_id: str
    name: str
    user: str
    job_type: str
    num_gpus: int
    place: Place
    arrival_seconds: float
    seen_seconds: float
    total_steps: float | None = None
    steps_done: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    accelerator: str = ""
    stay_start_seconds: float = 0.0
    stay_start_steps: float | None = None
    first_start_seconds: float | None = None
    running_seconds: float = 0.0
    gpu_seconds: float = 0.0
    counted_gpu_seconds: float = 0.0
    limit_counted_seconds: float = 0.0
    starts: int = 0
    preemptions: int = 0
    stop_seconds: float | None = None
    waited_seconds: float = 0.0
    since_seconds: float = 0.0
    tenant: str = ""
    measured: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    types_used: list[str] = field(default_factory=list)
    sizes_used: list[int] = field(default_factory=list)
    request: str = ""
    is_known: bool = True
    is_outlier: bool = False
    has_reported: bool = False
    is_on_several_nodes: bool = False
    partitions: list[str] = field(default_factory=list)
    barred: list[str] = field(default_factory=list)
    usable: list[str] = field(default_factory=list)
    per_node: bool = False
    min_nodes: int = 1
    max_nodes: int = 0
    exact_nodes: int = 0
    min_cpus: int | None = None
    tasks: int = 0
    tasks_on_node: int = 0
    cpus: int = 0
    memory_mb: float = 0.0
    gpu_counts: list[int] = field(default_factory=list)
    set_gpus: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    gpus_per_node: int = 0

    @property
    def gpus(self) -> int:
        """GPUs that the job held in the latest snapshot; while it waits, the number that it requests."""
        return sum(self.held.values()) or self.num_gpus

    @property
    def sizes(self) -> list[int]:
        """The numbers of GPUs on which it may be planned."""
        fixed = self.num_gpus if self.num_gpus in self.gpu_counts or not self.gpu_counts else self.gpu_counts[0]
        return self.offered or [fixed]

    @property
    def runs(self) -> bool:
        """Whether the job held GPUs in the latest snapshot."""
        return bool(self.held)

    def inherit_history(self, before: Tracked, *, with_request: bool) -> None:
        """Copy the progress of a job from before its request changed; with_request: with the nodes that were requested first."""
        for name in (*HISTORY, *(NODE_REQUEST if with_request else ())):
            setattr(self, name, getattr(before, name))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {SAVED_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tracked:
        """Restore a record from `to_dict` of this or an earlier version."""
        names = {key: name for name, key in SAVED_KEYS.items()}
        values = {names.get(key, key): value for key, value in document.items()}
        gpus = values["num_gpus"]
        # Earlier versions had gangs of a fixed size only, and counted their seconds.
        for name, earlier in (("gpu_seconds", "running_seconds"), ("counted_gpu_seconds", "counted_seconds")):
            values.setdefault(name, gpus * values.get(earlier, 0.0))
        values["measured"] = {
            name: {gpus: each} if isinstance(each, list) else {int(size): sums for size, sums in each.items()}
            for name, each in values.get("measured", {}).items()
        }
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})


STATE = "state.json"
"""Name of the state file in the directory of a driver."""

SHADOW = "shadow.json"
"""Name of the additional file in the directory of a shadow."""


def check_directory(directory: Path, *, is_shadow: bool) -> None:
    """Raise `InputError` if a driver is to use the directory of a shadow, or a shadow that of a driver."""
    if (directory / STATE).exists() and (directory / SHADOW).exists() is not is_shadow:
        text = "is the state of a driver" if is_shadow else "is the state of a shadow (--shadow)"
        raise InputError(Fault(str(directory), "", f"{text}; use another directory (--state)"))


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
        stopping: Jobs that the driver is stopping; a hold of these jobs comes from the driver.
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
    speeds = state.speeds
    document = {
        "partition": state.partition,
        "scheduler": state.scheduler.to_dict(),
        "profile": {"name": speeds.base.name, "rows": [list(row) for row in speeds.base.rows], "sizes": sorted(speeds.sizes)},
        "measured": [[*entry, speed] for entry, speed in speeds.measured.items()],
        "tracked": [job.to_dict() for job in state.tracked.values()],
        "aside": [job.to_dict() for job in state.aside.values()],
        "stopping": sorted(state.stopping),
        "gone": list(state.departed),
        "sums": [[*entry, *sums] for entry, sums in state.sums.items()],
        "news": sorted(map(list, state.pending)),
        "rounds": state.rounds,
        "past": list(state.departed_totals),
        "delivered": [[*labels, seconds] for labels, seconds in state.delivered.items()],
        "unplanned": dict(state.unplanned),
        "several": sorted(state.multi_partition),
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
        if set(document["partition"].split(",")).isdisjoint(partitions):
            text = f"is for partition {document['partition']!r}, not {','.join(partitions)!r}; use one directory per driver"
            raise InputError(Fault(str(path), "", text))
        profile = document["profile"]
        rows = [Measurement(**dict(zip(Row._fields, row, strict=True))) for row in profile["rows"]]
        measured = {(job_type, gpus, name): speed for job_type, gpus, name, speed in document["measured"]}
        speeds = Speeds(ThroughputProfile(profile["name"], rows), measured, profile["sizes"])
        saved_policy = document["scheduler"]["policy"]["document"]
        custom = policy if saved_policy is None else None  # policies defined by users cannot be saved
        believed = saved_learner(document["scheduler"], speeds.base, learner) or speeds.profile
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
            departed=list(document["gone"]),
            sums={(job_type, gpus, name): [steps, seconds] for job_type, gpus, name, steps, seconds in document["sums"]},
            pending={(job_type, gpus, name) for job_type, gpus, name in document["news"]},
            rounds=document["rounds"],
            departed_totals=list(document["past"]),
            unplanned=dict(document.get("unplanned", {})),  # states of 0.x lack these six
            delivered={(tenant, name): seconds for tenant, name, seconds in document.get("delivered", ())},
            multi_partition=set(document.get("several", ())),
            restart_cost=RestartCost(**document.get("restart_cost", {})),
            warned=dict(document.get("warned", {})),
            yielding=set(document.get("yielding", ())),
        )
