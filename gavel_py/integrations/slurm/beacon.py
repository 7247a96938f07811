"""The sign of life of a driver: a job in Slurm that never starts, whose comment identifies the driver and when it was last alive.

The job_submit plugin reads the comment inside slurmctld, so that jobs are held only while a driver runs on some host to start them.
A second driver finds the job before it manages one of the same partitions; a driver with the same state directory finds a lock
(`exclusive_lock`). If systemd runs the driver, it is notified at the same times (`notify`). `slurm_release` removes the holds of a
dead driver.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gavel_py.errors import Fault, InputError, SlurmError
from gavel_py.integrations.slurm.actions import without_marks
from gavel_py.integrations.slurm.apply import MAX_PRIORITY, annotation_lines, batch_lines, has_place, is_job_id, restore_lines
from gavel_py.integrations.slurm.client.commands import (
    JOB,
    RightsError,
    SlurmCommands,
    WallClock,
    json_from,
    may_annotate,
    may_drive,
    read_jobs,
)
from gavel_py.integrations.slurm.client.notation import as_number, as_text, as_words, printable
from gavel_py.integrations.slurm.client.parsing import entries_in, phase_of
from gavel_py.integrations.slurm.client.records import BEACON, Phase, SlurmJob, SlurmNode
from gavel_py.integrations.slurm.job_roles import is_held_by_driver
from gavel_py.integrations.slurm.monitoring.event_log import warn
from gavel_py.integrations.slurm.settings import partitions_in
from gavel_py.integrations.slurm.state import STATE, DriverState, Tracked, load_state
from gavel_py.policies import resolve_policy

BEAT_SECONDS = 20.0

DEAD_SECONDS = 300.0
"""A driver without a sign of life for this long counts as dead. Its longest step (stops, starts, a slow controller) takes less."""

COMMENT = re.compile(r"gavel:driver=(\S+:\S*:\S+) alive=(\d+)(?: of=(\S+))?")

MAX_NAMED = 10
"""Jobs that an error names at most."""

MAX_COMMENT = 1_000
"""Slurm allows 1,024 characters."""


class Sign(NamedTuple):
    """A sign of life.

    owner: host, process and a digest of the state directory; partitions: those that the driver manages; uid, user: the account to
    which the job belongs.
    """

    job_id: str
    owner: str
    seconds: float
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


def signs_of_life(commands: SlurmCommands, partitions: Collection[str]) -> list[Sign]:
    """Return the signs of life of all drivers of these partitions. Raises `SlurmError` if Slurm does not answer."""
    return _split(commands, partitions)[0]


def _split(commands: SlurmCommands, partitions: Collection[str]) -> tuple[list[Sign], list[Sign]]:
    """Return the signs of life of these partitions, and the jobs of accounts that may not run a driver but look like signs."""
    # Any user may submit a job with this name, and write new lines in its comment, so the output must be JSON.
    entries = entries_in(json_from(commands, "squeue", "--all", f"--name={BEACON}", "--json"), "jobs")
    found = [sign for sign in map(_sign, entries) if sign is not None and not sign.partitions.isdisjoint(partitions)]
    trusted = may_drive(commands, {sign.uid for sign in found})
    return [sign for sign in found if sign.uid in trusted], [sign for sign in found if sign.uid not in trusted]


def _sign(entry: Any) -> Sign | None:
    """Return the sign of life in an entry of squeue; None if it is another job, or unreadable."""
    if not isinstance(entry, Mapping):
        return None
    found, uid = COMMENT.search(as_text(entry.get("comment"))), as_number(entry.get("user_id"))
    if as_text(entry.get("name")) != BEACON or found is None or uid is None or phase_of(as_words(entry.get("job_state"))).is_over:
        return None
    names = frozenset((found[3] or as_text(entry.get("partition"))).split(","))
    return Sign(str(entry.get("job_id")), found[1], float(found[2]), names, int(uid), printable(as_text(entry.get("user_name"))))


def remove_signs(commands: SlurmCommands, signs: Iterable[Sign]) -> dict[str, str]:
    """Remove signs of life, so that the plugin lets jobs pass at once.

    Returns {job: Slurm's error} of those that Slurm has not removed. Raises `SlurmError` if Slurm does not answer.
    """
    refused = {}
    for sign in signs:
        # Slurm lists the cancelled job for a while, and the plugin still reads its comment.
        commands.run(["scontrol", "update", f"JobId={sign.job_id}", f"Comment=gavel:driver={sign.owner} alive=0"])
        result = commands.run(["scancel", sign.job_id])
        if result.code and any(each.job_id == sign.job_id for each in signs_of_life(commands, sign.partitions)):
            refused[sign.job_id] = printable(result.err)
    return refused


def offer_of(nodes: Iterable[SlurmNode], partitions: Sequence[str]) -> str:
    """Return the GPUs of partitions and the size of their largest nodes, from which the plugin refuses impossible requests.

    Slurm itself does not check jobs on hold. The entry for all partitions together comes first, then one for each partition.
    """
    nodes = list(nodes)
    single = [f"[{name} {_offer_of(nodes, {name})}]" for name in partitions if len(partitions) > 1]
    return " ".join([_offer_of(nodes, set(partitions)), *single])


def _offer_of(nodes: Iterable[SlurmNode], partitions: Set[str]) -> str:
    mine = [node for node in nodes if node.partitions & partitions and node.gpus]
    types = sorted({name for node in mine for name in node.gpus if name})
    sizes = [sum(node.gpus.values()) for node in mine]
    memory = max((node.memory_mb for node in mine), default=0.0)
    cpus = max((node.cpus for node in mine), default=0)
    each = {name: [node.gpus.get(name, 0) for node in mine] for name in types}
    totals = ",".join(f"{name}:{max(counts)}/{sum(counts)}" for name, counts in each.items())
    text = f"types={','.join(types)} gpus={max(sizes, default=0)} mem={memory:.0f} cpus={cpus}"
    return f"{text} all={sum(sizes)} has={totals}"


@dataclass
class Beacon:
    """The sign of life of one driver. problem: why it could not be given, or ""; offer: what the partitions have (`offer_of`)."""

    commands: SlurmCommands
    clock: WallClock
    partitions: Sequence[str]
    directory: Path
    problem: str = ""
    offer: str = ""
    _job_id: str = ""
    _beaten: float = field(default=0.0)

    @property
    def _place(self) -> str:
        return hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:12]

    @property
    def _host(self) -> str:
        return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())

    @property
    def _comment(self) -> str:
        seconds = self.clock.machine_seconds()
        names = ",".join(self.partitions)
        text = f"gavel:driver={self._host}:{os.getpid()}:{self._place} alive={seconds:.0f} of={names} {self.offer}".strip()
        return text if len(text) <= MAX_COMMENT else text.partition(" [")[0]

    def begin(self) -> None:
        """Give the first sign of life, replacing an earlier one of this driver or of a dead driver.

        Jobs of accounts that may not run a driver are no signs of life, and only cause a warning.

        Raises:
            InputError: Another driver manages one of the partitions.
            SlurmError: Slurm does not answer.
        """
        signs, others = _split(self.commands, self.partitions)
        for sign in others:
            warn(f"job {sign.job_id} of {sign.user} looks like a driver's sign of life, but that account may not run a driver")
        for sign in signs:
            host, _, place = sign.owner.rsplit(":", 2)
            is_mine = (host, place) == (self._host, self._place)  # its driver has ended, since this one has the lock
            ago = self.clock.machine_seconds() - sign.seconds
            if not is_mine and abs(ago) < DEAD_SECONDS:
                shared = ",".join(name for name in self.partitions if name in sign.partitions)
                cure = f"end it first, or if its host is dead: gavel slurm release --partition {shared}"
                text = f"another driver manages it ({sign.origin}, last alive {ago:.0f} s ago); {cure}"
                raise InputError(Fault(f"partition {shared}", "", text))
        own = [sign for sign in signs if sign.partitions == set(self.partitions) and sign.uid == os.geteuid()][:1]
        remove_signs(self.commands, [sign for sign in signs if sign not in own])
        self._job_id = own[0].job_id if own else self._submitted()
        self._beaten = 0.0
        self.beat()

    def _submitted(self) -> str:
        """Submit the job to the first partition that accepts it, and return its id; "" if all refuse it."""
        words = [f"--job-name={BEACON}", "--hold", "--time=1", "--ntasks=1", "--chdir=/", "--output=/dev/null"]
        words += [f"--comment={self._comment}", "--wrap=true", "--parsable"]
        problems = []
        for name in self.partitions:
            result = self.commands.run(["sbatch", f"--partition={name}", *words])
            if result.code == 0:
                self.problem = ""
                return result.out.strip().partition(";")[0]
            problems.append(printable(result.err or result.out))
        self.problem = problems[0]
        return ""

    def announce(self, offer: str) -> None:
        """Give a sign of life with a new offer at once, so that the plugin knows it from the first round on."""
        if offer != self.offer:
            self.offer, self._beaten = offer, 0.0
            self.beat()

    def beat(self) -> None:
        """Give a sign of life if one is due. An error is not raised; the sign of life is then missing."""
        now = self.clock.now()
        if now - self._beaten < BEAT_SECONDS:
            return
        self._beaten = now
        notify("WATCHDOG=1")
        with suppress(SlurmError):
            if self._job_id:
                result = self.commands.run(["scontrol", "update", f"JobId={self._job_id}", f"Comment={self._comment}"])
                # It is only replaced if it is gone: while slurmctld is down, all changes fail.
                if result.code and all(sign.job_id != self._job_id for sign in signs_of_life(self.commands, self.partitions)):
                    self._job_id = ""
            if not self._job_id:
                self._job_id = self._submitted()

    def end(self) -> None:
        """Remove the sign of life. Raises `SlurmError`."""
        remove_signs(self.commands, signs_of_life(self.commands, self.partitions))
        self._job_id = ""


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
    """Release the jobs of partitions that wait on a hold of a driver or its plugin, as when the host of the driver is dead.

    From then on, the plugin lets jobs of all partitions of this driver pass. Needs no state, and may be repeated.

    Args:
        partition: The partition, or several, separated by commas.
        directory: The state of the driver, if available. It also lists jobs submitted without the plugin, and the original
            requests.
        commands: Replacement of Slurm's commands, for tests.

    Returns:
        The ids of the jobs.

    Raises:
        InputError: The name of a partition is invalid.
        SlurmError: Slurm does not answer, or refuses to release some of the jobs; the message has what was released and refused.
    """
    commands, names = SlurmCommands() if commands is None else commands, partitions_in(partition)
    state = None
    path = None if directory is None else Path(directory) / STATE
    if path is not None and path.exists():
        with suppress(InputError):
            state = load_state(path, names, resolve_policy("max_min_fairness"))
    released = release_all(commands, names, state)
    if released.refused:
        raise SlurmError(released.problem)
    return released.jobs


class Released(NamedTuple):
    """The outcome of a release. jobs: those released; refused: {job: Slurm's error} of jobs and signs of life that remain."""

    jobs: list[str]
    refused: dict[str, str]

    @property
    def problem(self) -> str:
        """A message on the jobs that Slurm has not released; "" if there are none."""
        if not self.refused:
            return ""
        names = list(self.refused)
        shown = f"{', '.join(names[:MAX_NAMED])}{', ...' * (len(names) > MAX_NAMED)}"
        words = "; ".join(dict.fromkeys(JOB.sub("a job", word) for word in self.refused.values()))
        text = f"jobs released: {len(self.jobs)}; refused by Slurm: {len(names)} ({shown}), {words}"
        return f"{text}; release them as SlurmUser, root or an operator that the plugin lists (gavel slurm install --user)"


def release_all(commands: SlurmCommands, partitions: Sequence[str], state: DriverState | None) -> Released:
    """Release all jobs on hold, including new ones and those set aside. Raises `SlurmError` if Slurm does not answer."""
    signs = remove_signs(commands, signs_of_life(commands, partitions))
    known, stopping, num_nodes = {}, set[str](), 0
    if state is not None:
        known, stopping, num_nodes = state.aside | state.tracked, state.stopping, len(state.scheduler.cluster.nodes)
    jobs, refused = release_held(commands, partitions, known, stopping, num_nodes)
    return Released(jobs, refused | {f"{job_id}, the sign of life": why for job_id, why in signs.items()})


def release_held(
    commands: SlurmCommands,
    partitions: Collection[str],
    known: Mapping[str, Tracked],
    stopping: Container[str],
    partition_nodes: int,
) -> tuple[list[str], dict[str, str]]:
    """Release all jobs on a hold of a driver or its plugin to Slurm. May be repeated.

    This includes jobs that Slurm has requeued and that now wait for the nodes on which a driver started them.

    Args:
        commands: Slurm's commands.
        partitions: The managed partitions.
        known: {job: record} of the jobs that a driver has managed; empty if its state is not available.
        stopping: Jobs that a driver was stopping.
        partition_nodes: As for `restore_lines`.

    Returns:
        The ids of the released jobs, and {job: Slurm's error} of those that are still on hold.

    Raises:
        SlurmError: Slurm does not answer.
    """

    def waiting() -> list[SlurmJob]:
        jobs = read_jobs(commands).values()
        return [job for job in jobs if is_held_by_driver(job, partitions, known, stopping) or _is_bound(job, partitions, known)]

    jobs, refused = waiting(), dict[str, str]()
    lines = restore_lines(jobs, known, partition_nodes)
    if lines:
        result = commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")
        # Some errors do not matter, since the job has ended or started in the meantime; so the jobs are read again.
        still = {job.job_id for job in waiting()} if result.err.strip() else set()
        errors = {job_id: printable(line) for line in result.err.splitlines() for job_id in JOB.findall(line)}
        refused = {job.job_id: errors.get(job.job_id, printable(result.err)) for job in jobs if job.job_id in still}
    released = [job.job_id for job in jobs if job.job_id not in refused]
    with suppress(SlurmError):
        _clean(commands, partitions, released)
    return released, refused


def _clean(commands: SlurmCommands, partitions: Collection[str], released: Collection[str]) -> None:
    """Remove what a driver and its plugin have left in jobs, as far as this account may.

    Running jobs keep their annotations, which a later release needs if a node fails. Raises `SlurmError` if Slurm does not answer.
    """
    jobs = read_jobs(commands)
    freed = [jobs[job_id] for job_id in released if job_id in jobs and is_job_id(job_id)]
    ahead = [i for i, job in jobs.items() if job.phase is Phase.RUNNING and job.priority == MAX_PRIORITY and job.is_in(partitions)]
    lines = batch_lines("release", ahead)  # which sets the priority that Slurm itself would have given
    lines += [f"update JobId={job.job_id} Comment=" for job in freed if job.comment.strip() == "gavel:"]
    cleaned = ((job, without_marks(job.admin_comment)) for job in freed if job.phase is Phase.WAITING)
    texts = {job.job_id: text for job, text in cleaned if text is not None and text != job.admin_comment}
    if texts:
        with suppress(RightsError):
            lines += annotation_lines(texts) if may_annotate(commands) else []
    if lines:
        commands.run(["scontrol"], "\n".join([*lines, "quit"]) + "\n")


def _is_bound(job: SlurmJob, partitions: Collection[str], known: Container[str]) -> bool:
    """Return whether a job that is not on hold waits for nodes that a driver selected."""
    is_selected = bool(job.required_nodes) and (job.job_id in known or has_place(job))
    return is_selected and job.phase is Phase.WAITING and not job.is_held and job.is_in(partitions)
