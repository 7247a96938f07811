"""Rounds: from the time fractions of an allocation to jobs on GPUs, one round after the other.

mechanism: which jobs run (pure): by what they are owed (deficit) or the published rule (priority); placement: on which GPUs (pure);
colocation: jobs that share GPUs; round_planning: mechanism and placement together; planner: chooses the next round; event_driven:
decisions without rounds, from few changes; current_allocation: the allocation in force; problem_cache: rows of jobs kept from one
problem to the next; jobs, nodes, ledger, delivery: the past of jobs, the states of nodes, what was promised and what was delivered;
scheduler_base, scheduler, commit: from round to round; state, snapshot: what the scheduler must not lose, and how that gets into a
file.
"""

from gavel_py.scheduling.delivery import DeliveryReport, JobDelivery, Wait
from gavel_py.scheduling.mechanism.deficit import choose_jobs
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.mechanism.priority import choose_by_priority
from gavel_py.scheduling.nodes import NodeState
from gavel_py.scheduling.placement import Gang, place
from gavel_py.scheduling.placement.gangs import PlacementPreference
from gavel_py.scheduling.round import Assignment, Lease, Round
from gavel_py.scheduling.scheduler import RoundScheduler

__all__ = [
    "Assignment",
    "DeliveryReport",
    "Gang",
    "JobDelivery",
    "Lease",
    "NodeState",
    "PlacementPreference",
    "Round",
    "RoundDemand",
    "RoundScheduler",
    "Wait",
    "choose_by_priority",
    "choose_jobs",
    "place",
]
