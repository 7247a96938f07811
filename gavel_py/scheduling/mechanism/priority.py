"""Gavel's published rule (OSDI 2020) for the jobs of the next round, for comparison with `choose_jobs`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.mechanism.deficit import serve
from gavel_py.scheduling.mechanism.demand import RoundDemand, TypeSelection, rounded

PUBLISHED_ORDER = ("v100", "p100", "k80")

FIRST_ROUNDS = 0.5
"""Initial value of the time received, so that no priority is divided by 0."""


def choose_by_priority(demand: RoundDemand, *, type_order: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the (N,) column of the type on which each job runs this round, -1 for none.

    The priority of a pair is X_ij / f_ij, where f_ij is the share of job i in all time received on type j under the current
    allocation. Types are filled one after the other by priority; ties: deficit, then X; gangs that do not fit are skipped. With
    `backfill`, jobs without a time fraction fill GPUs left over. Locked jobs come first; deficits under earlier allocations do not
    count.

    Args:
        demand: What the round selects from.
        type_order: Columns in the order in which types are filled; by default their own order.
    """
    fractions = rounded(demand.fractions)
    selection = TypeSelection(demand.num_gpus, demand.capacities)
    serve(selection, demand.possible & demand.running & demand.locked[:, None], -demand.claims)
    keys = (-_priorities(demand.received, fractions), -rounded(demand.deficits), -fractions)
    order = range(len(demand.capacities)) if type_order is None else type_order
    for eligible in (fractions > 0, fractions <= 0) if demand.backfill else (fractions > 0,):
        for column in order:
            of_type = np.arange(len(demand.capacities)) == column
            serve(selection, demand.possible & eligible & of_type, *keys)
    return selection.columns


def published_order(accelerator_types: Sequence[str]) -> list[int]:
    """Return the columns in the order of the published rule: v100, p100, k80, then all others in their own order."""
    known = [accelerator_types.index(name) for name in PUBLISHED_ORDER if name in accelerator_types]
    return [*known, *(j for j in range(len(accelerator_types)) if j not in known)]


def _priorities(received: Floats, fractions: Floats) -> Floats:
    """Return (N, K) X_ij / f_ij."""
    clocks = received + FIRST_ROUNDS
    result: Floats = rounded(fractions * clocks.sum(axis=0) / clocks)
    return result
