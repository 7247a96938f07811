"""The options that the commands on a Slurm cluster share, and the driver that is made from them.

Rules for job types come from options and from a CSV file: name,job_type,total_steps (`rules_in`).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import Common, Option, assignments, bundled, import_solver, policies_of, profile_of
from gavel_py.errors import decimal_hint


def rules_in(path: Path | None) -> tuple[gp.TypeRule, ...]:
    """Return the rules of the file in its order, none without a file. Raises `InputError`."""
    return () if path is None else gp.TypeRule.from_csv(path)


FILE = click.Path(path_type=Path)

DIRECTORY = click.Path(path_type=Path, file_okay=False)

SECONDS = click.FloatRange(0, 1e9, min_open=True)

NOT_NEGATIVE = click.FloatRange(0, 1e9)


@dataclass(frozen=True)
class Request:
    """What the options say, as typed."""

    partition: str
    policy: str | None
    settings: tuple[str, ...]
    constraint_files: tuple[Path, ...]
    profile: str | None
    store: Path | None
    renames: tuple[str, ...]
    prices: tuple[str, ...]
    types: Path | None
    type_of: tuple[str, ...]
    default_type: str | None
    default_steps: float | None
    progress: Path | None
    measured: str
    state: Path | None
    round_seconds: float
    restart_seconds: float
    min_run_seconds: float
    solve_seconds: float
    poll_seconds: float
    stop_seconds: float
    start_seconds: float
    timeout_seconds: float
    on_exit: Literal["leave", "release"]


def _seconds(name: str, field: str, default: float, help_text: str, *, least: click.FloatRange = SECONDS) -> Option:
    return click.option(name, field, type=least, default=default, show_default=True, metavar="S", help=help_text)


OPTIONS: tuple[Option, ...] = (
    click.option("--partition", required=True, metavar="NAME", help="The partition whose jobs are managed; no others are touched."),
    click.option("--policy", "-p", metavar="NAME[,OPTION=VALUE...]", help="Or package.module:Class [max_min_fairness]."),
    click.option("--set", "settings", multiple=True, metavar="OPTION=VALUE", help="Set an option of the policy."),
    click.option("--constraints", "constraint_files", multiple=True, type=FILE, metavar="FILE", help="What the policy must keep."),
    _seconds("--round", "round_seconds", 360.0, "Length of a round."),
    click.option("--profile", metavar="NAME|FILE", help="Speeds by job type [gavel-osdi20]."),
    click.option("--store", type=FILE, metavar="FILE", help="Where measured speeds go [profiles.sqlite in --state]."),
    click.option("--measured", default="slurm", show_default=True, metavar="NAME", help="The profile that gets measured speeds."),
    click.option("--map-accelerator", "renames", multiple=True, metavar="OLD=NEW", help="A GPU type in Slurm, and in the profile."),
    click.option("--price", "prices", multiple=True, metavar="TYPE=PRICE", help="Of one GPU-hour."),
    click.option("--types", type=FILE, metavar="FILE", help="A CSV of name,job_type,total_steps: types by patterns of job names."),
    click.option("--type-of", multiple=True, metavar="PATTERN=TYPE", help="The type of jobs whose name fits, as in bert*."),
    click.option("--default-type", metavar="TYPE", help="What jobs are taken for of which nothing is known."),
    click.option("--default-steps", type=SECONDS, metavar="N", help="Steps of jobs that tell none."),
    click.option("--progress", type=DIRECTORY, metavar="DIR", help="Where each job writes its steps, to a file named as its id."),
    click.option("--state", type=DIRECTORY, metavar="DIR", help="Where state, log, lock and measured speeds are kept."),
    _seconds("--restart-seconds", "restart_seconds", 0.0, "What a start costs a job.", least=NOT_NEGATIVE),
    _seconds("--min-run-seconds", "min_run_seconds", 0.0, "No preemption before.", least=NOT_NEGATIVE),
    _seconds("--solve-seconds", "solve_seconds", 0.0, "No other allocation before, if only jobs change.", least=NOT_NEGATIVE),
    _seconds("--timeout", "timeout_seconds", 60.0, "How long a command of Slurm may take."),
    _seconds("--poll", "poll_seconds", 30.0, "Time between two readings of the queue."),
    _seconds("--stop-seconds", "stop_seconds", 120.0, "How long jobs may take to stop."),
    _seconds("--start-seconds", "start_seconds", 60.0, "How long jobs may take to start."),
    click.option(
        "--on-exit",
        type=click.Choice(["leave", "release"]),
        default="leave",
        show_default=True,
        help="What becomes of jobs that wait on hold.",
    ),
)

plan_options = bundled(Request, OPTIONS)
"""Gives a command all of these, as one `Request`."""


def state_directory(request: Request) -> Path:
    """Return where the state is kept: where --state says, or in the user's own place for states."""
    from platformdirs import user_state_path

    return request.state or user_state_path("gavel-py") / "slurm" / request.partition


