"""The simulator: runs a trace on the round scheduler, with a clock and the events of jobs and nodes.

Entry points: `simulation` (`Simulation`, `simulate`), and `recorder` for a `Run` that reports show. The package does not know what
runs simulations: sweeps and the command line are above it.
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
