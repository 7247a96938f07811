"""The result of a solve: the time of each job on each accelerator type, with its value and its proof.

`allocation_of` converts an answer in the columns of its program to an `Allocation`. `figures_of` computes throughputs and
utilization from the time of jobs, and `Allocation.verify` compares its figures with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.allocation.accounting import Forecast, TenantShare, tenant_shares
from gavel_py.errors import InputError, ProofError, check_known, faults_from
from gavel_py.io.snapshots import DAMAGED, decode, encode
from gavel_py.io.tabular import Column, Tabular, array_of
from gavel_py.optimization.checking.certificates import Evidence, Proof, StageProof
from gavel_py.optimization.checking.time_shares import CountTimes, Pairs, TimeShares
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.linear_rows import NO_RULES, Rules
from gavel_py.optimization.solving.levels import limit_prices
from gavel_py.policies.base import AllocationStatus, Decision, Policy
from gavel_py.policies.constraints.outcomes import ConstraintOutcome, outcomes_of
from gavel_py.problem.arrays import Floats, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.problem.tenants import Tenant, TenantTree

UNITS = (
    "a gang counts as one unit, however many GPUs it has, but each GPU of an elastic job counts as one, so elastic jobs go before "
    "gangs that do the same work; give gangs as gpu_counts with a single number to count all jobs by GPU"
)
"""The note on gangs beside elastic jobs."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Figures:
    """The figures of an `Allocation` that follow from the time of N jobs on K types."""

    time_fractions: Floats
    spread_fractions: Floats | None = None
    throughputs: Floats
    normalized_throughputs: Floats
    vs_fair_share: Floats
    utilization: Floats


def figures_of(columns: Columns, times: TimeShares) -> Figures:
    """Return the figures of an answer in these columns."""
    problem, fractions = columns.base, times.fractions
    capacities, share = problem.capacities, problem.equal_share
    share = np.where(problem.runnable.any(axis=1), share, 0.0) if problem.excluded else share
    throughputs, used = times.job_throughputs, columns.gpus(fractions, times.num_gpus)
    normalized, fair = np.divide(throughputs, share, out=np.zeros_like(share), where=share > 0), problem.fair_share
    return Figures(
        time_fractions=times.by_job(columns.aggregate(fractions)),
        spread_fractions=columns.spread(times),
        throughputs=throughputs,
        normalized_throughputs=normalized,
        vs_fair_share=np.divide(normalized, fair, out=np.zeros_like(fair), where=fair > 0),
        utilization=np.divide(used, capacities, out=np.zeros_like(capacities), where=capacities > 0),
    )


def check_same(name: str, reported: ArrayLike | None, found: ArrayLike | None, scale: ArrayLike = 0.0) -> None:
    """Raise `ProofError` unless a reported figure equals the one found, to 1e-9 of its size and 1e-12 of its scale."""
    if reported is None or found is None:
        if reported is not found:
            raise ProofError(f"{name}: there is {'none' if found is None else 'one'}, but {reported!r} is stated")
        return
    one, other = np.asarray(reported, dtype=float), np.asarray(found, dtype=float)
    if one.shape != other.shape:
        raise ProofError(f"{name}: has the shape {other.shape}, but the stated one has the shape {one.shape}")
    allowed = SOLVER_TOLERANCE * np.maximum(np.abs(one), np.abs(other)) + FLOAT_ROUNDING * np.asarray(scale)
    wrong = np.argwhere(~((np.abs(one - other) <= allowed) | (one == other)))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ProofError(f"{name}{list(at) if at else ''}: is {other[at]:.12g}, but {one[at]:.12g} is stated")


