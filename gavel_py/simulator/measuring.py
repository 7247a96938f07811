"""Which jobs of a trace are measured, and over which time GPUs are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.simulator.utilization import Usage

__all__ = ["JobWindow", "Measuring", "check_enough", "job_window", "window_text"]

JobWindow = tuple[int, int]
"""The jobs from the first number to before the second, by order of arrival, from 0."""


def job_window(value: object) -> JobWindow | None:
    """Return the window that a pair of numbers stands for; None: all jobs. Raises `ValueError` for anything else."""
    if value is None:
        return None
    numbers = list(value) if isinstance(value, tuple | list) else []
    whole = [int(each) for each in numbers if isinstance(each, Integral) and not isinstance(each, bool)]
    if len(numbers) == len(whole) == 2 and 0 <= whole[0] < whole[1]:
        return whole[0], whole[1]
    text = "must be two whole numbers, the first job by arrival (from 0) and the one after the last, as in (4000, 5000)"
    raise ValueError(f"{text}, found {value!r}")


def window_text(window: JobWindow) -> str:
    """Return a window as it is written on the command line, as in "4000:5000"."""
    return f"{window[0]}:{window[1]}"


def check_enough(jobs: int, window: JobWindow | None) -> None:
    """Raise `InputError` unless a trace of so many jobs has all those of the window."""
    if window is not None and jobs < window[1]:
        text = f"must end within the trace, which has {jobs:,} jobs, found {window_text(window)}"
        raise InputError(Fault("simulation", "measure_jobs", text))


class Measuring:
    """The window of a simulation: which jobs its metrics are of, and since when the use of GPUs is measured.

    window: None measures all jobs, from the beginning. ended: measured jobs that have left; ended_after_arrivals: those of them
    that left when no job of the trace was still to arrive.

    GPUs are measured from the round on in which the first measured job is submitted. The simulation is over with the round in
    which the last of them leaves, so that nothing that follows can change what was measured.
    """

    def __init__(self, window: JobWindow | None = None) -> None:
        self.window = window
        self._first, self._end = (0, sys.maxsize) if window is None else window
        self._usage_before: Mapping[str, Mapping[str, float]] | None = None
        self.ended = self.ended_after_arrivals = 0

    @property
    def is_on(self) -> bool:
        """Whether the use of GPUs is being measured."""
        return self.window is None or self._usage_before is not None

    @property
    def is_complete(self) -> bool:
        """Whether all measured jobs have left."""
        return self.window is not None and self.ended == self._end - self._first

    def includes(self, number: int) -> bool:
        """Say whether a job is measured; number: how many jobs arrived before it."""
        return self._first <= number < self._end

    def submitted(self, number: int, usage: Usage) -> None:
        """Note that a job has been submitted; usage: of GPUs until then."""
        if self.window is not None and number == self._first:
            self._usage_before = usage.totals()

    def left(self, *, arrivals_are_over: bool) -> None:
        """Note that a measured job has left; arrivals_are_over: no job of the trace is still to arrive."""
        self.ended += 1
        self.ended_after_arrivals += arrivals_are_over and self.window is not None

    def usage_of(self, usage: Usage) -> dict[str, dict[str, float]]:
        """Return by type what was used since measuring began."""
        before = self._usage_before
        return usage.to_dict(before if before is not None or self.window is None else usage.totals())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "window": self.window,
            "usage_before": self._usage_before,
            "ended": self.ended,
            "ended_after_arrivals": self.ended_after_arrivals,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Measuring:
        """Return what `to_dict` described."""
        made = cls(job_window(document["window"]))
        made._usage_before = document["usage_before"]
        made.ended, made.ended_after_arrivals = document["ended"], document["ended_after_arrivals"]
        return made
