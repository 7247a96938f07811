"""The training benchmarks of MosaicML's llm-foundry: Markdown tables with tokens/s of MPT models by sequence length.

Rows that differ in batch size, precision or checkpointing only are one entry, of which the first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavel_py.throughput_profiles.importers.tables import (
    Placed,
    ProfileFormat,
    accelerator_name,
    each_row,
    markdown_rows,
    named,
    positive,
    text,
    whole,
)

SPEED = "Throughput (T/s)"
COLUMNS = ("Model", "SeqLen (T)", "# GPUs", "GPU", "GlobalBatchSize", SPEED)


def read(path: Path) -> list[Placed]:
    """Return the throughputs of all tables."""

    def fields_of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        model, length = f"MPT-{text(row, 'Model').upper()}", whole(row, "SeqLen (T)")
        yield {
            "job_type": named(model, f"sequence length {length}"),
            "num_gpus": whole(row, "# GPUs"),
            "accelerator": accelerator_name(text(row, "GPU")),
            "steps_per_second": positive(row, SPEED),
            "source": ", ".join(part for part in (path.name, row.get("Precision", "")) if part),
            "unit": "tokens/s",
            "family": model,
            "batch_size": whole(row, "GlobalBatchSize"),
            "sequence_length": length,
        }

    return each_row(((where, row) for where, _, row in markdown_rows(path, COLUMNS)), fields_of)


FORMAT = ProfileFormat(
    "llm-foundry", "MosaicML llm-foundry, the README of its training benchmarks", lambda head: f"| {SPEED} |" in head.text, read
)
