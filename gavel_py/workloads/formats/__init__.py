"""Trace formats, one module for each source. A new source needs a module here and an entry in `FORMATS`.

Installed packages offer formats as entry points of the group `gavel_py.trace_formats`; a user's own is named package.module:name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.plugins import Plugins, one_line
from gavel_py.workloads.formats import alibaba2018, gavel, helios, native, openb, pai, philly, pollux, slurm_accounting
from gavel_py.workloads.intake import HasColumns, Head, Intake, TraceFormat, head_of

__all__ = ["format_of", "trace_formats"]

FORMATS: tuple[TraceFormat, ...] = (
    native.CSV,
    native.JSON,
    native.JSON_LINES,
    native.PARQUET,
    gavel.FORMAT,
    philly.LOG_FORMAT,
    philly.TABLE_FORMAT,
    pai.FORMAT,
    pai.SIMULATOR_FORMAT,
    openb.FORMAT,
    alibaba2018.FORMAT,
    helios.FORMAT,
    pollux.FORMAT,
    pollux.FIXED_FORMAT,
    slurm_accounting.FORMAT,
)
"""The order in which formats are tried on a file."""

BY_NAME = {each.name: each for each in FORMATS}


def _is_format(value: object) -> bool:
    return isinstance(value, TraceFormat)


PLUGINS = Plugins("gavel_py.trace_formats", "trace format", "trace formats", "object", BY_NAME, _is_format)


def trace_formats() -> dict[str, str]:
    """Return {name: description} of the formats that `read_trace` can read: built-in ones, then those of installed packages."""
    offered = {name: f"of package {offers[0].package}" for name, offers in PLUGINS.offers().items()}
    return {each.name: each.about for each in FORMATS} | offered


def format_of(path: str | Path, name: str | TraceFormat | None = None, ignored: Collection[str] = ()) -> TraceFormat:
    """Return the format with this name, the format itself if one is given, or by default the first that recognises the file.

    Args:
        path: The file.
        name: A name, a format, or None.
        ignored: Columns to leave out.

    Raises:
        UnknownNameError: There is no format of this name.
        InputError: The file cannot be read, or no format recognises it.
    """
    head = head_of(path, ignored)
    if isinstance(name, TraceFormat):
        return _guarded(name, f"trace format {name.name}")
    if name is not None:
        return _named(name)
    offered = (_offered(each) for each in PLUGINS.offers())  # imported only if no built-in format recognises the file
    found = next((each for formats in (FORMATS, offered) for each in formats if each.recognises(head)), None)
    if found is None and native.is_nearly_csv(head):
        return native.CSV
    if found is None:
        known = ", ".join(trace_formats())
        with_commas = replace(head, text=re.sub(r"[;\t]", ",", head.first_line))
        if not head.is_json and with_commas.text != head.first_line and any(each.recognises(with_commas) for each in FORMATS):
            raise InputError(Fault(str(path), "", f"found one column, {head.first_line!r}; cells must be separated by commas"))
        text = f"has no known format; if it has one of these, select it with --format (format=...): {known}"
        raise InputError(Fault(str(path), "", text + _nearest_format(head)))
    return found


def _nearest_format(head: Head) -> str:
    """Return the end of a sentence that names the format with most columns of the file, and those that the file lacks; or ""."""
    tests = {each.name: each.recognises for each in FORMATS if isinstance(each.recognises, HasColumns)}
    lacking = {native.CSV.name: ["job_id"]} | {name: test.lacking(head) for name, test in tests.items()}
    found = {name: len(test.names) - len(lacking[name]) for name, test in tests.items()}
    found[native.CSV.name] = sum(map(native.is_known, head.columns()))
    name = min(found, key=lambda name: (-found[name], len(lacking[name])))
    return f"; the nearest is {name}, but the file lacks the columns {', '.join(lacking[name])}" if found[name] else ""


def _named(name: str) -> TraceFormat:
    if name in BY_NAME:
        return BY_NAME[name]
    if ":" in name or name in (known := trace_formats()):
        return _offered(name)
    hint = f"; to use your own, write {PLUGINS.form}" if "." in name else nearest(name, known)
    raise UnknownNameError(Fault("trace formats", "format", f"{name!r} is not a trace format{hint}"))


def _offered(name: str) -> TraceFormat:
    """Return a format of a user or of a package."""
    found, where = PLUGINS.loaded(name)
    if not isinstance(found, TraceFormat):
        raise InputError(Fault(where, "", f"must be a gavel_py.TraceFormat, found {found!r}"))
    return _guarded(found, where)


def _guarded(found: TraceFormat, where: str) -> TraceFormat:
    """Return a user's format in which any error of its functions is raised as `InputError`."""

    def recognises(head: Head) -> bool:
        try:
            return bool(found.recognises(head))
        except Exception as error:  # it may raise anything
            raise InputError(Fault(where, "", f"failed to recognise {head.path} with {one_line(error)}")) from error

    def read(path: Path, intake: Intake) -> None:
        try:
            found.read(path, intake)
        except InputError:
            raise
        except Exception as error:
            raise InputError(Fault(where, "", f"failed to read {path} with {one_line(error)}")) from error

    return replace(found, recognises=recognises, read=read)
