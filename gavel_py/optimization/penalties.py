"""What an objective loses by rules that may be broken at a price."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.program_matrices import ProgramMatrices
from gavel_py.optimization.rules import scale_of

__all__ = ["penalty_of"]


def penalty_of(jobs: JobClasses, matrices: ProgramMatrices, parts: cp.Variable, throughput: cp.Expression) -> cp.Expression:
    """Return a convex number; parts: (P,) the variables; throughput: (G,) Σ_j T_gj x_gj of them."""
    rules = jobs.rules
    losses: list[cp.Expression] = [cp.Constant(0.0)]
    for row in rules.soft_rows:
        costs = row.costs(jobs.rows, jobs.num_gpus)
        used = matrices.of_limits(sp.csr_array(costs.reshape(1, -1) / scale_of(row.most, costs))) @ parts
        losses.append((row.penalty or 0.0) * cp.pos(used - row.most / scale_of(row.most, costs))[0])
    for floor in rules.soft_floors:
        penalty, least = floor.penalty or 0.0, floor.throughputs[jobs.rows]
        some = np.flatnonzero((least > 0) & np.isfinite(least))
        if len(some):
            short = cp.pos(1 - cp.multiply(1 / least[some], throughput[some]))
            losses.append(penalty * (jobs.counts[some].astype(float) @ short))
        losses.append(cp.Constant(penalty * float(jobs.counts[np.isinf(least)].sum())))  # missed whatever the jobs get
    if rules.switch_cost:
        gpus = (jobs.counts * jobs.num_gpus)[matrices.rows]
        before = jobs.before[matrices.rows, matrices.columns]
        moved = cp.abs(cp.multiply(matrices.sizes, parts) - before)
        losses.append(rules.switch_cost * (gpus @ moved))
    return cp.sum(cp.hstack(losses)) if len(losses) > 1 else losses[0]
