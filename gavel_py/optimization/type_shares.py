"""The most even split of given total times over accelerator types that capacities and rules allow.

It minimises the relative entropy Σ_q S_q Σ_j π_qj ln(π_qj / ρ_qj). S_q is the GPU-time of a kind of jobs, π_qj the share of it on
type j, and ρ_qj = c_j / Σ_k c_k over the types on which these jobs may run. Equal jobs have equal shares at the minimum, and so
have all jobs of a kind: jobs with the same types and the same coefficients in every rule.

With a price μ_d >= 0 for each capacity and each rule, π_qj is proportional to ρ_qj exp(-Σ_d μ_d E_dqj), where E_dqj is what a GPU
of kind q on type j uses of row d. The prices minimise the dual function, which is smooth, convex and has few variables however
many jobs there are. Newton's method with an active set for the prices at 0 takes a handful of steps. Where some jobs need all of
a type, the shares of the others there tend to 0 and prices to infinity. Each step then still reduces what is missing by a factor
of about e, where fixed-point iterations would slow down without end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SolverError
from gavel_py.optimization.free_times import Kinds

__all__ = ["even_shares"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CLOSE, ENOUGH = 1e-12, 5e-10
"""By which part rows should be exceeded at most, and by which part they may be if rounding allows no better."""

DUST, MANY = 1e-6, 100
"""Shares below DUST are set to 0 if together they are less than a MANY-th of ENOUGH."""

MOST_STEPS = 300

LONGEST = 4.0
"""The largest logarithm of the factor by which a share may grow in one step; beyond that, the quadratic model is worth little."""

SINGULAR, FLAT, NOISE = 1e-13, 1e-9, 1e-6
"""Curvatures that count as none and as hardly any, and slopes that may be rounding, relative to the largest."""

ROUNDING = 1e-13


def even_shares(kinds: Kinds, times: Floats, taken: Floats | None = None) -> Floats:
    """Return (Q, K) the shares of the types in the time of each kind.

    Args:
        kinds: The kinds of jobs, with the rows that their times must keep.
        times: (Q,) the total time of all jobs of each kind, which is to be split.
        taken: (Q, K) further time of these jobs whose type is settled.

    Raises:
        SolverError: If there is no room for these times.
    """
    some = np.flatnonzero(times > 0)
    if not len(some):
        return kinds.even
    jobs = kinds.jobs
    rows, limits = _rows(kinds, taken)
    gpus = jobs.num_gpus[some] * times[some]
    shares = kinds.even.copy()
    shares[some] = _Dual(gpus, kinds.even[some], rows[:, some] / jobs.num_gpus[some][:, None], limits).minimum()
    dust = (shares < DUST) & (shares * (jobs.num_gpus * times)[:, None] < ENOUGH / MANY / len(jobs) * jobs.capacities)
    shares[dust] = 0.0
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _rows(kinds: Kinds, taken: Floats | None) -> tuple[Floats, Floats]:
    """(D, Q, K) what all the time of a job on a type uses of each capacity and row, and (D,) how much of each there is."""
    jobs = kinds.jobs
    costs, most = jobs.limit_tables
    there = np.flatnonzero(jobs.capacities > 0)
    gpus = np.zeros((len(there), len(jobs), len(jobs.capacities)))
    gpus[np.arange(len(there)), :, there] = jobs.num_gpus / jobs.capacities[there][:, None]
    rows, limits = np.concatenate([gpus, costs]), np.concatenate([np.ones(len(there)), most])
    return rows, limits if taken is None else limits - np.tensordot(rows, taken, 2)


class _Dual:
    """F(μ) = Σ_q S_q ln Σ_j ρ_qj exp(-Σ_d μ_d E_dqj) + Σ_d μ_d h_d, to be minimised over μ >= 0.

    gpus: (Q,) S; even: (Q, K) ρ; rows: (D, Q, K) E; limits: (D,) h.
    """

    def __init__(self, gpus: Floats, even: Floats, rows: Floats, limits: Floats) -> None:
        self._gpus, self._rows, self._limits = gpus, rows, limits
        with np.errstate(divide="ignore"):
            self._logs = np.log(even)
        self._possible = even > 0

    def minimum(self) -> Floats:
        """Return (Q, K) the shares at the minimum. Raises `SolverError` if there is none."""
        prices = np.zeros(len(self._limits))
        value, shares = self._at(prices)
        best, least = shares, np.inf
        for _ in range(MOST_STEPS):
            room = self._limits - np.tensordot(self._rows, shares * self._gpus[:, None], 2)
            missing = float(np.where(prices > 0, np.abs(room), -room).max())
            if missing <= CLOSE:
                return shares
            if missing >= least and least <= ENOUGH:
                return best
            if missing < least:
                best, least = shares, missing
            prices, value, shares = self._step(prices, value, shares, room)
        if least <= ENOUGH:
            return best
        raise SolverError("there is no room for the times that are to be split over accelerator types")

    def _at(self, prices: Floats) -> tuple[float, Floats]:
        """F and the shares at these prices."""
        exponents = self._logs - np.tensordot(prices, self._rows, 1)
        top = exponents.max(axis=1, keepdims=True)
        parts = np.exp(exponents - top)
        sums = parts.sum(axis=1, keepdims=True)
        return float(self._gpus @ (np.log(sums) + top)[:, 0] + self._limits @ prices), parts / sums

    def _step(self, prices: Floats, value: float, shares: Floats, room: Floats) -> tuple[Floats, float, Floats]:
        """Return prices at which F is no larger, with F and the shares there; room: (D,) what is left of each row, -∇F."""
        direction = self._direction(prices, shares, room)
        falling = direction < 0
        length = min(1.0, float((prices[falling] / -direction[falling]).min(initial=1.0)))
        while True:
            following = np.maximum(0.0, prices + length * direction)
            less, there = self._at(following)
            if less <= value + ROUNDING * max(1.0, abs(value)) or length < ROUNDING:
                return following, less, there
            length /= 2

    def _direction(self, prices: Floats, shares: Floats, room: Floats) -> Floats:
        """(D,) Newton's step; prices of 0 that it would lower stay at 0."""
        free = (prices > 0) | (room < 0)
        while True:
            direction = self._newton(shares, room, free)
            falling = free & (prices <= 0) & (direction < 0)
            if not falling.any():
                return direction
            free &= ~falling

    def _newton(self, shares: Floats, room: Floats, free: Mask) -> Floats:
        """(D,) the step of the prices that are free to move."""
        rows = self._rows[free].reshape(int(free.sum()), -1)
        means = (rows * shares.ravel()).reshape(len(rows), *shares.shape).sum(axis=2)
        curvature = (rows * (shares * self._gpus[:, None]).ravel()) @ rows.T - (means * self._gpus) @ means.T
        bent = np.diag(curvature) > np.finfo(float).tiny
        scale = np.where(bent, 1.0 / np.sqrt(np.where(bent, np.diag(curvature), 1.0)), 0.0)
        values, vectors = np.linalg.eigh(curvature * scale[:, None] * scale)
        direction = np.zeros(len(self._limits))
        if values.max(initial=0.0) > 0:
            along = vectors.T @ (-room[free] * scale)
            # Rows that change all shares in the same way leave a direction without curvature, in which a slope may be rounding.
            along[(values < FLAT * values.max()) & (np.abs(along) < NOISE * np.abs(along).max())] = 0.0
            direction[free] = scale * (vectors @ (along / np.maximum(values, SINGULAR * values.max())))
        change = np.tensordot(direction, self._rows, 1)
        growth = ((shares * change).sum(axis=1, keepdims=True) - change)[self._possible].max()
        return direction * (LONGEST / growth) if growth > LONGEST else direction
