"""Who holds GPUs now, and who may have got or lost some since the latest round began."""

from __future__ import annotations

from collections.abc import Mapping, Set

from gavel_py.scheduling.assignment import Assignment

__all__ = ["Running"]


class Running:
    """The gangs that hold GPUs; all that changes them goes through here.

    moved: the jobs that may hold other GPUs than when the latest round began, None where that may be anybody, since nobody has
    seen it begin.
    """

    def __init__(self, held: dict[str, Assignment] | None = None) -> None:
        self._held = {} if held is None else held
        self._is_lent = True
        self._moved: set[str] | None = None

    @property
    def held(self) -> Mapping[str, Assignment]:
        """{job_id: Assignment}, which is another when something has changed: not to be kept."""
        return self._held

    def as_now(self) -> dict[str, Assignment]:
        """Return the same to be kept, not to be changed by others: it stays as it is."""
        self._is_lent = True
        return self._held

    @property
    def moved(self) -> Set[str] | None:
        return self._moved

    def put(self, job_id: str, assignment: Assignment) -> None:
        """Let a gang hold these GPUs, and no others."""
        self._own()[job_id] = assignment
        self._note(job_id)

    def take(self, job_id: str) -> Assignment | None:
        """Let a gang hold none; return what it held."""
        if job_id not in self._held:
            return None
        self._note(job_id)
        return self._own().pop(job_id)

    def begin(self, assignments: dict[str, Assignment]) -> None:
        """Let a round begin: these hold GPUs, and nobody else. They are kept, and not changed."""
        self._held, self._is_lent, self._moved = assignments, True, set()

    def _own(self) -> dict[str, Assignment]:
        """What may be changed: nobody else has it."""
        if self._is_lent:
            self._held, self._is_lent = self._held.copy(), False
        return self._held

    def _note(self, job_id: str) -> None:
        if self._moved is not None:
            self._moved.add(job_id)
