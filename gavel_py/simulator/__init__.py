"""The simulator: a trace played on a cluster by the same round scheduler that runs it for real.

work: one job on its way; holds: all those that run; events: what happens to nodes; course: what happens in a round; usage: where
GPU time goes; records: what became of each job; measuring: which of them count; summary: what became of all; saved: all of it as
plain data; engine: the clock; recorder, recording: all of it as a `Run`, for reports.
"""

from gavel_py.simulator.node_events import NodeFailures, NodeWindow, read_maintenance
from gavel_py.simulator.recorder import RunRecorder, record_run
from gavel_py.simulator.results import Distribution, JobRecord, Outcome, SimulationResult, Summary
from gavel_py.simulator.simulation import Simulation, simulate

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
