"""Runs as plain data, from sweeps, simulations and real clusters: the record (`run`) and its files (`files`)."""

from gavel_py.report.runs.files import read_failures, read_runs, write_runs
from gavel_py.report.runs.run import Labels, OverTime, Run, Stay

__all__ = ["Labels", "OverTime", "Run", "Stay", "read_failures", "read_runs", "write_runs"]
