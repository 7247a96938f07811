"""What a driver must not lose, and how it gets into its file and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.speeds import Speeds
from gavel_py.integrations.slurm.tracked import Tracked
from gavel_py.io.snapshots import Kind, read_state, write_state
from gavel_py.policies import Policy
from gavel_py.policies.serialization import policy_document
from gavel_py.scheduling import RoundScheduler
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.measurement import Row

__all__ = ["DriverState", "load_state", "save_state"]

DRIVER = Kind("gavel-py slurm driver", 1, "the state of a driver, as gavel slurm run writes it")

Sums = dict[tuple[str, int, str], list[float]]
"""{(job type, GPUs, accelerator): [steps, seconds]} of stays that were measured."""


@dataclass
class DriverState:
    """scheduler: who decides; speeds: the throughputs that it has; tracked: the jobs in its hands; aside: those that wait for
    something else, for when they come back; stopping: those that are being stopped, so that nobody takes their hold for another's;
    gone: jobs that the scheduler can forget after the next decision; sums: what was measured; news: of which sums there is news
    that the speeds do not have yet; rounds: how many there were; past: GPU-seconds that jobs that have left were promised, had,
    and are still owed; unplanned: {job: why} of those that the latest decision leaves to Slurm; several: those that wait in several
    partitions, which cannot be seen of them any more once they run.
    """

    partition: str
    scheduler: RoundScheduler
    speeds: Speeds
    tracked: dict[str, Tracked] = field(default_factory=dict)
    aside: dict[str, Tracked] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)
    news: set[tuple[str, int, str]] = field(default_factory=set)
    rounds: int = 0
    past: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    unplanned: dict[str, str] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)

    @property
    def turnover(self) -> tuple[int, int, int]:
        """Another number of jobs, of starts or of those that run: something has happened that is worth saving."""
        jobs = self.tracked.values()
        return len(jobs), sum(job.starts for job in jobs), sum(job.runs for job in jobs)

    def forget_gone(self) -> None:
        """Let the scheduler drop the accounts of jobs that have left, and keep their sums."""
        for job_id in self.gone:
            account = self.scheduler.delivery_of(job_id)
            if account is not None:
                seconds = (account.promised_seconds, account.delivered_seconds, account.shortfall_seconds)
                self.past = [sum_ + account.num_gpus * each for sum_, each in zip(self.past, seconds, strict=True)]
        self.scheduler.forget(*self.gone)
        self.gone = []


def save_state(path: Path, state: DriverState) -> None:
    """Write the state to its file, which holds what it held before until the new one is whole. Raises `InputError`."""
    speeds = state.speeds
    document = {
        "partition": state.partition,
        "scheduler": state.scheduler.to_dict(),
        "profile": {"name": speeds.base.name, "rows": [list(row) for row in speeds.base.rows], "sizes": sorted(speeds.sizes)},
        "measured": [[*entry, speed] for entry, speed in speeds.measured.items()],
        "tracked": [job.to_dict() for job in state.tracked.values()],
        "aside": [job.to_dict() for job in state.aside.values()],
        "stopping": sorted(state.stopping),
        "gone": list(state.gone),
        "sums": [[*entry, *sums] for entry, sums in state.sums.items()],
        "news": sorted(map(list, state.news)),
        "rounds": state.rounds,
        "past": list(state.past),
        "unplanned": dict(state.unplanned),
        "several": sorted(state.several),
    }
    write_state(path, document, DRIVER)


def load_state(path: Path, partition: str, policy: Policy) -> DriverState:
    """Return the state that was saved, with this policy from the next round on. Raises `InputError`."""
    document = read_state(path, DRIVER)
    try:
        if document["partition"] != partition:
            text = f"is of partition {document['partition']!r}, not {partition!r}; give each partition a directory of its own"
            raise InputError(Fault(str(path), "", text))
        speeds = _speeds(document)
        written = document["scheduler"]["policy"]["document"]
        handed = policy if written is None else None  # one of the user's own, which no file can hold
        scheduler = RoundScheduler.from_dict(document["scheduler"], speeds.profile, policy=handed, source=path)
        if policy_document(policy) != written:
            scheduler.policy = policy
        return DriverState(
            partition=partition,
            scheduler=scheduler,
            speeds=speeds,
            tracked={job["job_id"]: Tracked.from_dict(job) for job in document["tracked"]},
            aside={job["job_id"]: Tracked.from_dict(job) for job in document["aside"]},
            stopping=set(document["stopping"]),
            gone=list(document["gone"]),
            sums={(kind, gpus, name): [steps, seconds] for kind, gpus, name, steps, seconds in document["sums"]},
            news={(kind, gpus, name) for kind, gpus, name in document["news"]},
            rounds=document["rounds"],
            past=list(document["past"]),
            unplanned=dict(document.get("unplanned", {})),  # states of 0.x lack these two
            several=set(document.get("several", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        text = f"is damaged, or was written by another version of gavel-py: {type(error).__name__} {error}"
        raise InputError(Fault(str(path), "", text)) from None


def _speeds(document: Mapping[str, Any]) -> Speeds:
    profile = document["profile"]
    base = ThroughputProfile(profile["name"], [Measurement(**dict(zip(Row._fields, row, strict=True))) for row in profile["rows"]])
    measured = {(kind, gpus, name): speed for kind, gpus, name, speed in document["measured"]}
    return Speeds(base, measured, profile["sizes"])
