"""The lease of a driver: a job in Slurm that begins, and at once ends, if the driver does not postpone it again and again.

All jobs that wait for the driver depend on this job (`afterany`), so Slurm itself starts them soon after whatever the driver needs
has failed: its process, host, disk, right or network. The job_submit plugin adds the dependency to new jobs, and the driver to all
others. To start a job, the driver removes the dependency; a renewal is one change of one job, however many wait.

A second driver finds the lease before it manages one of the same partitions; a driver with the same state directory finds a lock
(`exclusive_lock`). If systemd runs the driver, it is notified at the same times (`notify`). `slurm_release` ends a lease at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gavel_py.errors import Fault, InputError, SlurmError
from gavel_py.integrations.slurm.actions import has_marks, without_marks
from gavel_py.integrations.slurm.apply import (
    MAX_PRIORITY,
    Term,
    annotation_lines,
    batch_lines,
    has_place,
    is_job_id,
    restore_lines,
)
from gavel_py.integrations.slurm.client.commands import (
    SlurmCommands,
    WallClock,
    json_from,
    may_annotate,
    may_drive,
    plugin_again,
    read_jobs,
)
from gavel_py.integrations.slurm.client.notation import as_number, as_text, as_words, printable
from gavel_py.integrations.slurm.client.parsing import entries_in, phase_of
from gavel_py.integrations.slurm.client.records import LEASE, Phase, SlurmNode
from gavel_py.integrations.slurm.monitoring.event_log import warn
from gavel_py.integrations.slurm.settings import partitions_in
from gavel_py.integrations.slurm.state import STATE, DriverState, load_state
from gavel_py.policies import resolve_policy

BEAT_SECONDS = 20.0
"""Time between two renewals, unless a quarter of the lease is shorter."""

COMMENT = re.compile(r"gavel:driver=(\S+:\S*:\S+) lease=\d+(?: of=(\S+))?")

MAX_COMMENT = 1_000
"""Slurm allows 1,024 characters."""


class LeaseHolder(NamedTuple):
    """The holder of a lease.

    job_id: the job in Slurm; owner: host, process and a digest of the state directory; end_seconds: when the lease ends;
    partitions: those that the driver manages; uid, user: the account to which the job belongs.
    """

    job_id: str
    owner: str
    end_seconds: float
    partitions: frozenset[str]
    uid: int
    user: str

    @property
    def origin(self) -> str:
        """The host and the process of the driver."""
        host, process, _ = self.owner.rsplit(":", 2)
        return f"process {process} on {host}"


def notify(state: str) -> None:
    """Send systemd a state such as READY=1 or WATCHDOG=1, if it runs this program and expects notifications."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), path.replace("@", "\0", 1) if path.startswith("@") else path)


def holders(commands: SlurmCommands, partitions: Collection[str]) -> list[LeaseHolder]:
    """Return the holders of leases for these partitions. Raises `SlurmError` if Slurm does not answer."""
    return _split(commands, partitions)[0]


def _split(commands: SlurmCommands, partitions: Collection[str]) -> tuple[list[LeaseHolder], list[LeaseHolder]]:
    """Return the leases of these partitions, and the jobs of accounts that may not run a driver but look like leases."""
    # Any user may submit a job with this name, and write new lines in its comment, so the output must be JSON.
    # Leases that have ended do not count, so not of all states.
    entries = entries_in(json_from(commands, "squeue", "--all", f"--name={LEASE}", "--json"), "jobs")
    found = [each for each in map(_holder, entries) if each is not None and not each.partitions.isdisjoint(partitions)]
    trusted = may_drive(commands, {each.uid for each in found})
    return [each for each in found if each.uid in trusted], [each for each in found if each.uid not in trusted]


