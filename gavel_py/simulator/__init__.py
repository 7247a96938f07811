"""The simulator: a trace played on a cluster by the same round scheduler that runs it for real.

work: one job on its way; holds: all those that run; events: what happens to nodes; course: what happens in a round; usage: where
GPU time goes; records: what became of each job; measuring: which of them count; summary: what became of all; saved: all of it as
plain data; engine: the clock; recorder, recording: all of it as a `Run`, for reports.
"""

from gavel_py.simulator.engine import Simulation
from gavel_py.simulator.events import NodeFailures, NodeWindow
from gavel_py.simulator.maintenance import read_maintenance
from gavel_py.simulator.playing import simulate
from gavel_py.simulator.recorder import RunRecorder
from gavel_py.simulator.recording import record_run
from gavel_py.simulator.records import JobRecord, Outcome
from gavel_py.simulator.result import SimulationResult
from gavel_py.simulator.summary import Distribution, Summary

__all__ = [
    "Distribution",
    "JobRecord",
    "NodeFailures",
    "NodeWindow",
    "Outcome",
    "RunRecorder",
    "Simulation",
    "SimulationResult",
    "Summary",
    "read_maintenance",
    "record_run",
    "simulate",
]
