"""Tables that grow row by row, as CSV or, if the name ends in .parquet, as Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from gavel_py.errors import Fault, InputError

__all__ = ["Column", "TableFile", "is_parquet", "table_file"]

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
