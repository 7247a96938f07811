"""gavel slurm install: the job_submit plugin, with instructions for the administrator."""

from __future__ import annotations

import pwd
import re
import shutil
import sys
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.inputs import FILE
from gavel_py.cli.output import emit

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

ANSWER_SECONDS = 5.0


@click.command("install")
@click.option("--partition", required=True, metavar="NAMES", help="Partitions to manage, as in gpu,gpu-long.")
@click.option("--user", "users", multiple=True, metavar="NAME", help="SlurmUser and the driver's account; root is always included.")
@click.option("--default-partition", is_flag=True, help="Jobs without a partition go to one of these.")
@click.option(
    "--dead-seconds",
    type=click.FloatRange(0, 10**6),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Let jobs pass if the driver has been silent for this time; 0: never.",
)
@click.option("--reject-odd", is_flag=True, help="Refuse gangs such as 5 GPUs that fit only as 1 on each of 5 nodes.")
@click.option("--reject-unplanned", is_flag=True, help="Refuse --nodelist, --exclude, --exclusive: such jobs take no turns.")
@click.option("--service", type=FILE, metavar="FILE", help="Also write a systemd unit, for the last account of --user.")
@click.option("--defaults", type=FILE, metavar="FILE", help="Also write /etc/default/gavel-slurm, with the options of the unit.")
@click.option("-o", "--out", type=FILE, metavar="FILE", help="Write the plugin to this file instead of the terminal.")
def command(
    partition: str,
    users: tuple[str, ...],
    default_partition: bool,
    dead_seconds: float,
    reject_odd: bool,
    reject_unplanned: bool,
    service: Path | None,
    defaults: Path | None,
    out: Path | None,
) -> None:
    """Write the job_submit plugin for Slurm.

    While a driver is alive, the plugin puts new jobs on hold, and records when they were submitted and whether their users hold
    them. The other steps of the installation are listed on standard error.
    """
    numbers = [_uid(name) for name in users]
    if service is not None:
        if not users:
            raise click.UsageError("--service needs --user NAME, the account that runs the driver")
        emit(gp.slurm_service(partition, user=users[-1], command=_program()), service)
    if defaults is not None:
        emit(_defaults(), defaults)
    text = gp.slurm_plugin(
        partition,
        numbers,
        is_default=default_partition,
        dead_seconds=dead_seconds,
        reject_odd=reject_odd,
        reject_unplanned=reject_unplanned,
    )
    emit(text, out)
    lines, is_merged = _configuration()
    merged = ", with the values of your site" if is_merged else ", add these to the values that your site already has"
    advice = ADVICE.format(where=out or "this text", partition=partition, lines="\n".join(lines), merged=merged)
    click.echo(advice, nl=False, err=True)


def _configuration() -> tuple[list[str], bool]:
    """Return the lines for slurm.conf, and whether they contain the present values of the site, which needs an answer of Slurm."""
    try:
        result = gp.SlurmCommands(ANSWER_SECONDS).run(["scontrol", "show", "config"])
    except gp.SlurmError:
        result = None
    present = {} if result is None or result.code else dict(CONFIGURED.findall(result.out))
    lines = {name: _merged(present.get(name, ""), value) if name in LISTS else value for name, value in SETTINGS.items()}
    age = present.get("MinJobAge", "").partition(" ")[0]
    if age.isdecimal() and int(age) > int(lines["MinJobAge"]):
        lines["MinJobAge"] = age
    return [f"{name}={value}" for name, value in lines.items()], bool(present)


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

IN_UNIT = {"partition", "state", "once", "rounds", "dry_run", "shadow"}
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
