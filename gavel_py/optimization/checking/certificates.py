"""Proofs that an allocation is valid and optimal, from the problem's own numbers and independent of the solver.

A certificate holds dual prices, which `solving/level_search.py` (levels) and `formulation/matrices.py` (sums) read from programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ProofError
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import PROOF_TOLERANCE, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.optimization.checking.time_shares import TimeShares
    from gavel_py.optimization.formulation.columns import Columns
    from gavel_py.optimization.formulation.linear_rows import Rules
    from gavel_py.optimization.job_classes import JobClasses
    from gavel_py.problem.problem import AllocationProblem

CHUNK = 1 << 13
"""Rows per pass, so that intermediate results stay in the processor's cache."""


class Certificate(Protocol):
    """Proves a decision by an objective that can be recomputed and a bound that does not rely on the solver."""

    @property
    def jobs(self) -> JobClasses:
        """The classes of jobs in the rows of the fractions."""

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""

    def bound(self) -> float:
        """Return a bound on the objective of all valid allocations."""

    def scale(self, fractions: Floats) -> float:
        """Return the size of the objective's terms, to which the gap is relative if they cancel out."""

    @property
    def scarcity(self) -> Prices:
        """The prices of GPUs and limits on which the bound is based; a price above 0 means scarcity."""


@dataclass(frozen=True)
class Stage:
    """One of several lexicographic objectives. tolerance: the part by which later stages may lower it."""

    name: str
    certificate: Certificate
    tolerance: float = 0.0


@dataclass(frozen=True)
class Stages:
    """Proves lexicographic stages, each by its own certificate; `whole`, by default that of stage `main`, proves the value."""

    stages: tuple[Stage, ...]
    main: int = 0
    whole: Certificate | None = None

    @property
    def jobs(self) -> JobClasses:
        return self.of_value.jobs

    def value(self, fractions: Floats) -> float:
        """Return the value of the allocation."""
        return self.of_value.value(fractions)

    def bound(self) -> float:
        """Return the bound on the value."""
        return self.of_value.bound()

    def scale(self, fractions: Floats) -> float:
        """Return the size of the value's terms."""
        return self.of_value.scale(fractions)

    @property
    def scarcity(self) -> Prices:
        """The prices that prove the value."""
        return self.of_value.scarcity

    @property
    def of_value(self) -> Certificate:
        """The certificate of the value."""
        return self.whole or self.stages[self.main].certificate


@dataclass(frozen=True)
class StageProof:
    """The proof of a stage: its objective, the bound on it given earlier stages, their gap, and `scale`, the size of its terms."""

    name: str
    value: float
    bound: float
    gap: float
    accepted_gap: float = PROOF_TOLERANCE
    scale: float = field(default=0.0, repr=False, compare=False)


@dataclass(frozen=True)
class Proof:
    """The proof of an allocation, over all jobs. Value, bound and gap are None for ordered policies, which have no objective.

    Attributes:
        violation: The largest violation of the rules of a valid allocation.
        value: The objective, computed from the time fractions.
        bound: A bound on the objective of all valid allocations.
        gap: The difference of value and bound, relative to the larger of them, or to the objective's terms if these cancel out.
        accepted_gap: The largest accepted gap, above 1e-6 only if jobs were merged or a time limit was reached.
        stages: The proofs of lexicographic stages.
        scale: The size of the objective's terms.
    """

    violation: float
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    accepted_gap: float = PROOF_TOLERANCE
    stages: tuple[StageProof, ...] = ()
    scale: float = field(default=0.0, repr=False, compare=False)

    def check(self) -> None:
        """Raise `ProofError` unless the allocation is valid to 1e-9 and the gap is accepted."""
        for stage in self.stages:
            if not stage.gap <= stage.accepted_gap:
                raise ProofError(
                    f"stage {stage.name}: value {stage.value:.9g} and proven bound {stage.bound:.9g} differ by {stage.gap:.2g} of "
                    f"their size (at most {stage.accepted_gap:.2g} is accepted), so it is not proven"
                )
        if not self.violation <= SOLVER_TOLERANCE:
            raise ProofError(f"the answer is not a valid allocation: a rule is violated by up to {self.violation:.3g}")
        if self.gap is not None and not self.gap <= self.accepted_gap:
            raise ProofError(
                f"the answer's value {self.value:.9g} and the proven bound {self.bound:.9g} differ by {self.gap:.2g} of their "
                f"size (at most {self.accepted_gap:.2g} is accepted), so it is not proven to be optimal"
            )


