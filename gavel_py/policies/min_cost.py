"""Minimum cost under deadlines and minimum shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavel_py.errors import Fault, InputError, refuse
from gavel_py.optimization.checking.certificates import Prices, Stage, Stages
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.free_times import FreeTimes
from gavel_py.optimization.solving.highs import LinearSolver, TimeLimitReached
from gavel_py.policies.base import Decision, Policy, option
from gavel_py.policies.composition import without_penalties
from gavel_py.policies.linear_sums import LinearSumPolicy
from gavel_py.policies.sums import SumPolicy
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.tolerances import CLEAR

if TYPE_CHECKING:
    import cvxpy as cp

    from gavel_py.optimization.formulation.program import Program


def due_seconds(jobs: JobClasses) -> Floats:
    """Return (G,) seconds to the deadline of each job, or to the latest end with which those that wait for it can meet theirs."""
    due: Floats = np.fmin(jobs.deadlines_seconds, jobs.latest_end_seconds)
    return due


def required_throughputs(jobs: JobClasses, min_share: float | None) -> Floats:
    """Return (G,) the throughput required by a job of each class, at most its fastest, which past deadlines require."""
    seconds = due_seconds(jobs)
    share = jobs.isolated_throughput if min_share is None else min_share * jobs.equal_share
    needs = np.where(np.isnan(seconds), share, np.inf)
    needs = np.divide(jobs.steps_remaining, seconds, out=needs, where=seconds > 0)
    capped: Floats = np.minimum(needs, jobs.fastest)
    return capped


TOLERANCE = 1e-11
"""Relative increase of the least shortfall that the cost stage may cause."""


@dataclass(frozen=True, kw_only=True)
class Shortfall(SumPolicy):
    """Least shortfall: min Σ_i w_i max(0, 1 − thr_i / need_i), the first stage of `MinCost`, with the same needs."""

    min_share: float | None = None

    direction = "min"
    reads = ("weights", "steps_remaining", "deadlines_seconds", "latest_end_seconds")

    @property
    def needs_isolated_share(self) -> bool:
        return self.min_share is None

    def enough(self, jobs: JobClasses) -> Floats:
        return required_throughputs(jobs, self.min_share)

    def objective(self, program: Program) -> cp.Expression:
        import cvxpy as cp

        needs = required_throughputs(program.jobs, self.min_share)
        some = np.flatnonzero(needs > 0)
        if not len(some):
            return cp.Constant(0.0)
        short = cp.pos(1 - cp.multiply(1 / needs[some], program.throughput[some]))
        return (program.jobs.counts * program.weights)[some] @ short


@dataclass(frozen=True, kw_only=True)
class MinCost(LinearSumPolicy):
    """Meet deadlines and fair shares at the least cost.

    Least cost per hour: min Σ_ij price_j s_i X_ij such that jobs meet their deadlines, and the others get their fair share.

    thr_i >= n_i / d_i for a job with d_i seconds to its deadline, thr_i >= min_share · P_i for one without (by default: what it
    would have with an N-th of the cluster). When not all can hold, first the least Σ_i w_i · (part of its need that i lacks) is
    found, then the least cost that preserves it, and late jobs are named. A job with a deadline that is past or too near should
    get all that it can. Soft constraints and the cost of change count in the cost.
    Source: Gavel (OSDI 2020), section 4.2, which drops all deadlines where they cannot all hold.
    """

    min_share: float | None = option(None, "target of a job without a deadline, in equal shares; none: 1/N of the cluster")

    direction = "min"
    agnostic_view = "reference"
    reads = Shortfall.reads

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(
            f"policy {self.name}",
            (
                self.min_share is not None and not 0 <= self.min_share < np.inf,
                "option min_share",
                f"must be a number of at least 0, found {self.min_share!r}",
            ),
        )

    @property
    def needs_isolated_share(self) -> bool:
        return self.min_share is None

    @property
    def counts_gangs_whole(self) -> bool:
        return bool(self.min_share)

    @property
    def is_plain(self) -> bool:
        return False

    def enough(self, jobs: JobClasses) -> Floats:
        return required_throughputs(jobs, self.min_share)

    def gains(self, jobs: JobClasses) -> Floats:
        unpriced = np.isnan(jobs.prices_per_hour) & jobs.runnable.any(axis=0)
        names = dict.fromkeys(jobs.type_names[j] for j in np.flatnonzero(unpriced).tolist())
        text = f"is unknown, but {self.name} needs it"
        InputError.raise_any([Fault(f"accelerator type {name!r}", "price_per_hour", text) for name in names])
        prices = np.nan_to_num(jobs.prices_per_hour) * jobs.gpu_parts
        return jobs.num_gpus[:, None] * prices

    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        first = Shortfall(min_share=self.min_share).decide(without_penalties(jobs), solver)
        try:
            second = super().decide(self._after(jobs, first), solver)
        except TimeLimitReached as reached:
            raise TimeLimitReached(None, (first.time_fractions, *reached.fractions), reached.prices) from None
        return self._staged(jobs, first, replace(second, algorithm=None))

    def final_stage(self, jobs: JobClasses, solver: LinearSolver) -> tuple[Policy, JobClasses]:
        return self, self._after(jobs, Shortfall(min_share=self.min_share).decide(without_penalties(jobs), solver))

    def _after(self, jobs: JobClasses, first: Decision) -> JobClasses:
        """Return the jobs with the rules that preserve the least shortfall."""
        return jobs.with_rules(jobs.rules.also(self._keep_shortfall(jobs, first)))

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:
        first = Shortfall(min_share=self.min_share).best_of(without_penalties(jobs), candidates, prices)
        needs, found = self.enough(jobs), _throughputs(jobs, first.time_fractions)
        if not _is_short(found, needs).any():  # then every optimum meets all needs, which gives a lower bound on the cost
            jobs = jobs.with_rules(jobs.rules.also(Rules(floors=(jobs.floor(self.name, np.minimum(found, needs)),))))
        return self._staged(jobs, first, super().best_of(jobs, [first.time_fractions], prices))

    def _staged(self, jobs: JobClasses, first: Decision, second: Decision) -> Decision:
        """Return the second decision with the certificates of both stages, and notes on jobs that miss their requirement."""
        assert first.certificate is not None  # noqa: S101
        assert second.certificate is not None  # noqa: S101
        stages = (Stage("least shortfall", first.certificate, TOLERANCE), Stage("least cost", second.certificate))
        return replace(second, certificate=Stages(stages, main=1), notes=self._late(jobs, second.time_fractions))

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:
        first = decision.certificate.stages[0].certificate  # type: ignore[union-attr]
        shortfall = self._keep_shortfall(jobs, Decision(decision.time_fractions, first))
        return super().keep(jobs, decision, tolerance).also(shortfall)

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:
        cost = decision.certificate.stages[1].certificate  # type: ignore[union-attr]
        free = super().leaves_free(jobs, replace(decision, certificate=cost))
        throughputs, needs = _throughputs(jobs, decision.time_fractions), self.enough(jobs)
        if free is None:
            return None
        if not _is_short(throughputs, needs).any():
            return replace(free, least=np.maximum(free.least, np.minimum(throughputs, needs) / jobs.fastest))
        # The shortfall is linear in the times of jobs that do not exceed their need. The times of the others are kept.
        linear = throughputs <= needs * (1 + CLEAR)
        times = throughputs / jobs.fastest
        upper = np.where(linear, np.maximum(times, needs / jobs.fastest), times)
        gains = np.divide(jobs.weights * jobs.fastest, needs, out=np.zeros(len(jobs)), where=linear & (needs > 0))
        table = np.where(jobs.runnable, gains[:, None], 0.0)
        met = jobs.gains("how much of their needs jobs get", table, float((jobs.counts * gains) @ times))
        return FreeTimes(np.where(linear, free.least, times), upper, (*free.rows, met))

    def _keep_shortfall(self, jobs: JobClasses, found: Decision) -> Rules:
        """Return the rules that preserve the least shortfall: lower bounds if it is 0, which keep the program linear."""
        throughputs, needs = _throughputs(jobs, found.time_fractions), self.enough(jobs)
        if _is_short(throughputs, needs).any():
            return Shortfall(min_share=self.min_share).keep(jobs, found, TOLERANCE)
        return Rules(floors=(jobs.floor(self.name, np.minimum(throughputs, needs) * (1 - TOLERANCE)),))

    def _late(self, jobs: JobClasses, fractions: Floats) -> tuple[str, ...]:
        """Return a note for each job that misses its deadline or share, in the order of the problem."""
        throughputs, needs, seconds = _throughputs(jobs, fractions), self.enough(jobs), due_seconds(jobs)
        in_time = seconds * throughputs >= jobs.steps_remaining * (1 - CLEAR)
        late = np.where(np.isnan(seconds), _is_short(throughputs, needs), ~in_time)
        some = np.flatnonzero(late[jobs.index])
        texts: dict[int, str] = {}
        for g in np.flatnonzero(late).tolist():
            texts[g] = "gets no time, so it will miss its deadline"
            if np.isnan(seconds[g]):
                texts[g] = f"gets {throughputs[g] / needs[g]:.1%} of its target"
            elif throughputs[g] > 0:
                ends = jobs.steps_remaining[g] / throughputs[g]
                texts[g] = f"is late: it ends {ends - seconds[g]:.6g} s after its deadline"
        names = (jobs.problem.job_ids[i] for i in jobs.jobs[some].tolist())
        return tuple(f"job {name!r} {texts[g]}" for name, g in zip(names, jobs.index[some].tolist(), strict=True))


def _throughputs(jobs: JobClasses, fractions: Floats) -> Floats:
    throughputs: Floats = np.einsum("ij,ij->i", jobs.throughputs, fractions)
    return throughputs


def _is_short(throughputs: Floats, needs: Floats) -> Mask:
    return throughputs < needs * (1 - CLEAR)
