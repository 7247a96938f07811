"""The rows of a sweep as tables: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.io.writing import check_place, write_whole

__all__ = ["Row", "aligned", "check_table", "write_table"]

Row = Mapping[str, str | float | None]
SUFFIXES = (".csv", ".parquet")
TEXT = {"policy", "trace", "cluster", "measure_jobs", "status", "error"}
WHOLE = {"seed", "attempts"}


def aligned(rows: Sequence[Row]) -> list[dict[str, str | float | None]]:
    """Return the rows with the same columns each, None where a row has nothing there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def check_table(path: str | Path) -> None:
    """Say beforehand whether a table can be written to `path`.

    Raises `InputError` for a name that does not tell the format, a folder that is not there or may not be written to, and for
    Parquet without what it needs.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(Fault(str(path), "", f"cannot tell the format from the name; it must end in {' or '.join(SUFFIXES)}"))
    check_place(Path(path))
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise InputError(f"Parquet files need pyarrow ({error}); install it with: pip install 'gavel-py[parquet]'") from None


def write_table(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows to a .csv or .parquet file, whole or not at all; raises `InputError`."""
    check_table(path)
    write_whole(path, _parquet(aligned(rows)) if Path(path).suffix.lower() == ".parquet" else _csv(aligned(rows)))


def _csv(rows: Sequence[Row]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    kinds = {
        name: pyarrow.string() if name in TEXT else pyarrow.int64() if name in WHOLE else pyarrow.float64() for name in columns
    }
    table = pyarrow.table({name: pyarrow.array(values, type=kinds[name]) for name, values in columns.items()})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
