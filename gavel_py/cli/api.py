"""gavel api: serve a session over HTTP, on a Unix socket or with tokens on a port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli import inputs
from gavel_py.cli.inputs import INPUT, Command, main_option, option, takes_options
from gavel_py.cli.step import SessionOptions
from gavel_py.cli.usage import refuse


@dataclass(frozen=True)
class ApiOptions(SessionOptions):
    """The options of this command, as typed."""

    # Not FILE, whose folder must exist: that of the state may be made later.
    socket: Path | None = main_option(
        "Output",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="PATH",
        help="Unix socket, for its owner only [DIR/api.sock].",
    )
    port: int | None = main_option(
        "Output", type=click.IntRange(0, 65_535), metavar="N", help="TCP port instead, 0 for any; needs --token-file."
    )
    address: str = option("Output", default="127.0.0.1", show_default=True, metavar="IP", help="Address of the port.")
    token_file: Path | None = main_option(
        "Output", type=INPUT, metavar="FILE", help="File of mode 600 with lines `read TOKEN` and `write TOKEN`."
    )


@click.command("api", cls=Command)
@takes_options(ApiOptions)
def command(request: ApiOptions) -> None:
    """Serve a session over HTTP until Ctrl-C or SIGTERM.

    The routes and events are on the page From another language, and in /openapi.json; in a browser, / shows the session. Events are
    on the disk before they are answered, so that the service may be killed and started again at any time.

    \b
    gavel api --state jobs.state --cluster v100:16,p100:8/4
    curl --unix-socket jobs.state/api.sock http://gavel/v1/rounds/current
    """
    refuse((request.socket is not None and request.port is not None, "--socket and --port are two ways to connect; give one"))
    with inputs.warnings_shown(), request.session() as session:
        inputs.import_solver([session.scheduler.policy])
        gp.serve_api(
            session,
            path=request.socket,
            port=request.port,
            address=request.address,
            token_file=request.token_file,
            ready=lambda place, _: click.echo(f"Listening on {place}", err=True),
        )
