# Written by .ci/option_stubs.py from scheduling/options.py; do not edit.
from typing import TypedDict

from gavel_py.scheduling.mechanism.demand import Mechanism

class OptionAttributes:
    whole_gangs: bool
    by_workflow: bool
    sharing: bool
    min_gain: float
    round_seconds: float
    restart_seconds: float
    min_run_seconds: float
    solve_seconds: float
    time_limit_seconds: float | None
    retry_seconds: float
    mechanism: str | Mechanism
    by_events: bool

class SchedulerKeywords(TypedDict, total=False):
    whole_gangs: bool
    by_workflow: bool
    sharing: bool
    min_gain: float
    restart_seconds: float
    min_run_seconds: float
    solve_seconds: float
    time_limit_seconds: float | None
    retry_seconds: float
    mechanism: str | Mechanism
    by_events: bool

class OptionChanges(SchedulerKeywords, total=False):
    round_seconds: float
