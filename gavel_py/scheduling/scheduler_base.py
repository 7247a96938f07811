"""The parts of a round scheduler below its rounds: settings and state, and the events of jobs, nodes and GPUs.

`SchedulerCore` is what it is made of, and what can be asked of it at any time. `JobEvents`: jobs arrive, make progress, change,
fail and leave. `NodeEvents`: nodes and GPUs fail, are drained, and come back. `why_rounds` says which policies can decide whenever
something happens, where there are no rounds of one length.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import TypeGuard

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.locking import Synchronized, synchronized
from gavel_py.optimization.solving.time_limit import checked_limit
from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job, JobSet
from gavel_py.scheduling.commit import copied
from gavel_py.scheduling.current_allocation import new_only, same_gang
from gavel_py.scheduling.jobs import Departure, JobRegistry, changed_job
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism import MechanismName, resolve_mechanism
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import NodeState, NodeStates
from gavel_py.scheduling.placement.topology import Gpu
from gavel_py.scheduling.planner import RoundPlanner
from gavel_py.scheduling.round import Assignment
from gavel_py.scheduling.snapshot import OPTIONS
from gavel_py.scheduling.state import SchedulerState

logger = logging.getLogger(__name__)

CLOCK = frozenset({"attained_gpu_seconds", "waiting_seconds", "isolated_seconds"})
"""What a scheduler counts in rounds of one length."""


def why_rounds(policy: Policy) -> str:
    """Return why a policy needs rounds, in words that follow its name; empty if it does not."""
    if policy.family != "ordered" or getattr(policy, "fractional", False):
        return "which gives jobs parts of their time; without rounds, these cannot be served"
    counted = sorted(CLOCK.intersection(policy.reads))
    return f"which reads what is counted in rounds ({', '.join(counted)})" if counted else ""


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
        self._state = SchedulerState(JobRegistry(), NodeStates(self.cluster), DeliveryLedger(self.cluster.accelerator_names))

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
    def _chooser(self) -> RoundPlanner:
        options = {name: getattr(self, name) for name in OPTIONS}
        return RoundPlanner(self._solver, self._profile, self.mechanism, **options)

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


class JobEvents(SchedulerCore):
    """A scheduler that is told of jobs."""

    @synchronized
    def submit(self, job: Job) -> None:
        """Add a job, which the next round takes into account; a job that can run nowhere is excluded then, with the reason.

        A submitted job is there, whatever its `arrival_seconds`: that orders jobs and counts their time in the system.
        Raises `InputError` when its id was used before, when it does not fit cluster and profile
        (`AllocationProblem.from_jobs`), or lacks what the policy needs to know.
        """
        self.submit_all([job])

    @synchronized
    def submit_all(self, jobs: Sequence[Job]) -> None:
        """Add several jobs, all of them or none; many take much less time together than one after the other. Raises as `submit`."""
        for job in jobs:
            self._state.book.check_new(job)
        JobSet(jobs)  # no id twice
        if jobs:
            self._check(*jobs)
        for job in jobs:
            self._state.book.add(job)
        self._state.note(changed=bool(jobs))
        logger.debug("submitted: %s", jobs[0].job_id if len(jobs) == 1 else f"{len(jobs)} jobs")

    @synchronized
    def update(self, job_id: str, /, **fields: object) -> None:
        """Change fields of a job from the next round on: weight, priority, deadline, locality, num_gpus, ...

        A gang that asks for other GPUs (`GANG_FIELDS`: num_gpus, locality, ...) loses those that it has and starts anew.
        Raises `UnknownNameError`, and `InputError` for what cannot change and for what `submit` would refuse.
        """
        before = self._state.book.known(job_id)
        job = changed_job(before, fields)
        self._check(job)
        self._state.book.put(job)
        if not same_gang(before, job):
            self._state.stop(job_id)
        self._state.note()
        logger.debug("job %s has other %s", job_id, ", ".join(fields))

    @synchronized
    def report(self, job_id: str, *, steps_done: float) -> None:
        """Note a job's progress: its steps done in all. With its last step it is finished, and no round will run it again.

        It may be less than before, as after a restart from an older checkpoint. It may come late: whether the job runs, was
        preempted or has failed and will be tried again makes no difference, as long as it is in the system.
        Raises `UnknownNameError` for a job that is not in the system, and tells how it left; `InputError` for a wrong number.
        """
        self.report_all({job_id: steps_done})

    @synchronized
    def report_all(self, steps_done: Mapping[str, float]) -> None:
        """Note the progress of several jobs at once, {job_id: steps done in all}, as `report` does for each; all or none of it.

        Raises as `report`.
        """
        book = self._state.book
        if not _are_steps(steps_done.values()):
            for job_id, steps in steps_done.items():
                if not (is_finite(steps) and steps >= 0):
                    book.known(job_id)
                    problem = f"must be a finite number of at least 0, found {steps!r}"
                    raise InputError(Fault(f"job {job_id!r}", "steps_done", problem))
            steps_done = {job_id: float(steps) for job_id, steps in steps_done.items()}
        book.note(steps_done)
        self._state.note(changed=bool(steps_done))

    @synchronized
    def complete(self, job_id: str) -> None:
        """Let a job that is done leave; raises `UnknownNameError`."""
        self._leave(job_id, Departure.COMPLETED)

    @synchronized
    def cancel(self, job_id: str) -> None:
        """Let a job leave that is not done; raises `UnknownNameError`."""
        self._leave(job_id, Departure.CANCELLED)

    @synchronized
    def job_failed(self, job_id: str) -> bool:
        """Note that a job has stopped with an error, and return whether it will be tried again.

        It holds its GPUs no more. Up to `Job.max_retries` times it stays and is started anew when its turn comes; then it leaves,
        and is reported in `failed` and in the next round. The round counts as delivered. What a node does is no failure of the job.
        Raises `UnknownNameError`.
        """
        state = self._state
        again = state.book.fail(job_id)
        state.stop(job_id)
        state.note()
        if not again:
            state.newly_failed[job_id] = state.book.why_failed(job_id)
        logger.info("job %s has failed: it %s", job_id, "will be tried again" if again else state.book.why_failed(job_id))
        return again

    @synchronized
    def interrupted(self, job_id: str) -> None:
        """Note that a job does not run though it should, by no fault of its own: it was not launched, say, or stopped.

        It holds its GPUs no more, the round does not count as delivered, and the job is started anew when its turn comes.
        Raises `UnknownNameError`.
        """
        self._state.take_back(self._state.book.known(job_id).job_id)
        self._state.note()
        logger.info("job %s was interrupted", job_id)

    @synchronized
    def found_running(self, job_id: str, gpus: Mapping[str, int]) -> None:
        """Note that a job runs, without having been started by a round, or elsewhere: on so many GPUs of each of these nodes.

        So it is where a cluster is taken over on which jobs run. It may go on there, as if the latest round had started it, but
        nothing is counted as delivered. Which GPUs of a node it has is chosen among those that nobody holds and that are not lost.
        Raises `UnknownNameError`; `InputError` for nodes of several types, or where so many GPUs are not free or not its gang's.
        """
        job, state = self._state.book.known(job_id), self._state
        taken = {gpu for other, held in state.running.items() if other != job_id for gpu in held.gpus}
        assignment = state.nodes.free_place(job_id, gpus, taken)
        if len(assignment.gpus) != job.num_gpus:
            raise InputError(Fault(f"job {job_id!r}", "gpus", f"must be {job.num_gpus} in all, found {len(assignment.gpus)}"))
        state.gangs.put(job_id, assignment)
        past = state.book.standings[job_id]
        past.running_since_seconds, past.has_run = None if state.last is None else state.last.start_seconds, True
        state.note()

    @synchronized
    def forget(self, *job_ids: str) -> None:
        """Drop the accounts and the past of jobs that have left, all of which memory and saved files would keep for ever.

        They are no part of `delivery` and `failed` any more, and their ids may be used again. Raises `InputError` for a job that is
        in the system or was when the last round was decided, `UnknownNameError` for one that never was.
        """
        state = self._state
        state.book.check_gone(job_ids, state.deciding)
        for job_id in set(job_ids):
            del state.book.standings[job_id]
        state.ledger.forget(set(job_ids))
        state.company.forget(set(job_ids))

    def _check(self, *jobs: Job) -> None:
        """Better refused here than to stop every round from now on."""
        in_turn = self._chooser.in_turn(self._state)
        # Others like those that are known have been looked at.
        new = jobs if in_turn is None else [job for job in jobs if not in_turn.looker.knows(job)]
        if new:
            problem = new_only(new, self.whole_gangs).problem(NodeStates(self.cluster), self._profile, self._state.rows)
            self._solver.policy.check(problem)

    def _leave(self, job_id: str, how: Departure) -> None:
        self._state.book.remove(job_id, how)
        self._state.stop(job_id)
        self._state.note()
        logger.debug("job %s %s", job_id, how)


def _are_steps(numbers: Collection[float]) -> bool:
    """Say whether all of these are finite numbers of at least 0, and of the usual kind: nearly always, and quick to see."""
    return set(map(type, numbers)) == {float} and all(map(math.isfinite, numbers)) and min(numbers) >= 0.0


class NodeEvents(SchedulerCore):
    """A scheduler that is told of nodes."""

    @synchronized
    def node_down(self, name: str) -> tuple[str, ...]:
        """Note that a node is lost, and return the jobs that ran there; they hold no GPUs any more.

        Nobody runs there until `node_up`. For these jobs the round does not count as delivered: it stays owed. What jobs are owed
        on the node's type is kept; those that can run nowhere else are excluded, with the reason. Raises `UnknownNameError`.
        """
        return self._node(name, NodeState.DOWN)

    @synchronized
    def drain(self, name: str) -> None:
        """Empty a node without harm: the gangs there run until their leases end, no lease is renewed, and no gang starts there.

        It is empty when the next round starts, or the one after that, where the next one has been planned already (`plan_next`).
        Raises `UnknownNameError`.
        """
        self._node(name, NodeState.DRAINING)

    @synchronized
    def node_up(self, name: str) -> None:
        """Use a node again from the next round on; GPUs of it that are lost stay lost. Raises `UnknownNameError`."""
        self._node(name, NodeState.UP)

    @synchronized
    def gpu_lost(self, node: str, index: int) -> tuple[str, ...]:
        """Note that one GPU of a node is lost, and return the job that ran there, if any, which holds no GPUs any more.

        The rest as for `node_down`. Raises `UnknownNameError`, and `InputError` for a number that no GPU of the node has.
        """
        self._state.turn(changed=self._state.nodes.lose(node, index))
        stopped = self._state.stop_lost()
        logger.info("GPU %d of node %s is lost, and stops %d gangs", index, node, len(stopped))
        return stopped

    @synchronized
    def gpu_back(self, node: str, index: int) -> None:
        """Use a lost GPU again from the next round on; raises as `gpu_lost`."""
        self._state.turn(changed=self._state.nodes.give_back(node, index))
        logger.info("GPU %d of node %s is back", index, node)

    def _node(self, name: str, to: NodeState) -> tuple[str, ...]:
        self._state.turn(changed=self._state.nodes.put(name, to))
        stopped = self._state.stop_lost()
        logger.info("node %s is %s, which stops %d gangs", name, to, len(stopped))
        return stopped
