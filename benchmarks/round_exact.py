"""An exact program for one round: the set of gangs of the largest sum of scores that fits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from gavel_py.scheduling.mechanism.demand import HYSTERESIS_ROUNDS, RoundDemand, scores_of


@contextmanager
def silence() -> Iterator[None]:
    """Suppress the output that the solver prints at C level, which would spoil the tables."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def choose_exactly(demand: RoundDemand, *, hysteresis_rounds: float = HYSTERESIS_ROUNDS) -> NDArray[np.int64]:
    """Maximise Σ s_i·score_ij·x_ij, x in {0, 1}: one type per job, whole gangs within the capacities; then fill idle GPUs."""
    scores = scores_of(demand, hysteresis_rounds)
    # The program may also fill idle GPUs with jobs without a deficit, at a score below any deficit.
    worth = np.where(np.isfinite(scores), 1.0 + scores, np.where(demand.possible, 0.5, -np.inf))
    rows, columns = np.nonzero(np.isfinite(worth))
    chosen = np.full(len(demand.num_gpus), -1, dtype=np.int64)
    if not len(rows):
        return chosen
    sizes, pairs = demand.num_gpus[rows], np.arange(len(rows))
    once = csr_array((np.ones(len(rows)), (rows, pairs)), shape=(len(chosen), len(rows)))
    gpus = csr_array((sizes, (columns, pairs)), shape=(len(demand.capacities), len(rows)))
    with silence():
        found = milp(
            -sizes * worth[rows, columns],
            integrality=np.ones(len(rows)),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(once, ub=1), LinearConstraint(gpus, ub=demand.capacities)],
            options={"mip_rel_gap": 1e-6},
        )
    assert found.x is not None, found.message
    taken = found.x > 0.5
    chosen[rows[taken]] = columns[taken]
    return chosen
