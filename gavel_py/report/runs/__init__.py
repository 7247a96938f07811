"""Runs as plain data: what sweeps, simulations and real clusters hand to reports.

run: one of them; curves, held: its parts, collected while it goes on; numbers: arrays and samples, made small; documents: to and
from JSON; files: of runs, and those of sweeps; cells: the SQLite file of a sweep, written; stored: read; cell_tables: its tables.
"""

from gavel_py.report.runs.files import read_failures, read_runs, write_runs
from gavel_py.report.runs.run import METRICS, Labels, OverTime, Run, Stay

__all__ = ["METRICS", "Labels", "OverTime", "Run", "Stay", "read_failures", "read_runs", "write_runs"]
