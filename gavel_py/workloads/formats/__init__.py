"""Trace formats, one module for each source. A new source needs a module here and an entry in `FORMATS`.

Installed packages offer formats as entry points of the group `gavel_py.trace_formats`; a user's own is named package.module:name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gavel_py.errors import Fault, GavelError, InputError, UnknownNameError, nearest, refuse
from gavel_py.io.plugins import Plugins, one_line
from gavel_py.workloads.formats import alibaba2018, gavel, helios, kueue, native, openb, pai, philly, pollux, slurm_accounting
from gavel_py.workloads.intake import FileHead, HasColumns, Intake, TraceFormat, head_of

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
    kueue.FORMAT,
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


def format_of(
    path: str | Path, name: str | TraceFormat | None = None, ignored: Collection[str] = (), renamed: Collection[str] = ()
) -> TraceFormat:
    """Return the format with this name, the format itself if one is given, or by default the first that recognises the file.

    Args:
        path: The file.
        name: A name, a format, or None.
        ignored: Columns to leave out.
        renamed: Columns that have other names than the fields that they are, which only files of jobs may have.

    Raises:
        UnknownNameError: There is no format of this name.
        InputError: The file cannot be read, or no format recognises it, or it has renamed columns and is no file of jobs.
    """
    head = head_of(path, ignored)
    if renamed:
        own = native.own_format(head)
        text = f"must be {own.name!r}, that of the file, since columns are named for files of jobs only, found {name!r}"
        refuse(str(path), (name not in (None, own, own.name), "format", text))
        return own
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
        named = f"for jobs whose columns have other names, --columns submit=arrival_seconds{_nearest_format(head)}"
        text = f"has no known format; if it has one of these, use gavel trace import --format: {known}; {named}"
        if not head.is_json and with_commas.text != head.first_line and any(each.recognises(with_commas) for each in FORMATS):
            text = f"found one column, {head.first_line!r}; cells must be separated by commas"
        raise InputError(Fault(str(path), "", text))
    return found


def _nearest_format(head: FileHead) -> str:
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
    """Return a user's format in which errors of its functions are raised as `InputError`, but for those of gavel_py."""

    def recognises(head: FileHead) -> bool:
        with _blaming(where, f"failed to recognise {head.path}"):
            return bool(found.recognises(head))

    def read(path: Path, intake: Intake) -> None:
        with _blaming(where, f"failed to read {path}"):
            found.read(path, intake)

    return replace(found, recognises=recognises, read=read)


@contextmanager
def _blaming(where: str, attempt: str) -> Iterator[None]:
    """Raise any error of a user's code in the block as an `InputError`; errors of gavel_py pass unchanged."""
    try:
        yield
    except GavelError:
        raise
    except Exception as error:
        raise InputError(Fault(where, "", f"{attempt} with {one_line(error)}")) from error
