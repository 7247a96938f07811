"""A Slurm cluster at one moment, as plain records: its nodes, and the jobs in its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """TypeMatcher a job is on its way, whatever its version of Slurm calls it."""

    WAITING = "waiting"
    """It holds no GPUs, and may be changed."""
    RUNNING = "running"
    """It holds GPUs."""
    STOPPING = "stopping"
    """It is about to end, or to wait again; its GPUs are not free yet, and it may not be changed."""
    FINISHED = "finished"
    """It ended well."""
    CANCELLED = "cancelled"
    """Somebody cancelled it."""
    FAILED = "failed"
    """It ended otherwise: an error, its time limit, a node."""

    @property
    def is_over(self) -> bool:
        """Whether it has left for good."""
        return self in {Phase.FINISHED, Phase.CANCELLED, Phase.FAILED}


@dataclass(frozen=True)
class SlurmNode:
    """One node. gpus: {type: GPUs}; states: words such as IDLE, DRAIN; memory_mb: of the host."""

    name: str
    gpus: Mapping[str, int]
    states: frozenset[str]
    partitions: frozenset[str]
    features: frozenset[str]
    cpus: int
    memory_mb: float


@dataclass(frozen=True)
class SlurmJob:
    """One job, or one task of an array.

    job_id: as in commands, 37 or 37_1; words: its states as Slurm calls them; requested: {type: GPUs} of the whole job, the type
    "" where it names none; nodes: how many it is to have; fewest_nodes, most_nodes: between which it leaves the choice to Slurm,
    0 where there is no limit; one_node: whether it asks for just one; per_node: whether it says how many GPUs each node is to
    give; held: {node: GPUs} where it runs; used_nodes: all nodes where it runs, also those that give it no GPUs; cpus: of the
    whole job, those that it has or that its tasks need; cpus_per_gpu, cpus_per_node, memory_mb_per_gpu, memory_mb_per_cpu,
    memory_mb_per_node: what it asks for in these units, 0 where it does not; tasks: processes that it starts; tasks_per_node: the
    most on one node, 0: no limit; times: seconds of the clock that Slurm uses, None where unknown; max_tasks: how many of its
    array may run at a time, 0: all; obstacles: why it cannot be moved about, in words.
    """

    job_id: str
    phase: Phase
    words: frozenset[str]
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
    fewest_nodes: int
    most_nodes: int
    per_node: bool
    used_nodes: tuple[str, ...]
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
    max_tasks: int = 0
    obstacles: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole job."""
        return sum(self.requested.values())

    @property
    def array(self) -> str:
        """The id of the array that it is a task of, or else its own."""
        return self.job_id.partition("_")[0]

    @property
    def is_held(self) -> bool:
        """Whether it waits because somebody holds it."""
        return self.phase is Phase.WAITING and self.priority == 0


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment. seconds: when it was read; unreadable: what was left out, and why."""

    seconds: float
    nodes: Mapping[str, SlurmNode]
    jobs: Mapping[str, SlurmJob]
    unreadable: tuple[str, ...] = field(default=())
