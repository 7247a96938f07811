"""Execution of Slurm's commands, always with a time limit and never in a shell; no other module starts processes.

`may_annotate` checks the rights of the driver's account before anything is changed. Tests
replace `SlurmCommands` and `WallClock`.
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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gavel_py.errors import SlurmError, refuse
from gavel_py.integrations.slurm.client.notation import printable
from gavel_py.integrations.slurm.client.parsing import jobs_from, partitions_from, tiers_from
from gavel_py.integrations.slurm.client.records import LEASE, SlurmJob, Snapshot
from gavel_py.integrations.slurm.monitoring.event_log import warn


class WallClock:
    """The clock of this machine, made monotonic; `stop` ends all waiting."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._ahead = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since 1970, which never decrease: if the machine's clock is set back, they continue from before."""
        steady = time.monotonic()
        self._ahead = max(self._ahead, time.time() - steady)
        return steady + self._ahead

    def machine_seconds(self) -> float:
        """Return the seconds since 1970 by the machine's clock, even if it was set back; Slurm on this machine uses that clock."""
        return time.time()

    def catch_up(self, seconds: float) -> None:
        """Make `now` return at least this time, which an earlier driver has reached."""
        self._ahead = max(self._ahead, seconds - time.monotonic())

    def sleep(self, seconds: float) -> bool:
        """Wait, and return whether to continue; False after `stop`."""
        return not self._stopped.wait(max(0.0, seconds))

    def stop(self) -> None:
        """Ask the driver to end after its current step; may be called from a signal handler."""
        self._stopped.set()


ENVIRONMENT = {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}
"""Untranslated messages, and lists of array tasks in full length."""


UNCONFIGURED = re.compile(r"Could not establish a configuration source|Unable to process configuration file")
"""Slurm's messages if there is no slurm.conf."""


class NoSlurmError(SlurmError):
    """There is no Slurm on this machine, so that trying again is no use."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class SlurmCommands:
    """Runs Slurm's commands on this machine.

    Attributes:
        timeout_seconds: Time limit of each command; without it, commands wait for minutes if the controller is down.
    """

    timeout_seconds: float = 60.0

    def run(self, arguments: Sequence[str], text: str = "") -> CommandResult:
        """Run a command from the path.

        Args:
            arguments: The command and its arguments.
            text: Standard input of the command.

        Raises:
            NoSlurmError: The command is not installed, or finds no configuration of Slurm.
            SlurmError: It cannot be run, or exceeds the time limit.
        """
        program = shutil.which(arguments[0])
        if program is None:
            raise NoSlurmError(f"no Slurm here: {arguments[0]} was not found; Slurm's commands must be installed and on the PATH")
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
                start_new_session=True,  # Ctrl-C only reaches the driver, which completes its step
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{arguments[0]} has not answered within {self.timeout_seconds:g} s; is slurmctld up?") from None
        except OSError as error:
            raise SlurmError(f"{arguments[0]} cannot be run: {error.strerror or error}") from None
        if done.returncode and UNCONFIGURED.search(done.stderr):
            raise NoSlurmError(f"no Slurm here: {arguments[0]} found no slurm.conf; give its path in SLURM_CONF")
        return CommandResult(done.returncode, done.stdout, done.stderr)


def output(commands: SlurmCommands, *arguments: str) -> str:
    """Return what a command prints. Raises `SlurmError` if it fails."""
    result = commands.run(arguments)
    if result.code != 0:
        message = printable(result.err or result.out) or f"it ended with code {result.code}"
        raise SlurmError(f"{' '.join(arguments)} failed: {message}")
    return result.out


def json_from(commands: SlurmCommands, *arguments: str) -> dict[str, Any]:
    """Return the JSON object that a command prints. Raises `SlurmError` if it fails or prints anything else."""
    text = output(commands, *arguments)
    try:
        document = json.loads(text)
    except ValueError:
        raise SlurmError(f"{' '.join(arguments)} printed no JSON: {printable(text) or 'it ended with code 0'}") from None
    if not isinstance(document, dict):
        raise SlurmError(f"{' '.join(arguments)} printed unexpected JSON")
    return document


JOBS = ("squeue", "--all", "--states=all", "--json")
"""All jobs: from Slurm 24.05 on, those that have ended are only listed if all states are requested."""


def with_partitions(snapshot: Snapshot, commands: SlurmCommands) -> Snapshot:
    """Add the limits of partitions to a snapshot, if scontrol can list them. Raises `SlurmError` if Slurm does not answer."""
    result = commands.run(["scontrol", "show", "partition", "--oneliner"])
    return replace(snapshot, partitions=partitions_from(result.out)) if result.code == 0 else snapshot


def read_jobs(commands: SlurmCommands) -> dict[str, SlurmJob]:
    """Return the current jobs, without the leases of drivers."""
    jobs, _ = jobs_from(json_from(commands, *JOBS))
    return without_leases(jobs)


def without_leases(jobs: Mapping[str, SlurmJob]) -> dict[str, SlurmJob]:
    """Return the jobs without the leases of drivers."""
    return {job_id: job for job_id, job in jobs.items() if job.name != LEASE or job.num_gpus}


SLURM_USER = re.compile(r"^SlurmUser\s*=\s*(\S+?)\((\d+)\)", re.MULTILINE)
ACCOUNTING = re.compile(r"^AccountingStorageType\s*=\s*(\S+)", re.MULTILINE)
ACCOUNT = re.compile(r"UserName=(\S+?)\((\d+)\).*?AdminLevel=(\w+)", re.DOTALL)

LEVELS = {"Operator": False, "Administrator": True}
"""{admin level that may manage jobs of other users: whether it may write AdminComment}.

