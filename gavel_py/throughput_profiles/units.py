"""Units of throughputs: the list of units, the check that each job type has one unit, and conversions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from gavel_py.errors import Fault

Unit = Literal["steps/s", "samples/s", "tokens/s", "requests/s", "1/min"]
Condition = Literal["closed_loop", "offline", "server", "interactive", "slo"]

STEPS: Unit = "steps/s"
UNITS: tuple[Unit, ...] = (STEPS, "samples/s", "tokens/s", "requests/s", "1/min")
CONDITIONS: tuple[Condition, ...] = ("closed_loop", "offline", "server", "interactive", "slo")

SECONDS = {"1/min": 60.0}
"""Length of the time in a unit, if it is not a second."""

ITEM: dict[str, str] = {STEPS: "step", "samples/s": "sample", "tokens/s": "token", "requests/s": "request", "1/min": "run"}
"""What a unit counts. One over the minutes to a target counts runs to the target."""

PARTS = {"run": ("step", "sample", "token"), "step": ("sample", "token"), "sample": ("token",), "request": ("token",)}
"""The smaller items that an item consists of."""


class UnitOf(NamedTuple):
    """The unit and condition of the throughputs of a job type."""

    unit: str = STEPS
    condition: str | None = None

    def __str__(self) -> str:
        return self.unit if self.condition is None else f"{self.unit} ({self.condition})"


def condition_problem(unit: str, condition: str | None) -> str:
    """Return why a throughput in this unit cannot have this condition; empty if it can."""
    if unit == "requests/s" and condition is None:
        return f"is required with unit requests/s; it is one of {', '.join(CONDITIONS)}"
    if condition is not None and unit not in ("requests/s", "tokens/s"):
        return f"is of serving, in requests/s or tokens/s; leave it empty with unit {unit}"
    return ""


def mixed_units(placed: Iterable[tuple[str, str, UnitOf]]) -> list[Fault]:
    """Return a fault for each job type with two units or conditions; placed: (place for messages, job type, its unit)."""
    first: dict[str, tuple[str, UnitOf]] = {}
    faults: dict[str, Fault] = {}
    for where, job_type, unit in placed:
        at, known = first.setdefault(job_type, (where, unit))
        if known != unit and job_type not in faults:
            text = f"{job_type!r} has {unit} here, but {known} at {at}; a job type has one unit and condition"
            faults[job_type] = Fault(where, "unit" if known.unit != unit.unit else "condition", text)
    return list(faults.values())


class Conversion(NamedTuple):
    """How throughputs are converted: multiplied by `factor` times the figure, or divided by the figure if not `to_parts`."""

    needed: str
    to_parts: bool
    factor: float

    def apply(self, throughput: float, figure: float) -> float:
        """Return the throughput in the other unit; figure: the number of parts in one item."""
        return throughput * self.factor * (figure if self.to_parts else 1 / figure)


def conversion(unit: str, other: str) -> Conversion | None:
    """Return how throughputs in `unit` become those in `other`; None if neither unit counts parts of the other's items.

    >>> conversion("tokens/s", "samples/s").needed
    'tokens per sample'
    """
    item, wanted = ITEM[unit], ITEM[other]
    factor = SECONDS.get(other, 1.0) / SECONDS.get(unit, 1.0)
    if wanted in PARTS.get(item, ()):
        return Conversion(f"{wanted}s per {item}", True, factor)
    if item in PARTS.get(wanted, ()):
        return Conversion(f"{item}s per {wanted}", False, factor)
    return None
