"""gavel slurm status and plan: a Slurm cluster as the driver sees it, and its next round; options and output shared with `run`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli import estimates, inputs
from gavel_py.cli.inputs import (
    DECLARED,
    DIRECTORY,
    INPUT,
    JSON,
    PROFILE,
    SECONDS,
    Command,
    InRounds,
    assignments,
    declared_options,
    main_option,
    option,
    takes_options,
    warnings_shown,
)
from gavel_py.cli.output import counted, emit, json_text, number
from gavel_py.cli.slurm.queue import gpus_text
from gavel_py.cli.tables import Column, folded_names, table_text
from gavel_py.errors import decimal_hint

LEARN = "Learn speeds from running jobs, and estimate all others; SHARE of the GPUs measures [optimistic]."

SETTINGS = DECLARED["slurm settings"]
"""The options that are settings of the driver."""


@dataclass(frozen=True)
class DriverOptions(InRounds):
    """The options, as typed."""

    partition: str = main_option(
        "Input", required=True, metavar="NAMES", help="Partitions whose jobs are managed, as in gpu,gpu-long; no others."
    )
    policy: str | None = main_option(
        "Policy", "-p", metavar="NAME[,OPTION=VALUE...]", help="Policy, or package.module:Class [max_min_fairness]."
    )
    policy_settings: tuple[str, ...] = option("Policy", "--set", metavar="OPTION=VALUE", help="Set an option of the policy.")
    constraint_files: tuple[Path, ...] = main_option(
        "Policy", "--constraints", type=INPUT, metavar="FILE", help="Constraints that the policy must keep."
    )
    given_options: dict[str, Any] = declared_options("slurm", main=("round_seconds",), round_seconds="--round")
    profile: str | None = main_option("Input", **PROFILE, help="Profile of speeds by job type [gavel-osdi20].")
    estimate: str | None = option("Input", **estimates.ESTIMATE)
    confidence: estimates.Confidence = option("Input", **estimates.CONFIDENCE)
    extrapolate: bool = option("Input", help="Estimate the throughputs of gangs that the profile lacks: always done here.")
    learn: estimates.Explore | None = main_option("Input", **estimates.learn_option(LEARN))
    store: str | None = option("Input", metavar="FILE|URL", help="Store of measured speeds [profiles.sqlite in --state].")
    types: Path | None = main_option(
        "Jobs", type=INPUT, metavar="FILE", help="CSV of name,job_type,total_steps: job types by patterns of job names."
    )
    type_of: tuple[str, ...] = option("Jobs", metavar="PATTERN=TYPE", help="Job type of jobs whose name matches, as in bert*=TYPE.")
    state: Path | None = main_option(
        "Run",
        type=DIRECTORY,
        metavar="DIR",
        help="Directory of state, log, lock and measured speeds [~/.local/state/gavel-py/slurm/PARTITION].",
    )
    timeout_seconds: float = option(
        "Run", "--timeout", type=SECONDS, default=60.0, show_default=True, metavar="S", help="Time limit of a Slurm command."
    )
    given_settings: dict[str, Any] = declared_options("slurm settings", main=("tenants_from_slurm",))

    def settings(self) -> gp.SlurmSettings:
        """Return the settings of the driver."""
        given: dict[str, Any] = {
            name: _mapping(name, value) if "numbers" in SETTINGS[name] else value for name, value in self.given_settings.items()
        }
        types = assignments(self.type_of, "--type-of", "PATTERN=TYPE")
        rules = () if self.types is None else gp.TypeRule.from_csv(self.types)
        return gp.SlurmSettings(self.partition, type_rules=(*(gp.TypeRule(*pair) for pair in types.items()), *rules), **given)


def _mapping(name: str, texts: Iterable[str]) -> dict[str, Any]:
    """Return a setting from the texts of its option, NAME=VALUE."""
    declared = SETTINGS[name]
    (flag,) = declared["names"]
    found = assignments(texts, flag, declared["option"]["metavar"])
    return {key: _number(key, text, flag) if declared["numbers"] else text for key, text in found.items()}


def _number(name: str, text: str, option: str) -> float:
    hint = decimal_hint(text)
    try:
        return float("" if hint else text)
    except ValueError:
        raise click.UsageError(f"{option} {name}={text!r} is not a number{hint}") from None


def state_directory(request: DriverOptions, *, shadow: bool = False) -> Path | None:
    """Return the directory of --state, by default in the user's state directory; None for an account without a home."""
    from platformdirs import user_state_path

    if request.state is not None:
        return request.state
    try:
        names = ",".join(sorted(name.strip() for name in request.partition.split(",")))
        return user_state_path("gavel-py") / "slurm" / f"{names}{'.shadow' if shadow else ''}"
    except RuntimeError:
        return None


