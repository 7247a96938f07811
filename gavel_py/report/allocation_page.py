"""An allocation as one HTML page: shares of tenants, GPUs by type, jobs that wait, deadlines, and a chart of rounds.

The page is drawn from records, whoever makes them, and needs jinja2 (`gavel-py[plot]`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gavel_py.allocation.accounting import lateness
from gavel_py.allocation.result import Allocation
from gavel_py.report.charts import Table
from gavel_py.report.measures import UNKNOWN, clean, counted
from gavel_py.report.rounds_plot import duration
from gavel_py.report.run_report import POLICY, rendered

MOST_ROWS = 50
"""Maximum number of rows in a table of the page; a note counts the others."""


@dataclass(frozen=True)
class TenantParts:
    """Parts of the cluster for a tenant: entitled by weights, promised by the allocation, delivered by rounds. None is unknown."""

    tenant: str
    entitled: float | None
    promised: float | None
    delivered: float | None


@dataclass(frozen=True)
class TypeUse:
    """GPUs of an accelerator type: all of them, those that jobs hold, and those that are free."""

    accelerator: str
    gpus: float
    held: float
    free: float


@dataclass(frozen=True)
class WaitingJob:
    """A job without GPUs, and why it waits. gpus: those of its gang, None if unknown."""

    job_id: str
    tenant: str
    gpus: float | None
    why: str


@dataclass(frozen=True)
class DueJob:
    """A job with a deadline, in seconds from the last solve. end_seconds: its end at the promised speed, NaN if unknown."""

    job_id: str
    due_seconds: float
    end_seconds: float

    @property
    def outcome(self) -> str:
        """Whether it ends in time."""
        if math.isnan(self.end_seconds):
            return UNKNOWN
        late = float(lateness(self.end_seconds, self.due_seconds))
        return f"{duration(late)} late" if late else f"{duration(max(0.0, self.due_seconds - self.end_seconds))} early"


@dataclass(frozen=True)
class AllocationView:
    """What a page shows.

    Attributes:
        title: Its heading.
        facts: Sentences below the heading.
        rounds: A chart as an inline `<svg>`, as `rounds_svg` returns it; "" for none.
        version: Of the state that it shows, in `data-version` of `<main>` for scripts.
    """

    title: str
    facts: Sequence[str]
    tenants: Sequence[TenantParts] = ()
    types: Sequence[TypeUse] = ()
    waiting: Sequence[WaitingJob] = ()
    due: Sequence[DueJob] = ()
    rounds: str = ""
    version: int | None = None

    def html(self, script: str = "", nonce: str = "") -> str:
        """Return the page; script: JavaScript, which only the nonce allows to run."""
        return rendered(
            "allocation.html",
            view=self,
            title=clean(self.title),
            facts=[*map(clean, self.facts)],
            bars=list(_bars(self)),
            tables=list(_tables(self)),
            script=script,
            nonce=nonce,
            policy=content_policy(nonce) if script else POLICY,
        )


def content_policy(nonce: str) -> str:
    """Return the Content-Security-Policy of a page whose script has this nonce, and asks only where the page is from."""
    return f"{POLICY}; script-src 'nonce-{nonce}'; connect-src 'self'"


def due_jobs(allocation: Allocation) -> list[DueJob]:
    """Return the jobs with a deadline, least time to spare first. Raises `InputError` as `Allocation.forecast`."""
    forecast = allocation.forecast()
    jobs = zip(allocation.job_ids, forecast.deadline.tolist(), forecast.end_seconds.tolist(), strict=True)
    found = [DueJob(*each) for each in jobs if not math.isnan(each[1])]
    return sorted(found, key=lambda job: -math.inf if math.isnan(job.end_seconds) else job.due_seconds - job.end_seconds)


Cell = tuple[str, float]
"""A text, and the part of the column that the bar below it fills."""


def _bars(view: AllocationView) -> Iterator[tuple[str, Sequence[str], list[tuple[str, list[Cell]]]]]:
    """Yield (heading, columns, [(name, cells)]) of the tables with bars."""
    tenants = [
        (clean(t.tenant) or "no tenant", [_share(part) for part in (t.entitled, t.promised, t.delivered)]) for t in view.tenants
    ]
    yield "Tenants", ("tenant", "entitled", "promised", "delivered"), tenants
    types = [(clean(t.accelerator), [_count(number, t.gpus) for number in (t.gpus, t.held, t.free)]) for t in view.types]
    yield "GPUs", ("type", "all", "held", "free"), types


def _share(part: float | None) -> Cell:
    return (UNKNOWN, 0.0) if part is None else (f"{100 * part:.1f} %", part)


def _count(gpus: float, of: float) -> Cell:
    return f"{gpus:,.4g}", gpus / (of or 1.0)


def _tables(view: AllocationView) -> Iterator[tuple[str, str, Table]]:
    """Yield (heading, caption, table) of the tables of jobs."""
    waiting = [
        [clean(each.job_id), clean(each.tenant), clean(each.why), UNKNOWN if each.gpus is None else f"{each.gpus:g}"]
        for each in view.waiting
    ]
    yield "Waiting", counted(len(waiting), "job"), _table(["job", "tenant", "because", "GPUs"], waiting, 3)
    due = [[clean(each.job_id), _from_now(each.due_seconds), _from_now(each.end_seconds), each.outcome] for each in view.due]
    yield (
        "Deadlines",
        f"{counted(len(due), 'job')}, from the last solve on, at its speeds",
        _table(["job", "due", "ends", "that is"], due, 1),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> Table:
    more = len(rows) - MOST_ROWS
    return Table(columns, rows[:MOST_ROWS], f"and {counted(more, 'other')}" if more > 0 else "", text_columns)


def _from_now(seconds: float) -> str:
    if math.isnan(seconds):
        return UNKNOWN
    return f"in {duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} ago"
