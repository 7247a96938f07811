"""Who holds GPUs now, and who may have got or lost some since the latest round began."""

from __future__ import annotations

from collections.abc import Mapping, Set

from gavel_py.rounds.assignment import Assignment

__all__ = ["Running"]


class Running:
    """The gangs that hold GPUs; all that changes them goes through here.

    held: {job_id: Assignment}, not to be changed by others; moved: the jobs that may hold other GPUs than when the latest round
    began, None where that may be anybody, since nobody has seen it begin.
    """

    def __init__(self, held: Mapping[str, Assignment] | None = None) -> None:
        self._held = {} if held is None else dict(held)
        self._moved: set[str] | None = None

    @property
    def held(self) -> Mapping[str, Assignment]:
        return self._held

    @property
    def moved(self) -> Set[str] | None:
        return self._moved

    def put(self, job_id: str, assignment: Assignment) -> None:
        """Let a gang hold these GPUs, and no others."""
        self._held[job_id] = assignment
        self._note(job_id)

    def take(self, job_id: str) -> Assignment | None:
        """Let a gang hold none; return what it held."""
        held = self._held.pop(job_id, None)
        if held is not None:
            self._note(job_id)
        return held

    def begin(self, assignments: Mapping[str, Assignment]) -> None:
        """Let a round begin: these hold GPUs, and nobody else."""
        self._held, self._moved = dict(assignments), set()

    def _note(self, job_id: str) -> None:
        if self._moved is not None:
            self._moved.add(job_id)