def driver_of(request: DriverOptions, clock: gp.WallClock | None = None, *, shadow: bool = False) -> gp.SlurmDriver:
    """Return the driver, or its shadow, with the given options. The solver is imported, so that no round waits for it."""
    settings = request.settings()
    specs = (request.policy,) if request.policy is not None else ("hierarchical",) if settings.tenants_from_slurm else ()
    (policy,) = inputs.policies_of(specs, request.policy_settings, request.constraint_files)
    # By default not in the user's data directory, since the account of a daemon often has no home directory.
    is_named = request.store is not None or os.environ.get("GAVEL_PY_STORE")
    directory = state_directory(request, shadow=shadow)
    path = request.store if is_named or directory is None else directory / "profiles.sqlite"
    store = gp.ThroughputStore(path) if is_named or directory is not None else None
    profile = None
    if request.profile is not None and store is not None:
        with suppress(gp.InputError):
            profile = store.load(request.profile)  # a profile of measured throughputs
    profile = profile or inputs.find_profile(request.profile, request.store)
    estimates.check_options(request.estimate, request.confidence)
    if request.learn is not None and request.estimate is not None:
        raise click.UsageError("--learn estimates speeds that are not known; omit --estimate")
    if request.estimate is not None:
        profile = profile.with_estimates(request.estimate, confidence=request.confidence)
    inputs.import_solver([policy])
    common: dict[str, Any] = {"options": request.rounds, "directory": directory, "clock": clock}
    common["commands"] = gp.SlurmCommands(request.timeout_seconds)
    if shadow:
        return gp.SlurmShadow(settings, profile, policy, **common)
    speeds = profile if request.learn is None else estimates.learner(profile, request.learn, store, settings.measured)
    return gp.SlurmDriver(settings, speeds, policy, store=store, **common)


@click.command("status", cls=Command)
@takes_options(DriverOptions)
@click.option("--json", "as_json", **JSON)
def status(request: DriverOptions, as_json: bool) -> None:
    """Show nodes and jobs as the driver sees them.

    Shows which jobs are managed and as which job type, and which are left alone and why.
    """
    with warnings_shown():
        picture = driver_of(request).look()
    emit(json_text(status_document(picture)) if as_json else status_text(picture), None)


@click.command("plan", cls=Command)
@takes_options(DriverOptions)
@click.option("--json", "as_json", **JSON)
def plan(request: DriverOptions, as_json: bool) -> None:
    """Show what the next round would do, and why. Nothing is changed, and nothing is written."""
    with warnings_shown():
        decided = driver_of(request).plan()
    emit(json_text(plan_document(decided)) if as_json else plan_text(decided), None)


def status_document(picture: gp.SlurmPicture) -> dict[str, Any]:
    """Return the observed cluster as plain data."""
    return {"nodes": _nodes(picture), "jobs": _jobs(picture), "notes": list(picture.notes)}


COUNTS = ("gpus", "managed", "others")


