"""The simulator: a trace played on a cluster by the same round scheduler that runs it for real.

work: one job on its way; holds: all those that run; events: what happens to nodes; course: what happens in a round; usage: where
GPU time goes; records: what became of each job; summary: what became of all; saved: all of it as plain data; engine: the clock.
"""

from gavel_py.simulator.engine import Simulation
from gavel_py.simulator.events import NodeFailures, NodeWindow
from gavel_py.simulator.maintenance import read_maintenance
from gavel_py.simulator.playing import simulate
from gavel_py.simulator.records import JobRecord, Outcome
from gavel_py.simulator.result import SimulationResult
from gavel_py.simulator.summary import Distribution, Summary

__all__ = [
    "Distribution",
    "JobRecord",
    "NodeFailures",
    "NodeWindow",
    "Outcome",
    "Simulation",
    "SimulationResult",
    "Summary",
    "read_maintenance",
    "simulate",
]
