"""The command `gavel`: one module per command, each a thin layer over the public API.

A `LazyGroup` imports the module of a command on first use, and commands import heavy libraries when they run, which keeps
`gavel --help` fast. `main` prints errors in one line and exits with 1 for a failure at run time, 2 for wrong usage or input, and
130 after an interrupt.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gavel_py import __version__
from gavel_py.cli.failures import RunTimeFailure, UserFailure, faults_as_json
from gavel_py.cli.files import with_names
from gavel_py.errors import Fault, GavelError, InputError, decimal_hint, nearest

if TYPE_CHECKING:
    import gavel_py as gp

__all__ = ["INTERRUPTED", "Group", "LazyGroup", "main", "remember_jobs"]

INTERRUPTED = 130
"""Exit code after an interrupt: 128 + SIGINT, as in shells."""

_JOBS = "gavel_py.jobs"
"""Key of the jobs in the context data of a command."""


def _decimal_only(command: click.Command) -> click.Command:
    """Restrict numeric parameters of a command and its subcommands to decimal form; click would read 010 and 1_0 as 10."""
    for parameter in command.params:
        number_type = parameter.type
        if isinstance(number_type, type(click.INT) | type(click.FLOAT)) and "convert" not in vars(number_type):
            parameter.type = copy.copy(number_type)  # the original may be shared with other parameters
            parameter.type.convert = functools.partial(_converted, number_type.convert)  # type: ignore[method-assign]
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        _decimal_only(subcommand)
    return command


def _converted(convert: Callable[..., Any], value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    hint = decimal_hint(value)
    if hint:
        raise click.BadParameter(f"{value!r} is not a decimal number{hint}", ctx, param)
    return convert(value, param, ctx)


class Group(click.Group):
    """A group whose error for an unknown command names the nearest commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and name[:1].isalnum():
            ctx.fail(f"No such command {name!r}{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports a command on first use.

    modules: {command: the module in `package` that defines it as `command`, or module.name if it has another name there}.
    """

    def __init__(self, *arguments: Any, package: str, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._package, self._modules = package, modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._modules)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in self._modules:
            return None
        module, _, attribute = self._modules[name].partition(".")
        return _decimal_only(getattr(importlib.import_module(f"{self._package}.{module}"), attribute or "command"))


NAMES = (
    *("api", "completion", "explain", "kueue", "plan", "policies", "profiles", "report", "rounds"),
    *("schema", "serve", "simulate", "slurm", "solve", "step", "sweep", "trace"),
)
COMMANDS = dict(zip(NAMES, NAMES, strict=True))


class _Gavel(LazyGroup):
    """The command itself, which converts errors to messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        with faults_as_json(ctx):
            try:
                return super().invoke(ctx)
            except GavelError as error:
                if isinstance(error, InputError):
                    _locate(error, ctx)
                raise (UserFailure if isinstance(error, InputError) else RunTimeFailure)(with_names(_text(error, ctx))) from error
            except KeyboardInterrupt:
                click.echo("\nInterrupted", err=True)  # after the ^C of a terminal
                ctx.exit(INTERRUPTED)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    raise  # the reader of the pipe has exited; click exits silently
                _drop_output()
                raise RunTimeFailure(f"cannot write to standard output: {error.strerror or error}") from error


def remember_jobs(jobs: Iterable[gp.Job]) -> None:
    """Let errors on these jobs name their files and lines, even if they are found where only the ids of jobs are known."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_JOBS] = jobs


def _locate(error: InputError, ctx: click.Context) -> None:
    """Name the files and lines of remembered jobs in an error, and their fields as in files."""
    places = {repr(job.job_id): job.place for job in ctx.meta.get(_JOBS, ())}
    error.faults = tuple(_located(each, places) for each in error.faults)


JOB = re.compile(r"""jobs? ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?=,| and |$)""")
"""The beginning of the place of a fault that concerns jobs: job 'a', job 'a' and 2 more, jobs 'a', 'b'."""


def _located(fault: Fault, places: Mapping[str, str]) -> Fault:
    found = JOB.match(fault.where)
    if found is None or found[1] not in places:
        return fault
    field = "total_steps" if fault.field == "steps_remaining" else fault.field
    place = places[found[1]]
    return Fault(f"{place} ({fault.where})" if place else fault.where, field, fault.problem)


def _text(error: GavelError, ctx: click.Context) -> str:
    """Return the message of an error, with hints if it concerns throughputs that could be measured or estimated."""
    from gavel_py.cli.estimates import BY_JOB, HINT, MISSING, TO_MEASURE

    text = str(error)
    missing = isinstance(error, InputError) and any(part in fault.problem for part in MISSING for fault in error.faults)
    can_estimate = ctx.invoked_subcommand in ("explain", "plan", "rounds", "simulate", "slurm", "solve", "sweep", "serve")
    # Neither the speeds of --throughputs nor the rates of replicas are ever estimated.
    if not (missing and can_estimate) or BY_JOB in ctx.meta or "serving profile" in text:
        return text
    return "\n".join([text, TO_MEASURE, *([] if "an estimate needs" in text else [HINT])])


def _drop_output() -> None:
    """Redirect standard output to the null device, since Python would write the rest of the buffer at exit and fail again."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@contextlib.contextmanager
def logged(level: int) -> Iterator[None]:
    """Send log records of gavel_py of this level and above to standard error."""
    logger, handler = logging.getLogger("gavel_py"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@click.group(
    cls=_Gavel,
    package=__name__,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="gavel")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log to standard error: a line for each solve and each round; -vv: also programs, routes and fallbacks.",
)
@click.pass_context
def _gavel(context: click.Context, verbose: int) -> None:
    """Decide which job gets which GPU type, for how much of the time, and on which GPUs.

    \b
    gavel solve jobs.csv --cluster v100:16,p100:8/4 --policy max_min_fairness
    gavel policies
    gavel profiles list
    gavel -v solve jobs.csv --cluster v100:16,p100:8/4
    """
    if verbose:
        context.with_resource(logged(logging.DEBUG if verbose > 1 else logging.INFO))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with 0, 1 (failure at run time), 2 (wrong usage or input) or 130 (interrupted)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `gavel solve ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    _gavel(arguments, prog_name="gavel" if arguments is None else None)
    sys.exit(0)
