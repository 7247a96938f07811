"""Importers of trace formats, one module for each source. A new source needs a module here and an entry in `IMPORTERS`."""

from __future__ import annotations

from pathlib import Path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.workloads.formats import gavel, helios, native, openb, pai, philly, slurm_accounting
from gavel_py.workloads.intake import Importer, head_of

__all__ = ["importer_of", "trace_formats"]

IMPORTERS: tuple[Importer, ...] = (
    native.CSV,
    native.JSON,
    native.JSON_LINES,
    native.PARQUET,
    gavel.IMPORTER,
    philly.LOG_IMPORTER,
    philly.TABLE_IMPORTER,
    pai.IMPORTER,
    pai.SIMULATOR_IMPORTER,
    openb.IMPORTER,
    helios.IMPORTER,
    slurm_accounting.IMPORTER,
)
"""The order in which the importers try to recognise a file."""


def trace_formats() -> dict[str, str]:
    """Return {name: description} of the formats that `read_trace` knows."""
    return {importer.name: importer.about for importer in IMPORTERS}


def importer_of(path: str | Path, name: str | None = None) -> Importer:
    """Return the importer with the given name, or by default the first one that recognises the file.

    Raises `UnknownNameError` for an unknown name, and `InputError` if the file cannot be read or no importer recognises it.
    """
    head, known = head_of(path), trace_formats()
    if name is not None and name not in known:
        raise UnknownNameError(Fault("trace formats", "format", f"{name!r} is not one{nearest(name, known)}"))
    for importer in IMPORTERS:
        if importer.recognises(head) if name is None else importer.name == name:
            return importer
    problem = f"is of no format that is known; say which with --format (format=...) if it is one: {', '.join(known)}"
    raise InputError(Fault(str(path), "", problem))
