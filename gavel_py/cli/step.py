"""gavel step: apply events to a session in a folder, and print the answers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import inputs
from gavel_py.cli.inputs import (
    DIRECTORY,
    FILE,
    INPUT,
    INPUT_OR_TEXT,
    Command,
    argument,
    declared_options,
    main_option,
    option,
    takes_options,
)
from gavel_py.cli.output import emit
from gavel_py.cli.usage import refuse
from gavel_py.errors import faults_from

REFUSED, FAILED = 2, 1
"""Exit codes: an event was refused; one failed for no fault of its own, such as a full disk."""

SERVER_FAULTS = 500
"""Codes of refusals from here on are no fault of the caller."""


@dataclass(frozen=True)
class SessionOptions(inputs.Common):
    """Options of a session, as typed. Those of the cluster, the policy and the rounds are for a new one."""

    state: Path = main_option(
        "Run",
        required=True,
        type=DIRECTORY,
        metavar="DIR",
        help="Folder of log and snapshot, for its owner only; made if it is new.",
    )
    cluster: str | None = main_option(  # type: ignore[assignment]
        "Input",
        "-c",
        type=INPUT_OR_TEXT,
        metavar="FILE|SPEC",
        help="For a new session: YAML or JSON file, CSV node list, or GPUs as in v100:16,p100:8/4.",
    )
    policy_specs: tuple[str, ...] = main_option("Policy", "--policy", "-p", **inputs.ONE_POLICY)
    given_options: dict[str, Any] = declared_options("slurm", main=("round_seconds",))
    extrapolate: bool = option("--extrapolate", hidden=True)

    def session(self) -> gp.Session:
        """Return the session in the folder, a new one with the given options if there is none."""
        refuse(
            (self.extrapolate, "--extrapolate needs all jobs at the start, and those of a session come later; leave it out"),
            (self.cluster is None and (self.policy_specs or self.given_options), "options of a new session need --cluster"),
        )
        profile = inputs.profile_of(self)
        return gp.Session(self.state, profile, None if self.cluster is None else lambda: self._created(profile))

    def _created(self, profile: gp.Profile) -> gp.RoundScheduler:
        policy, *others = inputs.policies_of(self.policy_specs, self.settings, self.constraint_files)
        refuse((others, "a session has one --policy at a time"))
        allowed = self.allow_unknown_types
        return gp.RoundScheduler(inputs.cluster_of(self), profile, policy, options=self.rounds, allow_unknown_types=allowed)


@dataclass(frozen=True)
class StepOptions(SessionOptions):
    """The options of this command, as typed."""

    events_file: Path = argument("[EVENTS]", type=INPUT, default="-")
    out: Path | None = main_option("Output", "-o", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")


@click.command("step", cls=Command)
@takes_options(StepOptions)
def command(request: StepOptions) -> None:
    """Apply events to a session, and print an answer to each.

    EVENTS has one JSON object a line; without it, or for "-", they are read from standard input. An event with the id of an
    earlier one is answered again, and not applied again. Exits with 2 if an event was refused, after all others were applied.

    \b
    gavel step --state jobs.state --cluster v100:16,p100:8/4 events.ndjson
    echo '{"id": "r1", "event": "round"}' | gavel step --state jobs.state
    """
    with faults_from(str(request.events_file), "cannot be read", OSError, UnicodeDecodeError):
        text = request.events_file.read_text(encoding="utf-8")
    with inputs.warnings_shown(), request.session() as session:
        answers = session.apply_lines(text, str(request.events_file))
        head = {"schema_version": session.schema_version}
        emit("".join(f"{json.dumps(head | each)}\n" for each in answers), request.out)
        session.checkpoint()
    codes = [each["code"] for each in answers if each["status"] == "refused"]
    if codes:
        sys.exit(FAILED if max(codes) >= SERVER_FAULTS else REFUSED)
