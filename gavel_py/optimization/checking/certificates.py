"""Proofs of an allocation, from the problem's own numbers and independent of the solver: it is valid, and nothing is better."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import ProofError
from gavel_py.optimization.checking.time_shares import ClassTimes, JobTimes
from gavel_py.optimization.formulation.colocation import PairColumns
from gavel_py.optimization.formulation.columns import PlacementColumns
from gavel_py.optimization.formulation.linear_rows import NO_RULES, Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem

GAP_TOLERANCE = 1e-6

VIOLATION_TOLERANCE = 1e-9


class Certificate(Protocol):
    """What proves a decision: an objective that can be recomputed, and a bound that does not rest on the solver's word."""

    @property
    def jobs(self) -> JobClasses:
        """The classes of jobs that the fractions are about."""

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""

    def bound(self) -> float:
        """Return a bound that no valid allocation can beat."""

    def scale(self, fractions: Floats) -> float:
        """Return the size of the objective's terms, which counts for the gap where they cancel out to a value near 0."""

    @property
    def scarcity(self) -> Prices:
        """The prices of GPUs and limits behind the bound: what has a price above 0 is scarce."""


@dataclass(frozen=True)
class Stage:
    """One of several objectives that an answer reaches in turn. tolerance: the part by which later ones may lower it."""

    name: str
    certificate: Certificate
    tolerance: float = 0.0


@dataclass(frozen=True)
class Stages:
    """Proves an answer that was found in stages, each of which is proven by itself; `main` is the one whose value is told."""

    stages: tuple[Stage, ...]
    main: int = 0

    @property
    def jobs(self) -> JobClasses:
        return self._main.jobs

    def value(self, fractions: Floats) -> float:
        """Return the objective of the main stage."""
        return self._main.value(fractions)

    def bound(self) -> float:
        """Return the bound of the main stage."""
        return self._main.bound()

    def scale(self, fractions: Floats) -> float:
        """Return the size of the main stage's terms."""
        return self._main.scale(fractions)

    @property
    def scarcity(self) -> Prices:
        """The prices of the main stage."""
        return self._main.scarcity

    @property
    def _main(self) -> Certificate:
        return self.stages[self.main].certificate


@dataclass(frozen=True)
class StageProof:
    """What is proven of one stage: its objective, the bound on it given what earlier stages have reached, and their gap.

    scale: the size of the objective's terms.
    """

    name: str
    value: float
    bound: float
    gap: float
    accepted_gap: float = GAP_TOLERANCE
    scale: float = field(default=0.0, repr=False, compare=False)


@dataclass(frozen=True)
class Proof:
    """What is proven of an allocation, over all jobs.

    value: the objective, from the time fractions; bound: no valid allocation is better; gap: their difference in parts of the
    larger of them (or of the objective's terms, where these cancel out); accepted_gap: the largest gap that was accepted, above
    1e-6 only where jobs were merged; violation: by how much the worst rule of a valid allocation is broken.
    Value, bound and gap are None for ordered policies, which have no objective. stages: the parts of an answer found in stages;
    scale: the size of the objective's terms.
    """

    violation: float
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    accepted_gap: float = GAP_TOLERANCE
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
        if not self.violation <= VIOLATION_TOLERANCE:
            raise ProofError(f"the answer is not a valid allocation: the worst rule is broken by {self.violation:.3g}")
        if self.gap is not None and not self.gap <= self.accepted_gap:
            raise ProofError(
                f"the answer's value {self.value:.9g} and the proven bound {self.bound:.9g} differ by {self.gap:.2g} of their "
                f"size (at most {self.accepted_gap:.2g} is accepted), so it is not proven to be optimal"
            )