def _holder(entry: Any) -> LeaseHolder | None:
    """Return the holder of the lease in an entry of squeue; None if it is another job, or unreadable."""
    if not isinstance(entry, Mapping):
        return None
    found, uid = COMMENT.search(as_text(entry.get("comment"))), as_number(entry.get("user_id"))
    if as_text(entry.get("name")) != LEASE or found is None or uid is None or phase_of(as_words(entry.get("job_state"))).is_over:
        return None
    names = frozenset((found[2] or as_text(entry.get("partition"))).split(","))
    number, end = as_number(entry.get("job_id")) or 0.0, as_number(entry.get("eligible_time")) or 0.0
    return LeaseHolder(str(int(number)), found[1], end, names, int(uid), printable(as_text(entry.get("user_name"))))


def end_leases(commands: SlurmCommands, leases: Iterable[LeaseHolder]) -> dict[str, str]:
    """Cancel the jobs of leases, and return {job: error} of those that remain. Raises `SlurmError` if Slurm does not answer."""
    refused = {}
    for each in leases:
        result = commands.run(["scancel", each.job_id])
        if result.code and any(other.job_id == each.job_id for other in holders(commands, each.partitions)):
            refused[each.job_id] = printable(result.err)
    return refused


def offer_of(nodes: Iterable[SlurmNode], partitions: Sequence[str]) -> str:
    """Return the GPUs of the largest nodes of partitions, by which the plugin judges gangs.

    The entry for all partitions together comes first, then one for each partition.
    """
    nodes = list(nodes)

    def most(names: Set[str]) -> str:
        return f"gpus={max((sum(node.gpus.values()) for node in nodes if node.partitions & names), default=0)}"

    return " ".join([most(set(partitions)), *(f"[{name} {most({name})}]" for name in partitions if len(partitions) > 1)])


