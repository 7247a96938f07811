"""Importers of traces, one file per format, and the list of them: a new one is a file beside the others and a line here."""

from __future__ import annotations

from pathlib import Path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.workloads.formats import gavel, helios, native, openb, pai, pai_simulator, philly, philly_table, slurm_accounting
from gavel_py.workloads.intake import Importer, head_of

__all__ = ["importer_of", "trace_formats"]

IMPORTERS: tuple[Importer, ...] = (
    native.CSV,
    native.JSON,
    native.JSON_LINES,
    native.PARQUET,
    gavel.IMPORTER,
    philly.IMPORTER,
    philly_table.IMPORTER,
    pai.IMPORTER,
    pai_simulator.IMPORTER,
    openb.IMPORTER,
    helios.IMPORTER,
    slurm_accounting.IMPORTER,
)
"""In the order in which they are asked whether they recognise a file."""


def trace_formats() -> dict[str, str]:
    """Return the formats that `read_trace` knows: their names, and whose each is."""
    return {importer.name: importer.about for importer in IMPORTERS}


def importer_of(path: str | Path, name: str | None = None) -> Importer:
    """Return the importer of this name, or else the one that recognises the file.

    Raises `UnknownNameError` for a name that no importer bears, `InputError` where none recognises the file or it cannot be read.
    """
    head = head_of(path)
    if name is not None:
        for importer in IMPORTERS:
            if importer.name == name:
                return importer
        raise UnknownNameError(Fault("trace formats", "format", f"{name!r} is not one{nearest(name, trace_formats())}"))
    for importer in IMPORTERS:
        if importer.recognises(head):
            return importer
    problem = f"is of no format that is known; say which with --format (format=...) if it is one: {', '.join(trace_formats())}"
    raise InputError(Fault(str(path), "", problem))
