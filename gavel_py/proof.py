"""Proofs of an allocation, from the problem's own numbers and independent of the solver: it is valid, and nothing is better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ProofError
from gavel_py.problem import AllocationProblem

__all__ = ["check_gap", "check_valid", "gap", "priced_bound", "tidied"]

Floats = NDArray[np.float64]

GAP_TOLERANCE = 1e-6
VIOLATION_TOLERANCE = 1e-9


def priced_bound(problem: AllocationProblem, gains: Floats, prices: Floats) -> float:
    """Return an upper bound on max Σ_ij G_ij X_ij over all valid allocations X, for any prices p >= 0.

    Weak duality: GPUs cost p_j, every job buys its best time, and the GPUs are paid for:
    Σ_j p_j c_j + Σ_i max(0, max_j (G_ij - s_i p_j)), the inner maximum over the types where i can run.
    gains: (N, K); prices: (K,) per GPU. The second term matters even when all prices are 0 (one job bounds all).
    """
    surplus = np.where(problem.runnable, gains - problem.num_gpus[:, None] * prices, 0.0)
    return float(prices @ problem.capacities + surplus.max(axis=1, initial=0.0).sum())


def tidied(problem: AllocationProblem, time_fractions: Floats) -> Floats:
    """Return the allocation with the solver's tolerances taken out: no negative time, no row above 1, no type above its GPUs.

    What is scaled down is scaled down by the size of a tolerance; the objective is recomputed afterwards.
    """
    fractions = np.where(problem.runnable, np.clip(time_fractions, 0.0, 1.0), 0.0)
    fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
    used = problem.num_gpus @ fractions
    return fractions * np.minimum(1.0, np.divide(problem.capacities, used, out=np.ones_like(used), where=used > 0))


def check_valid(problem: AllocationProblem, time_fractions: Floats) -> None:
    """Raise `ProofError` unless the allocation is valid to 1e-9 (formulas: `gavel_py.program.Program`)."""
    used = problem.num_gpus @ time_fractions
    violations = {
        "time below 0": -time_fractions.min(initial=0.0),
        "a job's time above 1": time_fractions.sum(axis=1).max(initial=0.0) - 1,
        "GPUs above the capacity": ((used - problem.capacities) / np.maximum(1.0, problem.capacities)).max(initial=0.0),
        "time where a job cannot run": time_fractions[~problem.runnable].max(initial=0.0),
    }
    for what, amount in violations.items():
        if not amount <= VIOLATION_TOLERANCE:
            raise ProofError(f"the solver's answer is not a valid allocation: {what}, by {amount:.3g}")


def gap(value: float, bound: float, scale: float = 0.0) -> float:
    """Return |bound - value| in parts of the larger of the two, or of `scale` where that is larger still."""
    return abs(bound - value) / max(abs(value), abs(bound), scale, 1e-300)


def check_gap(value: float, bound: float, scale: float) -> None:
    """Raise `ProofError` unless |bound - value| is within 1e-6 of the value's size, or of the size of its terms."""
    found = gap(value, bound, scale)
    if not found <= GAP_TOLERANCE:
        raise ProofError(
            f"the answer's value {value:.9g} and the proven bound {bound:.9g} differ by {found:.2g} of their size "
            f"(at most {GAP_TOLERANCE:g} is accepted), so it is not proven to be optimal"
        )
