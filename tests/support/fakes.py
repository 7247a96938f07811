"""Test doubles: a throughput profile in memory, and the message of a refused call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gavel_py import InputError, Job

__all__ = ["FakeProfile", "refusal"]


@dataclass(frozen=True)
class FakeProfile:
    """A profile from {job type: {accelerator: steps/s}}, the same for every gang size; missing entries are 0."""

    speeds: Mapping[str, Mapping[str, float]]
    name: str = "fake"

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(accelerator for row in self.speeds.values() for accelerator in row))

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        speeds = [[self.job_throughput(job, accelerator) for accelerator in accelerators] for job in jobs]
        return np.array(speeds, dtype=float).reshape(len(jobs), len(accelerators))

    def job_throughput(self, job: Job, accelerator: str) -> float:
        return self.speeds.get(job.job_type, {}).get(accelerator, 0.0)


def refusal(call: Callable[..., object], *args: Any, **fields: Any) -> str:
    """Return the message of the `InputError` that the call raises, without keeping the error and its traceback."""
    try:
        call(*args, **fields)
    except InputError as error:
        return str(error)
    return pytest.fail("was not refused")
