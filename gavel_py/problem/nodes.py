"""What a cluster is made of: nodes with GPUs of one accelerator type each, and what is known of the types."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gavel_py.io.records import Integer, Name, NotNegative, Positive, Record

__all__ = ["AcceleratorType", "GpusPerNode", "Node"]

GpusPerNode = Annotated[Integer, Field(ge=0, le=4096)]


class AcceleratorType(Record):
    """A kind of accelerator.

    name: as in the throughput profile; memory_gb: memory of one GPU, GB; price_per_hour: of one GPU, any currency.
    """

    label: ClassVar[str] = "accelerator type"
    identifier: ClassVar[str] = "name"

    name: Name
    memory_gb: Positive | None = None
    price_per_hour: NotNegative | None = None


class Node(Record):
    """One machine: `num_gpus` GPUs of one accelerator type, numbered from 0; cpus: cores; memory_gb: host memory, GB."""

    label: ClassVar[str] = "node"
    identifier: ClassVar[str] = "name"

    name: Name
    accelerator: Name
    num_gpus: GpusPerNode
    cpus: NotNegative | None = None
    memory_gb: NotNegative | None = None
    rack: Name | None = None
