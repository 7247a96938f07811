"""Results of a simulation: a record of each job (`JobRecord`), their summary (`Summary`), and both (`SimulationResult`).

`Tally` accumulates the summary while a simulation runs.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.accounting import TenantShare
from gavel_py.errors import Fault, InputError
from gavel_py.io.snapshots import DAMAGED
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.problem.arrays import plain_size
from gavel_py.scheduling.round import exceeded_notes, fallback_text
from gavel_py.simulator.measurements import JobWindow, Measuring, TenantUsage, Usage, job_window


class Outcome(StrEnum):
    """State of a job when it leaves, or when the simulation ends."""

    FINISHED = "finished"
    """All its steps are done."""
    FAILED = "failed"
    """It failed more often than `max_retries`."""
    CANCELLED = "cancelled"
    """It was cancelled before all its steps were done."""
    ACTIVE = "active"
    """It is still in the system."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of one job. Times are seconds on the clock of the trace, None for events that have not happened.

    Attributes:
        job_id: its name.
        job_type: row of the throughput profile.
        num_gpus: GPUs of its gang; 1 for an elastic job, whose promised and undelivered seconds are GPU-seconds.
        gpu_range: smallest and largest number of GPUs of an elastic job, as in 1-8; empty for a gang.
        tenant: its tenant.
        arrival_seconds: when it was submitted.
        outcome: its state at the end.
        first_start_seconds: when it first held GPUs.
        end_seconds: when it left.
        jct_seconds: for finished jobs, from arrival (or from the end of its wait for other jobs) to end.
        queueing_seconds: time in the system without GPUs, except while it waited for other jobs.
        running_seconds: time with GPUs.
        gpu_seconds: GPUs · running_seconds, without the part accounted to partners on shared GPUs.
        lost_gpu_seconds: the part of these spent on starts and on work that was lost.
        starts: how often it received GPUs that it did not have.
        preemptions: how often it lost GPUs before it was done.
        failures: how often it failed.
        steps_done: its progress.
        total_steps: steps after which it is done.
        late_seconds: time by which it missed its deadline, 0 if it met it, None without a deadline and for jobs that have not
            finished.
        cost: cost of the GPUs it held, in the currency of their prices; None if a price is unknown.
        promised_seconds: time that allocations promised its gang, as in `JobDelivery`.
        undelivered_seconds: the part of it that rounds did not deliver.
        reason: why it had no GPUs at the end, if it was excluded.
        measured: whether it counts in the summary (`measure_jobs` of `Simulation`).
        workflow: its workflow, empty for none.
        blocked_seconds: time for which it waited for other jobs.
    """

    job_id: str
    job_type: str
    num_gpus: float
    tenant: str
    outcome: Outcome
    arrival_seconds: float
    first_start_seconds: float | None
    end_seconds: float | None
    jct_seconds: float | None
    queueing_seconds: float
    running_seconds: float
    gpu_seconds: float
    lost_gpu_seconds: float
    starts: int
    preemptions: int
    failures: int
    steps_done: float
    total_steps: float
    late_seconds: float | None
    cost: float | None
    promised_seconds: float
    undelivered_seconds: float
    gpu_range: str = field(default="", repr=False)
    workflow: str = field(default="", repr=False)
    blocked_seconds: float = field(default=0.0, repr=False)
    reason: str = ""
    measured: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self) | {"outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobRecord:
        """Restore a record from `to_dict`.

        Args:
            document: what `to_dict` returned.
        """
        return cls(**{**document, "outcome": Outcome(document["outcome"])})


FIELDS = tuple(field.name for field in fields(JobRecord))
"""The fields of a record in order: the columns of a table of jobs."""


@dataclass(frozen=True)
class Distribution:
    """Mean, median, percentiles and maximum of `count` numbers, each None if there are no numbers."""

    count: int
    mean: float | None
    median: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, numbers: array[float]) -> Distribution:
        """Return the distribution of an array of numbers.

        Args:
            numbers: the numbers.
        """
        if not numbers:
            return cls(0, *[None] * 5)
        values = np.array(numbers)
        median, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
        return cls(len(values), float(values.mean()), median, p90, p99, float(values.max()))

    def to_dict(self) -> dict[str, Any]:
        """Return the distribution as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """Summary of the measured jobs: all jobs, or those of the window `measure_jobs`. Times are in seconds.

    Usage, job_rounds and spread_job_rounds cover all jobs that run between the round in which the first measured job is submitted
    and the round in which the last one leaves.

    Attributes:
        outcomes: number of jobs by outcome.
        jct: completion times of the finished jobs.
        makespan_seconds: from the first arrival to the end of the last job.
        queueing: time in the system without GPUs, of finished jobs.
        queueing_by_gpus: the same by gang size.
        usage: {accelerator type: {"gpu_seconds", "used", "idle", "down", "utilization"}}.
        starts: number of starts of the measured jobs.
        preemptions: number of preemptions of the measured jobs.
        failures: number of failures of the measured jobs.
        with_deadline: number of finished jobs with a deadline.
        late: number of these jobs that missed it.
        cost: cost of the GPUs that jobs held; None if a price is unknown.
        promised_gpu_seconds: GPU-seconds that allocations promised.
        undelivered_gpu_seconds: the part of it that rounds did not deliver.
        rounds: number of rounds of the whole simulation.
        job_rounds: number of running jobs, summed over rounds.
        spread_job_rounds: the part of it on more nodes than necessary.
        solver_seconds: computing time of allocations.
        wall_seconds: time that the whole simulation took.
        measure_jobs: the window, None for all jobs.
        ended_after_arrivals: number of jobs of the window that left after the last arrival of the trace.
        tenants: promised and received shares of each tenant, over the measured jobs; empty if no job names a tenant.
        workflow_jct: completion times of the workflows whose jobs have all finished, from their first arrival to their last end; of
            those with at least one measured job.
        blocked_seconds: time for which jobs waited for other jobs, summed over the measured jobs.
        queueing_elastic: that of elastic jobs.
        fallback_rounds: {policy: {kind: number of rounds}} of the rounds, of the whole simulation, for which no proven answer was
            found (`Round.fallback`).
        limit_rounds: {constraint: {"rounds": number, "exceeded": of these, those above it}} of the limits that hold on average, for
            the whole simulation (docs/constraints.md#in-every-round).
    """

    outcomes: dict[str, int]
    jct: Distribution
    makespan_seconds: float
    queueing: Distribution
    queueing_by_gpus: dict[float, Distribution]
    usage: dict[str, dict[str, float]]
    starts: int
    preemptions: int
    failures: int
    with_deadline: int
    late: int
    cost: float | None
    promised_gpu_seconds: float
    undelivered_gpu_seconds: float
    rounds: int
    job_rounds: int
    spread_job_rounds: int
    solver_seconds: float
    wall_seconds: float
    measure_jobs: JobWindow | None = None
    ended_after_arrivals: int = 0
    tenants: tuple[TenantShare, ...] = ()
    workflow_jct: Distribution = Distribution(0, *[None] * 5)
    blocked_seconds: float = 0.0
    queueing_elastic: Distribution = Distribution(0, *[None] * 5)
    fallback_rounds: dict[str, dict[str, int]] = field(default_factory=dict)
    limit_rounds: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def fallback_text(self) -> str:
        """`fallback_rounds` as a sentence, empty without such rounds."""
        return fallback_text(self.fallback_rounds)

    @property
    def exceeded_notes(self) -> tuple[str, ...]:
        """Notes on the limits of `limit_rounds` that were exceeded."""
        return exceeded_notes(self.limit_rounds)

    @property
    def unfinished(self) -> int:
        """Measured jobs without a completion time: failed, cancelled, still in the system, or not arrived yet."""
        first, end = self.measure_jobs or (0, sum(self.outcomes.values()))
        return end - first - self.outcomes[Outcome.FINISHED.value]

    @property
    def undelivered_share(self) -> float:
        """undelivered_gpu_seconds / promised_gpu_seconds, 0 without promises."""
        return self.undelivered_gpu_seconds / self.promised_gpu_seconds if self.promised_gpu_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "jct": self.jct.to_dict(),
            "queueing": self.queueing.to_dict(),
            "queueing_by_gpus": {str(size): each.to_dict() for size, each in self.queueing_by_gpus.items()},
            "undelivered_share": self.undelivered_share,
            "unfinished": self.unfinished,
            "tenants": [each.to_dict() for each in self.tenants],
            "workflow_jct": self.workflow_jct.to_dict(),
            "queueing_elastic": self.queueing_elastic.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Summary:
        """Restore a summary from `to_dict`.

        Args:
            document: what `to_dict` returned.
        """
        plain = {name: document[name] for name in cls.__dataclass_fields__ if name not in ("tenants", *ADDED)}
        plain |= {name: document[name] for name in ADDED if name in document}
        tenants = tuple(map(TenantShare.from_dict, document.get("tenants", ())))
        by_gpus = {plain_size(float(size)): Distribution(**each) for size, each in document["queueing_by_gpus"].items()}
        parts = {
            name: Distribution(**document[name])
            for name in ("jct", "queueing", "workflow_jct", "queueing_elastic")
            if name in document
        }
        return cls(
            **plain | parts | {"queueing_by_gpus": by_gpus, "measure_jobs": job_window(plain["measure_jobs"]), "tenants": tenants}
        )


