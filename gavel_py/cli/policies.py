"""gavel policies: which there are, and what each does."""

from __future__ import annotations

import inspect
import json

import click

import gavel_py as gp
from gavel_py.cli.output import table_text

__all__ = ["command"]


@click.group("policies", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the policies; `gavel policies show NAME` explains one."""
    if ctx.invoked_subcommand is not None:
        return
    classes = {name: gp.policy_class(name) for name in gp.policy_names()}
    if as_json:
        click.echo(json.dumps([_document(name, cls) for name, cls in classes.items()], indent=2))
        return
    rows = ([name, _family(cls), ", ".join(gp.policy_options(cls)), _first_line(cls)] for name, cls in classes.items())
    click.echo(table_text("", ["policy", "family", "options", "what it does"], rows, text_columns=4), nl=False)


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Explain one policy: its formula, its source and its options."""
    cls = gp.policy_class(name)
    click.echo(f"{name} ({_family(cls)} family)\n\n{inspect.getdoc(cls)}\n\nOptions (--set OPTION=VALUE):")
    for option in gp.policy_options(cls).values():
        click.echo(f"  {option.name} = {_shown(option.default)}: {option.help}")


def _family(cls: type[gp.Policy]) -> str:
    families = {gp.OrderedPolicy: "ordered", gp.SumPolicy: "sum", gp.DemandPolicy: "demand"}
    return next(word for family, word in families.items() if issubclass(cls, family))


def _first_line(cls: type[gp.Policy]) -> str:
    return (inspect.getdoc(cls) or "").split("\n")[0]


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool | None) else str(default)


def _document(name: str, cls: type[gp.Policy]) -> dict[str, object]:
    options = {option.name: {"default": option.default, "help": option.help} for option in gp.policy_options(cls).values()}
    return {"name": name, "family": _family(cls), "description": inspect.getdoc(cls), "options": options}
