"""Output of the commands: tables that fit the terminal, progress bars, and files that are replaced atomically."""

from __future__ import annotations

import csv
import io
import os
import shutil
import stat
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from gavel_py.errors import Fault, InputError

MIN_TEXT_WIDTH = 16
"""Width down to which a column of text is folded, in characters."""

PIPE_WIDTH = 1000
"""Width of tables in pipes and files, in characters."""

REDRAW_SECONDS = 0.2
"""Least time between two updates of a progress bar; an update takes a few milliseconds."""


def emit(text: str, out: Path | None) -> None:
    """Write the text to a file or, for None, to standard output; a regular file is replaced atomically."""
    text = text if text.endswith("\n") else text + "\n"
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        target = out.resolve()  # the target of a link is replaced, not the link
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device
        else:
            _replace(target, text)
    except OSError as error:
        raise InputError(Fault(str(out), "", f"cannot be written: {error.strerror or error}")) from None


def _replace(target: Path, text: str) -> None:
    """Write a temporary file in the same folder and rename it; an existing file keeps its mode."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", dir=target.parent, delete=False) as file:
        file.write(text)
    new = Path(file.name)
    try:
        os.umask(umask := os.umask(0))
        new.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask)
        new.replace(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text with a header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def table_text(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table that fits the terminal, with the first `text_columns` columns left-aligned and the others right-aligned.

    Text is folded if necessary, numbers are not; if the columns do not fit, each row becomes a paragraph.
    """
    cells = [list(row) for row in rows]
    widest = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    min_widths = [min(MIN_TEXT_WIDTH, w) if i < text_columns else w for i, w in enumerate(widest)]
    room = width()
    heading = f"{title}\n\n".lstrip("\n")
    if sum(min_widths) + 2 * len(columns) + 2 > room:
        return heading + "\n".join(_paragraph(columns, row, room) for row in cells)
    return heading + _grid(columns, cells, text_columns, min_widths, room)


def _paragraph(columns: Sequence[str], row: Sequence[str], room: int) -> str:
    first, *others = (f"{name}: {cell}" for name, cell in zip(columns, row, strict=True) if cell)
    folded = (textwrap.fill(line, room, initial_indent="  ", subsequent_indent="    ") for line in others)
    return "\n".join([textwrap.fill(first, room), *folded]) + "\n"


def _grid(columns: Sequence[str], cells: Sequence[Sequence[str]], text_columns: int, min_widths: Sequence[int], room: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, column in enumerate(columns):
        is_number = index >= text_columns
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(Text(column), justify=justify, overflow="fold", no_wrap=is_number, min_width=min_widths[index])
    for row in cells:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=room, force_terminal=False, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def width() -> int:
    """Return the width of tables in characters: that of the terminal, or `PIPE_WIDTH` in pipes and files."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(20, shutil.get_terminal_size().columns) if is_known else PIPE_WIDTH


def counted(count: int, word: str) -> str:
    """Return "1 job", "2 jobs"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def unused_text(gpus: Mapping[str, int]) -> str:
    """Return a line on the unused GPUs, {accelerator type: GPUs}, or "" if there are none."""
    listed = ", ".join(f"{count} of {name}" for name, count in gpus.items() if count)
    return f"GPUs not used, since the profile lacks their type: {listed}\n" if listed else ""


def wrapped(lines: Iterable[str]) -> str:
    """Return the lines wrapped to the width of the terminal, with an indent in continuation lines."""
    return "".join(textwrap.fill(line, width(), subsequent_indent="    ") + "\n" for line in lines)


def gang_text(num_gpus: float) -> str:
    """Return the size of a gang as text; a fraction of a GPU has four significant digits."""
    return f"{num_gpus:.4g}" if num_gpus < 1 else str(num_gpus)


def number(value: float | None) -> str:
    """Return a number with four significant digits, or "-" for None."""
    return "-" if value is None else f"{value:.4g}"


Show = Callable[[Callable[[], tuple[float, str]], bool], None]
"""Updates a progress bar. Arguments: a function that returns the completed share and the text; whether to update in any case."""


@contextmanager
def progress_bar(label: str, first_seconds: float) -> Iterator[Show]:
    """Show a progress bar on standard error, at first after `first_seconds` and then at most every `REDRAW_SECONDS`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    bar = Progress(*columns[0 if label else 1 :], console=Console(stderr=True), auto_refresh=False, transient=True)
    task = bar.add_task(label, total=1.0, text="")
    due = time.monotonic() + first_seconds

    def show(state: Callable[[], tuple[float, str]], always: bool = False) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or always:
            due = now + REDRAW_SECONDS
            share, text = state()
            bar.update(task, completed=share, text=text, refresh=True)

    with bar:
        yield show
