"""gavel profiles: list, show, import, export and delete throughput profiles."""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.files import NAME, with_names
from gavel_py.cli.inputs import FILE, INPUT, INPUT_OR_TEXT, JSON, warnings_shown
from gavel_py.cli.output import counted, emit, gang_text, json_text, number
from gavel_py.cli.tables import Column, listed, table_text, wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import Fault

SACCT = "sacct"

NAME_OR_FILE: Mapping[str, Any] = {"metavar": "NAME|FILE[+...]", "type": INPUT_OR_TEXT}

MAX_SIZES = 5
"""Maximum number of gang sizes that a list shows in full."""

ACCELERATORS_ROOM = 22
"""Width in characters of the accelerators in the list of profiles."""

MAX_SOURCES = 3

MAX_WARNINGS = 10
"""Maximum number of contradictory figures for each of which an import issues a warning."""

MEMORY = "GB/GPU"
"""Column of the memory of a gang on each GPU; the largest figure if a row stands for several accelerators."""


@click.command("list")
@click.option("--json", "as_json", **JSON)
@click.pass_obj
def list_profiles(store: gp.ThroughputStore, as_json: bool) -> None:
    """List the profiles that --profile can name.

    Measured: how many of the combinations of job type and accelerator have a throughput. If a profile has several units, show
    names that of each job type.
    """
    summaries = store.summaries()
    if as_json:
        emit(json_text([dataclasses.asdict(summary) for summary in summaries]), None)
        return
    rows = []
    for each in summaries:
        accelerators = listed(each.accelerators, ACCELERATORS_ROOM)
        kept = "built-in" if each.builtin else "stored"
        units = ", ".join(each.units) if len(each.units) < 2 else counted(len(each.units), "unit")
        rows.append([each.name, kept, str(each.coverage), units, _sizes(each.gang_sizes), accelerators])
    columns = [Column("profile", "name"), Column("kept", "text"), Column("measured", "text"), Column("unit", "text")]
    emit(table_text("", [*columns, Column("GPUs", "text", optional=1), Column("accelerators", "text")], rows), None)


def _sizes(sizes: Sequence[float]) -> str:
    """Return gang sizes as text; of many, only the smallest and the largest."""
    names = [gang_text(size) for size in sizes]
    return ", ".join(names) if len(names) <= MAX_SIZES else f"{names[0]} to {names[-1]}"


MAX_FOUND = 10
"""Maximum number of job types that a search lists without --all."""


@click.command("find")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--all", "every", is_flag=True, help=f"List all matches, not only the first {MAX_FOUND}.")
@click.option("--json", "as_json", **JSON)
@click.pass_obj
def find(store: gp.ThroughputStore, words: Sequence[str], every: bool, as_json: bool) -> None:
    """Find models in all profiles by words.

    Job types, gang sizes and accelerators of the built-in and stored profiles, those with the most of the words first, earlier
    words before later ones. A word is that of a job type, accelerator or profile, or the beginning of one; job types without any
    of the words are listed only if no job type has one.

    \b
    gavel profiles find llama 7b
    gavel profiles find resnet h100
    gavel profiles find gh200
    """
    wanted = [part for word in words for part in _parts(word)]
    matches = [match for name in store.names() for match in _matches(store.find(name), wanted)]
    found = [row for row in matches if any(part.startswith(tuple(wanted)) for part in _parts(row["job_type"]))] or matches
    found.sort(key=lambda row: (-sum(row["scores"]), [-score for score in row["scores"]], len(row["job_type"])))
    refuse((not found, f"no profile has any of the words {' '.join(words)}; gavel profiles list names all profiles"))
    if as_json:
        emit(json_text(found), None)
        return
    shown = found if every else found[:MAX_FOUND]
    more = f"; {len(found) - len(shown):,} more: --all" if len(found) > len(shown) else ""
    rows = [[row["job_type"], row["profile"], _sizes(row["gang_sizes"]), ", ".join(row["accelerators"])] for row in shown]
    columns = [Column("job type", "name"), Column("profile", "text"), Column("GPUs", "text"), Column("on", "prose")]
    emit(table_text(f"Best matches first: {len(shown)} of {len(found):,}{more}", columns, rows), None)


