# Written by .ci/option_stubs.py from simulator/options.py; do not edit.
from collections.abc import Callable, Iterable
from typing import TypedDict

from gavel_py.report.runs.summary import JobWindow
from gavel_py.scheduling import Round
from gavel_py.scheduling.keywords import SchedulerKeywords
from gavel_py.simulator.node_events import NodeFailures, NodeWindow
from gavel_py.simulator.options import Estimates, Gangs, JobFailures, Learn, Starts
from gavel_py.simulator.results import JobRecord

class UnsavedKeywords(TypedDict, total=False):
    learn: Learn
    on_record: Callable[[JobRecord], None] | None
    on_round: Callable[[Round], None] | None
    on_starts: Starts | None
    on_gangs: Gangs | None

class SimulationKeywords(SchedulerKeywords, UnsavedKeywords, total=False):
    round_seconds: float | None
    starts_between_rounds: bool
    interference: float
    job_failures: JobFailures
    checkpoint_seconds: float | None
    estimates: Estimates
    node_failures: NodeFailures | None
    maintenance: Iterable[NodeWindow]
    measure_jobs: JobWindow | None
    start_seconds: float | None
    seed: int
    allow_unknown_types: bool
