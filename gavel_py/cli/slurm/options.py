"""The options that the commands on a Slurm cluster share, and the driver that they configure."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import gavel_py as gp
from gavel_py.cli.inputs import PATH, SECONDS, assignments, find_profile, import_solver, option, policies_of
from gavel_py.errors import decimal_hint

DIRECTORY = click.Path(path_type=Path, file_okay=False)


def _seconds(default: float, *, positive: bool = True) -> dict[str, Any]:
    """Return the settings of an option for a time in seconds."""
    return {"type": SECONDS if positive else click.FloatRange(0, 1e9), "default": default, "show_default": True, "metavar": "S"}


@dataclass(frozen=True)
class Request:
    """The options, as typed."""

    partition: str = option(required=True, metavar="NAME", help="The partition whose jobs are managed; no others are touched.")
    policy: str | None = option("-p", metavar="NAME[,OPTION=VALUE...]", help="Or package.module:Class [max_min_fairness].")
    settings: tuple[str, ...] = option("--set", metavar="OPTION=VALUE", help="Set an option of the policy.")
    constraint_files: tuple[Path, ...] = option("--constraints", type=PATH, metavar="FILE", help="What the policy must keep.")
    round_seconds: float = option("--round", **_seconds(360.0), help="Length of a round.")
    profile: str | None = option(metavar="NAME|FILE", help="Speeds by job type [gavel-osdi20].")
    store: Path | None = option(type=PATH, metavar="FILE", help="Where measured speeds go [profiles.sqlite in --state].")
    measured: str = option(default="slurm", show_default=True, metavar="NAME", help="The profile that gets measured speeds.")
    renames: tuple[str, ...] = option("--map-accelerator", metavar="OLD=NEW", help="A GPU type in Slurm, and in the profile.")
    prices: tuple[str, ...] = option("--price", metavar="TYPE=PRICE", help="Of one GPU-hour.")
    types: Path | None = option(
        type=PATH, metavar="FILE", help="A CSV of name,job_type,total_steps: types by patterns of job names."
    )
    type_of: tuple[str, ...] = option(metavar="PATTERN=TYPE", help="The type of jobs whose name fits, as in bert*.")
    default_type: str | None = option(metavar="TYPE", help="What jobs are taken for of which nothing is known.")
    default_steps: float | None = option(type=SECONDS, metavar="N", help="Steps of jobs that tell none.")
    progress: Path | None = option(
        type=DIRECTORY, metavar="DIR", help="Where each job writes its steps, to a file named as its id."
    )
    state: Path | None = option(type=DIRECTORY, metavar="DIR", help="Where state, log, lock and measured speeds are kept.")
    restart_seconds: float = option(**_seconds(0.0, positive=False), help="What a start costs a job.")
    min_run_seconds: float = option(**_seconds(0.0, positive=False), help="No preemption before.")
    solve_seconds: float = option(**_seconds(0.0, positive=False), help="No other allocation before, if only jobs change.")
    timeout_seconds: float = option("--timeout", **_seconds(60.0), help="How long a command of Slurm may take.")
    poll_seconds: float = option("--poll", **_seconds(30.0), help="Time between two readings of the queue.")
    stop_seconds: float = option(**_seconds(120.0), help="How long jobs may take to stop.")
    start_seconds: float = option(**_seconds(60.0), help="How long jobs may take to start.")
    on_exit: Literal["leave", "release"] = option(
        default="leave", show_default=True, help="What becomes of jobs that wait on hold."
    )


def state_directory(request: Request) -> Path:
    """Return the directory of --state, by default in the user's state directory."""
    from platformdirs import user_state_path

    return request.state or user_state_path("gavel-py") / "slurm" / request.partition


SETTINGS = ("default_type", "default_steps", "poll_seconds", "stop_seconds", "start_seconds", "on_exit")
ROUNDS = ("round_seconds", "restart_seconds", "min_run_seconds", "solve_seconds")
"""Options that are arguments of `SlurmSettings` and of `RoundScheduler` by the same names."""


def driver_of(request: Request, clock: gp.WallClock | None = None) -> gp.SlurmDriver:
    """Return the driver with the given options. The solver is imported, so that the first round does not wait for it."""
    specs = () if request.policy is None else (request.policy,)
    (policy,) = policies_of(specs, request.settings, request.constraint_files)
    prices = {name: _price(name, price) for name, price in assignments(request.prices, "--price", "TYPE=PRICE").items()}
    types = assignments(request.type_of, "--type-of", "PATTERN=TYPE")
    renames = assignments(request.renames, "--map-accelerator", "OLD=NEW")
    rules = () if request.types is None else gp.TypeRule.from_csv(request.types)
    settings = gp.SlurmSettings(
        partition=request.partition,
        accelerators=renames,
        prices_per_hour=prices,
        type_rules=(*(gp.TypeRule(*pair) for pair in types.items()), *rules),
        **{name: getattr(request, name) for name in SETTINGS},
    )
    # Not in the user's data directory by default, since the account of a daemon often has no home directory.
    is_named = request.store is not None or os.environ.get("GAVEL_PY_STORE")
    store = gp.ThroughputStore(request.store if is_named else state_directory(request) / "profiles.sqlite")
    profile = None
    if request.profile is not None:
        with contextlib.suppress(gp.InputError):
            profile = store.load(request.profile)  # of measured throughputs
    profile = profile or find_profile(request.profile, request.store)
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
        **{name: getattr(request, name) for name in ROUNDS},
    )


def _price(name: str, text: str) -> float:
    hint = decimal_hint(text)
    try:
        return float("" if hint else text)
    except ValueError:
        raise click.UsageError(f"--price {name}={text!r} is not a number{hint}") from None
