"""What a simulation is made of, and what can be asked of it at any time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gavel_py.policies import Policy, resolve_policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling import Round, RoundScheduler
from gavel_py.simulator.admission import Admission
from gavel_py.simulator.arrivals import Arrivals
from gavel_py.simulator.company import CompanySpeeds
from gavel_py.simulator.course import Course
from gavel_py.simulator.events import NodeEvents, NodeFailures, NodeWindow
from gavel_py.simulator.holds import Holds
from gavel_py.simulator.measuring import JobWindow, Measuring, job_window
from gavel_py.simulator.records import JobRecord, Outcome
from gavel_py.simulator.settings import EVENT_CHECKPOINT_SECONDS, PROGRESS, Estimates, JobFailures, check_settings
from gavel_py.simulator.state import SimulationState
from gavel_py.simulator.usage import Usage
from gavel_py.workloads import Submission

__all__ = ["SimulationCore"]


class SimulationCore:
    """The settings and the state of a `Simulation`, whose arguments it takes."""

    def __init__(
        self,
        trace: Iterable[Submission | Job],
        cluster: Cluster,
        profile: Profile,
        policy: str | Policy = "max_min_fairness",
        *,
        round_seconds: float | None = 360.0,
        node_failures: NodeFailures | None = None,
        maintenance: Iterable[NodeWindow] = (),
        job_failures: JobFailures = 0.0,
        checkpoint_seconds: float | None = None,
        interference: float = 0.0,
        estimates: Estimates = "exact",
        measure_jobs: JobWindow | None = None,
        seed: int = 0,
        on_record: Callable[[JobRecord], None] | None = None,
        on_round: Callable[[Round], None] | None = None,
        allow_unknown_types: bool = False,
        **scheduling: Any,
    ) -> None:
        cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        chosen = resolve_policy(policy)
        check_settings(chosen, round_seconds, job_failures, checkpoint_seconds, estimates, seed, interference, measure_jobs)
        length, by_events = (1.0, True) if round_seconds is None else (round_seconds, False)
        scheduler = RoundScheduler(cluster, profile, chosen, length, by_events=by_events, **scheduling)
        measuring = Measuring(job_window(measure_jobs))
        arrivals = Arrivals(trace, measuring.window)
        start = arrivals.next_seconds if arrivals.next_seconds < math.inf else 0.0  # the clock starts with the first job
        notice = 0.0 if round_seconds is None else round_seconds
        names = [node.name for node in cluster.nodes]
        events = NodeEvents(names, node_failures, maintenance, notice, np.random.default_rng([seed, 1]), start)
        state = SimulationState(start, arrivals, events, Usage(cluster, start), Holds(len(cluster.accelerator_names)), measuring)
        admission = Admission(cluster, profile, job_failures, estimates, np.random.default_rng([seed, 2]))
        self._assemble(scheduler, state, admission, round_seconds, checkpoint_seconds, float(interference), on_record, on_round)

    def _assemble(
        self,
        scheduler: RoundScheduler,
        state: SimulationState,
        admission: Admission,
        round_seconds: float | None,
        checkpoint_seconds: float | None,
        interference: float,
        on_record: Callable[[JobRecord], None] | None,
        on_round: Callable[[Round], None] | None,
    ) -> None:
        self.scheduler, self.profile, self.cluster = scheduler, scheduler.profile, scheduler.cluster
        self.round_seconds, self.checkpoint_seconds, self.interference = round_seconds, checkpoint_seconds, interference
        self._state, self._admission = state, admission
        self._on_record, self._on_round = on_record, on_round
        self._whole = True
        every = EVENT_CHECKPOINT_SECONDS if round_seconds is None and checkpoint_seconds is None else checkpoint_seconds
        reads_progress = bool(PROGRESS.intersection(self.policy.reads) or self.policy.constraints)
        speeds = CompanySpeeds(self.profile, interference)
        self._course = Course(state, scheduler, self.profile, speeds, round_seconds, every, reads_progress, self._leave)

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self.scheduler.policy

    @property
    def now(self) -> float:
        """The time, in seconds on the clock of the trace."""
        return self._state.now

    @property
    def active(self) -> int:
        """How many jobs are in the system."""
        return len(self._state.active)

    @property
    def measure_jobs(self) -> JobWindow | None:
        """The window of jobs that are measured, None: all."""
        return self._state.measuring.window

    @property
    def used_gpu_seconds(self) -> tuple[float, ...]:
        """(K,) the GPU-seconds of each type of `cluster` in which gangs have held them so far."""
        return tuple(self._state.usage.used.values())

    @property
    def records(self) -> dict[str, JobRecord]:
        """{job_id: JobRecord} of the jobs that have left, none where `on_record` takes them; what is taken out is forgotten."""
        return self._state.records

    @abstractmethod
    def _leave(self, job_id: str, outcome: Outcome, seconds: float) -> None:
        """Let a job go."""
