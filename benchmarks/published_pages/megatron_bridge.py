"""The performance summaries of NVIDIA Megatron Bridge: Markdown pages with tokens/s per GPU by model and system.

A page lists the latest release first; of equal entries the first one is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError

from . import tables

SPEED = "Tokens / sec / GPU"
COLUMNS = ("#-GPUs", "GBS", "Sequence Length", SPEED)

RELEASE, TASK, SUBJECT = 2, 3, 4
"""Levels of headings: the release, "Pre-Training Performance", and "Model: ..." or "System: ..."."""


def read(path: Path) -> list[tables.Placed]:
    """Return the throughputs of all tables."""
    placed: list[tables.Placed] = []
    faults: list[Fault] = []
    for where, headings, row in tables.markdown_rows(path, COLUMNS):
        try:
            placed += tables.each_row([(where, row)], partial(_fields, path.name, headings))
        except InputError as error:
            faults += error.faults
    InputError.raise_any(faults)
    return placed


def _fields(file: str, headings: Mapping[int, str], row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    subject, _, name = headings.get(SUBJECT, "").partition(":")
    both = {subject.strip(): name.strip(), **row}  # tables are by model or by system, which is the heading above
    model, _, variant = tables.text(both, "Model").partition("(")
    task = headings.get(TASK, "").removesuffix(" Performance").lower()
    precision = re.sub(r"\s*\(.*", "", row.get("Precision", ""))  # in parentheses: the precision of the figure in parentheses
    length, gpus = tables.whole(row, "Sequence Length"), tables.whole(row, "#-GPUs")
    release = headings.get(RELEASE, "").removesuffix(" NeMo Container")
    yield {
        "job_type": tables.named(model.strip(), task, variant.strip(" )"), precision, f"sequence length {length}"),
        "num_gpus": gpus,
        "accelerator": tables.accelerator_name(tables.text(both, "System")),
        "steps_per_second": tables.positive(row, SPEED) * gpus,
        "source": f"{file}, {release}" if release else file,
        "unit": "tokens/s",
        "family": model.strip(),
        "batch_size": tables.whole(row, "GBS"),
        "sequence_length": length,
    }


FORMAT = tables.ProfileFormat(read)
