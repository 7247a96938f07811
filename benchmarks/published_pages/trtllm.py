"""Tables of the performance overview of NVIDIA TensorRT-LLM as CSV: tokens/s by model, GPUs, and lengths of input and output.

In one shape, the GPUs are a column (tp) and accelerators have a column each; in the other, each accelerator has two columns, with
its throughput at a precision (h100_fp8) and its GPUs (h100_gpus). Empty cells were not published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavel_py.io import reading

from . import tables

LENGTHS = ("model", "isl", "osl")

CONDITION = "closed_loop"
"""The benchmark keeps the GPUs at full load."""

PRECISION = re.compile(r"(.+)_((?:fp|bf|int|nvfp|mxfp)\d+)")


def read(path: Path) -> list[tables.Placed]:
    """Return the throughputs of a table with a column tp."""

    def of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        for column in row:
            if column not in (*LENGTHS, "tp"):
                yield _fields(path, row, column, column, tables.whole(row, "tp"), "")

    return tables.each_row(reading.csv_rows(path, (*LENGTHS, "tp")), of)


def read_by_precision(path: Path) -> list[tables.Placed]:
    """Return the throughputs of a table with two columns for each accelerator."""

    def of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        for column in row:
            if match := PRECISION.fullmatch(column):
                yield _fields(path, row, column, match[1], tables.whole(row, f"{match[1]}_gpus"), match[2])

    return tables.each_row(reading.csv_rows(path, LENGTHS), of)


def _fields(path: Path, row: Mapping[str, str], column: str, name: str, gpus: int, precision: str) -> dict[str, Any]:
    model, inputs, outputs = tables.text(row, "model"), tables.whole(row, "isl"), tables.whole(row, "osl")
    return {
        "job_type": tables.named(model, f"input {inputs}", f"output {outputs}"),
        "num_gpus": gpus,
        "accelerator": tables.accelerator_name(name),
        "steps_per_second": tables.positive(row, column),
        "source": ", ".join(part for part in (path.name, precision.upper()) if part),
        "unit": "tokens/s",
        "condition": CONDITION,
        "family": model,
        "sequence_length": inputs + outputs,
    }


FORMAT = tables.ProfileFormat(read)
BY_PRECISION = tables.ProfileFormat(read_by_precision)
