"""What a simulation comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.simulator.records import JobRecord
from gavel_py.simulator.summary import Summary

__all__ = ["SimulationResult"]


@dataclass(frozen=True)
class SimulationResult:
    """policy: its label; summary: of all measured jobs; jobs: {job_id: JobRecord}, measured or not, empty where they went elsewhere
    (`on_record`).
    """

    policy: str
    summary: Summary
    jobs: Mapping[str, JobRecord]

    def finish_time_fairness(self, isolated: SimulationResult) -> dict[str, float]:
        """Return {job_id: ρ}, ρ_i = JCT_i / JCT_i of the same trace under the policy `isolated`.

        For the measured jobs that finished in both. ρ <= 1: no worse than with an N-th of the cluster to itself (Themis, NSDI
        2020). Raises `InputError` if none is in both.
        """
        own = [i for i, job in self.jobs.items() if job.measured and job.jct_seconds]
        both = [i for i in own if i in isolated.jobs and isolated.jobs[i].jct_seconds]
        if not both:
            raise InputError(Fault("finish-time fairness", "", "no job finished in both simulations; are they of the same trace?"))
        return {i: (self.jobs[i].jct_seconds or 0.0) / (isolated.jobs[i].jct_seconds or 1.0) for i in both}

    def to_dict(self) -> dict[str, Any]:
        """Return summary and jobs as plain data."""
        return {
            "policy": self.policy,
            "summary": self.summary.to_dict(),
            "jobs": [record.to_dict() for record in self.jobs.values()],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SimulationResult:
        """Return the result that `to_dict` described; raises `InputError` when a part is missing."""
        try:
            records = (JobRecord.from_dict(each) for each in document["jobs"])
            jobs = {record.job_id: record for record in records}
            return cls(document["policy"], Summary.from_dict(document["summary"]), jobs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"this is not what came of a simulation: {type(error).__name__} {error}") from None