ADDED = ("workflow_jct", "blocked_seconds", "queueing_elastic", "fallback_rounds", "limit_rounds")
"""Fields of a summary that earlier versions did not have."""

ELASTIC = 0
"""Key of elastic jobs in the queueing delays of a tally, beside the sizes of gangs."""


class WorkflowSpan(NamedTuple):
    """The first arrival and the last end of a workflow's jobs, and whether all have finished and any is measured."""

    first: float = math.inf
    end: float = -math.inf
    finished: bool = True
    measured: bool = False

    def with_job(self, record: JobRecord) -> WorkflowSpan:
        """Return the span with one more job."""
        return WorkflowSpan(
            min(self.first, record.arrival_seconds),
            max(self.end, record.end_seconds or -math.inf),
            self.finished and record.outcome is Outcome.FINISHED,
            self.measured or record.measured,
        )


@dataclass
class Tally:
    """Counts and sums for a summary, with a few numbers for each job that has left."""

    outcomes: Counter[str] = field(default_factory=Counter)
    jcts: array[float] = field(default_factory=lambda: array("d"))
    queueing: dict[float, array[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    promised: float = 0.0
    undelivered: float = 0.0
    first_arrival: float | None = None
    last_end: float = 0.0
    rounds: int = 0
    job_rounds: int = 0
    spread_job_rounds: int = 0
    solver_seconds: float = 0.0
    blocked: float = 0.0
    workflows: dict[tuple[str, str], WorkflowSpan] = field(default_factory=dict)
    """By workflow and tenant."""

    def copy(self) -> Tally:
        """Return an independent copy."""
        return deepcopy(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        queueing = [[size, list(numbers)] for size, numbers in self.queueing.items()]
        counted = {"outcomes": dict(self.outcomes), "counts": dict(self.counts), "jcts": list(self.jcts), "queueing": queueing}
        counted |= {"workflows": [[*key, *span] for key, span in self.workflows.items()]} if self.workflows else {}
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in plain.items() if value or name not in ("workflows", "blocked")} | counted

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tally:
        """Restore from `to_dict`."""
        queueing = {size: array("d", numbers) for size, numbers in document["queueing"]}
        made = {"outcomes": Counter(document["outcomes"]), "counts": Counter(document["counts"])}
        numbers: dict[str, Any] = {"jcts": array("d", document["jcts"]), "queueing": queueing}
        spans = document.get("workflows", [])
        if isinstance(spans, Mapping):  # earlier versions did not tell tenants apart, and had only measured jobs
            spans = [[name, "", *each, True] for name, each in spans.items()]
        numbers["workflows"] = {(name, tenant): WorkflowSpan(*span) for name, tenant, *span in spans}
        given = (name for name in cls.__dataclass_fields__ if name not in ("workflows", "blocked"))
        return cls(**{name: document[name] for name in given} | made | numbers, blocked=document.get("blocked", 0.0))

    def add(self, record: JobRecord) -> None:
        """Add a job; of one that is not measured, only what it means for its workflow."""
        if record.workflow:
            key = record.workflow, record.tenant
            self.workflows[key] = self.workflows.get(key, WorkflowSpan()).with_job(record)
        if not record.measured:
            return
        self.outcomes[record.outcome.value] += 1
        if record.outcome is Outcome.FINISHED:
            self.jcts.append(record.jct_seconds or 0.0)
            size = ELASTIC if record.gpu_range else record.num_gpus
            self.queueing.setdefault(size, array("d")).append(record.queueing_seconds)
        self.counts["with_deadline"] += record.late_seconds is not None
        self.counts["late"] += bool(record.late_seconds)
        if record.end_seconds is not None:
            self.last_end = max(self.last_end, record.end_seconds)
        first = self.first_arrival
        self.first_arrival = record.arrival_seconds if first is None else min(first, record.arrival_seconds)
        self.blocked += record.blocked_seconds
        for name in ("starts", "preemptions", "failures"):
            self.counts[name] += getattr(record, name)
        self.cost += math.nan if record.cost is None else record.cost
        self.promised += record.promised_seconds * record.num_gpus
        self.undelivered += record.undelivered_seconds * record.num_gpus

    def summary(self, usage: Usage, measuring: Measuring, wall_seconds: float, tenants: TenantUsage | None) -> Summary:
        """Return the summary."""
        measured = measuring.measured_usage(usage)
        seconds = max((each["gpu_seconds"] / usage.gpus[name] for name, each in measured.items() if usage.gpus[name]), default=0.0)
        queueing = array("d", [each for numbers in self.queueing.values() for each in numbers])
        return Summary(
            outcomes={outcome.value: self.outcomes[outcome.value] for outcome in Outcome},
            jct=Distribution.of(self.jcts),
            makespan_seconds=max(0.0, self.last_end - (self.first_arrival or 0.0)),
            queueing=Distribution.of(queueing),
            queueing_by_gpus={size: Distribution.of(each) for size, each in sorted(self.queueing.items()) if size != ELASTIC},
            queueing_elastic=Distribution.of(self.queueing.get(ELASTIC, array("d"))),
            usage=measured,
            starts=self.counts["starts"],
            preemptions=self.counts["preemptions"],
            failures=self.counts["failures"],
            with_deadline=self.counts["with_deadline"],
            late=self.counts["late"],
            cost=None if math.isnan(self.cost) else self.cost,
            promised_gpu_seconds=self.promised,
            undelivered_gpu_seconds=self.undelivered,
            rounds=self.rounds,
            job_rounds=self.job_rounds,
            spread_job_rounds=self.spread_job_rounds,
            solver_seconds=self.solver_seconds,
            wall_seconds=wall_seconds,
            measure_jobs=measuring.window,
            ended_after_arrivals=measuring.ended_after_arrivals,
            tenants=() if tenants is None else tenants.tenants(seconds),
            workflow_jct=Distribution.of(
                array("d", [span.end - span.first for span in self.workflows.values() if span.finished and span.measured])
            ),
            blocked_seconds=self.blocked,
        )


@dataclass(frozen=True)
class SimulationResult(Tabular):
    """Result of a simulation.

    Attributes:
        policy: label of the policy.
        summary: the summary of all measured jobs.
        jobs: {job_id: JobRecord} of all jobs, empty if `on_record` receives the records.
    """

    policy: str
    summary: Summary
    jobs: Mapping[str, JobRecord]

    @property
    def workflows(self) -> dict[str, float | None]:
        """{workflow: seconds from the arrival of its first job to the end of its last one}, None unless all have finished.

        If several tenants have workflows of the same name, the keys are of the form "workflow (tenant)".
        """
        found: dict[tuple[str, str], WorkflowSpan] = {}
        for record in self.jobs.values():
            if record.workflow:
                key = record.workflow, record.tenant
                found[key] = found.get(key, WorkflowSpan()).with_job(record)
        uses = Counter(name for name, _ in found)
        return {
            name if uses[name] == 1 else f"{name} ({tenant})": span.end - span.first if span.finished else None
            for (name, tenant), span in found.items()
        }

    def finish_time_fairness(self, isolated: SimulationResult) -> dict[str, float]:
        """Return {job_id: ρ} of the measured jobs that finished in both simulations.

        ρ_i = JCT_i / JCT_i under the policy `isolated`. ρ_i <= 1: no worse than with an N-th of the cluster (Themis, NSDI 2020).

        Args:
            isolated: the same trace under the policy `isolated`.

        Raises:
            InputError: if no job finished in both.
        """
        own = [i for i, job in self.jobs.items() if job.measured and job.jct_seconds]
        both = [i for i in own if i in isolated.jobs and isolated.jobs[i].jct_seconds]
        if not both:
            raise InputError(Fault("finish-time fairness", "", "no job finished in both simulations; are they of the same trace?"))
        return {i: (self.jobs[i].jct_seconds or 0.0) / (isolated.jobs[i].jct_seconds or 1.0) for i in both}

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return a table with a row for each job, as {attribute of `JobRecord`: (N,) array}, as in `gavel simulate --jobs-out`."""
        columns = {name: array_of(getattr(record, name) for record in self.jobs.values()) for name in FIELDS}
        return columns | {"outcome": array_of(record.outcome.value for record in self.jobs.values())}

    def _title(self) -> str:
        return f"{self.policy}: {len(self.jobs)} jobs"

    def to_dict(self) -> dict[str, Any]:
        """Return summary and jobs as plain data."""
        return {
            "policy": self.policy,
            "summary": self.summary.to_dict(),
            "jobs": [record.to_dict() for record in self.jobs.values()],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SimulationResult:
        """Restore a result from `to_dict`.

        Args:
            document: what `to_dict` returned.

        Raises:
            InputError: if a part is missing.
        """
        try:
            records = (JobRecord.from_dict(each) for each in document["jobs"])
            jobs = {record.job_id: record for record in records}
            return cls(document["policy"], Summary.from_dict(document["summary"]), jobs)
        except DAMAGED as error:
            raise InputError(f"this is not a simulation result: {type(error).__name__} {error}") from None