@dataclass(frozen=True)
class Evidence:
    """What an allocation is proven with: the problem, and the policy's certificate (None for ordered policies).

    kinds: what the columns of an answer mean, where some types have several of them; times: the time of the classes in these, where
    jobs share GPUs, which the time on types does not tell; shadow_prices, limit_prices: of GPUs and of `rules.hard_rows`, as they
    were found with the optimum; empty_value: the objective where there is nothing to decide.
    """

    problem: AllocationProblem
    certificate: Certificate | None
    accepted_gap: float = GAP_TOLERANCE
    rules: Rules = NO_RULES
    kinds: PlacementColumns | PairColumns | None = None
    times: ClassTimes | None = None
    shadow_prices: Floats | None = None
    limit_prices: Floats | None = None
    empty_value: float | None = None

    @property
    def asked(self) -> AllocationProblem:
        """The problem with one column for each type, constraints included."""
        return self.problem if self.kinds is None else self.kinds.base

    def broken(self, times: JobTimes | ClassTimes) -> float:
        """Return by how much these times break the worst-kept rule, be it of valid allocations or of constraints."""
        if isinstance(times, JobTimes):
            valid = violation(self.problem, times.fractions)
        else:
            if not times.are_equal(self.rules):
                raise ProofError("jobs that stand for one another in the proof are not equal")
            valid = _violation(times.fractions, times.num_gpus, times.jobs.runnable, times.jobs.capacities)
        return max(valid, *(each.part for each in times.broken(self.rules)), 0.0)

    def proof(self, times: JobTimes | ClassTimes) -> Proof:
        """Return the proof of these times; raises `ProofError` if equal jobs do not have equal fractions."""
        broken = self.broken(times)
        if not broken <= VIOLATION_TOLERANCE:
            return Proof(broken)  # no allocation, so there is no objective of it
        if self.certificate is None or isinstance(times, ClassTimes):
            return self.proof_by_class(times.fractions, broken)
        jobs = self.certificate.jobs
        by_class = times.fractions[jobs.rows]
        if not np.array_equal(jobs.spread(by_class), times.fractions):
            raise ProofError(
                "jobs that are equal to the policy have different time fractions, so its objective cannot be recomputed"
            )
        return self.proof_by_class(by_class, broken)

    def proof_by_class(self, fractions: Floats, broken: float) -> Proof:
        """Return the proof of (G, K) fractions of the certificate's classes, whose violation over all jobs is known."""
        if self.certificate is None:
            value = self.empty_value
            return Proof(broken, value, value, None if value is None else 0.0)
        value, bound, scale = _found(self.certificate, fractions)
        main = self.certificate
        stages = tuple(self._stage_proof(stage, fractions) for stage in main.stages) if isinstance(main, Stages) else ()
        accepted = self.accepted_gap + (main.stages[main.main].tolerance if isinstance(main, Stages) else 0.0)
        return Proof(broken, value, bound, gap(value, bound, scale), accepted, stages, scale)

    def _stage_proof(self, stage: Stage, fractions: Floats) -> StageProof:
        value, bound, scale = _found(stage.certificate, fractions)
        return StageProof(stage.name, value, bound, gap(value, bound, scale), self.accepted_gap + stage.tolerance, scale)


def _found(certificate: Certificate, fractions: Floats) -> tuple[float, float, float]:
    """The value, the bound, and the size of the terms."""
    return certificate.value(fractions), certificate.bound(), certificate.scale(fractions)


def violation(problem: AllocationProblem, time_fractions: Floats) -> float:
    """Return by how much an (N, K) allocation breaks the worst-kept rule of valid allocations.

    X_ij >= 0; Σ_j X_ij <= 1; Σ_i s_i X_ij <= c_j, in parts of c_j; X_ij = 0 where job i cannot run on type j.
    """
    return _violation(time_fractions, problem.num_gpus, problem.runnable, problem.capacities)


def _violation(time_fractions: Floats, num_gpus: Floats, runnable: NDArray[np.bool_], capacities: Floats) -> float:
    """num_gpus: GPUs of the jobs of each row."""
    if not time_fractions.size:
        return 0.0
    if not np.isfinite(time_fractions).all():
        return np.inf
    used = num_gpus @ time_fractions
    times = time_fractions @ np.ones(len(capacities))  # quicker than a sum over short rows
    astray = 0.0 if runnable.all() else float(np.where(runnable, 0.0, np.abs(time_fractions)).max())
    too_many = float(((used - capacities) / np.maximum(1.0, capacities)).max(initial=0.0))
    return max(0.0, -float(time_fractions.min()), float(times.max()) - 1.0, too_many, astray)


def gap(value: float, bound: float, scale: float = 0.0) -> float:
    """Return |bound - value| in parts of the larger of the two, or of `scale` where that is larger still."""
    return abs(bound - value) / max(abs(value), abs(bound), scale, 1e-300)


def priced_bound(jobs: JobClasses, gains: Floats, prices: Floats, least: Floats | None = None) -> float:
    """Return an upper bound on max Σ_g n_g Σ_j G_gj x_gj over all valid allocations, for any prices p >= 0.

    Weak duality: GPUs cost p_j, every job buys its best time, and the GPUs are paid for:
    Σ_j p_j c_j + Σ_g n_g max(0, max_j (G_gj - s_g p_j)), the inner maximum over the types where a job can run.
    gains: (G, K) per job; prices: (K,) per GPU. The second term matters even when all prices are 0 (one job bounds all).
    least: (G,) throughputs that jobs must have in the allocations that are counted, so that a job's best time is that with these.
    """
    surplus = gains - jobs.num_gpus[:, None] * prices
    if least is None or not least.any():
        best = np.where(jobs.runnable, surplus, 0.0).max(axis=1, initial=0.0)
    else:
        best = -CheapestMix(jobs.throughputs, jobs.runnable, -surplus).costs(np.ones(len(jobs), dtype=np.int64), least)
    return float(prices @ jobs.capacities + jobs.counts @ best)


