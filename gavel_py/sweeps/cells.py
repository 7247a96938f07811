"""One point of a sweep: what is played, how it is told from others, and what goes to the process that plays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from gavel_py import __version__
from gavel_py.report.runs import Labels
from gavel_py.sweeps.parts import Part, digest, plain_text
from gavel_py.sweeps.scenario import Source

__all__ = ["Cell", "Task"]


@dataclass(frozen=True, eq=False)
class Task:
    """All that it takes to play a cell, in any process.

    mode: "isolated" is a simulation that is played for what others are compared with, and keeps the completion time of each job;
    isolated: those, for a cell that is compared; version: of gavel-py, which must be the same where it is played.
    """

    key: str
    mode: Literal["simulate", "solve", "isolated"]
    policy: Part
    source: Source
    round_seconds: float | None
    settings: Part
    isolated: bytes | None = None
    version: str = __version__


@dataclass(frozen=True, eq=False)
class Cell:
    """labels: its place in the grid, in words; content: what tells it from all other cells; needs: the key of the cell that it is
    compared with.
    """

    labels: Labels
    content: Mapping[str, Any]
    task: Task
    needs: str | None = None

    @cached_property
    def key(self) -> str:
        """A checksum of its content."""
        return digest(self.content)

    @property
    def text(self) -> str:
        """Its content as JSON."""
        return plain_text(self.content)

    def task_with(self, isolated: bytes | None) -> Task:
        """Return what is to be played; isolated: what the cell that it needs has kept."""
        return replace(self.task, key=self.key, isolated=isolated)
