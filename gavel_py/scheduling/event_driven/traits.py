"""What an ordered policy and the placing of gangs need to know of a job, and what all jobs like it have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavel_py.optimization.job_classes import separate_jobs
from gavel_py.policies import OrderedPolicy
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job, with_steps
from gavel_py.scheduling.in_force import new_only
from gavel_py.scheduling.job_rows import LIKE, JobRows
from gavel_py.scheduling.node_states import NodeStates
from gavel_py.scheduling.placement.kinds import Kind
from gavel_py.scheduling.placement.layout import NODE, SCOPES, Layout
from gavel_py.scheduling.placement.spans import Spans
from gavel_py.throughput_profiles import ThroughputProfile

__all__ = ["Looker", "Traits"]


@dataclass(frozen=True, slots=True)
class Traits:
    """size: GPUs of the gang, 0 of a part of one; is_plain: whether they are whole, and may be split in any way; wishes: the types
    on which it can run, as columns, the fastest first; fastest: steps/s there; scope: its locality, as its place in `SCOPES`;
    kinds, fewest: by column, the placement that it is to have, and the nodes on which it must be at least; reason: why it can run
    nowhere, None if it can.
    """

    size: int
    is_plain: bool
    wishes: list[int]
    fastest: float
    scope: int
    kinds: list[int]
    fewest: list[int]
    reason: str | None


class Looker:
    """Finds out about jobs on a cluster whose nodes are all up, under one policy."""

    def __init__(self, policy: OrderedPolicy, nodes: NodeStates, profile: Profile, whole_gangs: bool, rows: JobRows) -> None:
        self._policy, self._profile, self._whole_gangs, self._rows = policy, profile, whole_gangs, rows
        self._nodes = NodeStates(nodes.cluster)
        self._types = nodes.cluster.accelerator_names
        self._layout, self._spans = Layout(nodes.cluster.nodes), Spans(nodes.cluster)
        # A profile by job type knows nothing else of a job.
        self._by_type = type(profile) is ThroughputProfile
        self._like: dict[tuple[object, ...], Traits] = {}

    def knows(self, job: Job) -> bool:
        """Say whether a job like this one has been looked at, whose steps are known as those of this one are."""
        return self._by_type and job.total_steps is not None and LIKE(job) in self._like

    def __call__(self, job: Job) -> tuple[float, Traits]:
        """Return the total steps of a job, NaN where nobody knows, and its traits. Raises `InputError` as `Policy.check`."""
        if self.knows(job):
            assert job.total_steps is not None  # noqa: S101
            return job.total_steps, self._like[LIKE(job)]
        problem = new_only([with_steps(job, 0.0)], self._whole_gangs).problem(self._nodes, self._profile, self._rows)
        jobs = self._policy.view(separate_jobs(problem, self._policy.name, self._policy.reads))
        able = len(jobs) > 0
        preference = np.argsort(-jobs.throughputs[0], kind="stable").tolist() if able else []
        kinds, fewest = np.zeros(len(self._types), dtype=np.int64), np.ones(len(self._types), dtype=np.int64)
        scope = SCOPES.index(job.locality)
        if problem.speeds is not None:
            for j in np.flatnonzero(problem.speeds.differ[0]).tolist():
                fewest[j] = self._spans.fewest(self._types[j], int(job.num_gpus))
                # The same as in `Crowd.with_kinds_on`.
                if job.num_gpus > fewest[j] and fewest[j] < self._nodes_of(j) and scope != NODE:
                    kinds[j] = Kind.APART if problem.speeds.apart[0, j] else Kind.TOGETHER
        traits = Traits(
            size=int(job.num_gpus),
            is_plain=job.num_gpus == int(job.num_gpus) and not (job.even_split and job.num_gpus > 1),
            wishes=[j for j in preference if jobs.runnable[0, j]],
            fastest=float(jobs.fastest[0]) if able else 0.0,
            scope=scope,
            kinds=kinds.tolist(),
            fewest=fewest.tolist(),
            reason=problem.excluded.get(job.job_id),
        )
        if self._by_type and job.total_steps is not None:
            self._like[LIKE(job)] = traits
        return float(problem.total_steps[0]), traits

    def _nodes_of(self, column: int) -> int:
        number = self._layout.type_number.get(self._types[column])
        return 0 if number is None else len(self._layout.parts[number].sizes)
