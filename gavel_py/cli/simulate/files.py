"""Files of gavel simulate: a row for each job that leaves and for each round while it runs, and the runs of --run-out.

Tables grow row by row, as CSV or, if the name ends in .parquet, as Parquet (`table_file`). The file of --run-out holds each
policy's run as reports and pictures show it.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import click

import gavel_py as gp
from gavel_py.cli.simulate.options import Request
from gavel_py.cli.simulate.results import YARDSTICK, PolicyResult
from gavel_py.errors import Fault, InputError


def check_run_file(request: Request) -> None:
    """Raise `InputError` if the file cannot be written, before hours have gone into what it is to hold."""
    if request.run_out is not None:
        gp.write_runs(request.run_out, [])


def write_run_file(request: Request, all_played: Sequence[PolicyResult]) -> None:
    """Write the runs of the policies that were played, if that is asked for."""
    if request.run_out is None:
        return
    isolated = next((_jcts(played) for played in all_played if played.policy.name == YARDSTICK), None)
    gp.write_runs(request.run_out, [_run(request, played, isolated) for played in all_played])


def _run(request: Request, played: PolicyResult, isolated: dict[str, float] | None) -> gp.Run:
    assert played.recorder is not None  # noqa: S101
    labels: dict[str, str | float | None] = {
        "policy": played.label,
        "trace": request.trace_file.name,
        "load": None,
        "cluster": request.cluster,
        "seed": request.seed,
        "round_seconds": request.round_seconds if played.in_rounds else None,
    }
    return played.recorder.run(labels, played.result.summary, isolated)


def _jcts(played: PolicyResult) -> dict[str, float]:
    return {} if played.recorder is None else played.recorder.jct_seconds


Column = Literal["text", "whole", "number", "flag"]

ROWS_AT_ONCE = 20_000
"""Rows that a Parquet file gets in one piece; they are in memory until then."""


class TableFile(Protocol):
    """A table on its way to a file."""

    def write(self, row: Sequence[object]) -> None:
        """Add a row. Raises `InputError` where that is not possible."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def is_parquet(path: Path) -> bool:
    """Say whether a file of this name is to be Parquet."""
    return path.suffix.lower() == ".parquet"


def table_file(path: Path, columns: Mapping[str, Column], size: int | None = None) -> TableFile:
    """Open a file for a table with these columns; size: of a CSV file that is there, the bytes after which rows are to follow."""
    return ParquetFile(path, columns) if is_parquet(path) else CsvFile(path, list(columns), size)


class CsvFile:
    """A CSV file that is written line by line, so that it is complete up to the last one whenever it ends."""

    def __init__(self, path: Path, header: Sequence[str], size: int | None = None) -> None:
        self.path = path
        try:
            if size is not None:
                _shorten(path, size)
            self._file = open(path, "w" if size is None else "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise _fault(path, error) from None
        self._writer = csv.writer(self._file, lineterminator="\n")
        if size is None:
            self.write(header)

    @property
    def size(self) -> int:
        """The bytes that are on the disk by now."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise _fault(self.path, error) from None

    def write(self, row: Iterable[object]) -> None:
        try:
            self._writer.writerow(row)
        except OSError as error:
            raise _fault(self.path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


class ParquetFile:
    """A Parquet file, which can be read when it is closed."""

    def __init__(self, path: Path, columns: Mapping[str, Column]) -> None:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetWriter
        except ImportError as error:
            raise InputError(f"Parquet files need pyarrow ({error}); install it with: pip install 'gavel-py[parquet]'") from None
        kinds = {"text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64(), "flag": pyarrow.bool_()}
        self._arrow, self.path = pyarrow, path
        self._schema = pyarrow.schema([(name, kinds[column]) for name, column in columns.items()])
        self._rows: list[Sequence[object]] = []
        try:
            self._writer = ParquetWriter(path, self._schema)
        except OSError as error:
            raise _fault(path, error) from None

    def write(self, row: Sequence[object]) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._flush()
            self._writer.close()
        except OSError as failed:
            raise _fault(self.path, failed) from None

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(zip(*self._rows, strict=True), self._schema, strict=True)
        arrays: list[Any] = [self._arrow.array(values, type=field.type) for values, field in columns]
        try:
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        except OSError as error:
            raise _fault(self.path, error) from None
        self._rows = []


def _shorten(path: Path, size: int) -> None:
    """Drop the lines that were written after the state that is gone on from."""
    found = path.stat().st_size
    if found < size:
        text = f"has {found} bytes, and had {size} when the state was saved; it can be gone on with only as it was"
        raise InputError(Fault(str(path), "", text))
    os.truncate(path, size)


def _fault(path: Path, error: OSError) -> InputError:
    return InputError(Fault(str(path), "", f"cannot be written: {error.strerror or error}"))


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
