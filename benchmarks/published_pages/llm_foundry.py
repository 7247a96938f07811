"""The training benchmarks of MosaicML's llm-foundry: Markdown tables with tokens/s of MPT models by sequence length.

Rows that differ in batch size, precision or checkpointing only are one entry, of which the first is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import tables

SPEED = "Throughput (T/s)"
COLUMNS = ("Model", "SeqLen (T)", "# GPUs", "GPU", "GlobalBatchSize", SPEED)


def read(path: Path) -> list[tables.Placed]:
    """Return the throughputs of all tables."""

    def fields_of(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        model, length = f"MPT-{tables.text(row, 'Model').upper()}", tables.whole(row, "SeqLen (T)")
        yield {
            "job_type": tables.named(model, f"sequence length {length}"),
            "num_gpus": tables.whole(row, "# GPUs"),
            "accelerator": tables.accelerator_name(tables.text(row, "GPU")),
            "steps_per_second": tables.positive(row, SPEED),
            "source": ", ".join(part for part in (path.name, row.get("Precision", "")) if part),
            "unit": "tokens/s",
            "family": model,
            "batch_size": tables.whole(row, "GlobalBatchSize"),
            "sequence_length": length,
        }

    return tables.each_row(((where, row) for where, _, row in tables.markdown_rows(path, COLUMNS)), fields_of)


FORMAT = tables.ProfileFormat(read)
