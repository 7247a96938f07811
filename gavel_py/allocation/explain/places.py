"""Types that constraints close to a job."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.explain.own_time import could_use
from gavel_py.allocation.explain.records import Binding
from gavel_py.optimization.certificates import Evidence

__all__ = ["closed_by", "place_bindings"]

Floats = NDArray[np.float64]


def closed_by(evidence: Evidence, i: int) -> dict[int, str]:
    """Return {column: the constraints, in the user's words} of the types on which job i could run but for these."""
    before = evidence.rules.unplaced
    if before is None:
        return {}
    closed: dict[int, list[str]] = {}
    for place in (place for asked in evidence.rules.asked for place in asked.places):
        for row in np.flatnonzero(place.rows == i).tolist():
            for j in np.flatnonzero(~place.allowed[row] & before.runnable[i]).tolist():
                closed.setdefault(j, []).append(place.name_of(i))
    return {j: " and ".join(dict.fromkeys(names)) for j, names in sorted(closed.items())}


def place_bindings(evidence: Evidence, times: Floats, i: int) -> Iterator[Binding]:
    """Yield the constraints that keep job i off types which could make it faster."""
    before = evidence.rules.unplaced
    if before is None:
        return
    useful = could_use(before.throughputs[i], before.runnable[i], times)
    for j, name in closed_by(evidence, i).items():
        if useful[j]:
            yield Binding("place", name, None, f"{name} keeps it off {before.accelerator_types[j]}")
