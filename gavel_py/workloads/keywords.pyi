# Written by .ci/option_stubs.py from workloads/generator.py; do not edit.
from collections.abc import Mapping
from typing import TypedDict

from gavel_py.workloads.generator import Empirical, LogUniform

class TraceKeywords(TypedDict, total=False):
    burstiness: float
    heavy_share: float
    heavy_weight: float
    reference: str
    gang_mix: Mapping[float, float] | None
    durations: LogUniform | Empirical | None
    workflows: bool
    seed: int
