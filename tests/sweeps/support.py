"""Support for tests of sweeps: small sweeps, policies that misbehave, and rows without computing times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gavel_py as gp

__all__ = ["CLOCKS", "Dying", "Failing", "Leaving", "simulations", "solves", "timeless"]

CLOCKS = {"wall_seconds", "cpu_seconds", "solver_seconds"}


def timeless(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows without computing times."""
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def solves(*policies: Any, seeds: int = 3) -> dict[str, Any]:
    """The spec of static solves of a few jobs, a few milliseconds each."""
    generate = {"jobs": 5, "gangs": {1: 0.5, 2: 0.5}}
    return {
        "mode": "solve",
        "policies": list(policies) or ["fifo", "isolated"],
        "traces": [{"generate": generate}],
        "clusters": [{"v100": 4, "k80": 4}],
        "seeds": list(range(seeds)),
    }


def simulations(*policies: Any, seeds: int = 2, **more: Any) -> dict[str, Any]:
    """The spec of simulations of a few jobs, some hundredths of a second each."""
    generate = {"jobs": 8, "gangs": {1: 0.5, 2: 0.5}, "durations": [[1, 600, 7200]]}
    return {
        "policies": list(policies) or ["fifo", "isolated"],
        "traces": [{"generate": generate}],
        "loads": [4],
        "clusters": [{"v100": 4, "k80": 4}],
        "seeds": list(range(seeds)),
    } | more


@dataclass(frozen=True, kw_only=True)
class _Misbehaving(gp.OrderedPolicy):
    reads = ("arrival_seconds",)

    def sort_key(self, jobs: gp.JobClasses) -> np.ndarray:
        self.misbehave()
        return jobs.arrival_seconds

    def misbehave(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Dying(_Misbehaving):
    """A policy that kills its process this number of times; mark: a file that counts them."""

    mark: str = gp.option("", "a file that counts")
    times: int = gp.option(1_000, "how often")

    def misbehave(self) -> None:
        path = Path(self.mark)
        died = len(path.read_text()) if path.exists() else 0
        if died < self.times:
            path.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Failing(_Misbehaving):
    """A policy that raises an error."""

    def misbehave(self) -> None:
        raise ValueError("a slip")


@dataclass(frozen=True, kw_only=True)
class Leaving(_Misbehaving):
    """A policy that raises SystemExit."""

    def misbehave(self) -> None:
        raise SystemExit(3)
