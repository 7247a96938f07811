"""From a job of Slurm to a job of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gavel_py.cluster import Cluster
from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.comments import said_in
from gavel_py.integrations.slurm.features import satisfies
from gavel_py.integrations.slurm.kinds import JobKind, most_measured
from gavel_py.integrations.slurm.marks import Place, mark_in
from gavel_py.integrations.slurm.records import SlurmJob, SlurmNode
from gavel_py.integrations.slurm.settings import SlurmSettings
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.integrations.slurm.values import printable
from gavel_py.jobs import Job

__all__ = ["Where", "asks_of", "job_for", "tracked_from"]

MEGABYTES_PER_GIGABYTE = 1024.0


class Where:
    """Where jobs may run. slurm_names: {accelerator: its names in Slurm}; nodes: all by name, of which the cluster has some."""

    def __init__(self, slurm_names: Mapping[str, frozenset[str]], cluster: Cluster, nodes: Mapping[str, SlurmNode]) -> None:
        self._slurm_names, self._cluster = slurm_names, cluster
        self.accelerators = frozenset(slurm_names)
        self._features: dict[str, set[frozenset[str]]] = {}
        for node in cluster.nodes:
            if node.name in nodes:
                self._features.setdefault(node.accelerator, set()).add(nodes[node.name].features)

    def candidates(self, job: SlurmJob) -> tuple[str, ...]:
        """Return the accelerators on every node of which the job's request can be met: its GPU type, its --constraint."""
        (kind,) = job.requested
        return tuple(
            accelerator
            for accelerator, names in self._slurm_names.items()
            if (not kind or kind in names)
            and all(satisfies(features, job.features) for features in self._features.get(accelerator, ()))
        )

    def smallest_node(self, accelerators: Iterable[str]) -> int:
        """Return the largest gang that fits one node of each of these types: such gangs are not split, as most programs expect."""
        return min(int(self._cluster.largest_gang(name, "node")) for name in accelerators)


def asks_of(job: SlurmJob) -> str:
    """Return what a job asks for as far as its user can change it: another text is another job to the scheduler."""
    said = said_in(job.comment)
    asked = sorted(f"{kind}={gpus}" for kind, gpus in job.requested.items())
    return printable(f"{said.job_type}|{said.total_steps}|{job.name}|{','.join(asked)}|{job.features}")


def tracked_from(job: SlurmJob, kind: JobKind, now_seconds: float) -> Tracked:
    """Return what is followed of a job that has just been seen for the first time."""
    mark = mark_in(job.admin_comment)
    submitted = job.submit_seconds if mark is None else mark.submit_seconds
    place: Place = "node" if job.one_node else "any"
    return Tracked(
        job_id=job.job_id,
        name=printable(job.name),
        user=printable(job.user),
        job_type=kind.job_type,
        num_gpus=job.num_gpus,
        place=place if mark is None or mark.place is None else mark.place,
        arrival_seconds=now_seconds if submitted is None else submitted,
        seen_seconds=now_seconds,
        total_steps=kind.total_steps,
        asks=asks_of(job),
        is_known=kind.is_known,
    )


def job_for(tracked: Tracked, job: SlurmJob, where: Where, speeds: Speeds, settings: SlurmSettings) -> Job:
    """Return the job that the scheduler is to decide on; `tracked` takes the default type where its own is not known anywhere.

    Raises `InputError` for a job that can run nowhere.
    """
    candidates = where.candidates(job)
    if not candidates:
        raise InputError(Fault(f"job {job.job_id}", "", f"{_asked(job)}, which no nodes of partition {settings.partition} have"))
    known = _known(tracked, candidates, speeds, settings)
    return Job(
        tracked.job_id,
        job_type=tracked.job_type,
        num_gpus=tracked.num_gpus,
        total_steps=tracked.total_steps or settings.default_steps or _by_time_limit(tracked, job, known, speeds),
        steps_done=tracked.steps_done,
        arrival_seconds=tracked.arrival_seconds,
        deadline_seconds=job.deadline_seconds,
        tenant=printable(job.account or job.user),
        allowed_accelerators=None if set(known) == where.accelerators else known,
        locality="node" if tracked.place == "node" or tracked.num_gpus <= where.smallest_node(known) else "any",
        even_split=True,  # Slurm cannot be told any other
        cpus_per_gpu=job.cpus / tracked.num_gpus,
        memory_gb_per_gpu=job.memory_mb_per_node * job.nodes / MEGABYTES_PER_GIGABYTE / tracked.num_gpus,
    )


def _asked(job: SlurmJob) -> str:
    (kind,) = job.requested
    return f"asks for GPUs of type {printable(kind)}" if kind else f"asks for --constraint={printable(job.features)}"


def _known(tracked: Tracked, candidates: Iterable[str], speeds: Speeds, settings: SlurmSettings) -> tuple[str, ...]:
    """The accelerators on which it is known how fast the job is, as what it is, or else as the default type."""
    speeds.need([tracked.num_gpus])
    for job_type in (tracked.job_type, settings.default_type or most_measured(speeds.base)):
        known = speeds.known_on(job_type, tracked.num_gpus, candidates)
        if known:
            tracked.job_type = job_type
            return known
    text = (
        f"profile {speeds.base.name} does not know how fast a gang of {tracked.num_gpus} GPUs of type {tracked.job_type} is on "
        f"{', '.join(candidates)}; add a measurement, or name another default type"
    )
    raise InputError(Fault(f"job {tracked.job_id}", "", text))


def _by_time_limit(tracked: Tracked, job: SlurmJob, known: Iterable[str], speeds: Speeds) -> float | None:
    """What its time limit allows on the slowest type: users give a limit that suffices wherever the job runs."""
    if job.time_limit_seconds is None:
        return None
    return job.time_limit_seconds * min(speeds.speed(tracked.job_type, tracked.num_gpus, name) for name in known)
