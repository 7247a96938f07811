"""The simulator: runs a trace on the round scheduler, with a clock and the events of jobs and nodes.

Entry points: `simulation` (`Simulation`, `simulate`), and `recorder`, which returns a `Run` for reports. The package is independent
of the callers that run simulations, such as sweeps and the command line.
"""

from gavel_py.report.runs.summary import Distribution, Outcome, Summary
from gavel_py.simulator.node_events import NodeFailures, NodeWindow, read_maintenance
from gavel_py.simulator.options import SimulationOptions
from gavel_py.simulator.recorder import RunRecorder, record_run
from gavel_py.simulator.results import JobRecord, SimulationResult
from gavel_py.simulator.simulation import Simulation, simulate

__all__ = [
    "Distribution",
    "JobRecord",
    "NodeFailures",
    "NodeWindow",
    "Outcome",
    "RunRecorder",
    "Simulation",
    "SimulationOptions",
    "SimulationResult",
    "Summary",
    "read_maintenance",
    "record_run",
    "simulate",
]
