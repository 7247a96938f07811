"""Nodes and jobs as the driver reads them: everything at first, and then no more than what matters or may have changed.

A cluster may have 20,000 jobs of other partitions. From Slurm 24.05 on, `squeue --json` obeys its filters, so that they need not
be read. Up to 23.11 it lists all jobs whatever the filters are; its text, which obeys them, shows whether that is worthwhile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.client.commands import JOBS, SlurmCommands, json_from, output, without_leases
from gavel_py.integrations.slurm.client.parsing import jobs_from, nodes_from, release_of
from gavel_py.integrations.slurm.client.records import LEASE, Phase, SlurmJob, SlurmNode, Snapshot

FILTERS_JSON = (24, 5)
"""Release from which `squeue --json` lists only the jobs that were asked for."""

NODES = ("sinfo", "--Node", "--all", "--json")
"""An entry for each node: from Slurm 23.02 on, sinfo would add up equal nodes, whose jobs have different CPUs."""

SHOWN = ("squeue", "--all", "--states=all", "--noheader", "--format=%j|%i|%T|%r|%P|%N|%n|%S|%l|%Q|%E|%a|%q|%b|%D|%C|%m|%f|%k")
"""What may matter of jobs between rounds, as text: the name first, last the comment."""

HOLDING = "RUNNING,CONFIGURING,COMPLETING,SUSPENDED,RESIZING,SIGNALING,STAGE_OUT,STOPPED"
"""States of jobs that have GPUs."""

WAITING = ("squeue", "--all", "--states=PENDING", "--noheader", "--format=%i|%E")
"""The waiting jobs of all partitions as text, with what they wait for."""

AFTER = re.compile(r"afterany:(\d+)")
"""The jobs in such a text whose end is waited for, whatever it is."""

GONE = ("Invalid node name", "Invalid job id specified")
"""Slurm's errors for a node or a job that has left the cluster since it was read."""


def number_of(job_id: str) -> str:
    """Return the number before the task of an array (37 of 37_1 or 37_[0-9]) or the part of a heterogeneous job (37+1)."""
    return re.split(r"[_+]", job_id, maxsplit=1)[0]


