"""What the time of jobs comes to in the terms of their problem, and whether figures that are stated are those."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import ProofError
from gavel_py.optimization.colocation import PairColumns
from gavel_py.optimization.columns import TwoKinds, spread_part
from gavel_py.optimization.time_shares import ClassTimes, JobTimes
from gavel_py.problem.problem import AllocationProblem

__all__ = ["Figures", "check_same", "figures_of"]

Floats = NDArray[np.float64]

SAME = 1e-9
"""The part of its size by which a stated figure may differ from the one found."""

ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of N jobs on K types that follow from their time.

    time_fractions: (N, K) all of it; spread_fractions: (N, K) the part for gangs on more nodes than they need, None where nothing
    depends on that; throughputs: (N,) steps/s; normalized_throughputs: (N,) of an equal share; utilization: (K,) of the GPUs.
    """

    time_fractions: Floats
    spread_fractions: Floats | None
    throughputs: Floats
    normalized_throughputs: Floats
    utilization: Floats


def figures_of(problem: AllocationProblem, times: JobTimes | ClassTimes, columns: TwoKinds | PairColumns | None) -> Figures:
    """Return the figures of times in `columns`, by default one for each type of `problem`."""
    throughputs, capacities, share = times.job_throughputs, problem.capacities, problem.equal_share
    if problem.excluded:
        share = np.where(problem.runnable.any(axis=1), share, 0.0)
    fractions, spread, used = _by_type(problem, times, columns)
    return Figures(
        time_fractions=fractions,
        spread_fractions=spread,
        throughputs=throughputs,
        normalized_throughputs=np.divide(throughputs, share, out=np.zeros_like(share), where=share > 0),
        utilization=np.divide(used, capacities, out=np.zeros_like(capacities), where=capacities > 0),
    )


def _by_type(
    problem: AllocationProblem, times: JobTimes | ClassTimes, columns: TwoKinds | PairColumns | None
) -> tuple[Floats, Floats | None, Floats]:
    """The time on types, the part of it that is spread, and the GPUs in use."""
    if isinstance(columns, PairColumns) and isinstance(times, ClassTimes):
        used = columns.gpus(times.fractions, times.num_gpus)
        alone = None if problem.speeds is None else times.jobs.spread(times.fractions[:, : len(problem.capacities)])
        spread = None if alone is None else spread_part(problem, alone)
        return times.jobs.spread(columns.folded(times.fractions)), spread, used
    found, gpus = times.fractions, problem.num_gpus
    if isinstance(columns, TwoKinds):
        return columns.folded(found), columns.spread(found), columns.gpus(found, gpus)
    return found, spread_part(problem, found), gpus @ found


def check_same(name: str, stated: ArrayLike | None, found: ArrayLike | None, scale: ArrayLike = 0.0) -> None:
    """Raise `ProofError` unless what is stated is what was found, to 1e-9 of its size and 1e-12 of its scale."""
    if stated is None or found is None:
        if stated is not found:
            raise ProofError(f"{name}: there is {'none' if found is None else 'one'}, and {stated!r} is stated")
        return
    one, other = np.asarray(stated, dtype=float), np.asarray(found, dtype=float)
    if one.shape != other.shape:
        raise ProofError(f"{name}: has the shape {other.shape}, and one of the shape {one.shape} is stated")
    allowed = SAME * np.maximum(np.abs(one), np.abs(other)) + ROUNDING * np.asarray(scale)
    wrong = np.argwhere(~((np.abs(one - other) <= allowed) | (one == other)))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ProofError(f"{name}{list(at) if at else ''}: is {other[at]:.12g}, and {one[at]:.12g} is stated")
