"""The files that a command reads and writes: the types of their parameters, and standard input as a file.

A command refuses an output that would overwrite one of its inputs or another output, before it computes anything (`claim_file`).

Files are read by name, possibly several times, and their suffix determines the format. So standard input, "-" wherever a command
reads a file, is copied to a temporary file whose suffix fits its content. Messages and reports call this file "standard input"
(`with_names`).
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import gavel_py as gp
from gavel_py.cli.usage import refuse
from gavel_py.errors import faults_from

NAME = "standard input"
_COPY = "gavel_py.standard_input"
"""Key of the path of the copy in the context data of a command."""

_CLAIMED = "gavel_py.files"
"""Key of the files that the parameters so far name, in the context data of a command."""

MAX_SNIFFED = 65_536
"""Number of bytes from which the format is recognised."""


def writing(path: Path) -> AbstractContextManager[None]:
    """Return a block that raises errors of a file that is written as `InputError`."""
    return faults_from(str(path), "cannot be written", OSError)


class InputFile(click.Path):
    """The type of a parameter that names a file to read; "-" is standard input.

    suffix: suffix of the copy, None to choose it by its format; in_place: whether the copy is made in the current directory, since
    the file names other files relative to itself; as_text: whether the value is text that need not be a file.
    """

    def __init__(self, *, suffix: str | None = None, in_place: bool = False, as_text: bool = False) -> None:
        super().__init__(path_type=str if as_text else Path)
        self._suffix, self._in_place = suffix, in_place

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given = str(value)
        if ctx is not None and not ctx.resilient_parsing:
            # Names of files may be joined, as those of profiles are.
            for path in ("/dev/stdin",) if given == "-" else {given, *given.split("+")}:
                claim_file(ctx, _label(param), path, writes=False)
            if given == "-":
                value = _copied(ctx, self._suffix, in_place=self._in_place)
        return super().convert(value, param, ctx)


class OutputFile(click.Path):
    """The type of a parameter that names a file to write, refused before anything is computed if it cannot be written.

    folder: whether it may be a folder; after: the option of an input that is read before and may be replaced.
    """

    def __init__(self, *, folder: bool = False, after: str = "") -> None:
        super().__init__(path_type=Path, dir_okay=folder)
        self._after = after

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if ctx is not None and not ctx.resilient_parsing:
            claim_file(ctx, _label(param), path, writes=True, after=self._after)
            gp.check_writable(path, folder=self.dir_okay)
        return path


@dataclass(frozen=True)
class _Claim:
    label: str
    path: str
    writes: bool
    after: str


def claim_file(ctx: click.Context, label: str, path: str | Path, *, writes: bool, after: str = "") -> None:
    """Note a file of a command. Raises `UsageError` if it, or a file noted before, would overwrite the other one.

    label: the option or argument that names it; after: the label of an input that may be replaced by this output.
    """
    claimed: list[_Claim] = ctx.meta.setdefault(_CLAIMED, [])
    new = _Claim(label, str(path), writes, after)
    for old in claimed:
        output, other = (new, old) if new.writes else (old, new)
        if new.label == old.label or not output.writes or other.label == output.after:
            continue
        if _are_same(output.path, other.path, may_be_new=other.writes):
            what = "each would overwrite the other" if other.writes else "the output would overwrite the input"
            files = f"{output.label} {output.path} and {other.label} {other.path} are the same file"
            raise click.UsageError(f"{files}, so {what}; give another name")
    claimed.append(new)


def _are_same(first: str, second: str, *, may_be_new: bool) -> bool:
    """Return whether two names are those of one file, also by links; a terminal, a pipe or a device can be both."""
    try:
        found = Path(first).stat(), Path(second).stat()
    except (OSError, ValueError):  # there is no such file yet, or the text is not a name
        return may_be_new and os.path.realpath(first) == os.path.realpath(second)
    return stat.S_ISREG(found[0].st_mode) and os.path.samestat(*found)


def _label(param: click.Parameter | None) -> str:
    """Return the longest name of an option, or the name of an argument in the help."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return "the file" if param is None else param.human_readable_name.strip("[].")


def _copied(ctx: click.Context, suffix: str | None, *, in_place: bool) -> str:
    """Return the path of a copy of standard input that exists as long as the command. Raises `UsageError` if it is already read."""
    refuse((_COPY in ctx.meta, "standard input (-) can be read only once; give a file for the other input"))
    data = sys.stdin.buffer.read()
    name = f"standard-input{_suffix(data) if suffix is None else suffix}"
    if in_place:
        copy = Path(tempfile.mkstemp(prefix=".", suffix=f"-{name}", dir=Path())[1])
        ctx.find_root().call_on_close(lambda: copy.unlink(missing_ok=True))
        copy = Path(copy.name)
    else:
        copy = Path(ctx.find_root().with_resource(tempfile.TemporaryDirectory(prefix="gavel-"))) / name
    copy.write_bytes(data)
    ctx.meta[_COPY] = str(copy)
    return str(copy)


def with_names(text: str) -> str:
    """Return the text with the name of the copy replaced by "standard input"."""
    context = click.get_current_context(silent=True)
    copy = None if context is None else context.meta.get(_COPY)
    return text if copy is None else text.replace(copy, NAME)


def _suffix(data: bytes) -> str:
    """Return the suffix of the format of a file: CSV, JSON, JSON Lines, YAML, a trace of Gavel, Parquet or SQLite."""
    for magic, suffix in ((b"SQLite format 3", ".sqlite"), (b"PAR1", ".parquet")):
        if data.startswith(magic):
            return suffix
    text = data[:MAX_SNIFFED].decode("utf-8-sig", "replace").lstrip()
    lines = [line for line in re.split(r"\r\n?|\n", text) if line.strip() and not line.startswith("#")] or [""]
    if text.startswith("[") or (text.startswith("{") and not _are_objects(lines)):
        return ".json"
    if text.startswith("{"):
        return ".jsonl"
    if "\t" in lines[0]:
        return ".trace"
    return ".yaml" if re.match(r"---|\s*-\s|[^,]*:(\s|$)", lines[0]) else ".csv"


def _are_objects(lines: list[str]) -> bool:
    """Return whether each line is an object, as in JSON Lines; a single line must be a job."""
    try:
        first = json.loads(lines[0])
    except ValueError:
        return False
    return len(lines) > 1 or "job_id" in first
