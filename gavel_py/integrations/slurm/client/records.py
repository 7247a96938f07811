"""Plain records of the nodes and jobs of a Slurm cluster at one time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

LEASE = "gavel-driver"
"""Name of the job that is a driver's lease; it is left out when the queue is read."""


class Phase(StrEnum):
    """The state of a job, independent of the version of Slurm."""

    WAITING = "waiting"
    """Holds no GPUs and may be changed."""
    RUNNING = "running"
    """Holds GPUs."""
    STOPPING = "stopping"
    """Is ending or being requeued; its GPUs are not yet free, and it cannot be changed."""
    FINISHED = "finished"
    """Ended successfully."""
    CANCELLED = "cancelled"
    """Was cancelled."""
    FAILED = "failed"
    """Ended by an error, its time limit or a node failure."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return self in {Phase.FINISHED, Phase.CANCELLED, Phase.FAILED}


class NodeUsage(NamedTuple):
    """Resources that jobs hold on a node."""

    gpus: float = 0.0
    cpus: float = 0.0
    memory_mb: float = 0.0

    def plus(self, other: NodeUsage) -> NodeUsage:
        """Return the sum of both."""
        return NodeUsage(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True)
class SlurmNode:
    """A node.

    gpus: {type: GPUs}; states: such as IDLE, DRAIN; memory_mb: host memory; used: resources of all its jobs together; shared_gres:
    resources, of shard and mps, through which jobs have parts of its GPUs.
    """

    name: str
    gpus: Mapping[str, int]
    states: frozenset[str]
    partitions: frozenset[str]
    features: frozenset[str]
    cpus: int
    memory_mb: float
    used: NodeUsage = field(default_factory=NodeUsage)
    shared_gres: tuple[str, ...] = ()


REQUESTS_WHOLE_NODES = "it requests whole nodes (--exclusive)"


@dataclass(frozen=True)
class SlurmJob:
    """A job, or a task of a job array. Times are seconds on the clock of Slurm, None if unknown.

    Attributes:
        job_id: The id in commands, such as 37 or 37_1.
        qos: The name of its quality of service.
        states: The states as Slurm names them.
        requested: {type: GPUs} of the whole job; the type is "" if the job names none.
        nodes: Number of nodes that it has or requests.
        min_nodes, max_nodes: Range of node counts that it accepts; 0 for no limit.
        one_node: Whether it requests a single node.
        per_node: Whether it requests its GPUs per node.
        held: {node: GPUs} of a running job.
        dependency: What its user wants it to wait for, such as afterok:7, as far as it is not fulfilled.
        leases: Drivers' leases for which it waits, too.
        used: {node: what it has there} of a running job, including nodes without GPUs.
        cpus: CPUs of the whole job, allocated or required by its tasks.
        cpus_per_gpu, cpus_per_node: Requested CPUs; 0 if not requested in this unit.
        memory_mb_per_gpu, memory_mb_per_cpu, memory_mb_per_node: Requested memory; 0 if not requested in this unit.
        tasks: Number of processes.
        tasks_per_node: Limit of tasks on a node; 0 for none.
        max_tasks: Limit of running tasks of its array; 0 for none.
        obstacles: Reasons why it cannot be preempted and restarted elsewhere.
        tells_sharing: Whether this release of Slurm says that a job requests whole nodes.
        part: The id that squeue prints for a part of a heterogeneous job, such as 13+1; "" for other jobs.
    """

    job_id: str
    phase: Phase
    states: frozenset[str]
    name: str
    user: str
    account: str
    partition: str
    comment: str
    admin_comment: str
    requested: Mapping[str, int]
    nodes: int
    one_node: bool
    held: Mapping[str, int]
    required_nodes: tuple[str, ...]
    features: str
    priority: float | None
    reason: str
    description: str
    dependency: str
    cpus: int
    memory_mb_per_node: float
    min_nodes: int
    max_nodes: int
    per_node: bool
    used: Mapping[str, NodeUsage]
    cpus_per_gpu: int
    memory_mb_per_gpu: int
    memory_mb_per_cpu: float
    cpus_per_node: int
    tasks: int
    tasks_per_node: int
    submit_seconds: float | None
    eligible_seconds: float | None
    start_seconds: float | None
    end_seconds: float | None
    deadline_seconds: float | None
    time_limit_seconds: float | None
    restarts: int
    qos: str = ""
    max_tasks: int = 0
    obstacles: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    tells_sharing: bool = True
    part: str = ""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the whole job."""
        return sum(self.requested.values())

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions in which it may run. Slurm lists all of them only while the job waits; later only the one that it uses."""
        return tuple(self.partition.split(","))

    def is_in(self, partitions: Collection[str]) -> bool:
        """Return whether it may run in any of these partitions."""
        return any(name in partitions for name in self.partitions)

    @property
    def array(self) -> str:
        """The id of its array, or its own id if it is not a task of one."""
        return self.job_id.partition("_")[0]

    @property
    def is_held(self) -> bool:
        """Whether it is waiting on hold."""
        return self.phase is Phase.WAITING and self.priority == 0


class PartitionLimits(NamedTuple):
    """Limits of a partition. state: such as UP; max_seconds: longest time limit; max_nodes: nodes per job; None for no limit."""

    state: str = "UP"
    max_seconds: float | None = None
    max_nodes: int | None = None

    def refuses(self, job: SlurmJob) -> str:
        """Return why Slurm would not start such a job in the partition, as a predicate for messages; "" if it would."""
        if self.state in CLOSED:
            return f"is {self.state}"
        limit, most = job.time_limit_seconds, self.max_seconds
        if limit is not None and most is not None and limit > most:
            return f"allows {most / 60:g} minutes (MaxTime), and its time limit is {limit / 60:g}"
        if self.max_nodes is not None and job.nodes > self.max_nodes:
            return f"allows {self.max_nodes} node{'s' * (self.max_nodes != 1)} (MaxNodes), and it asks for {job.nodes}"
        return ""


CLOSED = frozenset({"DOWN", "INACTIVE"})
"""States of partitions in which no job starts. In DRAIN, jobs that were submitted earlier still start."""


class Reservation(NamedTuple):
    """A reservation of nodes."""

    name: str
    nodes: frozenset[str]
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one time.

    seconds: when it was taken; unreadable: omitted entries, with the reason; reservations: of nodes; partitions: {name: limits}
    of the partitions that were read.
    """

    seconds: float
    nodes: Mapping[str, SlurmNode]
    jobs: Mapping[str, SlurmJob]
    unreadable: tuple[str, ...] = field(default=())
    reservations: tuple[Reservation, ...] = field(default=())
    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)
