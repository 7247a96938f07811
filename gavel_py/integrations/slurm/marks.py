"""What is noted of a job in Slurm itself, in its AdminComment, where only administrators write: it survives this program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Mark", "Place", "mark_in", "with_mark"]

Place = Literal["any", "node"]
"""Whether its gang may be spread over nodes, or must be on one."""

MARK = re.compile(r"gavel:submit=(\d{1,12})(;plugin)?(?:;place=(any|node))?")
SAFE = re.compile(r"[A-Za-z0-9 _.:;,+@/=-]*")
"""What others wrote goes into a command only if it has nothing that could be taken for more than text."""


@dataclass(frozen=True)
class Mark:
    """submit_seconds: when the job first came, which a requeue overwrites; place: None until it is taken over; by_plugin:
    it came on hold, by the plugin, which also notes in the comment what users hold.
    """

    submit_seconds: float
    place: Place | None = None
    by_plugin: bool = False


def mark_in(admin_comment: str) -> Mark | None:
    """Return the mark of a job, None if it has none.

    >>> mark_in("gavel:submit=1700000000;place=node")
    Mark(submit_seconds=1700000000.0, place='node', by_plugin=False)
    """
    found = MARK.search(admin_comment)
    if found is None:
        return None
    place: Place | None = "any" if found[3] == "any" else "node" if found[3] == "node" else None
    return Mark(float(found[1]), place, by_plugin=found[2] is not None)


def with_mark(admin_comment: str, submit_seconds: float, place: Place) -> str | None:
    """Return the comment with this mark and all else that stands there, None where that cannot be written safely.

    >>> with_mark("project 7", 1700000000.0, "any")
    'project_7;gavel:submit=1700000000;place=any'
    """
    rest = MARK.sub("", admin_comment).strip(" ;")
    if not SAFE.fullmatch(rest):
        return None
    before = mark_in(admin_comment)
    plugin = ";plugin" if before is not None and before.by_plugin else ""
    mark = f"gavel:submit={submit_seconds:.0f}{plugin};place={place}"
    return f"{rest.replace(' ', '_')};{mark}" if rest else mark
