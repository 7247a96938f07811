"""A group of commands of which each is imported when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]


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
        command: click.Command = importlib.import_module(f"{self._package}.{self._modules[name]}").command
        return command