Being an account coordinator is not sufficient: coordinators manage only jobs of their accounts, and users can release jobs that a
coordinator holds.
"""

KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+)", re.MULTILINE)


RECORDED = ("22.05", "24.11", "26.05")
"""Releases of Slurm whose JSON the tests read as it was printed; others may name and structure it differently."""

RELEASE = re.compile(r"^SLURM_VERSION\s*=\s*(\d+\.\d+)", re.MULTILINE)


def warn_of_configuration(commands: SlurmCommands, partitions: Collection[str], stop_seconds: float) -> None:
    """Warn of what in Slurm's configuration does not suit rounds. Raises `SlurmError` if Slurm does not answer."""
    config = output(commands, "scontrol", "show", "config")
    release, kill_wait = RELEASE.search(config), KILL_WAIT.search(config)
    if release is not None and release[1] not in RECORDED:
        tested = f"{', '.join(RECORDED[:-1])} and {RECORDED[-1]}"
        warn(f"this is Slurm {release[1]}, but gavel-py was tested with {tested}; compare gavel slurm status with squeue and sinfo")
    if kill_wait is not None and float(kill_wait[1]) >= stop_seconds:
        limit = f"--stop-seconds is {stop_seconds:g}"
        warn(f"jobs may take {float(kill_wait[1]):g} s to stop (KillWait), but {limit}; their GPUs would stay empty for a round")
    _warn_of_tiers(commands, partitions)


MAX_SKEW_SECONDS = 5.0

SERVER_TIME = re.compile(r"^sdiag output at .*\((\d+)\)", re.MULTILINE)


def check_clock(commands: SlurmCommands, clock: WallClock) -> None:
    """Raise `InputError` if the clocks of this machine and of slurmctld differ: scontrol computes begin times by this one."""
    before = clock.machine_seconds()
    found = SERVER_TIME.search(commands.run(["sdiag"]).out)
    ahead = 0.0 if found is None else before - float(found[1])
    text = f"is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of slurmctld, and jobs would start at wrong times"
    cure = f"synchronise the clocks, to {MAX_SKEW_SECONDS:g} s at least"
    refuse("the clock of this machine", (abs(ahead) > MAX_SKEW_SECONDS, "", f"{text}; {cure}"))


def _warn_of_tiers(commands: SlurmCommands, partitions: Collection[str]) -> None:
    """Warn if managed partitions, and others with nodes of theirs, differ in PriorityTier."""
    tiers = tiers_from(commands.run(["scontrol", "show", "partition", "--oneliner"]).out)
    nodes = frozenset[str]().union(*(its for name, (_, its) in tiers.items() if name in partitions))
    beside = {name: tier for name, (tier, its) in tiers.items() if name in partitions or not nodes.isdisjoint(its)}
    if len(set(beside.values())) > 1:
        listed = ", ".join(f"{name} {tier}" for name, tier in beside.items())
        warn(f"rounds ignore PriorityTier, which differs between partitions that are managed or share their nodes: {listed}")


PRIVATE = re.compile(r"^PrivateData\s*=\s*(\S+)", re.MULTILINE)


