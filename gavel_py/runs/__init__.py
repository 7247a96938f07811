"""Runs as plain data: what sweeps, simulations and real clusters hand to reports."""

from gavel_py.runs.run import METRICS, OverTime, Run, Stay

__all__ = ["METRICS", "OverTime", "Run", "Stay"]
