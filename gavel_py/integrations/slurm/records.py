"""Records that the driver keeps from one snapshot to the next: of each managed job, and of what restarts cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from gavel_py.integrations.slurm.job_roles import Place

if TYPE_CHECKING:
    from gavel_py.scheduling import RoundScheduler
    from gavel_py.scheduling.options import SchedulerOptions

HISTORY = (
    *("arrival_seconds", "place", "steps_done", "first_start_seconds", "running_seconds", "gpu_seconds", "counted_gpu_seconds"),
    *("starts", "preemptions", "measured", "types_used", "sizes_used", "set_gpus", "is_on_several_nodes"),
    *("limit_counted_seconds", "partitions"),
)

NODE_REQUEST = (
    *("num_gpus", "per_node", "min_nodes", "max_nodes", "exact_nodes", "min_cpus", "tasks", "tasks_on_node", "cpus", "memory_mb"),
)

MEASURED = {
    "restart_seconds": "Time that a job loses when it is stopped and started [measured].",
    "min_run_seconds": "Time that a job runs before it may be preempted [50 times that].",
}
"""{option of the scheduler that follows from the measured cost of restarts, unless it is given: its help}."""

LOST_SHARE = 0.02
"""Share of GPU time that preemptions may cost: before it is preempted, a job runs for the cost of a restart divided by this."""

UNMEASURED_STOP_SECONDS = 10.0
"""Assumed stop time before the first stop is measured: a third of Slurm's default KillWait."""

SAMPLES = 20
"""Number of latest measurements from which the median is taken."""


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
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tracked:
        """Restore a record from `to_dict`."""
        measured = {name: {int(size): sums for size, sums in each.items()} for name, each in document["measured"].items()}
        return cls(**{**document, "measured": measured})


@dataclass
class RestartCost:
    """Seconds for which GPUs are idle when one job replaces another. stops, starts: the latest measurements, in seconds."""

    stops: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def measure(self, *, stop_seconds: float | None, start_seconds: float | None) -> None:
        """Add the times that the stops and the starts of a round took; None if there were none."""
        if stop_seconds is not None:
            self.stops = [*self.stops, stop_seconds][-SAMPLES:]
        if start_seconds is not None:
            self.starts = [*self.starts, start_seconds][-SAMPLES:]

    @property
    def medians(self) -> tuple[float, float]:
        """The median times of a stop and of a start."""
        return median(self.stops) if self.stops else UNMEASURED_STOP_SECONDS, median(self.starts) if self.starts else 0.0

    @property
    def seconds(self) -> float:
        """The median time of a stop plus that of a start."""
        return sum(self.medians)

    def shortest_turn(self, scheduler: RoundScheduler) -> float:
        """Return the seconds for which a job runs before it gives way to others: the minimum run time, or what this cost allows."""
        return scheduler.min_run_seconds or self.seconds / LOST_SHARE

    def apply(self, scheduler: RoundScheduler, given: SchedulerOptions) -> None:
        """Make a scheduler plan with this cost, except for options that the user has given.

        If no job waits, jobs may change their GPUs at any time, since they only do so for faster ones or after a long turn.
        """
        is_crowded = len(scheduler.jobs) > len(scheduler.running)
        cost = given.restart_seconds if "restart_seconds" in given.model_fields_set else self.seconds
        found = zip(MEASURED, (cost, cost / LOST_SHARE if is_crowded else 0.0), strict=True)
        changes: dict[str, Any] = {name: value for name, value in found if name not in given.model_fields_set}
        scheduler.options = scheduler.options.changed(**changes)
