"""The parts of an explanation: records of plain data that convert to JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gavel_py.allocation.accounting import TenantShare
from gavel_py.errors import faults_from


@dataclass(frozen=True)
class Binding:
    """One reason why a job has no higher throughput.

    Attributes:
        kind: "level", "floor", "limit", "gpus", "partners", "time", "place", "order", "discount", "formula" or "count"
            (docs/explain.md#what-can-hold-a-job).
        name: The accelerator type, limit, job or policy that binds.
        price: The largest gain in the objective per unit: per GPU, or per unit by which a limit is relaxed. None if unknown or not
            applicable.
        text: The reason as a sentence.
    """

    kind: str
    name: str
    price: float | None
    text: str


@dataclass(frozen=True)
class OneMoreGpu:
    """The effect of one more GPU of a type, from solving the problem with it; normalisers stay the same.

    Attributes:
        accelerator: The type.
        throughput: Throughput of the job in that case; None if it failed.
        throughput_change: Its increase; None if it failed.
        objective: Objective of the policy in that case, None if it failed or has none.
        objective_change: The difference, None where there is no objective.
        certain: Whether every optimal allocation gives the job this throughput.
        closed: Why the job cannot run on the type, empty if it can.
        failed: Why there is no allocation with this GPU, empty if there is one.
    """

    accelerator: str
    throughput: float | None
    throughput_change: float | None
    objective: float | None
    objective_change: float | None
    certain: bool
    closed: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Holder:
    """A job that holds GPUs which another job lacks.

    Attributes:
        job_id: The job.
        gpus: {type: s_k X_kj}, its GPUs averaged over time, of types that the other job could use.
    """

    job_id: str
    gpus: dict[str, float]


@dataclass(frozen=True)
class Others:
    """All further holders together.

    Attributes:
        jobs: Their number.
        gpus: {type: GPUs}, averaged over time.
    """

    jobs: int
    gpus: dict[str, float]


@dataclass(frozen=True)
class Partner:
    """A job that shares GPUs with another one.

    Attributes:
        job_id: The job.
        accelerator: The type on which they share.
        time_fraction: Fraction of wall-clock time.
        gain: Work of both jobs together over that of one alone in the same time.
    """

    job_id: str
    accelerator: str
    time_fraction: float
    gain: float


@dataclass(frozen=True)
class Together:
    """Whether two jobs share GPUs of a type, and if not, why.

    Attributes:
        accelerator: The type, None if the reason holds for all types.
        kind: "shares", "excluded", "gangs", "unknown", "place", "memory", "unmeasured", "no gain", "others", "as good" or "price"
            (docs/explain.md#jobs-that-share-gpus).
        gain: As in `Partner`, None if their joint throughputs are unknown.
        price: The least loss in the objective per unit of shared time, None if unknown or not the reason.
        text: The reason as a sentence.
    """

    accelerator: str | None
    kind: str
    gain: float | None
    price: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The explanation of one job: its allocation, what binds it, the effect of one more GPU, and the jobs that it competes with.

    Attributes:
        job_id: The job.
        policy: Name of the policy.
        options: Options of the policy that differ from their defaults.
        num_gpus: GPUs of the gang, s, or its fraction of one; 1 for an elastic job.
        equal_jobs: Number of other jobs that are the same for the policy; they get the same time.
        time_fractions: {type: x_j}.
        gpus: {type: s x_j}, the GPUs held on average; shared GPUs count half.
        throughput: Steps per second.
        normalized_throughput: Throughput over that of running all the time on the cluster's mix of GPUs.
        vs_fair_share: The same over the job's fair share; see `Allocation`.
        certain: True if it is proven that every optimal allocation gives the job this throughput.
        objective: Value of the policy's objective, None if it has none.
        bound: Proven bound on the objective, None if the policy has none.
        excluded: Why the job gets no time, None if it was not excluded; all lists are empty then.
        notes: Notes of the policy about the job, such as that it will miss its deadline.
        bindings: The reasons why the job has no higher throughput.
        one_more_gpu: The effect of one more GPU of each type.
        holders: Jobs that hold what the job lacks, at most five, the largest first.
        others: All further holders.
        partners: Jobs that share GPUs with the job, in descending order of shared time.
        together: Whether the job shares GPUs with the given partner (`--with`), by type.
        capacities: {type: GPUs of the cluster}.
        utilization: {type: part of them in use}.
        start_seconds: When it starts, from now (docs/explain.md#when-and-at-what-cost); None for a job that waits.
        end_seconds: When it ends while the allocation stands, without new arrivals; None if unknown.
        cost_per_hour: Mean cost of its GPUs over time; None if unknown.
        cost_until_done: Cost until it ends; None if unknown.
        deadline: Its deadline, in seconds from now; None for none.
        late: Seconds after its deadline at which it ends, 0 if it meets it; None without a deadline or a known end.
        deadlines: The number of deadlines of all jobs that are met, missed and unknown (`DeadlineCounts`).
        tenant: The promised and actual share of its tenant, as in an allocation; None without one.
        gpu_counts: {type: {number of GPUs: time fraction}} of an elastic job; absent in JSON for a fixed gang.
    """

    job_id: str
    policy: str
    options: dict[str, Any]
    num_gpus: float
    equal_jobs: int
    time_fractions: dict[str, float]
    gpus: dict[str, float]
    throughput: float
    normalized_throughput: float
    certain: bool
    objective: float | None
    bound: float | None
    excluded: str | None
    notes: tuple[str, ...]
    bindings: tuple[Binding, ...]
    one_more_gpu: tuple[OneMoreGpu, ...]
    holders: tuple[Holder, ...]
    others: Others
    partners: tuple[Partner, ...] = ()
    together: tuple[Together, ...] = ()
    vs_fair_share: float | None = None
    capacities: dict[str, float] = field(default_factory=dict)
    utilization: dict[str, float] = field(default_factory=dict)
    start_seconds: float | None = None
    end_seconds: float | None = None
    cost_per_hour: float | None = None
    cost_until_done: float | None = None
    deadline: float | None = None
    late: float | None = None
    deadlines: dict[str, int] = field(default_factory=dict)
    tenant: TenantShare | None = None
    gpu_counts: dict[str, dict[str, float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, as `gavel explain --json` prints it (docs/file-formats.md)."""
        lists = {name: list(map(asdict, getattr(self, name))) for name in _LISTS}
        document = asdict(self) | lists | {"notes": list(self.notes)}
        return document if self.gpu_counts is not None else {name: each for name, each in document.items() if name != "gpu_counts"}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Explanation:
        """Return the explanation from the data of `to_dict`.

        Raises:
            InputError: A part is missing or unknown.
        """
        with faults_from("", "this is not an explanation as gavel writes it", KeyError, TypeError, named=True):
            lists = {name: tuple(record(**part) for part in document[name]) for name, record in _LISTS.items()}
            rest = {"notes": tuple(document["notes"]), "others": Others(**document["others"])}
            own = {name: value for name, value in document.items() if name != "schema_version"}
            tenant = document.get("tenant")
            return cls(**own | lists | rest | {"tenant": None if tenant is None else TenantShare.from_dict(tenant)})


_LISTS = {"bindings": Binding, "one_more_gpu": OneMoreGpu, "holders": Holder, "partners": Partner, "together": Together}
