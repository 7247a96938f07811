"""What a round scheduler is told of jobs: they come, make progress, change, fail and leave."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence

from gavel_py.errors import Fault, InputError
from gavel_py.io.locking import synchronized
from gavel_py.problem.job import Job, JobSet
from gavel_py.scheduling.in_force import new_only, same_gang
from gavel_py.scheduling.job_book import changed_job
from gavel_py.scheduling.node_states import NodeStates
from gavel_py.scheduling.scheduler_core import SchedulerCore, is_finite
from gavel_py.scheduling.standing import Departure

__all__ = ["JobEvents"]

logger = logging.getLogger(__name__)


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
