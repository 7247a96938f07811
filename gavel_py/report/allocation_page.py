"""An allocation as one HTML page: a verdict, shares of tenants, GPUs, jobs, deadlines, services, rounds, and what-ifs.

The page is drawn from records, of a session for `gavel api` or of an allocation for `gavel solve --html`, and needs jinja2
(`gavel-py[plot]`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

from gavel_py.allocation.accounting import lateness
from gavel_py.allocation.result import Allocation
from gavel_py.io.tabular import Column
from gavel_py.io.writing import check_report, write_atomic
from gavel_py.report.charts import Table
from gavel_py.report.measures import UNKNOWN, clean, counted
from gavel_py.report.rounds_plot import duration
from gavel_py.report.run_report import POLICY, rendered

MOST_ROWS = 50
"""Maximum number of rows in a table of the page; a note counts the others."""


@dataclass(frozen=True)
class TenantParts:
    """Parts of the cluster for a tenant: entitled by weights, promised by the allocation, delivered by rounds. None is unknown.

    gpus: promised, on average over time; cost_per_hour: of these, in the unit of prices.
    """

    tenant: str
    entitled: float | None
    promised: float | None
    delivered: float | None
    gpus: float | None = None
    cost_per_hour: float | None = None


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
    def late_seconds(self) -> float:
        """Time after its deadline at which it ends, 0 if it meets it; NaN if unknown."""
        return float(lateness(self.end_seconds, self.due_seconds))

    @property
    def outcome(self) -> str:
        """Whether it ends in time."""
        if math.isnan(self.end_seconds):
            return UNKNOWN
        early = duration(max(0.0, self.due_seconds - self.end_seconds))
        return f"{duration(self.late_seconds)} late" if self.late_seconds else f"{early} early"


Columns = Sequence[tuple[str | Column, Sequence[str]]]
"""Columns of a table with their cells."""


@dataclass(frozen=True)
class PageTable:
    """A table of a page.

    Attributes:
        heading: Above it.
        caption: What its rows are, and the units of its numbers.
        columns: Its columns with their cells. Of columns given by their titles, the first one is a name and the others are numbers.
            Those of text come first; one without any text in a cell is left out.
    """

    heading: str
    caption: str
    columns: Columns

    @property
    def parts(self) -> tuple[str, str, Table]:
        """The heading, the caption and the table with clean texts."""
        kinds: Iterator[Literal["name", "number"]] = chain(["name"], repeat("number"))
        named = [
            (each if isinstance(each, Column) else Column(each, kind), [*map(clean, cells)])
            for (each, cells), kind in zip(self.columns, kinds, strict=False)
        ]
        shown = sorted((each for each in named if any(each[1])), key=lambda each: each[0].kind not in TEXT)
        rows = [*zip(*(cells for _, cells in shown), strict=True)]
        texts = sum(column.kind in TEXT for column, _ in shown)
        return clean(self.heading), clean(self.caption), _table([clean(column.title) for column, _ in shown], rows, texts)


TEXT = ("text", "name", "prose")
"""Kinds of columns that are left-aligned; the others are numbers."""


@dataclass(frozen=True)
class AllocationView:
    """What a page shows of an allocation, from top to bottom.

    Attributes:
        title: Its heading.
        facts: Sentences below the verdict.
        verdict: Sentences on the answer, the most important one first.
        is_good: Whether the verdict is good: the page marks one that is not.
        tenants: Their parts of the cluster.
        types: GPUs by accelerator type.
        jobs: A table of the jobs.
        waiting: The jobs without GPUs.
        due: The jobs with a deadline.
        services: A table of the services beside training jobs, None if there are none.
        rounds: A chart as an inline `<svg>`, as `rounds_svg` returns it; "" for none.
        what_ifs: Tables that compare the answer with those for other clusters.
        version: Of the state that it shows, in `data-version` of `<main>` for scripts.
    """

    title: str
    facts: Sequence[str]
    verdict: Sequence[str] = ()
    is_good: bool = True
    tenants: Sequence[TenantParts] = ()
    types: Sequence[TypeUse] = ()
    jobs: PageTable | None = None
    waiting: Sequence[WaitingJob] = ()
    due: Sequence[DueJob] = ()
    services: PageTable | None = None
    rounds: str = ""
    what_ifs: Sequence[PageTable] = ()
    version: int | None = None

    @classmethod
    def of(cls, allocation: Allocation, title: str, answer: str = "", **more: Any) -> AllocationView:
        """Return the page of an allocation: a verdict, tenants, GPUs on average over time, jobs without time, and deadlines.

        Args:
            allocation: The allocation.
            title: The heading.
            answer: A sentence on the objective, for the verdict.
            **more: Further attributes.

        Raises:
            InputError: The allocation was read from a file.

        >>> import gavel_py as gp
        >>> problem = gp.AllocationProblem.from_arrays([[4.0], [4.0]], [1], accelerator_types=["v100"])
        >>> gp.AllocationView.of(gp.solve(problem), "Two jobs").verdict
        ['All 2 jobs have GPU time.', '1 of 1 GPU is in use on average.']
        """
        due, excluded = due_jobs(allocation), allocation.excluded
        assert allocation.evidence is not None  # noqa: S101
        problem = allocation.evidence.base
        tenants = [
            TenantParts(
                f"{each.parent} › {each.tenant}" if each.parent else each.tenant,
                each.share,
                each.gpu_share,
                None,
                sum(each.gpus.values()),
                each.cost_per_hour,
            )
            for each in allocation.tenants()
        ]
        held = (problem.capacities * allocation.utilization).tolist()
        used = zip(problem.accelerator_types, problem.capacities.tolist(), held, strict=True)
        jobs = zip(allocation.job_ids, problem.tenants, problem.num_gpus.tolist(), strict=True)
        has_time, is_done = allocation.time_fractions.sum(axis=1) > 0, problem.steps_remaining == 0
        waits = (~(has_time | is_done)).tolist()
        waiting = [WaitingJob(*job, excluded.get(job[0], NO_TIME)) for job, is_idle in zip(jobs, waits, strict=True) if is_idle]
        types = [TypeUse(name, gpus, round(part, 6), round(gpus - part, 6)) for name, gpus, part in used]
        verdict = [_headline(allocation, int(is_done.sum()), waiting, due), *([answer] if answer else []), _use(allocation, types)]
        is_good = not waiting and not allocation.forecast().deadlines.missed
        shown: dict[str, Any] = {"verdict": verdict, "is_good": is_good, "tenants": tenants, "types": types}
        return cls(title, **{"facts": ()} | shown | {"waiting": waiting, "due": due} | more)

    def html(self, script: str = "", nonce: str = "") -> str:
        """Return the page; script: JavaScript, which only the nonce allows to run."""
        return rendered(
            "allocation.html",
            view=self,
            title=clean(self.title),
            verdict=[*map(clean, self.verdict)],
            facts=[*map(clean, self.facts)],
            bars=list(_bars(self)),
            tables=list(_tables(self)),
            what_ifs=[each.parts for each in self.what_ifs],
            script=script,
            nonce=nonce,
            policy=content_policy(nonce) if script else POLICY,
        )

    def write(self, path: str | Path) -> None:
        """Write the page, which needs no network and no scripts, to an .html file. Raises `InputError` as `check_report`."""
        check_report(path)
        write_atomic(path, self.html().encode())


NO_TIME = "it is promised no time now"
"""Why a job waits that could run."""


def content_policy(nonce: str) -> str:
    """Return the Content-Security-Policy of a page whose script has this nonce, and asks only where the page is from."""
    return f"{POLICY}; script-src 'nonce-{nonce}'; connect-src 'self'"


def due_jobs(allocation: Allocation) -> list[DueJob]:
    """Return the jobs with a deadline, least time to spare first. Raises `InputError` as `Allocation.forecast`."""
    forecast = allocation.forecast()
    jobs = zip(allocation.job_ids, forecast.deadline.tolist(), forecast.end_seconds.tolist(), strict=True)
    found = [DueJob(*each) for each in jobs if not math.isnan(each[1])]
    return sorted(found, key=lambda job: -math.inf if math.isnan(job.end_seconds) else job.due_seconds - job.end_seconds)


MOST_NAMED = 3
"""Maximum number of late jobs named in the verdict; the table of deadlines has all of them."""


def _headline(allocation: Allocation, done: int, waiting: Sequence[WaitingJob], due: Sequence[DueJob]) -> str:
    """Return how many jobs have time, how many deadlines are met, and the jobs that are late, latest first.

    done: the number of jobs that have finished, which are no longer counted.
    """
    jobs, counts, waits = len(allocation.job_ids) - done, allocation.forecast().deadlines, {each.job_id for each in waiting}
    finished = f", beside {done:,} that {'has' if done == 1 else 'have'} finished" if done else ""
    parts = [f"{_part(jobs - len(waits), jobs, 'job', 'has', 'have')} GPU time{finished}"]
    parts += [_part(counts.met, counts.all, "deadline", "is", "are") + " met"] if counts.all else []
    late = [f"{each.job_id} waits" for each in due if each.job_id in waits]
    missed = sorted((each for each in due if each.late_seconds > 0), key=lambda each: -each.late_seconds)
    late += [f"{each.job_id} by {duration(each.late_seconds)}" for each in missed]
    more = f" and {len(late) - MOST_NAMED:,} more" if len(late) > MOST_NAMED else ""
    named = f" Late: {', '.join(late[:MOST_NAMED])}{more}." if late else ""
    unknown = f" {counted(counts.unknown, 'deadline')} cannot be checked, since steps are unknown." if counts.unknown else ""
    return f"{', and '.join(parts)}.{named}{unknown}".replace("and All", "and all")


def _part(count: float, of: float, noun: str, one: str, many: str) -> str:
    """Return text such as "2 of 5 jobs have" or "All 5 jobs have"."""
    nouns = f"{of:,.4g} {noun if of == 1 else f'{noun}s'}"
    return f"All {nouns} {many}" if count == of > 1 else f"{count:,.4g} of {nouns} {one if 1 in (count, of) else many}"


def _use(allocation: Allocation, types: Sequence[TypeUse]) -> str:
    """Return how many GPUs are in use on average, which are not, and the cost."""
    held, gpus = (round(sum(found), 3) for found in ([each.held for each in types], [each.gpus for each in types]))
    free = [f"{each.free:,.3g} {each.accelerator}" for each in types if round(each.free, 3) > 0]
    unused = f", and {', '.join(free)} are not" if free else ""
    used = f"{_part(held, gpus, 'GPU', 'is', 'are')} in use on average{unused}."
    forecast = allocation.forecast()
    cost = "unknown" if forecast.total_cost_per_hour is None else f"{forecast.total_cost_per_hour:,.2f}"
    return f"{used} Cost per hour: {cost}." if forecast.has_prices else used


Cell = tuple[str, float | None]
"""A text, and the part of the column that the bar below it fills; None for no bar."""

Bars = tuple[str, str, Sequence[str], Sequence[tuple[str, Sequence[Cell]]]]
"""(heading, caption, columns, [(name, cells)]) of a table with bars."""


def _bars(view: AllocationView) -> Iterator[Bars]:
    """Yield the tables with bars."""
    shown, more = view.tenants[:MOST_ROWS], len(view.tenants) - MOST_ROWS
    found = {title: (form, [getattr(each, name) for each in shown]) for name, (title, form) in OF_TENANTS.items()}
    columns = {
        title: [(UNKNOWN, None) if value is None else form(value) for value in values]
        for title, (form, values) in found.items()
        if values.count(None) < len(values)
    }
    units = f"parts of all GPUs{'; GPUs on average, cost in the unit of prices' if 'GPUs' in columns else ''}"
    others = f"; and {counted(more, 'other')}" if more > 0 else ""
    rows = [(clean(each.tenant) or "no tenant", [cells[i] for cells in columns.values()]) for i, each in enumerate(shown)]
    yield "Tenants", units + others, ["tenant", *columns], rows
    types = [(clean(t.accelerator), [_count(number, t.gpus) for number in (t.gpus, t.held, t.free)]) for t in view.types]
    yield "GPUs", "number of GPUs", ("type", "all", "held", "free"), types


def _share(part: float) -> Cell:
    return f"{100 * part:.1f} %", part


def _count(gpus: float, of: float) -> Cell:
    return f"{gpus:z,.4g}", gpus / (of or 1.0)


OF_TENANTS: Mapping[str, tuple[str, Callable[[float], Cell]]] = {
    **{name: (name, _share) for name in ("entitled", "promised", "delivered")},
    "gpus": ("GPUs", lambda gpus: (f"{gpus:,.4g}", None)),
    "cost_per_hour": ("cost per hour", lambda cost: (f"{cost:,.2f}", None)),
}
"""{attribute of `TenantParts`: (title of its column, cell)}; a column without a known value is left out."""


def _tables(view: AllocationView) -> Iterator[tuple[str, str, Table]]:
    """Yield (heading, caption, table) of the tables of jobs and services."""
    if view.jobs is not None:
        yield view.jobs.parts
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
    if view.services is not None:
        yield view.services.parts


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> Table:
    more = len(rows) - MOST_ROWS
    return Table(columns, rows[:MOST_ROWS], f"and {counted(more, 'other')}" if more > 0 else "", text_columns)


def _from_now(seconds: float) -> str:
    if math.isnan(seconds):
        return UNKNOWN
    return f"in {duration(seconds)}" if seconds >= 0 else f"{duration(-seconds)} ago"
