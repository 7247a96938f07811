"""One measured speed, the entry of a profile that it fills, and what makes measurements contradict each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

from pydantic import model_validator

from gavel_py.errors import Fault
from gavel_py.io.records import GangSize, Name, NotNegative, Positive, Record, Text

Placement = Literal["consolidated", "spread"]
PLACEMENTS: tuple[Placement, ...] = ("consolidated", "spread")


class Entry(NamedTuple):
    """What a throughput is asked for: the speed of a gang of `job_type`, alone or while sharing with `partner`."""

    job_type: str
    num_gpus: float
    accelerator: str
    placement: str = "consolidated"
    partner: str | None = None

    def __str__(self) -> str:
        return f"{self.job_type!r} on {self.setting}"

    @property
    def setting(self) -> str:
        """All but the job type, in words."""
        sharing = "" if self.partner is None else f", sharing with {self.partner!r}"
        return f"{self.num_gpus} x {self.accelerator} ({self.placement}{sharing})"


class Row(NamedTuple):
    """The plain values of a `Measurement`: what profiles keep, files and the store hold, and the built-in data load fast as."""

    job_type: str
    num_gpus: float
    accelerator: str
    placement: str
    steps_per_second: float
    partner_job_type: str | None
    partner_steps_per_second: float | None
    source: str
    gpu_memory_gb: float | None = None


class Measurement(Record):
    """A measured speed of a whole gang, alone or in a pair that shares the same GPUs.

    num_gpus: GPUs of the gang, in a pair the same for both, or the fraction of one GPU that a job has, which is never in a pair;
    placement: consolidated = on as few nodes as possible, spread = over several nodes;
    steps_per_second: of job_type, 0 = cannot run there;
    partner_job_type, partner_steps_per_second: who shares the GPUs, and its own speed meanwhile;
    source: where the figure comes from;
    gpu_memory_gb: what the gang takes of the memory of each of its GPUs, GB; told of gangs alone, not of pairs.

    >>> Measurement(job_type="A3C", num_gpus=1, accelerator="k80", steps_per_second=3.4).entry.accelerator
    'k80'
    """

    label: ClassVar[str] = "measurement"
    identifier: ClassVar[str] = "job_type"

    job_type: Name
    num_gpus: GangSize
    accelerator: Name
    placement: Placement = "consolidated"
    steps_per_second: NotNegative
    partner_job_type: Name | None = None
    partner_steps_per_second: NotNegative | None = None
    source: Text = ""
    gpu_memory_gb: Positive | None = None

    @model_validator(mode="after")
    def _check_pair(self) -> Measurement:
        if (self.partner_job_type is None) != (self.partner_steps_per_second is None):
            raise ValueError("partner_job_type and partner_steps_per_second must be given together")
        if self.partner_job_type is not None and self.num_gpus < 1:
            raise ValueError("a pair shares whole GPUs; give the speed of a job with a fraction of a GPU without partner")
        if self.partner_job_type == self.job_type and self.partner_steps_per_second != self.steps_per_second:
            raise ValueError("a pair of one job type with itself must have the same steps_per_second on both sides")
        if self.partner_job_type is not None and self.gpu_memory_gb is not None:
            raise ValueError("gpu_memory_gb is what one gang takes; give it where it runs alone, not for a pair")
        return self

    @property
    def entry(self) -> Entry:
        """The entry that holds `steps_per_second`."""
        return Entry(self.job_type, self.num_gpus, self.accelerator, self.placement, self.partner_job_type)

    def row(self) -> Row:
        """Return the plain values."""
        return Row(*(getattr(self, field) for field in Row._fields))

    def canonical(self) -> Measurement:
        """Return the measurement with the two sides of a pair in alphabetical order."""
        if self.partner_job_type is None or self.job_type <= self.partner_job_type:
            return self
        swapped = {
            "job_type": self.partner_job_type,
            "steps_per_second": self.partner_steps_per_second,
            "partner_job_type": self.job_type,
            "partner_steps_per_second": self.steps_per_second,
        }
        return self.model_copy(update=swapped)


def collect(placed: Iterable[tuple[str, Measurement]]) -> tuple[tuple[Measurement, ...], list[Fault]]:
    """Return the measurements, each pair once and in canonical order, and a fault for each one that stands twice.

    `placed` gives with each measurement where it was found. A pair may be given from both sides when both agree.
    """
    found: dict[Entry, str] = {}
    kept: dict[Entry, Measurement] = {}
    faults: list[Fault] = []
    for where, measurement in placed:
        entry, canonical = measurement.entry, measurement.canonical()
        known = kept.setdefault(canonical.entry, canonical)
        if entry in found:
            faults.append(Fault(where, "", f"{entry} stands twice, first at {found[entry]}"))
        elif known is not canonical and _speeds(known) != _speeds(canonical):
            other = found[entry._replace(job_type=str(entry.partner), partner=entry.job_type)]
            faults.append(Fault(where, "", f"{entry} contradicts the same pair given the other way round at {other}"))
        found.setdefault(entry, where)
    return tuple(kept.values()), faults


def _speeds(measurement: Measurement) -> tuple[float, float | None]:
    return measurement.steps_per_second, measurement.partner_steps_per_second
