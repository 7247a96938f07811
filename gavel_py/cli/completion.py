"""gavel completion: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    Put the output where the shell reads it:

    \b
    bash: eval "$(gavel completion bash)"     in ~/.bashrc
    zsh:  eval "$(gavel completion zsh)"      in ~/.zshrc
    fish: gavel completion fish > ~/.config/fish/completions/gavel.fish
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(completion(ctx.find_root().command, {}, "gavel", "_GAVEL_COMPLETE").source())
