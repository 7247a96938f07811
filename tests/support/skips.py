"""Why tests were skipped, in the closing lines of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

__all__ = ["lines_of_skips"]

PREFIX = "Skipped: "


def lines_of_skips(reasons: Collection[Any]) -> list[str]:
    """Return a line with the number of skipped tests, and one for each reason, the most frequent first.

    reasons: what pytest reports of each: (file, line, reason).
    """
    counts = Counter(str(reason[-1] if isinstance(reason, tuple) else reason).removeprefix(PREFIX) for reason in reasons)
    if not counts:
        return []
    return [f"{counts.total()} skipped:", *(f"{count:6}  {reason}" for reason, count in counts.most_common())]
