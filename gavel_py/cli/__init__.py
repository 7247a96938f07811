"""The command `gavel`: one file per command, each a thin layer over the public API and imported only when it is used.

`LazyGroup` is a group of such commands; heavy imports happen inside the commands, which keeps `gavel --help` quick. `main` tells
errors in a line and by the exit code: 1 for a failure at run time, 2 for wrong usage or input.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from gavel_py import __version__
from gavel_py.errors import GavelError, InputError, decimal_hint

__all__ = ["LazyGroup", "main"]


def _in_decimal(command: click.Command) -> click.Command:
    """Let a command, and those below it, take numbers in decimal form only: click would read 010 and 1_0 as 10."""
    for parameter in command.params:
        kind = parameter.type
        if isinstance(kind, type(click.INT) | type(click.FLOAT)) and "convert" not in vars(kind):
            parameter.type = copy.copy(kind)  # other parameters may have the same one
            parameter.type.convert = functools.partial(_converted, kind.convert)  # type: ignore[method-assign]
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _in_decimal(below)
    return command


def _converted(convert: Callable[..., Any], value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    hint = decimal_hint(value) if isinstance(value, str) else ""
    if hint:
        raise click.BadParameter(f"{value!r} is not a decimal number{hint}", ctx, param)
    return convert(value, param, ctx)


class LazyGroup(click.Group):
    """Commands by name, each of a module that has it as `command`, which keeps `gavel --help` quick.

    package: where the modules are; modules: {name of the command: name of its module}.
    """

    def __init__(self, *arguments: Any, package: str, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._package, self._modules = package, modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._modules)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in self._modules:
            return None
        return _in_decimal(importlib.import_module(f"{self._package}.{self._modules[name]}").command)


COMMANDS = {
    "completion": "completion",
    "explain": "explain",
    "policies": "policies",
    "profiles": "profiles",
    "report": "report",
    "rounds": "rounds",
    "simulate": "simulate",
    "slurm": "slurm",
    "solve": "solve",
    "sweep": "sweep",
    "trace": "trace",
}


class _UserError(click.ClickException):
    """An error that the user can mend."""

    exit_code = 2


class _RunTimeError(click.ClickException):
    """A failure that is not the user's."""

    exit_code = 1


class _Gavel(LazyGroup):
    """The whole command: errors are told in a line, and tell by the exit code whose they are."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise _UserError(str(error)) from error
        except GavelError as error:
            raise _RunTimeError(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone away, which click ends quietly
            _drop_output()
            raise _RunTimeError(f"cannot write to standard output: {error.strerror or error}") from error


def _drop_output() -> None:
    """Let what could not be written go nowhere; Python would try again at its end and fail once more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _logged(level: int) -> Iterator[None]:
    """Within this, what gavel_py logs at this level or above goes to standard error."""
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
        context.with_resource(_logged(logging.DEBUG if verbose > 1 else logging.INFO))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 0, 1 (failure at run time) or 2 (wrong usage or input)."""
    _gavel(arguments, prog_name="gavel" if arguments is None else None)
    sys.exit(0)