@dataclass(frozen=True)
class Evidence:
    """The data from which the proof of an allocation can be repeated.

    Attributes:
        columns: The columns of the answer, with the problem and its rules.
        certificate: None for ordered policies.
        times: The time in all columns, if the time on types does not determine it.
        shadow_prices: The prices of GPUs found with the optimum.
        limit_prices: The prices of `rules.hard_rows` found with the optimum.
        empty_value: The objective if no job can run.
    """

    columns: Columns
    certificate: Certificate | None
    accepted_gap: float = PROOF_TOLERANCE
    times: TimeShares | None = None
    shadow_prices: Floats | None = None
    limit_prices: Floats | None = None
    empty_value: float | None = None

    @property
    def problem(self) -> AllocationProblem:
        """The problem that was solved, with several columns for some types."""
        return self.columns.problem

    @property
    def rules(self) -> Rules:
        """The rules over all columns."""
        return self.columns.rules

    @property
    def base(self) -> AllocationProblem:
        """The problem with one column for each type, constraints included."""
        return self.columns.base

    def violation(self, times: TimeShares) -> float:
        """Return the largest violation by these times, of the conditions of valid allocations and of hard rules."""
        if not times.stand_for_all(self.rules):
            raise ProofError("jobs that are interchangeable in the proof are not equal")
        return max(times.violation(), *(each.part for each in times.broken(self.rules)), 0.0)

    def proof(self, times: TimeShares) -> Proof:
        """Return the proof of these times; raises `ProofError` if equal jobs do not have equal fractions."""
        violation = self.violation(times)
        if not violation <= SOLVER_TOLERANCE:
            return Proof(violation)  # an invalid allocation has no objective
        fractions = times.fractions if self.certificate is None else times.by_class(self.certificate.jobs)
        return self.proof_by_class(fractions, violation)

    def proof_by_class(self, fractions: Floats, violation: float) -> Proof:
        """Return the proof of (G, K) fractions of the certificate's classes with a known violation over all jobs."""
        main = self.certificate
        if main is None:
            value = self.empty_value
            return Proof(violation, value, value, None if value is None else 0.0)
        whole = self._stage_proof(Stage("", main), fractions)
        stages = tuple(self._stage_proof(stage, fractions) for stage in main.stages) if isinstance(main, Stages) else ()
        accepted = self.accepted_gap + (main.stages[main.main].tolerance if isinstance(main, Stages) else 0.0)
        return Proof(violation, whole.value, whole.bound, whole.gap, accepted, stages, whole.scale)

    def _stage_proof(self, stage: Stage, fractions: Floats) -> StageProof:
        certificate = stage.certificate
        value, bound, scale = certificate.value(fractions), certificate.bound(), certificate.scale(fractions)
        return StageProof(stage.name, value, bound, gap(value, bound, scale), self.accepted_gap + stage.tolerance, scale)


def gap(value: float, bound: float, scale: float = 0.0) -> float:
    """Return |bound - value| relative to the largest of |value|, |bound| and `scale`."""
    return abs(bound - value) / max(abs(value), abs(bound), scale, 1e-300)


def priced_bound(jobs: JobClasses, gains: Floats, prices: Floats, least: Floats | None = None) -> float:
    """Return an upper bound on max Σ_g n_g Σ_j G_gj x_gj over all valid allocations, for any prices p >= 0.

    By weak duality, it is the price of all GPUs plus the best surplus of each job over the types where it can run:
    Σ_j p_j c_j + Σ_g n_g max(0, max_j (G_gj - s_g p_j)). The second term is needed even if all prices are 0.
    gains: (G, K) per job; prices: (K,) per GPU; least: (G,) throughputs that jobs must have, which restricts their surplus.
    """
    if least is None or not least.any():
        best = np.zeros(len(jobs))
        for j, price in enumerate(prices.tolist()):  # by column: a maximum over short rows takes several times as long
            surplus = gains[:, j] - jobs.num_gpus * price
            np.maximum(best, surplus, out=best, where=jobs.runnable[:, j])
    else:
        costs = jobs.num_gpus[:, None] * prices - gains
        best = -CheapestMix(jobs.throughputs, jobs.runnable, costs).costs(np.ones(len(jobs), dtype=np.int64), least)
    return float(prices @ jobs.capacities + jobs.counts @ best)


