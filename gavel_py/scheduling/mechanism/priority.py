"""The published rule of Gavel (OSDI 2020) for who runs in the next round; for comparison with `choose_jobs`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.mechanism.deficit import serve
from gavel_py.scheduling.mechanism.demand import RoundDemand, TypeSelection, rounded

PUBLISHED_ORDER = ("v100", "p100", "k80")

# Every job's clock on every type starts there, so that nothing is divided by 0.
FIRST_ROUNDS = 0.5


def choose_by_priority(demand: RoundDemand, *, type_order: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the (N,) column on which each job runs this round, -1 for none.

    The priority of a pair is X_ij / f_ij, where f_ij is the part of all time used on type j that job i has had since the allocation
    in force began. One type after the other (`type_order`, by default the columns as they stand) is given to the jobs of highest
    priority; ties: deficit, then X; gangs that do not fit are skipped. If `backfill`, jobs without a fraction fill what is left.
    It knows neither what was owed before that allocation nor who runs now; jobs that are locked come first.
    """
    fractions = rounded(demand.fractions)
    seats = TypeSelection(demand.num_gpus, demand.capacities)
    serve(seats, demand.possible & demand.running & demand.locked[:, None], -demand.claims)
    keys = (-_priorities(demand.received, fractions), -rounded(demand.deficits), -fractions)
    order = range(len(demand.capacities)) if type_order is None else type_order
    for eligible in (fractions > 0, fractions <= 0) if demand.backfill else (fractions > 0,):
        for column in order:
            of_type = np.arange(len(demand.capacities)) == column
            serve(seats, demand.possible & eligible & of_type, *keys)
    return seats.columns


def published_order(accelerator_types: Sequence[str]) -> list[int]:
    """The columns in the order of the published rule: v100, p100, k80, then all others as they stand."""
    known = [accelerator_types.index(name) for name in PUBLISHED_ORDER if name in accelerator_types]
    return [*known, *(j for j in range(len(accelerator_types)) if j not in known)]


def _priorities(received: Floats, fractions: Floats) -> Floats:
    """(N, K) X_ij / f_ij."""
    clocks = received + FIRST_ROUNDS
    result: Floats = rounded(fractions * clocks.sum(axis=0) / clocks)
    return result
