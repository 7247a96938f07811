"""gavel solve --html: the page of an allocation, from the columns of the tables on the terminal, and the next rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

import gavel_py as gp
from gavel_py.cli import allocation_text, estimates, inputs
from gavel_py.cli.output import number
from gavel_py.cli.rounds import ROUNDS, run_rounds
from gavel_py.cli.rounds_text import top_tenants
from gavel_py.cli.tables import Column, gpus_text
from gavel_py.cli.what_if import measure_cells


class PageTables(NamedTuple):
    """Parts of a page that only some answers have: services beside training jobs, sentences on them, and other clusters."""

    services: gp.PageTable | None = None
    what_ifs: gp.PageTable | None = None
    facts: Sequence[str] = ()


def write_page(
    path: Path,
    loaded: inputs.Inputs,
    policy: gp.Policy,
    screen: allocation_text.Screen,
    rounds: Sequence[gp.Round],
    tables: PageTables,
    now: datetime | None,
) -> None:
    """Write the page of an allocation, and say so.

    rounds: those of --rounds; without them, the page has as many as `gavel rounds`; now: the time of --now, by default the clock.
    """
    rounds = rounds or run_rounds(loaded, policy, ROUNDS, loaded.options)[1]
    facts, drawn = [*_facts(loaded, screen, now or datetime.now().astimezone()), *tables.facts], ""
    try:
        drawn = _drawn(loaded, screen, rounds)
    except gp.InputError as error:
        facts.append(f"The rounds are not drawn: {str(error).splitlines()[0]}.")
    gp.AllocationView.of(
        screen.allocation,
        allocation_text.solved_text(screen.problem, ""),
        click.unstyle(allocation_text.objective_text(screen)),
        facts=facts,
        jobs=_jobs(screen, rounds[0]),
        rounds=drawn,
        services=tables.services,
        what_ifs=[] if tables.what_ifs is None else [tables.what_ifs],
    ).write(path)
    click.echo(f"The page is in {path}", err=True)


def _facts(loaded: inputs.Inputs, screen: allocation_text.Screen, now: datetime) -> Iterator[str]:
    yield f"Policy {screen.label}; as of {now:%Y-%m-%d %H:%M %Z}, without new arrivals."
    missed = (each for each in screen.allocation.constraints if not each.kept)
    yield from (f"Not kept, by {number(each.missed_by)}: {each.constraint}." for each in missed)
    estimated = estimates.count_text(loaded.estimates(screen.problem, screen.allocation))
    yield from ([f"{' '.join(estimated.partition(':')[0].split())}."] if estimated else [])


def _drawn(loaded: inputs.Inputs, screen: allocation_text.Screen, rounds: Sequence[gp.Round]) -> str:
    tenants = top_tenants(loaded.jobs, {each.tenant: each for each in screen.allocation.tenants()})
    types = {job.job_id: job.job_type for job in loaded.jobs}
    seconds = loaded.options.round_seconds
    return gp.rounds_svg(rounds, loaded.cluster, round_seconds=seconds, tenants=tenants, job_types=types)


FIRST_COLUMNS = ("job", "tenant", "time on GPUs", "now on (node:GPU)", "ends in", "late", "deadline")
"""Titles of the columns of jobs that a phone should show first, names before numbers."""


def _jobs(screen: allocation_text.Screen, first: gp.Round) -> gp.PageTable:
    """Return the jobs with GPU time, worst off first, with their GPUs in the first round."""
    has_time = screen.allocation.time_fractions.sum(axis=1) > 0
    groups = [group for group in allocation_text.groups_of(screen, apart=True) if has_time[group.first]]
    jobs = [screen.jobs[group.first] for group in groups]
    held = [first.assignments.get(job.job_id) for job in jobs]
    found: dict[str, tuple[str | Column, list[str]]] = {
        column if isinstance(column, str) else column.title: (column, list(cells))
        for column, cells in (
            *allocation_text.job_columns(screen, groups, wide=False, without=["throughputs"]),
            (Column("tenant", "name"), [job.tenant for job in jobs]),
            (Column("now on (node:GPU)", "text"), ["" if each is None else gpus_text(each.gpus) for each in held]),
        )
    }
    spread = "" if screen.allocation.spread_fractions is None else f", {allocation_text.SPREAD}: on more nodes than needed"
    caption = f"{allocation_text.NOTE}; time on GPUs: on average{spread}; cost in the unit of prices"
    columns = [found.pop(title) for title in FIRST_COLUMNS if title in found]
    return gp.PageTable("Jobs, worst off first", caption, [*columns, *found.values()])


def what_ifs_table(comparison: gp.ClusterComparison, estimated: Sequence[str]) -> gp.PageTable:
    """Return the figures of the cluster as it is beside those of the other ones."""
    notes = [*comparison.notes, *(f"{name}: speeds on types that the cluster lacks are estimates" for name in estimated)]
    cells = zip(*map(measure_cells, comparison.measures), strict=True)
    columns = [*zip(["figure", *comparison.clusters], map(list, cells), strict=True)]
    return gp.PageTable("Other clusters", "; ".join(["changes are from the cluster as it is", *notes]), columns)