def within_capacity(jobs: JobClasses, fractions: Floats) -> Floats:
    """Return the (G, K) allocation with the solver's tolerances taken out.

    No time is below 0, no row above 1, no type above its GPUs; what is scaled down is so by the size of a tolerance, and
    the objective is recomputed afterwards.
    """
    fractions = np.where(jobs.runnable, np.clip(fractions, 0.0, 1.0), 0.0)
    fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
    used = (jobs.counts * jobs.num_gpus) @ fractions
    return fractions * np.divide(jobs.capacities, used, out=np.ones_like(used), where=used > jobs.capacities)


@dataclass(frozen=True)
class Prices:
    """What is scarce and what it is worth. gpus: (K,) p_j per GPU; limits: (R,) z_r of each rule in `JobClasses.limits`."""

    gpus: Floats
    limits: Floats

    def costs(self, jobs: JobClasses) -> Floats:
        """Return (G, K) q_gj = s_g p_j + Σ_r z_r a_rgj, what all of a job's time on a type costs; a rule to get more lowers it."""
        costs: Floats = jobs.num_gpus[:, None] * self.gpus
        return costs + (jobs.limits[0].T @ self.limits).reshape(jobs.throughputs.shape) if len(self.limits) else costs

    def sizes(self, jobs: JobClasses) -> Floats:
        """Return (G, K) Σ of the sizes of what `costs` adds up, by which to tell its rounding errors from costs."""
        sizes: Floats = jobs.num_gpus[:, None] * self.gpus
        return sizes + (abs(jobs.limits[0]).T @ np.abs(self.limits)).reshape(jobs.throughputs.shape) if len(self.limits) else sizes

    def worth(self, jobs: JobClasses) -> float:
        """Return Σ_j p_j c_j + Σ_r z_r b_r, what there is to be sold; no valid allocation that keeps the rules costs more."""
        return float(self.gpus @ jobs.capacities) + (float(self.limits @ jobs.limits[1]) if len(self.limits) else 0.0)

    def scaled(self, factor: float) -> Prices:
        """Return these prices times a factor."""
        return Prices(self.gpus * factor, self.limits * factor)


class CheapestMix:
    """What it costs at least to give a job the throughput τ where its time on type j costs q_gj: h_g(τ) = min Σ_j q_gj x_j.

    The minimum is over x >= 0 with Σ_j T_gj x_j >= τ and Σ_j x_j <= 1. As a function of τ it is the lower edge of the convex hull
    of the points (T_gj, q_gj) and (0, 0), level up to its lowest point: convex, of at most K rising pieces, each a mix of two
    neighbouring types.
    """

    def __init__(self, throughputs: Floats, runnable: NDArray[np.bool_], costs: Floats) -> None:
        costs = np.where(runnable, costs, np.inf)
        rows = np.arange(len(throughputs))
        at, cost = np.zeros(len(rows)), np.minimum(0.0, costs.min(axis=1, initial=0.0))
        if (cost < 0).any():  # some time pays for itself: the hull starts at its lowest point, the farthest of several
            at = np.where(costs == cost[:, None], throughputs, 0.0).max(axis=1)
        self.lowest, self.starts = cost, at
        slopes, offsets, ends = [], [], []
        for _ in range(throughputs.shape[1]):
            # From the corner reached so far to the next: the least slope, and of equal ones the farthest.
            ahead = runnable & (throughputs > at[:, None])
            steepness = np.full(throughputs.shape, np.inf)
            np.divide(costs - cost[:, None], throughputs - at[:, None], out=steepness, where=ahead)
            least = steepness.min(axis=1)
            nearly = ahead & (steepness <= least[:, None] * (1 + 1e-15))
            best = np.where(nearly, throughputs, -1.0).argmax(axis=1)
            going = np.isfinite(least)
            slopes.append(np.where(going, least, 0.0))
            offsets.append(np.where(going, cost - np.where(going, least, 0.0) * at, self.lowest))
            at = np.where(going, throughputs[rows, best], at)
            cost = np.where(going, costs[rows, best], cost)
            ends.append(at)
        self.slopes = np.array(slopes)
        self.offsets = np.array(offsets)
        self.ends = np.array(ends)

    def costs(self, lengths: NDArray[np.int64], needs: Floats) -> Floats:
        """Return h at each of the needs: the first lengths[0] of them are of row 0, and so on; none exceeds its row's fastest."""
        most = np.repeat(self.lowest, lengths)
        for slope, offset in zip(self.slopes, self.offsets, strict=True):
            if slope.any():
                np.maximum(most, np.repeat(slope, lengths) * needs + np.repeat(offset, lengths), out=most)
        return most

    def free_until(self, lengths: NDArray[np.int64], tolerance: Floats) -> Floats:
        """Return how much throughput each row can have at the least cost; slopes up to (rows,) `tolerance` count as none."""
        corner, free = self.starts, np.ones(len(tolerance), dtype=bool)
        for slope, end in zip(self.slopes, self.ends, strict=True):
            free = free & (slope <= tolerance)
            corner = np.where(free, end, corner)
        return np.repeat(corner, lengths)
