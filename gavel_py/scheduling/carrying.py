"""Carrying an allocation over to the jobs that are there now, where the policy is not to be asked again yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.policies.constraints import Constraint, placed
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.carried import Carried
from gavel_py.scheduling.in_force import InForce, Question, same_gang
from gavel_py.scheduling.job_rows import JobRows
from gavel_py.scheduling.node_states import NodeStates

__all__ = ["carried_over"]

NOTHING = 1e-9
"""A part of the time that is told from none."""


def carried_over(
    before: InForce, question: Question, nodes: NodeStates, profile: Profile, constraints: Sequence[Constraint], rows: JobRows
) -> InForce | None:
    """Return the allocation in force for the jobs of now, None where it would give none of them anything.

    question: what the policy would be asked now; nodes, profile: as they were when it was solved.
    Jobs that are still there with the same gang keep their rows, and all others have rows of zeros: nothing is promised to them.
    What depends on who is there, such as the share of an N-th of the cluster, is that of now: the past of jobs does not depend on
    how often allocations are solved.
    """
    asked = question.problem(nodes, profile, rows)
    problem = placed(asked, constraints)
    kept = _kept(before, question, problem)
    known = kept >= 0
    runnable, lasting = problem.runnable.copy(), problem.runnable.copy()
    if nodes.available is not nodes.cluster:
        lasting |= question.whole(nodes, profile, rows).runnable & ~asked.runnable
    # Constraints may say something else of jobs that run by now, and what was promised holds.
    runnable[known] = before.problem.runnable[kept[known]] & asked.runnable[known]
    lasting[known] = before.lasting[kept[known]]
    at = kept if before.carried is None else np.where(known, before.carried.rows[kept], -1)
    carried = Carried(at, before.asked_seconds)
    made = InForce(question, before.nodes, replace(problem, runnable=runnable), before.allocation, lasting, carried)
    return made if (made.fractions[runnable] > NOTHING).any() else None


def _kept(before: InForce, question: Question, problem: AllocationProblem) -> NDArray[np.int64]:
    """(N,) the rows that the jobs of now have in what is in force, -1 for jobs that have come or changed their gang since.

    Where a job could run nowhere, then or now, its row means nothing.
    """
    out = before.problem.excluded.keys() | problem.excluded.keys()
    rows = {job.job_id: row for row, job in enumerate(before.jobs) if job.job_id not in out}
    found = [row if (row := rows.get(job.job_id, -1)) >= 0 and same_gang(before.jobs[row], job) else -1 for job in question.jobs]
    return np.array(found, dtype=np.int64)