def hides_jobs(commands: SlurmCommands) -> bool:
    """Return whether users may see only their own jobs (`PrivateData`). Raises `SlurmError` if Slurm does not answer."""
    found = PRIVATE.search(output(commands, "scontrol", "show", "config"))
    return found is not None and not {"jobs", "all"}.isdisjoint(found[1].split(","))


REFUSED = re.compile(r"access/permission denied|invalid user id|unspecified error|job_?submit", re.IGNORECASE)
"""Slurm's messages for denied changes; job_submit plugins cause the last two."""

JOB = re.compile(r"\bjob (\d+(?:_\d+)?)\b")


class RightsError(SlurmError):
    """The account of the driver lacks rights in Slurm."""


def may_annotate(commands: SlurmCommands) -> bool:
    """Check the rights of the account that runs this program, and return whether it may write the AdminComment of jobs.

    The rights are read from the controller, which enforces them; nothing is changed.

    Raises:
        RightsError: The account may not manage the jobs of other users; the message has the command that grants the right.
        SlurmError: Slurm does not answer.
    """
    uid = os.geteuid()
    config = output(commands, "scontrol", "show", "config")
    slurm_user = SLURM_USER.search(config)
    if slurm_user is None:
        return False  # unknown output of a later version: refusals are reported when they occur
    if uid in {0, int(slurm_user[2])}:
        return True
    name, slurm_user_name = _name_of(uid), printable(slurm_user[1])
    problem = f"{name} (uid {uid}) may not manage the jobs of other users: it is neither SlurmUser ({slurm_user_name}) nor operator"
    storage = ACCOUNTING.search(config)
    if storage is None or not storage[1].endswith("slurmdbd"):
        raise RightsError(
            f"{problem}, and without slurmdbd there are no operators; "
            f"run it as {slurm_user_name}: sudo -u {slurm_user_name} gavel slurm run ..."
        )
    known = _levels_in(output(commands, *_show_accounts([name])))
    if uid in known and known[uid] in LEVELS:
        return LEVELS[known[uid]]
    if uid in known:
        command = f"sacctmgr -i modify user where name={name} set adminlevel=operator"
    else:
        command = f"sacctmgr -i add user {name} account=root adminlevel=operator"
    raise RightsError(f"{problem}; a Slurm administrator can grant this with: {command}")


def may_drive(commands: SlurmCommands, uids: Iterable[int]) -> frozenset[int]:
    """Return the accounts among these that may run a driver, as far as this account can read their rights.

    These are root, this account, SlurmUser, and the operators and administrators of Slurm. Raises `SlurmError` if Slurm does not
    answer.
    """
    asked = frozenset(uids)
    found = asked & {0, os.geteuid()}
    if found == asked:
        return found
    slurm_user = SLURM_USER.search(output(commands, "scontrol", "show", "config"))
    if slurm_user is not None:
        found |= asked & {int(slurm_user[2])}
    if found != asked:
        # It fails without slurmdbd, and may list nothing to ordinary users (PrivateData).
        levels = _levels_in(commands.run(_show_accounts(_name_of(uid) for uid in sorted(asked - found))).out)
        found |= {uid for uid in asked if levels.get(uid) in LEVELS}
    return found


def _show_accounts(names: Iterable[str]) -> list[str]:
    return ["scontrol", "show", "assoc_mgr", f"users={','.join(names)}", "flags=users"]


def _levels_in(text: str) -> dict[int, str]:
    """Return {uid: admin level} in the users that the controller lists."""
    return {int(number): level for _, number, level in ACCOUNT.findall(text)}


def check_started(starts: Collection[str], started: Collection[str], errors: Iterable[str], partition: str) -> None:
    """Raise `RightsError` if no job was started because Slurm does not let this account start jobs."""
    refused = {job_id: line for line in errors if REFUSED.search(line) for job_id in JOB.findall(line)}
    if not starts or started or not refused.keys() >= set(starts):
        return
    name = _name_of(os.geteuid())
    raise RightsError(
        f"Slurm does not allow {name} to start jobs ({refused[next(iter(starts))]}); if the account is operator (docs/slurm.md), "
        f"the job_submit plugin does not list it; {plugin_again(partition)}"
    )


def plugin_again(partition: str) -> str:
    """Return what to do if the plugin does not list the account that runs this program."""
    command = f"gavel slurm install --partition {partition} --user {_name_of(os.geteuid())} ... --out job_submit.lua"
    return f"write the plugin again: {command}, then scontrol reconfigure"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
