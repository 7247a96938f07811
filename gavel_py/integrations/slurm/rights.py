"""What the account of the driver may do in Slurm, found out before anything is changed, and the command that gives it more."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.commands import Commands
from gavel_py.integrations.slurm.parsing import printable

__all__ = ["Rights", "RightsError", "check_sent", "rights_of"]

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
    """may_mark: whether the account may write the AdminComment of jobs."""

    may_mark: bool


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
        return Rights(may_mark=False)  # what a future Slurm prints must not keep it from working; refusals are told later
    if uid in {0, int(slurm_user[2])}:
        return Rights(may_mark=True)
    name, boss = _name_of(uid), printable(slurm_user[1])
    who = f"{name} (uid {uid}) may not manage the jobs of other users: it is neither SlurmUser ({boss}) nor operator"
    storage = ACCOUNTING.search(config)
    if storage is None or not storage[1].endswith("slurmdbd"):
        raise RightsError(
            f"{who}, and without slurmdbd there are no operators; run it as {boss}: sudo -u {boss} gavel slurm run ..."
        )
    known = {int(number): level for _, number, level in ACCOUNT.findall(_accounts(commands, name))}
    if uid in known and known[uid] in LEVELS:
        return Rights(may_mark=LEVELS[known[uid]])
    if uid in known:
        cure = f"sacctmgr -i modify user where name={name} set adminlevel=operator"
    else:
        cure = f"sacctmgr -i add user {name} account=root adminlevel=operator"
    raise RightsError(f"{who}; an administrator of Slurm makes it one with: {cure}")


def check_sent(sent: Collection[str], started: Collection[str], errors: Iterable[str], partition: str) -> None:
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