def _parts(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case."""
    return re.findall(r"[a-z0-9]+(?:\.[0-9]+)?", text.lower())


def _matches(profile: gp.ThroughputProfile, wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the job types of a profile that match any of the words, with scores: 1 for a word, 0.5 for the beginning of one."""
    measured: dict[str, tuple[set[float], set[str]]] = {job_type: (set(), set()) for job_type in profile.job_types}
    for row in profile.rows:
        sizes, names = measured[row.job_type]
        sizes.add(row.num_gpus)
        names.add(row.accelerator)
    for job_type, (sizes, names) in measured.items():
        own = _parts(job_type)
        known = {*own, *_parts(profile.name), *(part for name in names for part in _parts(name))}
        scores = [1.0 if word in known else 0.5 * any(each.startswith(word) for each in known) for word in wanted]
        if any(scores):
            yield {
                "job_type": job_type,
                "profile": profile.name,
                "gang_sizes": sorted(sizes),
                "accelerators": [name for name in profile.accelerators if name in names],
                "scores": scores,
            }


@click.command("show")
@click.argument("name", **NAME_OR_FILE)
@click.option("--job-type", metavar="TYPE", help="Show everything about this job type, pairs included.")
@click.pass_obj
def show(store: gp.ThroughputStore, name: str, job_type: str | None) -> None:
    """Show the throughputs of a profile.

    A row for each job type and gang size, with the throughput on each accelerator, the gang on as few nodes as possible, in steps/s
    unless the row or the title states another unit. Then what was observed on running jobs, what is measured, and where the figures
    come from.
    """
    profile = store.find(name)
    observations = store.observations(name) if name in store.names() else {}
    observed = {e: rate for e, rate in observations.items() if job_type in {None, e.job_type}}
    if job_type is not None:
        if not observed and not profile.rows:
            raise gp.UnknownNameError(Fault(f"profile {name}", "job_type", f"{job_type!r} was neither measured nor observed"))
        if not observed or job_type in profile.job_types:
            emit(_job_type_text(profile, job_type), None)
        if observed:
            emit(_observed_text(profile, observed), None)
        return
    if profile.rows or not observed:
        emit(_profile_text(profile), None)
    if observed:
        emit(_observed_text(profile, observed), None)
    measured = f"Measured: {profile.coverage} combinations of job type and accelerator."
    notes = (measured, _sources(profile), profile.description, f"Licence: {profile.licence}" * bool(profile.licence), profile.url)
    emit(wrapped([note for note in notes if note], indent=""), None)


def _observed_text(profile: gp.ThroughputProfile, observed: Mapping[Any, gp.ObservedRate]) -> str:
    """Return a table of the rates of running jobs; the standard deviation is that of one rate, in percent of the mean."""
    rows = []
    for entry in sorted(observed, key=lambda each: (each.job_type, each.num_gpus, each.accelerator)):
        rate, unit = observed[entry], str(profile.unit_of(entry.job_type))
        figures = [number(rate.rate), unit, f"{rate.log_variance**0.5:.1%}", f"{rate.count:.0f}"]
        rows.append([entry.job_type, gang_text(entry.num_gpus), entry.accelerator, *figures])
    columns = [Column("job type", "name"), Column("GPUs"), Column("on", "name"), Column("mean rate"), Column("unit", "text")]
    return table_text("Observed on running jobs", [*columns, Column("deviation"), Column("times")], rows)


def _sources(profile: gp.ThroughputProfile) -> str:
    """Return a sentence on where the figures come from, with the most frequent sources."""
    counts = Counter(row.source for row in profile.rows if row.source)
    if not counts:
        return "No source is given."
    named = [f"{source} ({count:,})" for source, count in counts.most_common(MAX_SOURCES)]
    others = [f"{len(counts) - MAX_SOURCES:,} more"] if len(counts) > MAX_SOURCES else []
    return f"Sources, with the number of figures: {'; '.join(named + others)}."


def _profile_text(profile: gp.ThroughputProfile) -> str:
    measured = {(each, row.num_gpus) for row in profile.rows for each in (row.job_type, row.partner_job_type)}
    gangs = [(job_type, size) for job_type in profile.job_types for size in profile.gang_sizes if (job_type, size) in measured]
    rows = []
    for gang in gangs:
        speeds = [profile.throughput(*gang, name) if profile.has(*gang, name) else None for name in profile.accelerators]
        if any(speed is not None for speed in speeds):
            memory = [profile.gpu_memory_gb(*gang, accelerator) for accelerator in profile.accelerators]
            cells = [_cell(value) for value in (max(filter(None, memory), default=None), *speeds)]
            unit = str(profile.unit_of(gang[0])) if len(profile.units) > 1 else ""
            rows.append([gang[0], unit, gang_text(gang[1]), *cells])
    columns, rows = _without_empty(["job type", "unit", "GPUs", MEMORY, *profile.accelerators], rows, 3)
    columns, rows = _without_empty(columns, rows, 1)
    unit = profile.units[0] if len(profile.units) == 1 else "throughput"
    return table_text(f"{profile.name}: {unit} of the whole gang", columns, rows, text_columns=1 + ("unit" in columns))


def _without_empty(columns: list[str], rows: list[list[str]], at: int) -> tuple[list[str], list[list[str]]]:
    """Return the table without the column at index `at` if that column is empty."""
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
    unit = str(profile.unit_of(job_type))
    columns, rows = _without_empty(["accelerator", "placement", "shared with", "source", "GPUs", MEMORY, unit], rows, 5)
    first = [Column("accelerator", "name"), Column("placement", "text"), Column("shared with", "name"), Column("source", "name", 1)]
    return table_text(job_type, [*first, *columns[4:]], rows)


@click.command("import")
@click.argument("file", type=INPUT)
@click.option("--name", metavar="NAME", help="Name of the profile [that of the file].")
@click.option("--replace", is_flag=True, help="Overwrite a stored profile of the same name.")
@click.option(
    "--format",
    "format_name",
    metavar="FORMAT",
    shell_complete=lambda _ctx, _param, start: [name for name in (*gp.profile_formats(), SACCT) if name.startswith(start)],
    help="Format of the file [that of its suffix or header].",
)
@click.pass_obj
def import_profile(store: gp.ThroughputStore, file: Path, name: str | None, replace: bool, format_name: str | None) -> None:
    """Store a profile from a file, so that --profile can name it.

    FILE is a profile as CSV, Gavel's throughputs as JSON, the output of sacct --parsable2 (the same job name on different types
    gives relative speeds), or the folder of tables of Pollux. Formats: csv, gavel, sacct, pollux.

    A figure that contradicts the others by more than 4 standard deviations is stored, with a warning.
    """
    refuse((name is None and with_names(str(file)) == NAME, "a profile from standard input has no name; add --name NAME"))
    with warnings_shown():
        if format_name == SACCT or (format_name is None and _is_accounting(file)):
            profile = gp.relative_speeds(gp.read_trace(file, format=SACCT), file.stem if name is None else name)
        else:
            profile = gp.ThroughputProfile.from_file(file, name, format=format_name)
        if not len(profile):
            raise gp.InputError(f"{file} has no measurement; a row needs job_type, num_gpus, accelerator and steps_per_second")
        store.save(profile, replace=replace)
        emit(f"Stored {profile!r} in {store.location}", None)
        _warn_of_contradictions(profile)


def _warn_of_contradictions(profile: gp.ThroughputProfile) -> None:
    """Issue a warning for each figure that the others contradict, such as one that is off by a factor of 10."""
    found = gp.contradictions(profile)
    for measurement, expected in found[:MAX_WARNINGS]:
        figure = f"{measurement.entry} has {number(measurement.steps_per_second)} {measurement.unit}"
        expectation = f"the others suggest about {number(expected)}, more than 4 standard deviations away"
        warnings.warn(gp.GavelWarning(f"{figure}; {expectation}"), stacklevel=2)
    if len(found) > MAX_WARNINGS:
        text = f"{len(found) - MAX_WARNINGS} further figures contradict the others (gavel_py.contradictions lists all)"
        warnings.warn(gp.GavelWarning(text), stacklevel=2)


def _is_accounting(file: Path) -> bool:
    """Return whether a file is the output of sacct, by its header."""
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            return "JobID" in lines.readline(1 << 16).split("|")
    except OSError:
        return False  # reading it as a profile reports why it cannot be read


@click.command("export")
@click.argument("name", **NAME_OR_FILE)
@click.option("-o", "--out", type=FILE, metavar="FILE", help="Write to this file instead of the terminal.")
@click.pass_obj
def export(store: gp.ThroughputStore, name: str, out: Path | None) -> None:
    """Write a profile as CSV; several joined by "+" as one."""
    buffer = io.StringIO()
    store.find(name).to_csv(buffer)
    emit(buffer.getvalue(), out)


@click.command("delete")
@click.argument("name")
@click.pass_obj
def delete(store: gp.ThroughputStore, name: str) -> None:
    """Remove a stored profile."""
    store.delete(name)
    emit(f"Removed {name!r} from {store.location}", None)
