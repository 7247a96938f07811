"""Small files written in the formats of others, and what is read of them."""

from __future__ import annotations

from pathlib import Path

from gavel_py import Trace, read_trace

__all__ = ["file", "places", "read", "skipped"]


def file(name: str, content: str) -> str:
    """Write a file with this content, which may be indented as the test is, and return its name."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content, encoding="utf-8")
    return name


def read(name: str, content: str, **options: bool) -> Trace:
    """Read a file with this content; its format must be recognised."""
    return read_trace(file(name, content), **options)


def skipped(trace: Trace) -> dict[str, int]:
    """Why entries were skipped, and how many."""
    return {skip.reason: skip.count for skip in trace.report.skipped}


def places(trace: Trace) -> list[tuple[str, str]]:
    """Where something is broken, and in which field."""
    return [(fault.where, fault.field) for fault in trace.report.faults]
