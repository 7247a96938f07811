"""What a cluster is made of: nodes with GPUs of one accelerator type each, and what is known of the types."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gavel_py.validation import Record

__all__ = ["AcceleratorType", "Amount", "Name", "Node"]

Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AcceleratorType(Record):
    """A kind of accelerator.

    name: as in the throughput profile; memory_gb: memory of one GPU, GB; price_per_hour: of one GPU, any currency.
    """

    label: ClassVar[str] = "accelerator type"
    identifier: ClassVar[str] = "name"

    name: Name
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    price_per_hour: Amount | None = None


class Node(Record):
    """One machine: `num_gpus` GPUs of one accelerator type, numbered from 0; cpus: cores; memory_gb: host memory, GB."""

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "name"

    name: Name
    accelerator: Name
    num_gpus: Annotated[int, Field(ge=0, le=4096)]
    cpus: Amount | None = None
    memory_gb: Amount | None = None
    rack: Name | None = None
