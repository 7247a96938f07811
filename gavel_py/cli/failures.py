"""How commands fail: with a message on standard error or, with --json, with a list of faults on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from gavel_py.cli.files import with_names
from gavel_py.errors import Fault, InputError

__all__ = ["RunTimeFailure", "UserFailure", "faults_as_json"]


class RunTimeFailure(click.ClickException):
    """A failure that the user cannot correct in the input."""

    exit_code = 1


class UserFailure(click.ClickException):
    """A mistake in the input; that of the command line is click's own."""

    exit_code = 2


class _ListedFailure(click.ClickException):
    """A failure that is shown as the list of its faults."""

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.message)
        vars(self)["exit_code"], cause = error.exit_code, error.__cause__
        self.faults = cause.faults if isinstance(cause, InputError) else (Fault("", "", error.format_message()),)

    def show(self, file: IO[Any] | None = None) -> None:
        from gavel_py.cli.output import SCHEMA_VERSION

        faults = [{name: with_names(value) for name, value in vars(each).items()} for each in self.faults]
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "faults": faults}, indent=2), file)


@contextmanager
def faults_as_json(ctx: click.Context) -> Iterator[None]:
    """Show a failure of the block as JSON if the command has the option --json; ctx: that of `gavel`."""
    # The subcommand and its words: click has renamed the attribute between 8.1 and 8.2.
    typed = {word for name, words in vars(ctx).items() if name in ("args", "protected_args", "_protected_args") for word in words}
    try:
        yield
    except click.ClickException as error:
        if "--json" not in typed:
            raise
        raise _ListedFailure(error) from error
