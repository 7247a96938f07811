"""A group of commands of which each is imported when it is needed."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click

from gavel_py.errors import decimal_hint

__all__ = ["LazyGroup"]


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
