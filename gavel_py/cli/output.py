"""Writing results: tables that fit the terminal, and files that are written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from gavel_py.errors import Fault, InputError

__all__ = ["counted", "csv_text", "emit", "number", "table_text", "width"]

PIPE_WIDTH = 1000
"""Columns of a table that goes into a pipe or a file, where nothing tells the width."""


def emit(text: str, out: Path | None) -> None:
    """Write `text` to the file, whole or not at all, or to standard output."""
    text = text if text.endswith("\n") else text + "\n"
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=out.resolve().parent, delete=False) as file:
            file.write(text)
        _replace(Path(file.name), out)
    except OSError as error:
        raise InputError(Fault(str(out), "", f"cannot be written: {error.strerror or error}")) from None


def _replace(new: Path, old: Path) -> None:
    try:
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o666 & ~umask)  # temporary files are private; this one is the user's
        new.replace(old)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text with one header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def table_text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table no wider than the terminal; the first `text_columns` columns stand left, numbers right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        justify: Any = "left" if index < text_columns else "right"
        table.add_column(Text(column), justify=justify, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=width(), force_terminal=False, legacy_windows=False)
    console.print(table)
    text: Any = console.file
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return f"{title}\n\n".lstrip("\n") + "\n".join(lines).strip("\n") + "\n"


def width() -> int:
    """Return how many columns a table may have: those of the terminal, or many where the output goes elsewhere."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(40, shutil.get_terminal_size().columns) if is_known else PIPE_WIDTH


def counted(count: int, word: str) -> str:
    """Return "1 job", "2 jobs"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def number(value: float | None) -> str:
    """Return a number in at most 8 characters or so, four significant digits; "-" for none."""
    return "-" if value is None else f"{value:.4g}"
