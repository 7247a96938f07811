"""Slurm's own commands: the only place where a process is started, never with a shell and always with a time limit.

`read_cluster` reads nodes and jobs with two commands and changes nothing. `rights_of` finds out what the account of the driver may
do in Slurm before anything is changed, and names the command that gives it more. `Clock` is the time and waiting, so that tests
need neither Slurm nor patience.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.parsing import jobs_from, nodes_from, printable
from gavel_py.integrations.slurm.records import SlurmJob, Snapshot


class Clock(Protocol):
    """The time, and waiting; tests have one of their own."""

    def now(self) -> float:
        """Return the time, in seconds since 1970, as Slurm counts."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on: not if the program is to end."""
        ...


class WallClock:
    """The time of this machine; `stop` ends all waiting."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> bool:
        """Wait, and say whether to go on."""
        return not self._stopped.wait(max(0.0, seconds))

    def stop(self) -> None:
        """Let the driver end after what it is doing; may be called by a signal's handler."""
        self._stopped.set()


ENVIRONMENT = {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}
"""Messages as they are known here, and lists of array tasks that are not cut."""


@dataclass(frozen=True)
class CommandResult:
    """What a command came to."""

    code: int
    out: str
    err: str


class Commands(Protocol):
    """How Slurm is asked and told; tests hand in one of their own."""

    def run(self, arguments: Sequence[str], text: str = "") -> CommandResult:
        """Run one command with this text as its input. Raises `SlurmError` where it cannot be run or does not end."""
        ...