@dataclass(frozen=True)
class PricedCertificate:
    """Proves a linear sum without a program: Σ_g n_g Σ_j G_gj x_gj is at most its `priced_bound`, with limits priced as well.

    gains: (G, K) G_gj, for all of a job's time; prices: all >= 0; sign: -1 if the policy's objective is the negative of this sum.
    """

    jobs: JobClasses
    gains: Floats
    prices: Prices
    sign: float = 1.0

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        return self.sign * float(self.jobs.counts @ np.einsum("gj,gj->g", self.gains, fractions))

    def bound(self) -> float:
        """Return the bound on the objective of all valid allocations that keep the floors."""
        limits = Prices(np.zeros_like(self.prices.gpus), self.prices.limits)
        net = self.gains - limits.costs(self.jobs) if limits.limits.any() else self.gains
        return self.sign * (priced_bound(self.jobs, net, self.prices.gpus, self.jobs.floors) + limits.worth(self.jobs))

    def scale(self, fractions: Floats) -> float:  # noqa: ARG002
        """Return the largest gain of all of a job's time."""
        gains = self.gains if self.jobs.runnable.all() else np.where(self.jobs.runnable, self.gains, 0.0)
        return max(float(gains.max(initial=0.0)), -float(gains.min(initial=0.0)))

    @property
    def scarcity(self) -> Prices:
        """The prices of GPUs and limits."""
        return self.prices

    def net_gains(self) -> Floats:
        """Return (G, K) the reduced gains per unit of a job's time on each type: what it gains, less its GPUs and its time."""
        net = np.where(self.jobs.runnable, self.gains - self.prices.costs(self.jobs), 0.0)
        reduced: Floats = net - np.maximum(0.0, net.max(axis=1, initial=0.0))[:, None]
        return reduced


def within_capacity(jobs: JobClasses, fractions: Floats) -> Floats:
    """Return the (G, K) allocation without the violations that the solver's tolerances allow.

    No time is below 0, no row sum exceeds 1, and no type exceeds its GPUs. The objective must be recomputed.
    """
    fractions = np.where(jobs.runnable, np.clip(fractions, 0.0, 1.0), 0.0)
    fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
    used = (jobs.counts * jobs.num_gpus) @ fractions
    return fractions * np.divide(jobs.capacities, used, out=np.ones_like(used), where=used > jobs.capacities)


@dataclass(frozen=True)
class Prices:
    """Dual prices. gpus: (K,) p_j per GPU; limits: (R,) z_r of each limit in `JobClasses.limits`."""

    gpus: Floats
    limits: Floats

    def costs(self, jobs: JobClasses) -> Floats:
        """Return (G, K) q_gj = s_g p_j + Σ_r z_r a_rgj, the cost of all of a job's time on a type; lower limits reduce it."""
        costs: Floats = jobs.num_gpus[:, None] * self.gpus
        return costs + (jobs.limits[0].T @ self.limits).reshape(jobs.throughputs.shape) if len(self.limits) else costs

    def over(self, own: Rules, rules: Rules) -> Prices:
        """Return the prices over the hard rows of `rules`, 0 for those that the rules of these prices, `own`, leave out."""
        known = dict(zip(map(id, own.hard_rows), self.limits.tolist(), strict=False))
        return replace(self, limits=np.array([known.get(id(row), 0.0) for row in rules.hard_rows]))

    def sizes(self, jobs: JobClasses) -> Floats:
        """Return (G, K) the sum of the magnitudes of the terms of `costs`, which determines its rounding errors."""
        sizes: Floats = jobs.num_gpus[:, None] * self.gpus
        return sizes + (abs(jobs.limits[0]).T @ np.abs(self.limits)).reshape(jobs.throughputs.shape) if len(self.limits) else sizes

    def worth(self, jobs: JobClasses) -> float:
        """Return Σ_j p_j c_j + Σ_r z_r b_r, the price of all resources; no valid allocation that keeps the rules costs more."""
        return float(self.gpus @ jobs.capacities) + (float(self.limits @ jobs.limits[1]) if len(self.limits) else 0.0)

    def scaled(self, factor: float) -> Prices:
        """Return these prices times a factor."""
        return Prices(self.gpus * factor, self.limits * factor)


