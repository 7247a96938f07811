"""What a session can be asked, as plain data with the version of its state."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gavel_py.allocation.explanation import explain
from gavel_py.allocation.result import Allocation, unpromised
from gavel_py.allocation.solver import solve
from gavel_py.errors import Fault, UnknownNameError
from gavel_py.io.locking import synchronized
from gavel_py.policies.base import AllocationStatus
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling import NodeState
from gavel_py.scheduling.options import AllocationOptions
from gavel_py.service.session import Session

if TYPE_CHECKING:
    from gavel_py.report.allocation_page import AllocationView

OTHERWISE = {True: "it has had what it was promised", False: "it is promised no time now", None: "the next round decides on it"}
"""Why a job waits for which the last round has no reason, by whether the allocation gives it time; None if it does not have it."""

NOT_DRAWN = "Rounds are not drawn: the cluster is too large, or jobs share GPUs."


class SessionReader:
    """Reads a session while other threads apply events; each answer is about one version, since it has the lock of the session."""

    def __init__(self, session: Session) -> None:
        self._session, self._lock = session, session._lock
        self._solved: tuple[Allocation, Allocation] | None = None

    @synchronized
    def current_round(self) -> dict[str, Any]:
        """Return the answer of the last round, and the GPUs of all jobs that run now."""
        running = {job_id: each.to_dict() for job_id, each in self._session.scheduler.running.items()}
        return {"version": self._session.version, "round": self._session.last_round, "running": running}

    @synchronized
    def job(self, job_id: str) -> dict[str, Any]:
        """Return what a job holds, what it was promised, and why it waits. Raises `UnknownNameError`."""
        scheduler, blocked = self._session.scheduler, self._session.scheduler.is_blocked(job_id)
        lease = None if blocked else scheduler.lease(job_id)
        delivery, wait = scheduler.delivery_of(job_id), scheduler.wait_of(job_id)
        return {
            "version": self._session.version,
            "job_id": job_id,
            "state": "blocked" if blocked else "waiting" if lease is None else "running",
            "assignment": None if lease is None else lease.assignment.to_dict(),
            "lease_end_seconds": None if lease is None else lease.end_seconds,
            "wait": None if wait is None else wait.value,
            "delivery": None if delivery is None else delivery.to_dict(),
        }

    @synchronized
    def explanation(self, job_id: str) -> dict[str, Any]:
        """Return why the current allocation gives a job what it gives it (`explain`). Raises `UnknownNameError`."""
        allocation = self._proven_allocation()
        if allocation is None or job_id not in allocation.job_ids:
            self.job(job_id)  # raises for one that is not there
            raise UnknownNameError(Fault(f"job {job_id!r}", "", "has no allocation yet; the next round decides on it"))
        assert allocation.evidence is not None  # noqa: S101
        found = explain(allocation.evidence.base, job_id, self._session.scheduler.policy, allocation=allocation)
        return {"version": self._session.version, **found.to_dict()}

    def _proven_allocation(self) -> Allocation | None:
        """Return the current allocation; one from before a restart, which has lost its proof, is solved again, once."""
        scheduler, allocation = self._session.scheduler, self._session.scheduler.allocation
        if allocation is None or allocation.evidence is not None:
            return allocation
        if self._solved is None or self._solved[0] is not allocation:
            options = {name: getattr(scheduler.options, name) for name in AllocationOptions.model_fields}
            problem = AllocationProblem.from_jobs(scheduler.jobs, scheduler.cluster, scheduler.profile, **options)
            again = unpromised if allocation.status == AllocationStatus.DIRECT else solve
            self._solved = allocation, again(problem, scheduler.policy)
        return self._solved[1]

    @synchronized
    def tenants(self) -> dict[str, Any]:
        """Return the parts of the cluster of each tenant: entitled by weights, promised by the allocation, delivered by rounds.

        None is unknown: before the first round, and what was delivered to jobs without a tenant.
        """
        allocation, delivery = self._proven_allocation(), self._session.scheduler.delivery()
        delivered = {name: each.delivered_gpu_seconds for name, each in delivery.tenants.items()}
        offered = sum(delivery.offered_by_type.values()) or 1.0
        shares = () if allocation is None else allocation.tenants()
        entitled, nothing = {each.tenant: (each.share, each.gpu_share) for each in shares}, None if allocation is None else 0.0
        found = [
            {
                "tenant": name,
                "entitled_share": entitled.get(name, (nothing,))[0],
                "promised_share": entitled.get(name, (nothing,))[-1],
                "delivered_share": delivered.get(name, 0.0) / offered if name else None,
            }
            for name in dict.fromkeys([*entitled, *delivered])
        ]
        return {"version": self._session.version, "tenants": found}

    @synchronized
    def view(self, rounds: str) -> AllocationView:
        """Return what the page shows of the session. rounds: their chart."""
        from gavel_py.report.allocation_page import AllocationView, TenantParts, TypeUse, WaitingJob, due_jobs

        scheduler, last, state = self._session.scheduler, self._session.last_round, self.measured()
        allocation, running, reasons = self._proven_allocation(), scheduler.running, {} if last is None else last["excluded"]
        has_time: dict[str, bool] = {}
        if allocation is not None and self._session.rounds:  # after a start, the waits of the last round are not known
            has_time = dict(zip(allocation.job_ids, (allocation.time_fractions.sum(axis=1) > 0).tolist(), strict=True))
        waiting = [
            WaitingJob(
                job.job_id,
                job.tenant,
                job.num_gpus,
                reasons.get(job.job_id) or scheduler.wait_of(job.job_id) or OTHERWISE[has_time.get(job.job_id)],
            )
            for job in scheduler.jobs
            if job.job_id not in running
        ]
        waiting += [WaitingJob(job_id, "", None, f"it waits for {', '.join(which)}") for job_id, which in scheduler.blocked.items()]
        sizes = zip(scheduler.cluster.capacities.tolist(), state["gpus"].items(), strict=True)
        counts = ", ".join(f"{number:,} {name}" for name, number in state["jobs"].items())
        when = "no round yet" if last is None else f"round {last['index']} from {last['start_seconds']:,.10g} s on"
        return AllocationView(
            title=f"gavel: {self._session.folder.name}",
            facts=[f"Policy {scheduler.policy.label}; {when}; jobs: {counts}."]
            + [NOT_DRAWN] * (not rounds and bool(self._session.rounds)),
            tenants=[TenantParts(*each.values()) for each in self.tenants()["tenants"]],
            types=[TypeUse(name, gpus, held, free) for gpus, (name, (held, free)) in sizes],
            waiting=waiting,
            due=[] if allocation is None else due_jobs(allocation),
            rounds=rounds,
            version=state["version"],
        )

    @synchronized
    def measured(self) -> dict[str, Any]:
        """Return numbers for metrics: jobs by state, and {type: (GPUs that jobs hold, free ones of nodes that are up)}."""
        scheduler, held, free = self._session.scheduler, defaultdict[str, float](float), defaultdict[str, float](float)
        running, states, blocked = scheduler.running, scheduler.nodes, len(scheduler.blocked)
        for node in scheduler.cluster.nodes:
            free[node.accelerator] += node.num_gpus * (states[node.name] is NodeState.UP)
        for each in running.values():
            held[each.accelerator] += each.gpu_share
            is_up = sum(states[name] is NodeState.UP for name, _ in each.gpus)
            free[each.accelerator] -= each.gpu_share * is_up / len(each.gpus)
        return {
            "version": self._session.version,
            "jobs": {"running": len(running), "waiting": len(scheduler.jobs) - len(running), "blocked": blocked},
            "gpus": {name: (held[name], free[name]) for name in scheduler.cluster.accelerator_names},
        }
