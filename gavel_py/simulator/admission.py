"""From a job of the trace to one at work: how long it really is, what policies see of that, and where it will fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gavel_py.io.random import generator_from, generator_state
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.simulator.settings import Estimates, JobFailures
from gavel_py.simulator.work import Work, deadline_of, total_steps_of
from gavel_py.workloads import Submission

__all__ = ["Admission"]


class Admission:
    """How jobs of the trace come in; the arguments are those of `Simulation`. chance: where they fail at random."""

    def __init__(
        self, cluster: Cluster, profile: Profile, job_failures: JobFailures, estimates: Estimates, chance: np.random.Generator
    ) -> None:
        self._cluster, self._profile = cluster, profile
        self._job_failures, self._estimates = job_failures, estimates
        self.chance = chance

    def work(self, submission: Submission, number: int) -> Work:
        """Return the job at work; number: its place in the trace. Raises `InputError` for one without an end."""
        job = submission.job
        total = total_steps_of(job, self._profile)
        deadline = deadline_of(job, self._cluster, self._profile)
        failing = self._failing_at(submission)
        return Work(submission, total, failing, self._expected_steps(submission, total), deadline, number)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, and where chance is, as plain data."""
        return {"job_failures": self._job_failures, "estimates": self._estimates, "chance": generator_state(self.chance)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], cluster: Cluster, profile: Profile) -> Admission:
        """Return what `to_dict` described."""
        chance = generator_from(document["chance"])
        return cls(cluster, profile, document["job_failures"], document["estimates"], chance)

    def _expected_steps(self, submission: Submission, total: float) -> float:
        """The steps of a job as policies see them."""
        run, expected = submission.run_seconds, submission.estimate_seconds
        return total if self._estimates == "exact" or not run or not expected else total * expected / run

    def _failing_at(self, submission: Submission) -> list[float]:
        """The parts of its work at which a job fails."""
        if self._job_failures == "recorded":
            count = submission.failed_attempts
        else:
            count = int(self.chance.geometric(1 - float(self._job_failures))) - 1 if self._job_failures else 0
        return self.chance.uniform(size=count).tolist() if count else []
