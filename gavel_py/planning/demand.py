"""Hourly demand: GPUs of each class in each hour, from a CSV file, with all that is wrong with its hours and cells at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from gavel_py.errors import Fault, GavelWarning, InputError, decimal_hint, faults_among, refuse, shown, together
from gavel_py.io import reading
from gavel_py.io.records import number_of, repeated
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import INPUT_ROUNDING

MOST = 1e9
"""The largest number in a cell; what is larger must be a mistake."""

CLOCKS = ("hour", "time")
OF_JOBS = {"job_id", "job_type", "total_steps", "num_gpus", "arrival_seconds", "JobID", "submit_time"}
"""Columns by which a file of jobs is recognised."""

MOMENT = "must be a whole number of the hour, or a time such as 2026-03-29T02:00+01:00"


@dataclass(frozen=True, eq=False)
class HourlyDemand:
    """GPUs of I classes in H hours that follow each other.

    Attributes:
        classes: Names of the classes, such as the types that were asked for.
        gpus: (H, I) GPUs in use or asked for.
        hours: What each hour is called in the file.
        places: Where each hour is in the file; empty if it is from no file.
    """

    classes: tuple[str, ...]
    gpus: Floats
    hours: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gpus)

    def part(self, first: int, end: int) -> HourlyDemand:
        """Return the hours first, ..., end − 1.

        Args:
            first: Number of the first hour, from 0.
            end: Number of the hour after the last one.
        """
        return replace(self, gpus=self.gpus[first:end], hours=self.hours[first:end], places=self.places[first:end])

    def name_of(self, hour: int) -> str:
        """Return what an hour is called.

        Args:
            hour: Its number from 0.
        """
        return self.hours[hour] if self.hours else str(hour)


def read_demand(path: str | Path) -> HourlyDemand:
    """Read hourly demand from a CSV file.

    Its first column is `hour`, whole numbers that ascend by one, or `time`, which ascends by an hour: 2026-03-29T02:00 with one
    offset from UTC for each time, or with none for all of them. Each other column has the GPUs of one class.

    Args:
        path: The file.

    Raises:
        InputError: With all faults: negative and missing cells, missing and double hours, hours of another length, times of which
            only some have an offset, a file of jobs.
    """
    where, header = reading.csv_header(path)
    jobs = sorted(OF_JOBS.intersection(header))
    clock = next((name for name in header if name in CLOCKS), "")
    refuse(
        where,
        (jobs, "", f"has the columns of jobs ({', '.join(jobs)}), not hourly demand; give such a file as in gavel plan {path}"),
        (
            not jobs and not clock,
            "",
            f"must have a column hour or time, and one for each class of demand; found {', '.join(header)}",
        ),
    )
    classes = tuple(name for name in header if name != clock)
    refuse(where, (not classes, "", "must have a column for each class of demand, with its GPUs"))
    rows = list(reading.csv_rows(path, (clock,), classes))
    refuse(str(path), (not rows, "", "has no hours"))
    places = [place for place, _ in rows]
    clocks = [row.get(clock, "") for _, row in rows]
    with together() as attempt:
        gpus = np.array([[_cell(attempt, place, row.get(name), name) for name in classes] for place, row in rows])
        attempt(lambda: InputError.raise_any(list(_clock_faults(clock, clocks, places))))
    total = gpus.sum(axis=1)
    if len(total) > 2 and total[-1] < 0.5 * total[:-1].min():
        text = f"the last hour has {total[-1]:g} GPUs in all, less than half of any other; leave it out if it is not complete"
        warnings.warn(f"{places[-1]}: {text}", GavelWarning, stacklevel=2)
    return HourlyDemand(classes, gpus, tuple(clocks), tuple(places))


def _cell(attempt: object, place: str, cell: str | None, name: str) -> float:
    """Return the GPUs in a cell, and note its fault. Differences of sums may leave a negative rounding error."""
    value = number_of(cell)
    if not -INPUT_ROUNDING <= value <= MOST:
        rule = f"must be at most {MOST:,.0f}" if value > MOST else "must be a number of at least 0"
        found = "is missing; write 0 if nothing ran" if cell is None else f"{rule}, found {shown(cell)}"
        attempt(lambda: refuse(place, (True, name, found + decimal_hint(cell))))  # type: ignore[operator]
    return max(value, 0.0)


def _clock_faults(clock: str, texts: Sequence[str], places: Sequence[str]) -> Iterator[Fault]:
    """Yield what is wrong with the hours of the rows."""
    moments = [_moment(text) for text in texts]
    for moment, text, place in zip(moments, texts, places, strict=True):
        yield from faults_among(place, (moment is None, clock, f"{MOMENT}, found {shown(text)}"))
    if None in moments:
        return
    aware = [isinstance(each, datetime) and each.tzinfo is not None for each in moments]
    if any(aware) and not all(aware):
        text = "has no offset from UTC, but others have; give one for each time, or for none"
        yield Fault(places[aware.index(False)], clock, text)
        return
    hours = [_number_of_hour(each) for each in moments]
    first: dict[float, str] = {}
    set_back = (
        ""
        if any(aware) or clock == "hour"
        else "; if the clock was set back there, give times with their offset, as in 02:00+01:00"
    )
    for before, hour, text, place in zip([hours[0] - 1, *hours], hours, texts, places, strict=False):
        gap = hour - before
        earlier = first.setdefault(hour, place)
        gone = f"{gap - 1:.0f} hours are" if gap > 2 else "an hour is"
        forward = set_back.replace("set back", "set forward") if gap == 2 else ""
        yield from faults_among(
            place,
            (earlier is not place, clock, f"{text} appears twice, first at {earlier}{set_back}"),
            (earlier is place and gap < 0, clock, f"{text} is before the hour above it; sort the file"),
            (
                gap > 0 and gap != int(gap),
                clock,
                f"{text} is {gap * 60:.0f} minutes after the line above it; each line must be a whole hour",
            ),
            (gap > 1 and gap == int(gap), clock, f"{gone} missing before {text}; write its GPUs, 0 if nothing ran{forward}"),
        )


def _moment(text: str) -> float | datetime | None:
    number = number_of(text)
    if number == number:  # not NaN
        return number if number.is_integer() else None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found
    except (ValueError, OverflowError):
        return None


def _number_of_hour(moment: float | datetime | None) -> float:
    if isinstance(moment, datetime):
        return (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(hours=1)
    return float(moment or 0.0)


def read_relative_throughputs(path: str | Path) -> dict[str, dict[str, float]]:
    """Read how fast demand of each class runs on each type, relative to its own type, from a CSV file.

    Args:
        path: A file with a column `class`, and one for each accelerator type; an empty cell is 0, where the class cannot run.

    Returns:
        {class: {accelerator type: speed}}.

    Raises:
        InputError: With all faults: speeds that are negative or no numbers, and classes that appear twice.
    """
    rows = list(reading.csv_rows(path, ("class",)))
    found = {}
    with together() as attempt:
        attempt(lambda: InputError.raise_any(repeated("class", "class", [(place, row.get("class", "")) for place, row in rows])))
        for place, row in rows:
            name = row.pop("class", "")
            found[name] = {each: _cell(attempt, place, cell, each) for each, cell in row.items()}
    return found
