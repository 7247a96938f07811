"""Jobs in the system and the histories of all jobs, including those that have left."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.names import NaturalOrder, natural_key
from gavel_py.problem.job import Job, with_steps


class Departure(StrEnum):
    """How a job left the system, as a predicate for messages."""

    COMPLETED = "was completed"
    CANCELLED = "was cancelled"
    FAILED = "failed for good"


@dataclass
class JobHistory:
    """The history of one job, kept after it has left. Saved files contain the attributes by name."""

    waiting_since_seconds: float  # end of the last round that it ran, or its arrival
    steps_at_start: float  # steps done when it was submitted
    steps_counted: float  # steps up to which `isolated_seconds` counts
    isolated_seconds: float = 0.0  # Σ steps / isolated throughput at that time: what its progress would have taken alone
    attained_gpu_seconds: float = 0.0  # GPU-seconds of the rounds that it ran
    running_since_seconds: float | None = None  # start of its current uninterrupted run, None while it does not run
    has_run: bool = False  # whether it has ever held GPUs
    failures: int = 0  # how many times it failed
    left: Departure | None = None  # how it left, None while it is in the system

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobHistory:
        """Restore a history from its fields. Version 1 has no `has_run`, which then follows from the other fields."""
        has_run = document["attained_gpu_seconds"] > 0 or document["running_since_seconds"] is not None
        left = None if document["left"] is None else Departure(document["left"])
        return cls(**{"has_run": has_run, **document, "left": left})

    def isolated(self, steps_done: float, speed: float) -> float:
        """Return `isolated_seconds` for progress up to `steps_done` at an isolated throughput of `speed` steps/s.

        Steps lost by a restart from an older checkpoint reduce the time in proportion.
        """
        new = steps_done - self.steps_counted
        if new >= 0:
            return self.isolated_seconds + (new / speed if speed > 0 else 0.0)
        kept = max(0.0, steps_done - self.steps_at_start) / max(self.steps_counted - self.steps_at_start, -new)
        return self.isolated_seconds * kept


# Fields that `update` refuses to change, and why.
FIXED = {
    "job_id": "names the job; submit another job instead",
    "arrival_seconds": "has happened",
    "steps_done": "is what `report` tells",
}


class JobRegistry:
    """Jobs in the system by id, and the histories of all jobs.

    Progress is reported often and read rarely, so it is stored aside and written to the jobs when they are read.

    Attributes:
        histories: {job_id: JobHistory} of all jobs that were ever submitted and not forgotten.
        changed: While tracked (`track`): ids of jobs that have arrived, changed or left since the reader last emptied it.
        progressed: While tracked: ids of jobs in the system whose progress was reported since then.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._steps: dict[str, float] = {}
        self._order = NaturalOrder()
        self.histories: dict[str, JobHistory] = {}
        self.changed: set[str] = set()
        self.progressed: set[str] = set()
        self._is_tracked = False

    def track(self, *, on: bool = True) -> None:
        """Start (or stop) filling `changed`, with all jobs at first, and `progressed`."""
        self._is_tracked = on
        self.changed, self.progressed = set(self._jobs) if on else set(), set()

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs in the system with the progress last reported; callers must not change the dictionary."""
        if self._steps:
            self._jobs |= {job_id: with_steps(self._jobs[job_id], steps) for job_id, steps in self._steps.items()}
            self._steps = {}
        return self._jobs

    @property
    def in_order(self) -> tuple[Job, ...]:
        """The jobs in the system in the natural order of their ids."""
        jobs = self.jobs
        return tuple(map(jobs.__getitem__, self._order.of(jobs)))

    @property
    def jobs_and_steps(self) -> tuple[dict[str, Job], dict[str, float]]:
        """Copies of the jobs in the system, and of the progress that is not written to them yet."""
        return self._jobs.copy(), self._steps.copy()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def steps_of(self, job_ids: Iterable[str]) -> list[float]:
        """Return the steps that these jobs have done."""
        steps, jobs = self._steps, self._jobs
        return [steps[job_id] if job_id in steps else jobs[job_id].steps_done for job_id in job_ids]

    def report(self, steps_done: Mapping[str, float]) -> None:
        """Store the progress of jobs. Raises `UnknownNameError` if one is not in the system; then nothing is stored."""
        if not self._jobs.keys() >= steps_done.keys():
            for job_id in steps_done:
                self.known(job_id)
        self._steps |= steps_done
        if self._is_tracked:
            self.progressed.update(steps_done)

    def put(self, job: Job) -> None:
        """Add or replace a job."""
        self._steps.pop(job.job_id, None)
        self._jobs[job.job_id] = job
        if self._is_tracked:
            self.changed.add(job.job_id)

    @property
    def failed(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that failed more often than `max_retries`."""
        failed = sorted((i for i, history in self.histories.items() if history.left is Departure.FAILED), key=natural_key)
        return {job_id: self.why_failed(job_id) for job_id in failed}

    def why_failed(self, job_id: str) -> str:
        """Return why a job failed for good."""
        return f"left after {_failures(self.histories[job_id].failures)}, and may not be tried again"

    def to_dict(self) -> dict[str, Any]:
        """Return the jobs and the history of each job as plain data."""
        return {
            "jobs": [job.model_dump(mode="json") for job in self.jobs.values()],
            "standings": {job_id: asdict(history) for job_id, history in self.histories.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobRegistry:
        """Restore a registry from `to_dict`."""
        registry = cls()
        for each in document["jobs"]:
            registry.put(Job(**each))
        registry.histories = {job_id: JobHistory.from_dict(values) for job_id, values in document["standings"].items()}
        if not registry.jobs.keys() <= registry.histories.keys():
            raise ValueError("a job has no standing")
        return registry

    def check_new(self, job: Job) -> None:
        """Raise `InputError` for anything but a job, and for an id that was used before."""
        if not isinstance(job, Job):
            raise InputError(Fault("round scheduler", "", f"submit needs a Job, found {job!r}"))
        if job.job_id in self.histories:
            raise InputError(Fault(f"job {job.job_id!r}", "job_id", "was submitted before; job ids are used once"))

    def add(self, job: Job) -> None:
        """Add a job that `check_new` accepts."""
        self.put(job)
        self.histories[job.job_id] = JobHistory(job.arrival_seconds, job.steps_done, job.steps_done)

    def known(self, job_id: str) -> Job:
        """Return a job in the system. Raises `UnknownNameError`, which says how the job left if it was there."""
        if job_id in self._jobs:
            if job_id in self._steps:
                self._jobs[job_id] = with_steps(self._jobs[job_id], self._steps.pop(job_id))
            return self._jobs[job_id]
        history = self.histories.get(job_id)
        if history is None:
            text = f"there is no such job in the system{nearest(str(job_id), sorted(self._jobs))}"
        else:
            why = f", after {_failures(history.failures)}" if history.left is Departure.FAILED else ""
            text = f"is no longer in the system: it {history.left}{why}; nothing has changed"
        raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))

    def remove(self, job_id: str, how: Departure) -> None:
        """Remove a job from the system. Raises `UnknownNameError`."""
        del self._jobs[self.known(job_id).job_id]
        if self._is_tracked:
            self.changed.add(job_id)
            self.progressed.discard(job_id)
        self.histories[job_id].left = how

    def check_gone(self, job_ids: Iterable[str], in_decision: Container[str]) -> None:
        """Raise `InputError` unless these jobs have left and are not `in_decision`, the jobs of the round decided last."""
        for job_id in job_ids:
            if job_id in self._jobs:
                raise InputError(Fault(f"job {job_id!r}", "job_id", "is still in the system; complete or cancel it first"))
            if job_id not in self.histories:
                text = f"there was no such job{nearest(str(job_id), sorted(self.histories))}"
                raise UnknownNameError(Fault(f"job {job_id!r}", "job_id", text))
            if job_id in in_decision:
                text = "has left since the last round was decided; it can be forgotten when the next one is"
                raise InputError(Fault(f"job {job_id!r}", "job_id", text))

    def fail(self, job_id: str) -> bool:
        """Count a failure and return whether the job may be tried again; otherwise remove it. Raises `UnknownNameError`."""
        job, history = self.known(job_id), self.histories[job_id]
        history.failures += 1
        if history.failures <= job.max_retries:
            return True
        self.remove(job_id, Departure.FAILED)
        return False


def changed_job(job: Job, fields: dict[str, object]) -> Job:
    """Return the job with other fields, validated like a new job. Raises `InputError`."""
    place = f"job {job.job_id!r}"
    InputError.raise_any([Fault(place, name, f"cannot be changed: it {why}") for name, why in FIXED.items() if name in fields])
    return Job(**{name: getattr(job, name) for name in type(job).model_fields} | fields)


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures"
