"""Small files in the formats of other systems, and what is read from them."""

from __future__ import annotations

from pathlib import Path

from gavel_py import Trace, read_trace

__all__ = ["file", "places", "read", "skipped"]


def file(name: str, content: str) -> str:
    """Write a file with this content, which is dedented, and return its name."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content, encoding="utf-8")
    return name


def read(name: str, content: str, **options: bool) -> Trace:
    """Read a file with this content; its format must be recognised."""
    return read_trace(file(name, content), **options)


def skipped(trace: Trace) -> dict[str, int]:
    """Return {reason: number of skipped entries}."""
    return {skip.reason: skip.count for skip in trace.report.skipped}


def places(trace: Trace) -> list[tuple[str, str]]:
    """Return the place and the field of each fault."""
    return [(fault.where, fault.field) for fault in trace.report.faults]
