"""A measured throughput, the key under which a profile stores it, and the check for contradicting measurements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

from pydantic import model_validator

from gavel_py.errors import Fault
from gavel_py.io.records import GangSize, Name, NotNegative, Positive, Record, Text

Placement = Literal["consolidated", "spread"]
PLACEMENTS: tuple[Placement, ...] = ("consolidated", "spread")


class Entry(NamedTuple):
    """Key of a throughput: gang and placement of `job_type`, alone or while it shares its GPUs with `partner`."""

    job_type: str
    num_gpus: float
    accelerator: str
    placement: str = "consolidated"
    partner: str | None = None

    def __str__(self) -> str:
        return f"{self.job_type!r} on {self.setting}"

    @property
    def setting(self) -> str:
        """The key without the job type, as text."""
        sharing = "" if self.partner is None else f", sharing with {self.partner!r}"
        return f"{self.num_gpus} x {self.accelerator} ({self.placement}{sharing})"


class Row(NamedTuple):
    """The fields of a `Measurement` as a plain tuple, which profiles, files and the store hold since it is fast to create."""

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
    """Measured throughput of a whole gang, alone or in a pair that shares the same GPUs.

    Attributes:
        job_type: Job type of the gang.
        num_gpus: GPUs of the gang, in a pair those of either job; or a fraction of one GPU, without partner.
        accelerator: Accelerator type.
        placement: "consolidated" (on as few nodes as possible) or "spread" (over more nodes).
        steps_per_second: Throughput of `job_type`; 0 means that it cannot run there.
        partner_job_type: Job type of the partner, if the GPUs are shared.
        partner_steps_per_second: Throughput of the partner in the pair.
        source: Origin of the figure.
        gpu_memory_gb: GPU memory that the gang uses on each GPU, in GB; not for pairs.

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
        """The key of `steps_per_second` in a profile."""
        return Entry(self.job_type, self.num_gpus, self.accelerator, self.placement, self.partner_job_type)

    def row(self) -> Row:
        """Return the fields as a plain tuple."""
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
    """Return the measurements, each pair once in canonical order, and a fault for each duplicate or contradiction.

    placed: (place for messages, measurement). A pair may be given from both sides if the figures are equal.
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
