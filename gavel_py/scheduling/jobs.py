"""The jobs in the system and the past of all jobs: which arrive, change, fail and leave.

`JobHistory` is the past of one job: how long it waited, what it attained, and how it left.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.names import NaturalOrder, natural_key
from gavel_py.problem.job import Job, with_steps


class Departure(StrEnum):
    """How a job left, in words that follow its name."""

    COMPLETED = "was completed"
    CANCELLED = "was cancelled"
    FAILED = "failed for good"


@dataclass
class JobHistory:
    """One job's past, kept after it has left.

    waiting_since_seconds: when it last had GPUs, or arrived; steps_at_start: its steps done when it was submitted;
    isolated_seconds: Σ (steps done from one change of jobs or nodes to the next) / iso_i then, what its progress would have taken
    alone; steps_counted: the steps up to which that sum goes; attained_gpu_seconds: of the rounds that it ran;
    running_since_seconds: the start of the first round of those that it has run without a break, None while it does not run;
    has_run: whether it has ever held GPUs; failures: how often it failed; left: how it left.
    """

    waiting_since_seconds: float
    steps_at_start: float
    steps_counted: float
    isolated_seconds: float = 0.0
    attained_gpu_seconds: float = 0.0
    running_since_seconds: float | None = None
    has_run: bool = False
    failures: int = 0
    left: Departure | None = None

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobHistory:
        """Restore a history from its fields. Version 1 has no `has_run`, which then follows from the other fields."""
        has_run = document["attained_gpu_seconds"] > 0 or document["running_since_seconds"] is not None
        left = None if document["left"] is None else Departure(document["left"])
        return cls(**{"has_run": has_run, **document, "left": left})

    def isolated(self, steps_done: float, speed: float) -> float:
        """Return isolated_seconds with progress up to `steps_done` at `speed` steps/s.

        Steps that were lost, as after a restart from an older checkpoint, take their part of the time with them.
        """
        new = steps_done - self.steps_counted
        if new >= 0:
            return self.isolated_seconds + (new / speed if speed > 0 else 0.0)
        kept = max(0.0, steps_done - self.steps_at_start) / max(self.steps_counted - self.steps_at_start, -new)
        return self.isolated_seconds * kept


# What a job may not change, and why.
FIXED = {
    "job_id": "names the job; submit another job instead",
    "arrival_seconds": "has happened",
    "steps_done": "is what `report` tells",
}


class JobRegistry:
    """jobs: those in the system, by id; standings: the past of each, and of those that have left; touched: the jobs that have come,
    changed or left since somebody emptied it; told: those of which progress was told since then, as far as they are there; both
    only while somebody follows, since nobody else empties them.

    Progress is told often and read seldom, so it is noted in passing, and written to the jobs when they are asked for.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._steps: dict[str, float] = {}
        self._order = NaturalOrder()
        self.standings: dict[str, JobHistory] = {}
        self.touched: set[str] = set()
        self.told: set[str] = set()
        self._is_followed = False

    def follow(self, *, on: bool = True) -> None:
        """Note from now on who is touched, to begin with all that are there, and of whom progress is told; if not `on`, no more."""
        self._is_followed = on
        self.touched, self.told = set(self._jobs) if on else set(), set()

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs in the system with the progress last told, not to be changed."""
        if self._steps:
            self._jobs |= {job_id: with_steps(self._jobs[job_id], steps) for job_id, steps in self._steps.items()}
            self._steps = {}
        return self._jobs

    @property
    def in_order(self) -> tuple[Job, ...]:
        """The jobs in the system, sorted by job_id (`natural_key`)."""
        jobs = self.jobs
        return tuple(map(jobs.__getitem__, self._order.of(jobs)))

    @property
    def as_noted(self) -> tuple[dict[str, Job], dict[str, float]]:
        """The jobs in the system, and the steps of those whose progress is not written yet."""
        return self._jobs.copy(), self._steps.copy()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def steps_of(self, job_ids: Iterable[str]) -> list[float]:
        """Return the steps that these jobs have done."""
        steps, jobs = self._steps, self._jobs
        return [steps[job_id] if job_id in steps else jobs[job_id].steps_done for job_id in job_ids]

    def note(self, steps_done: Mapping[str, float]) -> None:
        """Note the steps that jobs have done; raises `UnknownNameError` for one that is not in the system."""
        if not self._jobs.keys() >= steps_done.keys():
            for job_id in steps_done:
                self.known(job_id)
        self._steps |= steps_done
        if self._is_followed:
            self.told.update(steps_done)

    def put(self, job: Job) -> None:
        """Let a job in the system be another than it was."""
        self._steps.pop(job.job_id, None)
        self._jobs[job.job_id] = job
        if self._is_followed:
            self.touched.add(job.job_id)

    @property
    def failed(self) -> dict[str, str]:
        """The jobs that failed more often than they may, each with a reason."""
        gone = sorted((i for i, past in self.standings.items() if past.left is Departure.FAILED), key=natural_key)
        return {job_id: self.why_failed(job_id) for job_id in gone}

    def why_failed(self, job_id: str) -> str:
        """Return why a job failed for good."""
        return f"left after {_failures(self.standings[job_id].failures)}, and may not be tried again"

    def to_dict(self) -> dict[str, Any]:
        """Return the jobs and the history of each job as plain data."""
        return {
            "jobs": [job.model_dump(mode="json") for job in self.jobs.values()],
            "standings": {job_id: asdict(past) for job_id, past in self.standings.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobRegistry:
        """Restore a registry from `to_dict`."""
        book = cls()
        for each in document["jobs"]:
            book.put(Job(**each))
        book.standings = {job_id: JobHistory.from_dict(past) for job_id, past in document["standings"].items()}
        if not book.jobs.keys() <= book.standings.keys():
            raise ValueError("a job has no standing")
        return book

    def check_new(self, job: Job) -> None:
        """Raise `InputError` for what is no job, and for an id that was used before."""
        if not isinstance(job, Job):
            raise InputError(Fault("round scheduler", "", f"submit needs a Job, found {job!r}"))
        if job.job_id in self.standings:
            raise InputError(Fault(f"job {job.job_id!r}", "job_id", "was submitted before; job ids are used once"))

    def add(self, job: Job) -> None:
        """Take in a job that has been checked."""
        self.put(job)
        self.standings[job.job_id] = JobHistory(job.arrival_seconds, job.steps_done, job.steps_done)

    def known(self, job_id: str) -> Job:
        """Return a job in the system; raises `UnknownNameError`, which tells how it left if it was there."""
        if job_id in self._jobs:
            if job_id in self._steps:
                self._jobs[job_id] = with_steps(self._jobs[job_id], self._steps.pop(job_id))
            return self._jobs[job_id]
        past = self.standings.get(job_id)
        if past is None:
            text = f"there is no such job in the system{nearest(str(job_id), sorted(self._jobs))}"
        else:
            why = f", after {_failures(past.failures)}" if past.left is Departure.FAILED else ""
            text = f"is no longer in the system: it {past.left}{why}; nothing has changed"
        raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))

    def remove(self, job_id: str, how: Departure) -> None:
        """Let a job leave; raises `UnknownNameError`."""
        del self._jobs[self.known(job_id).job_id]
        if self._is_followed:
            self.touched.add(job_id)
            self.told.discard(job_id)
        self.standings[job_id].left = how

    def check_gone(self, job_ids: Iterable[str], deciding: Container[str]) -> None:
        """Raise unless these jobs have left. deciding: those that the round decided last is about."""
        for job_id in job_ids:
            if job_id in self._jobs:
                raise InputError(Fault(f"job {job_id!r}", "job_id", "is still in the system; complete or cancel it first"))
            if job_id not in self.standings:
                text = f"there was no such job{nearest(str(job_id), sorted(self.standings))}"
                raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
            if job_id in deciding:
                text = "has left since the last round was decided; it can be forgotten when the next one is"
                raise InputError(Fault(f"job {job_id!r}", "job_id", text))

    def fail(self, job_id: str) -> bool:
        """Count a failure and say whether the job may be tried again; if not, it has left. Raises `UnknownNameError`."""
        job, past = self.known(job_id), self.standings[job_id]
        past.failures += 1
        if past.failures <= job.max_retries:
            return True
        self.remove(job_id, Departure.FAILED)
        return False


def changed_job(job: Job, fields: dict[str, object]) -> Job:
    """Return the job with other fields, checked as a new one is; raises `InputError`."""
    who = f"job {job.job_id!r}"
    InputError.raise_any([Fault(who, name, f"cannot be changed: it {why}") for name, why in FIXED.items() if name in fields])
    return Job(**{name: getattr(job, name) for name in type(job).model_fields} | fields)


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures"
