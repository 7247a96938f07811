"""The result of a solve: which job gets which accelerator type for how much of the time, with its value and its proof.

`stated` turns an answer in the columns of its program into an `Allocation` in the terms of the problem. `figures_of` computes all
that follows from the time of jobs (throughputs, utilization), and `Allocation.verify` compares the stated figures with those.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gavel_py.errors import InputError, ProofError
from gavel_py.optimization.checking.certificates import Evidence, Proof, StageProof
from gavel_py.optimization.checking.shadow_prices import limit_prices
from gavel_py.optimization.checking.time_shares import ClassTimes, JobTimes
from gavel_py.optimization.formulation.colocation import PairColumns, Pairs, deal
from gavel_py.optimization.formulation.columns import PlacementColumns, spread_part
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.policies import Decision, Policy
from gavel_py.policies.base import AllocationStatus
from gavel_py.policies.constraints import ConstraintOutcome, outcomes_of
from gavel_py.problem.arrays import Floats
from gavel_py.problem.problem import AllocationProblem

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


def figures_of(problem: AllocationProblem, times: JobTimes | ClassTimes, columns: PlacementColumns | PairColumns | None) -> Figures:
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
    problem: AllocationProblem, times: JobTimes | ClassTimes, columns: PlacementColumns | PairColumns | None
) -> tuple[Floats, Floats | None, Floats]:
    """The time on types, the part of it that is spread, and the GPUs in use."""
    if isinstance(columns, PairColumns) and isinstance(times, ClassTimes):
        used = columns.gpus(times.fractions, times.num_gpus)
        alone = None if problem.speeds is None else times.jobs.spread(times.fractions[:, : len(problem.capacities)])
        spread = None if alone is None else spread_part(problem, alone)
        return times.jobs.spread(columns.folded(times.fractions)), spread, used
    found, gpus = times.fractions, problem.num_gpus
    if isinstance(columns, PlacementColumns):
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


@dataclass(frozen=True)
class Route:
    """How an answer was reached.

    reduction: "classes" of equal jobs, "merged" classes of nearly equal ones, or "none"; classes: how many;
    algorithm: what solved the programs; programs, iterations: how many in all;
    failed: the routes that were tried before, each with what was wrong with its answer.
    """

    reduction: str
    classes: int
    algorithm: str | None = None
    programs: int = 0
    iterations: int = 0
    failed: tuple[str, ...] = ()

    def after(self, before: Route) -> Route:
        """Return this route with the programs and iterations of those before it."""
        return replace(self, programs=before.programs + self.programs, iterations=before.iterations + self.iterations)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Allocation:
    """Who gets what. N jobs, K accelerator types, in the order of the problem.

    policy, options: its name, and the options that differ from their defaults;
    time_fractions: (N, K) X_ij, part of wall-clock time of job i on type j, row sums <= 1;
    spread_fractions: (N, K) the part of X_ij for which the gang is to be on more nodes than it needs, None where nobody knows of a
    difference; pairs: who shares GPUs with whom, and for how long, None where nobody is to share: that time is part of X_ij, and a
    pair has its GPUs once;
    throughputs: (N,) Σ_j T_ij X_ij, steps/s, each part at the speed of its placement;
    normalized_throughputs: (N,) the same over P_i, the throughput of an equal share
    (0 for excluded jobs); utilization: (K,) Σ_i s_i X_ij / c_j, 0 for a type without GPUs;
    objective_value: recomputed from time_fractions, None for ordered policies and formulas; objective_bound: no valid allocation is
    better, proven by duals; shadow_prices: (K,) gain of the objective per extra GPU with normalisers frozen, >= 0 = better;
    excluded: {job_id: reason} of jobs that get no time; seconds: {"solve": wall-clock seconds, ...};
    gap: |bound - value| in parts of the larger, None where there is no objective; route: how the answer was reached;
    stages: value, bound and gap of each part of an answer that was found in stages; notes: what its reader should know, such as
    which jobs will be late; constraints: what became of each of the policy's constraints;
    evidence: what `verify` proves it with, None for one that was read from a file.
    """

    policy: str
    options: dict[str, Any] = field(default_factory=dict)
    status: AllocationStatus
    job_ids: Sequence[str]
    accelerator_types: tuple[str, ...]
    time_fractions: Floats
    spread_fractions: Floats | None = None
    pairs: Pairs | None = None
    throughputs: Floats
    normalized_throughputs: Floats
    utilization: Floats
    objective_value: float | None
    objective_bound: float | None
    shadow_prices: Floats | None
    excluded: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    gap: float | None = None
    stages: tuple[StageProof, ...] = ()
    notes: tuple[str, ...] = ()
    constraints: tuple[ConstraintOutcome, ...] = ()
    route: Route | None = None
    evidence: Evidence | None = None

    def verify(self) -> Proof:
        """Prove this allocation anew, over all jobs and without the solver; return what was found.

        Checked are the rules of a valid allocation, the objective at these time fractions, and the bound; that pairs have just the
        time that they are promised; and that all figures stated here are those that were found, to 1e-9 of their size: throughputs,
        utilization, value, bound and gap, of each stage too, prices, and what became of the constraints.

        Raises `ProofError` if it does not hold, `InputError` for an allocation that was read from a file.
        """
        if self.evidence is None:
            raise InputError("an allocation that was read from a file has no problem to be verified with; solve it anew")
        if self.time_fractions.shape != self.evidence.asked.throughputs.shape:
            raise ProofError(f"the time fractions have the shape {self.time_fractions.shape}, which is not that of the problem")
        times = self.evidence.times or JobTimes(self.evidence.problem, self.by_column.time_fractions)
        proof = self.evidence.proof(times)
        if isinstance(times, ClassTimes) and self.pairs is not None:
            alone = times.jobs.spread(times.fractions[:, : len(self.accelerator_types)])
            apart = np.nan_to_num(np.abs(alone + self.pairs.by_job(*alone.shape) - self.time_fractions), nan=np.inf)
            proof = replace(proof, violation=max(proof.violation, float(apart.max(initial=0.0))))
        proof.check()
        self._check_figures(self.evidence, times, proof)
        return proof

    def _check_figures(self, evidence: Evidence, times: JobTimes | ClassTimes, proof: Proof) -> None:
        """Raise `ProofError` unless the figures stated are those of these times and of their proof."""
        figures, fastest = figures_of(evidence.asked, times, evidence.kinds), evidence.asked.throughputs.max(axis=1, initial=0.0)
        check_same("time fractions", self.time_fractions, figures.time_fractions, 1.0)
        check_same("spread fractions", self.spread_fractions, figures.spread_fractions, 1.0)
        check_same("throughputs", self.throughputs, figures.throughputs, fastest)
        check_same("normalized throughputs", self.normalized_throughputs, figures.normalized_throughputs, 1.0)
        check_same("utilization", self.utilization, figures.utilization, 1.0)
        check_same("the objective", self.objective_value, proof.value, proof.scale)
        check_same("the bound", self.objective_bound, proof.bound, proof.scale)
        check_same("the gap", self.gap, proof.gap, 1.0)
        check_same("shadow prices", self.shadow_prices, evidence.shadow_prices)
        self._check_excluded(evidence)
        self._check_pairs(evidence)
        self._check_stages(proof)
        self._check_constraints(evidence, times)

    def _check_excluded(self, evidence: Evidence) -> None:
        if self.excluded != evidence.asked.excluded:
            raise ProofError("the excluded jobs stated are not those of the problem")

    def _check_pairs(self, evidence: Evidence) -> None:
        """That pairs have just the time that they are promised is part of the proof."""
        if (self.pairs is None) != (evidence.asked.pairs is None):
            raise ProofError(f"pairs: the problem has {'none' if self.pairs else 'some'}")
        if self.pairs is None:
            return
        if isinstance(evidence.kinds, PairColumns):
            known, pairs = evidence.kinds.pairs, self.pairs
            gains = known.gains[known.kinds[pairs.first], known.kinds[pairs.second], pairs.types]
            check_same("the gains of pairs", pairs.gains, gains)
        elif len(self.pairs):
            raise ProofError("pairs: no two jobs gain by sharing, and some are stated")

    def _check_stages(self, proof: Proof) -> None:
        if [stage.name for stage in self.stages] != [stage.name for stage in proof.stages]:
            raise ProofError("the stages stated are not those of the policy")
        for stated, found in zip(self.stages, proof.stages, strict=True):
            for name, scale in (("value", found.scale), ("bound", found.scale), ("gap", 1.0), ("accepted_gap", 0.0)):
                check_same(f"stage {found.name}, {name}", getattr(stated, name), getattr(found, name), scale)

    def _check_constraints(self, evidence: Evidence, times: JobTimes | ClassTimes) -> None:
        outcomes = outcomes_of(self.job_ids, evidence.rules, times, evidence.limit_prices)
        known = [(each.constraint, each.jobs.keys()) for each in outcomes]
        if [(each.constraint, each.jobs.keys()) for each in self.constraints] != known:
            raise ProofError("the constraints stated, or the jobs that miss them, are not those of the policy")
        for stated, found in zip(self.constraints, outcomes, strict=True):
            for name, scale in (("penalty", 0.0), ("missed_by", 1.0), ("price", 0.0)):
                check_same(f"{found.constraint}, {name}", getattr(stated, name), getattr(found, name), scale)
            for job, part in found.jobs.items():
                check_same(f"{found.constraint}, missed by job {job!r}", stated.jobs[job], part, 1.0)

    @property
    def by_column(self) -> Allocation:
        """The same with the columns that its evidence is about: several for a type on which gangs are promised both placements, or
        jobs share GPUs.
        """
        kinds = None if self.evidence is None else self.evidence.kinds
        if self.evidence is None or kinds is None:
            return self
        if isinstance(kinds, PlacementColumns):
            fractions, types = kinds.unfolded(self.time_fractions, self.spread_fractions), kinds.problem.accelerator_types
        else:  # who shares with whom is not told by the time on types
            assert self.evidence.times is not None  # noqa: S101
            fractions = self.evidence.times.jobs.spread(self.evidence.times.fractions)
            types = kinds.accelerator_types
        return replace(self, accelerator_types=types, time_fractions=fractions)

    def __repr__(self) -> str:
        objective = "" if self.objective_value is None else f", objective {self.objective_value:.6g}"
        return f"Allocation({self.policy}: {len(self.job_ids)} jobs, {len(self.excluded)} of them excluded{objective})"

    def to_dict(self) -> dict[str, Any]:
        """Return the allocation as plain data, as `gavel solve --json` prints it (docs/file-formats.md)."""
        return {
            "policy": self.policy,
            "options": dict(self.options),
            "status": str(self.status),
            "objective": {"value": self.objective_value, "bound": self.objective_bound, "gap": self.gap},
            "stages": [_stage(stage) for stage in self.stages],
            "notes": list(self.notes),
            "constraints": [each.to_dict() for each in self.constraints],
            "route": None if self.route is None else asdict(self.route) | {"failed": list(self.route.failed)},
            "accelerator_types": list(self.accelerator_types),
            **({} if self.pairs is None else {"pairs": self.pairs.to_list(self.job_ids, self.accelerator_types)}),
            "jobs": [self._job(i) for i in range(len(self.job_ids))],
            "excluded": dict(self.excluded),
            "shadow_prices": None if self.shadow_prices is None else self._by_type(self.shadow_prices),
            "utilization": self._by_type(self.utilization),
            "seconds": dict(self.seconds),
        }

    def to_json(self) -> str:
        """Return `to_dict` as one JSON document."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Allocation:
        """Return the allocation that `to_dict` described; raises `InputError` when a part is missing."""
        try:
            types = tuple(document["accelerator_types"])
            jobs = document["jobs"]
            prices, route = document["shadow_prices"], document["route"]
            return cls(
                policy=document["policy"],
                options=dict(document["options"]),
                status=AllocationStatus(document["status"]),
                job_ids=tuple(job["job_id"] for job in jobs),
                accelerator_types=types,
                time_fractions=np.array([[job["time_fractions"][t] for t in types] for job in jobs]).reshape(len(jobs), len(types)),
                spread_fractions=_spread(jobs, types),
                pairs=Pairs.from_list(document["pairs"], [job["job_id"] for job in jobs], types) if "pairs" in document else None,
                throughputs=np.array([job["throughput"] for job in jobs], dtype=float),
                normalized_throughputs=np.array([job["normalized_throughput"] for job in jobs], dtype=float),
                utilization=np.array([document["utilization"][t] for t in types], dtype=float),
                objective_value=document["objective"]["value"],
                objective_bound=document["objective"]["bound"],
                shadow_prices=None if prices is None else np.array([prices[t] for t in types], dtype=float),
                excluded=dict(document["excluded"]),
                seconds=dict(document["seconds"]),
                gap=document["objective"]["gap"],
                stages=tuple(StageProof(**stage) for stage in document["stages"]),
                notes=tuple(document["notes"]),
                constraints=tuple(ConstraintOutcome.from_dict(each) for each in document["constraints"]),
                route=None if route is None else Route(**route | {"failed": tuple(route["failed"])}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not an allocation as gavel writes it: {type(error).__name__} {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Allocation:
        """Return the allocation that `to_json` wrote."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"this is not valid JSON: {error}") from None
        return cls.from_dict(document)

    def _job(self, i: int) -> dict[str, Any]:
        spread = {} if self.spread_fractions is None else {"spread_fractions": self._by_type(self.spread_fractions[i])}
        return {
            "job_id": self.job_ids[i],
            "time_fractions": self._by_type(self.time_fractions[i]),
            **spread,
            "throughput": float(self.throughputs[i]),
            "normalized_throughput": float(self.normalized_throughputs[i]),
        }

    def _by_type(self, values: Floats) -> dict[str, float]:
        return dict(zip(self.accelerator_types, values.tolist(), strict=True))


def _stage(stage: StageProof) -> dict[str, Any]:
    """A stage as plain data; the scale is for comparisons within a process."""
    return {name: value for name, value in asdict(stage).items() if name != "scale"}


def _spread(jobs: Sequence[dict[str, Any]], types: Sequence[str]) -> Floats | None:
    """What is said of spread placements; nothing where nobody knew of a difference."""
    if not all("spread_fractions" in job for job in jobs):
        return None
    return np.array([[job["spread_fractions"][t] for t in types] for job in jobs], dtype=float).reshape(len(jobs), len(types))


@dataclass(frozen=True)
class Answer:
    """A decision, the time that all jobs have by it, and its proof."""

    decision: Decision
    times: JobTimes | ClassTimes
    classes: int
    evidence: Evidence
    proof: Proof


def nothing(problem: AllocationProblem, policy: Policy, rules: Rules, started: float) -> Allocation:
    """The allocation of a problem in which no job can run."""
    value = policy.empty_objective
    prices = None if value is None else np.zeros(len(problem.capacities))
    fractions = np.zeros(problem.throughputs.shape)
    decision, evidence = Decision(fractions, None, prices), Evidence(problem, None, rules=rules, empty_value=value)
    times = JobTimes(problem, fractions)
    answer = Answer(decision, times, 0, evidence, evidence.proof(times))
    return stated(problem, policy, answer, Route("none", 0), started, AllocationStatus.EMPTY)


def stated(
    problem: AllocationProblem,
    policy: Policy,
    answer: Answer,
    route: Route,
    started: float,
    status: AllocationStatus | None = None,
    columns: PlacementColumns | PairColumns | None = None,
) -> Allocation:
    """Put the answer into words of the problem: all jobs, all types, real throughputs; columns: those that the answer is in."""
    rules, prices = answer.evidence.rules, answer.decision.shadow_prices
    worths = limit_prices(answer.decision.certificate, rules)
    outcomes = outcomes_of(problem.job_ids, rules, answer.times, worths)
    pairs = _pairs(answer, problem, columns)
    if columns is not None:
        problem = columns.base
        prices = None if prices is None else columns.folded_prices(prices, worths)
    figures = figures_of(problem, answer.times, columns)
    evidence = replace(
        answer.evidence,
        kinds=columns,
        times=answer.times if isinstance(answer.times, ClassTimes) else None,
        shadow_prices=None if prices is None else prices.copy(),
        limit_prices=worths,
    )
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status or policy.status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        time_fractions=figures.time_fractions,
        spread_fractions=figures.spread_fractions,
        pairs=pairs,
        throughputs=figures.throughputs,
        normalized_throughputs=figures.normalized_throughputs,
        utilization=figures.utilization,
        objective_value=answer.proof.value,
        objective_bound=answer.proof.bound,
        shadow_prices=prices,
        excluded=dict(problem.excluded),
        seconds={"solve": time.perf_counter() - started},
        gap=answer.proof.gap,
        stages=answer.proof.stages,
        notes=answer.decision.notes,
        constraints=outcomes,
        route=route,
        evidence=evidence,
    )


def _pairs(answer: Answer, problem: AllocationProblem, columns: PlacementColumns | PairColumns | None) -> Pairs | None:
    """Who shares GPUs; None where nobody is to."""
    if isinstance(columns, PairColumns) and isinstance(answer.times, ClassTimes):
        stated = answer.decision.pairs
        return deal(columns, answer.times) if stated is None else stated
    return None if problem.pairs is None else Pairs.nobody()
