"""Small pieces of text that charts and tables share."""

from __future__ import annotations

from gavel_py.report.estimates import Estimate
from gavel_py.report.measures import short

__all__ = ["at_load", "interval_text", "of_count"]


def at_load(load: float | None) -> str:
    """Return the words that tell a load, after a title.

    >>> at_load(4.0), at_load(None)
    (', load 4 jobs/h', '')
    """
    return "" if load is None else f", load {short(load)} jobs/h"


def interval_text(value: Estimate, size: float = 1.0) -> str:
    """Return a confidence interval, in units of this size; "–" where there is one seed."""
    return "–" if value.half_width is None else f"{short(value.low / size)} to {short(value.high / size)}"


def of_count(count: int, one: str, many: str | None = None) -> str:
    """Return a number of things, of which more than one have an "s", unless `many` says how they are called.

    >>> of_count(1, "round"), of_count(2000, "round"), of_count(2, "policy", "policies")
    ('1 round', '2,000 rounds', '2 policies')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