def store_of(request: Request) -> gp.ThroughputStore:
    """Return the store of measured speeds: --store, $GAVEL_PY_STORE, or else a file beside the state.

    A daemon's account often has no home directory, where the store of a person is.
    """
    named = request.store is not None or os.environ.get("GAVEL_PY_STORE")
    return gp.ThroughputStore(request.store if named else state_directory(request) / "profiles.sqlite")


def _profile(request: Request, own: gp.ThroughputStore) -> gp.ThroughputProfile:
    """Return the profile that --profile names: one that the driver has measured itself, or as for all commands."""
    if request.profile is not None:
        with contextlib.suppress(gp.InputError):
            return own.load(request.profile)
    profile = profile_of(_common(request))
    assert isinstance(profile, gp.ThroughputProfile)  # noqa: S101
    return profile


def driver_of(request: Request, clock: gp.WallClock | None = None) -> gp.SlurmDriver:
    """Return the driver that the options ask for; all that is slow to load is loaded."""
    policy = _policy(request)
    prices = {name: _price(name, price) for name, price in assignments(request.prices, "--price", "TYPE=PRICE").items()}
    types = assignments(request.type_of, "--type-of", "PATTERN=TYPE")
    settings = gp.SlurmSettings(
        partition=request.partition,
        accelerators=assignments(request.renames, "--map-accelerator", "OLD=NEW"),
        prices_per_hour=prices,
        type_rules=(*(gp.TypeRule(*pair) for pair in types.items()), *rules_in(request.types)),
        default_type=request.default_type,
        default_steps=request.default_steps,
        poll_seconds=request.poll_seconds,
        stop_seconds=request.stop_seconds,
        start_seconds=request.start_seconds,
        on_exit=request.on_exit,
    )
    store = store_of(request)
    profile = _profile(request, store)
    import_solver([policy])
    return gp.SlurmDriver(
        settings,
        profile,
        policy,
        directory=state_directory(request),
        progress=request.progress,
        store=store,
        measured=request.measured,
        commands=gp.SlurmCommands(request.timeout_seconds),
        clock=clock,
        round_seconds=request.round_seconds,
        restart_seconds=request.restart_seconds,
        min_run_seconds=request.min_run_seconds,
        solve_seconds=request.solve_seconds,
    )


def _policy(request: Request) -> gp.Policy:
    (policy,) = policies_of(_common(request))
    return policy


def _common(request: Request) -> Common:
    return Common(
        cluster="",
        profile=request.profile,
        throughputs=None,
        policy_specs=() if request.policy is None else (request.policy,),
        settings=request.settings,
        constraint_files=request.constraint_files,
        renames=(),
        store=request.store,
        allow_unknown_types=True,  # what there is in Slurm is not for its user to say
        round_seconds=request.round_seconds,
        form=None,
        out=None,
    )


def _price(name: str, text: str) -> float:
    hint = decimal_hint(text)
    try:
        return float("" if hint else text)
    except ValueError:
        raise click.UsageError(f"--price {name}={text!r} is not a number{hint}") from None
