# Written by .ci/option_stubs.py from integrations/slurm/settings.py; do not edit.
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from gavel_py.integrations.slurm.settings import OnExit, OnFailure, TypeRule, WallLimit

class SettingKeywords(TypedDict, total=False):
    partition: str
    measured: str
    accelerators: Mapping[str, str]
    prices_per_hour: Mapping[str, float]
    type_rules: tuple[TypeRule, ...]
    default_type: str | None
    default_steps: float | None
    trust: float
    trusted: Mapping[str, float]
    too_slow: float | None
    progress: Path | None
    warn_signal: str
    warn_seconds: float
    wall_limit: WallLimit
    poll_seconds: float
    stop_seconds: float
    start_seconds: float
    retry_seconds: float
    on_exit: OnExit
    on_failure: OnFailure
    lease: float
    history: Path | None
    tenants_from_slurm: bool
    elastic: bool
    metrics: Path | None
    metrics_port: int | None
