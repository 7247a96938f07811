"""The state of a driver that must not be lost: the scheduler, its throughputs and the jobs it follows, kept in a file.

`Tracked` is one managed job from reading to reading: what it is, where it runs, how far it is. `Speeds` are the throughputs in use:
a profile, what was measured here, and estimates for gang sizes that were never measured. `record_measurements` takes measurements from jobs
that leave, which also go to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.job_roles import Place
from gavel_py.integrations.slurm.records import Phase
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.policies import Policy
from gavel_py.policies.serialization import policy_document
from gavel_py.scheduling import RoundScheduler
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.throughput_profiles.measurement import Row

Measured = Mapping[tuple[str, float, str], float]

Sums = dict[tuple[str, int, str], list[float]]
"""{(job type, GPUs, accelerator): [steps, seconds]} of stays that were measured."""


class Speeds:
    """base: the profile of the site; measured: {(job type, GPUs, accelerator): steps/s}, which come before it."""

    def __init__(self, base: ThroughputProfile, measured: Measured | None = None, sizes: Iterable[int] = ()) -> None:
        # Nobody shares GPUs here, and nobody is spread on purpose: Slurm cannot be told the splits that come of it.
        alone = [row for row in base.measurements if row.partner_job_type is None and row.placement == "consolidated"]
        self.base, self.measured, self.sizes = ThroughputProfile(base.name, alone), dict(measured or {}), set(sizes)
        self.profile = self._made()

    def with_measured(self, measured: Measured) -> Speeds:
        """Return these speeds with new measurements."""
        return Speeds(self.base, self.measured | dict(measured), self.sizes)

    def need(self, sizes: Iterable[int]) -> None:
        """See to it that these gang sizes are known as far as they can be."""
        new = set(sizes) - self.sizes
        if new:
            self.sizes |= new
            self.profile = self._made()

    def known_on(self, job_type: str, num_gpus: int, accelerators: Iterable[str]) -> tuple[str, ...]:
        """Return the accelerators on which the speed of such a gang is known, and is not 0."""
        has, speed = self.profile.has, self.profile.throughput
        return tuple(name for name in accelerators if has(job_type, num_gpus, name) and speed(job_type, num_gpus, name) > 0)

    def speed(self, job_type: str, num_gpus: int, accelerator: str) -> float:
        """Return the steps/s of such a gang, 0 where they are not known."""
        known = self.profile.has(job_type, num_gpus, accelerator)
        return self.profile.throughput(job_type, num_gpus, accelerator) if known else 0.0

    def _made(self) -> ThroughputProfile:
        rows = [row for row in self.base.measurements if not self._replaces(row)]
        ours = [
            Measurement(job_type=job_type, num_gpus=gpus, accelerator=name, steps_per_second=speed, source="slurm")
            for (job_type, gpus, name), speed in self.measured.items()
        ]
        return extend_profile(ThroughputProfile(self.base.name, [*rows, *ours]), self.sizes)

    def _replaces(self, row: Measurement) -> bool:
        return row.placement == "consolidated" and (row.job_type, row.num_gpus, row.accelerator) in self.measured


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
    limit), which each start changes; exact_nodes: on how many it must be, as its user says how many tasks each is to have, else 0;
    fewest_cpus: that its user asks for on each node, None in states of versions that did not keep it.
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
    fewest_cpus: int | None = None

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
        form = ("per_node", "fewest_nodes", "most_nodes", "exact_nodes", "fewest_cpus") if before.num_gpus == self.num_gpus else ()
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


DRIVER = SnapshotFormat("gavel-py slurm driver", 1, "the state of a driver, as gavel slurm run writes it")


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
    DRIVER.write(path, document)


def load_state(path: Path, partition: str, policy: Policy) -> DriverState:
    """Return the state that was saved, with this policy from the next round on. Raises `InputError`."""
    document = DRIVER.read(path)
    with damage_as_fault(path):
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


def _speeds(document: Mapping[str, Any]) -> Speeds:
    profile = document["profile"]
    base = ThroughputProfile(profile["name"], [Measurement(**dict(zip(Row._fields, row, strict=True))) for row in profile["rows"]])
    measured = {(kind, gpus, name): speed for kind, gpus, name, speed in document["measured"]}
    return Speeds(base, measured, profile["sizes"])


SHORTEST = 60.0
"""Seconds; of less work, what a start takes would be the most part."""


def record_measurements(state: DriverState, tracked: Tracked, outcome: str, told_steps: float | None) -> set[tuple[str, int, str]]:
    """Add what a job that leaves has shown to the sums, and return what there is news of.

    Stays whose steps the job itself told count. One that told none counts if it finished, its user gave its steps, and it ran on
    one type only: then all its steps took all its time.
    """
    if not tracked.is_known:
        return set()
    worked: Mapping[str, list[float]] = tracked.worked
    if not worked and outcome == Phase.FINISHED and told_steps and len(tracked.ran_on) == 1:
        worked = {tracked.ran_on[0]: [told_steps, tracked.running_seconds]}
    news = set()
    for accelerator, (steps, seconds) in worked.items():
        if seconds > 0 and steps > 0:
            entry = (tracked.job_type, tracked.num_gpus, accelerator)
            sums = state.sums.setdefault(entry, [0.0, 0.0])
            sums[0] += steps
            sums[1] += seconds
            news.add(entry)
    return {entry for entry in news if state.sums[entry][1] >= SHORTEST}


def measurements_of(sums: Sums, entries: set[tuple[str, int, str]]) -> list[Measurement]:
    """Return the mean speeds of these entries, all that was measured so far together."""
    return [
        Measurement(
            job_type=job_type,
            num_gpus=gpus,
            accelerator=accelerator,
            steps_per_second=sums[job_type, gpus, accelerator][0] / sums[job_type, gpus, accelerator][1],
            source="slurm",
        )
        for job_type, gpus, accelerator in sorted(entries)
    ]
