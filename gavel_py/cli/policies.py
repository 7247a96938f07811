"""gavel policies: list the policies, or describe one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator

import click

import gavel_py as gp
from gavel_py.cli import Group
from gavel_py.cli.inputs import JSON, find_policy, warnings_shown
from gavel_py.cli.output import json_text
from gavel_py.cli.tables import Column, table_text, wrapped


@click.group("policies", cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", **JSON)
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the policies; `gavel policies show NAME` explains one."""
    if ctx.invoked_subcommand is not None:
        return
    with warnings_shown():
        classes = dict(_usable(gp.policy_names()))
        sources = {name: gp.policy_source(name) for name in classes}
    if as_json:
        documents = [_document(name, cls, sources[name]) for name, cls in classes.items()]
        click.echo(json_text(documents))
        return
    columns = [Column("policy", "text"), Column("what it does", "prose")]
    rows = [[name, (inspect.getdoc(cls) or "").partition("\n")[0]] for name, cls in classes.items()]
    if len(set(sources.values())) > 1:
        columns.append(Column("from", "text"))
        for row in rows:
            row.append(sources[row[0]])
    click.echo(table_text("", columns, rows) + "\nFormula and options of a policy: gavel policies show NAME")


def _usable(names: Iterable[str]) -> Iterator[tuple[str, type[gp.Policy]]]:
    """Yield (name, class) of the policies that can be imported; warn about each of the others."""
    for name in names:
        try:
            cls = gp.policy_class(name)
            gp.policy_options(cls)
            yield name, cls
        except gp.InputError as error:
            warnings.warn(gp.GavelWarning(str(error)), stacklevel=2)


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Explain a policy: its formula, source and options.

    NAME may also be package.module:Class.
    """
    with warnings_shown():
        cls, source = find_policy(name), gp.policy_source(name)
    own = "" if source == "gavel_py" else f", from {source}"
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    lines = [line for paragraph in paragraphs for line in (*_lines(paragraph), "")]
    click.echo(f"{name} ({cls.family} family{own})\n\n{wrapped(lines, indent='')}Options (--set OPTION=VALUE):")
    for option in gp.policy_options(cls).values():
        default = "(required)" if option.required else _shown(option.default)
        click.echo(wrapped([f"  {option.name} = {default}: {option.help}"], indent="    "), nl=False)


def _lines(paragraph: str) -> list[str]:
    """Return the lines of a paragraph of a docstring, joined up to the end of a sentence or to an indented line."""
    lines: list[str] = []
    for line in paragraph.splitlines():
        if lines and not line.startswith(" ") and not lines[-1].startswith(" ") and not lines[-1].endswith((".", ":")):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ":".join(map(_shown, default)) or "none"
    return str(default).lower() if isinstance(default, bool | None) else str(default)


def _document(name: str, cls: type[gp.Policy], source: str) -> dict[str, object]:
    options = {
        option.name: {"default": None if option.required else option.default, "required": option.required, "help": option.help}
        for option in gp.policy_options(cls).values()
    }
    return {"name": name, "from": source, "family": cls.family, "description": inspect.getdoc(cls), "options": options}
