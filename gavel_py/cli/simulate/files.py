"""Files that grow while a simulation runs: a line for each job that leaves, and for each round."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

import click

import gavel_py as gp
from gavel_py.errors import Fault, InputError

__all__ = ["Outputs", "check_files"]

PER_ROUND = ("policy", "round", "time_seconds", "running", "waiting")


def check_files(*paths: Path | None) -> None:
    """Raise a `UsageError` if two of these are the same file."""
    given = [path for path in paths if path is not None]
    real = [os.path.realpath(path) for path in given]
    for index, path in enumerate(real):
        if path in real[:index]:
            raise click.UsageError(f"{given[index]} is named for two outputs; they would overwrite each other")


class CsvFile:
    """A CSV file that is written line by line, so that it is complete up to the last one whenever it ends."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self.path = path
        try:
            self._file = open(path, "w", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._fault(error) from None
        self._writer = csv.writer(self._file, lineterminator="\n")
        self.write(header)

    def write(self, row: Iterable[object]) -> None:
        """Write a line. Raises `InputError` where that is not possible."""
        try:
            self._writer.writerow(row)
        except OSError as error:
            raise self._fault(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def _fault(self, error: OSError) -> InputError:
        return InputError(Fault(str(self.path), "", f"cannot be written: {error.strerror or error}"))


class Outputs:
    """The files of --jobs-out and --timeline-out, those of them that are asked for."""

    def __init__(self, jobs: Path | None, timeline: Path | None, accelerators: Sequence[str]) -> None:
        self._accelerators = accelerators
        self._names = [field.name for field in fields(gp.JobRecord)]
        with ExitStack() as opened:
            self._jobs = None if jobs is None else opened.enter_context(CsvFile(jobs, ["policy", *self._names]))
            used = [f"{name}_gpus" for name in accelerators]
            header = [*PER_ROUND, *used, "starts", "preemptions"]
            self._timeline = None if timeline is None else opened.enter_context(CsvFile(timeline, header))
            self._opened = opened.pop_all()

    def job(self, policy: str, record: gp.JobRecord) -> None:
        """Write the line of a job, if jobs are written."""
        if self._jobs is not None:
            self._jobs.write([policy, *(getattr(record, name) for name in self._names)])

    def round(self, policy: str, begun: gp.Round, active: int) -> None:
        """Write the line of a round, if rounds are written; active: jobs that are in the system."""
        if self._timeline is None:
            return
        used = Counter[str]()
        for held in begun.assignments.values():
            used[held.accelerator] += len(held.gpus)
        running = len(begun.assignments)
        first = [policy, begun.index, begun.start_seconds, running, active - running]
        self._timeline.write([*first, *(used[name] for name in self._accelerators), len(begun.started), len(begun.preempted)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()