@dataclass(frozen=True)
class Route:
    """How an answer was found.

    Attributes:
        reduction: `classes` of equal jobs, `merged` classes of nearly equal ones, or `none`: job by job.
        classes: The number of classes, or jobs, in the programs.
        algorithm: What solved the programs: `simplex`, `interior point`, `prices`, or `conic interior point` for nonlinear
            objectives; None if there were none.
        programs: The number of programs solved.
        iterations: The number of iterations in all programs.
        failed: The routes tried before, each with the fault of its answer.
    """

    reduction: str
    classes: int
    algorithm: str | None = None
    programs: int = 0
    iterations: int = 0
    failed: tuple[str, ...] = ()

    def after(self, before: Route) -> Route:
        """Return this route with the programs and iterations of an earlier one added."""
        return replace(self, programs=before.programs + self.programs, iterations=before.iterations + self.iterations)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Allocation(Figures, Tabular):
    """The time of N jobs on K accelerator types, in the order of the problem, with value, bound and dual prices.

    Attributes:
        policy: The name of the policy.
        options: The options that differ from their defaults.
        status: How the allocation was found: `optimal`, proven; `ordered`, served in an order; `formula`, for comparison; `empty`,
            without jobs; `direct`, where rounds decide and nothing is promised; `time_limit` (docs/concepts.md#time-limits); in
            rounds `kept`, after a failed solve (docs/rounds.md#when-a-solve-fails).
        job_ids: N job ids.
        accelerator_types: The names of the K types, in the order of the cluster.
        time_fractions: (N, K) X_ij, the part of wall-clock time of job i on type j; row sums are at most 1.
        spread_fractions: (N, K) the part of X_ij with the gang on more nodes than it needs, None if the placement does not matter.
        pairs: The pairs of jobs that share GPUs, and for how long; None if no jobs may share. Their time is part of X_ij, and a
            pair occupies its GPUs once.
        counts: The time of elastic jobs on each number of GPUs; None if all jobs are fixed gangs. It is part of X_ij.
        throughputs: (N,) Σ_j T_ij X_ij, steps/s, each part at the speed of its placement and number of GPUs.
        normalized_throughputs: (N,) v_i, throughput over P_i, that on the cluster's mix of GPUs all the time; 0 for excluded jobs.
        vs_fair_share: (N,) v_i / min(1, w_i C / (s_i Σ w)), 1 = as fast as on the job's slice of the cluster.
        utilization: (K,) Σ_i s_i X_ij / c_j, 0 for a type without GPUs.
        objective_value: The objective, recomputed from the time fractions; None for ordered policies and formulas.
        objective_bound: A bound on the objective of all valid allocations, by dual prices.
        shadow_prices: (K,) Gain of the objective per extra GPU with frozen normalisers, exact for a small part of one, at most that
            for more; 0 for a type without GPUs; None for ordered policies and formulas.
        shadow_prices_at_most: Whether a small part of a GPU may gain less than that, since it may break rows on partners
            (docs/sharing.md#how-it-is-solved).
        excluded: {job_id: reason} of the jobs that can run nowhere.
        seconds: {step: wall-clock seconds}: "solve", and in commands earlier steps, such as "read" and "build".
        gap: |bound - value| relative to the larger of them, or to the objective's terms where these cancel out: at most 1e-6, plus
            twice `merge_tolerance` where jobs were merged; unlimited with the status `time_limit`; None without an objective.
        stages: Value, bound and gap of each lexicographic stage, in order; empty if the answer was found in one step.
        notes: Notes for the reader, such as which jobs will be late.
        constraints: The outcome of each constraint of the policy, in order.
        route: How the answer was found.
        evidence: The data for `verify`, None for an allocation that was read from a file.
    """

    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "throughputs": Column("steps/s", optional=4, name="throughput"),
        "normalized_throughputs": Column("speed", optional=1, name="normalized_throughput"),
        "vs_fair_share": Column("vs. fair share", form=".2f", name="vs_fair_share"),
    }

    policy: str
    options: dict[str, Any] = field(default_factory=dict)
    status: AllocationStatus
    job_ids: Sequence[str]
    accelerator_types: tuple[str, ...]
    pairs: Pairs | None = None
    counts: CountTimes | None = None
    objective_value: float | None
    objective_bound: float | None
    shadow_prices: Floats | None
    shadow_prices_at_most: bool = False
    excluded: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    gap: float | None = None
    stages: tuple[StageProof, ...] = ()
    notes: tuple[str, ...] = ()
    constraints: tuple[ConstraintOutcome, ...] = ()
    route: Route | None = None
    evidence: Evidence | None = None

    def verify(self) -> Proof:
        """Prove this allocation anew, over all jobs and without the solver.

        It checks the rules of a valid allocation, the objective at these time fractions, its bound, and that pairs have exactly the
        time that they are promised. All figures must agree with recomputed ones to 1e-9 of their size: throughputs, utilization,
        value, bound and gap, also of each stage, prices, and outcomes of constraints.

        Returns:
            The proof found.

        Raises:
            ProofError: The allocation does not hold.
            InputError: The allocation was read from a file.
        """
        evidence = self.evidence
        if evidence is None:
            raise InputError("an allocation read from a file has no problem to verify it against; solve the problem again")
        if self.time_fractions.shape != evidence.base.throughputs.shape:
            raise ProofError(f"the time fractions have the shape {self.time_fractions.shape}, which is not that of the problem")
        times = self._times(evidence)
        proof = evidence.proof(times)
        if times.classes is not None and self.pairs is not None:
            alone = times.by_job(times.fractions[:, : len(self.accelerator_types)])
            apart = np.nan_to_num(np.abs(alone + self.pairs.by_job(*alone.shape) - self.time_fractions), nan=np.inf)
            proof = replace(proof, violation=max(proof.violation, float(apart.max(initial=0.0))))
        proof.check()
        self._check_counts(evidence, times)
        self._check_figures(evidence, times, proof)
        return proof

    @property
    def gpu_counts(self) -> dict[str, dict[tuple[str, int], float]]:
        """{job id: {(accelerator type, number of GPUs): time fraction}} of the elastic jobs that have time."""
        found: dict[str, dict[tuple[str, int], float]] = {}
        for entry in zip(*map(np.ndarray.tolist, vars(self.counts).values()), strict=True) if self.counts is not None else ():
            i, j, count, part = entry
            found.setdefault(self.job_ids[i], {})[self.accelerator_types[j], count] = part
        return found

    @property
    def gpus(self) -> Floats:
        """(N, K) s_i X_ij, the GPUs that jobs hold on average over time; of shared GPUs, each job accounts for half.

        Raises:
            InputError: The allocation was read from a file.
        """
        times = self.time_fractions
        if self.counts is not None:
            elastic, held = self.counts.by_job(times.shape)
            return self._problem.num_gpus[:, None] * (times - elastic) + held
        own = times if self.pairs is None else times - self.pairs.by_job(*times.shape) / 2
        return self._problem.num_gpus[:, None] * own

    def gpus_in_gangs(self, num_gpus: float) -> Floats:
        """Return (N, K) the part of `gpus` that jobs hold in gangs of one size; fractions of a GPU count as gangs of 1.

        Args:
            num_gpus: GPUs of the gang.

        Raises:
            InputError: The allocation was read from a file.
        """
        problem, gpus = self._problem, self.gpus
        if problem.counts is None or self.counts is None:
            return np.where(np.maximum(problem.num_gpus, 1)[:, None] == num_gpus, gpus, 0.0)
        fixed = (np.maximum(problem.num_gpus, 1) == num_gpus) & ~problem.counts.is_elastic
        _, held = self.counts.on(num_gpus).by_job(gpus.shape)
        return np.where(fixed[:, None], gpus, 0.0) + held

    def tenants(self, tree: TenantTree | Mapping[Any, Any] | Iterable[Tenant] | str | None = None, /) -> tuple[TenantShare, ...]:
        """Return the promised and actual share of each tenant, parents first; empty if no job has a tenant.

        Args:
            tree: The tenants with their weights, in any form of `TenantTree.of`. None for the tenants of the policy
                `hierarchical`, and for those that jobs name, with equal weights, if it has none.

        Raises:
            InputError: The tenant of a job is not a leaf of the tree, or the allocation was read from a file.
        """
        from gavel_py.problem.tenants import TenantTree

        problem = self._problem
        return tenant_shares(
            problem.tenants,
            self.gpus,
            problem.capacities,
            accelerator_types=self.accelerator_types,
            is_running=self.time_fractions.sum(axis=1) > 0,
            can_run=_can_run(self),
            tree=TenantTree.of(self.options.get("tenants") if tree is None else tree),
            arrival_seconds=problem.arrival_seconds,
            vs_fair_share=self.vs_fair_share,
            work=problem.num_gpus * self.normalized_throughputs,
            gpus_wanted=problem.most_gpus,
            prices_per_hour=problem.prices_per_hour,
        )

    def forecast(self) -> Forecast:
        """Return when each job ends and what it costs while this allocation stands, without new arrivals.

        Raises:
            InputError: The allocation was read from a file.
        """
        problem = self._problem
        due = problem.deadlines_seconds
        return Forecast.of(self.throughputs, problem.steps_remaining, self.gpus, problem.prices_per_hour, due)

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics of the allocation by name, as cells of a sweep have them (`gp.METRICS`).

        Raises:
            InputError: The allocation was read from a file.
        """
        problem = self._problem
        speeds, gpus = self.normalized_throughputs[_can_run(self)], problem.capacities
        forecast = self.forecast()
        due = forecast.deadlines
        return {
            "objective": self.objective_value,
            "gap": self.gap,
            "utilization": float(self.utilization @ gpus / gpus.sum()) if gpus.sum() else 0.0,
            "total_normalized_throughput": float(speeds.sum()),
            "least_normalized_throughput": float(speeds.min()) if len(speeds) else None,
            "excluded": len(self.excluded),
            **({} if np.isnan(problem.prices_per_hour).all() else {"cost_per_hour": forecast.total_cost_per_hour}),
            **({"with_deadline": due.all, "late": due.missed} if due.all else {}),
            "solver_seconds": self.seconds["solve"],
        }

    @property
    def _problem(self) -> AllocationProblem:
        if self.evidence is None:
            raise InputError("an allocation read from a file does not include its jobs; solve the problem again")
        return self.evidence.base

    def _times(self, evidence: Evidence) -> TimeShares:
        """Return the answer in the columns of the proof, from the reported fractions if these determine it."""
        if evidence.times is not None:
            return evidence.times
        return TimeShares(evidence.problem, evidence.columns.expand(self.time_fractions, self.spread_fractions))

    def _check_figures(self, evidence: Evidence, times: TimeShares, proof: Proof) -> None:
        """Raise `ProofError` unless the reported figures are those of these times and of their proof."""
        figures, fastest = figures_of(evidence.columns, times), evidence.base.throughputs.max(axis=1, initial=0.0)
        for name, found in vars(figures).items():
            check_same(name.replace("_", " "), getattr(self, name), found, fastest if name == "throughputs" else 1.0)
        check_same("the objective", self.objective_value, proof.value, proof.scale)
        check_same("the bound", self.objective_bound, proof.bound, proof.scale)
        check_same("the gap", self.gap, proof.gap, 1.0)
        check_same("shadow prices", self.shadow_prices, evidence.shadow_prices)
        if self.shadow_prices_at_most != _may_gain_less(evidence.columns, times, self.shadow_prices):
            raise ProofError("shadow prices: whether more GPUs may gain less is not as stated")
        if self.excluded != evidence.base.excluded:
            raise ProofError("the stated excluded jobs are not those of the problem")
        self._check_pairs(evidence)
        self._check_stages(proof)
        self._check_constraints(evidence, times)

    def _check_counts(self, evidence: Evidence, times: TimeShares) -> None:
        found = evidence.columns.counts_of(times)
        if (self.counts is None) != (found is None):
            raise ProofError(f"the times of elastic jobs: the problem has {'none' if self.counts is not None else 'some'}")
        for name, reported in vars(self.counts).items() if self.counts is not None else ():
            check_same(f"the {name} of elastic jobs", reported, getattr(found, name))

    def _check_pairs(self, evidence: Evidence) -> None:
        """Check the gains of pairs; their times are part of the proof."""
        if (self.pairs is None) != (evidence.base.pairs is None):
            raise ProofError(f"pairs: the problem has {'none' if self.pairs else 'some'}")
        if self.pairs is None:
            return
        gains = evidence.columns.gains_of(self.pairs)
        if gains is not None:
            check_same("the gains of pairs", self.pairs.gains, gains)
        elif len(self.pairs):
            raise ProofError("pairs: no two jobs gain by sharing, but pairs are stated")

    def _check_stages(self, proof: Proof) -> None:
        if [stage.name for stage in self.stages] != [stage.name for stage in proof.stages]:
            raise ProofError("the stated stages are not those of the policy")
        for reported, found in zip(self.stages, proof.stages, strict=True):
            for name, scale in (("value", found.scale), ("bound", found.scale), ("gap", 1.0), ("accepted_gap", 0.0)):
                check_same(f"stage {found.name}, {name}", getattr(reported, name), getattr(found, name), scale)

    def _check_constraints(self, evidence: Evidence, times: TimeShares) -> None:
        outcomes = outcomes_of(self.job_ids, evidence.rules, times, evidence.columns.source, evidence.limit_prices)
        known = [(each.constraint, each.jobs.keys()) for each in outcomes]
        if [(each.constraint, each.jobs.keys()) for each in self.constraints] != known:
            raise ProofError("the stated constraints, or the jobs that miss them, are not those of the policy")
        for reported, found in zip(self.constraints, outcomes, strict=True):
            for name, scale in (("penalty", 0.0), ("missed_by", 1.0), ("price", 0.0)):
                check_same(f"{found.constraint}, {name}", getattr(reported, name), getattr(found, name), scale)
            for job, part in found.jobs.items():
                check_same(f"{found.constraint}, missed by job {job!r}", reported.jobs[job], part, 1.0)

    @property
    def by_column(self) -> Allocation:
        """The same allocation in the columns of its proof: several for a type with both placements, or on which jobs share GPUs."""
        if self.evidence is None:
            return self
        times = self._times(self.evidence)
        types = self.evidence.columns.accelerator_types
        return replace(self, accelerator_types=types, time_fractions=times.by_job(times.fractions))

    def __getitem__(self, job_id: str) -> dict[str, Any]:
        """Return the figures of one job: job_id, time_fractions by type, throughput, normalized_throughput, vs_fair_share.

        Args:
            job_id: The id of a job of the problem.

        Raises:
            UnknownNameError: There is no such job.
        """
        check_known("allocation", "", [job_id], self._row_of, "is not one of its jobs")
        return self._job(self._row_of[job_id])

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {each: i for i, each in enumerate(self.job_ids)}

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each job, as {column: (N,) array}.

        The columns are those of `gavel solve --csv`: job_id, the time fraction on each type by its name, throughput,
        normalized_throughput, vs_fair_share, excluded (the reason for which the job can run nowhere, or ""), those of `Forecast`,
        which an allocation read from a file does not have, and with elastic jobs gpu_counts, such as "v100:4=0.93|v100:8=0.07":
        the time on each type and number of GPUs.
        """
        reasons = np.full(len(self.job_ids), "", dtype=object)
        for job_id, reason in self.excluded.items():
            reasons[self._row_of[job_id]] = reason
        return {
            "job_id": array_of(self.job_ids),
            **dict(zip(self.accelerator_types, self.time_fractions.T, strict=True)),
            **{column.name: getattr(self, attribute) for attribute, column in self.COLUMNS.items()},
            "excluded": reasons,
            **({} if self.evidence is None else vars(self.forecast())),
            **({} if self.counts is None else {"gpu_counts": array_of(_counts_text(self, i) for i in range(len(self.job_ids)))}),
        }

    def __repr__(self) -> str:
        objective = "" if self.objective_value is None else f", objective {self.objective_value:.6g}"
        return f"Allocation({self.policy}: {len(self.job_ids)} jobs, {len(self.excluded)} of them excluded{objective})"

    def to_dict(self, *, by_column: bool = False) -> dict[str, Any]:
        """Return the allocation as plain data, in the format of `gavel solve --json` (docs/file-formats.md).

        Args:
            by_column: Whether jobs are one array for each figure, which is the faster form for snapshots.
        """
        return {
            "policy": self.policy,
            "options": dict(self.options),
            "status": str(self.status),
            "objective": {"value": self.objective_value, "bound": self.objective_bound, "gap": self.gap},
            # The scale of a stage is for comparisons within a process.
            "stages": [{name: value for name, value in asdict(stage).items() if name != "scale"} for stage in self.stages],
            "notes": list(self.notes),
            "constraints": [each.to_dict() for each in self.constraints],
            "route": None if self.route is None else asdict(self.route) | {"failed": list(self.route.failed)},
            "accelerator_types": list(self.accelerator_types),
            **({} if self.pairs is None else {"pairs": self.pairs.to_list(self.job_ids, self.accelerator_types)}),
            **({"counts": {name: encode(each) for name, each in vars(self.counts).items()}} if by_column and self.counts else {}),
            "jobs": {name: encode(getattr(self, name)) for name in BY_JOB}
            if by_column
            else [self._job(i) for i in range(len(self.job_ids))],
            "excluded": dict(self.excluded),
            "shadow_prices": None if self.shadow_prices is None else self._by_type(self.shadow_prices),
            "shadow_prices_at_most": self.shadow_prices_at_most,
            "utilization": self._by_type(self.utilization),
            "seconds": dict(self.seconds),
        }

    def to_json(self) -> str:
        """Return `to_dict` as one JSON document."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Allocation:
        """Return the allocation from the data of `to_dict`; raises `InputError` if a part is missing."""
        try:
            types = tuple(document["accelerator_types"])
            jobs = _columns_of(document["jobs"], types)
            prices, route = document["shadow_prices"], document["route"]
            return cls(
                **jobs,
                policy=document["policy"],
                options=dict(document["options"]),
                status=AllocationStatus(document["status"]),
                accelerator_types=types,
                pairs=Pairs.from_list(document["pairs"], jobs["job_ids"], types) if "pairs" in document else None,
                counts=_counts_of(document, types),
                utilization=np.array([document["utilization"][t] for t in types], dtype=float),
                objective_value=document["objective"]["value"],
                objective_bound=document["objective"]["bound"],
                shadow_prices=None if prices is None else np.array([prices[t] for t in types], dtype=float),
                shadow_prices_at_most=document.get("shadow_prices_at_most", False),
                excluded=dict(document["excluded"]),
                seconds=dict(document["seconds"]),
                gap=document["objective"]["gap"],
                stages=tuple(StageProof(**stage) for stage in document["stages"]),
                notes=tuple(document["notes"]),
                constraints=tuple(ConstraintOutcome.from_dict(each) for each in document["constraints"]),
                route=None if route is None else Route(**route | {"failed": tuple(route["failed"])}),
            )
        except DAMAGED as error:
            raise InputError(f"this is not an allocation written by gavel: {type(error).__name__} {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Allocation:
        """Return the allocation that `to_json` wrote."""
        with faults_from("", "this is not valid JSON", json.JSONDecodeError):
            document = json.loads(text)
        return cls.from_dict(document)

    def _job(self, i: int) -> dict[str, Any]:
        spread = {} if self.spread_fractions is None else {"spread_fractions": self._by_type(self.spread_fractions[i])}
        counts: dict[str, dict[str, float]] = {}
        for j, count, part in () if self.counts is None else self.counts.of(i):
            counts.setdefault(self.accelerator_types[j], {})[str(count)] = part
        return {
            "job_id": self.job_ids[i],
            "time_fractions": self._by_type(self.time_fractions[i]),
            **({"gpu_counts": counts} if counts else {}),
            **spread,
            **{column.name: float(getattr(self, name)[i]) for name, column in self.COLUMNS.items()},
        }

    def _by_type(self, values: Floats) -> dict[str, float]:
        return dict(zip(self.accelerator_types, values.tolist(), strict=True))


def _can_run(allocation: Allocation) -> Mask:
    return np.array([job_id not in allocation.excluded for job_id in allocation.job_ids], dtype=bool)


def _counts_text(allocation: Allocation, i: int) -> str:
    times = () if allocation.counts is None else allocation.counts.of(i)
    return "|".join(f"{allocation.accelerator_types[j]}:{count}={time:.6g}" for j, count, time in times if time > FLOAT_ROUNDING)


BY_JOB = ("job_ids", "time_fractions", "spread_fractions", *Allocation.COLUMNS)
"""Attributes of an `Allocation` with a value for each job."""


def _counts_of(document: Mapping[str, Any], types: Sequence[str]) -> CountTimes | None:
    """Return the times of elastic jobs from the plain data of an allocation, None without such jobs."""
    if "counts" in document:
        return CountTimes(**{name: decode(each) for name, each in document["counts"].items()})
    jobs = document["jobs"]
    if isinstance(jobs, dict) or not any("gpu_counts" in job for job in jobs):
        return None
    entries = [
        (i, types.index(name), int(count), float(time))
        for i, job in enumerate(jobs)
        for name, times in job.get("gpu_counts", {}).items()
        for count, time in times.items()
    ]
    rows, columns, counts, found = zip(*entries, strict=True)
    return CountTimes(np.array(rows), np.array(columns), np.array(counts), np.array(found))


def _columns_of(jobs: Sequence[dict[str, Any]] | dict[str, Any], types: Sequence[str]) -> dict[str, Any]:
    """Return the values of `BY_JOB` from the plain data of jobs, by column or one by one."""
    if isinstance(jobs, dict):
        return {name: decode(jobs[name]) for name in BY_JOB}

    def by_type(name: str) -> Floats:
        return np.array([[job[name][t] for t in types] for job in jobs], dtype=float).reshape(len(jobs), len(types))

    return {
        "job_ids": tuple(job["job_id"] for job in jobs),
        "time_fractions": by_type("time_fractions"),
        "spread_fractions": by_type("spread_fractions") if all("spread_fractions" in job for job in jobs) else None,
        **{name: np.array([job[column.name] for job in jobs], dtype=float) for name, column in Allocation.COLUMNS.items()},
    }


@dataclass(frozen=True)
class Answer:
    """A decision, the resulting time of all jobs, and its proof."""

    decision: Decision
    times: TimeShares
    classes: int
    evidence: Evidence
    proof: Proof


def _may_gain_less(columns: Columns, times: TimeShares, prices: Floats | None) -> bool:
    return prices is not None and bool(prices.any()) and columns.lacks_rows(times)


def nothing(problem: AllocationProblem, policy: Policy, rules: Rules, started: float) -> Allocation:
    """Return the allocation of a problem in which no job can run."""
    value = policy.empty_objective
    prices = None if value is None else np.zeros(len(problem.capacities))
    times = TimeShares(problem, np.zeros(problem.throughputs.shape))
    evidence = Evidence(Columns.of_types(problem, rules), None, empty_value=value)
    answer = Answer(Decision(times.fractions, None, prices), times, 0, evidence, evidence.proof(times))
    return allocation_of(policy, answer, Route("none", 0), started, AllocationStatus.EMPTY)


def unpromised(problem: AllocationProblem, policy: Policy) -> Allocation:
    """Return an allocation that gives no job any time, for mechanisms that decide without one; there is nothing to prove."""
    times = TimeShares(problem, np.zeros(problem.throughputs.shape))
    evidence = Evidence(Columns.of_types(problem, NO_RULES), None)
    answer = Answer(Decision(times.fractions), times, 0, evidence, evidence.proof(times))
    return allocation_of(policy, answer, Route("none", 0), time.perf_counter(), AllocationStatus.DIRECT)


def _counts_in_two_units(problem: AllocationProblem) -> bool:
    """Return whether both elastic jobs and gangs of several GPUs can run."""
    if problem.counts is None:
        return False
    able, elastic = problem.runnable.any(axis=1), problem.counts.is_elastic
    return bool((able & elastic).any() and (able & ~elastic & (problem.num_gpus > 1)).any())


def allocation_of(
    policy: Policy, answer: Answer, route: Route, started: float, status: AllocationStatus | None = None
) -> Allocation:
    """Return an answer in the columns of its program as an `Allocation` by job and accelerator type."""
    decision, proof, times, columns = answer.decision, answer.proof, answer.times, answer.evidence.columns
    problem, prices = columns.base, decision.shadow_prices
    worths = limit_prices(decision.certificate, columns.rules)
    evidence = replace(
        answer.evidence,
        times=None if times.classes is None else times,
        shadow_prices=None if prices is None else prices.copy(),
        limit_prices=worths,
    )
    return Allocation(
        policy=policy.name,
        options=policy.changed_options,
        status=status or policy.status,
        job_ids=problem.job_ids,
        accelerator_types=problem.accelerator_types,
        pairs=columns.pairs_of(times, decision.pairs),
        counts=columns.counts_of(times),
        objective_value=proof.value,
        objective_bound=proof.bound,
        shadow_prices=prices,
        shadow_prices_at_most=_may_gain_less(columns, times, prices),
        excluded=dict(problem.excluded),
        seconds={"solve": time.perf_counter() - started},
        gap=proof.gap,
        stages=proof.stages,
        notes=(*decision.notes, *([UNITS] if policy.counts_gangs_whole and _counts_in_two_units(problem) else [])),
        constraints=outcomes_of(problem.job_ids, columns.rules, times, columns.source, worths) if columns.rules.constraints else (),
        route=route,
        evidence=evidence,
        **vars(figures_of(columns, times)),
    )
