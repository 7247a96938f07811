"""The throughputs of ElasticFlow (ASPLOS 2023): a CSV file for each model and accelerator, steps/s by global batch size and GPUs.

The file name contains the accelerator and the model: throughputs_A100_bert.csv. Empty cells, 0 and nan were not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading

from . import tables

BATCH = "global_batch_size"

FILE = re.compile(r"throughputs_([^_]+)_(.+)\.csv")

UNMEASURED = ("", "0", "0.0", "nan")

ALIASES = {"A100": "a100-40gb"}
"""The testbed, Azure Standard_ND96asr_A100, has A100 GPUs with 40 GB."""


def read(path: Path) -> list[tables.Placed]:
    """Return the measured throughputs of a table."""
    match = FILE.fullmatch(path.name)
    if match is None:
        problem = "must be named throughputs_ACCELERATOR_MODEL.csv, since the file name gives accelerator and model"
        raise InputError(Fault(str(path), "", problem))
    accelerator, model = ALIASES.get(match[1]) or tables.accelerator_name(match[1]), match[2]
    where, header = reading.csv_header(path)
    wrong = [column for column in header if column != BATCH and not re.fullmatch(r"[1-9][0-9]*", column)]
    InputError.raise_any([Fault(where, "", f"column {c!r} must be a number of GPUs or {BATCH}") for c in wrong])

    def fields_of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        batch = tables.whole(row, BATCH)
        for gpus, cell in row.items():
            if gpus != BATCH and cell.lower() not in UNMEASURED:
                yield {
                    "job_type": tables.named(model, f"batch size {batch}"),
                    "num_gpus": int(gpus),
                    "accelerator": accelerator,
                    "steps_per_second": tables.positive(row, gpus),
                    "source": path.name,
                    "family": model,
                    "batch_size": batch,
                }

    return tables.each_row(reading.csv_rows(path, (BATCH,)), fields_of)


FORMAT = tables.ProfileFormat(read)
