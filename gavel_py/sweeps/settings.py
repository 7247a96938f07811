"""What all cells of a sweep have in common: settings of the simulations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import Finite, Name, NotNegative, Positive, Record
from gavel_py.simulator import NodeFailures, NodeWindow, read_maintenance

__all__ = ["Settings"]

HOUR = 3600.0
RANDOM = ("job_failures", "node_mtbf_hours")
"""What lets a seed matter, also to a trace in which nothing is drawn."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Settings(Record):
    """Those of `gp.Simulation` and of `gavel simulate`; what is not given is as there."""

    label: ClassVar[str] = "settings"

    whole_gangs: bool = True
    restart_seconds: NotNegative = 0.0
    min_run_seconds: NotNegative = 0.0
    solve_seconds: NotNegative = 0.0
    mechanism: Literal["deficit", "priority"] = "deficit"
    job_failures: Annotated[Finite, Field(ge=0, lt=1)] | Literal["recorded"] = 0.0
    checkpoint_seconds: Positive | None = None
    estimates: Literal["exact", "recorded"] = "exact"
    node_mtbf_hours: Positive | None = None
    node_repair_hours: Positive | None = None
    maintenance: Annotated[list[Name], BeforeValidator(_listed)] = Field(default_factory=list)
    until_seconds: NotNegative | None = None

    @property
    def of_time(self) -> list[str]:
        """Those that are given and that a static solve does not know."""
        return sorted(self.model_fields_set - {"whole_gangs"})

    @property
    def is_random(self) -> bool:
        """Whether a simulation draws anything, whatever the trace."""
        return any(getattr(self, name) for name in RANDOM)

    def arguments(self, path: Callable[[str], Path], where: Callable[..., str]) -> dict[str, Any]:
        """Return arguments of `Simulation`, and until_seconds, files read; path: from a text to a path; where: for faults."""
        given = self.model_dump(exclude_unset=True, exclude={"node_mtbf_hours", "node_repair_hours", "maintenance"})
        failures = self._failures(where)
        windows: list[NodeWindow] = [window for file in self.maintenance for window in read_maintenance(path(file))]
        if self.until_seconds is None:
            given.pop("until_seconds", None)
        return given | ({"node_failures": failures} if failures else {}) | ({"maintenance": windows} if windows else {})

    def _failures(self, where: Callable[..., str]) -> NodeFailures | None:
        mtbf, repair = self.node_mtbf_hours, self.node_repair_hours
        if mtbf is None and repair is None:
            return None
        if mtbf is None or repair is None or repair >= mtbf:
            text = "and node_repair_hours go together, the repair being the shorter: it is part of the time between two failures"
            raise InputError(Fault(where("settings"), "settings.node_mtbf_hours", text))
        return NodeFailures((mtbf - repair) * HOUR, repair * HOUR)
