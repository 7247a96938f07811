"""What an explanation tells, as plain records that go to JSON and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gavel_py.errors import InputError


@dataclass(frozen=True)
class Binding:
    """One thing that keeps a job where it is.

    kind: "level", "floor", "limit", "gpus", "partners", "time", "place", "order", "discount" or "formula"; name: of the accelerator
    type, the limit, ...; price: what the objective gains at most per unit more of it: per GPU, per unit by which a limit is less
    strict; None where the proof does not tell or there is no such thing; text: the same in a sentence.
    """

    kind: str
    name: str
    price: float | None
    text: str


@dataclass(frozen=True)
class OneMoreGpu:
    """What one more GPU of a type would change, from solving the problem with it; normalisers as they are.

    closed: why the job cannot run there, empty where it can; certain: as in `Explanation`;
    failed: why there is no allocation then, with None for all numbers; empty where there is one.
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
    """A job that holds what another could use. gpus: {type: s_k X_kj} GPUs, on average over time, of what is scarce."""

    job_id: str
    gpus: dict[str, float]


@dataclass(frozen=True)
class Others:
    """All further holders together. jobs: how many; gpus: {type: GPUs}, on average over time."""

    jobs: int
    gpus: dict[str, float]


@dataclass(frozen=True)
class Partner:
    """A job that shares GPUs with another one.

    time_fraction: part of wall-clock time; gain: what both do together in parts of what one of them does alone in that time.
    """

    job_id: str
    accelerator: str
    time_fraction: float
    gain: float


@dataclass(frozen=True)
class Together:
    """Whether two jobs share GPUs of a type, and if not, why.

    accelerator: None where the reason holds for all types; kind: "shares", "excluded", "gangs", "unknown", "place", "memory",
    "unmeasured", "no gain", "others", "as good" or "price"; gain: as in `Partner`, None where their throughputs together are not
    known; price: by how much the objective gets worse, at least, per unit of time for which they share, None where the proof does
    not tell or that is not the reason; text: the same in a sentence.
    """

    accelerator: str | None
    kind: str
    gain: float | None
    price: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What one job gets under a policy, what holds it there, what one more GPU would change, and whom it competes with.

    equal_jobs: other jobs that the policy cannot tell apart from this one, and which get the same; time_fractions: {type: x_j},
    gpus: {type: s x_j}, half of those that it shares; throughput: steps/s, normalized_throughput: over that of an equal share;
    objective, bound: of the policy, None where it has none; excluded: the reason if the job gets no time, else None; certain:
    whether every allocation as good as this one gives the job this throughput, which is proven then; where it is False, others may
    give it more or less; notes: what the policy says of the job, such as that it will be late; bindings: what holds the job where
    it is; one_more_gpu: for each type; holders: jobs that hold what binds it, the largest first; others: all further ones;
    partners: who shares GPUs with it, the longest first; together: whether it shares with the one job that was asked about, type by
    type.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data, as `gavel explain --json` prints it (docs/file-formats.md)."""
        lists = {name: list(map(asdict, getattr(self, name))) for name in _LISTS}
        return asdict(self) | lists | {"notes": list(self.notes)}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Explanation:
        """Return the explanation that `to_dict` described; raises `InputError` when a part is missing or unknown."""
        try:
            lists = {name: tuple(record(**part) for part in document[name]) for name, record in _LISTS.items()}
            rest = {"notes": tuple(document["notes"]), "others": Others(**document["others"])}
            return cls(**document | lists | rest)
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not an explanation as gavel writes it: {type(error).__name__} {error}") from None


_LISTS = {"bindings": Binding, "one_more_gpu": OneMoreGpu, "holders": Holder, "partners": Partner, "together": Together}
