"""Files that grow while a simulation runs: a line for each job that leaves, and for each round."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Self

import click

import gavel_py as gp
from gavel_py.cli.simulate.tables import Column, CsvFile, TableFile, table_file

__all__ = ["Outputs", "check_files"]

PER_ROUND: dict[str, Column] = {
    "policy": "text",
    "round": "whole",
    "time_seconds": "number",
    "running": "whole",
    "waiting": "whole",
}
POLICY: dict[str, Column] = {"policy": "text"}
KINDS: dict[str, Column] = {"str": "text", "Outcome": "text", "int": "whole", "bool": "flag"}


def check_files(*paths: Path | None) -> None:
    """Raise a `UsageError` if two of these are the same file."""
    given = [path for path in paths if path is not None]
    real = [os.path.realpath(path) for path in given]
    for index, path in enumerate(real):
        if path in real[:index]:
            raise click.UsageError(f"{given[index]} is named for two outputs; they would overwrite each other")


class Outputs:
    """The files of --jobs-out and --timeline-out, those of them that are asked for.

    sizes: of files that are to be gone on with, their bytes by "jobs" and "timeline" when the state was saved.
    """

    def __init__(
        self, jobs: Path | None, timeline: Path | None, accelerators: Sequence[str], sizes: Mapping[str, int] | None = None
    ) -> None:
        self._accelerators = accelerators
        # What is no text and no whole number is a number, or none.
        per_job: dict[str, Column] = {field.name: KINDS.get(str(field.type), "number") for field in fields(gp.JobRecord)}
        self._names = list(per_job)
        used: dict[str, Column] = {f"{name}_gpus": "whole" for name in accelerators}
        per_round = PER_ROUND | used | {"starts": "whole", "preemptions": "whole"}
        self._files: dict[str, TableFile] = {}
        with ExitStack() as opened:
            for name, path, columns in (("jobs", jobs, POLICY | per_job), ("timeline", timeline, per_round)):
                if path is not None:
                    size = None if sizes is None else sizes[name]
                    self._files[name] = opened.enter_context(table_file(path, columns, size))
            self._opened = opened.pop_all()

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of the CSV files up to now."""
        return {name: file.size for name, file in self._files.items() if isinstance(file, CsvFile)}

    def job(self, policy: str, record: gp.JobRecord) -> None:
        """Write the line of a job, if jobs are written."""
        if "jobs" in self._files:
            self._files["jobs"].write([policy, *(getattr(record, name) for name in self._names)])

    def round(self, policy: str, begun: gp.Round, active: int) -> None:
        """Write the line of a round, if rounds are written; active: jobs that are in the system."""
        if "timeline" not in self._files:
            return
        gpus = {(held.accelerator, gpu) for held in begun.assignments.values() for gpu in held.gpus}  # shared ones once
        used = Counter(accelerator for accelerator, _ in gpus)
        running = len(begun.assignments)
        first = [policy, begun.index, begun.start_seconds, running, active - running]
        last = [*(used[name] for name in self._accelerators), len(begun.started), len(begun.preempted)]
        self._files["timeline"].write(first + last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()
