# Written by .ci/option_stubs.py from serving/plan.py, serving/over_time.py; do not edit.
from collections.abc import Mapping
from typing import TypedDict

from gavel_py.serving.market import Quota

class PlanKeywords(TypedDict, total=False):
    floors: Mapping[str, float] | None
    budget_per_hour: float | None
    quotas: Mapping[str, Quota] | None
    above_floors: bool
    time_limit_seconds: float | None

class ScheduleKeywords(TypedDict, total=False):
    load_seconds: float
    load_cost: float
    quotas: Mapping[str, Quota] | None
    compare: bool
    time_limit_seconds: float | None