@dataclass(frozen=True)
class SlurmCommands:
    """Runs Slurm's commands on this machine. timeout_seconds: of each; with a dead controller they would wait for minutes."""

    timeout_seconds: float = 60.0

    def run(self, arguments: Sequence[str], text: str = "") -> CommandResult:
        """Run one command, found on the path, with this text as its input."""
        program = shutil.which(arguments[0])
        if program is None:
            raise SlurmError(f"{arguments[0]} is not there: Slurm's commands must be installed and on the path of this program")
        try:
            done = subprocess.run(  # noqa: S603
                [program, *arguments[1:]],
                input=text,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout_seconds,
                env=os.environ | ENVIRONMENT,
                check=False,
                start_new_session=True,  # Ctrl-C is for the driver, which ends when its step is done
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{arguments[0]} has not answered within {self.timeout_seconds:g} s; is slurmctld up?") from None
        except OSError as error:
            raise SlurmError(f"{arguments[0]} cannot be run: {error.strerror or error}") from None
        return CommandResult(done.returncode, done.stdout, done.stderr)


def json_from(commands: Commands, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a command prints. Raises `SlurmError` where it fails or prints something else."""
    answer = commands.run(arguments)
    said = printable(answer.err) or f"it ended with code {answer.code}"
    if answer.code != 0:
        raise SlurmError(f"{' '.join(arguments)} failed: {said}")
    try:
        document = json.loads(answer.out)
    except ValueError:
        raise SlurmError(f"{' '.join(arguments)} printed no JSON: {printable(answer.out) or said}") from None
    if not isinstance(document, dict):
        raise SlurmError(f"{' '.join(arguments)} printed JSON of another kind")
    return document


def read_cluster(commands: Commands, now_seconds: float) -> Snapshot:
    """Return nodes and jobs as they are now. Raises `SlurmError` where Slurm does not answer."""
    nodes = nodes_from(json_from(commands, "sinfo", "--all", "--json"))
    if not nodes:
        raise SlurmError("sinfo --all --json names no nodes; this needs Slurm 21.08 or later, and a cluster that is configured")
    jobs, unreadable = jobs_from(json_from(commands, "squeue", "--all", "--json"))
    return Snapshot(now_seconds, nodes, jobs, unreadable)


def read_jobs(commands: Commands) -> dict[str, SlurmJob]:
    """Return the jobs alone, as they are now."""
    return jobs_from(json_from(commands, "squeue", "--all", "--json"))[0]


SLURM_USER = re.compile(r"^SlurmUser\s*=\s*(\S+?)\((\d+)\)", re.MULTILINE)

ACCOUNTING = re.compile(r"^AccountingStorageType\s*=\s*(\S+)", re.MULTILINE)

ACCOUNT = re.compile(r"UserName=(\S+?)\((\d+)\).*?AdminLevel=(\w+)", re.DOTALL)

LEVELS = {"Operator": False, "Administrator": True}
"""Whether one may write AdminComment, of those who may hold, requeue, release and change the jobs of others.

A coordinator of accounts may do so too, but only to the jobs of these accounts, and holds them as their users do, who may release
them again.
"""

REFUSED = re.compile(r"access/permission denied|invalid user id|unspecified error|job_?submit", re.IGNORECASE)
"""What Slurm says to whom it does not let change a job; the last two where a job_submit plugin does not."""

JOB = re.compile(r"\bjob (\d+(?:_\d+)?)\b")


class RightsError(SlurmError):
    """The account of the driver may not do in Slurm what it must."""


class Rights(NamedTuple):
    """may_annotate: whether the account may write the AdminComment of jobs."""

    may_annotate: bool


def rights_of(commands: Commands) -> Rights:
    """Return what the account that runs this program may do.

    Slurm checks rights by what the controller knows of an account, so that is what is asked for; Slurm itself changes nothing.

    Raises:
        RightsError: It may not manage the jobs of others; the text says which command would let it.
        SlurmError: Slurm does not answer.
    """
    uid = os.geteuid()
    config = _asked(commands, "scontrol", "show", "config")
    slurm_user = SLURM_USER.search(config)
    if slurm_user is None:
        return Rights(may_annotate=False)  # what a future Slurm prints must not keep it from working; refusals are told later
    if uid in {0, int(slurm_user[2])}:
        return Rights(may_annotate=True)
    name, boss = _name_of(uid), printable(slurm_user[1])
    who = f"{name} (uid {uid}) may not manage the jobs of other users: it is neither SlurmUser ({boss}) nor operator"
    storage = ACCOUNTING.search(config)
    if storage is None or not storage[1].endswith("slurmdbd"):
        raise RightsError(
            f"{who}, and without slurmdbd there are no operators; run it as {boss}: sudo -u {boss} gavel slurm run ..."
        )
    known = {int(number): level for _, number, level in ACCOUNT.findall(_accounts(commands, name))}
    if uid in known and known[uid] in LEVELS:
        return Rights(may_annotate=LEVELS[known[uid]])
    if uid in known:
        cure = f"sacctmgr -i modify user where name={name} set adminlevel=operator"
    else:
        cure = f"sacctmgr -i add user {name} account=root adminlevel=operator"
    raise RightsError(f"{who}; an administrator of Slurm makes it one with: {cure}")


def check_started(sent: Collection[str], started: Collection[str], errors: Iterable[str], partition: str) -> None:
    """Raise `RightsError` if all jobs that were to start have not, since Slurm does not let this account start them."""
    refused = {job_id: line for line in errors if REFUSED.search(line) for job_id in JOB.findall(line)}
    if not sent or started or not refused.keys() >= set(sent):
        return
    name = _name_of(os.geteuid())
    plugin = f"gavel slurm install --partition {partition} --user {name} ... --out job_submit.lua, then scontrol reconfigure"
    raise RightsError(
        f"Slurm lets {name} start no job ({refused[next(iter(sent))]}); if the account has its right (docs/slurm.md), "
        f"the job_submit plugin does not know it; write the plugin again: {plugin}"
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _accounts(commands: Commands, name: str) -> str:
    return _asked(commands, "scontrol", "show", "assoc_mgr", f"users={name}", "flags=users")


def _asked(commands: Commands, *arguments: str) -> str:
    answer = commands.run(arguments)
    if answer.code != 0:
        raise SlurmError(f"{' '.join(arguments)} failed: {printable(answer.err or answer.out)}")
    return answer.out