class QueueReader:
    """Reads nodes and jobs of a cluster of which a driver manages some partitions.

    Jobs of other partitions count on nodes that these share with managed ones, and against limits wherever they hold GPUs. Every
    reading raises `SlurmError` if Slurm does not answer.
    """

    def __init__(self, commands: SlurmCommands, partitions: Collection[str]) -> None:
        self._commands, self._partitions = commands, frozenset(partitions)
        self._filters: list[tuple[str, ...]] = [(f"--partition={','.join(partitions)}",)]
        self._jobs: dict[str, SlurmJob] | None = None
        self._unreadable: tuple[str, ...] = ()
        self._obeys = False
        self._shown: list[str] = []
        self._shared: frozenset[str] = frozenset()
        self._moved: set[str] = set()
        self._leases: frozenset[str] = frozenset()

    def whole(self, now_seconds: float) -> Snapshot:
        """Return all nodes and jobs, for a round.

        From Slurm 24.05 on, it is as `latest` after the first, with jobs that wait for the driver although they are elsewhere.
        """
        if self._obeys and self._jobs is not None:
            jobs = self.jobs()
            if strays := self._strays(jobs):
                jobs = self._read_all()
                self._moved |= {job_id for job_id in jobs if number_of(job_id) in strays}
            return self._completed(now_seconds, jobs)
        self._shown = shown = []
        with suppress(SlurmError):  # a node is gone; if Slurm does not answer, the next command says so
            shown = self._show()
        # Jobs first: GPUs that a job frees in between then count as free, rather than as used by an unknown job.
        jobs = self._read_all()
        self._shown = shown
        return Snapshot(now_seconds, self._read_nodes(), jobs, self._unreadable)

    def jobs(self) -> Mapping[str, SlurmJob]:
        """Return the jobs: those of the managed partitions and on their nodes as they are now, others as they were last read."""
        try:
            return self._changed()
        except SlurmError as error:
            if not any(text in str(error) for text in GONE):
                raise
            return self._read_all()

    def _strays(self, jobs: Mapping[str, SlurmJob]) -> set[str]:
        """Return the numbers of others that wait for a lease: jobs that were moved before they were read."""
        known = {number_of(job_id) for job_id in jobs}
        lines = (line.split("|", 1) for line in output(self._commands, *WAITING).splitlines())
        return {number_of(job_id) for job_id, waits_for in lines if self._leases & {*AFTER.findall(waits_for)}} - known

    def _changed(self) -> Mapping[str, SlurmJob]:
        """Return the jobs, those that may have changed as they are now."""
        if self._jobs is None:
            return self._read_all()
        if not self._obeys:
            shown = self._show()
            if shown != self._shown:
                self._read_all()
                self._shown = shown  # not before, since a reading that fails must be repeated
            return self._jobs
        read: dict[str, SlurmJob] = {}
        for filters in self._filters:
            read |= self._read(*filters)
        if self._moved:
            numbers = sorted({*map(number_of, self._moved), *self._leases})
            read |= {i: job for i, job in self._read(f"--jobs={','.join(numbers)}").items() if i in self._moved}
            self._moved &= {i for i in self._moved if i in read and read[i].phase is Phase.WAITING}
        known = {job_id for job_id, job in self._jobs.items() if job.is_in(self._partitions) and not job.phase.is_over}
        if not known <= read.keys():
            self._moved |= known - read.keys()
            return self._read_all()
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if self._is_elsewhere(job)} | read
        return self._jobs

    def latest(self, now_seconds: float) -> Snapshot:
        """Return nodes and jobs between rounds.

        From Slurm 24.05 on, jobs that wait in other partitions are left out, unless they have been in a managed one. Up to 23.11,
        jobs on nodes of other partitions, which matter for limits only, are as they were last read.
        """
        return self._completed(now_seconds, self.jobs())

    def _completed(self, now_seconds: float, jobs: Mapping[str, SlurmJob]) -> Snapshot:
        """Return the nodes, and these jobs with those that hold GPUs in other partitions."""
        if self._obeys:
            stay = {i: job for i, job in jobs.items() if job.is_in(self._partitions) or (i in self._moved and not job.used)}
            self._jobs = jobs = stay | self._read(f"--states={HOLDING}")
        return Snapshot(now_seconds, self._read_nodes(), jobs, self._unreadable)

    def _is_elsewhere(self, job: SlurmJob) -> bool:
        """Return whether a job is neither in a managed partition nor on a node of one."""
        return not job.is_in(self._partitions) and self._shared.isdisjoint(job.used)

    def _read_all(self) -> dict[str, SlurmJob]:
        self._jobs = self._read()
        return self._jobs

    def _read(self, *filters: str) -> dict[str, SlurmJob]:
        """Return the jobs that these filters leave, without the leases of drivers."""
        document = json_from(self._commands, *JOBS, *filters)
        self._obeys = release_of(document) >= FILTERS_JSON
        jobs, unreadable = jobs_from(document)
        others = without_leases(jobs)
        if filters in {(), self._filters[0]}:
            self._unreadable, self._leases = unreadable, frozenset(jobs.keys() - others.keys())
        return others

    def _show(self) -> list[str]:
        lines = [line for filters in self._filters for line in output(self._commands, *SHOWN, *filters).splitlines()]
        return [line for line in lines if not line.startswith(f"{LEASE}|")]

    def _read_nodes(self) -> dict[str, SlurmNode]:
        nodes = nodes_from(json_from(self._commands, *NODES))
        if not nodes:
            raise SlurmError(f"{' '.join(NODES)} lists no nodes; Slurm 21.08 or later and a configured cluster are required")
        mine = [node for node in nodes.values() if not node.partitions.isdisjoint(self._partitions)]
        shared = sorted(node.name for node in mine if not node.partitions <= self._partitions)
        self._shared = frozenset(shared)
        self._filters[1:] = [(f"--nodelist={','.join(shared)}", f"--states={HOLDING}")] if shared else []
        return nodes
