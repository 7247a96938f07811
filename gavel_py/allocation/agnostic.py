"""The answer of an agnostic policy: of all equally good allocations, that with fair total times split evenly over the types.

To an agnostic policy all accelerator types are equally fast, so its program has many optima: the types on which a job runs make no
difference, and the total times of some jobs may not either. A simplex method returns a vertex, in which each job runs on one or two
types and some jobs get all of the free time. The optima may differ a lot in real throughputs, so a vertex is not representative of
the policy. The allocation computed here lies in the middle of the optima and does not depend on the solver. Total times are
divided fairly where the optimum leaves them open (`optimization.solving.free_times`), and then split as evenly as possible over the
types (`even_shares`):

    t_i = max(need_i, min(1, θ w_i / s_i)),  θ as large as possible
    min Σ_ij s_i x_ij ln(x_ij / (t_i c_j / Σ_{k in M_i} c_k))  such that  Σ_j x_ij = t_i,  x valid

need_i is the time that the objective requires, and M_i are the types on which job i may run.

The second program is a relative entropy Σ_q S_q Σ_j π_qj ln(π_qj / ρ_qj) over groups q of jobs, those with the same types and the
same coefficients in every rule: S_q is the GPU-time of a group, π_qj the share of it on type j, and ρ_qj = c_j / Σ_k c_k over the
types on which these jobs may run. All jobs of a group have equal shares at the minimum. With a price μ_d >= 0 for each capacity and
each rule, π_qj is proportional to ρ_qj exp(-Σ_d μ_d E_dqj), where E_dqj is the use of row d by a GPU of group q on type j. The
prices minimise the dual function, which is smooth, convex and has few variables even for many jobs. Newton's method with an active
set for the prices at 0 takes a few steps. If some jobs need all of a type, the shares of the others there tend to 0 and prices to
infinity. Each step then still reduces the excess by a factor of about e, while fixed-point iterations would become ever slower.

Source: the baselines of Gavel (OSDI 2020). Its code solves these programs with an interior-point method, which also returns a point
in the middle of the optima. The split has the least relative entropy to an even one (Kullback, Information Theory and Statistics,
1959).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SolverError
from gavel_py.optimization.checking.certificates import Certificate, Stages, gap
from gavel_py.optimization.formulation.linear_rows import Row, entries_of
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.free_times import FreeTimes, JobGroups, fairest_times
from gavel_py.optimization.solving.highs import NO_LIMIT, TimeLimit, TimeLimitReached
from gavel_py.policies import Decision, Policy
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.row_hashing import number_equal
from gavel_py.problem.tolerances import DIFFERENCE_ROUNDING, FLOAT_ROUNDING, SOLVER_TOLERANCE

ENOUGH = SOLVER_TOLERANCE / 2
"""Relative excess of rows that is accepted if rounding prevents `FLOAT_ROUNDING`, the target."""

DUST, MANY = 1e-6, 100
"""Shares below DUST are set to 0 if their sum is below ENOUGH / MANY."""

MAX_STEPS = 300

LONGEST = 4.0
"""The largest logarithm of the factor by which a share may grow in one step; beyond that, the quadratic model is inaccurate."""

SINGULAR, FLAT, NOISE = 1e-13, 1e-9, 1e-6
"""Curvatures that count as zero and as very small, and slopes that may be rounding errors, relative to the largest."""

SHARE_ROUNDING = 1e-13
"""Improvements of the objective of the shares, and step lengths, that count as rounding."""


def even_shares(groups: JobGroups, times: Floats, fixed: Floats | None = None) -> Floats:
    """Return (Q, K) the shares of the types in the time of each group.

    Args:
        groups: The groups of jobs, with the rows that their times must keep.
        times: (Q,) the total time of all jobs of each group, which should be split.
        fixed: (Q, K) further time of these jobs, with a fixed type.

    Raises:
        SolverError: If there is no room for these times.
    """
    some = np.flatnonzero(times > 0)
    if not len(some):
        return groups.even
    jobs = groups.jobs
    rows, limits = _rows(groups, fixed)
    gpus = jobs.num_gpus[some] * times[some]
    shares = groups.even.copy()
    shares[some] = _least_uneven(gpus, groups.even[some], rows[:, some] / jobs.num_gpus[some][:, None], limits)
    dust = (shares < DUST) & (shares * (jobs.num_gpus * times)[:, None] < ENOUGH / MANY / len(jobs) * jobs.capacities)
    shares[dust] = 0.0
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _least_uneven(gpus: Floats, even: Floats, rows: Floats, limits: Floats) -> Floats:
    """Return (Q, K) the shares at the minimum of `_Dual`; raises `SolverError` if no shares keep the rows.

    If prices have grown too far before the rows were kept exactly, shares that tend to 0 are set to 0 and the others found again.
    """
    shares, missing = _Dual(gpus, even, rows, limits).minimum()
    if missing > FLOAT_ROUNDING:
        without, rest = _Dual(gpus, np.where(shares < DUST, 0.0, even), rows, limits).minimum()
        if rest < missing:
            shares, missing = without, rest
    if missing > ENOUGH:
        raise SolverError("the times to be split over accelerator types do not fit")
    return shares


def _rows(groups: JobGroups, fixed: Floats | None) -> tuple[Floats, Floats]:
    """Return (D, Q, K) the use of each capacity and row by a job that spends all of its time on a type, and (D,) their limits."""
    jobs = groups.jobs
    costs, limits = jobs.limit_tables
    present = np.flatnonzero(jobs.capacities > 0)
    gpus = np.zeros((len(present), len(jobs), len(jobs.capacities)))
    gpus[np.arange(len(present)), :, present] = jobs.num_gpus / jobs.capacities[present][:, None]
    rows, limits = np.concatenate([gpus, costs]), np.concatenate([np.ones(len(present)), limits])
    return rows, limits if fixed is None else limits - np.tensordot(rows, fixed, 2)


class _Dual:
    """F(μ) = Σ_q S_q ln Σ_j ρ_qj exp(-Σ_d μ_d E_dqj) + Σ_d μ_d h_d, to be minimised over μ >= 0.

    gpus: (Q,) S; even: (Q, K) ρ; rows: (D, Q, K) E; limits: (D,) h.
    """

    def __init__(self, gpus: Floats, even: Floats, rows: Floats, limits: Floats) -> None:
        self._gpus, self._rows, self._limits = gpus, rows, limits
        with np.errstate(divide="ignore"):
            self._logs = np.log(even)
        self._possible = even > 0

    def minimum(self) -> tuple[Floats, float]:
        """Return (Q, K) the shares nearest to the minimum, and the relative excess of rows: at most `FLOAT_ROUNDING` if found."""
        prices = np.zeros(len(self._limits))
        value, shares = self._at(prices)
        best, least = shares, np.inf
        for _ in range(MAX_STEPS):
            room = self._limits - np.tensordot(self._rows, shares * self._gpus[:, None], 2)
            missing = float(np.where(prices > 0, np.abs(room), -room).max())
            if missing <= FLOAT_ROUNDING:
                return shares, missing
            if missing >= least and least <= ENOUGH:
                break
            if missing < least:
                best, least = shares, missing
            prices, value, shares = self._step(prices, value, shares, room)
        return best, least

    def _at(self, prices: Floats) -> tuple[float, Floats]:
        """Return F and the shares at these prices."""
        exponents = self._logs - np.tensordot(prices, self._rows, 1)
        top = exponents.max(axis=1, keepdims=True)
        parts = np.exp(exponents - top)
        sums = parts.sum(axis=1, keepdims=True)
        return float(self._gpus @ (np.log(sums) + top)[:, 0] + self._limits @ prices), parts / sums

    def _step(self, prices: Floats, value: float, shares: Floats, room: Floats) -> tuple[Floats, float, Floats]:
        """Return prices at which F is no larger, with F and the shares there; room: (D,) the slack of each row, -∇F."""
        direction = self._direction(prices, shares, room)
        falling = direction < 0
        length = min(1.0, float((prices[falling] / -direction[falling]).min(initial=1.0)))
        while True:
            following = np.maximum(0.0, prices + length * direction)
            less, shares = self._at(following)
            if less <= value + SHARE_ROUNDING * max(1.0, abs(value)) or length < SHARE_ROUNDING:
                return following, less, shares
            length /= 2

    def _direction(self, prices: Floats, shares: Floats, room: Floats) -> Floats:
        """Return (D,) the Newton step, in which prices of 0 do not fall."""
        free = (prices > 0) | (room < 0)
        while True:
            direction = self._newton(shares, room, free)
            falling = free & (prices <= 0) & (direction < 0)
            if not falling.any():
                return direction
            free &= ~falling

    def _newton(self, shares: Floats, room: Floats, free: Mask) -> Floats:
        """Return (D,) the Newton step of the free prices, 0 for the others."""
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


NOTE = "time is split over accelerator types as the solver returned it: no even split preserves the objective and all rules"


def even_decision(
    policy: Policy, jobs: JobClasses, decision: Decision, source: Indices | None = None, limit: TimeLimit | None = NO_LIMIT
) -> Decision:
    """Replace the decision of an agnostic policy by an equally good one with fair total times and an even split over the types.

    Decisions of other policies, and those without a program, are returned unchanged.

    Args:
        policy: The policy that made the decision.
        jobs: The job classes as the policy sees them.
        decision: The decision, with its certificate.
        source: (K',) the accelerator type of each column, where types have several columns.
        limit: When to stop. None if the time limit has passed: the decision may then not be optimal, its total times are divided
            again only if this takes no program, and its objective may improve.

    Returns:
        A decision with the same certificate, which the caller checks for the new time fractions. If no even split keeps the
        objective and the rules, the given decision with a note.

    Raises:
        TimeLimitReached: The limit has passed. It carries the decision.
    """
    if not policy.is_agnostic or decision.certificate is None:
        return decision
    for free in _choices(policy, jobs, decision):
        try:
            fractions = _evened(jobs, free, decision.time_fractions, source, limit)
        except SolverError:
            continue
        except TimeLimitReached:
            raise TimeLimitReached(None, (decision.time_fractions,), (decision.certificate.scarcity,)) from None
        if free.is_certain or _is_as_good(decision.certificate, fractions, decision.time_fractions):
            return replace(decision, time_fractions=fractions)
    return replace(decision, notes=(*decision.notes, NOTE))


def _choices(policy: Policy, jobs: JobClasses, decision: Decision) -> Iterator[FreeTimes]:
    """Yield ranges of total times to try: those that the optimum leaves open, then the mean of equal jobs, then the decision's."""
    free = policy.leaves_free(jobs, decision)
    if not jobs.rules.switch_cost:  # with a switch cost, both more and less time may have a price
        # The ranges are unknown for piecewise linear and curved objectives, but a fair division may be optimal too.
        yield FreeTimes(np.minimum(jobs.floors / jobs.fastest, 1.0), np.ones(len(jobs))) if free is None else free
    rows = () if free is None else free.rows
    own = decision.time_fractions @ np.ones(len(jobs.capacities))
    same = _indistinguishable(jobs)
    mean = (np.bincount(same, jobs.counts * own) / np.bincount(same, jobs.counts))[same]
    yield FreeTimes(mean, mean, rows)
    yield FreeTimes(own, own, rows)


def _indistinguishable(jobs: JobClasses) -> Indices:
    """Return (G,) the same number for classes that differ only in throughputs which the policy ignores."""
    columns = [jobs.throughputs[:, 0], jobs.num_gpus, jobs.floors, *np.packbits(jobs.runnable, axis=1).T]
    for name in jobs.reads:
        values = getattr(jobs, name)
        table = values if isinstance(values, np.ndarray) else np.unique(values, return_inverse=True)[1]
        columns += list(table.reshape(len(jobs), -1).T)
    columns += list(jobs.limit_marks)
    return number_equal(columns, len(jobs)).index


def _evened(jobs: JobClasses, free: FreeTimes, before: Floats, source: Indices | None, limit: TimeLimit | None) -> Floats:
    """Return (G, K) the evenly split time of each job; before: (G, K) the time fractions of the decision."""
    rules = jobs.rules
    rows = (*rules.hard_rows, *(_HeldRow(row, max(row.rhs, _used(row, jobs, before))) for row in rules.soft_rows))
    groups = JobGroups(jobs if free.where is None else replace(jobs, where=free.where), (*rows, *free.rows), source)
    times = fairest_times(jobs, groups, free, _weights(jobs), limit)
    if free.rows or free.where is not None:  # rows on total times hold already
        groups = JobGroups(jobs, (*rows, *(row for row in free.rows if _depends_on_types(row, jobs))), source)
    if not rules.switch_cost:
        fractions = even_shares(groups, groups.sums(jobs.counts * times)).take(groups.of, axis=0)
        fractions *= times[:, None]
        return fractions
    # Time that stays on its type has no switch cost, so only the remaining time is split.
    stays = np.minimum(before, jobs.last_fractions)
    rest = np.maximum(0.0, times - stays @ np.ones(stays.shape[1]))
    fixed = np.column_stack([groups.sums(jobs.counts * column) for column in stays.T])
    return stays + rest[:, None] * even_shares(groups, groups.sums(jobs.counts * rest), fixed).take(groups.of, axis=0)


def _depends_on_types(row: Row, jobs: JobClasses) -> bool:
    """Return whether a row depends on the types on which a job runs, and not only on its total time."""
    costs = row.costs(jobs.rows, jobs.num_gpus)
    largest, smallest = (np.where(jobs.runnable, costs, way * np.inf) for way in (-1, 1))
    largest, smallest = largest.max(axis=1), smallest.min(axis=1)
    return bool((largest - smallest > FLOAT_ROUNDING * np.maximum(np.abs(largest), np.abs(smallest))).any())


@dataclass(frozen=True, eq=False)
class _HeldRow:
    """A soft row as a hard row whose right-hand side is at least what a decision uses."""

    row: Row
    rhs: float

    penalty: ClassVar[None] = None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def grows(self) -> bool:
        return self.row.grows

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return self.row.split

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        return self.row.costs(rows, num_gpus)

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        return self.row.used(problem, time_fractions)


def _used(row: Row, jobs: JobClasses, fractions: Floats) -> float:
    places, values = entries_of(row, jobs.rows, jobs.num_gpus)
    return float(values @ (jobs.counts[:, None] * fractions).ravel()[places])


def _weights(jobs: JobClasses) -> Floats:
    """Return (G,) w_g; 1 if the policy does not read weights, since a class may then contain different weights."""
    return jobs.weights if "weights" in jobs.reads else np.ones(len(jobs))


def _is_as_good(certificate: Certificate, fractions: Floats, before: Floats, tolerance: float = 0.0) -> bool:
    """Return whether every stage of a proof is as close to its bound as before, or within the accepted gap."""
    if isinstance(certificate, Stages):
        return all(_is_as_good(stage.certificate, fractions, before, stage.tolerance) for stage in certificate.stages)
    value, known, bound = certificate.value(fractions), certificate.value(before), certificate.bound()
    scale = certificate.scale(before)
    return value == known or gap(value, bound, scale) <= max(gap(known, bound, scale), tolerance) + DIFFERENCE_ROUNDING
