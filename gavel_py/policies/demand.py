"""The demand family: the best level θ at which every job gets its required throughput.

A `DemandPolicy` defines the required throughput at a level, and finds the best feasible level. A `FillingPolicy` does so repeatedly
(progressive filling): it raises all jobs together until some cannot rise further, then the others, and so on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.optimization.checking.certificates import Certificate, Prices, Stage, Stages
from gavel_py.optimization.formulation.linear_rows import ObjectiveRow, Rules
from gavel_py.optimization.job_classes import JobClasses, returned_numbers
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.optimization.solving.levels import LevelCertificate, Levels
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import LEAST_LEVEL, SOLVER_TOLERANCE

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program
    from gavel_py.optimization.solving.level_search import BestLevel
    from gavel_py.optimization.solving.progressive_filling import Groups, Shares

MAX_GUESSES = 20
"""Steps in which `proportional_guess` lowers the level."""


@dataclass(frozen=True, kw_only=True)
class DemandPolicy(Policy):
    """Find the best level θ at which every job i gets thr_i >= need_i(θ).

    Subclasses define `need`. If needs are proportional to θ (direction "max") or to 1/θ ("min"), that suffices; otherwise they
    also define its inverse, `level`.

    Attributes:
        direction: "max" if θ is maximised and needs grow with it, "min" if θ is minimised and needs fall with it.
        needs_are_convex: Whether each need is convex in θ, as proportional ones are. Soft constraints require it.
        efficiency: Whether to maximise Σ s_i·v_i among all answers with the best level.
    """

    efficiency: bool = option(True, "among all allocations of the best level, choose the one with the largest Σ s_i·v_i")

    family: ClassVar[str] = "demand"
    direction: ClassVar[Literal["max", "min"]] = "max"
    needs_are_convex: ClassVar[bool] = False

    @abstractmethod
    def need(self, jobs: JobClasses, level: float) -> Floats:
        """Return (G,) the throughput, steps/s, that a job of each class requires at a level; infinite if no throughput suffices.

        Args:
            jobs: The classes as this policy sees them.
            level: θ.
        """

    def level(self, jobs: JobClasses, throughputs: Floats) -> Floats:
        """Return (G,) the level that a job of each class reaches at a throughput: need(level(thr)) = thr.

        Args:
            jobs: The classes as this policy sees them.
            throughputs: (G,) steps/s.
        """
        once = returned_numbers(
            self.need(jobs, 1.0), len(jobs), f"policy {self.name}", "need", "at least 0 or infinite", jobs.example
        )
        if self.direction == "min":
            levels: Floats = once / throughputs
        else:
            levels = np.divide(throughputs, once, out=np.full(throughputs.shape, np.inf), where=once > 0)
        return levels

    def objective(self, program: Program) -> cp.Expression:
        """Return the level of an allocation as an expression, concave for "max" and convex for "min".

        `gavel_py.formulation` shows it; `solve` does not use it. A policy with its own `level` defines it too.

        Args:
            program: Throughputs as expressions.

        Raises:
            InputError: The policy has its own `level` and no `objective`.
        """
        import cvxpy as cp

        text = "is not defined: a policy with its own level needs this expression as well to have a formulation"
        refuse(f"policy {self.name}", (not self.is_proportional, "objective", text))
        once = self.need(program.jobs, 1.0)
        if self.direction == "max":
            return least_level(program, once)
        unit = float((once / program.jobs.fastest).max(initial=0.0)) or 1.0  # about the level, for solvers with absolute tolerances
        return unit * cp.inv_pos(least_level(program, once / unit))

    @property
    def is_plain(self) -> bool:
        """As for a `SumPolicy`: efficiency costs nothing of the level, so the level decides alone."""
        return True

    @property
    def is_proportional(self) -> bool:
        """Whether needs are proportional to the level, or inversely for "min"."""
        return type(self).level is DemandPolicy.level

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.optimization.solving.level_search import find_best_level

        if jobs.rules.has_penalties:
            return self._decide_charged(jobs, solver)
        levels = Levels(self, jobs)
        best = self._by_prices(levels, solver) or find_best_level(levels, solver, efficiency=self.efficiency)
        self._check_served(jobs, best.fractions)
        return Decision(best.fractions, LevelCertificate(levels, best.prices), best.shadow_prices, best.algorithm)

    def _by_prices(self, levels: Levels, solver: LinearSolver) -> BestLevel | None:
        """Return the best level of very many different jobs; None if prices do not apply or do not find it."""
        if not self._uses_prices(levels.jobs, len(levels.chambers.first), solver):
            return None
        from gavel_py.optimization.solving.level_decomposition import find_level

        return find_level(levels, solver, efficiency=self.efficiency)

    def _decide_charged(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        """Trade the level off against the penalties of soft constraints; there is no efficiency stage."""
        from gavel_py.optimization.solving.soft_levels import find_charged_level

        text = "must be convex in the level if there are soft constraints or a cost of change"
        refuse(f"policy {self.name}", (not self.needs_are_convex, "need", f"{text}; if it is, set needs_are_convex = True"))
        fractions, certificate = find_charged_level(Levels(self, jobs), solver)
        self._check_served(jobs, fractions)
        return Decision(fractions, certificate, certificate.program.shadow_prices(solver))

    def _check_served(self, jobs: JobClasses, fractions: Floats) -> None:
        """Raise `InputError` if rules leave a job without time, so that a level to be minimised is infinite."""
        if self.direction == "min" and jobs.rules.can_conflict:
            from gavel_py.optimization.checking.infeasibility import check_all_served

            check_all_served(jobs, fractions, self.name)

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        certificate = decision.certificate
        if not isinstance(certificate, LevelCertificate):
            text = "weighs soft constraints, so a second policy cannot preserve the level that it reaches"
            raise InputError(Fault(f"policy {self.name}", "constraints", text))
        return kept_levels(self.name, jobs, certificate, decision.time_fractions, tolerance)

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:
        levels: Levels | None = getattr(decision.certificate, "levels", None)
        if levels is None:
            return None
        times: Floats = decision.time_fractions @ np.ones(len(jobs.capacities))
        least = levels.needs(levels.reached(jobs.fastest * times)) / jobs.fastest
        rows: tuple[ObjectiveRow, ...] = ()
        if self.efficiency and jobs.rules and not jobs.rules.has_penalties:
            # The efficiency of agnostic jobs is Σ_g n_g s_g t_g, the number of GPUs in use.
            gpus = float((jobs.counts * jobs.num_gpus) @ times)
            table = np.where(jobs.runnable, jobs.num_gpus[:, None], 0.0)
            rows = (jobs.gains(f"the GPUs in use under {self.name}", table, gpus),)
        return FreeTimes(np.minimum(least, times), np.ones(len(jobs)), rows, is_certain=not jobs.rules)

    def guess(self, jobs: JobClasses) -> Floats | None:
        return proportional_guess(Levels(self, jobs))

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        levels = Levels(self, jobs)
        if not jobs.rules.has_penalties:
            return best_level_of(levels, candidates, prices)
        from gavel_py.optimization.formulation.program import Program
        from gavel_py.optimization.solving.soft_levels import PricedChargedLevel

        program = Program(jobs)
        return _best(levels, candidates, [PricedChargedLevel(levels, program, p) for p in (*prices, levels.equal_prices())])


def least_level(program: Program, once: Floats) -> cp.Expression:
    """Return min_i thr_i / once_i over the jobs with once_i > 0, the level if needs are level · once_i; once: (G,) steps/s."""
    import cvxpy as cp

    some = np.flatnonzero(once > 0)
    throughput = program.throughput if len(some) == len(once) else program.throughput[some]
    return cp.min(cp.multiply(cp.Constant(1 / once[some], name="1/need"), throughput))


def proportional_guess(levels: Levels) -> Floats:
    """Return (G, K) time fractions that give each job its need at some level, spread over types in proportion to capacities.

    x_gj = t_g c_j / Σ_k c_k over the types where the job can run; t_g = min(1, need_g / thr_g), thr_g the throughput for t_g = 1.
    """
    jobs, level = levels.jobs, levels.affordable(levels.alone, levels.equal_prices())
    mix = np.where(jobs.runnable, jobs.capacities, 0.0)
    mix /= np.maximum(mix.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    speed, gpus = np.einsum("ij,ij->i", jobs.throughputs, mix), jobs.counts * jobs.num_gpus
    for _ in range(MAX_GUESSES):
        needs = levels.needs(level)
        times = np.minimum(1.0, np.divide(needs, speed, out=np.zeros_like(needs), where=speed > 0))
        load = float(np.divide((gpus * times) @ mix, jobs.capacities, out=np.zeros(mix.shape[1]), where=jobs.capacities > 0).max())
        if load <= 1:
            break
        level = level * load**levels.worse if level > 0 else level + levels.worse * levels.spread * load
    fractions: Floats = times[:, None] * mix / max(load, 1.0)
    return fractions


def best_level_of(levels: Levels, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
    """Return the candidate with the best level and the tightest bound at the given prices or at equal prices for all GPUs."""
    return _best(levels, candidates, [LevelCertificate(levels, each) for each in (*prices, levels.equal_prices())])


def _best(levels: Levels, candidates: Sequence[Floats], certificates: Sequence[Certificate]) -> Decision:
    values = [levels.worse * certificates[0].value(fractions) for fractions in candidates]
    bounds = [levels.worse * certificate.bound() for certificate in certificates] if len(certificates) > 1 else [0.0]
    return Decision(candidates[int(np.argmin(values))], certificates[int(np.argmax(bounds))])


def kept_levels(name: str, jobs: JobClasses, certificate: LevelCertificate, fractions: Floats, tolerance: float) -> Rules:
    """Return lower bounds that keep the level of given time fractions, except for a relative loss of `tolerance`."""
    levels = certificate.levels
    level = certificate.value(fractions)
    worse = level + levels.worse * tolerance * max(abs(level), certificate.change(fractions))
    needs = levels.needs(worse)
    if levels.worse < 0 and level <= SOLVER_TOLERANCE * levels.alone:  # some job has nothing but a rounding error
        needs = np.where(needs > SOLVER_TOLERANCE * jobs.fastest, needs, 0.0)
    return Rules(floors=(jobs.floor(name, needs),))


ROOM = SOLVER_TOLERANCE / 2
"""Relative slack of lower bounds; less than the shortage accepted of a saturated job (`progressive_filling.STOPPED`)."""


@dataclass(frozen=True, kw_only=True)
class FillingPolicy(Policy):
    """Progressive filling: raise all jobs from 0 until some are saturated, then the others, and so on. Subclasses define `shares`.

    Each level is a demand with a value that is proven optimal, given the levels before. The reported value is the work of the
    worst-off of the `groups`, or the level at which the first job is saturated, by a lack of GPUs or at its full speed.
    """

    family: ClassVar[str] = "demand"
    is_plain: ClassVar[bool] = True

    @property
    def equates_speeds(self) -> bool:
        """Levels jump where speeds begin to differ: for the least gain, a job takes all time there of others with more than it."""
        return True

    @abstractmethod
    def shares(self, jobs: JobClasses) -> Shares:
        """Return the speed at which each job rises, in service s_i · v_i."""

    def groups(self, shares: Any) -> Groups | None:  # noqa: ARG002
        """Return the groups of jobs of which the worst-off gives the allocation its value, None if that is the worst-off job.

        shares: what `shares` returned.
        """
        return None

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        from gavel_py.optimization.solving.progressive_filling import fill, first_stop_of, gains_of_more_gpus, worst_off

        text = "optimises its levels one after another, so it cannot weigh them against soft constraints and the cost of change"
        refuse(f"policy {self.name}", (jobs.rules.has_penalties, "constraints", text))
        shares = self.shares(jobs)
        groups = self.groups(shares)
        filled = fill(jobs, shares, solver, self.name, prices=groups is None)
        levels, first = zip(filled.levels, filled.found, strict=True), filled.found[0]
        fractions, least = filled.found[-1].fractions, LevelCertificate(first_stop_of(jobs, shares, self.name), first.prices)
        certificates = [least, *(LevelCertificate(level, best.prices) for level, best in levels)]
        stages = [Stage(f"level {n}" if n else "first stop", certificate) for n, certificate in enumerate(certificates)]
        answer = _without_dust(jobs, fractions, certificates)
        if groups is None:
            # If the first saturated job runs at full speed, more GPUs gain nothing.
            scarce = least.value(fractions) >= first.level * (1 - SOLVER_TOLERANCE)
            return Decision(answer, Stages(tuple(stages)), first.shadow_prices if scarce else np.zeros_like(first.shadow_prices))
        try:
            gains = gains_of_more_gpus(filled, shares, groups, solver)
        except TimeLimitReached:  # the levels are the best ones, but their prices are unknown
            raise TimeLimitReached(None, (answer,), (first.prices,)) from None
        whole, number = worst_off(filled, groups)
        return Decision(answer, Stages(tuple(stages), number and number + 1, whole), gains)

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes:
        times: Floats = decision.time_fractions @ np.ones(len(jobs.capacities))
        return FreeTimes(times, times, is_certain=not jobs.rules)

    def objective(self, program: Program) -> cp.Expression:
        """Return the level of the first stop as a concave expression: the objective of the first program that is solved.

        Args:
            program: Throughputs as expressions.
        """
        first = self._first_stop(program.jobs)
        below = first.alone / 2  # needs are proportional to the level until a job runs at its full speed
        return least_level(program, first.demand.need(program.jobs, below) / below)

    def _first_stop(self, jobs: JobClasses) -> Levels:
        from gavel_py.optimization.solving.progressive_filling import first_stop_of

        return first_stop_of(jobs, self.shares(jobs), self.name)

    def guess(self, jobs: JobClasses) -> Floats | None:
        return proportional_guess(self._first_stop(jobs))

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        from gavel_py.optimization.solving.progressive_filling import StoppedCertificate, first_stop_of

        shares = self.shares(jobs)
        levels, groups = first_stop_of(jobs, shares, self.name), self.groups(shares)
        if groups is None:
            return best_level_of(levels, candidates, prices)
        return _best(levels, candidates, [StoppedCertificate(levels, each, groups) for each in (*prices, levels.equal_prices())])

    def peers(self, jobs: JobClasses) -> Sequence[Any]:
        """Return (G,) the group of each job within which jobs are interchangeable: only their sorted levels count."""
        return [0] * len(jobs)

    def lost(self, jobs: JobClasses, fractions: Floats, best: Floats) -> float:
        """Return the largest part of its level that a job loses against the best time fractions, from 0 to 1.

        max_k 1 - u_(k) / u'_(k), u_(k) the level s_i v_i / w_i of the k-th worst-off job of its `peers`. The vector u' is unique.

        Args:
            jobs: Each job as a separate class, as this policy sees it.
            fractions: (G, K) time fractions.
            best: (G, K) time fractions that this policy chooses.
        """
        weights, peers = jobs.weights if "weights" in self.reads else 1.0, np.unique(self.peers(jobs), return_inverse=True)[1]
        levels = (jobs.num_gpus * (jobs.throughputs * x).sum(axis=1) / jobs.equal_share / weights for x in (fractions, best))
        now, then = (each[np.lexsort((each, peers))] for each in levels)
        lost = np.divide(then - now, then, out=np.zeros(len(jobs)), where=then > LEAST_LEVEL * then.max(initial=0.0))
        worst = float(lost.max(initial=0.0))
        return worst if worst > LEAST_LEVEL else 0.0

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        last = decision.certificate.stages[-1].certificate  # type: ignore[union-attr]
        (floor,) = kept_levels(self.name, jobs, last, decision.time_fractions, tolerance).floors
        # Jobs saturated before the last level keep their throughput, up to rounding.
        throughputs = np.einsum("ij,ij->i", jobs.throughputs, decision.time_fractions)
        least = np.minimum(
            floor.throughputs[jobs.rows], np.where(throughputs > SOLVER_TOLERANCE * jobs.fastest, throughputs, 0.0)
        ) * (1 - ROOM)
        return Rules(floors=(jobs.floor(self.name, least),))


def _without_dust(jobs: JobClasses, fractions: Floats, certificates: list[LevelCertificate]) -> Floats:
    """Return the time fractions with 0 for jobs whose tiny throughput no level requires, such as those waiting in a fifo tenant."""
    throughputs = np.einsum("ij,ij->i", jobs.throughputs, fractions)
    dust = (throughputs < SOLVER_TOLERANCE * jobs.fastest) & (fractions > 0).any(axis=1)
    if jobs.rules or not dust.any():  # rules on several jobs together may need these parts
        return fractions
    without = np.where(dust, 0.0, throughputs)
    for certificate in certificates:
        with np.errstate(divide="ignore"):
            levels = certificate.levels.demand.level(jobs, without)
        dust &= levels >= certificate.value(fractions) * (1 - SOLVER_TOLERANCE)
    return np.where(dust[:, None], 0.0, fractions)
