"""The parts of an explanation: records of plain data that convert to JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gavel_py.allocation.accounting import TenantShare
from gavel_py.errors import InputError


@dataclass(frozen=True)
class Binding:
    """One reason why a job has no higher throughput.

    Attributes:
        kind: "level", "floor", "limit", "gpus", "partners", "time", "place", "order", "discount", "formula" or "count".
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

    closed: why the job cannot run there, empty if it can; certain: as in `Explanation`; failed: why there is no allocation with
    this GPU, empty if there is one. If it failed, all numbers are None.
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
    """A job that holds GPUs which another job lacks. gpus: {type: s_k X_kj}, GPUs averaged over time."""

    job_id: str
    gpus: dict[str, float]


@dataclass(frozen=True)
class Others:
    """All further holders together. jobs: their number; gpus: {type: GPUs}, averaged over time."""

    jobs: int
    gpus: dict[str, float]


@dataclass(frozen=True)
class Partner:
    """A job that shares GPUs with another one.

    time_fraction: fraction of wall-clock time; gain: work of both jobs together over that of one alone in the same time.
    """

    job_id: str
    accelerator: str
    time_fraction: float
    gain: float


@dataclass(frozen=True)
class Together:
    """Whether two jobs share GPUs of a type, and if not, why.

    accelerator: None if the reason holds for all types; kind: "shares", "excluded", "gangs", "unknown", "place", "memory",
    "unmeasured", "no gain", "others", "as good" or "price"; gain: as in `Partner`, None if their joint throughputs are unknown;
    price: the least loss in the objective per unit of shared time, None if unknown or not the reason; text: the sentence.
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
        num_gpus: GPUs of the gang, s; 1 for an elastic job.
        equal_jobs: Number of other jobs that are the same for the policy; they get the same time.
        time_fractions: {type: x_j}.
        gpus: {type: s x_j}, the GPUs held on average; shared GPUs count half.
        throughput: Steps per second.
        normalized_throughput: Throughput over that of running all the time on the cluster's mix of GPUs.
        vs_fair_share: The same over the job's fair share; see `Allocation`. None for an explanation from a file without it.
        certain: True if it is proven that every optimal allocation gives the job this throughput.
        objective: Value of the policy's objective, None if it has none.
        bound: Proven bound on the objective, None if the policy has none.
        excluded: Why the job gets no time, None if it was not excluded.
        notes: Notes of the policy about the job, such as that it will miss its deadline.
        bindings: The reasons why the job has no higher throughput.
        one_more_gpu: The effect of one more GPU of each type.
        holders: Jobs that hold what the job lacks, the largest first.
        others: All further holders.
        partners: Jobs that share GPUs with the job, in descending order of shared time.
        together: Whether the job shares GPUs with the given partner, by type.
        capacities: {type: GPUs of the cluster}.
        utilization: {type: part of them in use}.
        start_seconds: When it starts, from now; None for a job that waits. This and the next three are described at `Forecast`.
        end_seconds: When it ends while the allocation stands, without new arrivals; None if unknown.
        cost_per_hour: Mean cost of its GPUs over time; None if unknown.
        cost_until_done: Cost until it ends; None if unknown.
        tenant: The promised and actual share of its tenant, None without one.
        gpu_counts: {type: {number of GPUs: time fraction}} of an elastic job, None for a fixed gang.
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
        try:
            lists = {name: tuple(record(**part) for part in document[name]) for name, record in _LISTS.items()}
            rest = {"notes": tuple(document["notes"]), "others": Others(**document["others"])}
            own = {name: value for name, value in document.items() if name != "schema_version"}
            tenant = document.get("tenant")
            return cls(**own | lists | rest | {"tenant": None if tenant is None else TenantShare.from_dict(tenant)})
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not an explanation as gavel writes it: {type(error).__name__} {error}") from None


_LISTS = {"bindings": Binding, "one_more_gpu": OneMoreGpu, "holders": Holder, "partners": Partner, "together": Together}
