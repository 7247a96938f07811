"""The simulator: a trace played on a cluster by the same round scheduler that runs it for real.

arrivals: jobs to come, and how they enter; job_progress: one job on its way; round_execution: all gangs that run, and what happens
in a round; node_events: failures and maintenance; measurements: where GPU time goes, and which jobs are measured; results: what
became of the jobs; simulation: the clock, and its state as plain data; recorder: all of it as a `Run`, for reports.
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
