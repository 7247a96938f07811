"""Our own jobs as Parquet, for those who keep their records so; it needs pyarrow, which comes with `gavel-py[parquet]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.workloads.formats.own import KNOWN, take_rows
from gavel_py.workloads.heads import Head
from gavel_py.workloads.importer import Importer
from gavel_py.workloads.intake import Intake

__all__ = ["IMPORTER"]


def _recognises(head: Head) -> bool:
    return head.text.startswith("PAR1")


def _read(path: Path, intake: Intake) -> None:
    take_rows(_rows(path), intake)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows batch by batch, so that the whole table is never in memory."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(f"Parquet files need pyarrow ({error}); install it with: pip install 'gavel-py[parquet]'") from None
    number = 0
    try:
        with ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names)
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (ArrowException, OSError) as error:
        raise InputError(Fault(str(path), "", f"cannot be read as Parquet: {error}")) from None


def _check_columns(path: Path, names: list[str]) -> None:
    faults = [Fault(str(path), "", f"column {name!r} is not known{nearest(name, KNOWN)}") for name in names if name not in KNOWN]
    faults += [] if "job_id" in names else [Fault(str(path), "", "column 'job_id' is missing")]
    InputError.raise_any(faults)


IMPORTER = Importer("parquet", "our own jobs, Parquet (needs pyarrow)", _recognises, _read)
