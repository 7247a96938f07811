"""Output files of gavel simulate: tables of jobs and rounds, and the runs of --run-out.

Tables are written row by row during the simulation, as CSV or Parquet by the suffix of the file (`Outputs`). The file of --run-out
holds the run of each policy for reports and plots.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

import gavel_py as gp
from gavel_py.cli.accounting import tenants_header, tenants_rows
from gavel_py.cli.files import writing
from gavel_py.cli.inputs import DEFAULT_MECHANISM
from gavel_py.cli.simulate.options import SimulateOptions
from gavel_py.cli.simulate.results import BASELINE, PolicyResult
from gavel_py.errors import InputError, refuse


def write_run_file(path: Path, request: SimulateOptions, results: Sequence[PolicyResult]) -> None:
    """Write the runs of these policies."""
    recorded = [(result, result.recorder) for result in results if result.recorder is not None]
    isolated = next((recorder.jct_seconds for result, recorder in recorded if result.policy.name == BASELINE), None)
    runs = []
    for result, recorder in recorded:
        labels: dict[str, str | float | None] = {
            "policy": result.label,
            **({} if result.mechanism == DEFAULT_MECHANISM else {"mechanism": result.mechanism}),
            "trace": request.trace_file.name,
            "load": None,
            "cluster": request.cluster,
            "seed": request.simulation.seed,
            "round_seconds": request.rounds.round_seconds if result.in_rounds else None,
        }
        runs.append(recorder.run(labels, result.result.summary, isolated))
    gp.write_runs(path, runs)


CellType = Literal["text", "whole", "number", "flag"]

ROWS_AT_ONCE = 20_000
"""Number of rows that are collected in memory and written to a Parquet file together."""


def is_parquet(path: Path) -> bool:
    """Return whether a file with this name is written as Parquet."""
    return path.suffix.lower() == ".parquet"


class CsvFile:
    """A CSV file that is written line by line, so that after any failure it is complete up to the last row.

    size: length in bytes of an existing file to which rows are appended, None for a new file.
    """

    def __init__(self, path: Path, header: Sequence[str], size: int | None = None) -> None:
        self.path = path
        with writing(path):
            if size is not None:
                _truncate(path, size)
            self._file = open(path, "w" if size is None else "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115
        self._writer = csv.writer(self._file, lineterminator="\n")
        if size is None:
            self.write(header)

    @property
    def size(self) -> int:
        """The length of the file in bytes; the file is synchronised with the disk first."""
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def write(self, row: Iterable[object]) -> None:
        """Write a row. Raises `InputError` if that fails."""
        with writing(self.path):
            self._writer.writerow(row)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ParquetFile:
    """A Parquet file; it can be read only after it is closed."""

    def __init__(self, path: Path, columns: Mapping[str, CellType]) -> None:
        try:
            import pyarrow
            from pyarrow.parquet import ParquetWriter
        except ImportError as error:
            raise InputError(f"Parquet files need pyarrow ({error}); install it with: pip install 'gavel-py[parquet]'") from None
        types = {"text": pyarrow.string(), "whole": pyarrow.int64(), "number": pyarrow.float64(), "flag": pyarrow.bool_()}
        self._arrow, self.path = pyarrow, path
        self._schema = pyarrow.schema([(name, types[column]) for name, column in columns.items()])
        self._rows: list[Sequence[object]] = []
        with writing(path):
            self._writer = ParquetWriter(path, self._schema)

    def write(self, row: Sequence[object]) -> None:
        """Write a row. Raises `InputError` if that fails."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows and close the file."""
        self._flush()
        with writing(self.path):
            self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(zip(*self._rows, strict=True), self._schema, strict=True)
        arrays: list[Any] = [self._arrow.array(values, type=field.type) for values, field in columns]
        with writing(self.path):
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows = []


def _truncate(path: Path, size: int) -> None:
    """Remove the rows that were written after the state was saved."""
    found = path.stat().st_size
    text = f"has {found} bytes, but had {size} when the state was saved; restore it to continue"
    refuse(str(path), (found < size, "", text))
    os.truncate(path, size)


PER_ROUND: dict[str, CellType] = {
    "policy": "text",
    "round": "whole",
    "time_seconds": "number",
    "running": "whole",
    "waiting": "whole",
}

TYPES: dict[str, CellType] = {"str": "text", "Outcome": "text", "int": "whole", "bool": "flag"}
"""Types of columns by annotation in `JobRecord`; all others are numbers."""


def write_tenants_file(
    path: Path,
    labels: Mapping[str, CellType],
    accelerators: Sequence[str],
    tenants: Iterable[tuple[Sequence[object], Sequence[gp.TenantShare]]],
) -> None:
    """Write a table of tenants; labels: its first columns; tenants: (values of these columns, tenants)."""
    columns, whole = dict(labels), {name for name, column in gp.TenantShare.COLUMNS.items() if column.kind == "count"}
    for name in tenants_header(accelerators):
        columns[name] = "text" if name in ("tenant", "parent") else "whole" if name in whole else "number"
    file = ParquetFile(path, columns) if is_parquet(path) else CsvFile(path, list(columns))
    with closing(file):
        for first, found in tenants:
            for row in tenants_rows(found, accelerators):
                file.write([*first, *(None if cell == "" and isinstance(file, ParquetFile) else cell for cell in row)])


class Outputs:
    """The files of --jobs-out and --timeline-out, if given.

    sizes: lengths in bytes of "jobs" and "timeline" when the state was saved, if a saved state is continued.
    """

    def __init__(
        self, jobs: Path | None, timeline: Path | None, accelerators: Sequence[str], sizes: Mapping[str, int] | None = None
    ) -> None:
        self._accelerators = accelerators
        per_job: dict[str, CellType] = {field.name: TYPES.get(str(field.type), "number") for field in fields(gp.JobRecord)}
        self._names = list(per_job)
        policy: dict[str, CellType] = {"policy": "text"}
        used: dict[str, CellType] = {f"{name}_gpus": "whole" for name in accelerators}
        per_round = PER_ROUND | used | {"starts": "whole", "preemptions": "whole"}
        self._files: dict[str, CsvFile | ParquetFile] = {}
        with ExitStack() as opened:
            for name, path, columns in (("jobs", jobs, policy | per_job), ("timeline", timeline, per_round)):
                if path is not None:
                    size = None if sizes is None else sizes[name]
                    file = ParquetFile(path, columns) if is_parquet(path) else CsvFile(path, list(columns), size)
                    self._files[name] = opened.enter_context(closing(file))
            self._opened = opened.pop_all()

    @property
    def sizes(self) -> dict[str, int]:
        """The current lengths of the CSV files in bytes."""
        return {name: file.size for name, file in self._files.items() if isinstance(file, CsvFile)}

    def job(self, policy: str, record: gp.JobRecord) -> None:
        """Write the row of a job, if there is a file of jobs."""
        if "jobs" in self._files:
            self._files["jobs"].write([policy, *(getattr(record, name) for name in self._names)])

    def round(self, policy: str, round_: gp.Round, simulation: gp.Simulation) -> None:
        """Write the row of a round, if there is a timeline; simulation: the one that is about to run it."""
        if "timeline" not in self._files:
            return
        gpus = {(held.accelerator, gpu) for held in round_.assignments.values() for gpu in held.gpus}  # counts shared GPUs once
        used = Counter(accelerator for accelerator, _ in gpus)
        running = len(round_.assignments)
        first = [policy, round_.index, round_.start_seconds, running, simulation.active - running]
        last = [*(used[name] for name in self._accelerators), len(round_.started), simulation.preemptions]
        self._files["timeline"].write(first + last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()
