"""Support for benchmarks: Markdown tables, a description of the machine, and insertion into a page."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; numbers have three digits, None is an empty cell."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell(value) for value in line)} |\n" for line in lines)


def cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def machine() -> str:
    """Return a few words on the machine, for the line below a table."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def write(name: str, text: str, page: Path = RESULTS) -> None:
    """Put a text between the marks `name: begin` and `name: end` of a page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + "\n" + text + end + rest.split(end)[1])
