"""Importers of traces: one file per format, and the list of them."""

from gavel_py.workloads.formats.registry import importer_of, trace_formats

__all__ = ["importer_of", "trace_formats"]
