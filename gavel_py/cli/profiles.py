"""gavel profiles: list, show, import, export and delete throughput profiles."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli import Group
from gavel_py.cli.inputs import FILE, INPUT, JSON, STORE
from gavel_py.cli.output import emit, gang_text, json_text, number
from gavel_py.cli.standard_input import NAME, with_names
from gavel_py.cli.tables import Column, table_text, wrapped

MEMORY = "GB/GPU"
"""Column of the GPU memory of a gang on each GPU; the largest figure where a row stands for several accelerators."""


@click.group("profiles", cls=Group)
@click.option("--store", **STORE)
@click.pass_context
def command(ctx: click.Context, store: Path | None) -> None:
    """List, show, import and export throughput profiles.

    A profile has the steps/s of each job type and gang size on each accelerator.
    """
    ctx.obj = gp.ThroughputStore(store)


@command.command("list")
@click.option("--json", "as_json", **JSON)
@click.pass_obj
def list_profiles(store: gp.ThroughputStore, as_json: bool) -> None:
    """List the profiles that --profile can name."""
    summaries = store.summaries()
    if as_json:
        emit(json_text([dataclasses.asdict(summary) for summary in summaries]), None)
        return
    rows = []
    for each in summaries:
        sizes, accelerators = ", ".join(map(gang_text, each.gang_sizes)), ", ".join(each.accelerators)
        rows.append([each.name, "built-in" if each.builtin else "stored", str(len(each.job_types)), sizes, accelerators])
    emit(table_text("", ["profile", "kept", "job types", "gang sizes", "accelerators"], rows, text_columns=5), None)


@command.command("show")
@click.argument("name")
@click.option("--job-type", metavar="TYPE", help="Show everything about this job type, pairs included.")
@click.pass_obj
def show(store: gp.ThroughputStore, name: str, job_type: str | None) -> None:
    """Show the throughputs of a profile.

    A row for each job type and gang size, with the steps/s on each accelerator, the gang on as few nodes as possible.
    """
    profile = store.load(name)
    if job_type is not None:
        emit(_job_type_text(profile, job_type), None)
        return
    emit(_profile_text(profile), None)
    notes = (profile.description, f"Licence: {profile.licence}" if profile.licence else "", profile.url)
    emit(wrapped([note for note in notes if note] or ["No description."], indent=""), None)


def _profile_text(profile: gp.ThroughputProfile) -> str:
    measured = {(each, row.num_gpus) for row in profile.rows for each in (row.job_type, row.partner_job_type)}
    gangs = [(job_type, size) for job_type in profile.job_types for size in profile.gang_sizes if (job_type, size) in measured]
    rows = []
    for gang in gangs:
        speeds = [profile.throughput(*gang, name) if profile.has(*gang, name) else None for name in profile.accelerators]
        if any(speed is not None for speed in speeds):
            memory = [profile.gpu_memory_gb(*gang, accelerator) for accelerator in profile.accelerators]
            cells = [_cell(value) for value in (max(filter(None, memory), default=None), *speeds)]
            rows.append([gang[0], gang_text(gang[1]), *cells])
    columns, rows = _without_empty(["job type", "GPUs", MEMORY, *profile.accelerators], rows, 2)
    return table_text(f"{profile.name}: steps/s of the whole gang", columns, rows)


def _without_empty(columns: list[str], rows: list[list[str]], at: int) -> tuple[list[str], list[list[str]]]:
    """Return the table without the column with index `at` if that is empty."""
    if any(row[at] for row in rows):
        return columns, rows
    return columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def _cell(value: float | None) -> str:
    return "" if value is None else number(value)


def _job_type_text(profile: gp.ThroughputProfile, job_type: str) -> str:
    found = [m for m in profile.measurements if job_type in (m.job_type, m.partner_job_type)]
    if not found:
        profile.throughput(job_type, 1, profile.accelerators[0])  # raises an error with the nearest names
    rows = []
    for m in found:
        own, other = (m.steps_per_second, m.partner_job_type)
        if m.job_type != job_type:
            own, other = m.partner_steps_per_second or 0.0, m.job_type
        rows.append([m.accelerator, m.placement, other or "", m.source, gang_text(m.num_gpus), _cell(m.gpu_memory_gb), number(own)])
    columns, rows = _without_empty(["accelerator", "placement", "shared with", "source", "GPUs", MEMORY, "steps/s"], rows, 5)
    first = [Column("accelerator", "name"), Column("placement", "text"), Column("shared with", "name"), Column("source", "name", 1)]
    return table_text(job_type, [*first, *columns[4:]], rows)


@command.command("import")
@click.argument("file", type=INPUT)
@click.option("--name", metavar="NAME", help="Name of the profile [that of the file].")
@click.option("--replace", is_flag=True, help="Overwrite a stored profile of the same name.")
@click.pass_obj
def import_profile(store: gp.ThroughputStore, file: Path, name: str | None, replace: bool) -> None:
    """Store a profile from a file, so that --profile can name it.

    FILE is a profile as CSV or Gavel's throughputs as JSON.
    """
    if name is None and with_names(str(file)) == NAME:
        raise click.UsageError("a profile from standard input has no name; add --name NAME")
    profile = gp.ThroughputProfile.from_file(file, name)
    store.save(profile, replace=replace)
    emit(f"Stored {profile!r} in {store.path}", None)


@command.command("export")
@click.argument("name")
@click.option("--out", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")
@click.pass_obj
def export(store: gp.ThroughputStore, name: str, out: Path | None) -> None:
    """Write a profile as CSV."""
    buffer = io.StringIO()
    store.load(name).to_csv(buffer)
    emit(buffer.getvalue(), out)


@command.command("delete")
@click.argument("name")
@click.pass_obj
def delete(store: gp.ThroughputStore, name: str) -> None:
    """Remove a stored profile."""
    store.delete(name)
    emit(f"Removed {name!r} from {store.path}", None)
