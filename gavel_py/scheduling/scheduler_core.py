"""What a round scheduler is made of, and what can be asked of it at any time."""

from __future__ import annotations

import math
from numbers import Real
from typing import TypeGuard

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.locking import Synchronized, synchronized
from gavel_py.optimization.time_limit import checked_limit
from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.beginning import copied
from gavel_py.scheduling.choosing import Chooser
from gavel_py.scheduling.job_book import JobBook
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.mechanism.mechanism_names import MechanismName, resolve_mechanism
from gavel_py.scheduling.node_states import NodeState, NodeStates
from gavel_py.scheduling.placement.layout import Gpu
from gavel_py.scheduling.saved_scheduler import OPTIONS
from gavel_py.scheduling.scheduler_state import SchedulerState
from gavel_py.scheduling.without_rounds import why_rounds

__all__ = ["SchedulerCore", "fault", "is_finite"]


class SchedulerCore(Synchronized):
    """The settings and the state of a `RoundScheduler`, whose arguments it takes."""

    def __init__(
        self,
        cluster: Cluster,
        profile: Profile,
        policy: str | Policy = "max_min_fairness",
        round_seconds: float = 360.0,
        *,
        mechanism: MechanismName | Mechanism = "deficit",
        restart_seconds: float = 0.0,
        min_run_seconds: float = 0.0,
        whole_gangs: bool = True,
        sharing: bool = False,
        min_gain: float = 1.0,
        by_events: bool = False,
        solve_seconds: float = 0.0,
        time_limit_seconds: float | None = None,
        allow_unknown_types: bool = False,
    ) -> None:
        if not (is_finite(round_seconds) and round_seconds > 0):
            raise InputError(fault("round_seconds", f"must be a finite number greater than 0, found {round_seconds!r}"))
        seconds = {"restart_seconds": restart_seconds, "min_run_seconds": min_run_seconds, "solve_seconds": solve_seconds}
        for name, value in seconds.items():
            if not (is_finite(value) and value >= 0):
                raise InputError(fault(name, f"must be a finite number of at least 0, found {value!r}"))
        self.cluster = cluster.known_to(profile, allow_unknown_types=allow_unknown_types)
        self._profile = profile
        self.time_limit_seconds = checked_limit("round scheduler", time_limit_seconds)
        # It keeps the basis of the last program, so that few changes take little time.
        self._solver = Solver(policy, time_limit_seconds=time_limit_seconds)
        self.round_seconds = float(round_seconds)
        self.restart_seconds = float(restart_seconds)
        self.min_run_seconds = float(min_run_seconds)
        self.solve_seconds = float(solve_seconds)
        self.whole_gangs, self.sharing, self.by_events = bool(whole_gangs), bool(sharing), bool(by_events)
        if not (is_finite(min_gain) and min_gain >= 1):
            raise InputError(fault("min_gain", f"must be a finite number of at least 1, found {min_gain!r}"))
        self.min_gain = float(min_gain)
        self._check_by_events(self._solver.policy)
        self.mechanism: MechanismName | Mechanism = mechanism
        resolve_mechanism(mechanism, self.cluster.accelerator_names)  # an unknown name is found here, not in a round
        self._state = SchedulerState(JobBook(), NodeStates(self.cluster), DeliveryLedger(self.cluster.accelerator_names))

    @property
    @synchronized
    def policy(self) -> Policy:
        """The policy that decides on the allocation."""
        return self._solver.policy

    @policy.setter
    @synchronized
    def policy(self, policy: str | Policy) -> None:
        solver = Solver(policy, time_limit_seconds=self.time_limit_seconds)
        self._check_by_events(solver.policy)
        self._solver = solver
        self._state.turn()

    @property
    @synchronized
    def profile(self) -> Profile:
        """How fast jobs are; another one, which must know the cluster's types and the jobs, counts from the next round on."""
        return self._profile

    @profile.setter
    @synchronized
    def profile(self, profile: Profile) -> None:
        unknown = [name for name in self.cluster.accelerator_names if name not in profile.accelerators]
        has = f"it has {', '.join(profile.accelerators)}"
        InputError.raise_any([fault("profile", f"lacks accelerator {n!r}, which the cluster has; {has}") for n in unknown])
        self._profile = profile
        self._state.turn()

    @property
    @synchronized
    def solver_seconds(self) -> float:
        """The time that allocations have taken so far, on the clock of this computer, those of a saved scheduler left out."""
        return self._state.solver_seconds

    @property
    def _chooser(self) -> Chooser:
        options = {name: getattr(self, name) for name in OPTIONS}
        return Chooser(self._solver, self._profile, self.mechanism, **options)

    def _check_by_events(self, policy: Policy) -> None:
        """Raise `InputError` for a policy that needs rounds where there are none, and for a time that counts in them."""
        if self.by_events and self.solve_seconds:
            text = f"must be 0 where there are no rounds and each event is decided on, found {self.solve_seconds:g}"
            raise InputError(fault("solve_seconds", text))
        why = why_rounds(policy) if self.by_events else ""
        if why:
            raise InputError(fault("by_events", f"does not go with {policy.name}, {why}"))

    @property
    @synchronized
    def jobs(self) -> tuple[Job, ...]:
        """The jobs in the system with the progress last reported, sorted by job_id (`natural_key`)."""
        return self._state.book.in_order

    @property
    @synchronized
    def failed(self) -> dict[str, str]:
        """{job_id: reason} of the jobs that failed more often than they may be tried again, and have left."""
        return self._state.book.failed

    @property
    @synchronized
    def allocation(self) -> Allocation | None:
        """The allocation of the latest round, or of the next one where it has been planned; None before the first.

        It is as it was solved: with `solve_seconds`, jobs may have come and gone since.
        """
        return None if self._state.in_force is None else self._state.in_force.allocation

    @property
    @synchronized
    def running(self) -> dict[str, Assignment]:
        """{job_id: Assignment} of the gangs that hold GPUs now: of the latest round, less what has stopped since."""
        return copied(self._state.running)

    @property
    @synchronized
    def last_start_seconds(self) -> float | None:
        """When the latest round has started, None before the first; none may start earlier."""
        return None if self._state.last is None else self._state.last.start_seconds

    @property
    @synchronized
    def nodes(self) -> dict[str, NodeState]:
        """The state of each node: up, draining or down."""
        return self._state.nodes.by_name

    @property
    @synchronized
    def lost_gpus(self) -> tuple[Gpu, ...]:
        """The single GPUs that are lost, as (node, index)."""
        return tuple(sorted(self._state.nodes.lost))


def is_finite(value: object) -> TypeGuard[float]:
    """Say whether this is a finite number."""
    if type(value) is float:
        return math.isfinite(value)  # nearly always, and the quick way
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def fault(field: str, problem: str) -> Fault:
    """Return a fault in what a scheduler was told."""
    return Fault("round scheduler", field, problem)
