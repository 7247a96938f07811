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
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gavel_py.errors import faults_from, refuse
from gavel_py.io.snapshots import DAMAGED
from gavel_py.io.tabular import Tabular, array_of
from gavel_py.report.runs.summary import Distribution, Outcome, Summary
from gavel_py.simulator.measurements import Measuring, TenantUsage, Usage


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


ELASTIC = 0
"""Key of elastic jobs in the queueing delays of a tally, beside the sizes of gangs."""


COUNTED = ("starts", "preemptions", "failures", "with_deadline", "late")
"""What a tally counts over its jobs."""
SUMMED = ("rounds", "job_rounds", "spread_job_rounds", "solver_seconds")
"""What it sums over rounds."""


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
        return vars(self) | counted | {"workflows": [[*key, *span] for key, span in self.workflows.items()]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tally:
        """Restore from `to_dict`."""
        queueing = {size: array("d", numbers) for size, numbers in document["queueing"]}
        counts = {name: Counter(document[name]) for name in ("outcomes", "counts")}
        spans = {(name, tenant): WorkflowSpan(*span) for name, tenant, *span in document["workflows"]}
        made: dict[str, Any] = {"jcts": array("d", document["jcts"]), "queueing": queueing, "workflows": spans}
        return cls(**{name: document[name] for name in cls.__dataclass_fields__} | counts | made)

    def note_round(self, running: int, solver_seconds: float) -> None:
        """Count a round in which this number of measured jobs run."""
        self.rounds += 1
        self.job_rounds += running
        self.solver_seconds += solver_seconds

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

    def summary(self, usage: Usage, measuring: Measuring, wall_seconds: float, tenants: TenantUsage) -> Summary:
        """Return the summary."""
        measured = measuring.measured_usage(usage)
        seconds = max((each["gpu_seconds"] / usage.gpus[name] for name, each in measured.items() if usage.gpus[name]), default=0.0)
        queueing = array("d", [each for numbers in self.queueing.values() for each in numbers])
        own: dict[str, Any] = {name: getattr(self, name) for name in SUMMED}
        own |= {name: self.counts[name] for name in COUNTED}
        return Summary(
            outcomes={outcome.value: self.outcomes[outcome.value] for outcome in Outcome},
            jct=Distribution.of(self.jcts),
            makespan_seconds=max(0.0, self.last_end - (self.first_arrival or 0.0)),
            queueing=Distribution.of(queueing),
            queueing_by_gpus={size: Distribution.of(each) for size, each in sorted(self.queueing.items()) if size != ELASTIC},
            queueing_elastic=Distribution.of(self.queueing.get(ELASTIC, array("d"))),
            usage=measured,
            cost=None if math.isnan(self.cost) else self.cost,
            promised_gpu_seconds=self.promised,
            undelivered_gpu_seconds=self.undelivered,
            **own,
            wall_seconds=wall_seconds,
            measure_jobs=measuring.window,
            ended_after_arrivals=measuring.ended_after_arrivals,
            tenants=tenants.tenants(seconds),
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
        refuse("finish-time fairness", (not both, "", "no job finished in both simulations; are they of the same trace?"))
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
        with faults_from("", "this is not a simulation result", *DAMAGED, named=True):
            records = (JobRecord.from_dict(each) for each in document["jobs"])
            jobs = {record.job_id: record for record in records}
            return cls(document["policy"], Summary.from_dict(document["summary"]), jobs)
