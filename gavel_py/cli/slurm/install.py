"""gavel slurm install: the job_submit plugin, with instructions for the administrator."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import DIRECTORY, FILE, option, takes_options
from gavel_py.cli.output import counted, emit

COMMENT_WIDTH = 118

ADVICE = """\
1. Put {where} next to slurm.conf as job_submit.lua; if there is one already, call these functions from it.
2. In slurm.conf{merged}:

{lines}

   Jobs of {partition} must not be preempted by Slurm itself (PreemptMode=OFF).
3. scontrol reconfigure
4. The account that runs `gavel slurm run` must be one of those given with --user, and an operator:
   sacctmgr -i add user NAME account=root adminlevel=operator, or if slurmdbd knows it already
   sacctmgr -i modify user where name=NAME set adminlevel=operator. Without slurmdbd, it must be SlurmUser.
5. gavel slurm status --partition {partition}
"""


SETTINGS = {
    "JobSubmitPlugins": "lua",
    "JobRequeue": "1",
    "MinJobAge": "300",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=5,default_queue_depth=1000",
}
"""Lines of slurm.conf."""

LISTS = ("JobSubmitPlugins", "SchedulerParameters")

CONFIGURED = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)
"""A line of `scontrol show config`."""

PROPERTY = re.compile(r"(\w+)=(\S*)")
"""A property in a line of `scontrol show partition --oneliner`."""

REMEDY = "make the environment with an interpreter for all, outside of home directories: /usr/bin/python3 -m venv /opt/gavel-py"

ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class InstallOptions:
    """The options, as typed."""

    partition: str = option(required=True, metavar="NAMES", help="Partitions to manage, as in gpu,gpu-long.")
    users: tuple[str, ...] = option("--user", metavar="NAME", help="SlurmUser and the driver's account; root is always included.")
    default_partition: bool = option(help="Jobs without a partition go to one of these [if Slurm says so].")
    reject_odd: bool = option(help="Refuse gangs such as 5 GPUs that fit only as 1 on each of 5 nodes.")
    reject_unplanned: bool = option(help="Refuse --nodelist, --exclude, --exclusive: such jobs take no turns.")
    service: Path | None = option(type=FILE, metavar="FILE", help="Also write a systemd unit, for the last account of --user.")
    defaults: Path | None = option(
        type=FILE, metavar="FILE", help="Also write /etc/default/gavel-slurm, with the options of the unit."
    )
    out: Path | None = option("-o", type=FILE, metavar="FILE", help="Write the plugin to this file instead of the terminal.")


@click.command("install")
@takes_options(InstallOptions)
def command(request: InstallOptions) -> None:
    """Write the job_submit plugin for Slurm.

    While a driver is alive, the plugin lets new jobs wait for it, and notes when they were submitted. The other steps of the
    installation are listed on standard error.
    """
    numbers = [_uid(name) for name in request.users]
    names = {name.strip() for name in request.partition.split(",")}
    default = next((name for name, listed in _partitions().items() if name in names and listed.get("Default") == "YES"), "")
    if default:
        click.echo(f"Jobs without a partition are managed too: {default} is the default (Default=YES).", err=True)
    if numbers and (barrier := _barrier(numbers[-1])):
        click.echo(f"warning: {request.users[-1]} cannot run this gavel: {barrier}", err=True)
    if request.service is not None:
        if not request.users:
            raise click.UsageError("--service needs --user NAME, the account that runs the driver")
        emit(gp.slurm_service(request.partition, user=request.users[-1], command=_program()), request.service)
    if request.defaults is not None:
        emit(_defaults(), request.defaults)
    text = gp.slurm_plugin(
        request.partition,
        numbers,
        is_default=request.default_partition or bool(default),
        reject_odd=request.reject_odd,
        reject_unplanned=request.reject_unplanned,
    )
    emit(text, request.out)
    lines, is_merged = _configuration()
    merged = ", with the values of your site" if is_merged else ", add these to the values that your site already has"
    advice = ADVICE.format(where=request.out or "this text", partition=request.partition, lines="\n".join(lines), merged=merged)
    click.echo(advice, nl=False, err=True)


REMOVAL = """\
Next, in this order:
1. In slurm.conf, remove lua from JobSubmitPlugins, and the other lines that were added for gavel-py; then scontrol reconfigure.
2. Only then remove job_submit.lua: slurmctld does not start, or ends, without a plugin that slurm.conf names.
3. systemctl disable gavel-slurm, and remove its unit, /etc/default/gavel-slurm, its state and the account of the driver.
"""


@click.command("uninstall")
@click.option("--partition", required=True, metavar="NAMES", help="Partitions that are not managed any more, as in gpu,gpu-long.")
@click.option("--state", type=DIRECTORY, metavar="DIR", help="The directory of the driver's state, if it can be read.")
def uninstall(partition: str, state: Path | None) -> None:
    """Leave jobs to Slurm, and remove gavel's notes in them.

    The notes are those of a driver and its plugin; end the driver first. The other steps are listed on standard error.
    """
    done = gp.slurm_uninstall(partition, directory=state)
    click.echo(f"{counted(len(done.released), 'job')} released, notes removed from {counted(len(done.cleaned), 'job')}.")
    if done.noted:
        left = "their AdminComment keeps notes that begin with gavel:, which only SlurmUser, root and administrators may remove"
        click.echo(f"{counted(len(done.noted), 'job')}: {left}; they change nothing.")
    if done.placed:
        left = "Slurm cannot change that while they run; if such a node fails, its job waits for it until scontrol update"
        click.echo(f"{counted(len(done.placed), 'job')} may only run on the present nodes: {left} JobId=... ReqNodeList=.")
    click.echo(REMOVAL, nl=False, err=True)


def _configuration() -> tuple[list[str], bool]:
    """Return the lines for slurm.conf, and whether they contain the present values of the site, which needs an answer of Slurm."""
    present = dict(CONFIGURED.findall(_shown("config")))
    lines = {name: _merged(present.get(name, ""), value) if name in LISTS else value for name, value in SETTINGS.items()}
    age = present.get("MinJobAge", "").partition(" ")[0]
    if age.isdecimal() and int(age) > int(lines["MinJobAge"]):
        lines["MinJobAge"] = age
    return [f"{name}={value}" for name, value in lines.items()], bool(present)


def _shown(*what: str) -> str:
    """Return what scontrol shows, "" if there is no Slurm here, or it does not answer."""
    try:
        result = gp.SlurmCommands(ANSWER_SECONDS).run(["scontrol", "show", *what])
    except gp.SlurmError:
        return ""
    return "" if result.code else result.out


def _partitions() -> dict[str, dict[str, str]]:
    """Return {partition: its properties}, as far as Slurm shows them."""
    lines = [dict(PROPERTY.findall(line)) for line in _shown("partition", "--oneliner").splitlines()]
    return {line["PartitionName"]: line for line in lines if "PartitionName" in line}


def _barrier(uid: int) -> str:
    """Return what keeps an account from running this interpreter and package, by the modes of the files; "" if nothing does."""
    try:
        account = pwd.getpwuid(uid)
        groups = {account.pw_gid, *os.getgrouplist(account.pw_name, account.pw_gid)}
    except KeyError:
        groups = set[int]()
    for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(gp.__file__).resolve().parent):
        for each in (*reversed(path.parents), path):
            status = each.stat()
            may = status.st_mode >> (6 if status.st_uid == uid else 3 if status.st_gid in groups else 0)
            if uid and not may & 1:
                return f"{path} lies behind {each}, which it may not enter; {REMEDY}"
    return ""


def _merged(present: str, ours: str) -> str:
    """Return a list with our entries in place of those of the same names.

    >>> _merged("bf_continue,sched_interval=60", "sched_interval=5,batch_sched_delay=0")
    'bf_continue,sched_interval=5,batch_sched_delay=0'
    """
    names = {entry.partition("=")[0] for entry in ours.split(",")}
    kept = [entry for entry in present.split(",") if entry not in {"", "(null)"} and entry.partition("=")[0] not in names]
    return ",".join([*kept, ours])


def _program() -> str:
    """Return the path of this command, since systemd does not search the PATH of a virtual environment."""
    beside = Path(sys.executable).with_name("gavel")
    return str(beside) if beside.exists() else shutil.which("gavel") or "gavel"


DEFAULTS = """\
# /etc/default/gavel-slurm: options of the driver in the unit gavel-slurm.service. Apply changes with systemctl restart gavel-slurm.
# Quote values with blanks: OPTIONS="--default-type 'ResNet-50 (batch size 64)' --round 360".
# The profile should have speeds of the default type for gangs of several GPUs; otherwise such gangs are left to Slurm.
# Long lines may be continued with a backslash at the end.
# The unit itself has --partition, --state and --on-failure release.

OPTIONS=""

"""

IN_UNIT = {"partition", "state", "once", "num_rounds", "dry_run", "shadow"}
"""Options that are part of the unit, or make no sense in it."""


def _defaults() -> str:
    """Return the options file: no option is set, and all are listed as comments."""
    from gavel_py.cli.slurm.run import command as run

    context = click.Context(run, max_content_width=COMMENT_WIDTH, terminal_width=COMMENT_WIDTH)
    formatter = context.make_formatter()
    parameters = [parameter for parameter in run.params if parameter.name not in IN_UNIT]
    formatter.write_dl([record for parameter in parameters if (record := parameter.get_help_record(context)) is not None])
    return DEFAULTS + "".join(f"# {line}\n" for line in formatter.getvalue().splitlines())


def _uid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise click.UsageError(
            f"--user {name!r}: there is no such user on this machine; create the account (useradd --system), or give its user id"
        ) from None
