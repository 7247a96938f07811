"""What a job waits for, as users write it: as in Slurm's `--dependency`, `afterok:ID` (or `ID` alone), `afterany:ID`,
`afternotok:ID` or `singleton`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from gavel_py.errors import check_together


class Condition(StrEnum):
    """When the end of a job lets another one start, in Slurm's terms."""

    AFTEROK = "afterok"
    """The job has finished."""
    AFTERANY = "afterany"
    """The job has ended in any way."""
    AFTERNOTOK = "afternotok"
    """The job has failed for good, or was cancelled."""
    SINGLETON = "singleton"
    """All earlier jobs of the same workflow and tenant have ended in any way."""

    def holds(self, *, ended_well: bool) -> bool:
        """Return whether the end of a job fulfils the condition; if not, it is never fulfilled."""
        return ended_well if self is Condition.AFTEROK else not ended_well if self is Condition.AFTERNOTOK else True


class Dependency(NamedTuple):
    """A condition and the job that it is about; no job for a singleton."""

    condition: Condition
    job_id: str = ""

    def __str__(self) -> str:
        """The dependency as users write it."""
        if self.condition is Condition.SINGLETON:
            return str(self.condition)
        return self.job_id if self.condition is Condition.AFTEROK else f"{self.condition}:{self.job_id}"


SUPPORTED = "afterok:ID, afterany:ID, afternotok:ID or singleton"

PARSED = 10_000
"""Number of parsed texts that are cached, since each is read several times while its job is in the system."""

UNSUPPORTED = re.compile(r"^(after|aftercorr|afterburstbuffer|expand)[:+]")


@lru_cache(maxsize=PARSED)
def dependency_of(text: str) -> Dependency:
    """Return the dependency that a text describes. Raises `InputError`."""
    word, _, rest = text.partition(":")
    has_condition = word in (Condition.AFTEROK, Condition.AFTERANY, Condition.AFTERNOTOK)
    is_any_of = re.search(r"\?\s*(after|singleton|$)", text)
    other = None if is_any_of else UNSUPPORTED.match(text)
    check_together(
        (is_any_of, f"'?' (any one of several jobs) is not supported, found {text!r}; list jobs that must all have ended"),
        (other, f"{other and other[1]!r} is not supported, found {text!r}; use {SUPPORTED}"),
        (has_condition and not rest.strip(), f"{text!r} names no job; use {SUPPORTED}"),
    )
    if text == Condition.SINGLETON:
        return Dependency(Condition.SINGLETON)
    return Dependency(Condition(word), rest.strip()) if has_condition else Dependency(Condition.AFTEROK, text)
