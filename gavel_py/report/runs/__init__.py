"""Runs as plain data: what sweeps, simulations and real clusters hand to reports.

run: one of them, its collection while it goes on, and to and from JSON; files: of runs, and the SQLite file of a sweep.
"""

from gavel_py.report.runs.files import read_failures, read_runs, write_runs
from gavel_py.report.runs.run import METRICS, Labels, OverTime, Run, Stay

__all__ = ["METRICS", "Labels", "OverTime", "Run", "Stay", "read_failures", "read_runs", "write_runs"]
