"""Jobs as `scontrol` shows them, parsed independently of the driver to check it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

__all__ = ["JobSeen", "jobs_of", "leases_of", "names_in"]

LEASE = "gavel-driver"
"""The name of the job of a driver on which those wait that are bound to it."""


@dataclass(frozen=True)
class JobSeen:
    """A job. placement: {node: GPUs} while it runs, else empty; bound: whether it waits for a driver; held: whether it is on hold.

    submitted, started: by the clock of the controller, in seconds since 1970; started: None unless it runs.
    """

    id: int
    name: str
    partition: str
    state: str
    reason: str
    placement: dict[str, int]
    bound: bool
    held: bool
    restarts: int
    comment: str
    admin_comment: str
    submitted: float
    started: float | None

    @property
    def waited(self) -> float:
        """Seconds from the submission of a job that runs to its start."""
        assert self.started is not None, f"job {self.id} does not run"
        return self.started - self.submitted

    @property
    def is_over(self) -> bool:
        return self.state in {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "TIMEOUT"}


def jobs_of(text: str) -> dict[int, JobSeen]:
    """Parse the output of `scontrol --details --oneliner show jobs`, without leases of drivers."""
    jobs = _all_jobs(text)
    return {job: each for job, each in jobs.items() if each.name != LEASE}


def leases_of(text: str) -> dict[int, JobSeen]:
    """Parse the leases of drivers in the same output, including those that have ended."""
    return {job: each for job, each in _all_jobs(text).items() if each.name == LEASE}


def _all_jobs(text: str) -> dict[int, JobSeen]:
    lines = [line for line in text.splitlines() if line.startswith("JobId=")]
    leases = {_field(line, "JobId") for line in lines if _field(line, "JobName") == LEASE}
    return {job.id: job for job in (_job(line, leases) for line in lines)}


def _job(line: str, leases: set[str]) -> JobSeen:
    state = _field(line, "JobState")
    return JobSeen(
        id=int(_field(line, "JobId")),
        name=_field(line, "JobName"),
        partition=_field(line, "Partition"),
        state=state,
        reason=_field(line, "Reason"),
        placement=_placement(line) if state == "RUNNING" else {},
        bound=not leases.isdisjoint(re.findall(r"afterany:(\d+)\(unfulfilled\)", _field(line, "Dependency"))),
        held=state == "PENDING" and _field(line, "Priority") == "0",
        restarts=int(_field(line, "Restarts")),
        comment=_field(line, "Comment"),
        admin_comment=_field(line, "AdminComment"),
        submitted=_seconds(line, "SubmitTime"),
        started=_seconds(line, "StartTime") if state == "RUNNING" else None,
    )


def _field(line: str, name: str) -> str:
    found = re.search(rf"(?:^| ){name}=(.*?)(?= +[A-Z][\w/:&*]*=|\s*$)", line)
    return found[1] if found else ""


def _seconds(line: str, name: str) -> float:
    return time.mktime(time.strptime(_field(line, name), "%Y-%m-%dT%H:%M:%S"))


def _placement(line: str) -> dict[str, int]:
    found = re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=gpu:\w+:(\d+)", line)
    return {node: int(gpus) for nodes, gpus in found for node in names_in(nodes)}


def names_in(nodes: str) -> list[str]:
    """Expand `v100-[0-2,5]` to v100-0, v100-1, v100-2 and v100-5: one bracket, no leading zeros."""
    return [name for stem, ranges, _ in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?(,|$)", nodes) for name in _numbered(stem, ranges)]


def _numbered(stem: str, ranges: str) -> list[str]:
    if not ranges:
        return [stem]
    bounds = [part.partition("-") for part in ranges.split(",")]
    return [f"{stem}{number}" for first, _, last in bounds for number in range(int(first), int(last or first) + 1)]
