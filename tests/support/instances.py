"""Random allocation problems for property tests, and an independent linear program to check answers against."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

import gavel_py as gp

Floats = NDArray[np.float64]
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@st.composite
def problems(draw: st.DrawFn, max_jobs: int = 8, max_types: int = 4) -> gp.AllocationProblem:
    """A problem in which throughputs, gangs, weights and capacities are small and often tied, zero or too large to fit."""
    n, k = draw(st.integers(1, max_jobs)), draw(st.integers(1, max_types))
    speeds = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0, 4.0]), st.floats(1e-3, 1e3))
    return gp.AllocationProblem.from_arrays(
        draw(st.lists(st.lists(speeds, min_size=k, max_size=k), min_size=n, max_size=n)),
        draw(st.lists(st.integers(0, 8), min_size=k, max_size=k)),
        job_ids=draw(st.permutations([f"job-{i}" for i in range(n)])),
        num_gpus=draw(st.lists(st.sampled_from([1, 1, 2, 4, 8, 0.25, 0.6]), min_size=n, max_size=n)),
        weights=draw(st.lists(st.floats(0.1, 10), min_size=n, max_size=n)),
        steps_remaining=draw(st.lists(st.floats(1, 1e6), min_size=n, max_size=n)),
        arrival_seconds=draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)),
    )


@st.composite
def crowds(draw: st.DrawFn, max_jobs: int = 24, max_types: int = 8) -> gp.AllocationProblem:
    """A problem in which many jobs are of few types, with weights, steps and times that tie or differ."""
    n, k, c = draw(st.integers(1, max_jobs)), draw(st.integers(1, max_types)), draw(st.integers(1, 4))
    speeds = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0, 4.0]), st.floats(1e-2, 1e2))
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)

    def by_job(ties: list[float], low: float, high: float) -> Floats:
        """One number per job: drawn from a few, or all different."""
        return chance.choice(ties, n) if draw(st.booleans()) else chance.uniform(low, high, n)

    elapsed = by_job([0.0, 3600.0], 0.0, 1e5)
    return gp.AllocationProblem.from_types(
        draw(st.lists(st.lists(speeds, min_size=k, max_size=k), min_size=c, max_size=c)),
        chance.integers(0, c, n),
        draw(st.lists(st.integers(0, 8), min_size=k, max_size=k)),
        num_gpus=chance.choice(draw(st.sampled_from([[1], [1, 2], [1, 2, 4, 8], [0.1, 0.25, 0.6, 1, 2]])), n),
        weights=by_job([1.0, 2.0], 0.1, 10.0),
        steps_remaining=by_job([100.0, 1e4], 1.0, 1e6),
        elapsed_seconds=elapsed,
        isolated_seconds=elapsed * by_job([0.0, 1.0], 0.0, 1.0),
        deadlines_seconds=by_job([0.0, 1e4], -1e4, 1e5),
        tenants=chance.choice(["red", "blue"], n).tolist(),
        prices_per_hour=chance.uniform(0.5, 4.0, k),
    )


def best_value(problem: gp.AllocationProblem, gains: Floats) -> float:
    """max Σ G_ij X_ij over valid allocations, one dense row per constraint, by scipy."""
    rows, limits = valid_rows(problem)
    free = problem.runnable.ravel()
    scale = gains[problem.runnable].max(initial=0.0) or 1.0  # linprog's tolerances are absolute
    answer = linprog(
        -gains.ravel() / scale, rows, limits, bounds=[(0, 1 if runs else 0) for runs in free], method="highs", options=TIGHT
    )
    assert answer.status == 0
    return float(-answer.fun * scale)


def best_level(problem: gp.AllocationProblem, need: Floats) -> float:
    """max ℓ with thr_i >= ℓ·need_i for every job that can run, in ℓ and X without scaling."""
    n, k = problem.throughputs.shape
    rows, limits = valid_rows(problem)
    active = np.flatnonzero(problem.runnable.any(axis=1))
    levels = np.zeros((len(active), n * k + 1))
    for row, i in enumerate(active):
        levels[row, i * k : (i + 1) * k] = -problem.throughputs[i] / need[i]
        levels[row, -1] = 1
    table = np.vstack([np.hstack([rows, np.zeros((len(rows), 1))]), levels])
    bounds = [(0, 1 if runs else 0) for runs in problem.runnable.ravel()] + [(0, None)]
    costs = np.zeros(n * k + 1)
    costs[-1] = -1
    limits = np.concatenate([limits, np.zeros(len(active))])
    answer = linprog(costs, table, limits, bounds=bounds, method="highs", options=TIGHT)
    assert answer.status == 0
    return float(-answer.fun)


def valid_rows(problem: gp.AllocationProblem) -> tuple[Floats, Floats]:
    """Σ_j X_ij <= 1 and Σ_i s_i X_ij <= c_j as a dense matrix and its limits."""
    n, k = problem.throughputs.shape
    by_job = np.kron(np.eye(n), np.ones(k))
    by_type = np.hstack([gang * np.eye(k) for gang in problem.num_gpus])
    return np.vstack([by_job, by_type]), np.concatenate([np.ones(n), problem.capacities])