@dataclass
class DriverLease:
    """The lease of one driver.

    commands, clock: Slurm's commands, and the driver's clock; seconds: how long jobs wait for a driver that is dead; directory: its
    state; offer: what the partitions have (`offer_of`); job_id: the job in Slurm; is_new: whether no round has been planned since
    it was taken; is_paused: whether no round is possible at present, so that Slurm is to start the jobs when the lease ends.
    """

    commands: SlurmCommands
    clock: WallClock
    partitions: Sequence[str]
    directory: Path
    seconds: float
    offer: str = ""
    job_id: str = ""
    is_new: bool = False
    is_paused: bool = False
    _renewed: float = 0.0
    _replaced: list[LeaseHolder] = field(default_factory=list)

    @property
    def _place(self) -> str:
        return hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:12]

    @property
    def _host(self) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())

    @property
    def _comment(self) -> str:
        owner = f"{self._host}:{os.getpid()}:{self._place}"
        text = f"gavel:driver={owner} lease={self.seconds:.0f} of={','.join(self.partitions)} {self.offer}".strip()
        return text if len(text) <= MAX_COMMENT else text.partition(" [")[0]

    def begin(self) -> None:
        """Take the lease, or take over one of an earlier driver with the same state.

        Jobs of accounts that may not run a driver are no leases, and only cause a warning.

        Raises:
            InputError: Another driver manages one of the partitions, or Slurm refuses the job.
            SlurmError: Slurm does not answer.
        """
        leases, others = _split(self.commands, self.partitions)
        for each in others:
            warn(f"job {each.job_id} of {each.user} looks like a driver's lease, but that account may not run a driver")
        self._refuse_others(leases)
        own = [each for each in leases if each.partitions == set(self.partitions) and each.uid == os.geteuid()][:1]
        # It is renewed when a round has been planned, so that it ends even if a driver that cannot is started again and again.
        self.job_id, self.is_new = (own[0].job_id, False) if own else (self._submitted(), True)
        self._replaced = [each for each in leases if each not in own]
        if self.is_new:  # of two drivers that begin at the same time, the first goes on
            now = holders(self.commands, self.partitions)
            try:
                self._refuse_others([each for each in now if int(each.job_id) < int(self.job_id)])
            except InputError:
                end_leases(self.commands, [each for each in now if each.job_id == self.job_id])
                raise

    def end_replaced(self) -> None:
        """End earlier leases of this driver, for whose jobs it now has another one. Raises `SlurmError`."""
        end_leases(self.commands, self._replaced)
        self._replaced = []

    def _refuse_others(self, leases: Iterable[LeaseHolder]) -> None:
        """Raise `InputError` if one of these leases belongs to another driver, which has another host or state."""
        for each in leases:
            host, _, place = each.owner.rsplit(":", 2)
            if (host, place) != (self._host, self._place):  # otherwise its driver has ended, since this one has the lock
                shared = ",".join(name for name in self.partitions if name in each.partitions)
                left = max(0.0, each.end_seconds - self.clock.machine_seconds())
                cure = f"end it first, or if its host is dead: gavel slurm release --partition {shared}"
                text = f"another driver manages it ({each.origin}, its lease ends in {left:.0f} s); {cure}"
                raise InputError(Fault(f"partition {shared}", "", text))

    @property
    def term(self) -> Term:
        """What waiting jobs depend on."""
        return Term(self.job_id, self.seconds)

    def beat(self) -> None:
        """Renew the lease if that is due. Errors are not raised; the lease then ends earlier."""
        if self.clock.now() - self._renewed >= min(BEAT_SECONDS, self.seconds / 4):
            self._renewed = self.clock.now()
            with suppress(InputError, SlurmError):
                self.renew()

    def renew(self) -> None:
        """Renew the lease, or take another one if it has ended, unless it is paused. Raises `InputError` and `SlurmError`."""
        notify("WATCHDOG=1")
        if self.is_paused:
            return
        self._renewed = self.clock.now()
        if self.job_id:
            fields = [f"StartTime=now+{self.seconds:.0f}", f"Comment={self._comment}"]
            result = self.commands.run(["scontrol", "update", f"JobId={self.job_id}", *fields])
            # While slurmctld is down, all changes fail; `holders` then raises.
            if result.code == 0 or any(each.job_id == self.job_id for each in holders(self.commands, self.partitions)):
                return
        self.job_id = self._submitted()

    def _submitted(self) -> str:
        """Submit the job to the first partition that accepts it, and return its id."""
        words = [f"--job-name={LEASE}", f"--begin=now+{self.seconds:.0f}", "--time=1", "--ntasks=1", "--mem=1", "--no-requeue"]
        words += ["--chdir=/", "--output=/dev/null", f"--comment={self._comment}", "--wrap=true", "--parsable"]
        problems = []
        several = [",".join(self.partitions)] if len(self.partitions) > 1 else []
        for name in [*several, *self.partitions]:  # where it runs, nothing may be free, or all be down
            result = self.commands.run(["sbatch", f"--partition={name}", *words])
            if result.code == 0:
                job_id = result.out.strip().partition(";")[0]
                # When the partition is full, jobs that wait for the lease could otherwise be ahead of it.
                self.commands.run(["scontrol", "update", f"JobId={job_id}", f"Priority={MAX_PRIORITY}"])
                return job_id
            problems.append(printable(result.err or result.out))
        text = f"sbatch refuses the job on which waiting jobs depend while the driver is alive: {problems[-1]}"
        text += f"; if the plugin does not list this account, {plugin_again(','.join(self.partitions))}"
        raise InputError(Fault(f"partition {','.join(self.partitions)}", "", text))


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock that the operating system releases at the end of the process. Raises `InputError` if another process has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="ascii", errors="replace")  # noqa: SIM115
    except OSError as error:
        hint = "the state needs a directory that this account can write to (--state)"
        raise InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}; {hint}")) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            text = f"another driver is running with this state (process {holder}); only one is allowed"
            raise InputError(Fault(str(path), "", text)) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def slurm_release(partition: str, *, directory: str | Path | None = None, commands: SlurmCommands | None = None) -> list[str]:
    """End the leases of drivers of partitions, so that Slurm starts the jobs that wait for them.

    From then on, the plugin lets jobs of all partitions of these drivers pass. Needs no state, and may be repeated.

    Args:
        partition: The partition, or several, separated by commas.
        directory: The state of the driver, if available, which has the original requests of jobs.
        commands: Replacement of Slurm's commands, for tests.

    Returns:
        The ids of the jobs.

    Raises:
        InputError: The name of a partition is invalid.
        SlurmError: Slurm does not answer, or refuses to end a lease.
    """
    commands, names = SlurmCommands() if commands is None else commands, partitions_in(partition)
    state = None
    path = None if directory is None else Path(directory) / STATE
    if path is not None and path.exists():
        with suppress(InputError):
            state = load_state(path, names, resolve_policy("max_min_fairness"))
    released = release_all(commands, names, state)
    if released.problem:
        raise SlurmError(released.problem)
    return released.jobs


