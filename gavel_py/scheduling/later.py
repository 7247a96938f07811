"""An allocation in force that has not been written down: it is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gavel_py.errors import ProofError
from gavel_py.io.names import natural_key
from gavel_py.problem.job import Job, with_steps
from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.in_force import InForce, Question

__all__ = ["Later"]


@dataclass(frozen=True, eq=False)
class Later:
    """jobs, steps: those that were asked about, and the progress of some; running: who ran then; given: who was given all of its
    time, and on which type; excluded: who can run nowhere, and why; solve: asks the policy in full.
    """

    now_seconds: float
    jobs: Mapping[str, Job]
    steps: Mapping[str, float]
    running: Mapping[str, Assignment]
    given: Callable[[], Mapping[str, str]]
    excluded: Mapping[str, str]
    whole_gangs: bool
    solve: Callable[[Question], InForce]

    def in_order(self, job_ids: Iterable[str]) -> tuple[str, ...]:
        """Return these jobs in the order of an allocation."""
        return tuple(sorted(job_ids, key=natural_key))

    def in_force(self) -> InForce:
        """Return the same as an answer of the policy to the whole question. Raises `ProofError` where that is another."""
        steps, there = self.steps, (self.jobs[job_id] for job_id in self.in_order(self.jobs))
        jobs = tuple(with_steps(job, steps[job.job_id]) if job.job_id in steps else job for job in there)
        running_on = tuple(self.running[job.job_id].accelerator if job.job_id in self.running else None for job in jobs)
        nothing = (0.0,) * len(jobs)
        question = Question(self.now_seconds, jobs, nothing, nothing, nothing, running_on, None, self.whole_gangs)
        found = self.solve(question)
        types, fractions = found.problem.accelerator_types, found.allocation.time_fractions
        given = {
            job_id: types[row.index(1.0)]
            for job_id, row in zip(found.problem.job_ids, fractions.tolist(), strict=True)
            if any(row) and row.count(0.0) == len(row) - 1
        }
        if given != self.given() or float(fractions.sum()) != len(given):
            raise ProofError("the jobs in turn were given other time than the policy gives them when it is asked about all of them")
        return found
