"""Writing results: tables that fit the terminal, and files that are written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import stat
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gavel_py.errors import Fault, InputError

LEAST_TEXT = 16
"""Columns that text gets at least, before it folds."""

PIPE_WIDTH = 1000
"""Columns of a table that goes into a pipe or a file, where nothing tells the width."""


def emit(text: str, out: Path | None) -> None:
    """Write `text` to the file, or to standard output; a regular file is written whole or not at all."""
    text = text if text.endswith("\n") else text + "\n"
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        target = out.resolve()  # a link stays a link, its target is written
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device
        else:
            _replace(target, text)
    except OSError as error:
        raise InputError(Fault(str(out), "", f"cannot be written: {error.strerror or error}")) from None


def _replace(target: Path, text: str) -> None:
    """Write a new file beside the old one and put it in its place, with the old one's mode."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, delete=False) as file:
        file.write(text)
    new = Path(file.name)
    try:
        new.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask())
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text with one header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def table_text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table no wider than the terminal; the first `text_columns` columns stand left, numbers right.

    Text folds where it must, numbers never do; where they do not fit, each row becomes a paragraph of its own.
    """
    cells = [list(row) for row in rows]
    widest = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    least = [min(LEAST_TEXT, w) if i < text_columns else w for i, w in enumerate(widest)]
    room = width()
    heading = f"{title}\n\n".lstrip("\n")
    if sum(least) + 2 * len(columns) + 2 > room:
        return heading + "\n".join(_paragraph(columns, row, room) for row in cells)
    return heading + _grid(columns, cells, text_columns, least, room)


def _paragraph(columns: Sequence[str], row: Sequence[str], room: int) -> str:
    first, *others = (f"{name}: {cell}" for name, cell in zip(columns, row, strict=True) if cell)
    folded = (textwrap.fill(line, room, initial_indent="  ", subsequent_indent="    ") for line in others)
    lines = [textwrap.fill(first, room), *folded]
    return "\n".join(lines) + "\n"


def _grid(columns: Sequence[str], cells: Sequence[Sequence[str]], text_columns: int, least: Sequence[int], room: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        justify: Any = "left" if index < text_columns else "right"
        is_number = index >= text_columns
        table.add_column(Text(column), justify=justify, overflow="fold", no_wrap=is_number, min_width=least[index])
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=room, force_terminal=False, legacy_windows=False)
    console.print(table)
    text: Any = console.file
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def width() -> int:
    """Return how many columns a table may have: those of the terminal, or many where the output goes elsewhere."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(20, shutil.get_terminal_size().columns) if is_known else PIPE_WIDTH


def counted(count: int, word: str) -> str:
    """Return "1 job", "2 jobs"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def unused_text(gpus: Mapping[str, int]) -> str:
    """Return a line on the GPUs that are left out, {accelerator type: GPUs}; nothing where there are none."""
    told = ", ".join(f"{count} of {name}" for name, count in gpus.items() if count)
    return f"GPUs not used, since the profile lacks their type: {told}\n" if told else ""


def gang_text(num_gpus: float) -> str:
    """Return the GPUs of a gang, or the fraction of one in four significant digits."""
    return f"{num_gpus:.4g}" if num_gpus < 1 else str(num_gpus)


def number(value: float | None) -> str:
    """Return a number in at most 8 characters or so, four significant digits; "-" for none."""
    return "-" if value is None else f"{value:.4g}"
