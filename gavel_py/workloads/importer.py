"""What an importer is: a name, a way to recognise its files, and a way to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gavel_py.workloads.heads import Head
from gavel_py.workloads.intake import Intake

__all__ = ["Importer"]


@dataclass(frozen=True)
class Importer:
    """One format of traces.

    name: as `--format` takes it; about: whose format it is, in a few words; recognises: from the beginning of a file or the
    names in a folder; read: puts every entry into the intake, and raises `InputError` only where nothing can be read at all;
    has_dates: its times are dates, so that the clock is to start with the first arrival.
    """

    name: str
    about: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, Intake], None]
    has_dates: bool = False