def status_text(picture: gp.SlurmPicture) -> str:
    """Return the observed cluster as tables of nodes (by type and state) and jobs, with notes."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    several = len(picture.state.partitions) > 1
    for node in _nodes(picture):
        key = (node["accelerator"], *([",".join(node["partitions"])] if several else []), node["state"])
        groups.setdefault(key, []).append(node)
    nodes = [
        [" ".join(folded_names(node["node"] for node in group)), *key, *(str(sum(node[name] for node in group)) for name in COUNTS)]
        for key, group in groups.items()
    ]
    jobs = [
        [
            *(job["job"], job["user"], job["job_type"] or "-", _place_text(held) or job["where"], job["role"]),
            *(gpus_text(job["gpus"], job["gpu_counts"], runs=bool(held)), number(job["steps_done"]), number(job["total_steps"])),
        ]
        for job, held in ((each, picture.snapshot.jobs[each["job"]].held) for each in _jobs(picture))
    ]
    heads: list[str | Column] = ["GPU type", *([Column("partitions", "prose")] if several else [])]
    columns = [Column("job", "name"), Column("user", "name", 2), Column("type", "name"), Column("where", "prose")]
    columns += [Column("standing", "prose"), Column("GPUs"), Column("steps", optional=1), Column("of", optional=1)]
    parts = [
        table_text("Nodes", [Column("nodes", "prose"), *heads, "state", "GPUs", "managed", "others"], nodes, 2 + len(heads)),
        table_text("Jobs", columns, jobs) if jobs else "No jobs.\n",
        *(f"{note}\n" for note in picture.notes),
    ]
    return "\n".join(parts)


def plan_document(decided: gp.SlurmDecided) -> dict[str, Any]:
    """Return a plan as plain data."""
    moves = decided.moves
    return {
        "round": decided.begun.index,
        "start_seconds": decided.begun.start_seconds,
        **{name: list(getattr(moves, name)) for name in ("keep", "stop", "bind")},
        "start": {job_id: dict(target) for job_id, target in moves.start.items()},
        "cannot": dict(moves.cannot),
        "release": list(moves.give_back),
        "waiting": decided.waiting,
        "jobs": _jobs(decided.picture),
        "notes": [*decided.picture.notes, *decided.begun.notes],
    }


def plan_text(decided: gp.SlurmDecided) -> str:
    """Return a plan as a table with the action for each job, its place, and the reason if it waits."""
    moves, state = decided.moves, decided.picture.state
    rows = []
    for job_id, where in ((job_id, moves.start.get(job_id)) for job_id in sorted(state.tracked, key=_order)):
        action = "start" if where else "keep" if job_id in moves.keep else "stop" if job_id in moves.stop else "wait"
        action = "warn" if job_id in state.warned and job_id in moves.keep else action
        if where and job_id in moves.stop:
            action = "move"
        if job_id in state.unplanned:
            action = "leave"
        place = _place_text(where or (state.tracked[job_id].held if action in {"keep", "leave", "warn"} else {}))
        rows.append([job_id, state.tracked[job_id].job_type, action, place, decided.waiting.get(job_id, "")])
    others = [f"{job_id}: {why}" for job_id, why in decided.picture.left_alone.items() if job_id not in state.tracked]
    head = f"Round {decided.begun.index}: {_counts(decided)}"
    columns = [Column("job", "name"), Column("type", "name", 1), Column("what", "text")]
    columns += [Column("where", "prose"), Column("why it waits", "prose")]
    table = table_text(head, columns, rows) if rows else f"{head}\n"
    unplanned = ["\nNot planned:\n" + "\n".join(f"  {line}" for line in others) + "\n"] if others else []
    return "".join([table, *unplanned, *(f"{note}\n" for note in (*decided.picture.notes, *decided.begun.notes))])


def applied_text(decided: gp.SlurmDecided, applied: gp.SlurmApplied) -> str:
    """Return a line on a round, and a line for each deviation from the decision."""
    lines = [f"Round {decided.begun.index}: {_counts(decided)}; {counted(len(applied.started), 'start')} as decided."]
    lines += [f"  {note}" for note in decided.begun.notes]
    lines += [f"  {job_id} runs on {_place_text(held)}, not as decided" for job_id, held in applied.elsewhere.items()]
    lines += [f"  {job_id} did not start: {why}" for job_id, why in applied.waiting.items()]
    lines += [f"  {job_id} did not stop in time" for job_id in applied.lingering]
    lines += [f"  {job_id} is left to Slurm: {why}" for job_id, why in decided.picture.state.unplanned.items()]
    lines += [f"  Slurm reported: {text}" for text in applied.errors]
    return "\n".join(lines) + "\n"


def _counts(decided: gp.SlurmDecided) -> str:
    moves = decided.moves
    return f"{len(moves.keep)} kept, {len(moves.stop)} stopped, {len(moves.start)} to start"


def _nodes(picture: gp.SlurmPicture) -> list[dict[str, Any]]:
    scheduler, state = picture.state.scheduler, picture.state
    others, managed = picture.used_by_others, dict.fromkeys(scheduler.nodes, 0)
    types = dict(zip(scheduler.cluster.accelerator_names, scheduler.cluster.profile_names, strict=True))
    for tracked in state.tracked.values():
        for node, gpus in tracked.held.items():
            managed[node] = managed.get(node, 0) + gpus
    return [
        {
            "node": node.name,
            "accelerator": types[node.accelerator],
            "partitions": picture.partitions_of(node.name),
            "gpus": node.num_gpus,
            "managed": managed[node.name],
            "others": others.get(node.name, 0),
            "state": str(scheduler.nodes[node.name]),
        }
        for node in scheduler.cluster.nodes
    ]


def _jobs(picture: gp.SlurmPicture) -> list[dict[str, Any]]:
    found = []
    for job_id in sorted(picture.standings, key=_order):
        tracked, standing = picture.state.tracked.get(job_id), picture.standing_of(job_id)
        job = picture.snapshot.jobs[job_id]
        found.append(
            {
                "job": job_id,
                "user": picture.shown(job.user),
                "name": picture.shown(job.name),
                "job_type": None if tracked is None else tracked.job_type,
                "gpus": job.num_gpus,
                "gpu_counts": [] if tracked is None else sorted(tracked.offered),
                "steps_done": None if tracked is None else tracked.steps_done,
                "total_steps": None if tracked is None else tracked.total_steps,
                "where": _place(job.held) or str(job.phase),
                "role": f"{standing.role}: {standing.why}" if standing.why else str(standing.role),
            }
        )
    return found


def _place(held: Mapping[str, int] | None) -> str:
    return " ".join(f"{node}:{gpus}" for node, gpus in (held or {}).items())


def _place_text(held: Mapping[str, int] | None) -> str:
    """Return the nodes of a job and its GPUs on each; nodes with the same number are grouped."""
    nodes: dict[int, list[str]] = {}
    for node, gpus in (held or {}).items():
        nodes.setdefault(gpus, []).append(node)
    return " ".join(f"{name}:{gpus}" for gpus, names in nodes.items() for name in folded_names(names))


def _order(job_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in job_id.split("_"))