class CheapestMix:
    """The least cost of a throughput τ for a job whose time on type j costs q_gj: h_g(τ) = min Σ_j q_gj x_j, the pricing problem.

    The minimum is over x >= 0 with Σ_j T_gj x_j >= τ and Σ_j x_j <= 1. As a function of τ it is the lower edge of the convex hull
    of the points (T_gj, q_gj) and (0, 0), constant up to its lowest point: convex, with at most K rising pieces, each a mix of two
    neighbouring types. slopes, corners, heights, ends: (K, rows) the slope of each piece, τ and h at its start, and τ at its end.
    Costs count from the start, since the intercept of a steep piece, between types of nearly equal speed, would round them.
    """

    def __init__(self, throughputs: Floats, runnable: NDArray[np.bool_], costs: Floats) -> None:
        rows, count = throughputs.shape
        self.lowest, self.starts = np.zeros(rows), np.zeros(rows)
        self.slopes, self.corners, self.heights, self.ends = (np.empty((count, rows)) for _ in range(4))
        for part in (slice(start, start + CHUNK) for start in range(0, rows, CHUNK)):
            self._find(part, throughputs[part].T.copy(), runnable[part].T.copy(), costs[part].T)

    def _find(self, rows: slice, throughputs: Floats, runnable: NDArray[np.bool_], costs: Floats) -> None:
        """Find the hulls of some rows from tables with a row for each type, since minima over types are fast on these."""
        costs, each = np.where(runnable, costs, np.inf), np.arange(throughputs.shape[1])
        at, lowest = np.zeros(len(each)), np.minimum(0.0, costs.min(axis=0, initial=0.0))
        if (lowest < 0).any():  # some time has a negative cost: the hull starts at its lowest point, the farthest of several
            at = np.where(costs == lowest, throughputs, 0.0).max(axis=0)
        cost, self.lowest[rows], self.starts[rows] = lowest, lowest, at
        steepness = np.empty(throughputs.shape)
        for piece in range(len(throughputs)):
            # The next corner has the least slope from the last one; among equal slopes, it is the farthest.
            ahead = runnable & (throughputs > at)
            steepness.fill(np.inf)
            np.divide(costs - cost, throughputs - at, out=steepness, where=ahead)
            least = steepness.min(axis=0)
            nearly = ahead & (steepness <= least * (1 + 1e-15))
            best = np.where(nearly, throughputs, -1.0).argmax(axis=0)
            going = np.isfinite(least)
            self.slopes[piece, rows], self.heights[piece, rows] = np.where(going, least, 0.0), np.where(going, cost, lowest)
            self.corners[piece, rows] = at
            at = np.where(going, throughputs[best, each], at)
            cost = np.where(going, costs[best, each], cost)
            self.ends[piece, rows] = at

    def costs(self, lengths: NDArray[np.int64], needs: Floats) -> Floats:
        """Return h at each need. The first lengths[0] needs belong to row 0, and so on; none exceeds the fastest of its row."""
        most = np.repeat(self.lowest, lengths)
        for slope, corner, height in zip(self.slopes, self.corners, self.heights, strict=True):
            if slope.any():
                above = np.repeat(slope, lengths) * (needs - np.repeat(corner, lengths))
                np.maximum(most, above + np.repeat(height, lengths), out=most)
        return most

    def free_until(self, lengths: NDArray[np.int64], tolerance: Floats) -> Floats:
        """Return the largest throughput of each row at the least cost; slopes up to (rows,) `tolerance` count as 0."""
        corner, free = self.starts, np.ones(len(tolerance), dtype=bool)
        for slope, start, end in zip(self.slopes, self.corners, self.ends, strict=True):
            free = free & ((slope <= tolerance) | (slope * (end - start) <= 1e-4 * tolerance * end))  # or a steep rounding error
            corner = np.where(free, end, corner)
        return np.repeat(corner, lengths)