class Released(NamedTuple):
    """The outcome of a release. jobs: those that waited for the lease; problem: why a lease has not ended, or ""."""

    jobs: list[str]
    problem: str


def release_all(commands: SlurmCommands, partitions: Sequence[str], state: DriverState | None) -> Released:
    """End the leases of these partitions. Raises `SlurmError` if Slurm does not answer.

    Jobs that wait for the nodes on which a driver wanted to start them, or on which they were when a node failed, may start on all.
    """
    leases = holders(commands, partitions)
    ids = {each.job_id for each in leases}
    known = {} if state is None else state.aside | state.tracked
    jobs = [job for job in read_jobs(commands).values() if job.phase is Phase.WAITING]
    waiting = [job for job in jobs if not ids.isdisjoint(job.leases)]
    placed = [job for job in jobs if job.required_nodes and job.is_in(partitions) and (job.job_id in known or has_place(job))]
    lines = restore_lines(placed, known, 0 if state is None else len(state.scheduler.cluster.nodes))
    ahead = [job.job_id for job in waiting if job.priority == MAX_PRIORITY]
    lines += batch_lines("release", ahead)  # which sets the priority that Slurm itself would have given
    if lines:
        commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
    refused = end_leases(commands, leases)
    why = "; ".join(f"job {job_id}, the driver's lease, could not be cancelled: {text}" for job_id, text in refused.items())
    cure = "cancel it as SlurmUser, root or an operator"
    return Released(list(dict.fromkeys(job.job_id for job in [*waiting, *placed])), f"{why}; {cure}" if why else "")


class SlurmRemains(NamedTuple):
    """What an uninstallation has cleaned, and what remains in Slurm.

    released: jobs that waited for a lease; cleaned: jobs without notes of gavel-py now; noted: jobs whose AdminComment still has
    them, which only SlurmUser, root and administrators may write; placed: running jobs that would wait for their present nodes if
    one of these failed.
    """

    released: list[str]
    cleaned: list[str]
    noted: list[str]
    placed: list[str]


def slurm_uninstall(partition: str, *, directory: str | Path | None = None, commands: SlurmCommands | None = None) -> SlurmRemains:
    """End the leases of drivers (`slurm_release`) and remove what drivers and the plugin have written into live jobs.

    Needs no state, and may be repeated. Arguments and errors as for `slurm_release`. Run it before the plugin is removed, and after
    the driver has ended.
    """
    commands, names = SlurmCommands() if commands is None else commands, partitions_in(partition)
    released = slurm_release(partition, directory=directory, commands=commands)
    jobs = [job for job in read_jobs(commands).values() if job.is_in(names) and not job.phase.is_over and is_job_id(job.job_id)]
    cleaned = ((job.job_id, without_marks(job.admin_comment)) for job in jobs if has_marks(job.admin_comment))
    texts = {job_id: text for job_id, text in cleaned if text is not None}
    ahead = [job.job_id for job in jobs if job.priority == MAX_PRIORITY]
    lines = batch_lines("release", ahead)  # which sets the priority that Slurm itself would have given
    is_allowed = bool(texts) and may_annotate(commands)
    lines += annotation_lines(texts) if is_allowed else []
    if lines:
        commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
    placed = [job.job_id for job in jobs if job.phase is Phase.RUNNING and job.required_nodes and has_place(job)]
    return SlurmRemains(released, [*texts] if is_allowed else [], [] if is_allowed else [*texts], placed)
