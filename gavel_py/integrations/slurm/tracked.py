"""One managed job as it is followed from reading to reading: what it is, where it runs, how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gavel_py.integrations.slurm.marks import Place

__all__ = ["Tracked"]

FAILURES_TO_PAUSE, LONGEST_PAUSE = 3, 16
"""A job that did not start so often in a row is left to Slurm for a while, twice as long each time, in rounds."""

PAST = (
    "arrival_seconds",
    "place",
    "steps_done",
    "first_start_seconds",
    "running_seconds",
    "starts",
    "preemptions",
    "worked",
    "ran_on",
)


@dataclass
class Tracked:
    """num_gpus: of its gang, whatever form the request has been given; place: whether it must be on one node; seen_seconds: up to
    when its progress is counted; total_steps: None where nobody has told them; held, accelerator: where it was seen running last,
    empty while it waits; stay_seconds, stay_steps: when it began to run there, and from which step on; failed_starts: in a row;
    not_before_round: until when it is not tried again; worked: {accelerator: [steps, seconds]} of stays that were measured; ran_on:
    the accelerators that it has had; asks: what its user asks for; is_known: whether its type is its own, not the default;
    per_node, fewest_nodes, most_nodes: whether its user says how many GPUs each node is to give, and on how many nodes (0: no
    limit), which each start changes; exact_nodes: on how many it must be, as its user says how many tasks each is to have, else 0.
    """

    job_id: str
    name: str
    user: str
    job_type: str
    num_gpus: int
    place: Place
    arrival_seconds: float
    seen_seconds: float
    total_steps: float | None = None
    steps_done: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    accelerator: str = ""
    stay_seconds: float = 0.0
    stay_steps: float | None = None
    first_start_seconds: float | None = None
    running_seconds: float = 0.0
    starts: int = 0
    preemptions: int = 0
    failed_starts: int = 0
    not_before_round: int = 0
    worked: dict[str, list[float]] = field(default_factory=dict)
    ran_on: list[str] = field(default_factory=list)
    asks: str = ""
    is_known: bool = True
    per_node: bool = False
    fewest_nodes: int = 1
    most_nodes: int = 0
    exact_nodes: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed so often to start where it was decided that only Slurm may know why."""
        return self.failed_starts >= FAILURES_TO_PAUSE

    @property
    def runs(self) -> bool:
        """Whether it held GPUs when it was seen last."""
        return bool(self.held)

    def take_past_of(self, before: Tracked) -> None:
        """Go on from what has become of the job so far, when its user has changed what it asks for."""
        # As long as it is about the same GPUs, the form of its request may be one that a start has given it.
        form = ("per_node", "fewest_nodes", "most_nodes", "exact_nodes") if before.num_gpus == self.num_gpus else ()
        for name in (*PAST, *form):
            setattr(self, name, getattr(before, name))

    def note_failed_start(self, rounds: int) -> None:
        """Count it, and leave the job to Slurm for a while if that has happened often; rounds: how many there were."""
        self.failed_starts += 1
        if self.is_given_up:
            self.not_before_round = rounds + min(LONGEST_PAUSE, 2 ** (self.failed_starts - FAILURES_TO_PAUSE))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Tracked:
        """Return what `to_dict` described."""
        return cls(**document)
